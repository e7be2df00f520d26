"""What a plan decided, written: starts, orders for running jobs, and why each other job waits.

A start is written whole or not at all: the job's move, quota, attempt and learners; starts share commits.
An order only marks the row of a running job: the cycle holds no lease, so it never moves one; ``decide`` turns the
order into STOPPING.
docs/job_states.md says who wins when an order meets a request of the owner or the program's end.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from functools import partial
from typing import Any

from django.db import IntegrityError, connection, transaction
from django.db.models import F
from django.db.models.functions import Now
from psycopg2.errors import CheckViolation

from gpu_scheduler.backoff import doubling_s
from gpu_scheduler.elastic.performance import OWN_BATCH, BatchChoice, choose_batch
from gpu_scheduler.losses import Loss
from gpu_scheduler.model import (
    Explanation,
    Placement,
    Resize,
    Start,
    StartReason,
    Stop,
    WaitReason,
    timestamp,
)
from jobs import events, pubsub, tokens, wake
from jobs.disk import Disk
from jobs.failpoints import fp
from jobs.humanize import devices, filesize
from jobs.lifecycle.decision import WAIT_QUEUED_S
from jobs.lifecycle.facts import LEAVES
from jobs.lifecycle.recording import Source
from jobs.lifecycle.transitions import leave_queue
from jobs.models import Attempt, Checkpoint, Estimate, Job, JobEvent, Learner
from jobs.retries import retry_on_serialization_failure
from jobs.selectors.checkpoints import checkpoint_for
from jobs.selectors.kept_rows import READ_NUMBERS, SHOWN
from jobs.selectors.requests import elastic_range, profile, size_range
from jobs.selectors.snapshot import waiting_rows
from jobs.states import BY_ORDER, TAKES_ORDERS, EventCode, State, StopReason
from tenants.models import Tenant

logger = logging.getLogger(__name__)


class NotAdmitted(Exception):
    """The job may not start after all: its quota, its tenant or its own intent changed since the snapshot."""


class JobLocked(NotAdmitted):
    """Another transaction has the job's row. The next pass tries again; no other start waits for it."""


def admit_all(starts: Sequence[Start], cluster: str, source: Source | None = None) -> None:
    """Inside a transaction that has locked these jobs: the moves to DEPLOYING, quotas, attempts and learners. Takes as
    many statements for many jobs as for one. Raises NotAdmitted if any of them may not start: nothing may be committed
    then."""
    fp("admit.before_move")
    jobs = leave_queue([start.job for start in starts])
    if len(jobs) < len(starts):
        raise NotAdmitted("it no longer waits")
    if any(start.generation and jobs[start.job].intent_gen != start.generation for start in starts):
        raise NotAdmitted("its owner asked for something else meanwhile")
    opened = [(jobs[start.job], start.placement) for start in starts]
    for job, placement in opened:
        _set_size(job, len(placement.nodes))
    fp("admit.after_move")
    _take_quotas(opened)
    fp("admit.after_quota")
    attempts = _open_attempts(opened, cluster)
    fp("admit.after_attempt")
    Learner.objects.bulk_create(
        Learner(
            job=job,
            tenant_id=job.tenant_id,
            attempt=job.attempt,
            rank=rank,
            node=node,
            secret_sha256=tokens.derive(job.pk, job.attempt, rank)[1],
        )
        for job, placement in opened
        for rank, node in enumerate(placement.nodes)
    )
    Estimate.objects.filter(job__in=jobs, started_at=None).update(started_at=Now())
    fp("admit.after_rows")
    whys = {start.job: start for start in starts}
    events.append_numbered([_started(attempt, whys[attempt.job_id], source) for attempt in attempts])
    for tenant in {job.tenant_id for job, _ in opened}:
        transaction.on_commit(partial(pubsub.quotas_changed, tenant), robust=True)


def _started(attempt: Attempt, start: Start, source: Source | None) -> JobEvent:
    """The event of a start; leave_queue took its number."""
    job = attempt.job
    return JobEvent(
        job=job,
        tenant_id=job.tenant_id,
        n=job.event_seq,
        code=EventCode.PLACED,
        from_state=State.QUEUED.value,
        to_state=State.DEPLOYING.value,
        attempt=attempt.n,
        reason="placed",
        message=_placed(attempt),
        numbers={
            "nodes": attempt.nodes,
            "slots": job.slots,
            "slot_type": attempt.slot_type,
            "checkpoint": attempt.resume_from.n if attempt.resume_from else None,
            "why": start.reason.value,
            "borrowed": start.borrowed,
            **({"plan": source.numbers} if source else {}),
        },
        source="scheduler",
    )


def _set_size(job: Job, learners: int) -> None:
    """An elastic job has as many learners as there are nodes for; of any other, the job's row says how many."""
    if learners not in size_range(job):
        raise NotAdmitted("its size has changed")
    if learners != job.learners:
        Job.objects.filter(pk=job.pk).update(learners=learners)
        job.learners = learners


def lock_jobs(jobs: Sequence[str]) -> None:
    """Lock the rows of these jobs, all before any row of their tenant. Waits for none. Raises JobLocked."""
    rows = Job.objects.filter(pk__in=jobs).order_by("pk")
    free = rows.select_for_update(no_key=True, skip_locked=True).values_list("pk", flat=True)
    if len(free) < len(jobs) and rows.count() > len(free):
        raise JobLocked("another transaction has its row")


TAKE_SLOTS = """
WITH taken AS (
  SELECT q.id, v.slots FROM tenants_quota q
  JOIN unnest(%s::bigint[], %s, %s::int[]) AS v(tenant_id, gpu_type, slots) USING (tenant_id, gpu_type)
  ORDER BY tenant_id, gpu_type FOR NO KEY UPDATE OF q
)
UPDATE tenants_quota q SET used = q.used + taken.slots FROM taken, tenants_tenant t
WHERE q.id = taken.id AND t.id = q.tenant_id
  AND (taken.slots = 0 OR q.used + taken.slots <= q."limit"
    OR t.cohort <> '' AND q.used + taken.slots - q."limit" <= coalesce(q.borrowing_limit, q.used + taken.slots))
"""
TAKE_JOBS = """
WITH taken AS (
  SELECT t.id, v.jobs FROM tenants_tenant t JOIN unnest(%s::bigint[], %s::int[]) AS v(id, jobs) USING (id)
  ORDER BY t.id FOR NO KEY UPDATE OF t
)
UPDATE tenants_tenant t SET jobs_used = jobs_used + taken.jobs FROM taken
WHERE t.id = taken.id AND state = %s
  AND (taken.jobs = 0 OR jobs_limit IS NULL OR jobs_used + taken.jobs <= jobs_limit)
"""
"""The rows of several tenants are locked in one order, all quotas before all tenants: docs/adr/0012. Opportunistic jobs
take 0: their tenant needs a quota of the type, and must be active."""


def _take_quotas(opened: Sequence[tuple[Job, Placement]]) -> None:
    """Take the slots with conditional UPDATEs; database triggers reject anything that these conditions miss, such as
    more than a tenant's cohort lends."""
    slots: Counter[tuple[int, str]] = Counter()
    for job, placement in opened:
        slots[job.tenant_id, placement.slot_type] += 0 if job.opportunistic else job.slots * job.learners
    jobs: Counter[int] = Counter()
    for job, _ in opened:
        jobs[job.tenant_id] += int(not job.opportunistic)
    with connection.cursor() as cursor:
        try:
            cursor.execute(TAKE_SLOTS, [*map(list, zip(*slots, strict=True)), list(slots.values())])
        except IntegrityError as error:
            raise NotAdmitted(str(error)) from error
        if cursor.rowcount != len(slots):
            raise NotAdmitted(
                f"quota of {', '.join(sorted({kind for _, kind in slots}))} is used up, or gone"
            )
        fp("admit.after_slots_taken")
        cursor.execute(TAKE_JOBS, [list(jobs), list(jobs.values()), Tenant.State.ACTIVE])
        if cursor.rowcount != len(jobs):
            raise NotAdmitted("the tenant is suspended or at its limit of live jobs")


def _open_attempts(opened: Sequence[tuple[Job, Placement]], cluster: str) -> list[Attempt]:
    """A trigger rejects one above the limits for a user or for a job."""
    ids = [job.pk for job, _ in opened]
    saved = set(Checkpoint.objects.filter(job__in=ids).values_list("job_id", flat=True).distinct())
    attempts = []
    for job, placement in opened:
        batch = _batch(job, placement)
        attempts.append(
            Attempt(
                job=job,
                tenant_id=job.tenant_id,
                n=job.attempt,
                cluster=cluster,
                slot_type=placement.slot_type,
                slots=job.slots,
                learners=job.learners,
                nodes=list(placement.nodes),
                opportunistic=job.opportunistic,
                batch=batch.batch or None,
                micro_batch=batch.micro_batch or None,
                resume_from=checkpoint_for(job) if job.pk in saved or job.resume_from_id else None,
                known_at=Now(),
            )
        )
    try:
        return Attempt.objects.bulk_create(attempts)
    except IntegrityError as error:
        if isinstance(error.__cause__, CheckViolation):
            raise NotAdmitted(str(error)) from error
        raise


def _batch(job: Job, placement: Placement) -> BatchChoice:
    """Chosen once for the attempt: a launch that is repeated must not differ from the first."""
    if elastic_range(job.resources) is None:
        return OWN_BATCH
    nodes = placement.nodes
    return choose_batch(profile(job.resources, job.measured), len(nodes), len(set(nodes)))


def _placed(attempt: Attempt) -> str:
    nodes = ", ".join(dict.fromkeys(attempt.nodes))
    from_checkpoint = f", from checkpoint {attempt.resume_from.n}" if attempt.resume_from else ""
    learners, each = ("1 learner", "") if attempt.learners == 1 else (f"{attempt.learners} learners", " each")
    size = devices(attempt.slots, attempt.slot_type)
    batch = f", batch {attempt.batch}" if attempt.batch else ""
    return f"Attempt {attempt.n}: {learners} with {size}{each} on {nodes}{batch}{from_checkpoint}"


STATES = ", ".join(f"'{state}'" for state in sorted(TAKES_ORDERS))
WRITE_ORDER = """
UPDATE jobs_job SET order_reason = %(reason)s, order_for_job = %(for_job)s, order_learners = %(learners)s,
  order_gen = %(generation)s, order_plan = %(plan)s,
  order_loss = %(loss)s, next_reconcile_at = clock_timestamp()
WHERE id = (SELECT id FROM jobs_job WHERE id = %(job)s FOR NO KEY UPDATE SKIP LOCKED)
  AND intent = 'RUN' AND intent_gen = %(generation)s AND order_gen <= %(generation)s
  AND (order_reason, order_for_job, order_learners, order_gen)
    IS DISTINCT FROM (%(reason)s, %(for_job)s, %(learners)s::int, %(generation)s)
"""
WRITE_STOP = f"""{WRITE_ORDER} AND (state IN ({STATES})
  OR state = 'STOPPING' AND stop_reason = '{StopReason.RESCALED}'
    AND order_reason = '{StopReason.RESCALED}' AND order_gen = intent_gen)"""
WRITE_RESIZE = f"""{WRITE_ORDER} AND state IN ({STATES}) AND (learners <> %(learners)s OR %(leaves)s)
  AND order_reason IN ('', '{StopReason.RESCALED}')"""


ORDERED_STOPS = BY_ORDER - {StopReason.RESCALED}


def check_orders(orders: Iterable[Stop | Resize]) -> None:
    """Raise ValueError for a stop whose reason is none of a scheduler. Called before anything of a plan is written."""
    for order in orders:
        if isinstance(order, Stop) and order.reason not in ORDERED_STOPS:
            raise ValueError(f"not a reason to order a stop: {order.reason}")


def write_orders(
    orders: Iterable[Stop | Resize], source: Source | None = None, losses: Mapping[str, Loss] | None = None
) -> list[str]:
    """Write these orders and notify the jobs' reconciliation; returns the jobs whose order is new.

    They passed check_orders. losses: by job, what was at stake. An order is refused where the job no longer runs,
    or its intent is newer than the one for which the order was decided. A stop order replaces a resize order, a newer
    order of the same kind replaces the older one. The rule is that of ``gpu_scheduler.world.ordered``.
    """
    expected = losses or {}
    return [order.job for order in orders if _write_order(order, source, expected.get(order.job))]


def _write_order(order: Stop | Resize, source: Source | None, loss: Loss | None) -> bool:
    leaves = list(order.leaves) if isinstance(order, Resize) else []
    decided_from = {**(source.numbers if source else {}), **({LEAVES: leaves} if leaves else {})}
    values: dict[str, Any] = {
        "job": order.job,
        "generation": order.generation,
        "for_job": order.for_job or "",
        "leaves": bool(leaves),
        "plan": json.dumps(decided_from) if decided_from else None,
        "loss": json.dumps(asdict(loss)) if loss else None,
    }
    if isinstance(order, Stop):
        values |= {"reason": order.reason, "learners": None}
    else:
        values |= {"reason": StopReason.RESCALED.value, "learners": order.learners}
    with connection.cursor() as cursor:
        cursor.execute(WRITE_STOP if isinstance(order, Stop) else WRITE_RESIZE, values)
        accepted = cursor.rowcount == 1
    if accepted:
        wake.hint("jobs.tasks.reconcile_job", order.job)
    return accepted


CHUNK = 500
NUMBERS_ONLY = 500
"""Of so many jobs at most, one pass writes what has changed but the reason: the nearest to their start."""


def compare(
    waits: Sequence[Explanation], shown: Mapping[str, tuple[Any, ...]] | None = None
) -> tuple[list[Explanation], list[Explanation]]:
    """Of these, those whose code is not what the job's row says, which is an event, and those of which only the numbers
    have changed, which is none: the nearest to their start first.

    shown: what the rows say (kept_rows.SHOWN), where that is known. What they have said since is for the next pass.
    """
    if not waits:
        return [], []
    if shown is None:
        rows = Job.objects.filter(state=State.QUEUED).values_list("pk", *SHOWN)
        if (
            len(waits) <= CHUNK
        ):  # of an explanation for all that wait, the ids would be more to send than they spare
            rows = rows.filter(pk__in=[wait.job for wait in waits])
        shown = {job: tuple(values) for job, *values in rows}
    changed = [wait for wait in waits if wait.job in shown and shown[wait.job] != _shown(wait)]
    fresh = [wait for wait in changed if shown[wait.job][0] != wait.code.value]
    numbers_only = [wait for wait in changed if shown[wait.job][0] == wait.code.value]
    numbers_only.sort(key=lambda wait: wait.numbers.get("position") or 0)
    return fresh, numbers_only


def explain_fresh(fresh: Sequence[Explanation]) -> None:
    """Write why these jobs wait, each with an event."""
    for part in _chunks(fresh):
        _write_reasons(part, with_event=True)


def explain_moved(moved: Sequence[Explanation]) -> None:
    """Write the new numbers of these."""
    for part in _chunks(moved):
        _write_reasons(part, with_event=False)


def longest_pending_first(starts: Sequence[Start], priorities: Mapping[str, int]) -> list[Start]:
    """Of each priority, those that an earlier pass left come first, the longest left before all; otherwise in the
    plan's order. Opportunistic ones are last. Each pass makes a new plan: without this, tenants whose jobs end soon
    would be ahead in each."""
    if len(starts) < 2:
        return list(starts)
    rows = Job.objects.filter(state=State.QUEUED, reason_code=WaitReason.START_PENDING)
    since: dict[str, str] = dict(rows.values_list("pk", "reason_numbers__since"))
    return sorted(
        starts,
        key=lambda start: (
            start.reason is StartReason.OPPORTUNISTIC,
            -priorities[start.job],
            start.job not in since,
            since.get(start.job, ""),
        ),
    )


def explain_pending(starts: Sequence[Start], now: datetime) -> None:
    """Say of these jobs that they can start, and how many starts come first: once, so that it is known since when."""
    fresh, _ = compare([_pending(start, ahead, now) for ahead, start in enumerate(starts)])
    explain_fresh(fresh)


def _pending(start: Start, ahead: int, now: datetime) -> Explanation:
    others = "1 other job" if ahead == 1 else f"{ahead} other jobs"
    message = (
        f"It can start now. The platform starts {others} first."
        if ahead
        else "It can start now, and is next."
    )
    numbers = {"starts_ahead": ahead, "since": timestamp(now)}
    return Explanation(start.job, WaitReason.START_PENDING, message, numbers)


def explain(waits: Sequence[Explanation]) -> None:
    """Write why each job waits, only where that changed."""
    fresh, moved = compare(waits)
    explain_fresh(fresh)
    explain_moved(moved[:NUMBERS_ONLY])


def _shown(wait: Explanation) -> tuple[Any, ...]:
    """What people see of it."""
    return (wait.code.value, wait.message, *(wait.numbers.get(key) for key in READ_NUMBERS))


WRITE_REASONS = f"""
WITH unlocked AS (
  SELECT id FROM jobs_job WHERE id = ANY(%s) AND state = 'QUEUED' ORDER BY id FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE jobs_job j SET reason_code = v.code, reason_message = v.message, reason_numbers = v.numbers,
  event_seq = event_seq + %s,
  next_reconcile_at = CASE WHEN j.intent = 'RUN' AND j.lease_token IS NULL AND j.start_after IS NULL
    AND (j.packages ? 'lock' OR NOT j.packages ? 'requirements')  -- else its versions are being chosen
    THEN clock_timestamp() + make_interval(secs => {WAIT_QUEUED_S}) ELSE j.next_reconcile_at END
FROM jsonb_to_recordset(%s) AS v(job text, code text, message text, numbers jsonb)
JOIN unlocked ON unlocked.id = v.job
WHERE j.id = v.job AND (%s OR j.reason_code = v.code) RETURNING j.id, j.tenant_id, j.event_seq
"""
"""Without an event only the numbers of a reason change, never the reason: its owner may have asked for something since.
"""
WRITE_WAITING = """
INSERT INTO jobs_jobevent
  (job_id, tenant_id, n, code, from_state, to_state, attempt, reason, message, numbers, source)
SELECT id, tenant_id, event_seq, %s, '', '', attempt, reason_code, reason_message, reason_numbers, 'scheduler'
FROM jobs_job WHERE id = ANY(%s)
"""
"""What these rows say, which this transaction has just written. Hundreds of jobs a second can come and wait: a model
object for each event took two thirds of the processor time of saying so."""


@retry_on_serialization_failure
def _write_reasons(waits: Sequence[Explanation], *, with_event: bool) -> None:
    rows = [
        {"job": wait.job, "code": wait.code.value, "message": wait.message, "numbers": wait.details}
        for wait in waits
    ]
    with transaction.atomic():
        with connection.cursor() as cursor:
            values: list[Any] = [
                [wait.job for wait in waits],
                int(with_event),
                json.dumps(rows, default=str),
                with_event,
            ]
            cursor.execute(WRITE_REASONS, values)
            written = cursor.fetchall()
            if with_event:
                cursor.execute(WRITE_WAITING, [EventCode.WAITING.value, [job for job, *_ in written]])
        for job, tenant, n in written:
            events.publish_later(job, tenant, n)


def explain_cluster_busy(why: str) -> None:
    message = f"The cluster is not responding, so nothing starts now; waiting jobs keep their places. ({why})"
    _explain_all(WaitReason.CLUSTER_BUSY, message)


def explain_disk_full(disk: Disk) -> None:
    message = (
        f"The platform's disk has less than {filesize(disk.minimum)} free, so nothing starts now; waiting jobs keep"
        " their places and running jobs continue. Ask a platform admin to make room."
    )
    _explain_all(WaitReason.DISK_FULL, message)


def _explain_all(code: WaitReason, message: str) -> None:
    waiting = waiting_rows().values_list("pk", flat=True)
    explain([Explanation(job, code, message, {}) for job in waiting])


QUARANTINE_S, QUARANTINE_MAX_S = 30.0, 3600.0
QUARANTINE = """
UPDATE jobs_job SET reason_code = %(code)s, reason_message = %(message)s, reason_numbers = %(numbers)s,
  start_after = clock_timestamp() + make_interval(secs => %(wait_s)s), event_seq = event_seq + 1
WHERE id = (SELECT id FROM jobs_job WHERE id = %(job)s AND state = 'QUEUED' FOR NO KEY UPDATE SKIP LOCKED)
RETURNING tenant_id, event_seq, attempt
"""


@retry_on_serialization_failure
def quarantine(job_id: str, error: Exception) -> None:
    """Leave this waiting job out of the next passes, because the platform failed on it: for QUARANTINE_S, twice as long
    after each further failure, and say so. The scheduler continues with the others."""
    logger.error("start failed", extra={"job": job_id}, exc_info=error)
    # The job's row does not say how many came before: it may have waited for something else between two tries.
    failed = JobEvent.objects.filter(job=job_id, reason=WaitReason.START_FAILED, attempt=F("job__attempt"))
    failures = 1 + int(failed.order_by("-n").values_list("numbers__failures", flat=True).first() or 0)
    wait_s = doubling_s(failures, free=0, first_s=QUARANTINE_S, most_s=QUARANTINE_MAX_S)
    times = "once" if failures == 1 else f"{failures} times in a row"
    message = (
        f"The platform failed to start this job {times} ({type(error).__name__}); it tries again after"
        f" {wait_s:.0f} s. A platform admin should look at the worker's log."
    )
    numbers = {"failures": failures, "retry_s": wait_s}
    values: dict[str, Any] = {
        "job": job_id,
        "code": WaitReason.START_FAILED.value,
        "message": message,
        "wait_s": wait_s,
    }
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute(QUARANTINE, values | {"numbers": json.dumps(numbers)})
            row = cursor.fetchone()
        if row is None:  # it no longer waits, or its row is locked: the next pass finds it again
            return
        tenant, n, attempt = row
        JobEvent.objects.create(
            job_id=job_id,
            tenant_id=tenant,
            n=n,
            code=EventCode.WAITING,
            attempt=attempt,
            reason=WaitReason.START_FAILED.value,
            message=message,
            numbers=numbers,
            source="scheduler",
        )
        events.publish_later(job_id, tenant, n)


def _chunks(waits: Sequence[Explanation]) -> Iterable[Sequence[Explanation]]:
    return (waits[start : start + CHUNK] for start in range(0, len(waits), CHUNK))
