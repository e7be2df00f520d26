"""Large files between learners and the store, without passing through a web process.

A sender hashes the file once, and each part with it; a link accepts only bytes with the part's SHA-256, so what the
store holds is what was hashed (docs/adr/0039). The parts in the store are the truth about what has arrived: a sender
that starts again asks for them, and sends the rest.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

from django.db.models.functions import Now

from jobs.blobs.errors import BeingFinished, PartsWrong
from jobs.blobs.store import Link, Part, key_of, store
from jobs.models import Blob

if TYPE_CHECKING:
    from jobs.blobs.s3 import S3Store

Key = TypeVar("Key")
Value = TypeVar("Value")
LARGE = 4 * 1024 * 1024
"""Bytes from which on a file is sent in parts; smaller ones are one piece, with fewer requests."""
PART_BYTES = 16 * 1024 * 1024
"""Larger ones are noted as progress less often, and two versions of the platform need the same (docs/adr/0137)."""
MAX_PARTS = 9_000
"""S3 allows 10,000."""
FINISHED_WITHIN = timedelta(minutes=30)
"""How long the store may make one object of the parts, from the first request on. After that it has failed."""
_furthest: OrderedDict[tuple[str, int], int] = OrderedDict()
"""(upload, learner) -> the highest part that this process signed a link for; the latest UPLOADS of them."""
_seen: OrderedDict[tuple[str, int], int] = OrderedDict()
"""(upload, learner) -> bytes of it that this process has found in the store for that learner; likewise."""
_asked: OrderedDict[str, float] = OrderedDict()
"""Upload -> when this process last asked the store to make its object (monotonic clock); likewise."""
UPLOADS = 1_000
ASKED_AGAIN_AFTER_S = 60.0
"""A store that is at it answers nothing until a call's time is over, which a thread of this process waits for."""


def direct() -> S3Store | None:
    """The store, if it exchanges large files with learners itself."""
    found = store()
    return None if found.receives_pieces else found  # type: ignore[return-value]  # only the S3 store receives no pieces


def part_bytes(size: int) -> int:
    """Bytes of each part but the last, in whole mebibytes."""
    mebibyte = 1024 * 1024
    return max(PART_BYTES, -(-size // MAX_PARTS // mebibyte) * mebibyte)


def arrived(place: S3Store, blob: Blob) -> list[Part]:
    """The parts that the store has; begins an upload if there is none. The blob may be verified afterwards.

    Raises BeingFinished.
    """
    try:
        return place.parts(_key(blob), blob.upload_id) if blob.upload_id else _begin(place, blob)
    except FileNotFoundError:
        if _is_finished(place, blob):
            _verify(blob)
            return []
        return _begin(place, blob)  # the store has ended it, by a rule of its bucket


def note_arrived(blob: Blob, parts: Sequence[Part], learner_id: int) -> bool:
    """Note in `received` what the store has of a file. True if that is more than this learner has seen of this upload:
    where two jobs send the same file, a look for one takes no progress from the other. Each web process finds it once.
    """
    have, key = sum(part.size for part in parts), (blob.upload_id, learner_id)
    seen = _seen.get(key, blob.received)
    _remember(_seen, key, max(seen, have))
    same = Blob.objects.filter(pk=blob.pk, upload_id=blob.upload_id, verified=False)
    same.filter(received__lt=have).update(received=have)
    return have > seen


def _begin(place: S3Store, blob: Blob) -> list[Part]:
    """Begin an upload; of several at once, one counts."""
    before, begun = blob.upload_id, place.start(_key(blob))
    if Blob.objects.filter(pk=blob.pk, verified=False, upload_id=before).update(
        upload_id=begun, finishing_at=None, received=0
    ):
        blob.upload_id, blob.received = begun, 0
        return []
    place.abort(_key(blob), begun)
    blob.refresh_from_db()
    return place.parts(_key(blob), blob.upload_id) if blob.upload_id else []


def link(place: S3Store, blob: Blob, part: Part) -> Link:
    """Where to send a part. Raises PartsWrong if it is none of this file, or before `arrived` began an upload."""
    if part.size != _size_of(blob, part.number):
        raise PartsWrong(f"Part {part.number} of this file has {_size_of(blob, part.number)} bytes.")
    return place.sign_part(_key(blob), _upload_of(blob), part)


def advances(blob: Blob, number: int, learner_id: int) -> bool:
    """Whether a learner continues with a later part, as it does once earlier ones have arrived: it requests a link
    again, for as long as a day, while the store takes nothing. Each web process finds it once per part."""
    key = (blob.upload_id, learner_id)
    before = _furthest.get(key, 0)
    _remember(_furthest, key, max(before, number))
    return number > before


def _remember(known: OrderedDict[Key, Value], key: Key, value: Value) -> None:
    known[key] = value
    known.move_to_end(key)
    while len(known) > UPLOADS:
        known.popitem(last=False)


def _upload_of(blob: Blob) -> str:
    if not blob.upload_id:
        raise PartsWrong("No parts are expected yet: ask which ones have arrived first.")
    return blob.upload_id


def _size_of(blob: Blob, number: int) -> int:
    """Bytes of a part; 0 for a number that the file does not have."""
    size = part_bytes(blob.size)
    return max(0, min(size, blob.size - (number - 1) * size)) if number > 0 else 0


def finish(place: S3Store, blob: Blob, wanted: Sequence[str]) -> Blob:
    """Make the parts one object and the blob verified. wanted: the SHA-256 of every part, in order.

    Repeating it is harmless, and soon after the first time only looks for the object. Raises PartsWrong if the store
    has others, FileNotFoundError for an unknown upload, and BeingFinished while the store makes the object: only what
    it shows is verified, whatever it answers.
    """
    if blob.verified:
        return blob
    upload = _upload_of(blob)
    if time.monotonic() - _asked.get(upload, -math.inf) >= ASKED_AGAIN_AFTER_S:
        with suppress(FileNotFoundError):  # a request before had it finished
            have = place.parts(_key(blob), upload)
            if [part.sha256 for part in have] != list(wanted) or sum(part.size for part in have) != blob.size:
                raise PartsWrong("The store has other parts of this file. Ask for them, and send the rest.")
            Blob.objects.filter(pk=blob.pk, upload_id=upload, finishing_at=None).update(finishing_at=Now())
            place.finish(_key(blob), upload, have)
            _remember(_asked, upload, time.monotonic())
    if not _is_finished(place, blob):
        _asked.pop(upload, None)
        raise FileNotFoundError(f"The store has ended upload {upload}.")
    _verify(blob)
    return blob


def _is_finished(place: S3Store, blob: Blob) -> bool:
    """Whether an upload that the store lists no more has become the object. Raises BeingFinished if it may yet."""
    size = place.size(_key(blob))
    if size is None and Blob.objects.filter(pk=blob.pk, finishing_at__gt=Now() - FINISHED_WITHIN).exists():
        raise BeingFinished("The store is making one object of the parts of this file.")
    return size == blob.size


def _verify(blob: Blob) -> None:
    Blob.objects.filter(pk=blob.pk, verified=False, size=blob.size).update(
        received=blob.size, verified=True, upload_id="", finishing_at=None
    )
    blob.refresh_from_db()


def _key(blob: Blob) -> str:
    return key_of(blob.tenant_id, blob.pk)
