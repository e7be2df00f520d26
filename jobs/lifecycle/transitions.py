"""The only place that writes Job.state: one compare-and-swap, one event, and the slots, in one transaction.

Every move is guarded by the state, the attempt and the lease token that the decision was made with; when any of them
has changed, StaleJob rolls everything back and the decision is dropped. leave_queue, admission's own move, is guarded
by state and intent, and voids any lease. note_alive and note_reports are not guarded, and repeating them is harmless.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from django.conf import settings
from django.db import connection, transaction
from django.db.models import F, Q
from django.db.models.functions import Coalesce, Now

from gpu_scheduler.clusters.base import LearnerReport
from jobs import events, pubsub
from jobs.accounting import NOTED_EVERY_S, PAUSE_S, ran_s
from jobs.failpoints import fp
from jobs.humanize import devices, duration
from jobs.lifecycle import preparation_log
from jobs.lifecycle.decision import Move
from jobs.lifecycle.facts import PREPARING, JobObservation, Reason
from jobs.lifecycle.leases import Lease
from jobs.lifecycle.observation import JobRows, halt_message, halt_receipt
from jobs.models import Attempt, ClusterNode, Job, JobEvent, Learner
from jobs.retries import retry_on_serialization_failure
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

CLOSE_ATTEMPT = """
UPDATE jobs_attempt SET held = false, closed_at = clock_timestamp(), known_at = greatest(%s, opened_at),
  outcome = %s, message = %s, freed_for = (SELECT CASE WHEN order_for_job = '' AND order_learners IS NOT NULL THEN id
    ELSE order_for_job END FROM jobs_job WHERE id = job_id)
WHERE job_id = %s AND n = %s AND held
RETURNING slot_type, slots * learners, extract(epoch FROM clock_timestamp() - opened_at),
  extract(epoch FROM known_at - opened_at)
"""

NO_ORDER: dict[str, Any] = {
    "order_reason": "",
    "order_for_job": "",
    "order_learners": None,
    "order_plan": None,
}
"""The row of a job without an order. order_gen stays: the newest generation ever ordered for."""
SHOWN_PACKAGES = 20
NOTED_EVERY = timedelta(seconds=NOTED_EVERY_S)
REPORT_FIELDS = ["cluster_uid", "cluster_phase", "cluster_exit_code", "cluster_message", "failure_details"]


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
            _return_slots(rows, move)
            fp("move.after_slots_returned")
        events.append(
            job_id=job.pk,
            tenant_id=job.tenant_id,
            code=EventCode.MOVED,
            from_state=source.value,
            to_state=move.to.value,
            attempt=job.attempt,
            reason=reason.code,
            message=reason.message,
            numbers=dict(reason.numbers),
            source="lifecycle",
        )
        if move.to == State.PROCESSING:
            _note_restart(job)
        if move.avoid:
            _avoid(move.avoid, reason)
        fp("move.before_commit")


def _note_restart(job: Job) -> None:
    """Append an event if the learners that ran last failed or were lost. Attempts that never ran do not count."""
    ran = Attempt.objects.filter(job=job, n__lt=job.attempt).exclude(processing_at=None)
    before = ran.order_by("-n").first()
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


def leave_queue(job_id: str) -> Job | None:
    """QUEUED to DEPLOYING, with the number of the next attempt, inside admission's transaction. None if the job no
    longer waits. A worker that holds a lease on it gets StaleJob at its next write."""
    waiting = Job.objects.filter(pk=job_id, state=State.QUEUED, intent=Intent.RUN, deleted_at=None)
    moved = waiting.update(
        state=State.DEPLOYING,
        attempt=F("attempt") + 1,
        reason_code="deploying",
        reason_message="Its learners are being started.",
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
    return Job.objects.select_related("resume_from").get(pk=job_id) if moved else None


@retry_on_serialization_failure
def note_launched(rows: JobRows, lease: Lease) -> None:
    """Record that the cluster accepted the gang. Raises StaleJob."""
    with transaction.atomic():
        _swap(rows, lease, {})
        Attempt.objects.filter(job=rows.job, n=rows.job.attempt, held=True).update(launched_at=Now())
        fp("launch.before_commit")


def note_alive(rows: JobRows) -> None:
    """Record now and then that the attempt's learners were observed alive. Late or repeated calls are harmless: the
    newest timestamp remains."""
    attempt, job = rows.attempt, rows.job
    if attempt is None or rows.now - (attempt.known_at or attempt.opened_at) < NOTED_EVERY:
        return
    older = Q(known_at=None) | Q(known_at__lt=rows.now)
    Attempt.objects.filter(older, job=job, n=job.attempt, held=True).update(known_at=rows.now)


def _package(line: str) -> str:
    """The name in a requirement, in its one spelling."""
    return re.sub("[-_.]+", "-", re.split(r"[^\w.-]", line.strip(), maxsplit=1)[0]).lower()


def note_lock(rows: JobRows, lease: Lease, lock: Sequence[str]) -> None:
    """Keep the versions that were first chosen for the job's packages: every later attempt and clone uses them.

    An event lists them, first those that the job requests. Raises StaleJob.
    """
    job = rows.job
    if job.packages.get("lock"):
        return
    asked = {_package(line) for line in job.packages.get("requirements", ())}
    named = sorted(lock, key=lambda line: _package(line) not in asked)  # their dependencies may be dozens
    shown = ", ".join(named[:SHOWN_PACKAGES]) + (
        f" and {len(lock) - SHOWN_PACKAGES} more" if lock[SHOWN_PACKAGES:] else ""
    )
    message = f"Packages chosen: {shown}. Later attempts use the same versions"
    with transaction.atomic():
        _swap(rows, lease, {"packages": {**job.packages, "lock": list(lock)}})
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
def note_reports(rows: JobRows, observation: JobObservation) -> None:
    """Keep the cluster's report on learners that ended, before it is gone with the gang, with what was printed before
    their program began. Repeats are harmless."""
    reports = {learner.rank: learner.report for learner in observation.learners if learner.processes_ended}
    shown = []
    for row in rows.learners:
        if (report := reports.get(row.rank)) is not None:
            row.cluster_uid, row.cluster_phase = report.uid, report.phase.value
            row.cluster_exit_code, row.cluster_message = report.exit_code, report.message
            reason = {"reason": report.reason.value} if report.reason is not None else {}
            row.failure_details = dict(report.numbers) | reason
            shown.append(row)
            if report.output:
                preparation_log.store(row, report.output)
    Learner.objects.bulk_update(shown, REPORT_FIELDS)


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


def _return_slots(rows: JobRows, move: Move) -> None:
    """Close the attempt and release its slots to the tenant's quota: once, because only a held one closes."""
    job = rows.job
    with connection.cursor() as cursor:
        outcome = move.to.value if move.to != State.QUEUED else rows.observation.stop_reason
        until = rows.counts_until
        cursor.execute(CLOSE_ATTEMPT, [until, outcome, move.reason.message, job.pk, job.attempt])
        row = cursor.fetchone()
        if row is None:
            raise StaleJob(job.pk)
        slot_type, slots, held_s, counted_s = row[0], row[1], float(row[2]), float(row[3])
        fp("move.after_attempt_closed")
        cursor.execute(
            "UPDATE tenants_quota SET used = used - %s WHERE tenant_id = %s AND gpu_type = %s",
            [slots, job.tenant_id, slot_type],
        )
        fp("move.after_quota_returned")
        cursor.execute("UPDATE tenants_tenant SET jobs_used = jobs_used - 1 WHERE id = %s", [job.tenant_id])
    began = rows.attempt.processing_at if rows.attempt else None
    Job.objects.filter(pk=job.pk).update(
        slot_seconds=F("slot_seconds") + counted_s * slots,
        running_s=F("running_s") + ran_s(began, until),
        **NO_ORDER,
    )
    events.append(
        job_id=job.pk,
        tenant_id=job.tenant_id,
        code=EventCode.GPUS_RETURNED,
        attempt=job.attempt,
        message=f"Released {devices(slots, slot_type)} after {duration(held_s)}.{_uncounted(held_s, counted_s)}",
        numbers={
            "slots": slots,
            "slot_type": slot_type,
            "seconds": round(held_s, 1),
            "counted_seconds": round(counted_s, 1),
        },
        source="lifecycle",
    )
    transaction.on_commit(partial(pubsub.quotas_changed, job.tenant_id), robust=True)


def _uncounted(held_s: float, counted_s: float) -> str:
    """Shown only where it matters, such as after a night in which the platform was off."""
    if held_s - counted_s <= PAUSE_S:
        return ""
    return f" Only {duration(counted_s)} is charged; contact was lost after that."


def _reason_fields(reason: Reason) -> dict[str, Any]:
    return {
        "reason_code": reason.code,
        "reason_message": reason.message,
        "reason_numbers": dict(reason.numbers),
    }
