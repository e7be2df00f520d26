"""Whole walks of jobs on a driver that is slow, often fails, and shows what is no longer true."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from jobs import clusters
from jobs.models import Job
from jobs.states import Intent, Phase, State
from tests.gpu_scheduler.clusters.slow import SlowCluster
from tests.jobs.lifecycle.world import World, job_of, state, used

ROUNDS = 40


@pytest.fixture(params=[True, False], ids=["says not found", "never says not found"])
def slow(world: World, request: pytest.FixtureRequest) -> World:
    clusters.use(SlowCluster(world.cluster, says_not_found=request.param))
    return world


def until(world: World, job: Job, wanted: State, also: Callable[[], bool] = lambda: True) -> None:
    """Let time pass and workers look until the job is there, whatever fails on the way."""
    for _ in range(ROUNDS):
        if state(job) == wanted and also():
            return
        world.elapse(3)
        world.tick()
    raise AssertionError(f"{state(job)} instead of {wanted}: {job_of(job).reason_message}")


def until_it_runs(world: World, job: Job) -> None:
    until(
        world,
        job,
        State.DEPLOYING,
        lambda: job.attempts.filter(n=job_of(job).attempt, launched_at__isnull=False).exists(),
    )
    world.report(job, phase=Phase.PROCESSING)
    until(world, job, State.PROCESSING)


def test_a_job_is_submitted_halted_resumed_and_completed(slow: World) -> None:
    job = slow.submit(learners=2, grace_s=10)
    until_it_runs(slow, job)
    slow.request(job, Intent.HALT)
    until(slow, job, State.STOPPING)
    slow.save(job, 10)
    slow.exit(job, halted=True)
    slow.done(job)
    until(slow, job, State.HALTED)
    assert used(slow.tenant) == 0

    slow.request(job, Intent.RUN)
    until_it_runs(slow, job)
    slow.exit(job)
    slow.done(job)
    until(slow, job, State.COMPLETED)

    assert (used(slow.tenant), slow.cluster.listing()) == (0, {})
    assert set(slow.cluster.created.values()) == {1}, "no learner was launched twice"
    assert list(job.attempts.order_by("n").values_list("cluster", flat=True)) == ["slow", "slow"]


def test_a_job_is_canceled(slow: World) -> None:
    job = slow.submit(grace_s=10)
    until_it_runs(slow, job)
    slow.request(job, Intent.CANCEL)
    until(slow, job, State.CANCELED)
    assert (used(slow.tenant), slow.cluster.listing()) == (0, {})


def test_a_job_whose_gang_vanishes_is_started_again_and_only_then(slow: World) -> None:
    job = slow.submit()
    until_it_runs(slow, job)
    for _ in range(5):
        slow.elapse(3)
        slow.tick()
    assert (state(job), job_of(job).attempt) == (State.PROCESSING, 1)
    slow.cluster.vanish(f"job-{job.pk}-1")
    until(slow, job, State.DEPLOYING, lambda: job_of(job).attempt == 2)
    assert job_of(job).restarts_used == 0
