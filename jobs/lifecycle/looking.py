"""Read one job's rows and turn them, with what the cluster shows, into facts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from django.db.models import Count, Q
from django.db.models.functions import Now

from gpu_scheduler.clusters.base import GangReport
from jobs.lifecycle.facts import JobSeen, LearnerSeen, Reason
from jobs.models import Attempt, Checkpoint, Job, Learner
from jobs.states import FINAL, HOLDS_GPUS, Intent, Phase, State


@dataclass(frozen=True)
class Loaded:
    """One job's rows as they stood at `now` (the database's clock), and the facts read out of them."""

    job: Job
    attempt: Attempt | None
    learners: Sequence[Learner]
    now: datetime
    seen: JobSeen

    @property
    def holds_gpus(self) -> bool:
        return self.seen.state in HOLDS_GPUS


def load(job_id: str) -> Loaded | None:
    """The job's rows, without a look at the cluster; None if it was purged."""
    job = Job.objects.select_related("tenant").annotate(db_now=Now()).filter(pk=job_id).first()
    if job is None:
        return None
    now: datetime = job.db_now
    if job.state not in HOLDS_GPUS:
        return Loaded(job, None, (), now, _facts(job, None, (), now))
    attempt = job.attempts.filter(n=job.attempt).first()
    learners = list(Learner.objects.filter(job=job, attempt=job.attempt).order_by("rank"))
    return Loaded(job, attempt, learners, now, _facts(job, attempt, learners, now))


def with_report(loaded: Loaded, report: GangReport | None) -> JobSeen:
    """The facts, now with what the cluster answered: None means that it has no such gang."""
    reports = {shown.rank: shown for shown in report.learners} if report else {}
    learners = tuple(replace(learner, report=reports.get(learner.rank)) for learner in loaded.seen.learners)
    return replace(loaded.seen, learners=learners, gang=report, looked=True)


def _facts(job: Job, attempt: Attempt | None, learners: Sequence[Learner], now: datetime) -> JobSeen:
    valid, corrupt = _checkpoints(job) if job.state in {State.STOPPING, State.HALTED} else (0, 0)
    return JobSeen(
        id=job.pk,
        state=State(job.state),
        intent=Intent(job.intent),
        intent_gen=job.intent_gen,
        stop_reason=job.stop_reason,
        stop_s=_since(job.stop_at, now) or 0,
        reason=Reason(job.reason_code, job.reason_message, job.reason_numbers),
        attempt=job.attempt,
        launched=attempt is not None and attempt.launched_at is not None,
        learners=tuple(_learner(learner, now) for learner in learners),
        looked=False,
        grace_s=job.grace_s,
        max_restarts=job.max_restarts,
        restarts_used=job.restarts_used,
        infra_streak=job.infra_streak,
        agent_losses=job.agent_losses,
        ran_s=_ran_s(attempt, now),
        time_left_s=_time_left_s(job, attempt, now),
        wait_s=max(0.0, (job.start_after - now).total_seconds()) if job.start_after else 0,
        has_checkpoint=valid > 0,
        corrupt_checkpoints=corrupt,
    )


def _learner(row: Learner, now: datetime) -> LearnerSeen:
    return LearnerSeen(
        rank=row.rank,
        node=row.node,
        phase=Phase(row.phase),
        exited=row.exited_at is not None,
        exit_code=row.exit_code,
        halted=row.halted,
        finished_mark=row.finished_mark,
        done=row.done_at is not None,
        error_code=row.error_code,
        message=row.message,
        gen_seen=row.gen_seen,
        silent_s=_since(row.last_seen_at, now),
        shown=row.cluster_message,
    )


def _checkpoints(job: Job) -> tuple[int, int]:
    counted = job.checkpoints.aggregate(
        valid=Count("pk", filter=Q(state=Checkpoint.State.COMMITTED)),
        corrupt=Count("pk", filter=Q(state=Checkpoint.State.CORRUPT)),
    )
    return counted["valid"], counted["corrupt"]


def _time_left_s(job: Job, attempt: Attempt | None, now: datetime) -> float | None:
    if job.time_limit_s is None or job.state in FINAL:
        return None
    return job.time_limit_s - job.running_s - _ran_s(attempt, now)


def _ran_s(attempt: Attempt | None, now: datetime) -> float:
    return (_since(attempt.processing_at, now) or 0) if attempt else 0


def _since(at: datetime | None, now: datetime) -> float | None:
    return (now - at).total_seconds() if at else None
