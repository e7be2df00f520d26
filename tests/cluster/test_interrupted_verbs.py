"""A worker killed between any two requests of a launch, a stop or a removal: another one repeats the verb.

No learner gets a second pod, and nothing stays on the cluster.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from uuid import uuid4

import pytest

from gpu_scheduler.clusters.base import GangSpec, Removal
from gpu_scheduler.clusters.kubernetes import manifests
from gpu_scheduler.clusters.kubernetes.driver import KubernetesCluster
from tests.cluster.kubernetes_harness import KubernetesHarness, PlayedApi
from tests.gpu_scheduler.clusters.harness import launch
from tests.gpu_scheduler.clusters.node_daemon import wait_for
from tools.kube.cluster import Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("slow_handshakes")]
NAME = "job-x-1"
KINDS = ("/api/v1/pods", "/api/v1/services", "/api/v1/secrets", "/apis/networking.k8s.io/v1/networkpolicies")
CHANGES = {"launch": 5, "stop": 2, "remove": 9}
"""Requests of each verb for a gang of two. Launch: Service, Secret, policy, pods. Remove: each pod, then the rest."""


class Killed(BaseException):
    """The process ends here, as by SIGKILL: nothing of it runs after this."""


class Mortal(PlayedApi):
    """Killed after so many changes."""

    def __init__(self, kubeconfig: str, lives_for: int) -> None:
        super().__init__(kubeconfig)
        self._left = lives_for

    def request(self, method: str, *rest: object, **options: object) -> dict[str, object]:  # type: ignore[override]
        changed = super().request(method, *rest, **options)  # type: ignore[arg-type]
        if method != "GET":
            self._left -= 1
            if self._left == 0:
                raise Killed
        return changed


@pytest.fixture
def harness(cluster: Cluster, two_nodes: None, tmp_path: Path) -> Iterator[KubernetesHarness]:
    harness = KubernetesHarness(cluster, tmp_path, f"test-{uuid4().hex[:8]}-")
    yield harness
    harness.close()
    cluster.admin.delete(f"/api/v1/namespaces/{harness.settings.namespace('red')}")


def left_on(cluster: Cluster, harness: KubernetesHarness) -> list[str]:
    """Objects of the gang, as an administrator finds them."""
    chosen = manifests.selector(harness.settings, NAME)
    return [
        f"{path}/{found['metadata']['name']}"
        for path in KINDS
        for found in cluster.admin.get(path, labelSelector=chosen)["items"]
    ]


def interrupted(harness: KubernetesHarness, verb: str, after: int) -> None:
    """One verb by a worker that is killed after so many changes; the verbs before it are whole."""
    mortal = KubernetesCluster(harness.settings, Mortal(str(harness.settings.kubeconfig), after))
    with closing(mortal), pytest.raises(Killed):
        act(mortal, verb)


def act(cluster: KubernetesCluster, verb: str) -> object:
    match verb:
        case "launch":
            return cluster.launch(gang())
        case "stop":
            return cluster.stop(NAME, grace_s=1)
    return wait_for(lambda: cluster.remove(NAME) is Removal.GONE)


def gang() -> GangSpec:
    return launch(NAME, "runs", "runs")


@pytest.mark.parametrize(
    ("verb", "after"), [(verb, number) for verb, most in CHANGES.items() for number in range(1, most + 1)]
)
def test_a_verb_that_was_interrupted_is_finished_by_another_worker(
    cluster: Cluster, harness: KubernetesHarness, verb: str, after: int
) -> None:
    """What is left without a pod is shown as traces: the periodic task `orphans` removes them if no job asks again."""
    if verb != "launch":
        act(harness.cluster, "launch")
    interrupted(harness, verb, after)
    seen, traces = harness.cluster.observe().gangs.keys(), harness.cluster.traces()
    assert (seen | traces == {NAME}) is bool(left_on(cluster, harness))
    if verb != "remove":
        act(harness.cluster, verb)
        pods = [each for each in left_on(cluster, harness) if each.startswith("/api/v1/pods/")]
        assert sorted(pods) == [f"/api/v1/pods/{NAME}-0", f"/api/v1/pods/{NAME}-1"]
    act(harness.cluster, "remove")
    assert harness.cluster.traces() == set()
    assert left_on(cluster, harness) == []
