"""What a ResourceQuota of the cluster lets start, and what becomes of a job that one refuses."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpu_scheduler.clusters.base import GangSpec, ProvisionOutdated
from gpu_scheduler.clusters.kubernetes import manifests, resources, tenancy
from gpu_scheduler.clusters.kubernetes.settings import KubernetesSettings
from jobs import invariants
from jobs.models import Job
from jobs.states import Phase, State
from portal.management.commands.tenant_provision import _chosen
from tenants.models import Quota, Tenant, User
from tests.jobs.lifecycle.test_cohorts import bob as bob
from tests.jobs.lifecycle.test_cohorts import of_bob
from tests.jobs.lifecycle.world import World, gang, job_of, state, used

SETTINGS = KubernetesSettings("here", "agent:1", "test.invalid/{runtime}:1")

pytestmark = pytest.mark.django_db


class ApiServer:
    """Its ResourceQuotas, as an administrator last wrote them, and what it counts."""

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cluster, self._launch = world.cluster, world.cluster.launch
        self.provision()
        monkeypatch.setattr(world.cluster, "launch", self.launch)

    def provision(self) -> None:
        limits = _chosen([], everyone=True)
        self.quotas = {each.slug: tenancy._jobs_quota(each, SETTINGS) for each in limits}

    def launch(self, spec: GangSpec) -> None:
        quota = self.quotas[spec.tenant]
        [others] = quota["scopeSelector"]["matchExpressions"]
        specs = [gang.spec for gang in self.cluster._gangs.values() if gang.spec.name != spec.name]
        mine = [each for each in [*specs, spec] if each.tenant == spec.tenant]
        total = resources.Amount()
        for each in mine:
            for learner in each.learners:
                pod = manifests.pod(replace(each, runtime="r"), learner.rank, SETTINGS, "image", {})
                if pod["spec"].get("priorityClassName") not in others["values"]:
                    total += resources.needed_by(pod, SETTINGS.gpu_resource)
        hard = quota["hard"]
        if not spec.opportunistic and (
            total.pods > int(hard["pods"]) or total.cpus > int(hard["requests.cpu"])
        ):
            raise ProvisionOutdated("ResourceQuota luthier-jobs has no room. Run manage.py tenant_provision")
        self._launch(spec)


def works(world: World, job: Job) -> None:
    world.settle()
    world.report(job, phase=Phase.PROCESSING)
    world.settle()
    assert state(job) == State.PROCESSING


def test_borrowing_and_opportunistic_jobs_start_beside_what_the_tenant_has(
    world: World, bob: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = ApiServer(world, monkeypatch)
    works(world, of_bob(bob, slots=4, name="own"))
    works(world, of_bob(bob, slots=2, name="borrows"))
    Tenant.objects.update(cohort="")
    server.provision()
    works(world, of_bob(bob, slots=2, name="more", opportunistic=True))


def test_a_stale_quota_holds_no_slots_and_costs_no_restart(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    Quota.objects.update(limit=2)
    server = ApiServer(world, monkeypatch)
    Quota.objects.update(limit=8)  # in the console, which cannot write the cluster's
    job = world.submit(slots=4, learners=2)
    world.settle()
    assert (state(job), used(world.tenant)) == (State.DEPLOYING, 8), "a count may follow within seconds"
    assert job_of(job).reason_code == "cluster_busy"
    held = []
    for _ in range(60):
        world.elapse(3)
        world.settle()
        held.append(used(world.tenant) > 0)
    waits = job_of(job)
    assert (waits.restarts_used, waits.reason_code) == (0, "cluster_quota")
    assert "Run manage.py tenant_provision" in waits.reason_message
    assert "doesn't count against max_restarts" in waits.reason_message
    assert {each.outcome for each in job.attempts.filter(held=False)} == {"deploy_timeout"}
    assert sum(held) < len(held) / 2, "most of the time others can have them"
    small = world.submit(slots=2, name="small")
    await_work(world, small)
    world.exit(small)
    world.done(small)

    server.provision()
    await_work(world, job)
    assert not invariants.violations()


def await_work(world: World, job: Job) -> None:
    """Until the cluster accepts a gang of it, whose learners then work."""
    for _ in range(200):
        world.settle()
        if gang(job) in world.cluster.listing():
            world.report(job, phase=Phase.PROCESSING)
            world.settle()
            assert state(job) == State.PROCESSING
            return
        world.elapse(5)
    raise AssertionError(f"{job.name} is {state(job)}: {job_of(job).reason_message}")
