"""Any order of intents, ticks, crashes, frozen workers, dying learners and lost nodes leaves every rule intact.

Hypothesis draws sequences over the real database and a cluster in memory; the rules of jobs.invariants are checked
after each step. At the end the faults stop, and everything must come to rest where its owners asked.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from django.db import connection, transaction
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from gpu_scheduler.clusters.base import ENDED, ClusterBusy
from gpu_scheduler.model import Node, Resize, Stop
from jobs import clusters, failpoints, invariants
from jobs.errors import JobError
from jobs.lifecycle import periodic, plan_effects, together
from jobs.models import Attempt, Checkpoint, Job, JobEvent, Learner, PeriodicTask, Progress
from jobs.services import answer_once, job_cancel, job_halt, job_resume
from jobs.states import FINAL, HOLDS_GPUS, Intent, Phase, State
from tenants.models import Quota, Tenant
from tests import factories
from tests.jobs.lifecycle.points import OUTSIDE, POINTS
from tests.jobs.lifecycle.world import ChoosingCluster, World

LONG = bool(os.environ.get("LUTHIER_LONG"))
SEQUENCES, STEPS = (5_000 if LONG else 60), 25
PLAYED, SWEPT_AFTER = itertools.count(1), 25  # sequences
GROWING = (Job, JobEvent, Attempt, Learner, Progress, Checkpoint, PeriodicTask, Tenant, Quota)
WORKERS = st.sampled_from(["w1", "w2", "w3"])
NUMBERS = st.integers(0, 7)
PHASES = list(Phase)


class Crash(BaseException):
    """The worker dies here, as far as one process can play that: nothing of it runs any more."""


class Lifecycle(RuleBasedStateMachine):
    """One installation. A crash drops the worker's stack; a freeze lets the others go on in the midst of it."""

    def __init__(self) -> None:
        super().__init__()
        self.outer = transaction.atomic()
        self.outer.__enter__()
        with connection.cursor() as cursor:
            cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
        nodes = [Node.with_slots("node-a", "cpu", 4), Node.with_slots("node-b", "cpu", 4)]
        self.world = World(lambda clock: ChoosingCluster(nodes, clock=clock))
        self.cluster = self.world.cluster
        self.cluster.stops_in_s = 3
        clusters.use(self.cluster)
        self.jobs: list[str] = []
        self.finals: dict[str, str] = {}

    def teardown(self) -> None:
        failpoints.arm(None)
        try:
            self.heal()
        finally:
            transaction.set_rollback(True)
            self.outer.__exit__(None, None, None)
            clusters.use(None)
            self.sweep()

    @staticmethod
    def sweep() -> None:
        """What was rolled back is still in the tables, and each check of the rules reads all of it."""
        if next(PLAYED) % SWEPT_AFTER == 0:
            with connection.cursor() as cursor:
                cursor.execute(f"VACUUM {', '.join(model._meta.db_table for model in GROWING)}")

    # People

    @initialize(learners=st.integers(1, 3), max_restarts=st.integers(0, 2))
    def first_jobs(self, learners: int, max_restarts: int) -> None:
        """One job runs already, one is new."""
        self.submit(learners, 1, max_restarts)
        self.bring_to_run(0)
        self.submit(1, 2, 1)

    @rule(
        learners=st.integers(1, 3),
        slots=st.integers(1, 2),
        max_restarts=st.integers(0, 2),
        opportunistic=st.booleans(),
    )
    def submit(self, learners: int, slots: int, max_restarts: int, opportunistic: bool = False) -> None:
        if len(self.jobs) < 8:
            job = self.world.submit(
                learners=learners,
                slots=slots,
                max_restarts=max_restarts,
                grace_s=10,
                opportunistic=opportunistic,
            )
            self.jobs.append(job.pk)

    @rule(key=st.sampled_from(["k1", "k2"]))
    def submit_twice(self, key: str) -> None:
        """The same request again is the same job."""

        def work() -> tuple[int, dict[str, Any]]:
            return 201, {"id": self.world.submit().pk}

        answers = [
            answer_once(user=self.world.alice, key=key, request_sha256="a" * 64, work=work) for _ in range(2)
        ]
        assert answers[0] == answers[1]
        if answers[0][1]["id"] not in self.jobs:
            self.jobs.append(answers[0][1]["id"])

    @rule(which=NUMBERS, verb=st.sampled_from([job_halt, job_halt, job_resume, job_cancel]))
    def request(self, which: int, verb: Any) -> None:
        with suppress(JobError):
            verb(user=self.world.alice, job_id=self.pick(which))

    @rule(which=NUMBERS, learners=st.integers(0, 3), behind=st.integers(0, 1))
    def order(self, which: int, learners: int, behind: int) -> None:
        """The scheduler stops a job (0 learners) or resizes it; sometimes it decided before the newest request."""
        job = Job.objects.get(pk=self.pick(which))
        generation = job.intent_gen - behind
        stop = Stop(job.pk, "preempted", self.pick(which + 1), generation)
        plan_effects.write_orders([Resize(job.pk, learners, generation) if learners else stop])

    @rule(limit=st.integers(0, 8))
    def set_limit(self, limit: int) -> None:
        Quota.objects.filter(tenant=self.world.tenant).update(limit=limit)

    # Workers

    @rule(worker=WORKERS)
    def tick(self, worker: str) -> None:
        self.world.tick(worker)

    @rule(worker=WORKERS, which=NUMBERS)
    def hint(self, worker: str, which: int) -> None:
        """A hint, early, late or doubled, with or without a cause."""
        for _ in range(2):
            together.reconcile_due(self.pick(which), owner=worker)

    @rule(seconds=st.sampled_from([0.5, 2, 12, 70, 400]))
    def elapse(self, seconds: float) -> None:
        self.world.elapse(seconds)

    @rule(worker=WORKERS, point=st.sampled_from(POINTS), skip=st.integers(0, 2))
    def crash(self, worker: str, point: str, skip: int) -> None:
        """The worker is killed at the skip-th passing of this point. Its lease and its half-done work stay."""
        passed = 0

        def die(name: str) -> None:
            nonlocal passed
            if name == point:
                passed += 1
                if passed > skip:
                    raise Crash

        failpoints.arm(die)
        with suppress(Crash):
            self.world.tick(worker)
        failpoints.arm(None)

    @rule(
        worker=WORKERS, point=st.sampled_from(OUTSIDE), which=NUMBERS, intent=st.sampled_from([None, *Intent])
    )
    def freeze(self, worker: str, point: str, which: int, intent: Intent | None) -> None:
        """The worker freezes past its lease; others take over, owners change their minds; then it continues."""

        def freeze(name: str) -> None:
            if name == point:
                failpoints.arm(None)
                self.world.elapse(15)
                if intent is not None:
                    verb = {Intent.RUN: job_resume, Intent.HALT: job_halt, Intent.CANCEL: job_cancel}[intent]
                    with suppress(JobError):
                        verb(user=self.world.alice, job_id=self.pick(which))
                for _ in range(2):
                    self.world.tick("thawer")
                    self.world.elapse(8)

        failpoints.arm(freeze)
        self.world.tick(worker)
        failpoints.arm(None)

    @rule(which=NUMBERS)
    def bring_to_run(self, which: int) -> None:
        """All goes well for a while: the scheduler looks and the learners start their program."""
        self.world.tick("w1")
        for row in self.live(which).filter(exited_at=None):
            self.world.report(row.job, row.rank, phase=Phase.PROCESSING)
        self.world.tick("w1")

    @rule()
    def do_periodic_tasks(self) -> None:
        periodic.run_due()

    # Learners and nodes

    @rule(which=NUMBERS, rank=st.integers(0, 2), steps=st.integers(1, 3))
    def advance(self, which: int, rank: int, steps: int) -> None:
        """A learner gets further, as far as the program's start."""
        for row in self.live(which).filter(rank=rank, exited_at=None):
            phase = PHASES[min(PHASES.index(Phase(row.phase)) + steps, PHASES.index(Phase.PROCESSING))]
            self.world.report(row.job, rank, phase=phase)

    @rule(which=NUMBERS, rank=st.integers(0, 2), code=st.sampled_from([0, 0, 0, 1]), mark=st.booleans())
    def leave(self, which: int, rank: int, code: int, mark: bool) -> None:
        """A program ends; if a halt was requested, it had reached it."""
        for row in self.live(which).filter(rank=rank, phase=Phase.PROCESSING):
            halted = row.job.intent != Intent.RUN or row.job.state == State.STOPPING
            fields = {"phase": Phase.EXITED, "exited_at": row.job.created_at, "exit_code": code}
            self.world.report(row.job, rank, **fields, halted=halted, finished_mark=mark)

    @rule(which=NUMBERS)
    def finish_shipping(self, which: int) -> None:
        for row in self.live(which).exclude(exited_at=None):
            self.world.done(row.job, row.rank)

    @rule(which=NUMBERS, rank=st.integers(0, 2), how=st.sampled_from(["die", "out_of_memory", "vanish"]))
    def lose_learner(self, which: int, rank: int, how: str) -> None:
        job = Job.objects.get(pk=self.pick(which))
        name = f"job-{job.pk}-{job.attempt}"
        if how == "vanish":
            self.cluster.vanish(name)
            if not job.attempts.filter(n=job.attempt, launched_at__isnull=False).exists():
                # No worker knows that it was made and nothing shows it: making it again is right.
                for made in [made for made in self.cluster.created if made[0] == name]:
                    del self.cluster.created[made]
        else:
            getattr(self.cluster, how)(name, rank)

    @rule(node=st.sampled_from(["node-a", "node-b"]), survived=st.booleans(), up=st.booleans())
    def flip_node(self, node: str, survived: bool, up: bool) -> None:
        if up:
            self.cluster.node_up(node, learners_survived=survived)
        else:
            self.cluster.node_down(node)

    @rule(
        verb=st.sampled_from(["nodes", "launch", "observe", "stop", "remove"]),
        how=st.sampled_from(["fail_next", "fail_after", "lose_next"]),
        times=st.integers(1, 3),
    )
    def trouble_cluster(self, verb: str, how: str, times: int) -> None:
        if how == "lose_next":
            if verb in ("stop", "remove"):
                self.cluster.lose_next(verb, times=times)
        else:
            getattr(self.cluster, how)(verb, ClusterBusy("scripted"), times=times)

    @precondition(lambda self: self.jobs)
    @rule(which=NUMBERS, step=st.integers(1, 100), corrupt=st.booleans())
    def save(self, which: int, step: int, corrupt: bool) -> None:
        job = Job.objects.get(pk=self.pick(which))
        if job.state not in HOLDS_GPUS:
            return
        held = job.checkpoints.filter(attempt=job.attempt, step=step)
        if not held.exists():
            factories.checkpoint(job, step=step)
        if corrupt:
            held.update(state=Checkpoint.State.CORRUPT)

    # What must hold

    @invariant()
    def rules_hold(self) -> None:
        assert invariants.violations() == []

    @invariant()
    def no_learner_was_ever_made_twice(self) -> None:
        assert all(count == 1 for count in self.cluster.created.values())

    @invariant()
    def nothing_is_admitted_above_what_a_node_has(self) -> None:
        assert all(used <= 4 for used in self.cluster.slots_used().values())

    @invariant()
    def final_states_stay(self) -> None:
        for pk, state in Job.objects.filter(state__in=FINAL).values_list("pk", "state"):
            assert self.finals.setdefault(pk, state) == state

    # The end of all faults

    def heal(self) -> None:
        """Faults stop, learners behave: every job comes to rest where its owners asked, and nothing is left."""
        self.cluster.fail_next("nodes", ClusterBusy("last"), times=0)
        for script in self.cluster._scripts.values():
            script.before.clear()
            script.after.clear()
            script.lost = 0
        for node in ("node-a", "node-b"):
            self.cluster.node_up(node, learners_survived=True)
        Quota.objects.filter(tenant=self.world.tenant).update(limit=8)
        for _ in range(60):
            self.behave()
            self.world.elapse(31)
            periodic.run_due()
            self.world.tick("healer")
            if self.at_rest():
                break
        assert self.at_rest(), list(self.restless())
        self.rules_hold()
        assert Quota.objects.get(tenant=self.world.tenant).used == 0
        assert not self.cluster.listing()

    def behave(self) -> None:
        """Learners that live do what is asked of them: run to their end, or save and leave."""
        shown = self.cluster.listing()
        for job in Job.objects.filter(state__in=HOLDS_GPUS):
            gang = shown.get(f"job-{job.pk}-{job.attempt}")
            if gang is None:
                continue
            for learner in gang.learners:
                if learner.phase in ENDED:
                    continue
                halted = job.intent != Intent.RUN or job.state == State.STOPPING
                if job.state in (State.PROCESSING, State.STORING, State.STOPPING):
                    fields = {"exited_at": job.created_at, "exit_code": 0}
                    rows = Learner.objects.filter(
                        job=job, attempt=job.attempt, rank=learner.rank, exited_at=None
                    )
                    rows.update(phase=Phase.EXITED, halted=halted, **fields)
                    self.world.done(job, learner.rank)
                else:
                    self.world.report(job, learner.rank, phase=Phase.PROCESSING)

    def restless(self) -> Iterator[tuple[str, ...]]:
        for job in Job.objects.all():
            rested = job.state in FINAL or (job.intent == Intent.HALT and job.state == State.HALTED)
            if not (rested and job.settled):
                yield job.pk, job.state, job.intent, job.stop_reason, job.reason_message

    def at_rest(self) -> bool:
        return not any(self.restless()) and not self.cluster.listing()

    def pick(self, which: int) -> str:
        return self.jobs[which % len(self.jobs)]

    def live(self, which: int) -> Any:
        """The learners of the job's live attempt whose processes exist on a node that answers."""
        job = Job.objects.get(pk=self.pick(which))
        gang = self.cluster.listing().get(f"job-{job.pk}-{job.attempt}")
        ranks = [learner.rank for learner in gang.learners if learner.phase not in ENDED] if gang else []
        rows = Learner.objects.select_related("job").filter(job=job, attempt=job.attempt, rank__in=ranks)
        return rows if job.state in HOLDS_GPUS else rows.none()


@pytest.mark.fault
@pytest.mark.timeout(7200)
@pytest.mark.django_db(transaction=True)
def test_no_order_of_events_breaks_a_rule() -> None:
    run(SEQUENCES)


@pytest.mark.timeout(600)
@pytest.mark.django_db(transaction=True)
def test_a_few_orders_of_events_break_no_rule() -> None:
    """The same, short enough for every day."""
    run(20)


def run(sequences: int) -> None:
    run_state_machine_as_test(
        Lifecycle,
        settings=settings(
            max_examples=sequences,
            stateful_step_count=STEPS,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            print_blob=True,
        ),
    )
