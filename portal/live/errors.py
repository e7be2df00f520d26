"""Errors of the live channels."""


class StoreDown(Exception):
    """The database does not answer; it is read again after a second."""


class Unreadable(StoreDown):
    """A stored row cannot be read; it is read again after a second."""
