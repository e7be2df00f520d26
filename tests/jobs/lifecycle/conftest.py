"""A cluster in memory, a clock that is turned by hand, and hands for what learners would do."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gpu_scheduler.clusters.memory import MemoryCluster
from gpu_scheduler.model import Node
from jobs import failpoints
from jobs.lifecycle import cluster as clusters
from tests.jobs.lifecycle.world import World


@pytest.fixture
def world(db: None) -> Iterator[World]:
    """Two nodes of four CPU slots, one tenant with eight, alice in it."""
    made = World(
        lambda clock: MemoryCluster([Node("node-a", "cpu", 4), Node("node-b", "cpu", 4)], clock=clock)
    )
    clusters.use(made.cluster)
    yield made
    failpoints.arm(None)
    clusters.use(None)
