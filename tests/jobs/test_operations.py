"""A process killed between any two effects of what people, learners and periodic do: done again, it happened once."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import transaction
from django.test import TestCase, override_settings

from gpu_scheduler.model import Node
from jobs import blobs, clusters, failpoints, invariants
from jobs.models import Runtime
from tests.jobs.lifecycle.children import Served, in_child
from tests.jobs.lifecycle.points import OPERATION_POINTS
from tests.jobs.lifecycle.world import ChoosingCluster, World
from tests.jobs.lock_order import one_lock_order
from tests.jobs.operations import OPERATIONS, Operation, store_agrees

NOW = timedelta(0)


def new_world() -> World:
    world = World(lambda clock: ChoosingCluster([Node.with_slots("node-a", "cpu", 4)], clock=clock))
    clusters.use(world.cluster)
    Runtime.objects.get_or_create(slug="sklearn", defaults={"title": "scikit-learn"})
    return world


@pytest.fixture
def served_world(transactional_db: None, settings: Any, tmp_path: Path) -> Iterator[tuple[World, Served]]:
    """A world that children reach, with a store of its own: the sweep here spares nothing for its youth."""
    settings.LUTHIER_DATA = tmp_path
    world = new_world()
    served = Served(world.cluster)
    yield world, served
    served.close()
    clusters.use(None)


@pytest.fixture(scope="module")
def passed_by(
    django_db_setup: None, django_db_blocker: Any, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Operation]:
    """For each point an operation that passes it, found by doing them all once and forgetting it."""
    found: dict[str, Operation] = {}
    folder = tmp_path_factory.mktemp("operations")
    with django_db_blocker.unblock(), override_settings(LUTHIER_DATA=folder):
        for operation in OPERATIONS:
            with transaction.atomic():
                with TestCase.captureOnCommitCallbacks(execute=True):
                    do, _ = operation(new_world())
                passed: set[str] = set()
                failpoints.arm(passed.add)
                with TestCase.captureOnCommitCallbacks(execute=True):
                    do()
                failpoints.arm(None)
                transaction.set_rollback(True)
            found = dict.fromkeys(passed, operation) | found
        clusters.use(None)
    return found


@pytest.mark.django_db
def test_every_failpoint_outside_the_lifecycle_is_passed_by_some_operation(
    passed_by: dict[str, Operation],
) -> None:
    assert set(OPERATION_POINTS) - set(passed_by) == set()


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.__name__)
def test_what_is_asked_for_twice_is_done_once(
    served_world: tuple[World, Served], operation: Operation
) -> None:
    world, _ = served_world
    do, check = operation(world)
    for _ in range(2):
        with one_lock_order():
            do()
        blobs.sweep(NOW)
        blobs.sweep_keys(NOW)
        check()
    assert store_agrees()
    assert invariants.violations() == []


@pytest.mark.fault
@pytest.mark.parametrize("point", OPERATION_POINTS)
def test_what_was_killed_there_is_done_again_and_once(
    served_world: tuple[World, Served], passed_by: dict[str, Operation], point: str
) -> None:
    world, served = served_world
    do, check = passed_by[point](world)
    assert in_child(do, served, kill_at=point), "it was not killed"
    assert invariants.violations() == []
    assert not in_child(do, served)
    blobs.sweep(NOW)
    blobs.sweep_keys(NOW)
    check()
    assert store_agrees()
    assert invariants.violations() == []
