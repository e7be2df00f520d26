"""Which learner of an attempt failed first, and why: its exit code, the cluster's report and the end of its log."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from gpu_scheduler.clusters.base import EndReason
from jobs.diagnosis import LOOK, MORE_MEMORY, Diagnosis, FailureCause, diagnose
from jobs.log_levels import ESCAPES
from jobs.models import Job, JobEvent, Learner
from jobs.selectors import logs
from jobs.states import BY_ORDER, State, StopReason

READ = 16
"""Most learners of which the log is read; those that failed first."""
STOPPED_CODES = (137, 143)
"""How a program ends that the platform stops because another learner failed."""
NO_FAILURES = BY_ORDER | {
    StopReason.PLATFORM_STOPPED,
    StopReason.HALT_REQUESTED,
    StopReason.CANCEL_REQUESTED,
}
"""Reasons to stop an attempt that nothing went wrong in."""
LATEST = datetime.max.replace(tzinfo=UTC)
NEVER_BEGAN = frozenset({EndReason.DEPLOY_FAILED, EndReason.IMAGE_ERROR, EndReason.NOT_PREPARED})
"""Ends before any process of a learner ran."""
WITHOUT_LOG = NEVER_BEGAN | {StopReason.DEPLOY_TIMEOUT, StopReason.SECRET_MISSING}
"""Reasons of jobs whose program never began: its packages, its image or its secrets were not there."""


@dataclass(frozen=True, slots=True)
class Failure:
    """The learner that made its attempt fail, its exit code, and why."""

    learner: Learner
    code: int
    diagnosis: Diagnosis


def exit_code_of(learner: Learner) -> int | None:
    """The cluster's report has precedence over the learner's own, which a program could forge.

    Not where the platform stopped what was left of a learner whose program had ended.
    """
    own, shown = learner.exit_code, learner.cluster_exit_code
    return own if shown is None or (own and shown in STOPPED_CODES) else shown


def first_exit(learners: Iterable[Learner]) -> datetime | None:
    """When the first learner failed by itself; None if none reported it."""
    exits = (row.exited_at for row in learners if exit_code_of(row) and not row.halted and row.exited_at)
    return min(exits, default=None)


def was_stopped(learner: Learner, first: datetime | None) -> bool:
    """True if the platform stopped it after another learner of its attempt had failed. first: when the first failed."""
    if first is None or exit_code_of(learner) not in STOPPED_CODES:
        return False
    return learner.exited_at is None or first < learner.exited_at


def first_failure(learners: Sequence[Learner]) -> Failure | None:
    """The first learner that failed by itself; None if none has an exit code that says so. At most two queries.

    A learner that lost another one is named only if no other failed: its end follows from theirs.
    """
    failed = [row for row in learners if exit_code_of(row) and not row.halted]
    first = first_exit(failed)
    failed.sort(key=lambda row: (was_stopped(row, first), row.exited_at or LATEST, row.rank))
    failed = failed[:READ]
    ends = logs.read_ends([(row.job_id, row.attempt, row.rank) for row in failed], LOOK)
    found = [_failure(row, ends, learners=len(learners)) for row in failed]
    return next((one for one in found if not _follows(one, first)), found[0] if found else None)


def _follows(failure: Failure, first: datetime | None) -> bool:
    """True if it may be only the consequence of another learner's end."""
    return failure.diagnosis.cause is FailureCause.PEER_LOST or was_stopped(failure.learner, first)


def last_failures(jobs: Iterable[Job]) -> dict[str, JobEvent]:
    """Of each job that restarted after a failure, the event that says why an attempt failed last. One query."""
    events = JobEvent.objects.filter(
        job__in=[job.pk for job in jobs], from_state=State.STOPPING, to_state__in=[State.QUEUED, State.FAILED]
    ).exclude(reason__in=NO_FAILURES)
    return {event.job_id: event for event in events.order_by("job", "-n").distinct("job")}


def _failure(row: Learner, ends: dict[logs.Stream, list[logs.LogLine]], *, learners: int) -> Failure:
    code = exit_code_of(row)
    assert code
    lines = [
        (line.n, ESCAPES.sub("", line.text)) for line in ends.get((row.job_id, row.attempt, row.rank), [])
    ]
    diagnosis = diagnose(code, lines, learners=learners)
    if row.failure_details.get("reason") == FailureCause.OUT_OF_MEMORY:
        diagnosis = _out_of_memory(row, diagnosis)
    return Failure(row, code, diagnosis)


def _out_of_memory(row: Learner, by_log: Diagnosis) -> Diagnosis:
    """The cluster measured it, so the log need not say so."""
    used, limit = (row.failure_details.get(name) for name in ("peak_memory_mib", "memory_limit_mib"))
    known = f"used {used} MiB of memory; its limit is {limit} MiB" if used and limit else "ran out of memory"
    return replace(
        by_log,
        cause=FailureCause.OUT_OF_MEMORY,
        did=f"{known}. It was killed",
        remedy=MORE_MEMORY,
        said=False,
    )
