"""A worker killed at each failpoint around a launch, a stop and a removal: others go on, on a real API server.

No learner gets a second pod, and nothing stays on the cluster. At some of the points also with containers on real
nodes, where a pod ends only once its kubelet has seen its processes end.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from uuid import uuid4

import pytest
from pytest_django import Settings

from gpu_scheduler.clusters.kubernetes import manifests
from gpu_scheduler.clusters.kubernetes.driver import KubernetesCluster
from gpu_scheduler.clusters.kubernetes.settings import KubernetesSettings
from gpu_scheduler.clusters.kubernetes.tenancy import TenantLimits
from gpu_scheduler.model import CPU_TYPE
from jobs import clusters, failpoints
from jobs.lifecycle import leases
from jobs.models import Job, Worker
from jobs.states import Intent, Phase, State
from tests import factories
from tests.cluster.kubernetes_harness import KubernetesHarness, provisioner
from tests.cluster.pods import GPU_TYPE
from tests.cluster.test_interrupted_verbs import KINDS
from tests.jobs.lifecycle.children import in_child
from tests.jobs.lifecycle.world import World, state, used
from tools.kube.cluster import Cluster
from tools.kube.images import AGENT, RUNTIME

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.usefixtures("slow_handshakes"),
    pytest.mark.django_db(transaction=True),
]
POINTS = (
    "launch.before_cluster", "launch.after_cluster", "launch.before_commit", "launch.after_noted",
    "stop.before_cluster", "stop.after_cluster", "remove.before_cluster", "remove.after_cluster",
)  # fmt: skip
REAL_POINTS = ("launch.after_cluster", "stop.after_cluster", "remove.before_cluster")
LOOKS = 200
REAL_S = 60.0
"""For which others look at a gang of real containers, at most."""


class Connected:
    """Workers of one installation on one cluster."""

    def __init__(self, cluster: Cluster, settings: KubernetesSettings) -> None:
        self.cluster, self.settings = cluster, settings
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


@pytest.fixture
def reached(cluster: Cluster, two_nodes: None, tmp_path: Path) -> Iterator[Connected]:
    with closing(KubernetesHarness(cluster, tmp_path, f"test-{uuid4().hex[:8]}-")) as harness:
        yield Connected(cluster, harness.settings)


@pytest.fixture
def world(reached: Connected, settings: Settings) -> Iterator[World]:
    yield from worlds(reached, settings, CPU_TYPE)


@pytest.fixture
def on_nodes(real_cluster: Cluster) -> Connected:
    """With the images that the real nodes have."""
    prefix = f"test-{uuid4().hex[:8]}-"
    settings = KubernetesSettings(
        installation=f"{prefix}installation",
        agent_image=AGENT,
        runtime_image=RUNTIME,
        namespace_prefix=prefix,
        kubeconfig=str(real_cluster.service_account()),
    )
    list(provisioner(real_cluster, settings).installation())
    return Connected(real_cluster, settings)


@pytest.fixture
def real_world(on_nodes: Connected, settings: Settings) -> Iterator[World]:
    for world in worlds(on_nodes, settings, GPU_TYPE):
        factories.quota(world.tenant, GPU_TYPE, 8)
        yield world


def worlds(reached: Connected, settings: Settings, slot_type: str) -> Iterator[World]:
    """One, on this cluster. slot_type: of which its tenant may use 8."""
    settings.LUTHIER_LEASE_S = 600  # too long to wait for: a dead worker's lease is free at once
    with closing(reached.connect()) as driver:
        world = World(lambda clock: driver)  # type: ignore[arg-type, return-value]
        clusters.use(driver)
        limits = TenantLimits(world.tenant.slug, {slot_type: 8})
        list(provisioner(reached.cluster, reached.settings).tenant(limits))
        yield world
        failpoints.arm(None)
        clusters.use(None)
        reached.cluster.admin.delete(f"/api/v1/namespaces/{reached.settings.namespace(world.tenant.slug)}")


class Worked:
    """Workers that look at the jobs one after the other, of which one is killed when it comes to the point."""

    def __init__(self, world: World, reached: Connected, point: str) -> None:
        self._world, self._reached, self._point = world, reached, point
        self.killed = False

    def look(self) -> None:
        if not self.killed:
            self.killed = in_child(self._tick, self._reached, kill_at=self._point)
            self._reached.left()
            if not self.killed:
                return
            Worker.objects.all().delete()  # as if it had been silent for long enough
        self._tick()
        self._reached.left()

    def _tick(self) -> None:
        self._world.tick(leases.owner())


def runs_and_is_canceled(
    world: World, reached: Connected, job: Job, until: Callable[[Job, State], None]
) -> None:
    """A gang of two, with one pod for each learner and nothing left in the end."""
    until(job, State.DEPLOYING)
    world.report(job, phase=Phase.PROCESSING)
    until(job, State.PROCESSING)
    assert len(reached.left()) == 5, "a Service, a Secret, a policy and two pods"
    world.request(job, Intent.CANCEL)
    until(job, State.CANCELED)
    assert len(reached.uids) == 2
    assert reached.left() == []
    assert clusters.current().traces() == set()  # type: ignore[attr-defined]
    assert used(world.tenant) == 0


@pytest.mark.parametrize("point", POINTS)
def test_a_gang_of_a_worker_killed_there_has_one_pod_per_learner_and_leaves_nothing(
    world: World, reached: Connected, point: str
) -> None:
    workers = Worked(world, reached, point)

    def until(job: Job, wanted: State) -> None:
        for _ in range(LOOKS):
            if state(job) == wanted:
                return
            workers.look()
            world.elapse(1)
        raise AssertionError(unlike(job, wanted))

    runs_and_is_canceled(world, reached, world.submit(learners=2, grace_s=1), until)
    assert workers.killed, "the worker did not come there"


@pytest.mark.timeout(300)
@pytest.mark.parametrize("point", REAL_POINTS)
def test_so_has_one_of_containers_on_real_nodes(real_world: World, on_nodes: Connected, point: str) -> None:
    """Their time is the clock's: nothing is made to pass sooner."""
    workers = Worked(real_world, on_nodes, point)

    def until(job: Job, wanted: State) -> None:
        deadline = time.monotonic() + REAL_S
        while state(job) != wanted:
            assert time.monotonic() < deadline, unlike(job, wanted)
            workers.look()

    gang = {"learners": 2, "gpus": 1, "gpu_type": GPU_TYPE, "framework": "plain"}
    runs_and_is_canceled(real_world, on_nodes, real_world.submit(grace_s=1, **gang), until)
    assert workers.killed, "the worker did not come there"


def unlike(job: Job, wanted: State) -> str:
    return f"not {wanted} but {state(job)}: {Job.objects.get(pk=job.pk).reason_message}"
