"""A worker killed between any two effects costs seconds and never a job: another one finishes what it began."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from django.db import transaction
from pytest_django import Settings

from gpu_scheduler.clusters.memory import MemoryCluster
from gpu_scheduler.model import Node
from jobs import clusters, failpoints, invariants
from jobs.lifecycle import leases
from jobs.models import Job, Worker
from jobs.states import FINAL, State
from tests.jobs.lifecycle.children import Remote, Served, in_child
from tests.jobs.lifecycle.lives import LIVES
from tests.jobs.lifecycle.points import POINTS
from tests.jobs.lifecycle.world import ChoosingCluster, World, two_nodes, used

LOOKS = 3
Life = Callable[[World, Callable[[], Any]], Iterator[Job]]


@pytest.fixture
def served_world(transactional_db: None) -> Iterator[tuple[World, Served]]:
    """The world whose cluster children reach; its database is committed to, so that they see it."""
    with two_nodes() as world:
        served = Served(world.cluster)
        yield world, served
        served.close()


def test_a_cluster_that_is_served_no_longer_leaves_no_thread_and_no_file() -> None:
    before = set(threading.enumerate())
    served = Served(MemoryCluster([]))
    assert Remote(served.address).nodes() == []
    served.close()
    assert set(threading.enumerate()) - before == set()
    assert not Path(served.address).parent.exists()


@pytest.fixture(scope="module")
def passed_by(django_db_setup: None, django_db_blocker: Any) -> dict[str, Life]:
    """For each point the shortest life that passes it, found by living them all once and forgetting it."""
    found: dict[str, Life] = {}
    with django_db_blocker.unblock(), transaction.atomic():
        for life in reversed(LIVES):  # the first of LIVES is the longest
            world = World(lambda clock: ChoosingCluster([Node.with_slots("node-a", "cpu", 4)], clock=clock))
            clusters.use(world.cluster)
            passed: set[str] = set()
            failpoints.arm(passed.add)
            for _ in life(world, partial(look_often, world)):
                passed.clear()  # what came before was another worker's
            failpoints.arm(None)
            found = dict.fromkeys(passed, life) | found
        clusters.use(None)
        transaction.set_rollback(True)
    return found


def look_often(world: World) -> None:
    for _ in range(LOOKS):
        world.tick()


@pytest.mark.django_db
def test_every_failpoint_is_passed_by_some_life(passed_by: dict[str, Life]) -> None:
    assert set(passed_by) == set(POINTS)


@pytest.mark.fault
@pytest.mark.timeout(300)
@pytest.mark.parametrize("point", POINTS)
def test_the_jobs_of_a_worker_killed_there_are_taken_over(
    served_world: tuple[World, Served], passed_by: dict[str, Life], point: str, settings: Settings
) -> None:
    world, served = served_world
    settings.LUTHIER_LEASE_S = 600  # too long to wait for: a dead worker's lease is free at once
    taken_over = False

    def tick() -> None:
        world.tick(leases.owner())

    def look() -> None:
        """One worker looks, and is killed at the point if it comes there; then others go on."""
        nonlocal taken_over
        if not taken_over and in_child(tick, served, kill_at=point):
            _forget_dead_workers()
            in_child(tick, served)
            taken_over = True
        for _ in range(LOOKS):
            tick()
        assert invariants.violations() == []

    for _ in passed_by[point](world, look):
        pass
    assert taken_over, "the worker was not killed"
    assert all(count == 1 for count in world.cluster.created.values())
    assert used(world.tenant) == 0
    assert not world.cluster.listing()
    assert all(job.state in (*FINAL, State.HALTED) for job in Job.objects.all())


def _forget_dead_workers() -> None:
    """As if WORKER_SILENT_S had passed since the worker was killed."""
    Worker.objects.all().delete()
