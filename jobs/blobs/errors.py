"""Why bytes were not accepted or cannot be read."""

from __future__ import annotations


class BlobError(Exception):
    """These bytes were not accepted."""


class WrongOffset(BlobError):
    """The piece does not begin where the last one ended, at byte received."""

    def __init__(self, received: int) -> None:
        super().__init__(f"Continue from byte {received}.")
        self.received = received


class HashMismatch(BlobError):
    """All bytes arrived, but their hash is not the declared one. Everything received was discarded."""


class PieceTooLarge(BlobError):
    """More bytes than declared."""


class SendDirectly(BlobError):
    """A file of this size is sent to the store itself, in parts."""


class PartsWrong(BlobError):
    """The parts in the store are not those that the sender names."""


class BlobGone(BlobError):
    """The bytes of this row are not in the store."""


class StoreUnavailable(BlobError):
    """The store does not respond, or refuses this installation. Nothing was changed."""


class StoreSilent(StoreUnavailable):
    """The store did not respond in time, or reported an error of its own."""


class BeingFinished(StoreUnavailable):
    """The store has all parts of a file and makes one object of them: ask again."""
