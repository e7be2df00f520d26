"""Read one job's rows and turn them, with what the cluster shows, into its observation; and the receipt of a halt: the
step that is saved, the steps lost, and the seconds of each phase."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import takewhile
from typing import Any

from django.conf import settings
from django.db import connection
from django.db.models import Count, Q

from gpu_scheduler.clusters.base import ENDED, EndReason, GangReport, LearnerPhase
from gpu_scheduler.model import timestamp
from jobs import clusters
from jobs.accounting import is_recent, ran_s, time_left_s
from jobs.blobs.health import StoreHealth, health
from jobs.diagnosis import FailureCause
from jobs.humanize import saved_step
from jobs.lifecycle.facts import (
    LEAVES,
    NODE_SILENT,
    JobObservation,
    LearnerObservation,
    Order,
    Reason,
    setup_failure,
)
from jobs.lifecycle.stopping import PREPARE_TRIES
from jobs.models import Attempt, Checkpoint, Job, Learner
from jobs.selectors.failures import first_failure
from jobs.selectors.requests import elastic_range
from jobs.states import FINAL, HOLDS_GPUS, OWN_FAILURES, EventCode, Intent, Phase, State, StopReason
from jobs.steps import fell_since, reported_step, steps_from_scratch
from learner_agent.wire_fields import SETUP_FAILED
from tenants.models import Tenant
from tenants.rows import Rows

JOB, TENANT = Rows(Job, "j", without={"spec_text"}), Rows(Tenant, "t")
ATTEMPT, LEARNER = Rows(Attempt, "a"), Rows(Learner, "l")
JOBS = (
    f"SELECT statement_timestamp(), {JOB.columns}, {TENANT.columns} FROM jobs_job j"
    " JOIN tenants_tenant t ON t.id = j.tenant_id WHERE j.id = ANY(%s)"
)
ATTEMPTS = f"SELECT {ATTEMPT.columns} FROM jobs_attempt a WHERE a.job_id = ANY(%s) AND a.n = ANY(%s)"
LEARNERS = (
    f"SELECT {LEARNER.columns} FROM jobs_learner l"
    " WHERE l.job_id = ANY(%s) AND l.attempt = ANY(%s) ORDER BY l.rank"
)
"""By hand, as each look at a job takes them: see docs/adr/0015-hot-statements-by-hand.md."""
NOTHING_KNOWN = StoreHealth()
STORES = frozenset({State.STORING, State.STOPPING})
"""In these states a decision may depend on the store's health."""
LOST = frozenset({StopReason.NODE_LOST, StopReason.LEARNER_LOST, StopReason.PLATFORM_STOPPED})


@dataclass(frozen=True)
class JobRows:
    """One job's rows as of `now` (the database's clock), and the observation made of them."""

    job: Job
    attempt: Attempt | None
    learners: Sequence[Learner]
    now: datetime
    known_at: datetime
    """The last heartbeat of the live attempt's learners, as jobs.accounting defines it; `now` without an attempt."""
    observation: JobObservation

    @property
    def holds_gpus(self) -> bool:
        return self.observation.state in HOLDS_GPUS

    @property
    def counts_until(self) -> datetime:
        """Until when the live attempt's time counts if it ends now."""
        return _counts_until(self.job, self.known_at, self.now)


def load(job_id: str) -> JobRows | None:
    """The job's rows, without the cluster's report; None if it was purged."""
    return load_all([job_id]).get(job_id)


def load_all(job_ids: Collection[str]) -> dict[str, JobRows]:
    """The rows of these jobs by their ids, in as many statements as of one job; without those that were purged."""
    with connection.cursor() as cursor:
        cursor.execute(JOBS, [list(job_ids)])
        found = [_job(*row) for row in cursor.fetchall()]
        live = {job.pk: job.attempt for job, _ in found if job.state in HOLDS_GPUS}
        attempts: dict[str, Attempt] = {}
        learners: defaultdict[str, list[Learner]] = defaultdict(list)
        if live:
            values: list[Any] = [list(live), sorted(set(live.values()))]
            cursor.execute(ATTEMPTS, values)
            for attempt in map(ATTEMPT.made, cursor.fetchall()):
                if attempt.n == live[attempt.job_id]:
                    attempts[attempt.job_id] = attempt
            cursor.execute(LEARNERS, values)
            for learner in map(LEARNER.made, cursor.fetchall()):
                if learner.attempt == live[learner.job_id]:
                    learners[learner.job_id].append(learner)
    store = health() if any(job.state in STORES for job, _ in found) else NOTHING_KNOWN
    return {job.pk: _rows(job, now, attempts.get(job.pk), learners[job.pk], store) for job, now in found}


def _job(now: datetime, *values: Any) -> tuple[Job, datetime]:
    """A row of JOBS."""
    job = JOB.made(values[: JOB.width])
    job.tenant = TENANT.made(values[JOB.width :])
    return job, now


def _rows(
    job: Job, now: datetime, attempt: Attempt | None, learners: Sequence[Learner], store: StoreHealth
) -> JobRows:
    known_at = _last_heartbeat(attempt, learners, now)
    seen = _observation(
        job, attempt, learners, now, known_at, store if job.state in STORES else NOTHING_KNOWN
    )
    return JobRows(job, attempt, learners, now, known_at, seen)


def with_report(rows: JobRows, report: GangReport | None) -> JobObservation:
    """The observation with the cluster's report. None: the cluster has no such gang."""
    reports = {shown.rank: shown for shown in report.learners} if report else {}
    learners = tuple(
        replace(learner, report=reports.get(learner.rank)) for learner in rows.observation.learners
    )
    observation = replace(rows.observation, learners=learners, gang=report, observed=True)
    if report is None and rows.job.stop_reason == StopReason.LEARNER_FAILED:
        observation = replace(observation, reason=_diagnosed(rows, observation.reason))
    if proves_alive(rows, report):
        observation = replace(observation, time_left_s=_time_left_s(rows.job, rows.attempt, rows.now))
    return observation


def _diagnosed(rows: JobRows, stop: Reason) -> Reason:
    """Why the attempt failed, now that its gang is gone and its log complete; until then the stop says how it ended."""
    found = first_failure(rows.learners)
    if found is None:
        return stop
    learner, why = found.learner, found.diagnosis
    numbers = {
        **stop.numbers,
        "learner": learner.rank,
        "node": learner.node,
        "exit_code": found.code,
        "cause": why.cause.value,
        "line": why.line,
        "attempt": learner.attempt,
    }
    is_memory = why.cause is FailureCause.OUT_OF_MEMORY
    measured = learner.failure_details.get("reason") == FailureCause.OUT_OF_MEMORY
    if learner.error_code == SETUP_FAILED and not measured:  # what its log says names no command
        return Reason(SETUP_FAILED, setup_failure(learner.rank, learner.node, learner.message), numbers)
    code = EndReason.OUT_OF_MEMORY.value if is_memory else StopReason.LEARNER_FAILED.value
    return Reason(code, why.sentence(learner.rank), numbers)


def proves_alive(rows: JobRows, report: GangReport | None) -> bool:
    """True if this report proves that a program may run now, or ended recently and is still uploading.

    Not after a silence: then only the agent knows when the program ended."""
    if report is None:
        return False
    if any(learner.may_run for learner in report.learners):
        return True
    ships = any(learner.phase not in {*ENDED, LearnerPhase.UNKNOWN} for learner in report.learners)
    ended = [row for row in rows.learners if row.exited_at is not None]
    return ships and is_recent(_last_heartbeat(rows.attempt, ended, rows.now), rows.now)


def _last_heartbeat(attempt: Attempt | None, learners: Sequence[Learner], now: datetime) -> datetime:
    """The newest of the cluster's and the agents' reports. An exit without a code proves nothing: no agent saw it."""
    if attempt is None:
        return now
    heartbeats = [attempt.known_at or attempt.opened_at]
    for row in learners:
        heartbeat = row.last_seen_at if row.exited_at is None else row.exited_at
        if heartbeat is not None and (row.exited_at is None or row.exit_code is not None):
            heartbeats.append(heartbeat)
    return min(now, max(heartbeats))


def _counts_until(job: Job, known_at: datetime, now: datetime) -> datetime:
    lost = job.state == State.STOPPING and job.stop_reason in LOST
    return known_at if lost or not is_recent(known_at, now) else now


def _observation(
    job: Job,
    attempt: Attempt | None,
    learners: Sequence[Learner],
    now: datetime,
    known_at: datetime,
    store: StoreHealth,
) -> JobObservation:
    canceled = job.state == State.QUEUED and job.intent == Intent.CANCEL
    counts = canceled or job.state in {State.STOPPING, State.HALTED}  # elsewhere nothing depends on them
    valid, corrupt = _checkpoints(job) if counts else (0, 0)
    return JobObservation(
        id=job.pk,
        state=State(job.state),
        intent=Intent(job.intent),
        intent_gen=job.intent_gen,
        stop_reason=job.stop_reason,
        stop_s=_since(job.stop_at, now) or 0,
        reason=Reason(job.reason_code, job.reason_message, job.reason_numbers),
        order=_order(job),
        attempt=job.attempt,
        launched=attempt is not None and attempt.launched_at is not None,
        learners=tuple(
            replace(
                _learner(learner, now, now if store.away else store.back_at),
                unanswered_s=_unanswered_s(job, learner, now),
            )
            for learner in learners
        ),
        observed=False,
        observed_at=now,
        grace_s=job.grace_s,
        max_restarts=job.max_restarts,
        worked_with=_worked_with(job, attempt, learners),
        restarts_used=job.restarts_used,
        early_ends=job.early_ends,
        not_prepared=_not_prepared(job),
        agent_losses=job.agent_losses,
        ran_s=ran_s(attempt.processing_at, now) if attempt else 0,
        time_left_s=_time_left_s(job, attempt, _counts_until(job, known_at, now)),
        wait_s=max(0.0, (job.start_after - now).total_seconds()) if job.start_after else 0,
        needs_versions=bool(job.packages.get("requirements")) and "lock" not in job.packages,
        deploy_left_s=_deploy_left_s(job, attempt, now),
        stall_limit_s=settings.LUTHIER_STORING_STALL_S,
        store_problem=store.sentence if store.problem else "",
        store_since=timestamp(store.since) if store.since else "",
        has_checkpoint=valid > 0,
        corrupt_checkpoints=corrupt,
    )


def _worked_with(job: Job, attempt: Attempt | None, learners: Sequence[Learner]) -> int | None:
    """See JobObservation.worked_with. Read only where a failure may lead there."""
    if job.state != State.STOPPING or job.stop_reason not in OWN_FAILURES or attempt is None:
        return None
    if elastic_range(job.resources) is None or any(row.last_step is not None for row in learners):
        return None
    smaller = Attempt.objects.filter(job=job, learners__lt=attempt.learners, step_s__isnull=False)
    return smaller.order_by("-learners").values_list("learners", flat=True).first()


def _deploy_left_s(job: Job, attempt: Attempt | None, now: datetime) -> float | None:
    """Counted from zero again once the cluster has accepted the gang: before, the platform may have been off."""
    starts = job.state in (State.DEPLOYING, State.DOWNLOADING)
    if not starts or attempt is None or not clusters.has_deploy_deadline(attempt.cluster):
        return None
    since = attempt.launched_at or attempt.opened_at
    left_s: float = settings.LUTHIER_DEPLOY_DEADLINE_S - (now - since).total_seconds()
    return left_s


def _order(job: Job) -> Order | None:
    """The scheduler's order. The job that it is for is named to people of the same tenant only."""
    if not job.order_reason:
        return None
    known = job.order_for_job and Job.objects.filter(pk=job.order_for_job, tenant=job.tenant_id).exists()
    plan = dict(job.order_plan or {})
    leaves = tuple(plan.pop(LEAVES, ()))
    return Order(
        StopReason(job.order_reason),
        job.order_for_job if known else "",
        job.order_learners,
        job.order_gen,
        plan or None,
        job.order_loss,
        leaves,
    )


def _learner(row: Learner, now: datetime, store_was_away: datetime | None) -> LearnerObservation:
    return LearnerObservation(
        rank=row.rank,
        node=row.node,
        phase=Phase(row.phase),
        exited=row.exited_at is not None,
        exited_s=_since(row.exited_at, now),
        exit_code=row.exit_code,
        halted=row.halted,
        finished_mark=row.finished_mark,
        delivered=row.done_at is not None,
        error_code=row.error_code,
        message=row.message,
        gen_seen=row.gen_seen,
        silent_s=_since(row.last_seen_at, now),
        stalled_s=_since(_last((row.stored_at, row.exited_at, store_was_away)), now),
        cluster_message=row.cluster_message,
    )


def _unanswered_s(job: Job, row: Learner, now: datetime) -> float | None:
    """See LearnerObservation.unanswered_s. What the job says meanwhile is the memory of it."""
    if job.state not in (State.DEPLOYING, State.DOWNLOADING) or row.last_seen_at is not None:
        return None
    said = job.reason_numbers if job.reason_code == NODE_SILENT else {}
    return _since(datetime.fromisoformat(said["since"]), now) if said.get("node") == row.node else 0.0


def _checkpoints(job: Job) -> tuple[int, int]:
    counted = job.checkpoints.aggregate(
        valid=Count("pk", filter=Q(state=Checkpoint.State.COMMITTED)),
        corrupt=Count("pk", filter=Q(state=Checkpoint.State.CORRUPT)),
    )
    return counted["valid"], counted["corrupt"]


def _not_prepared(job: Job) -> int:
    """How many attempts in a row before this one failed because a node could not prepare them. A resume starts again
    from zero."""
    if job.state != State.STOPPING or job.reason_code != EndReason.NOT_PREPARED:
        return 0
    moves = job.events.filter(code=EventCode.MOVED, from_state__in=[State.STOPPING, State.HALTED])
    reasons = moves.order_by("-n").values_list("reason", "to_state")[:PREPARE_TRIES]
    return sum(1 for _ in takewhile((EndReason.NOT_PREPARED, State.QUEUED).__eq__, reasons))


def _time_left_s(job: Job, attempt: Attempt | None, until: datetime) -> float | None:
    if job.state in FINAL:
        return None
    began = attempt.processing_at if attempt else None
    return time_left_s(job.time_limit_s, job.running_s, began, until)


def _since(at: datetime | None, now: datetime) -> float | None:
    return (now - at).total_seconds() if at else None


def halt_receipt(rows: JobRows) -> dict[str, Any]:
    """{step, steps_lost, seconds, checkpoint, parts: {seen, saved, verified, released}, learners, batch}, seconds with
    milliseconds.

    step and checkpoint are None if nothing was saved; step is also None if the program saved without stating it.
    steps_lost is None unless what was reported and what is kept are both known; a part is None if it was not observed.
    learners: with how many it ran; None: it held none. batch: what was chosen for these; None: the program's own.
    """
    job, attempt = rows.job, rows.attempt
    newest = _kept(rows)
    # A resume that came meanwhile has overwritten the time at which the halt was requested.
    asked = job.intent_at if job.intent == Intent.HALT else (job.stop_at or job.intent_at)
    fresh = newest if newest is not None and newest.committed_at and newest.committed_at >= asked else None
    seen = _last(learner.halt_seen_at for learner in rows.learners)
    saved = fresh.created_at if fresh else _last(learner.exited_at for learner in rows.learners)
    verified = fresh.committed_at if fresh else None
    return {
        "step": newest.step if newest else None,
        "steps_lost": _steps_lost(rows, newest),
        "seconds": _seconds(asked, rows.now),
        "checkpoint": newest.n if newest else None,
        "parts": _phases(asked, rows.now, seen=seen, saved=saved, verified=verified, released=rows.now),
        "learners": attempt.learners if attempt else None,
        "batch": attempt.batch if attempt else None,
    }


def _kept(rows: JobRows) -> Checkpoint | None:
    """What the attempt saved last, or, before its first save, the checkpoint from which it resumed. An earlier attempt
    may have saved a later step, if its owner went back."""
    valid = rows.job.checkpoints.filter(state=Checkpoint.State.COMMITTED).order_by(*Checkpoint.NEWEST_FIRST)
    newest, attempt = valid.first(), rows.attempt
    if attempt is None or attempt.resume_from_id is None or (newest and newest.attempt == attempt.n):
        return newest
    return valid.filter(pk=attempt.resume_from_id).first() or newest


def _phases(since: datetime, now: datetime, **marks: datetime | None) -> dict[str, float | None]:
    """Seconds of each phase, one after the other, so that they add up to the whole.

    The timestamps are those at which the server stored the learners' reports, so one may be later than the next.
    """
    phases: dict[str, float | None] = {}
    before_s = 0.0
    for phase, mark in marks.items():
        if mark is None:
            phases[phase] = None
            continue
        until_s = max(before_s, _seconds(since, min(mark, now)) or 0.0)
        phases[phase] = round(until_s - before_s, 3)
        before_s = until_s
    return phases


def halt_message(message: str, receipt: dict[str, Any], reported: int | None) -> str:
    """Why the job was halted, and what that saved, for people. reported: the last step that was."""
    n, step, lost, batch = (receipt[key] for key in ("checkpoint", "step", "steps_lost", "batch"))
    if n is None and lost is None:
        saved = "No checkpoint was saved, so a resume starts from scratch"
    elif n is None:
        saved = f"No checkpoint was saved; {_lost(lost)}"
    elif step is None:
        saved = f"Checkpoint {n}: {saved_step(None, reported)}"
    elif lost is None:
        saved = f"Checkpoint {n} has step {step:,}; how many steps are lost is unknown"
    else:
        saved = f"Checkpoint {n} has step {step:,}; {_lost(lost)}"
    # A resume may have another batch: only this one explains the losses that were reported until now.
    ran = f" It ran with {_learners(receipt['learners'])}, batch {batch:,}." if batch is not None else ""
    return f"{message.removesuffix('.')}. {saved}.{ran}"


def _learners(count: int) -> str:
    return "1 learner" if count == 1 else f"{count:,} learners"


def _lost(steps: int) -> str:
    if not steps:
        return "no steps lost"
    return "1 step lost" if steps == 1 else f"{steps:,} steps lost"


def _steps_lost(rows: JobRows, newest: Checkpoint | None) -> int | None:
    reported = reported_step(rows.job.pk)
    if _went_back(rows, newest) and all(row.last_step is None for row in rows.learners):
        # The reported steps are those of an attempt that its owner left behind.
        return None if any(row.processing_at for row in rows.learners) else 0
    if reported is None or (newest is not None and newest.step is None):
        return None
    if newest is None:
        return steps_from_scratch(rows.job.pk)
    if fell_since(newest):
        return None
    return max(0, reported - (newest.step or 0))


def _went_back(rows: JobRows, kept: Checkpoint | None) -> bool:
    """Whether its owner chose an older checkpoint than the newest to resume from."""
    if kept is None or rows.attempt is None or rows.attempt.resume_from_id != kept.pk:
        return False
    valid = rows.job.checkpoints.filter(state=Checkpoint.State.COMMITTED)
    return valid.order_by(*Checkpoint.NEWEST_FIRST).first() != kept


def _seconds(since: datetime | None, until: datetime | None) -> float | None:
    return round(max(0.0, (until - since).total_seconds()), 3) if since and until else None


def _last(timestamps: Iterable[datetime | None]) -> datetime | None:
    return max((at for at in timestamps if at is not None), default=None)
