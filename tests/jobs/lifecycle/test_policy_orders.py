"""A policy that stops jobs, end to end: the plan, the order on the row, the stop, and the start that it is for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import ClassVar

import pytest
from django.conf import settings
from django.utils import timezone

from gpu_scheduler import world as worlds
from gpu_scheduler.checks import Finding
from gpu_scheduler.cycle import plan
from gpu_scheduler.draft import Draft
from gpu_scheduler.forecast import SAVE_S, forecast
from gpu_scheduler.model import Gang, Resize, Resources, Snapshot, Stop
from gpu_scheduler.policies import POLICIES
from gpu_scheduler.policies.base import PolicyState
from gpu_scheduler.policies.fair_share import FairShare, FairShareRound
from jobs import clusters
from jobs.models import Job, SchedulerState
from jobs.selectors.queue import forecast_view
from jobs.selectors.snapshot import snapshot
from jobs.selectors.throughput import run_times
from jobs.states import State
from tests import factories
from tests.gpu_scheduler.preempting import Preempting
from tests.jobs.lifecycle.world import World, job_of, one_pass, state

pytestmark = pytest.mark.django_db


@pytest.fixture
def preempting(monkeypatch: pytest.MonkeyPatch, world: World) -> None:
    """Stop runs of lower priority for a job that waits for nodes; the tenant's quota is larger than the cluster."""
    world.tenant.quotas.update(limit=24)
    monkeypatch.setitem(POLICIES, Preempting.name, "tests.gpu_scheduler.preempting.Preempting")
    monkeypatch.setattr(settings, "LUTHIER_SCHEDULER_POLICY", Preempting.name)


def seen() -> Snapshot:
    return snapshot(nodes=clusters.current().nodes(), now=timezone.now())


def urgent(world: World, **fields: object) -> Job:
    job = world.submit(**fields)
    Job.objects.filter(pk=job.pk).update(priority="urgent", priority_rank=3)
    return job


def shown(of: Snapshot) -> dict[str, object]:
    """What a plan changes, without times."""
    return {
        "waiting": {gang.job: gang.learners for gang in of.waiting},
        "running": {run.job: (run.nodes, run.slot_type, run.gang.learners, run.order) for run in of.running},
        "quotas": {(quota.tenant, quota.slot_type): quota.used for quota in of.quotas},
        "tenants": {tenant.tenant: tenant.jobs_used for tenant in of.tenants},
        "queue heads": set(of.policy_state),
    }


def test_a_gang_has_the_resources_that_its_spec_states(world: World) -> None:
    """Per learner; what is counted stays the slots."""
    of_gpus = world.submit(
        slots=2, gpus=2, gpu_type="a100", spec=factories.spec(resources={"cpus": 6, "memory": "3Gi"})
    )
    of_cpus = world.submit(slots=4, spec=factories.spec(resources={"cpus": 4, "memory": "512Mi"}))
    unstated = world.submit(slots=2, gpus=2, spec={})
    gangs = {gang.job: gang for gang in seen().waiting}
    assert gangs[of_gpus.pk].resources == Resources(2, 6, 3072)
    assert gangs[of_cpus.pk].resources == Resources(0, 4, 512)
    assert (gangs[of_cpus.pk].slots, gangs[of_gpus.pk].slots) == (4, 2)
    assert gangs[unstated.pk].resources == Resources(2, 1, 1024), "the defaults of the spec"


@dataclass(frozen=True, slots=True)
class Reclaiming(FairShare):
    """FairShare, but every run is stopped, whether a job waits or not."""

    name: ClassVar[str] = "reclaiming"

    def begin(self, draft: Draft) -> ReclaimingRound:
        return ReclaimingRound(self, draft)

    def plans_without_queue(self, state: PolicyState) -> bool:
        return True


class ReclaimingRound(FairShareRound):
    def orders(self, waits: Iterable[tuple[Gang, Finding]]) -> tuple[Sequence[Stop], Sequence[Resize]]:
        return [Stop(run.job, "reclaimed", None, run.generation) for run in self._draft.snapshot.running], []


def test_a_policy_can_stop_jobs_while_none_waits(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    job = world.running()
    monkeypatch.setitem(POLICIES, Reclaiming.name, f"{__name__}.Reclaiming")
    monkeypatch.setattr(settings, "LUTHIER_SCHEDULER_POLICY", Reclaiming.name)
    one_pass()
    assert job_of(job).order_reason == "reclaimed"


@pytest.mark.usefixtures("preempting")
def test_the_forecast_counts_on_a_stop_that_is_stored(world: World) -> None:
    """The victim would run for an hour; it was ordered to stop, then it is STOPPING; either way it leaves soon."""
    for _ in range(2):
        factories.job(owner=world.alice, of=world.tenant, state=State.COMPLETED, running_s=3600)
    victim = world.running(learners=2, slots=4)
    job = urgent(world, learners=1, slots=4)
    one_pass()
    for _ in range(2):
        now = seen()
        start = forecast(now, run_times(now))[job.pk]
        assert start.p50 == now.now + timedelta(seconds=SAVE_S)
        assert (
            forecast_view(start, now.now)["message"]
            == "Based on jobs that are being stopped; assumes no new jobs."
        )
        left = run_times(now)[victim.pk].seconds[0]
        assert left == pytest.approx(3600, abs=60), "what it still runs for once it starts again"
        world.settle()
    assert state(victim) == State.STOPPING


@pytest.mark.usefixtures("preempting")
def test_a_stop_by_policy_frees_the_slots_for_the_job_that_it_is_for(world: World) -> None:
    victim = world.running(learners=2, slots=4)
    job = urgent(world, learners=1, slots=4)
    world.settle()
    assert state(job) == State.QUEUED
    assert job_of(victim).order_reason == "preempted" or state(victim) == State.STOPPING
    for _ in range(20):
        if state(job) != State.QUEUED:
            break
        world.elapse(5)
        world.settle()
    assert state(job) in (State.DEPLOYING, State.DOWNLOADING, State.PROCESSING)
    assert state(victim) == State.QUEUED
    assert job_of(victim).restarts_used == 0


def test_an_urgent_job_gets_the_slots_of_a_low_one_with_the_default_policy(world: World) -> None:
    world.tenant.quotas.update(limit=24)
    victim = world.running(learners=2, slots=4, priority="low", priority_rank=0)
    world.elapse(30)  # past its lease
    job = urgent(world, learners=2, slots=4)
    world.settle()
    row = job_of(job)
    assert row.reason_message.endswith("A running job of lower priority is being stopped for it.")
    assert row.reason_numbers["stopping_for_it"] == 1
    for _ in range(20):
        if state(job) != State.QUEUED:
            break
        world.elapse(5)
        world.settle()
    assert state(job) in (State.DEPLOYING, State.DOWNLOADING, State.PROCESSING)
    assert (state(victim), job_of(victim).restarts_used) == (State.QUEUED, 0)


@pytest.mark.parametrize("slots", [2, 4], ids=["starts and stops", "stops"])
@pytest.mark.usefixtures("preempting")
def test_the_world_after_a_plan_is_what_the_next_snapshot_shows(world: World, slots: int) -> None:
    world.running(learners=2, slots=slots)
    urgent(world, learners=2, slots=slots)
    urgent(world, learners=2, slots=slots)
    before = seen()
    decided = plan(before)
    assert [len(decided.starts), len(decided.stops)] == [slots == 2, 1]
    one_pass()
    assert shown(seen()) == shown(worlds.apply(before, decided))
    assert SchedulerState.objects.filter(policy=Preempting.name).exists() == bool(decided.policy_state)
