"""Bytes that arrive through this process: whole (`put`), or in pieces (`begin`, `append`).

A blob counts once every byte of it was hashed here (``verified``). Files are written and hashed outside of
transactions; the row is changed by a short statement that holds only if the row is still as it was read.
"""

from __future__ import annotations

import errno
import hashlib
import json
from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from io import BytesIO
from threading import Lock
from typing import IO, Any

from django.db import connection, transaction
from django.db.models import F

from jobs import storage
from jobs.blobs import direct
from jobs.blobs.errors import HashMismatch, PieceTooLarge, SendDirectly, StoreUnavailable, WrongOffset
from jobs.blobs.promised import promised, require_files, require_piece
from jobs.blobs.store import BLOCK, Partial, Store, key_of, store
from jobs.failpoints import fp
from jobs.models import Blob, StorageKind
from tenants.rows import Rows

HASHERS = 256
HASHED_AT_ONCE = 1024 * BLOCK
"""What one request hashes again at most, of pieces that another process received: a second or two."""
ROW = Rows(Blob, "b")
KNOWN = f"SELECT {ROW.columns} FROM jobs_blob b WHERE tenant_id = %s AND sha256 = %s AND verified"

MAKE = """
INSERT INTO jobs_blob (tenant_id, sha256, size, kind, received, verified, requested_from)
SELECT %s, file.sha256, file.size, %s, 0, false, %s
FROM unnest(%s::text[], %s::bigint[]) WITH ORDINALITY AS file (sha256, size, n) ORDER BY file.n
ON CONFLICT DO NOTHING
"""
"""Not bulk_create: of thousands of files that takes most of a second of the interpreter, which all learners share."""
REQUEST = """
UPDATE jobs_blob SET requested_from = requested_from || to_jsonb(%(job)s::text)
WHERE id IN (SELECT id FROM jobs_blob WHERE id = ANY(%(blobs)s) ORDER BY id FOR NO KEY UPDATE)
  AND NOT requested_from @> to_jsonb(%(job)s::text)
"""


def put(tenant_id: int, content: bytes | IO[bytes]) -> Blob:
    """Store content, which is code, and return its verified row; the same bytes of the same tenant are stored once.

    The row is locked against removal until the end of the transaction. Raises OSError, StoreUnavailable or NoRoom.
    """
    place = store()
    if isinstance(content, bytes | bytearray) and (there := known(tenant_id, content)):
        return there
    source: IO[bytes] = BytesIO(content) if isinstance(content, bytes | bytearray) else content
    digest, size = hashlib.sha256(), 0
    with place.scratch() as file:
        while block := source.read(BLOCK):
            digest.update(block)
            size += len(block)
            file.write(block)
        file.flush()
        sha256 = digest.hexdigest()
        fp("blob.after_written")
        while True:
            blob = begin(tenant_id, sha256, size, StorageKind.CODE)
            if not blob.verified or not place.exists(_key(blob)):
                file.seek(0)
                place.put(_key(blob), file, sha256)
                fp("blob.after_placed")
                _update(blob, received=size, verified=True)
            if held := _known(place, tenant_id, sha256):  # else it was released in between
                return held


def known(tenant_id: int, content: bytes | bytearray) -> Blob | None:
    """The row of these bytes if the tenant has stored them, locked as by `hold`. Raises OSError or StoreUnavailable."""
    return _known(store(), tenant_id, _sha256(content))


def _sha256(content: bytes | bytearray) -> str:
    return hashlib.sha256(content).hexdigest()


def hold(blob: Blob) -> Blob | None:
    """The blob, its row locked against removal until the end of the transaction; None if it was removed.

    Outside of a transaction it is not locked: that would end at once, yet be a commit that waits for the disk. A
    shared lock of the key is enough, so that a hundred jobs with the same code do not wait for each other. The store
    is not asked: a transaction must not wait for it, and the bytes go after their row.
    """
    with connection.cursor() as cursor:
        lock = " FOR KEY SHARE" if connection.in_atomic_block else ""
        cursor.execute(KNOWN + lock, [blob.tenant_id, blob.sha256])
        found = cursor.fetchone()
    return ROW.made(found) if found else None


def _known(place: Store, tenant_id: int, sha256: str) -> Blob | None:
    """The verified row of these bytes if they are stored, locked as by `hold`."""
    blob = hold(Blob(tenant_id=tenant_id, sha256=sha256))
    return blob if blob and place.exists(_key(blob)) else None


def begin(
    tenant_id: int,
    sha256: str,
    size: int,
    kind: StorageKind = StorageKind.CHECKPOINTS,
    *,
    job_id: str | None = None,
) -> Blob:
    """Find or make the row for these bytes; its received is how many bytes are there already. kind: of a new row.
    job_id: the job whose learners are asked for what is missing, None if no learner is.

    Raises storage.NoRoom if they do not fit; then there is no row.
    """
    (blob,) = begin_all(tenant_id, [(sha256, size)], kind, job_id=job_id)
    return blob


def begin_all(
    tenant_id: int,
    files: Sequence[tuple[str, int]],
    kind: StorageKind = StorageKind.CHECKPOINTS,
    *,
    job_id: str | None = None,
    halting: bool = False,
) -> list[Blob]:
    """As begin, for many (sha256, size) at once: the number of statements does not grow with the files.

    All or none: storage.NoRoom is raised if they do not fit together. halting: as for storage.require_room.
    """
    sizes = dict(files)
    while more := _more(sizes, found := _of_tenant(tenant_id, sizes)):
        place = store()
        with transaction.atomic():
            if (limit := storage.locked_limit(tenant_id)) is not None:
                more = _more(sizes, found := _of_tenant(tenant_id, sizes))
            if job_id:
                require_files(job_id, len(more.keys() - found.keys()))
            promised.require(sum(more.values()), place.room)
            storage.require_room(tenant_id, limit, sum(more.values()), halting=halting)
            ended = _make(tenant_id, {sha256: sizes[sha256] for sha256 in more}, found, kind, job_id)
        _abort(ended)
    _request(found.values(), job_id)
    return [found[sha256] for sha256, _ in files]


def _more(sizes: Mapping[str, int], found: Mapping[str, Blob]) -> dict[str, int]:
    """By hash, how many bytes more than now would count. Of one whose first upload declared a larger size, fewer."""
    return {
        sha256: size - (found[sha256].size if sha256 in found else 0)
        for sha256, size in sizes.items()
        if sha256 not in found or (found[sha256].size != size and not found[sha256].verified)
    }


def _make(
    tenant_id: int,
    sizes: Mapping[str, int],
    found: Mapping[str, Blob],
    kind: StorageKind,
    job_id: str | None,
) -> list[Blob]:
    """Make rows that are missing, and correct the size of others that have not arrived. Returns those of which an
    upload in parts ends by that: `received` begins at 0, and the store would show it the same parts again."""
    # Sorted, so that two offers of the same files do not wait for each other. Many learners offer the same files at
    # once: a second insert must not be an error in the database's log.
    if missing := sorted(sizes.keys() - found.keys()):
        with connection.cursor() as cursor:
            requested = json.dumps([job_id] if job_id else [])
            cursor.execute(
                MAKE, [tenant_id, kind.value, requested, missing, [sizes[sha256] for sha256 in missing]]
            )
    ended = []
    for sha256 in sorted(sizes.keys() & found.keys()):
        blob = found[sha256]
        # Of a row with another upload by now nothing changes; the caller looks again.
        wrong = Blob.objects.filter(pk=blob.pk, verified=False, upload_id=blob.upload_id)
        changed = wrong.update(
            size=sizes[sha256], received=0, restarts=F("restarts") + 1, upload_id="", finishing_at=None
        )
        if changed and blob.upload_id:
            ended.append(blob)
    return ended


def _request(found: Iterable[Blob], job_id: str | None) -> None:
    """Note in rows that were there before, of what another job sends or has begun, that this one is asked for it."""
    asked = [blob.pk for blob in found if job_id and not blob.verified and not blob.is_requested_from(job_id)]
    if asked:
        with connection.cursor() as cursor:
            cursor.execute(REQUEST, {"job": job_id, "blobs": asked})


def _abort(ended: Sequence[Blob]) -> None:
    """Have the store give up the parts of these uploads. Where it does not respond, they go with their file's key."""
    if ended and (place := direct.direct()):
        for blob in ended:
            with suppress(StoreUnavailable):
                place.abort(_key(blob), blob.upload_id)


def _of_tenant(tenant_id: int, hashes: Collection[str]) -> dict[str, Blob]:
    return {blob.sha256: blob for blob in Blob.objects.filter(tenant_id=tenant_id, sha256__in=list(hashes))}


def append(blob_id: int, offset: int, piece: bytes) -> Blob:
    """Add a piece. Hashes while it receives, and verifies with the last byte.

    Where other processes received the earlier pieces, the last one may return a blob that is whole but not verified:
    repeat it, with no bytes, until it is. A piece of a verified blob is ignored. Raises WrongOffset, which says where
    to continue (also for a repeated piece), PieceTooLarge, HashMismatch, SendDirectly, OSError, also for what would
    take the disk's minimum of free space, StoreUnavailable or Blob.DoesNotExist.
    """
    place, blob = store(), Blob.objects.get(pk=blob_id)
    if blob.verified:
        return blob
    if offset + len(piece) > blob.size:
        raise PieceTooLarge(f"The declared size is {blob.size} bytes.")
    if piece and (room := place.room()) is not None and room < len(piece):
        raise OSError(errno.ENOSPC, "the disk is as full as LUTHIER_MIN_FREE_DISK lets it become")
    if piece:
        require_piece(blob, len(piece), place.room)
    if not place.receives_pieces:
        return _take_whole(place, blob, offset, piece)
    with place.partial(_key(blob)) as partial:
        blob.refresh_from_db()  # another process may have added pieces while this one waited
        return blob if blob.verified else _add(blob, partial, offset, piece)


def _add(blob: Blob, partial: Partial, offset: int, piece: bytes) -> Blob:
    if partial.size < blob.received:  # a disk that lost what was written
        _restart(blob, partial.size)
    if offset != blob.received:
        raise WrongOffset(blob.received)
    if piece or not blob.size:
        partial.write(offset, piece)
    fp("blob.after_piece")
    received = offset + len(piece)
    digest = _hashers.feed(blob, partial, piece)
    if received < blob.size or digest is None:
        return _update(blob, received=received, verified=False)
    if digest != blob.sha256:
        partial.discard()
        _restart(blob, 0)
        raise _mismatch()
    partial.place()
    fp("blob.after_last_piece")
    return _update(blob, received=received, verified=True)


def _take_whole(place: Store, blob: Blob, offset: int, piece: bytes) -> Blob:
    """A file that is one piece, for a store that cannot collect them."""
    if offset or len(piece) < blob.size:
        raise SendDirectly("This store collects no pieces: send the file to it, in parts.")
    if _sha256(piece) != blob.sha256:
        raise _mismatch()
    place.put(_key(blob), BytesIO(piece), blob.sha256)
    return _update(blob, received=blob.size, verified=True)


def _restart(blob: Blob, received: int) -> None:
    """Count bytes from received on as not received. No process may rely on what it has hashed of them."""
    Blob.objects.filter(pk=blob.pk, verified=False).update(received=received, restarts=F("restarts") + 1)
    blob.refresh_from_db()


def _mismatch() -> HashMismatch:
    return HashMismatch("The hash of the received bytes does not match the declared one.")


def _update(blob: Blob, *, received: int, verified: bool) -> Blob:
    """Record what has arrived, if the row still is for these bytes. Raises Blob.DoesNotExist if it was removed."""
    same = Blob.objects.filter(pk=blob.pk, size=blob.size, restarts=blob.restarts, verified=False)
    if same.update(received=received, verified=verified):
        blob.received, blob.verified = received, verified
    else:  # others verified it, or declare another size, meanwhile
        blob.refresh_from_db()
    return blob


def _key(blob: Blob) -> str:
    return key_of(blob.tenant_id, blob.pk)


class _Hashers:
    """Hash states of uploads; pieces that other processes received are read from the store, some with each request."""

    def __init__(self) -> None:
        self._states: OrderedDict[tuple[int, int], tuple[int, Any]] = OrderedDict()
        self._lock = Lock()

    def feed(self, blob: Blob, partial: Partial, piece: bytes) -> str | None:
        """Add the piece behind what was received; return the digest up to its end, None if more is to be hashed first.

        Only under the partial's lock. A state belongs to one run of bytes from the file's beginning: see `restarts`.
        """
        key, offset = (blob.pk, blob.restarts), blob.received
        with self._lock:
            at, state = self._states.pop(key, None) or (0, hashlib.sha256())
        stop = min(offset, at + HASHED_AT_ONCE)
        while at < stop and (block := partial.read(at, min(BLOCK, stop - at))):
            state.update(block)
            at += len(block)
        if at == offset:
            state.update(piece)
            at += len(piece)
        with self._lock:
            self._states[key] = (at, state)
            while len(self._states) > HASHERS:
                self._states.popitem(last=False)
        return str(state.hexdigest()) if at == offset + len(piece) else None


_hashers = _Hashers()
