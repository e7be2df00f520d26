"""A worker killed at each failpoint around a launch, a stop and a removal: others go on, on a real API server.

No learner gets a second pod, and nothing stays on the cluster.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from uuid import uuid4

import pytest
from pytest_django import Settings

from gpu_scheduler.clusters.kubernetes import manifests
from gpu_scheduler.clusters.kubernetes.driver import KubernetesCluster
from gpu_scheduler.clusters.kubernetes.tenancy import TenantLimits
from gpu_scheduler.model import CPU_TYPE
from jobs import clusters, failpoints
from jobs.lifecycle import leases
from jobs.models import Job, Worker
from jobs.states import Intent, Phase, State
from tests.cluster.kubernetes_harness import KubernetesHarness, provisioner
from tests.cluster.test_interrupted_verbs import KINDS
from tests.jobs.lifecycle.children import in_child
from tests.jobs.lifecycle.world import World, state, used
from tools.kube import fake
from tools.kube.cluster import Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.django_db(transaction=True)]
NODES = ("node-a", "node-b")
POINTS = (
    "launch.before_cluster", "launch.after_cluster", "launch.before_commit", "launch.after_noted",
    "stop.before_cluster", "stop.after_cluster", "remove.before_cluster", "remove.after_cluster",
)  # fmt: skip
LOOKS = 200


class Connected:
    """Workers of one installation on one cluster."""

    def __init__(self, cluster: Cluster, harness: KubernetesHarness) -> None:
        self.cluster, self.settings = cluster, harness.settings
        self.uids: set[str] = set()
        """Of all pods that were ever seen."""

    def connect(self) -> KubernetesCluster:
        return KubernetesCluster(self.settings)

    def left(self) -> list[str]:
        """Objects of the installation's gangs, as an administrator finds them."""
        ours, found = manifests.selector(self.settings), []
        for path in KINDS:
            for each in self.cluster.admin.get(path, labelSelector=f"{ours},{manifests.GANG}")["items"]:
                found.append(f"{path}/{each['metadata']['name']}")
                if path.endswith("/pods"):
                    self.uids.add(each["metadata"]["uid"])
        return found


@pytest.fixture(scope="module")
def two_nodes(cluster: Cluster) -> Iterator[None]:
    fake.add_nodes(cluster.admin, *(fake.node(name, gpus=0, cpus=4) for name in NODES))
    yield
    fake.remove_nodes(cluster.admin, *NODES)


@pytest.fixture
def reached(cluster: Cluster, two_nodes: None, tmp_path: Path) -> Iterator[Connected]:
    with closing(KubernetesHarness(cluster, tmp_path, f"test-{uuid4().hex[:8]}-")) as harness:
        yield Connected(cluster, harness)


@pytest.fixture
def world(reached: Connected, settings: Settings) -> Iterator[World]:
    settings.LUTHIER_LEASE_S = 600  # too long to wait for: a dead worker's lease is free at once
    with closing(reached.connect()) as driver:
        world = World(lambda clock: driver)  # type: ignore[arg-type, return-value]
        clusters.use(driver)
        limits = TenantLimits(world.tenant.slug, {CPU_TYPE: 8})
        list(provisioner(reached.cluster, reached.settings).tenant(limits))
        yield world
        failpoints.arm(None)
        clusters.use(None)
        reached.cluster.admin.delete(f"/api/v1/namespaces/{reached.settings.namespace(world.tenant.slug)}")


@pytest.mark.parametrize("point", POINTS)
def test_a_gang_of_a_worker_killed_there_has_one_pod_per_learner_and_leaves_nothing(
    world: World, reached: Connected, point: str
) -> None:
    killed = False

    def tick() -> None:
        world.tick(leases.owner())

    def look() -> None:
        """One worker looks, and is killed if it comes to the point; then others go on."""
        nonlocal killed
        if not killed and in_child(tick, reached, kill_at=point):
            killed = True
            Worker.objects.all().delete()  # as if it had been silent for long enough
        reached.left()
        tick()
        reached.left()
        world.elapse(1)

    def until(job: Job, wanted: State) -> None:
        for _ in range(LOOKS):
            if state(job) == wanted:
                return
            look()
        raise AssertionError(f"not {wanted} but {state(job)}: {Job.objects.get(pk=job.pk).reason_message}")

    job = world.submit(learners=2, grace_s=1)
    until(job, State.DEPLOYING)
    world.report(job, phase=Phase.PROCESSING)
    until(job, State.PROCESSING)
    assert len(reached.left()) == 5, "a Service, a Secret, a policy and two pods"
    world.request(job, Intent.CANCEL)
    until(job, State.CANCELED)
    assert killed, "the worker did not come there"
    assert len(reached.uids) == 2
    assert reached.left() == []
    assert clusters.current().traces() == set()  # type: ignore[attr-defined]
    assert used(world.tenant) == 0
