"""Removing bytes that nothing refers to: not at once, but LUTHIER_BLOB_RETENTION_H later.

So a dump of the database and a copy of the store that is made after it fit together: whatever the dump refers to is
still there while it is copied. It also makes a release cheap, and safe to repeat.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from contextlib import suppress
from datetime import timedelta
from itertools import islice

from django.conf import settings
from django.db import connection, transaction
from django.db.models import BooleanField, Exists, F, Func, OuterRef, Q, QuerySet
from django.db.models.functions import Coalesce, Now

from jobs.blobs.errors import StoreUnavailable
from jobs.blobs.ownership import is_own
from jobs.blobs.store import key_of, store
from jobs.failpoints import fp
from jobs.models import Attempt, Blob, CheckpointFile, Job, ResultFile, Upload

SWEPT_AT_ONCE = 1000  # keys whose rows are read with one query
SWEEP_S = 30.0
"""Of each of the two sweeps: other periodic tasks wait for them. The next one continues."""


def release(blob_ids: Collection[int]) -> int:
    """Mark those of these blobs that nothing refers to any more, for the sweep to remove; returns how many."""
    with transaction.atomic():
        unused = _unused().filter(pk__in=set(blob_ids)).order_by("pk")
        # In one order, so that two releases of the same blobs do not wait for each other.
        marked = unused.select_for_update(no_key=True, of=("self",)).values_list("pk", flat=True)
        return Blob.objects.filter(pk__in=list(marked)).update(released_at=Now())


def give_up(blob_ids: Collection[int], job_id: str, wanted: Collection[str]) -> None:
    """Remove at once what has not arrived whole of files that only this job was asked for, and release the others. No
    dump needs part of a file, and the room of it is missing where more is to be stored. wanted: the SHA-256 of files
    that stay.

    A store that does not respond, or that may be another installation's, keeps its bytes for the sweep.
    """
    partial = Blob.objects.filter(pk__in=set(blob_ids), verified=False, requested_from=[job_id])
    partial = partial.exclude(sha256__in=wanted)
    _remove_rows(partial.filter(received=0, upload_id=""))
    with suppress(StoreUnavailable, OSError):
        begun = list(_unused() & partial)
        for blob in begun if begun and is_own() else ():
            _remove(blob)
    release(blob_ids)


@transaction.atomic
def _remove_rows(empty: QuerySet[Blob]) -> None:
    """Remove rows that still nothing refers to. Of these no byte is in the store."""
    locked = empty.order_by("pk").select_for_update(of=("self",)).values_list("pk", flat=True)
    if numbers := list(locked):
        (_unused() & empty.filter(pk__in=numbers)).delete()


def sweep(older_than: timedelta) -> int:
    """Remove rows, with their bytes, that were released long enough ago, or that a process which died left behind.

    Returns how many rows were removed. What was never released goes only after older_than: a row is made
    before what refers to it, a file before its row is committed. Results are referred to when the last of their bytes
    has arrived, which may take longer: while an attempt of a job that was asked for the bytes is open, no such row that
    is younger than it is removed. A blob
    that comes into use between the query and the removal is safe once a row refers to it; if none does yet, the next
    offer requests it again.
    """
    since = time.time() - older_than.total_seconds()
    retention = timedelta(hours=settings.LUTHIER_BLOB_RETENTION_H)
    asked = Coalesce(
        Func(
            OuterRef("requested_from"),
            F("job"),
            template="(%(expressions)s)",
            arg_joiner=" ? ",
            output_field=BooleanField(),
        ),
        True,
    )
    collecting = Attempt.objects.alias(asked=asked).filter(
        tenant=OuterRef("tenant"), closed_at=None, opened_at__lte=OuterRef("created_at"), asked=True
    )
    released = Q(released_at__lte=Now() - retention)
    left_behind = Q(released_at=None, created_at__lt=Now() - older_than) & ~Exists(collecting)
    swept, ends = 0, time.monotonic() + SWEEP_S
    for blob in _unused().filter(released | left_behind):
        if time.monotonic() > ends:
            return swept
        moment = blob.released_at.timestamp() if blob.released_at else since
        if not store().changed_since(key_of(blob.tenant_id, blob.pk), moment):  # its bytes still arrive
            swept += _remove(blob)
    return swept


def _remove(blob: Blob) -> int:
    """Remove a row that still nothing refers to, then its bytes: a death in between leaves a key without a row."""
    with transaction.atomic():
        # This lock waits for transactions that are about to refer to the row; then the second query sees them.
        locked = Blob.objects.select_for_update().filter(pk=blob.pk).first()
        if locked is None or not _unused().filter(pk=blob.pk).exists():
            return 0
        locked.delete()
    fp("blob.after_row_gone")
    store().remove(key_of(blob.tenant_id, blob.pk))
    return 1


def sweep_keys(older_than: timedelta, after: str = "") -> tuple[int, str]:
    """Remove bytes that have no row and are older than this, from the key `after` on. A number is never used twice, so
    no row can come for them. Only the database of this place may judge them (`jobs.blobs.ownership`).

    Numbers that the database has not reached are of a newer one: it was restored, and the right one may come back.

    Returns how many keys were removed, and after which key the next sweep continues; empty at the end of the store.
    """
    ends, reached, swept = time.monotonic() + SWEEP_S, _highest_number(), 0
    keys = store().older_than(time.time() - older_than.total_seconds(), after)
    while some := list(islice(keys, SWEPT_AT_ONCE)):
        numbers = {number for _, number in some}
        known = set(Blob.objects.filter(pk__in=numbers).values_list("pk", flat=True))
        for key, number in some:
            if number not in known and number <= reached:
                store().remove(key)
                swept += 1
        if time.monotonic() > ends:
            return swept, some[-1][0]
    return swept, ""


def _highest_number() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT last_value FROM jobs_blob_id_seq")
        return int(cursor.fetchone()[0])


def _unused() -> QuerySet[Blob]:
    """Blobs that nothing refers to."""
    mine = {"blob": OuterRef("pk")}
    holders = [Exists(model.objects.filter(**mine)) for model in (CheckpointFile, ResultFile, Upload)]
    return Blob.objects.exclude(
        holders[0] | holders[1] | holders[2] | Exists(Job.objects.filter(code=OuterRef("pk")))
    )
