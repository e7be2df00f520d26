"""The lifecycle's surroundings, turned by hand: time, workers, learners.

Time is the database's. It is not waited for: `elapse` moves every moment that was written down into the past.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

from django.db import connection
from django.db.models.functions import Now

from gpu_scheduler.clusters.base import EnvironmentSpec
from gpu_scheduler.clusters.memory import MemoryCluster
from gpu_scheduler.model import Node, timestamp
from gpu_scheduler.policies.fair_share import FairShare
from jobs import clusters, events, failpoints
from jobs.lifecycle import cycle, cycle_lease, leases, together
from jobs.lifecycle.decision import WAIT_WORKING_S
from jobs.lifecycle.facts import NODE_SILENT
from jobs.models import Checkpoint, Job, Learner, Progress, SchedulerState
from jobs.states import EventCode, Intent, Phase, State
from tenants.models import Tenant, User
from tests import factories

TIMESTAMPS = {
    "jobs_job": (
        "intent_at",
        "stop_at",
        "queued_at",
        "start_after",
        "lease_until",
        "next_reconcile_at",
    ),
    "jobs_attempt": ("opened_at", "launched_at", "processing_at", "known_at"),
    "jobs_learner": ("halt_seen_at", "exited_at", "done_at", "last_seen_at", "stored_at"),
    "jobs_checkpoint": ("created_at", "committed_at"),
    "jobs_periodictask": ("next_at",),
    "jobs_schedulinglease": ("until",),
    "jobs_worker": ("seen_at",),
    "jobs_estimate": ("soonest", "latest", "made_at", "first_soonest", "first_latest", "first_at"),
}
SETTLES = 40
LOOK_S = WAIT_WORKING_S + 1
"""After so many seconds a launched gang is looked at, although no watch reports anything in these tests."""


class ChoosingCluster(MemoryCluster):
    """It chooses versions, too. answers: what it says when it is asked, one after the other; the last one stays."""

    def __init__(self, nodes: Iterable[Node] = (), clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(nodes, clock)
        self.answers: list[tuple[str, ...] | Exception | None] = [None]
        self.asked: list[EnvironmentSpec] = []

    def choose(self, environment: EnvironmentSpec) -> tuple[str, ...] | None:
        self.asked.append(environment)
        answer = self.answers.pop(0) if self.answers[1:] else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


class World:
    """One tenant, its alice, a cluster, and any number of workers by name."""

    def __init__(self, build: Callable[[Callable[[], float]], ChoosingCluster]) -> None:
        self.now = 1000.0
        self.cluster = build(lambda: self.now)
        self.tenant: Tenant = factories.tenant(quotas={"cpu": 8})
        self.alice: User = factories.member(self.tenant)

    # Time and workers

    def elapse(self, seconds: float) -> None:
        """Let time pass for rows and cluster alike."""
        self.now += seconds
        with connection.cursor() as cursor:
            for table, columns in TIMESTAMPS.items():
                sets = ", ".join(f"{column} = {column} - make_interval(secs => %s)" for column in columns)
                where = "WHERE closed_at IS NULL" if table == "jobs_attempt" else ""
                cursor.execute(f"UPDATE {table} SET {sets} {where}", [seconds] * len(columns))
        for job in Job.objects.filter(reason_code=NODE_SILENT):
            said = datetime.fromisoformat(job.reason_numbers["since"]) - timedelta(seconds=seconds)
            Job.objects.filter(pk=job.pk).update(
                reason_numbers=job.reason_numbers | {"since": timestamp(said)}
            )
        for row in SchedulerState.objects.filter(policy=FairShare.name):
            since = {job: datetime.fromisoformat(at) for job, at in row.state.items()}
            row.state = {job: (at - timedelta(seconds=seconds)).isoformat() for job, at in since.items()}
            row.save()

    def tick(self, worker: str = "w1") -> int:
        """One look of a worker at everything due, and at the queue. How many jobs it looked at."""
        count, wants = reconcile_due(worker)
        started = cycle.run(request=wants)
        hold_all(leases.claim_all(started, worker))
        return count

    def settle(self, worker: str = "w1") -> None:
        """Tick until nothing is due any more."""
        for _ in range(SETTLES):
            if not self.tick(worker):
                return
        raise AssertionError("the lifecycle does not come to rest")

    # Jobs

    def submit(self, **fields: Any) -> Job:
        return factories.job(owner=self.alice, of=self.tenant, **fields)

    def request(self, job: Job, intent: Intent) -> None:
        """As services write it, without their rules."""
        Job.objects.filter(pk=job.pk).update(
            intent=intent,
            intent_gen=job_of(job).intent_gen + 1,
            intent_at=Now(),
            settled=False,
            next_reconcile_at=Now(),
        )
        events.append(
            source="user",
            job_id=job.pk,
            tenant_id=job.tenant_id,
            code=EventCode.REQUESTED,
            numbers={"intent": intent.value, "generation": job_of(job).intent_gen},
        )

    def running(self, **fields: Any) -> Job:
        """A job whose learners all run the program."""
        job = self.submit(**fields)
        self.settle()
        self.report(job, phase=Phase.PROCESSING)
        self.settle()
        assert state(job) == State.PROCESSING
        return job

    # What learners do

    def report(self, job: Job, rank: int | None = None, **fields: Any) -> None:
        """The learners of the live attempt (or one of them) report these fields, and notify the lifecycle."""
        rows = Learner.objects.filter(job=job, attempt=job_of(job).attempt)
        rows = rows if rank is None else rows.filter(rank=rank)
        rows.update(last_seen_at=Now(), **fields)
        Job.objects.filter(pk=job.pk, settled=False).update(next_reconcile_at=Now())

    def step(self, job: Job, step: int) -> None:
        Progress.objects.filter(job=job).update(step=step)

    def exit(self, job: Job, code: int = 0, *, halted: bool = False, rank: int | None = None) -> None:
        """The programs end, their shippers live on."""
        self.report(job, rank, phase=Phase.EXITED, exited_at=Now(), exit_code=code, halted=halted)

    def done(self, job: Job, rank: int | None = None) -> None:
        """The shippers have sent everything and end."""
        self.report(job, rank, phase=Phase.DONE, done_at=Now(), log_sealed=True)
        for learner in Learner.objects.filter(job=job, attempt=job_of(job).attempt):
            if rank in (None, learner.rank):
                self.cluster.exit(gang(job), learner.rank, learner.exit_code or 0)

    def save_and_leave(self, job: Job, step: int) -> None:
        """It saves, ends as it was asked to, and everything follows."""
        self.save(job, step)
        self.exit(job, halted=True)
        self.done(job)
        self.settle()

    def save(self, job: Job, step: int) -> Checkpoint:
        return factories.checkpoint(job_of(job), step=step)


def job_of(job: Job) -> Job:
    return Job.objects.get(pk=job.pk)


def state(job: Job) -> State:
    return State(job_of(job).state)


def is_rfc3339(text: str) -> bool:
    """Whether a time has the form of all times that leave the platform."""
    return text == timestamp(datetime.fromisoformat(text))


def gang(job: Job) -> str:
    return f"job-{job.pk}-{job_of(job).attempt}"


def used(tenant: Tenant, slot_type: str = "cpu") -> int:
    return tenant.quotas.get(gpu_type=slot_type).used


def last_move(job: Job) -> Any:
    return job.events.filter(code=EventCode.MOVED).latest("n")


def moves(job: Job) -> list[str]:
    """The states that it moved to, in their order."""
    return [event.to_state for event in job.events.exclude(to_state="").order_by("n")]


@contextmanager
def two_nodes() -> Iterator[World]:
    """A world of two nodes of four CPU slots, one tenant with eight, alice in it; its cluster is the lifecycle's."""
    made = World(
        lambda clock: ChoosingCluster(
            [Node.with_slots("node-a", "cpu", 4), Node.with_slots("node-b", "cpu", 4)], clock=clock
        )
    )
    clusters.use(made.cluster)
    try:
        yield made
    finally:
        failpoints.arm(None)
        clusters.use(None)


def one_pass() -> list[str]:
    """One pass of the scheduling cycle, whether one is due or not."""
    with cycle_lease.held() as token:
        assert token is not None
        return cycle.one_pass(token)


def reconcile_due(worker: str = "w1") -> tuple[int, bool]:
    """What a worker's ticker does with due jobs, in this thread: (how many, whether the scheduling cycle must run)."""
    held = leases.claim_due(worker, 32)
    return len(held), hold_all(held)


def hold_all(held: Sequence[leases.Lease]) -> bool:
    """As a worker's ticker does, in this thread, however long that takes."""
    wants_cycle, left = together.bring_on(held)
    wants = [together.hold_alone(lease) for lease in left]
    return wants_cycle or any(wants)
