"""Who may act on a job: registered workers, and a lease of a few seconds per job, guarded by a random token.

A lease only reduces overlap. Overlap is harmless because every decision is written WHERE lease_token is still the one
with which the job was read, and what is noted without it may be noted twice. A registration is one row per worker
process, in which its ticker writes that it lives; the leases of a worker that has not done so for WORKER_SILENT_S are
free. See docs/adr/0010-leases-and-worker-registrations.md and 0035-rows-not-session-locks.md.
"""

from __future__ import annotations

import logging
import os
import socket
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.db import connection, transaction

from jobs.failpoints import fp
from jobs.models import WORKER_ALIVE, Worker
from jobs.states import HOLDS_GPUS

logger = logging.getLogger(__name__)

SOON_S = 1.5


def dead_owner(column: str) -> str:
    """SQL: the owner of a lease, named by this column, is a registered worker that no longer lives."""
    return f"{column} ~ '^[0-9]+$' AND NOT EXISTS ({WORKER_ALIVE} {column}::bigint)"


TAKE = """
UPDATE jobs_job SET lease_owner = %(owner)s, lease_token = gen_random_uuid(), fence = fence + 1,
  lease_until = statement_timestamp() + make_interval(secs => %(lease_s)s),
  next_reconcile_at = statement_timestamp() + make_interval(secs => %(lease_s)s)
"""
FREE = f"""(lease_token IS NULL OR lease_until < clock_timestamp() OR ({dead_owner("lease_owner")})
  OR lease_until > clock_timestamp() + make_interval(secs => 2 * %(lease_s)s))"""
"""The last part: no lease is that long, so the database's clock was set back."""
WITH_GPUS = "(state = ANY(%(states)s) AND deleted_at IS NULL)"
"""What is due is not indexed, so all that may be is read: these few by the index of their states, without the thousands
that may wait for GPUs or end, of which few are ever due."""
RETURNING = f"RETURNING id, lease_token, {WITH_GPUS}"

CLAIM_ONE = f"""{TAKE} WHERE id = (
  SELECT id FROM jobs_job WHERE id = %(job_id)s AND NOT settled AND {FREE} FOR NO KEY UPDATE SKIP LOCKED
) {RETURNING}"""

CLAIM_ALL = f"""{TAKE} WHERE id IN (
  SELECT id FROM jobs_job WHERE id = ANY(%(job_ids)s) AND NOT settled AND {FREE} FOR NO KEY UPDATE SKIP LOCKED
) {RETURNING}"""

DUE = f"""NOT settled AND {FREE} AND (next_reconcile_at <= clock_timestamp() OR lease_token IS NOT NULL)"""


def _claim_due(which: str) -> str:
    """SQL: take jobs that are due, those due for longest first.

    An array is made once. A subquery of IN may be read again for each row, as plans come, and finds others each time:
    those before are taken. Then a worker had more than it asked for, and thought that nothing was left.
    """
    return f"""{TAKE} WHERE id = ANY (ARRAY(
  SELECT id FROM jobs_job WHERE {which} ORDER BY next_reconcile_at LIMIT %(batch)s FOR NO KEY UPDATE SKIP LOCKED
)) {RETURNING}"""


CLAIM_DUE, CLAIM_DUE_WITH_GPUS = _claim_due(DUE), _claim_due(f"{DUE} AND {WITH_GPUS}")

CLAIM_WITH_DUE = f"""
WITH one AS (
  SELECT id FROM jobs_job WHERE id = %(job_id)s AND NOT settled AND {FREE} FOR NO KEY UPDATE SKIP LOCKED
), due AS (
  SELECT id FROM jobs_job WHERE {DUE} AND {WITH_GPUS} AND id <> %(job_id)s
  ORDER BY next_reconcile_at LIMIT %(batch)s - 1 FOR NO KEY UPDATE SKIP LOCKED
)
{TAKE} WHERE id IN (SELECT id FROM one UNION ALL SELECT id FROM due) {RETURNING}"""

RELEASE = """
UPDATE jobs_job SET lease_owner = '', lease_token = NULL, fail_streak = 0,
  lease_until = CASE WHEN %(looked)s AND next_reconcile_at <= lease_until THEN lease_until END,  -- see RENEW
  next_reconcile_at = CASE WHEN %(requeue_after_s)s::float IS NULL THEN NULL
    WHEN next_reconcile_at < lease_until THEN next_reconcile_at  -- the job was notified meanwhile
    ELSE clock_timestamp() + make_interval(secs => %(requeue_after_s)s) END,
  settled = %(requeue_after_s)s::float IS NULL
WHERE id = %(job_id)s AND lease_token = %(token)s
  AND (%(intent_gen)s::bigint IS NULL OR intent_gen = %(intent_gen)s)
"""
RELEASE_ALL = """
UPDATE jobs_job j SET lease_owner = '', lease_token = NULL, fail_streak = 0,
  lease_until = CASE WHEN j.next_reconcile_at <= j.lease_until THEN j.lease_until END,
  next_reconcile_at = CASE WHEN v.requeue_after_s IS NULL THEN NULL
    WHEN j.next_reconcile_at < j.lease_until THEN j.next_reconcile_at  -- as in RELEASE
    ELSE clock_timestamp() + make_interval(secs => v.requeue_after_s) END,
  settled = v.requeue_after_s IS NULL
FROM unnest(%(job_ids)s, %(tokens)s::uuid[], %(requeue_after_s)s::float[], %(intent_gens)s::bigint[])
  AS v(id, token, requeue_after_s, intent_gen)
WHERE j.id = v.id AND j.lease_token = v.token AND j.intent_gen = v.intent_gen
  AND j.id IN (SELECT id FROM jobs_job WHERE id = ANY(%(job_ids)s) ORDER BY id FOR NO KEY UPDATE SKIP LOCKED)
RETURNING j.id
"""
HAND_BACK = """
UPDATE jobs_job SET lease_owner = '', lease_token = NULL, lease_until = NULL, next_reconcile_at = clock_timestamp()
WHERE id = %(job_id)s AND lease_token = %(token)s
"""
RELEASE_LATER = """
UPDATE jobs_job SET lease_owner = '', lease_token = NULL, lease_until = NULL, fail_streak = fail_streak + 1,
  next_reconcile_at = clock_timestamp() + make_interval(secs => %(requeue_after_s)s)
WHERE id = %(job_id)s AND lease_token = %(token)s RETURNING fail_streak
"""
RENEW = """
UPDATE jobs_job SET lease_until = statement_timestamp() + make_interval(secs => %(lease_s)s),
  next_reconcile_at = CASE WHEN next_reconcile_at < lease_until THEN next_reconcile_at
    ELSE statement_timestamp() + make_interval(secs => %(lease_s)s)
      + CASE WHEN %(after_look)s THEN interval '1 microsecond' ELSE interval '0' END END
WHERE id = %(job_id)s AND lease_token = %(token)s
"""
"""A leased job that is due after the end of its lease was not looked at since the lease was extended: the row does not
say when its turn began, and a release forgets it."""
HOLDS_SLOTS = """NOT settled AND state = ANY(%(states)s)
  AND next_reconcile_at > clock_timestamp() + make_interval(secs => %(soon_s)s)"""
CHANGED = f"""{HOLDS_SLOTS} AND id = ANY(%(job_ids)s) AND EXISTS (
  SELECT FROM unnest(%(job_ids)s, %(ages_s)s::float[]) AS new(id, age_s)
  WHERE new.id = j.id AND (j.lease_until IS NULL OR (j.lease_token IS NOT NULL AND j.next_reconcile_at > j.lease_until)
    OR j.lease_until - make_interval(secs => %(lease_s)s)
      NOT BETWEEN clock_timestamp() - make_interval(secs => new.age_s) AND clock_timestamp()))
"""
"""The end of a lease, less its length, is when the last turn began, or was extended before a look; not if that is still
to come, as after the database's clock was set back."""


def _make_due_if(condition: str) -> str:
    """SQL: make jobs due, in the order of their ids, and name those whose row was locked: a tick waits for none."""
    return f"""
WITH free AS (SELECT id FROM jobs_job j WHERE {condition} ORDER BY id FOR NO KEY UPDATE SKIP LOCKED),
due AS (
  UPDATE jobs_job SET next_reconcile_at = clock_timestamp() WHERE id IN (SELECT id FROM free) RETURNING id
)
SELECT id FROM jobs_job j WHERE {condition} EXCEPT SELECT id FROM due
"""


MAKE_ALL_DUE, MAKE_DUE = _make_due_if(HOLDS_SLOTS), _make_due_if(CHANGED)

_owner = ""


@dataclass(slots=True)
class Lease:
    """The right to act on one job until `ends` (this process's monotonic clock). with_gpus: it held any when taken."""

    job_id: str
    token: uuid.UUID
    ends: float
    with_gpus: bool = True

    def may_act(self, call_s: float = 1.0) -> bool:
        """True if a call of this duration would still end within the lease."""
        return time.monotonic() + call_s < self.ends


def claim(job_id: str, owner: str) -> Lease | None:
    """Take the lease of this job; None if another worker has it or the job is settled."""
    found = _take(CLAIM_ONE, {"owner": owner, "job_id": job_id})
    return found[0] if found else None


def claim_all(job_ids: Sequence[str], owner: str) -> list[Lease]:
    """Take the leases of these jobs, but for those that another worker has or that are settled."""
    return _take(CLAIM_ALL, {"owner": owner, "job_ids": list(job_ids)})


def claim_due(owner: str, batch: int, *, with_gpus: bool = False) -> list[Lease]:
    """Take the leases of jobs that are due, those due for longest first, and of those whose worker died. with_gpus:
    only of such that hold GPUs or slots, which costs less."""
    statement = CLAIM_DUE_WITH_GPUS if with_gpus else CLAIM_DUE
    taken = _take(statement, {"owner": owner, "batch": batch})
    fp("leases.after_claim_due")
    return taken


def claim_with_due(job_id: str, owner: str, batch: int) -> list[Lease]:
    """Take the lease of this job, if it is free, and of others with GPUs that are due: at most so many in all, this one
    first."""
    taken = _take(CLAIM_WITH_DUE, {"owner": owner, "job_id": job_id, "batch": batch})
    fp("leases.after_claim_due")
    return sorted(taken, key=lambda lease: lease.job_id != job_id)


def renew(lease: Lease, *, after_look: bool = False) -> bool:
    """Extend the lease by its whole length; False if it was lost. after_look: this turn will not look at the job again,
    so what the cluster reported since its look, and reports from now on, do not count as seen."""
    before = time.monotonic()
    with connection.cursor() as cursor:
        cursor.execute(
            RENEW,
            {
                "lease_s": settings.LUTHIER_LEASE_S,
                "after_look": after_look,
                "job_id": lease.job_id,
                "token": lease.token,
            },
        )
        kept = cursor.rowcount == 1
    if kept:
        lease.ends = before + settings.LUTHIER_LEASE_S
    return kept


def release(
    lease: Lease, *, requeue_after_s: float | None, intent_gen: int | None, looked: bool = True
) -> bool:
    """Release the lease. The job is due again after requeue_after_s seconds, or earlier if it was notified meanwhile;
    None settles it. False if the lease was lost, or the intent is newer than intent_gen (None: whatever it is): the
    hint of a halt that came during a long call to the cluster found the job leased, and no other follows. looked: this
    turn saw what the cluster had reported before; else that makes the job due again."""
    values: dict[str, Any] = {
        "job_id": lease.job_id,
        "token": lease.token,
        "requeue_after_s": requeue_after_s,
        "intent_gen": intent_gen,
        "looked": looked,
    }
    with connection.cursor() as cursor:
        cursor.execute(RELEASE, values)
        return cursor.rowcount == 1


def release_all(ends: Sequence[tuple[Lease, float | None, int]]) -> set[str]:
    """Release many leases at once, each with what `release` wants to know of it. Returns the ids of the jobs whose
    lease was released; not those whose row was locked: nothing is waited for."""
    if not ends:
        return set()
    values: dict[str, Any] = {
        "job_ids": [lease.job_id for lease, _, _ in ends],
        "tokens": [str(lease.token) for lease, _, _ in ends],
        "requeue_after_s": [seconds for _, seconds, _ in ends],
        "intent_gens": [gen for _, _, gen in ends],
    }
    with connection.cursor() as cursor:
        cursor.execute(RELEASE_ALL, values)
        return {job for (job,) in cursor.fetchall()}


def hand_back(lease: Lease) -> None:
    """Release the lease of a job that nothing was done for: it is due at once, for the next worker."""
    with connection.cursor() as cursor:
        cursor.execute(HAND_BACK, {"job_id": lease.job_id, "token": lease.token})


def release_later(lease: Lease, requeue_after_s: float) -> int | None:
    """Release the lease after a failure of the platform and count it; the new streak, or None if the lease was lost."""
    values: dict[str, Any] = {
        "job_id": lease.job_id,
        "token": lease.token,
        "requeue_after_s": requeue_after_s,
    }
    with connection.cursor() as cursor:
        cursor.execute(RELEASE_LATER, values)
        row = cursor.fetchone()
    return int(row[0]) if row else None


def make_due(ages_s: Mapping[str, float] | None) -> set[str]:
    """Have jobs of which the cluster reports something new reconciled soon, unless they are due within SOON_S anyway or
    hold no GPUs. ages_s: job -> seconds since this process has known it; None: all jobs. Returns those whose row was
    locked: they are to be tried again.

    A turn that began after that may have been another worker's: what it did not know yet, it reports itself.
    """
    values: dict[str, Any] = {
        "job_ids": list(ages_s or ()),
        "ages_s": list((ages_s or {}).values()),
        "states": sorted(HOLDS_GPUS),
        "soon_s": SOON_S,
        "lease_s": settings.LUTHIER_LEASE_S,
    }
    with connection.cursor() as cursor:
        cursor.execute(MAKE_ALL_DUE if ages_s is None else MAKE_DUE, values)
        return {job for (job,) in cursor.fetchall()}


def _take(statement: str, values: dict[str, Any]) -> list[Lease]:
    before = time.monotonic()  # before the database reads its clock: never longer than the stored lease
    always: dict[str, Any] = {"lease_s": settings.LUTHIER_LEASE_S, "states": sorted(HOLDS_GPUS)}
    with connection.cursor() as cursor:
        cursor.execute(statement, always | values)
        rows: Sequence[tuple[str, uuid.UUID, bool]] = cursor.fetchall()
    ends = before + settings.LUTHIER_LEASE_S
    return [Lease(job_id, token, ends, with_gpus) for job_id, token, with_gpus in rows]


def owner() -> str:
    """The name under which this process takes leases: the id of its registration. Without one, a name of no worker, so
    that its leases end only by time."""
    return _owner or f"process-{socket.gethostname()}-{os.getpid()}"


def register_worker(name: str) -> int:
    """Register this worker process. Returns its id."""
    global _owner
    worker = Worker.objects.create(name=name)
    _owner = str(worker.pk)
    return worker.pk


KEEP_ALIVE = """
UPDATE jobs_worker w SET seen_at = clock_timestamp() FROM (SELECT seen_at FROM jobs_worker WHERE id = %(id)s) before
WHERE w.id = %(id)s RETURNING before.seen_at > clock_timestamp() + make_interval(secs => %(jump_s)s)
"""
CLOCK_JUMP_S = 30.0
LEARNER_TIMES = (
    "halt_seen_at", "downloading_at", "ready_at", "processing_at", "exited_at", "done_at", "last_seen_at", "stored_at"
)  # fmt: skip
ATTEMPT_TIMES = ("opened_at", "launched_at", "processing_at", "known_at", "save_requested_at")


def _no_later_than_now(table: str, columns: Sequence[str], those: str = "") -> str:
    """SQL. Times in one order stay in it; `least` leaves out what is unknown, and must not make it known."""
    times = ", ".join(
        f"{column} = CASE WHEN {column} > clock_timestamp() THEN clock_timestamp() ELSE {column} END"
        for column in columns
    )
    return f"UPDATE {table} SET {times} WHERE {those} greatest({', '.join(columns)}) > clock_timestamp()"


AFTER_CLOCK_JUMP = (
    "UPDATE jobs_job SET next_reconcile_at = clock_timestamp()"
    " WHERE NOT settled AND next_reconcile_at > clock_timestamp()",
    "UPDATE jobs_job SET start_after = clock_timestamp() WHERE start_after > clock_timestamp()",
    "UPDATE jobs_job SET stop_at = clock_timestamp() WHERE state = 'STOPPING' AND stop_at > clock_timestamp()",
    _no_later_than_now("jobs_learner", LEARNER_TIMES),
    _no_later_than_now("jobs_attempt", ATTEMPT_TIMES, "held AND"),  # of closed ones, use is booked
    "UPDATE jobs_clusternode SET avoid_until = clock_timestamp() WHERE avoid_until > clock_timestamp()",
    "UPDATE jobs_periodictask SET next_at = clock_timestamp(), result = result - 'rests_until'"
    " WHERE next_at > clock_timestamp()",
    "UPDATE jobs_worker SET seen_at = clock_timestamp() WHERE seen_at > clock_timestamp()",
)
"""What was due at a time that is far off now is due at once; what was seen or begun in the future, was so now."""


def keep_worker_alive(worker_id: int) -> bool:
    """Record that this worker is alive. False if its registration is gone and it must register again.

    If the database's clock was set back since the last time, nothing may wait until it has come to where it was.
    """
    with (
        transaction.atomic(),
        connection.cursor() as cursor,
    ):  # what fails is tried again at the next beat
        cursor.execute(KEEP_ALIVE, {"id": worker_id, "jump_s": CLOCK_JUMP_S})
        row = cursor.fetchone()
        if row is not None and row[0]:
            logger.warning("the database's clock was set back: everything is due now")
            for statement in AFTER_CLOCK_JUMP:
                cursor.execute(statement)
    return row is not None


def deregister_worker(worker_id: int) -> None:
    """Deregister on shutdown, so that this worker is not reported as silent and its leases are free at once."""
    global _owner
    _owner = ""
    Worker.objects.filter(pk=worker_id).delete()


def remove_dead_workers() -> int:
    """Remove the rows of workers that died without deregistering; returns how many."""
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM jobs_worker WHERE seen_at < clock_timestamp() - interval '1 hour'")
        return int(cursor.rowcount)
