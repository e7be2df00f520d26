"""Each attempt is observed and stopped by the driver of the cluster on which it was started."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

import pytest

from gpu_scheduler.clusters import registry
from gpu_scheduler.clusters.memory import MemoryCluster
from gpu_scheduler.model import Node
from jobs import invariants
from jobs.lifecycle import leases, observation, transitions
from jobs.lifecycle.facts import Reason
from jobs.models import Job
from jobs.states import Intent, State
from tenants.models import Quota
from tests.jobs.lifecycle.world import World, gang, is_rfc3339, job_of, state


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
    assert is_rfc3339(shown.reason_numbers["since"])
    assert job.events.filter(reason="cluster_unavailable").count() == 1
    assert gang(job) in world.cluster.listing()

    job.attempts.update(cluster="memory")
    world.elapse(100)
    world.settle()
    assert state(job) == State.PROCESSING
    assert job_of(job).reason_code != "cluster_unavailable"


def unavailable_for(job: Job, seconds: float) -> None:
    """As if its reason had said so this long ago."""
    numbers = job_of(job).reason_numbers
    since = datetime.fromisoformat(numbers["since"]) - timedelta(seconds=seconds)
    Job.objects.filter(pk=job.pk).update(reason_numbers=numbers | {"since": since.isoformat()})


def test_a_cancel_ends_a_job_without_its_cluster_after_its_reason_has_said_so(world: World) -> None:
    job = started_elsewhere(world, "gone")
    world.request(job, Intent.HALT)
    world.settle()
    shown = job_of(job)
    assert state(job) == State.PROCESSING
    assert shown.reason_code == "cluster_unavailable"
    assert "learners may still run there" in shown.reason_message
    assert "The halt completes once" in shown.reason_message
    assert "a cancel ends it here" in shown.reason_message

    world.request(job, Intent.CANCEL)
    world.settle()
    world.tick()
    assert state(job) == State.PROCESSING, "wrong settings may be there for a moment"
    assert "is canceled here after 60 s" in job_of(job).reason_message

    unavailable_for(job, 61)
    world.elapse(61)
    world.settle()
    shown = job_of(job)
    assert state(job) == State.CANCELED
    assert "without confirmation from the cluster 'gone'" in shown.reason_message
    assert "learners may still run there" in shown.reason_message
    assert shown.reason_numbers["cluster"] == "gone"
    assert not job.attempts.get().held
    assert Quota.objects.get(tenant=world.tenant).used == 0
    assert gang(job) in world.cluster.listing(), "nothing was done to another cluster's gang of that name"
    assert invariants.violations() == []


def test_a_cancel_goes_through_the_cluster_if_it_is_back_in_time(world: World) -> None:
    job = started_elsewhere(world, "gone")
    world.request(job, Intent.CANCEL)
    world.settle()
    job.attempts.update(cluster="memory")
    unavailable_for(job, 61)
    world.elapse(61)
    for _ in range(5):
        world.settle()
        world.elapse(5)
    assert state(job) == State.CANCELED
    assert "confirmation" not in job_of(job).reason_message
    assert gang(job) not in world.cluster.listing()


def test_a_job_that_stops_without_its_cluster_says_so_and_can_be_canceled(world: World) -> None:
    job = world.running(grace_s=10)
    world.request(job, Intent.HALT)
    world.tick()
    assert state(job) == State.STOPPING
    halting = job_of(job).reason_message
    job.attempts.update(cluster="gone")
    world.elapse(2)
    world.settle()
    assert "The halt completes once" in job_of(job).reason_message

    job.attempts.update(cluster="memory")
    world.elapse(61)
    world.tick()
    assert job_of(job).reason_message == halting, "the reason does not outlive the outage"

    job.attempts.update(cluster="gone")
    world.request(job, Intent.CANCEL)
    world.settle()
    unavailable_for(job, 61)
    world.elapse(61)
    world.settle()
    assert state(job) == State.CANCELED
    assert invariants.violations() == []


def test_a_worker_that_lost_its_lease_adds_no_condition_to_a_job(world: World) -> None:
    job = world.running(grace_s=10)
    world.elapse(10)
    lost = leases.claim(job.pk, "w1")
    rows = observation.load(job.pk)
    assert lost is not None
    assert rows is not None
    leases.release(lost, requeue_after_s=0, intent_gen=None)
    assert leases.claim(job.pk, "w2")
    with pytest.raises(transitions.StaleJob):
        transitions.note_condition(rows, lost, Reason("cluster_unavailable", "It cannot be reached."))
    assert not job.events.filter(reason="cluster_unavailable").exists()


def test_an_attempt_is_observed_on_its_own_cluster(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.DRIVERS, "elsewhere", lambda: Elsewhere)
    job = started_elsewhere(world, "elsewhere")
    world.elapse(10)
    world.settle()

    assert state(job) == State.DEPLOYING, "its gang is gone there, so a new attempt was started"
    assert list(job.attempts.order_by("n").values_list("cluster", flat=True)) == ["elsewhere", "memory"]
