"""Which checkpoints are no longer kept: complete ones beyond `keep`, and unfinished ones that are given up.

An unfinished one holds the room of all its files, so it must not stay once it cannot be completed, or would be dropped
as soon as it is (docs/adr/0159). What still arrives of it is refused; a learner that offers it again is answered as of
any checkpoint that is no longer kept, or begins it again where it would be kept.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from datetime import UTC, datetime, timedelta

from django.db import transaction
from django.db.models import Exists, OuterRef, Q, QuerySet

from jobs import blobs
from jobs.failpoints import fp
from jobs.models import Attempt, Checkpoint, CheckpointFile, Job

RUN_S = 30.0
"""Of a run over all jobs: other periodic tasks wait for it."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
UNFINISHED = Checkpoint.State.UPLOADING
COMMITTED = Checkpoint.State.COMMITTED


def after_commit(saved: Checkpoint) -> list[int]:
    """Drop what a job keeps no more now that this checkpoint is complete. Returns the blobs that may be unused now."""
    keep = _keep(saved.job_id)
    return _drop_old(saved.job_id, keep) + _drop_incomplete(saved) + _drop_surpassed(saved, keep)


def give_up(job_id: str, which: Q, wanted: Collection[str] = ()) -> int:
    """Drop those of a job's unfinished checkpoints; returns how many. Their room is free at once, apart from files that
    have arrived whole, or that are wanted: the SHA-256 of what is sent next, which continues where it stopped."""
    unfinished = Checkpoint.objects.filter(which, job_id=job_id, state=UNFINISHED)
    if not unfinished.exists():
        return 0
    with transaction.atomic():
        # An offer that is being judged holds its row: this waits for it, and takes none that is complete by then.
        dropped = _locked(unfinished)
        freed = _drop(dropped)
    fp("drops.after_rows")  # killed here, the sweep removes them
    blobs.give_up(freed, job_id, wanted)
    return len(dropped)


def give_up_ended() -> tuple[int, bool]:
    """Drop unfinished checkpoints of all attempts that are over. Returns how many, and whether more are left."""
    ended = Attempt.objects.filter(job=OuterRef("job"), n=OuterRef("attempt"), held=False)
    left = Checkpoint.objects.filter(Exists(ended), state=UNFINISHED).order_by("job_id", "attempt")
    done, ends = 0, time.monotonic() + RUN_S
    for job_id, attempt in left.values_list("job_id", "attempt").distinct():
        if time.monotonic() > ends:
            return done, True
        done += give_up(job_id, Q(attempt=attempt))
    return done, False


def would_stay(job_id: str, attempt: int, saved_ns: int | None) -> bool:
    """Whether a checkpoint that was put in place then would be kept, were it complete. Without a time: True."""
    if saved_ns is None:
        return True
    later = Checkpoint.objects.filter(job_id=job_id, attempt=attempt, state=COMMITTED, saved_ns__gt=saved_ns)
    return later.count() < _keep(job_id)


def _keep(job_id: str) -> int:
    spec = Job.objects.values_list("spec", flat=True).get(pk=job_id)
    return int(spec["checkpoint"]["keep"])  # a stored spec is normalized: at least 1


def _locked(some: QuerySet[Checkpoint]) -> list[int]:
    """Lock these rows in their order; those that still are what was asked for."""
    locked = some.order_by("pk").select_for_update(no_key=True, of=("self",))
    return list(locked.values_list("pk", flat=True))


def _drop_old(job_id: str, keep: int) -> list[int]:
    """Keep the newest of a job's checkpoints, as many as its spec says; never fewer than one, nor drop one in use. Of a
    damaged one that is older than those, the other files go.

    Returns the blobs of those that were dropped.
    """
    there = Checkpoint.objects.filter(job_id=job_id, state__in=[COMMITTED, Checkpoint.State.CORRUPT])
    surplus: list[int] = []
    damaged: list[int] = []
    found = 0
    for pk, state in there.order_by(*Checkpoint.NEWEST_FIRST).values_list("pk", "state"):
        if found >= keep:
            (surplus if state == COMMITTED else damaged).append(pk)
        found += state == COMMITTED
    # A process that picks one of these to resume from holds its row: wait for it before reading what is in use.
    locked = _locked(Checkpoint.objects.filter(pk__in=surplus, state=COMMITTED)) if surplus else []
    in_use = set(
        Attempt.objects.filter(closed_at=None, resume_from__job_id=job_id).values_list(
            "resume_from", flat=True
        )
    )
    in_use |= set(Job.objects.filter(resume_from__job_id=job_id).values_list("resume_from", flat=True))
    return _drop([pk for pk in locked if pk not in in_use]) + _remove_files(damaged)


def _drop_incomplete(saved: Checkpoint) -> list[int]:
    """Drop earlier saves of this step that lack parts: every learner has written over its own part of them.

    Returns the blobs of those that were dropped.
    """
    if saved.ordinal is None or saved.parts == 1:
        return []
    earlier = Checkpoint.objects.filter(
        job_id=saved.job_id,
        attempt=saved.attempt,
        step=saved.step,
        ordinal__lt=saved.ordinal,
        state=UNFINISHED,
    )
    return _drop(_locked(earlier))


def _drop_surpassed(saved: Checkpoint, keep: int) -> list[int]:
    """Drop unfinished saves of this attempt than which as many later ones are complete as the job keeps.

    Returns the blobs of those that were dropped.
    """
    mine = Checkpoint.objects.filter(job_id=saved.job_id, attempt=saved.attempt)
    complete = mine.filter(state=COMMITTED, saved_ns__isnull=False)
    times = list(complete.values_list("n", "saved_ns"))
    over = []
    for one in mine.filter(state=UNFINISHED):
        # When it was saved says its part 0. Without it: certainly before it was offered, and what was saved after that
        # has a higher number, too. (Two clocks are compared here, so the number counts as well.)
        since, after = (
            (one.saved_ns, 0) if one.saved_ns is not None else (_nanoseconds(one.created_at), one.n)
        )
        if sum(n > after and (saved_ns or 0) > since for n, saved_ns in times) >= keep:
            over.append(one.pk)
    return _drop(_locked(mine.filter(pk__in=over, state=UNFINISHED))) if over else []


def _nanoseconds(at: datetime) -> int:
    return (at - EPOCH) // timedelta(microseconds=1) * 1000


def _drop(old: list[int]) -> list[int]:
    """Drop these checkpoints; returns their blobs."""
    if old:
        Checkpoint.objects.filter(pk__in=old).update(state=Checkpoint.State.DROPPED)
    return _remove_files(old)


def _remove_files(of: list[int]) -> list[int]:
    if not of:
        return []
    files = CheckpointFile.objects.filter(checkpoint_id__in=of)
    blob_ids = list(files.values_list("blob_id", flat=True))
    files.delete()
    return blob_ids
