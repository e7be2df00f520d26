"""What can go wrong while watching."""


class StoreDown(Exception):
    """The database does not answer now; it is asked again in a second."""
