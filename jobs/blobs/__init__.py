"""The blob store: bytes stored once per tenant and content, addressed by row, never by a path from a request.

Code, checkpoints and results are here, in a folder or an S3 bucket (LUTHIER_BLOBS). Nothing here interprets the bytes.
"""

from jobs.blobs.arrival import append, begin, begin_all, hold, known, put
from jobs.blobs.calls import places
from jobs.blobs.errors import (
    BeingFinished,
    BlobError,
    BlobGone,
    HashMismatch,
    PartsWrong,
    PieceTooLarge,
    SendDirectly,
    StoreSilent,
    StoreUnavailable,
    WrongOffset,
)
from jobs.blobs.ownership import own_mark
from jobs.blobs.reading import check, discard, is_sound, is_there, open, read
from jobs.blobs.removal import give_up, release, sweep, sweep_keys
from jobs.blobs.store import BLOCK, MAX_PIECE, key_of

__all__ = [
    "BLOCK", "MAX_PIECE", "BeingFinished", "BlobError", "BlobGone", "HashMismatch", "PartsWrong", "PieceTooLarge",
    "SendDirectly", "StoreSilent", "StoreUnavailable", "WrongOffset", "append", "begin", "begin_all", "check",
    "discard", "give_up", "hold", "is_sound", "is_there", "key_of", "known", "open", "own_mark", "places", "put",
    "read", "release", "sweep", "sweep_keys",
]  # fmt: skip
