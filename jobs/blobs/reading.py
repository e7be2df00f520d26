"""Reading what is stored, and checking that it still is what it was."""

from __future__ import annotations

import hashlib
from typing import BinaryIO

from django.db import transaction

from jobs.blobs.errors import BlobGone
from jobs.blobs.store import BLOCK, key_of, store
from jobs.models import Blob


def check() -> None:
    """Raise StoreUnavailable or OSError, with what is wrong, if nothing can be stored now."""
    store().check()


def open(blob: Blob, start: int = 0, *, streamed: bool = False) -> BinaryIO:
    """Open a verified blob for reading from byte start on; streamed: see `Store.open`. Raises BlobGone or
    StoreUnavailable."""
    try:
        return store().open(key_of(blob.tenant_id, blob.pk), start, streamed=streamed)
    except FileNotFoundError as error:
        raise BlobGone(f"Blob {blob.pk} is not in the store.") from error


def is_there(blob: Blob) -> bool:
    """Whether the bytes of a verified blob can be opened. Raises StoreUnavailable."""
    return blob.verified and store().exists(key_of(blob.tenant_id, blob.pk))


def read(blob: Blob, start: int, size: int) -> bytes:
    """Return bytes start … start+size-1, fewer at the end. Raises BlobGone or StoreUnavailable."""
    with open(blob, start) as source:
        return source.read(size)


def is_sound(blob: Blob) -> bool:
    """Hash the stored bytes again. False if they are damaged or gone. Long for a large file: never in a transaction."""
    digest = hashlib.sha256()
    try:
        with open(blob) as source:
            while block := source.read(BLOCK):
                digest.update(block)
    except BlobGone:
        return False
    return digest.hexdigest() == blob.sha256


def discard(blob: Blob) -> None:
    """Remove bytes that are damaged, and unverify their row, so that they may be uploaded again.

    Call it in the transaction that records the damage. The bytes are removed under the row's lock, before the commit:
    later they could be those of a new, valid upload. If the commit fails, a verified row has no bytes, which is found
    in the same way as the damage was.
    """
    with transaction.atomic():
        locked = Blob.objects.select_for_update(no_key=True).filter(pk=blob.pk, verified=True).first()
        if locked is not None:
            Blob.objects.filter(pk=locked.pk).update(
                verified=False, received=0, upload_id="", finishing_at=None
            )
            store().remove(key_of(locked.tenant_id, locked.pk))
