"""Jobs that are due at once are read and moved together, and each fares as it would alone: one that is broken, locked,
taken over or newly requested costs the others nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from django.db import OperationalError, connection
from django.db.models.functions import Now
from django.test.utils import CaptureQueriesContext

from gpu_scheduler.clusters.base import ClusterBusy
from gpu_scheduler.model import Node
from jobs import clusters, failpoints, invariants
from jobs.lifecycle import leases, observation, reconcile, together, transitions
from jobs.lifecycle.decision import WAIT_WORKING_S, Decision, Move, decide
from jobs.lifecycle.facts import JobObservation, Reason
from jobs.models import Attempt, Job
from jobs.selectors.snapshot import database_now
from jobs.services import job_halt
from jobs.states import EventCode, Intent, Phase, State, StopReason
from tests import factories
from tests.jobs.lifecycle.locks import JOB, QUOTAS, locked
from tests.jobs.lifecycle.world import (
    ChoosingCluster,
    World,
    gang,
    hold_all,
    job_of,
    one_pass,
    state,
    two_nodes,
    used,
)

COUNT = 4
VOLATILE = {"seconds", "counted_seconds", "plan", "nodes"}


@pytest.fixture(autouse=True)
def _on_a_machine_of_any_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(together, "QUICK_S", 3600.0)
    monkeypatch.setattr(together, "TURN_S", 3600.0)


def hold_as_notified(found: Sequence[leases.Lease]) -> bool:
    """As a worker that was notified of the first of these jobs does."""
    began = time.monotonic()
    wants_cycle, left = together.bring_on(found)
    return together.hold_left(left, began, shared=len(found) > 1) or wants_cycle


def life(world: World, count: int) -> list[Job]:
    """So many jobs that each go from the queue to their end, side by side."""
    jobs = deployed(world, count)
    for step in (
        lambda job: world.report(job, phase=Phase.PROCESSING),
        world.exit,
        world.done,
    ):
        for job in jobs:
            step(job)
        world.settle()
    return jobs


def deployed(world: World, count: int) -> list[Job]:
    jobs = [world.submit() for _ in range(count)]
    world.settle()
    assert {state(job) for job in jobs} == {State.DEPLOYING}
    return jobs


def history(job: Job) -> list[tuple[Any, ...]]:
    return [
        (
            *(one.n, one.code, one.from_state, one.to_state, one.attempt, one.reason, one.source),
            sorted((key, value) for key, value in one.numbers.items() if key not in VOLATILE),
        )
        for one in job.events.order_by("n")
    ]


def claimed(jobs: Sequence[Job]) -> list[leases.Lease]:
    """The leases of all of them, in their order."""
    found = {lease.job_id: lease for lease in leases.claim_all([job.pk for job in jobs], "w1")}
    return [found[job.pk] for job in jobs]


@pytest.mark.django_db
def test_jobs_that_go_together_have_the_history_of_one_that_goes_alone(world: World) -> None:
    (alone,) = life(world, 1)
    jobs = life(world, COUNT)

    assert {state(job) for job in jobs} == {State.COMPLETED}
    assert [history(job) for job in jobs] == [history(alone)] * COUNT
    assert used(world.tenant) == 0
    assert invariants.violations() == []
    fields = ("settled", "lease_token", "next_reconcile_at", "reason_code", "reason_message", "order_reason")
    expected = Job.objects.filter(pk=alone.pk).values_list(*fields).get()
    assert set(Job.objects.values_list(*fields)) == {expected}
    assert not Job.objects.filter(started_at=None) | Job.objects.filter(finished_at=None)
    assert not Attempt.objects.filter(processing_at=None) | Attempt.objects.filter(held=True)
    assert not Job.objects.filter(slot_seconds__lt=0)


@pytest.mark.django_db
def test_the_same_move_of_many_jobs_is_one_transaction(world: World) -> None:
    """Reading and moving take the same statements for four jobs as for two."""

    def statements(count: int) -> list[str]:
        jobs = deployed(world, count)
        for job in jobs:
            world.report(job, phase=Phase.PROCESSING)
        found = claimed(jobs)
        with CaptureQueriesContext(connection) as seen:
            hold_as_notified(found)
        assert {state(job) for job in jobs} == {State.PROCESSING}
        return [query["sql"] for query in seen.captured_queries]

    few, many = statements(2), statements(COUNT)

    assert len(many) == len(few)
    assert sum(sql.startswith("SAVEPOINT") for sql in many) == 2  # DOWNLOADING, then PROCESSING


@pytest.mark.django_db
def test_running_jobs_are_known_to_be_alive_by_one_statement(world: World) -> None:
    jobs = [world.running() for _ in range(COUNT)]
    world.elapse(600)
    found = claimed(jobs)
    with CaptureQueriesContext(connection) as seen:
        hold_as_notified(found)

    assert sum("known_at = " in query["sql"] for query in seen.captured_queries) == 1
    ago = [job_of(job).attempts.get().known_at for job in jobs]
    assert all(at is not None and (database_now() - at).total_seconds() < 300 for at in ago)


@pytest.mark.django_db
def test_a_failing_job_costs_the_others_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = deployed(world, COUNT)
    for job in jobs:
        world.report(job, phase=Phase.PROCESSING)

    def fails_on_one(seen: JobObservation) -> Decision:
        if seen.id == jobs[1].pk:
            raise ZeroDivisionError
        return decide(seen)

    monkeypatch.setattr(together, "decide", fails_on_one)
    monkeypatch.setattr(reconcile, "decide", fails_on_one)
    hold_as_notified(claimed(jobs))

    assert [state(job) for job in jobs] == [State.PROCESSING, State.DEPLOYING, *[State.PROCESSING] * 2]
    assert [job_of(job).fail_streak for job in jobs] == [0, 1, 0, 0]


def unreadable(job: Job, **fields: object) -> None:
    """As a later version, or a hand, may leave a row: no worker of this version can make an observation of it."""
    Job.objects.filter(pk=job.pk).update(order_reason="of_a_later_version", **fields)
    with pytest.raises(ValueError):
        observation.load(job.pk)


@pytest.mark.django_db
@pytest.mark.parametrize("hold", [hold_as_notified, hold_all])
def test_a_job_whose_row_cannot_be_read_is_backed_off_and_the_others_get_on(
    world: World, hold: Callable[[Sequence[leases.Lease]], bool]
) -> None:
    jobs = deployed(world, COUNT)
    for job in jobs:
        world.report(job, phase=Phase.PROCESSING)
    unreadable(jobs[0], fail_streak=reconcile.PERSISTENT_AFTER - 1)

    hold(claimed(jobs))

    assert [state(job) for job in jobs] == [State.DEPLOYING, *[State.PROCESSING] * (COUNT - 1)]
    assert not Job.objects.exclude(lease_token=None)
    assert job_of(jobs[0]).fail_streak == reconcile.PERSISTENT_AFTER
    assert jobs[0].events.get(reason="reconcile_failing").attempt == 1
    assert jobs[0].pk not in {lease.job_id for lease in leases.claim_due("w2", 9)}


@pytest.mark.django_db
def test_an_error_in_one_jobs_turn_costs_the_others_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even one that `hold` does not catch."""
    jobs = [world.submit() for _ in range(COUNT)]
    unreadable(jobs[0])
    monkeypatch.setattr(leases, "release_later", lambda *_: 1 / 0)

    hold_as_notified(claimed(jobs))

    assert [bool(job_of(job).lease_token) for job in jobs] == [True, *[False] * (COUNT - 1)]


@pytest.mark.django_db
def test_a_connection_that_breaks_leaves_the_others_due_for_any_worker(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = [world.submit() for _ in range(COUNT)]
    unreadable(jobs[0])

    def breaks(*_: object) -> None:
        raise OperationalError("server closed the connection unexpectedly")

    found = claimed(jobs)
    with monkeypatch.context() as broken:
        broken.setattr(leases, "release_later", breaks)
        with pytest.raises(OperationalError):
            hold_as_notified(found)
    assert [bool(job_of(job).lease_token) for job in jobs] == [True, *[False] * (COUNT - 1)]

    found = claimed(jobs[1:])
    with monkeypatch.context() as broken:
        broken.setattr(together, "load_all", breaks)
        with pytest.raises(OperationalError):
            hold_as_notified(found)
    assert {lease.job_id for lease in leases.claim_due("w2", 9)} == {job.pk for job in jobs[1:]}


@pytest.mark.django_db
def test_an_error_at_the_release_leaves_the_jobs_to_be_held_alone(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = [world.submit() for _ in range(COUNT)]
    monkeypatch.setattr(leases, "release_all", lambda *_: 1 / 0)

    hold_as_notified(claimed(jobs))

    assert not Job.objects.exclude(lease_token=None)
    assert {job_of(job).fail_streak for job in jobs} == {0}


def taken_over(job: Job) -> None:
    Job.objects.filter(pk=job.pk).update(lease_token="00000000-0000-4000-8000-000000000000")


def stopping(job: Job) -> None:
    Job.objects.filter(pk=job.pk).update(state=State.STOPPING)


def started_again(job: Job) -> None:
    Job.objects.filter(pk=job.pk).update(attempt=2)


@pytest.mark.django_db
@pytest.mark.parametrize("change", [taken_over, stopping, started_again])
def test_nothing_of_a_shared_move_is_written_if_one_job_changed(
    world: World, change: Callable[[Job], None]
) -> None:
    jobs = deployed(world, COUNT)
    for job in jobs:
        world.report(job, phase=Phase.PROCESSING)
    found = claimed(jobs)
    all_rows = observation.load_all([job.pk for job in jobs])
    move = decide(reconcile.noted(all_rows[jobs[0].pk], found[0], world.cluster.observe())[1]).move
    assert move is not None
    change(jobs[-1])
    before = [history(job) for job in jobs]

    with pytest.raises(transitions.StaleJob):
        transitions.move_all([(all_rows[lease.job_id], lease) for lease in found], move)

    assert [state(job) for job in jobs[:-1]] == [State.DEPLOYING] * (COUNT - 1)
    assert [history(job) for job in jobs] == before


@pytest.mark.django_db
def test_a_job_that_was_taken_over_meanwhile_holds_no_other_up(world: World) -> None:
    jobs = deployed(world, COUNT)
    for job in jobs:
        world.report(job, phase=Phase.PROCESSING)
    found = claimed(jobs)
    taken_over(jobs[0])

    hold_as_notified(found)

    assert [state(job) for job in jobs] == [State.DEPLOYING, *[State.PROCESSING] * (COUNT - 1)]


@pytest.mark.django_db
@pytest.mark.parametrize("hold", [hold_as_notified, hold_all])
def test_nothing_is_asked_of_the_cluster_for_a_job_whose_lease_was_lost(
    world: World, hold: Callable[[Sequence[leases.Lease]], bool]
) -> None:
    jobs = [world.running() for _ in range(2)]
    for job in jobs:
        world.request(job, Intent.CANCEL)
    Job.objects.update(state=State.STOPPING, stop_reason=StopReason.CANCEL_REQUESTED, stop_at=Now())
    found = claimed(jobs)
    taken_over(jobs[0])
    world.cluster.calls.clear()

    hold(found)

    assert {named for verb, named in world.cluster.calls if verb == "stop"} == {gang(jobs[1])}


@pytest.mark.django_db
def test_a_halt_that_comes_during_the_turn_is_carried_out(world: World) -> None:
    """Its lease is not settled away: the newer intent is seen in the same turn or makes the job due."""
    jobs = [world.submit() for _ in range(COUNT)]
    found = claimed(jobs)
    asked: list[str] = []

    def halt(point: str) -> None:
        if point == "reconcile.before_release" and not asked:
            asked.append(point)
            world.request(jobs[0], Intent.CANCEL)

    failpoints.arm(halt)
    hold_as_notified(found)
    failpoints.arm(None)
    world.settle()

    assert asked
    assert state(jobs[0]) == State.CANCELED
    assert {state(job) for job in jobs[1:]} == {State.DEPLOYING}


@pytest.mark.django_db
def test_learners_that_run_again_say_so(world: World) -> None:
    jobs = [world.running(max_restarts=1) for _ in range(2)]
    for job in jobs:
        world.exit(job, 1)
        world.done(job)
    world.settle()
    world.elapse(60)
    world.settle()
    for job in jobs:
        world.report(job, phase=Phase.PROCESSING)
    world.settle()

    assert {state(job) for job in jobs} == {State.PROCESSING}
    assert all(job.events.filter(code=EventCode.LEARNER_RESTARTED).exists() for job in jobs)


def commits(seen: CaptureQueriesContext) -> int:
    """How many transactions there were: each is a savepoint of the test's own."""
    return sum(query["sql"].startswith("SAVEPOINT") for query in seen.captured_queries)


@pytest.mark.django_db
def test_launches_are_noted_in_one_transaction(world: World) -> None:
    def launch(count: int) -> CaptureQueriesContext:
        jobs = [world.submit() for _ in range(count)]
        one_pass()
        found = claimed(jobs)
        with CaptureQueriesContext(connection) as seen:
            hold_as_notified(found)
        assert not Attempt.objects.filter(held=True, launched_at=None)
        return seen

    assert commits(launch(2)) == commits(launch(COUNT)) == 1


@pytest.mark.django_db
@pytest.mark.parametrize("count", [1, COUNT])
def test_a_gang_that_was_just_launched_is_not_looked_at_before_something_of_it_changes(
    world: World, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """Its cluster cannot show more than it has just accepted. What it says of itself says no longer why it waited."""
    jobs = [world.submit() for _ in range(count)]
    one_pass()
    Job.objects.update(reason_code="cluster_busy", reason_message="Waiting for the cluster.")
    looks: list[Sequence[str] | None] = []
    observe = world.cluster.observe
    monkeypatch.setattr(world.cluster, "observe", lambda names=None: looks.append(names) or observe(names))

    hold_as_notified(claimed(jobs))

    assert not Attempt.objects.filter(held=True, launched_at=None)
    assert looks == []
    assert {job_of(job).reason_code for job in jobs} == {"deploying"}
    now = database_now()
    assert all(0 < (job_of(job).next_reconcile_at - now).total_seconds() <= WAIT_WORKING_S for job in jobs)
    assert not leases.claim_due("w2", 9)
    for job in jobs:
        world.cluster.exit(gang(job), 0, 3)
    leases.make_due([job.pk for job in jobs])
    world.settle()
    assert State.DEPLOYING not in {state(job) for job in jobs}


@pytest.mark.django_db
@pytest.mark.parametrize("count", [1, COUNT])
def test_a_halt_that_comes_during_a_launch_is_carried_out_in_the_same_turn(world: World, count: int) -> None:
    """Its hint finds the job leased, and no other follows."""
    jobs = [world.submit() for _ in range(count)]
    one_pass()
    found = claimed(jobs)

    def halt(moment: str, verb: str, _: str) -> None:
        if (moment, verb) == ("after", "launch"):
            world.cluster.hook = lambda *_: None
            job_halt(user=jobs[0].owner, job_id=jobs[0].pk)

    world.cluster.hook = halt
    hold_as_notified(found)

    assert state(jobs[0]) == State.STOPPING
    assert [state(job) for job in jobs[1:]] == [State.DEPLOYING] * (count - 1)


@pytest.mark.django_db
def test_a_worker_that_dies_before_launches_are_noted_launches_the_same_gangs_again(world: World) -> None:
    jobs = [world.submit() for _ in range(COUNT)]
    one_pass()
    found = claimed(jobs)

    def die(point: str) -> None:
        if point == "launch.before_commit":
            raise KeyboardInterrupt

    failpoints.arm(die)
    with pytest.raises(KeyboardInterrupt):
        hold_as_notified(found)
    failpoints.arm(None)
    assert Attempt.objects.filter(held=True, launched_at=None).count() == COUNT
    world.elapse(60)
    world.settle()

    assert not Attempt.objects.filter(held=True, launched_at=None)
    assert {state(job) for job in jobs} == {State.DEPLOYING}
    assert {attempt.n for attempt in Attempt.objects.all()} == {1}
    assert set(world.cluster.observe().gangs) == {gang(job) for job in jobs}


@pytest.mark.django_db
def test_a_job_that_was_taken_over_after_its_launch_costs_the_others_nothing(world: World) -> None:
    jobs = [world.submit() for _ in range(COUNT)]
    one_pass()
    found = claimed(jobs)

    def take_over(point: str) -> None:
        if point == "launch.after_cluster":
            taken_over(jobs[0])

    failpoints.arm(take_over)
    hold_as_notified(found)
    failpoints.arm(None)

    noted = Attempt.objects.exclude(launched_at=None).values_list("job", flat=True)
    assert set(noted) == {job.pk for job in jobs[1:]}


def of_tenants(world: World, count: int) -> list[Job]:
    """A job of each of so many tenants, about to complete."""
    jobs = [world.submit()]
    for number in range(count - 1):
        other = factories.tenant(f"other-{number}-{Job.objects.count()}", quotas={"cpu": 8})
        jobs.append(factories.job(of=other))
    world.settle()
    for step in (lambda job: world.report(job, phase=Phase.PROCESSING), world.exit):
        for job in jobs:
            step(job)
        world.settle()
    assert {state(job) for job in jobs} == {State.STORING}
    for job in jobs:
        world.done(job)
    return jobs


@pytest.mark.django_db
def test_jobs_of_many_tenants_return_their_slots_in_one_transaction(world: World) -> None:
    def complete(count: int) -> CaptureQueriesContext:
        jobs = of_tenants(world, count)
        found = claimed(jobs)
        with CaptureQueriesContext(connection) as seen:
            hold_as_notified(found)
        assert {state(job) for job in jobs} == {State.COMPLETED}
        assert all(used(job.tenant) == job.tenant.jobs_used == 0 for job in map(job_of, jobs))
        return seen

    assert commits(complete(2)) == commits(complete(COUNT)) == 1
    assert invariants.violations() == []


@pytest.mark.django_db(transaction=True)
def test_a_locked_tenant_keeps_no_others_jobs_from_completing() -> None:
    with two_nodes() as world:
        jobs = of_tenants(world, 2)
        found = claimed(jobs)
        with locked(QUOTAS, jobs[0].tenant.pk):
            _, left = together.bring_on(found)

        assert {lease.job_id for lease in left} == {job.pk for job in jobs}
        for lease in left:
            reconcile.hold(lease)
        assert {state(job) for job in jobs} == {State.COMPLETED}
        assert invariants.violations() == []


@pytest.mark.django_db
@pytest.mark.parametrize(
    "more",
    [{"avoid": ("node-a",)}, {"learners": 2}, {"charged": True}, {"stop_reason": StopReason.NODE_LOST}],
)
def test_a_move_that_says_more_than_where_and_why_is_made_alone(world: World, more: dict[str, Any]) -> None:
    jobs = deployed(world, 2)
    all_rows = observation.load_all([job.pk for job in jobs])
    move = Move(State.DOWNLOADING, Reason("downloading", ""))
    found = [(all_rows[lease.job_id], lease) for lease in claimed(jobs)]

    assert transitions.may_share(found[0][0], move)
    assert not transitions.may_share(found[0][0], replace(move, **more))
    with pytest.raises(AssertionError):
        transitions.move_all(found, replace(move, **more))


@pytest.mark.django_db
def test_a_busy_cluster_is_said_of_every_job(world: World) -> None:
    jobs = deployed(world, COUNT)
    for job in jobs:
        world.report(job, phase=Phase.PROCESSING)
    world.cluster.fail_next("observe", ClusterBusy("It has much to do."), times=1 + COUNT)

    hold_as_notified(claimed(jobs))

    assert {job_of(job).reason_code for job in jobs} == {"cluster_busy"}
    assert not Job.objects.exclude(lease_token=None)


@pytest.mark.django_db
def test_on_a_slow_cluster_the_others_are_due_for_any_worker(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(together, "QUICK_S", -1.0)
    monkeypatch.setattr(together, "TURN_S", -1.0)
    jobs = [world.running() for _ in range(COUNT)]
    for job in jobs:
        world.request(job, Intent.CANCEL)
    Job.objects.update(fail_streak=3)
    hold_as_notified(claimed(jobs))

    assert [state(job) for job in jobs] == [State.STOPPING, *[State.PROCESSING] * (COUNT - 1)]
    assert {lease.job_id for lease in leases.claim_due("w2", 9)} >= {job.pk for job in jobs[1:]}
    assert {job_of(job).fail_streak for job in jobs[1:]} == {3}


@pytest.mark.django_db
def test_a_notified_job_takes_others_that_are_due_along(world: World) -> None:
    jobs = deployed(world, COUNT)
    for job in jobs:
        world.report(job, phase=Phase.PROCESSING)

    together.reconcile_due(jobs[2].pk, owner="w1")

    assert {state(job) for job in jobs} == {State.PROCESSING}
    assert not together.reconcile_due("gone", owner="w1")


@pytest.mark.django_db
def test_a_job_that_was_notified_for_others_and_is_already_taken_does_not_keep_them(world: World) -> None:
    """One is notified for many that are due."""
    jobs = deployed(world, COUNT)
    for job in jobs:
        world.report(job, phase=Phase.PROCESSING)
    assert leases.claim(jobs[0].pk, "w2")

    together.reconcile_due(jobs[0].pk, owner="w1")

    assert [state(job) for job in jobs] == [State.DEPLOYING, *[State.PROCESSING] * (COUNT - 1)]


@pytest.mark.django_db
def test_a_notified_job_waits_for_the_turn_of_others_but_not_for_long(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that are notified meanwhile have the next turn together; a slow cluster keeps none of them."""
    job = world.submit()
    monkeypatch.setattr(together, "GATHER_S", 0.01)
    with together._turn:
        together.reconcile_due(job.pk, owner="w1")
    assert job_of(job).next_reconcile_at > job.next_reconcile_at
    assert not together._turn.locked()


@pytest.mark.django_db
def test_a_notified_job_that_goes_on_alone_does_not_wait_for_what_the_others_need_of_the_cluster(
    world: World,
) -> None:
    halted = world.running()
    others = [world.submit() for _ in range(COUNT)]
    assert set(one_pass()) == {job.pk for job in others}
    world.request(halted, Intent.CANCEL)
    world.cluster.calls.clear()

    together.reconcile_due(halted.pk, owner="w1")

    stops_and_launches = [call for call in world.cluster.calls if call[0] in ("stop", "launch")]
    assert stops_and_launches[0] == ("stop", gang(halted))
    assert sorted(stops_and_launches[1:]) == sorted(("launch", gang(job)) for job in others)
    assert not Job.objects.exclude(lease_token=None)


@pytest.mark.django_db
def test_a_job_that_is_done_is_released_before_the_cluster_is_called_for_others(world: World) -> None:
    done = world.running()
    others = [world.submit() for _ in range(COUNT)]
    one_pass()
    held: list[bool] = []

    def look(point: str) -> None:
        if point == "launch.before_cluster":
            held.append(job_of(done).lease_token is not None)

    failpoints.arm(look)
    hold_as_notified(claimed([done, *others]))

    assert held == [False] * COUNT


@pytest.mark.django_db(transaction=True)
def test_a_locked_row_is_not_waited_for_by_the_others() -> None:
    """The move and the release of the others are done while one job's row is locked by another transaction."""
    with two_nodes() as world:
        jobs = deployed(world, COUNT)
        for job in jobs:
            world.report(job, phase=Phase.PROCESSING)
        found = claimed(jobs)
        with locked(JOB, jobs[0].pk):
            wants_cycle, left = together.bring_on(found)

        assert jobs[0].pk in {lease.job_id for lease in left}
        assert state(jobs[0]) == State.DEPLOYING
        assert not wants_cycle
        for lease in left:
            reconcile.hold(lease)
        assert {state(job) for job in jobs} == {State.PROCESSING}


@pytest.mark.django_db
def test_jobs_of_two_slot_types_return_each_its_own() -> None:
    world = World(
        lambda clock: ChoosingCluster(
            [Node.with_slots("node-a", "cpu", 4), Node.with_slots("node-b", "a100", 4)], clock=clock
        )
    )
    clusters.use(world.cluster)
    try:
        world.tenant.quotas.create(gpu_type="a100", limit=4)
        jobs = [world.submit(), world.submit(), *(world.submit(gpus=1, gpu_type="a100") for _ in range(2))]
        world.settle()
        assert used(world.tenant) == used(world.tenant, "a100") == 2
        for step in (lambda job: world.report(job, phase=Phase.PROCESSING), world.exit, world.done):
            for job in jobs:
                step(job)
            world.settle()
    finally:
        clusters.use(None)

    assert {state(job) for job in jobs} == {State.COMPLETED}
    assert used(world.tenant) == used(world.tenant, "a100") == 0
    assert invariants.violations() == []
