"""The blob store: bytes stored once per tenant and content, addressed by row, never by a path from a request.

Code, checkpoints and results are here, in LUTHIER_DATA/blobs. A blob arrives whole (``put``) or in pieces (``begin``,
``append``); it counts once the server has hashed every byte itself (``verified``). Nothing here interprets the bytes.
"""

from __future__ import annotations

import builtins
import hashlib
import os
import tempfile
import time
from collections import OrderedDict
from datetime import timedelta
from io import BytesIO
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import IO, Any, BinaryIO

from django.conf import settings
from django.db import connection, transaction
from django.db.models import Exists, OuterRef, QuerySet
from django.db.models.functions import Now

from jobs.failpoints import fp
from jobs.models import Attempt, Blob, CheckpointFile, Job, ResultFile, Upload
from tenants.rows import Rows

BLOCK = 1024 * 1024
MAX_PIECE = 8 * 1024 * 1024
HASHERS = 256
SWEPT_AT_ONCE = 1000  # files whose rows are read with one query
ROW = Rows(Blob, "b")
KNOWN = (
    f"SELECT {ROW.columns} FROM jobs_blob b WHERE tenant_id = %s AND sha256 = %s AND verified FOR KEY SHARE"
)


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


class BlobGone(BlobError):
    """The bytes of this row are not on this machine's disk."""


def put(tenant_id: int, content: bytes | IO[bytes]) -> Blob:
    """Store content and return its verified row; the same bytes of the same tenant are stored once. Raises OSError."""
    if isinstance(content, bytes | bytearray) and (known := _known(tenant_id, content)):
        return known
    source: IO[bytes] = BytesIO(content) if isinstance(content, bytes | bytearray) else content
    folder = _root()
    digest, size = hashlib.sha256(), 0
    handle, temporary = tempfile.mkstemp(prefix="put-", dir=folder)
    try:
        with os.fdopen(handle, "wb") as sink:
            while block := source.read(BLOCK):
                digest.update(block)
                size += len(block)
                sink.write(block)
            sink.flush()
            os.fsync(sink.fileno())
        fp("blob.after_written")
        with transaction.atomic():
            blob = _begun(tenant_id, digest.hexdigest(), size)
            if not blob.verified or not _path(blob).exists():
                _path(blob).parent.mkdir(parents=True, exist_ok=True)
                Path(temporary).replace(_path(blob))
                fp("blob.after_placed")
                blob.received, blob.verified = size, True
                blob.save(update_fields=["received", "verified"])
    finally:
        Path(temporary).unlink(missing_ok=True)
    return blob


def _known(tenant_id: int, content: bytes | bytearray) -> Blob | None:
    """The verified row of these bytes if they are stored, locked against release until the end of the transaction.

    A shared lock of the key is enough, so that a hundred jobs with the same code do not wait for each other.
    """
    with connection.cursor() as cursor:
        cursor.execute(KNOWN, [tenant_id, hashlib.sha256(content).hexdigest()])
        found = cursor.fetchone()
    blob = ROW.made(found) if found else None
    return blob if blob and _path(blob).exists() else None


def begin(tenant_id: int, sha256: str, size: int) -> Blob:
    """Find or make the row for these bytes; its received is how many bytes are there already."""
    while (blob := Blob.objects.filter(tenant_id=tenant_id, sha256=sha256).first()) is None:
        # Many learners offer the same files at once: a second insert must not be an error in the database's log.
        row = Blob(tenant_id=tenant_id, sha256=sha256, size=size)
        Blob.objects.bulk_create([row], ignore_conflicts=True)
    if blob.size == size or blob.verified:
        return blob
    # The first upload declared a wrong size.
    if not Blob.objects.filter(pk=blob.pk, verified=False).update(size=size, received=0):
        return begin(tenant_id, sha256, size)  # it was verified or released in between
    blob.size, blob.received = size, 0
    return blob


def _begun(tenant_id: int, sha256: str, size: int) -> Blob:
    """As begin, but locked against release until the end of the transaction."""
    while True:
        blob = begin(tenant_id, sha256, size)
        if held := Blob.objects.select_for_update(no_key=True).filter(pk=blob.pk).first():
            return held


def append(blob_id: int, offset: int, piece: bytes) -> Blob:
    """Add a piece. Hashes while it receives, and verifies with the last byte.

    Raises WrongOffset, which says where to continue (also for a repeated piece), PieceTooLarge, HashMismatch, OSError
    or Blob.DoesNotExist. A piece of a verified blob is ignored.
    """
    with transaction.atomic():
        blob = _locked(blob_id)
        if blob.verified:
            return blob
        if offset + len(piece) > blob.size:
            raise PieceTooLarge(f"The declared size is {blob.size} bytes.")
        partial = _partial(blob)
        have = min(blob.received, partial.stat().st_size if partial.exists() else 0)
        if offset != have:
            raise WrongOffset(have)
        partial.parent.mkdir(parents=True, exist_ok=True)
        with builtins.open(partial, "r+b" if partial.exists() else "wb") as sink:
            sink.seek(offset)
            sink.write(piece)
            sink.truncate()
            sink.flush()
            os.fsync(sink.fileno())
        fp("blob.after_piece")
        blob.received = offset + len(piece)
        digest = _hashers.feed(blob.pk, offset, piece)
        is_valid = blob.received < blob.size or _is_valid(blob, partial, digest)
        if not is_valid:
            partial.unlink()
            blob.received = 0
        elif blob.received == blob.size:
            _path(blob).parent.mkdir(parents=True, exist_ok=True)
            partial.replace(_path(blob))
            fp("blob.after_last_piece")
            blob.verified = True
        blob.save(update_fields=["received", "verified"])
    if not is_valid:
        raise HashMismatch("The hash of the received bytes does not match the declared one.")
    return blob


def open(blob: Blob) -> BinaryIO:
    """Open a verified blob for reading. Raises BlobGone."""
    try:
        return builtins.open(_path(blob), "rb")
    except FileNotFoundError as error:
        raise BlobGone(f"Blob {blob.pk} is not on this disk.") from error


def read(blob: Blob, start: int, size: int) -> bytes:
    """Return bytes start … start+size-1, fewer at the end. Raises BlobGone."""
    with open(blob) as source:
        source.seek(start)
        return source.read(size)


def recheck(blob: Blob) -> bool:
    """Hash the bytes on disk again. Returns False if they are damaged: they are removed, and the row is unverified.

    The bytes are removed under the row's lock, before the commit: later they could be those of a new, valid upload. If
    the commit fails, a verified row has no bytes, which is found in the same way as the damage was.
    """
    with transaction.atomic():
        locked = _locked(blob.pk)
        path = _path(locked)
        is_valid = locked.verified and path.exists() and _hash_file(path) == locked.sha256
        if locked.verified and not is_valid:
            locked.verified, locked.received = False, 0
            locked.save(update_fields=["verified", "received"])
            path.unlink(missing_ok=True)
    return is_valid


def release(blob_ids: list[int]) -> int:
    """Remove those of these blobs that nothing refers to any more; returns how many."""
    gone = 0
    for blob_id in sorted(set(blob_ids)):
        with transaction.atomic():
            blob = Blob.objects.select_for_update().filter(pk=blob_id).first()
            if blob is None or not _unused().filter(pk=blob_id).exists():
                continue
            paths = [_path(blob), _partial(blob)]
            blob.delete()
        fp("blob.after_row_gone")
        for path in paths:
            path.unlink(missing_ok=True)
        gone += 1
    return gone


def sweep(older_than: timedelta) -> int:
    """Remove what a process that died between a row and its file left behind; returns how many rows and files.

    Only what is older than older_than: a row is made before what refers to it, a file before its row is committed.
    Results are referred to when the last of their bytes has arrived, which may take longer: while an attempt is open,
    no row that is younger than it is removed. A blob that comes into use between the query and the release is safe once
    a row refers to it; if none does yet, the next offer requests it again.
    """
    since = time.time() - older_than.total_seconds()
    collecting = Attempt.objects.filter(
        tenant=OuterRef("tenant"), closed_at=None, opened_at__lte=OuterRef("created_at")
    )
    swept = 0
    for blob in _unused().exclude(Exists(collecting)).filter(created_at__lt=Now() - older_than):
        if not _was_written_since(_partial(blob), since):
            swept += release([blob.pk])
    old = (path for path in _root().rglob("*") if path.is_file() and not _was_written_since(path, since))
    while some := list(islice(old, SWEPT_AT_ONCE)):
        named = {path: int(path.stem) for path in some if path.stem.isdigit()}
        known = set(Blob.objects.filter(pk__in=named.values()).values_list("pk", flat=True))
        for path in some:
            if named.get(path) not in known:  # a partial one has no number
                path.unlink(missing_ok=True)
                swept += 1
    return swept


def _was_written_since(path: Path, since: float) -> bool:
    """True if the file exists and was written to since then; others may remove it at any time."""
    try:
        return path.stat().st_mtime >= since
    except FileNotFoundError:
        return False


def _unused() -> QuerySet[Blob]:
    """Blobs that nothing refers to."""
    mine = {"blob": OuterRef("pk")}
    holders = [Exists(model.objects.filter(**mine)) for model in (CheckpointFile, ResultFile, Upload)]
    return Blob.objects.exclude(
        holders[0] | holders[1] | holders[2] | Exists(Job.objects.filter(code=OuterRef("pk")))
    )


def _locked(blob_id: int) -> Blob:
    return Blob.objects.select_for_update(no_key=True).get(pk=blob_id)


def _root() -> Path:
    folder = Path(settings.LUTHIER_DATA) / "blobs"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _path(blob: Blob) -> Path:
    """By row number, so that a late removal of an old row can never remove the bytes of a newer one."""
    return _root() / str(blob.tenant_id) / f"{blob.pk // 1000:06d}" / str(blob.pk)


def _partial(blob: Blob) -> Path:
    return _path(blob).with_suffix(".part")


def _is_valid(blob: Blob, partial: Path, digest: str | None) -> bool:
    return (digest or _hash_file(partial)) == blob.sha256


def _hash_file(path: Path) -> str:
    with builtins.open(path, "rb") as source:
        return hashlib.file_digest(source, "sha256").hexdigest()


class _Hashers:
    """Hash states of uploads that this process receives in order; others are hashed from disk at their end."""

    def __init__(self) -> None:
        self._states: OrderedDict[int, tuple[int, Any]] = OrderedDict()
        self._lock = Lock()

    def feed(self, blob_id: int, offset: int, piece: bytes) -> str | None:
        """Add a piece and return the digest so far; None if an earlier piece was not seen here."""
        with self._lock:
            at, state = self._states.pop(blob_id, (0, None))
            if offset == 0:
                at, state = 0, hashlib.sha256()
            if state is None or at != offset:
                return None
            state.update(piece)
            self._states[blob_id] = (offset + len(piece), state)
            while len(self._states) > HASHERS:
                self._states.popitem(last=False)
            digest: str = state.hexdigest()
            return digest


_hashers = _Hashers()

__all__ = [
    "BlobError", "BlobGone", "HashMismatch", "PieceTooLarge", "WrongOffset", "append", "begin", "open", "put", "read",
    "recheck", "release", "sweep",
]  # fmt: skip
