"""The only place that writes Job.state: one compare-and-swap, one event, and the slots, in one transaction.

Every move is guarded by the state, the attempt and the lease token that the decision was made with; when any of them
has changed, StaleJob rolls everything back and the decision is dropped. leave_queue, admission's own move, is guarded
by state and intent, and voids any lease. note_alive and note_reports are not guarded, and repeating them is harmless.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from django.conf import settings
from django.db import connection, transaction
from django.db.models import Exists, F, OuterRef, Q
from django.db.models.functions import Coalesce, Now

from gpu_scheduler.clusters.base import LearnerReport
from gpu_scheduler.model import CPU_TYPE
from jobs import events, pubsub
from jobs.accounting import NOTED_EVERY_S, PAUSE_S, ran_s
from jobs.failpoints import fp
from jobs.humanize import devices, duration, slot_time
from jobs.lifecycle import preparation_log
from jobs.lifecycle.facts import BEING_STARTED, PREPARING, JobObservation, Move, Reason
from jobs.lifecycle.leases import Lease
from jobs.lifecycle.observation import JobRows, halt_message, halt_receipt
from jobs.models import Attempt, ClusterNode, Job, JobEvent, Learner
from jobs.retries import retry_on_serialization_failure
from jobs.selectors.packages import versions_chosen
from jobs.selectors.usage_sql import LOST
from jobs.states import (
    BY_ORDER,
    EARLY_ENDS,
    FINAL,
    HOLDS_GPUS,
    PROGRAM_FINISHED,
    EventCode,
    Intent,
    State,
)
from jobs.steps import reported_step

CLOSE_ATTEMPTS = """
UPDATE jobs_attempt a SET held = false, closed_at = clock_timestamp(), known_at = greatest(v.until, opened_at),
  outcome = %s, message = %s, freed_for = (SELECT CASE WHEN order_for_job = '' AND order_learners IS NOT NULL THEN id
    ELSE order_for_job END FROM jobs_job WHERE id = a.job_id)
FROM unnest(%s, %s::int[], %s::timestamptz[]) AS v(job_id, n, until), set_config('luthier.opportunistic', 'known', true)
WHERE a.job_id = v.job_id AND a.n = v.n AND held
RETURNING a.job_id, slot_type, slots * learners, greatest(0, extract(epoch FROM clock_timestamp() - opened_at)),
  extract(epoch FROM known_at - opened_at), opportunistic
"""
"""A trigger refuses that an opportunistic attempt is closed by a version that would return what it never took."""
CHARGE = """
UPDATE jobs_job j SET slot_seconds = slot_seconds + v.slots, running_s = running_s + v.ran,
  order_reason = '', order_for_job = '', order_learners = NULL, order_plan = NULL, order_loss = NULL
FROM unnest(%s, %s::float[], %s::float[]) AS v(id, slots, ran) WHERE j.id = v.id
"""
"""With the columns of NO_ORDER."""
LAUNCHED = """
UPDATE jobs_attempt a SET launched_at = clock_timestamp() FROM unnest(%s, %s::int[]) AS v(job_id, n)
WHERE a.job_id = v.job_id AND a.n = v.n AND held
"""

RETURN_QUOTA = """
WITH returned AS (
  SELECT q.id, v.slots FROM tenants_quota q
  JOIN unnest(%s::bigint[], %s, %s::int[]) AS v(tenant_id, gpu_type, slots) USING (tenant_id, gpu_type)
  ORDER BY tenant_id, gpu_type FOR NO KEY UPDATE OF q
)
UPDATE tenants_quota q SET used = used - returned.slots FROM returned WHERE q.id = returned.id
"""
RETURN_JOBS = """
WITH returned AS (
  SELECT t.id, v.jobs FROM tenants_tenant t JOIN unnest(%s::bigint[], %s::int[]) AS v(id, jobs) USING (id)
  ORDER BY t.id FOR NO KEY UPDATE OF t
)
UPDATE tenants_tenant t SET jobs_used = jobs_used - returned.jobs FROM returned WHERE t.id = returned.id
"""
"""The rows of several tenants are locked in one order; those of others are not locked before."""
LOCK_WAIT_MS = 250
"""A transaction that may hold up several tenants waits this long for the rows of one of them."""

ALIVE = """
UPDATE jobs_attempt a SET known_at = greatest(known_at, v.at) FROM unnest(%s::bigint[], %s::timestamptz[]) AS v(id, at)
WHERE a.id = v.id AND a.id IN (
  SELECT id FROM jobs_attempt WHERE id = ANY(%s) AND held ORDER BY id FOR NO KEY UPDATE SKIP LOCKED
)
"""

REPORTS = """
WITH shown AS (
  SELECT l.id, v.uid, v.phase, v.exit_code, v.message, v.details FROM jobs_learner l
  JOIN unnest(%s::bigint[], %s::text[], %s::text[], %s::int[], %s::text[], %s::jsonb[])
    AS v(id, uid, phase, exit_code, message, details) USING (id)
  ORDER BY l.id FOR NO KEY UPDATE OF l {locked}
)
UPDATE jobs_learner l SET cluster_uid = shown.uid, cluster_phase = shown.phase, cluster_exit_code = shown.exit_code,
  cluster_message = shown.message, failure_details = shown.details
FROM shown WHERE l.id = shown.id
"""

NO_ORDER: dict[str, Any] = {
    "order_reason": "",
    "order_for_job": "",
    "order_learners": None,
    "order_plan": None,
    "order_loss": None,
}
"""The row of a job without an order. order_gen stays: the newest generation ever ordered for."""
NOTED_EVERY = timedelta(seconds=NOTED_EVERY_S)


class StaleJob(Exception):
    """The job is no longer as it was when the decision was made."""


def move(rows: JobRows, move: Move, lease: Lease) -> None:
    """Take the job to move.to. Raises StaleJob if it, its attempt or its lease has changed meanwhile."""
    name = f"{rows.observation.state}_to_{move.to}".lower()
    fp(f"move.before_{name}")
    _write_move(rows, move, lease)
    fp("move.after_commit")


@retry_on_serialization_failure
def _write_move(rows: JobRows, move: Move, lease: Lease) -> None:
    """Rows are locked in one order: the job, its attempt, the quota, the tenant; then nodes."""
    source, job = rows.observation.state, rows.job
    with transaction.atomic():
        reason = _with_receipt(rows, move)
        _swap(rows, lease, _fields(rows, move, reason))
        fp("move.after_swap")
        if move.to == State.PROCESSING:
            Attempt.objects.filter(job=job, n=job.attempt, held=True).update(processing_at=Now())
            fp("move.after_attempt_started")
        if source in HOLDS_GPUS and move.to not in HOLDS_GPUS:
            events.append(**_return_slots([rows], move)[job.pk])
            fp("move.after_slots_returned")
            if move.to == State.QUEUED and rows.observation.stop_reason in BY_ORDER:
                reason = _with_loss(rows, reason)
        elif move.to == State.PROCESSING:
            reason = _with_restart(job, reason)
        events.append(**_moved(rows, source, move, reason))
        if move.to == State.PROCESSING:
            _note_restart(job)
        if move.avoid:
            _avoid(move.avoid, reason)
        fp("move.before_commit")


def _moved(rows: JobRows, source: State, move: Move, reason: Reason) -> dict[str, Any]:
    """The event of a move."""
    return {
        "job_id": rows.job.pk,
        "tenant_id": rows.job.tenant_id,
        "code": EventCode.MOVED,
        "from_state": source.value,
        "to_state": move.to.value,
        "attempt": rows.job.attempt,
        "reason": reason.code,
        "message": reason.message,
        "numbers": dict(reason.numbers),
        "source": "lifecycle",
    }


def may_share(rows: JobRows, move: Move) -> bool:
    """Whether others can make this move in the same transaction: the steps of a job that goes as it should. The first
    attempt only: a later one may have to say that its learners run again. No move that says more than where to and why,
    such as which nodes to avoid: that is not written."""
    if move != Move(move.to, move.reason):
        return False
    if move.to == State.PROCESSING:
        return rows.job.attempt == 1
    if move.to == State.COMPLETED:
        return rows.observation.state == State.STORING
    return move.to in (State.DOWNLOADING, State.STORING)


def shared_key(rows: JobRows, moves: Sequence[Move]) -> tuple[object, ...]:
    """The same for moves that can be one transaction, and write the same."""
    return (rows.observation.state, repr(moves))


def move_all(together: Sequence[tuple[JobRows, Lease]], moves: Sequence[Move]) -> None:
    """Make the same moves, one after the other, of several jobs with the same shared_key: all of them or none. Raises
    StaleJob if any of these jobs, its attempt or its lease has changed meanwhile, or its row is locked."""
    _write_moves(together, moves)
    fp("move.after_commit")


@retry_on_serialization_failure
def _write_moves(together: Sequence[tuple[JobRows, Lease]], moves: Sequence[Move]) -> None:
    """Rows are locked in the order of a single move. No job's row is waited for: others lock several in any order. The
    rows of several tenants are waited for, but not for long: one tenant's locked row must not keep another's jobs."""
    all_rows = [rows for rows, _ in together]
    assert all(may_share(rows, move) for rows in all_rows for move in moves), "such moves are made alone"
    source = all_rows[0].observation.state
    with transaction.atomic():
        if moves[-1].to not in HOLDS_GPUS:
            wait_shortly()
        numbers = _lock_leased(together)
        written: list[JobEvent] = []
        for move in moves:
            written += _write_step(all_rows, source, move, numbers)
            source = move.to
        events.append_numbered(written)
        fp("move.before_commit")


def _write_step(
    all_rows: Sequence[JobRows], source: State, move: Move, numbers: dict[str, int]
) -> Iterator[JobEvent]:
    """One of the moves of _write_moves. Its events, to be written; numbers: of each job's last event, counted on."""
    returns = source in HOLDS_GPUS and move.to not in HOLDS_GPUS
    fields = _fields(all_rows[0], move, move.reason)
    Job.objects.filter(pk__in=numbers).update(event_seq=F("event_seq") + 1 + int(returns), **fields)
    if move.to == State.PROCESSING:
        Attempt.objects.filter(job__in=numbers, n=1, held=True).update(processing_at=Now())
    slots = _return_slots(all_rows, move) if returns else {}
    for rows in all_rows:
        job = rows.job.pk
        for event in [*([slots[job]] if returns else []), _moved(rows, source, move, move.reason)]:
            numbers[job] += 1
            yield JobEvent(n=numbers[job], **event)


def _lock_leased(together: Sequence[tuple[JobRows, Lease]]) -> dict[str, int]:
    """Lock the rows of these jobs, if each is as it was read, under its lease; the number of each one's last event."""
    found = (
        Job.objects.filter(pk__in=[rows.job.pk for rows, _ in together])
        .order_by("pk")
        .select_for_update(no_key=True, skip_locked=True)
        .values_list("pk", "state", "attempt", "lease_token", "event_seq")
    )
    locked = {job: (now, seq) for job, *now, seq in found}
    for rows, lease in together:
        now, _ = locked.get(rows.job.pk, (None, 0))
        if now != [rows.observation.state, rows.job.attempt, lease.token]:
            raise StaleJob(rows.job.pk)
    return {job: seq for job, (_, seq) in locked.items()}


def wait_shortly() -> None:
    """This transaction gives up on a row that is locked for LOCK_WAIT_MS, and ends if its worker freezes."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT set_config('lock_timeout', %s, true),"
            " set_config('idle_in_transaction_session_timeout', %s, true)",
            [f"{LOCK_WAIT_MS}ms", f"{max(1, round(settings.LUTHIER_LEASE_S))}s"],
        )


def _note_restart(job: Job) -> None:
    """Append an event if the learners that ran last failed or were lost. Attempts that never ran do not count; one
    that ended before it was seen running has an exit code."""
    exited = Learner.objects.filter(job=job, attempt=OuterRef("n"), exit_code__isnull=False)
    earlier = Attempt.objects.filter(job=job, n__lt=job.attempt)
    before = earlier.filter(Q(processing_at__isnull=False) | Exists(exited)).order_by("-n").first()
    if before is None or before.outcome not in EARLY_ENDS:
        return
    count = f"; {job.restarts_used} of {job.max_restarts} restarts used" if job.max_restarts else ""
    events.append(
        job_id=job.pk,
        tenant_id=job.tenant_id,
        code=EventCode.LEARNER_RESTARTED,
        attempt=job.attempt,
        reason=before.outcome,
        message=f"The learners run again after attempt {before.n} ended early{count}.",
        numbers={
            "after_attempt": before.n,
            "restarts_used": job.restarts_used,
            "max_restarts": job.max_restarts,
        },
        source="lifecycle",
    )


def _avoid(nodes: Collection[str], reason: Reason) -> None:
    """Mark these nodes for the next plans. Rows of nodes are locked last of all, in the order of their names."""
    until = Now() + timedelta(seconds=settings.LUTHIER_AVOID_NODE_S)
    for name in sorted(nodes):
        ClusterNode.objects.filter(name=name).update(avoid_until=until, avoid_reason=reason.message[:500])
    transaction.on_commit(pubsub.cluster_changed, robust=True)


def leave_queue(job_ids: Collection[str]) -> dict[str, Job]:
    """QUEUED to DEPLOYING, with the number of the next attempt and of its event, inside admission's transaction. By
    their ids; none if any of them no longer waits. A worker that holds a lease on one gets StaleJob at its next write.
    """
    waiting = Job.objects.filter(pk__in=job_ids, state=State.QUEUED, intent=Intent.RUN, deleted_at=None)
    moved = waiting.update(
        state=State.DEPLOYING,
        attempt=F("attempt") + 1,
        event_seq=F("event_seq") + 1,
        reason_code="deploying",
        reason_message=BEING_STARTED,
        growth=None,
        reason_numbers={},
        stop_reason="",
        stop_at=None,
        start_after=None,
        lease_owner="",
        lease_token=None,
        lease_until=None,
        settled=False,
        next_reconcile_at=Now(),
    )
    if moved < len(job_ids):
        return {}
    return Job.objects.select_related("resume_from").in_bulk(job_ids)


@retry_on_serialization_failure
def note_launched(rows: JobRows, lease: Lease) -> None:
    """Record that the cluster accepted the gang. Raises StaleJob."""
    with transaction.atomic():
        _swap(rows, lease, {})
        Attempt.objects.filter(job=rows.job, n=rows.job.attempt, held=True).update(launched_at=Now())
        fp("launch.before_commit")


@retry_on_serialization_failure
def note_all_launched(together: Sequence[tuple[JobRows, Lease]]) -> None:
    """Record that the cluster accepted the gangs of all these jobs, or of none. Raises StaleJob, also if a job's row is
    locked."""
    with transaction.atomic():
        _lock_leased(together)
        jobs = [rows.job for rows, _ in together]
        pairs: list[Any] = [[job.pk for job in jobs], [job.attempt for job in jobs]]
        with connection.cursor() as cursor:
            cursor.execute(LAUNCHED, pairs)
        fp("launch.before_commit")


def note_alive(all_rows: Sequence[JobRows]) -> None:
    """Record now and then that the learners of these attempts were observed alive. Late or repeated calls are harmless:
    the newest timestamp remains. So is one that finds a row locked: the next one will not."""
    due = {
        rows.attempt.pk: rows.now
        for rows in all_rows
        if rows.attempt and rows.now - (rows.attempt.known_at or rows.attempt.opened_at) >= NOTED_EVERY
    }
    values: list[Any] = [list(due), list(due.values()), list(due)]
    if due:
        with connection.cursor() as cursor:
            cursor.execute(ALIVE, values)


def note_lock(rows: JobRows, lease: Lease, lock: Sequence[str]) -> None:
    """Keep the versions that were first chosen for the job's packages, empty if none of these applies: every later
    attempt and clone uses them.

    An event lists them. Raises StaleJob.
    """
    job = rows.job
    if job.packages.get("lock"):
        return
    chosen = {**job.packages, "lock": list(lock)}
    use = "Later attempts use the same versions" if job.attempt else "Its attempts use these versions"
    with transaction.atomic():
        _swap(rows, lease, {"packages": chosen})
        if lock:
            message = f"Packages chosen: {versions_chosen(chosen)}. {use}"
            _append_condition(rows, Reason("packages_chosen", message, {"packages": list(lock)}))


@retry_on_serialization_failure
def note_images(rows: JobRows, lease: Lease, learners: Sequence[LearnerReport]) -> None:
    """Keep which images the attempt's learners run, as the cluster comes to know it. Raises StaleJob.

    An event says where that is not what the attempt before ran, or not the same for all: a tag can be moved.
    """
    attempt = rows.attempt
    seen = {learner.image_digest for learner in learners if learner.image_digest}
    if attempt is None or seen <= set(attempt.image_digests):
        return
    image = next(learner.image for learner in learners if learner.image_digest)[:500]
    digests = sorted(seen.union(attempt.image_digests))
    with transaction.atomic():
        _swap(rows, lease, {})
        Attempt.objects.filter(pk=attempt.pk, held=True).update(image=image, image_digests=digests)
        numbers: dict[str, Any] = {"image": image, "digests": digests}
        if len(digests) > 1:
            text = f"The nodes name different digests of image {image}: {', '.join(digests)}"
            _append_condition(rows, Reason("images_differ", text, numbers))
        earlier = Attempt.objects.filter(job=rows.job, n__lt=attempt.n, image=image).exclude(image_digests=[])
        before = earlier.order_by("-n").first()
        if before is not None and not set(digests) <= set(before.image_digests):
            was = ", ".join(before.image_digests)
            text = f"Image {image} is {', '.join(digests)}; in attempt {before.n} it was {was}"
            numbers |= {"before": before.image_digests, "attempt_before": before.n}
            _append_condition(rows, Reason("image_changed", text, numbers))
    attempt.image, attempt.image_digests = image, digests


@retry_on_serialization_failure
def note_reports(seen: Sequence[tuple[JobRows, JobObservation]]) -> None:
    """Keep the cluster's reports on learners that ended or that it is ending for a reason, before they are gone with
    their gangs, with what was printed before their programs began. Repeats are harmless. Of several jobs no row is
    waited for: raises StaleJob if one is locked, and each is to be noted alone."""
    shown, printed = [], []
    for rows, observation in seen:
        learners = {one.rank: one for one in observation.learners if one.end_shown}
        for row in rows.learners:
            if (one := learners.get(row.rank)) is not None and (report := one.report) is not None:
                if not one.processes_ended and row.cluster_phase and row.cluster_uid == report.uid:
                    continue  # its end was shown before
                phase = report.phase.value if one.processes_ended else ""
                reason = {"reason": report.reason.value} if report.reason is not None else {}
                details = json.dumps(dict(report.numbers) | reason)
                shown.append((row.pk, report.uid, phase, report.exit_code, report.message, details))
                if report.output:
                    printed.append((row, report.output))
    if shown:
        statement = REPORTS.format(locked="SKIP LOCKED" if len(seen) > 1 else "")
        with connection.cursor() as cursor:
            cursor.execute(statement, [*map(list, zip(*shown, strict=True))])
            if len(seen) > 1 and cursor.rowcount < len(shown):
                raise StaleJob("a learner's row is locked")
    for row, output in printed:
        preparation_log.store(row, output)


def note_reason(rows: JobRows, lease: Lease, reason: Reason) -> None:
    """Show people what the job waits for, without a move. Raises StaleJob.

    A node's preparations are an event, too: one per attempt, not one for each step of their progress.
    """
    shown = rows.observation.reason
    if (shown.code, shown.message) == (reason.code, reason.message):
        return
    with transaction.atomic():
        _swap(rows, lease, _reason_fields(reason))
        job = rows.job
        if reason.code == PREPARING and _append_condition(rows, reason):
            return
        transaction.on_commit(partial(pubsub.job_changed, job.pk, job.tenant_id, job.event_seq), robust=True)


def note_condition(rows: JobRows, lease: Lease, reason: Reason) -> None:
    """Append an event about the live attempt, once per reason code. Raises StaleJob."""
    with transaction.atomic():
        _swap(rows, lease, {})
        _append_condition(rows, reason)


def _append_condition(rows: JobRows, reason: Reason) -> bool:
    """True if it was the first of its code; the caller's transaction has the job's row locked."""
    job = rows.job
    if JobEvent.objects.filter(job=job, attempt=job.attempt, reason=reason.code).exists():
        return False
    events.append(
        job_id=job.pk,
        tenant_id=job.tenant_id,
        code=EventCode.CONDITION,
        attempt=job.attempt,
        reason=reason.code,
        message=f"{reason.message.rstrip('.')}.",
        numbers=dict(reason.numbers),
        source="lifecycle",
    )
    return True


def _swap(rows: JobRows, lease: Lease, fields: dict[str, Any]) -> None:
    row = Job.objects.filter(
        pk=rows.job.pk, state=rows.observation.state, attempt=rows.job.attempt, lease_token=lease.token
    )
    if row.update(fence=F("fence"), **fields) != 1:  # update() needs a field; note_launched changes none
        raise StaleJob(rows.job.pk)


def _fields(rows: JobRows, move: Move, reason: Reason) -> dict[str, Any]:
    fields: dict[str, Any] = {"state": move.to, **_reason_fields(reason)}
    if move.to == State.STOPPING:
        fields |= {"stop_reason": move.stop_reason, "stop_at": Now()}
    if move.to in PROGRAM_FINISHED or (move.to == State.STOPPING and move.stop_reason not in BY_ORDER):
        fields |= NO_ORDER  # the job ends for another reason: the order is void
    if move.learners is not None:
        fields["learners"] = move.learners
    if move.to == State.PROCESSING:
        fields["started_at"] = Coalesce("started_at", Now())
    if move.to in FINAL:
        fields["finished_at"] = Now()
    if move.to == State.QUEUED:
        fields |= _queue_fields(rows, move)
    if move.to == State.HALTED:
        fields["last_halt"] = dict(reason.numbers)
    return fields


def _queue_fields(rows: JobRows, move: Move) -> dict[str, Any]:
    """A restart keeps its place in the queue; a resume takes a new one."""
    if rows.observation.state == State.HALTED:
        return {"queued_at": Now(), "start_after": None, "early_ends": 0, "agent_losses": 0}
    return {
        "restarts_used": F("restarts_used") + int(move.charged),
        "start_after": _in(move.wait_s) if move.wait_s else None,
        "early_ends": move.early_ends,
        "agent_losses": F("agent_losses") + 1 if move.agents_lost else 0,
    }


def _in(seconds: float) -> datetime:
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp() + make_interval(secs => %s)", [seconds])
        return cursor.fetchone()[0]


def _with_receipt(rows: JobRows, move: Move) -> Reason:
    if move.to != State.HALTED:
        return move.reason
    receipt = halt_receipt(rows)
    message = halt_message(move.reason.message, receipt, reported_step(rows.job.pk))
    return Reason(move.reason.code, message, {**move.reason.numbers, **receipt})


def _with_loss(rows: JobRows, reason: Reason) -> Reason:
    """Of a job that stopped by order, once its attempt is closed: what that cost."""
    with connection.cursor() as cursor:
        cursor.execute(LOST, [rows.job.pk, rows.job.attempt])
        (lost,) = cursor.fetchone()
    slot_type = rows.attempt.slot_type if rows.attempt else CPU_TYPE
    words = f"It lost {slot_time(lost, slot_type)} of work" if lost else "It lost no work"
    message = f"{reason.message.rstrip('.')}. {words}."
    return Reason(reason.code, message, {**reason.numbers, "lost": lost})


def _with_restart(job: Job, reason: Reason) -> Reason:
    """Of a job that was stopped by order before: what it took to start it again."""
    before = Attempt.objects.filter(job=job, n=job.attempt - 1, outcome__in=BY_ORDER)
    now = Attempt.objects.filter(job=job, n=job.attempt, held=True).first() if before.exists() else None
    if now is None or now.processing_at is None:
        return reason
    # By the database's clock, which may have been set back between the two.
    took_s = max(0.0, (now.processing_at - now.opened_at).total_seconds())
    took = round(took_s * now.slots * now.learners, 3)
    message = f"{reason.message.rstrip('.')}. The restart took {slot_time(took, now.slot_type)}."
    return Reason(reason.code, message, {**reason.numbers, "restart_lost": took})


def _return_slots(all_rows: Sequence[JobRows], move: Move) -> dict[str, dict[str, Any]]:
    """Close the attempts and release their slots to the quotas of their tenants: once, because only a held one closes.
    The event to append for each job."""
    first = all_rows[0]
    outcome = move.to.value if move.to != State.QUEUED else first.observation.stop_reason
    keys = {rows.job.pk: rows for rows in all_rows}
    attempts = [rows.job.attempt for rows in all_rows]
    until = [rows.counts_until for rows in all_rows]
    with connection.cursor() as cursor:
        cursor.execute(CLOSE_ATTEMPTS, [outcome, move.reason.message, list(keys), attempts, until])
        closed = {
            job: (slot_type, slots, float(held_s), float(counted_s), opportunistic)
            for job, slot_type, slots, held_s, counted_s, opportunistic in cursor.fetchall()
        }
        if missing := keys.keys() - closed.keys():
            raise StaleJob(min(missing))
        fp("move.after_attempt_closed")
        jobs: Counter[int] = Counter()
        released: Counter[tuple[int, str]] = Counter()
        for job, (slot_type, slots, *_, opportunistic) in closed.items():
            if not opportunistic:
                jobs[keys[job].job.tenant_id] += 1
                released[keys[job].job.tenant_id, slot_type] += slots
        if released:
            cursor.execute(RETURN_QUOTA, [*map(list, zip(*released, strict=True)), list(released.values())])
        fp("move.after_quota_returned")
        if jobs:
            cursor.execute(RETURN_JOBS, [list(jobs), list(jobs.values())])
        charged = [closed[job][1] * closed[job][3] for job in keys]
        ran = [
            ran_s(rows.attempt.processing_at if rows.attempt else None, rows.counts_until)
            for rows in all_rows
        ]
        cursor.execute(CHARGE, [list(keys), charged, ran])
    for tenant in {rows.job.tenant_id for rows in all_rows}:
        transaction.on_commit(partial(pubsub.quotas_changed, tenant), robust=True)
    return {job: _returned(rows, *closed[job][:-1]) for job, rows in keys.items()}


def _returned(rows: JobRows, slot_type: str, slots: int, held_s: float, counted_s: float) -> dict[str, Any]:
    """The event of an attempt whose slots were released."""
    return {
        "job_id": rows.job.pk,
        "tenant_id": rows.job.tenant_id,
        "code": EventCode.GPUS_RETURNED,
        "attempt": rows.job.attempt,
        "message": f"Released {devices(slots, slot_type)} after {duration(held_s)}.{_uncounted(held_s, counted_s)}",
        "numbers": {
            "slots": slots,
            "slot_type": slot_type,
            "seconds": round(held_s, 1),
            "counted_seconds": round(counted_s, 1),
        },
        "source": "lifecycle",
    }


def _uncounted(held_s: float, counted_s: float) -> str:
    """Shown only where it matters, such as after a night in which the platform was off."""
    if held_s - counted_s <= PAUSE_S:
        return ""
    return f" Only {duration(counted_s)} is charged; contact was lost after that."


def _reason_fields(reason: Reason) -> dict[str, Any]:
    """What the job's row says. Without a code there is nothing to say; the event of a move has its message."""
    return {
        "reason_code": reason.code,
        "reason_message": reason.message if reason.code else "",
        "reason_numbers": dict(reason.numbers),
    }
