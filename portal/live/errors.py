"""What can go wrong while watching."""


class StoreDown(Exception):
    """The database does not answer now; it is asked again in a second."""


class Unreadable(StoreDown):
    """What is kept there cannot be read now; it is asked for again in a second."""
