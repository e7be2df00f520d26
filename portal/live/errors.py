"""Errors of the live channels."""


class StoreDown(Exception):
    """The database is not responding; it is read again after a second."""


class Unreadable(StoreDown):
    """A stored row cannot be read; it is read again after a second."""
