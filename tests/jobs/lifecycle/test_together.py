"""Jobs that are due at once are read and moved together, and each fares as it would alone."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from gpu_scheduler.model import Node
from jobs import clusters, invariants
from jobs.lifecycle import observation, transitions
from jobs.lifecycle.decision import decide, moves_ahead
from jobs.lifecycle.facts import Move, Reason
from jobs.models import Attempt, Job, Learner
from jobs.selectors.snapshot import database_now
from jobs.states import PROGRESS, EventCode, Intent, Phase, State, StopReason
from tests.jobs.lifecycle.side_by_side import (
    COUNT,
    claimed,
    commits,
    delivered,
    deployed,
    ended_unseen,
    history,
    hold_as_notified,
    of_tenants,
)
from tests.jobs.lifecycle.world import ChoosingCluster, World, job_of, state, used

pytestmark = pytest.mark.usefixtures("on_a_machine_of_any_speed")


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
    assert sum(sql.startswith("SAVEPOINT") for sql in many) == 1  # DOWNLOADING, then PROCESSING, in one


@pytest.mark.django_db
def test_jobs_that_are_looked_at_late_make_all_their_moves_in_one_transaction(world: World) -> None:
    found = claimed(ended_unseen(world, COUNT))
    with CaptureQueriesContext(connection) as seen:
        hold_as_notified(found)

    assert set(Job.objects.values_list("state", flat=True)) == {State.STORING}
    assert commits(seen) == 1
    reads = [query["sql"] for query in seen.captured_queries if query["sql"].startswith("SELECT")]
    assert sum("FROM jobs_learner" in sql for sql in reads) == 2, reads  # before the moves and after them


@pytest.mark.django_db
def test_jobs_that_are_looked_at_late_have_the_history_of_one_that_goes_alone(world: World) -> None:
    def late(count: int) -> list[Job]:
        jobs = ended_unseen(world, count)
        world.settle()
        for job in jobs:
            world.done(job)
        world.settle()
        return jobs

    (alone,) = late(1)
    jobs = late(COUNT)

    assert {state(job) for job in jobs} == {State.COMPLETED}
    assert [history(job) for job in jobs] == [history(alone)] * COUNT
    moves = [(one.from_state, one.to_state) for one in alone.events.order_by("n") if one.to_state]
    assert moves[1:] == [("QUEUED", "DEPLOYING"), *pairwise(PROGRESS)]
    assert not Job.objects.filter(started_at=None)
    assert not Attempt.objects.filter(processing_at=None)
    assert used(world.tenant) == 0
    assert invariants.violations() == []


@pytest.mark.django_db
def test_learners_that_run_again_make_no_shared_move_to_say_so(world: World) -> None:
    """A later attempt makes the moves alone that may have more to say."""
    jobs = ended_unseen(world, 2)
    Attempt.objects.update(n=2)
    Learner.objects.update(attempt=2)
    Job.objects.update(attempt=2)
    all_rows = observation.load_all([job.pk for job in jobs])
    found = [all_rows[job.pk] for job in jobs]
    first = decide(replace(found[0].observation, observed=False)).move
    assert first is not None
    ahead = moves_ahead(found[0].observation, first)

    assert [move.to for move in ahead] == [State.DOWNLOADING, State.PROCESSING, State.STORING]
    assert [transitions.may_share(found[0], move) for move in ahead] == [True, False, True]


@pytest.mark.django_db
def test_the_reports_of_ended_gangs_are_noted_by_one_statement(world: World) -> None:
    def remove(count: int) -> list[str]:
        jobs = delivered(world, count)
        found = claimed(jobs)
        with CaptureQueriesContext(connection) as seen:
            hold_as_notified(found)
        assert {state(job) for job in jobs} == {State.COMPLETED}
        shown = Learner.objects.filter(job__in=jobs).values_list("cluster_phase", "cluster_exit_code")
        assert list(shown) == [("SUCCEEDED", 0)] * count
        return [query["sql"] for query in seen.captured_queries if "UPDATE jobs_learner" in query["sql"]]

    assert len(remove(2)) == len(remove(COUNT)) == 1


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("intent", "then", "ends"),
    [(Intent.HALT, State.STORING, State.COMPLETED), (Intent.CANCEL, State.STOPPING, State.CANCELED)],
)
def test_what_is_requested_between_the_look_and_the_moves_is_carried_out_from_the_state_that_was_reached(
    world: World, monkeypatch: pytest.MonkeyPatch, intent: Intent, then: State, ends: State
) -> None:
    """As if it had come then: a job that has finished is stored although it was to halt."""
    jobs = ended_unseen(world, 2)
    move_all = transitions.move_all

    def requested(*of: Any) -> None:
        monkeypatch.setattr(transitions, "move_all", move_all)
        world.request(jobs[0], intent)
        move_all(*of)

    monkeypatch.setattr(transitions, "move_all", requested)
    hold_as_notified(claimed(jobs))
    world.settle()

    assert jobs[0].events.filter(to_state=State.STORING).count() == 1
    assert [state(job) for job in jobs] == [then, State.STORING]
    for job in jobs:
        world.done(job)
    world.settle()
    assert [state(job) for job in jobs] == [ends, State.COMPLETED]
    assert used(world.tenant) == 0
    assert invariants.violations() == []


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
        transitions.move_all(found, [replace(move, **more)])


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
