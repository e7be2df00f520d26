"""Each attempt is observed and stopped by the driver of the cluster on which it was started."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from gpu_scheduler.clusters import registry
from gpu_scheduler.clusters.memory import MemoryCluster
from gpu_scheduler.model import Node
from jobs.models import Job
from jobs.states import State
from tests.jobs.lifecycle.world import World, gang, job_of, state


class Elsewhere(MemoryCluster):
    """A second cluster."""

    name = "elsewhere"

    @classmethod
    def connect(cls, settings: Mapping[str, str]) -> Elsewhere:
        return cls([Node.with_slots("node-a", "cpu", 4)])


def started_elsewhere(world: World, name: str) -> Job:
    """A running job whose live attempt was started on the cluster of that name."""
    job = world.running(grace_s=10)
    job.attempts.update(cluster=name)
    return job


def test_an_attempt_on_a_cluster_without_a_driver_keeps_its_state_and_says_why(world: World) -> None:
    job = started_elsewhere(world, "gone")
    world.elapse(10)
    world.settle()
    world.elapse(100)
    world.settle()

    assert state(job) == State.PROCESSING
    shown = job_of(job)
    assert shown.reason_code == "cluster_unavailable"
    assert "Attempt 1 runs on the cluster 'gone'" in shown.reason_message
    assert job.events.filter(reason="cluster_unavailable").count() == 1
    assert gang(job) in world.cluster.listing()

    job.attempts.update(cluster="memory")
    world.elapse(100)
    world.settle()
    assert state(job) == State.PROCESSING
    assert job_of(job).reason_code != "cluster_unavailable"


def test_an_attempt_is_observed_on_its_own_cluster(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.DRIVERS, "elsewhere", lambda: Elsewhere)
    job = started_elsewhere(world, "elsewhere")
    world.elapse(10)
    world.settle()

    assert state(job) == State.DEPLOYING, "its gang is gone there, so a new attempt was started"
    assert list(job.attempts.order_by("n").values_list("cluster", flat=True)) == ["elsewhere", "memory"]
