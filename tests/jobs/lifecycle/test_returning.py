"""Jobs that come while a run halts in order to grow start together with it: rows, cycle, orders and the cluster."""

from __future__ import annotations

import pytest

from gpu_scheduler.model import Resize
from jobs.lifecycle.plan_effects import write_orders
from jobs.models import Attempt, Job
from jobs.states import EventCode, Intent, Phase, State
from tests.jobs.lifecycle.test_elastic import elastic, start_on
from tests.jobs.lifecycle.world import World, gang, job_of, state, used

pytestmark = pytest.mark.django_db


@pytest.fixture
def growing(world: World) -> Job:
    """A run of four of eight CPUs, which has been asked to halt in order to have eight."""
    run = elastic(world, 1, 8)
    start_on(run, *["node-a"] * 4)
    world.settle()
    world.report(run, phase=Phase.PROCESSING)
    world.settle()
    assert write_orders([Resize(run.pk, 8, job_of(run).intent_gen)]) == [run.pk]
    world.settle()
    assert state(run) == State.STOPPING
    return run


def halted(world: World, run: Job) -> None:
    world.exit(run, halted=True)
    world.done(run)
    world.settle()


def sizes(*jobs: Job) -> list[int | None]:
    """With how many learners each of them runs."""
    held = dict(Attempt.objects.filter(held=True).values_list("job", "learners"))
    return [held.get(job.pk) for job in jobs]


def decided_from(job: Job) -> str:
    """The snapshot of its last start."""
    placed = job.events.filter(code=EventCode.PLACED).latest("n")
    return str(placed.numbers["plan"]["snapshot"])


def test_without_others_it_comes_back_with_the_size_that_was_ordered(world: World, growing: Job) -> None:
    halted(world, growing)
    assert (sizes(growing), used(world.tenant)) == ([8], 8)


def test_what_comes_while_a_run_halts_to_grow_starts_in_the_same_plan_as_the_run(
    world: World, growing: Job
) -> None:
    """Else it would wait until the run has started with eight, settled, and halted again."""
    late = world.submit(learners=3, slots=2)
    world.settle()
    assert (state(late), used(world.tenant)) == (State.QUEUED, 4)
    halted(world, growing)
    assert sizes(growing, late) == [2, 3]
    assert used(world.tenant) == 8, "2 and 3 of 2"
    assert decided_from(growing) == decided_from(late), "together"
    assert {state(growing), state(late)} == {State.DEPLOYING}
    assert {gang(growing), gang(late)} <= world.cluster.observe().gangs.keys()
    assert job_of(growing).restarts_used == 0
    world.report(growing, phase=Phase.PROCESSING)
    world.report(late, phase=Phase.PROCESSING)
    world.settle()
    assert {state(growing), state(late)} == {State.PROCESSING}


def test_what_comes_between_the_halt_and_the_start_starts_with_the_run(world: World, growing: Job) -> None:
    world.exit(growing, halted=True)
    world.settle()
    late = world.submit(learners=1, slots=3)
    world.done(growing)
    world.settle()
    assert sizes(growing, late) == [5, 1]


def test_what_fits_beside_the_run_only_by_its_fewest_leaves_it_these(world: World, growing: Job) -> None:
    late = [world.submit(learners=1, slots=1) for _ in range(12)]
    world.settle()
    halted(world, growing)
    started = sizes(*late)
    assert sizes(growing) == [1]
    assert (started.count(1), started.count(None), used(world.tenant)) == (7, 5, 8)


def test_a_halt_that_its_owner_asks_for_meanwhile_leaves_all_to_the_others(
    world: World, growing: Job
) -> None:
    late = world.submit(learners=3, slots=2)
    world.settle()
    world.request(growing, Intent.HALT)
    halted(world, growing)
    assert (state(growing), sizes(growing, late)) == (State.HALTED, [None, 3])
