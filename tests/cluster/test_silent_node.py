"""A node that sends no heartbeats keeps its learners: so are all nodes for a moment after the API server was away."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from gpu_scheduler.clusters.base import LearnerPhase
from tests.cluster.conftest import AddNodes
from tests.cluster.kubernetes_harness import KubernetesHarness
from tests.gpu_scheduler.clusters.harness import all_in, eventually, launch, remove
from tools.kube import fake
from tools.kube.client import Api, Object
from tools.kube.cluster import Cluster
from tools.kube.components import EVICT_AFTER_S

pytestmark = pytest.mark.cluster
SHORTLY = {
    "key": "node.kubernetes.io/unreachable",
    "operator": "Exists",
    "effect": "NoExecute",
    "tolerationSeconds": EVICT_AFTER_S + 1,
}
"""A pod that says nothing of it is evicted before one that says this."""


@pytest.fixture
def harness(cluster: Cluster, tmp_path: Path) -> Iterator[KubernetesHarness]:
    harness = KubernetesHarness(cluster, tmp_path, f"test-{uuid4().hex[:8]}-")
    yield harness
    harness.close()
    cluster.admin.delete(f"/api/v1/namespaces/{harness.settings.namespace('red')}")


@pytest.fixture
def silent(api: Api, add_nodes: AddNodes) -> Iterator[str]:
    """The name of a node that no program plays. It says what `say` writes, and after NODE_GRACE_S it is unreachable by
    itself: what takes long comes before it."""
    add_nodes(fake.node())  # where all are silent, Kubernetes itself evicts none
    node = fake.node(gpus=0, cpus=4)
    del node["metadata"]["annotations"]
    name = api.create(fake.NODES, node)["metadata"]["name"]
    say(api, name, "True")
    api.wait_for(fake.NODES, name, fake.is_schedulable)
    yield name
    fake.remove_nodes(api, name)


def say(api: Api, node: str, ready: str) -> None:
    api.patch(f"{fake.NODES}/{node}/status", {"status": {"conditions": [{"type": "Ready", "status": ready}]}})


def is_bound(pod: Object | None) -> bool:
    return pod is not None and bool(pod["spec"].get("nodeName"))


def test_a_silent_node_keeps_its_learners_when_others_are_evicted(
    api: Api, pods: str, harness: KubernetesHarness, silent: str
) -> None:
    other = fake.pod("other")
    other["spec"] |= {"nodeName": silent, "tolerations": [SHORTLY]}
    api.create(pods, other)
    harness.cluster.launch(launch("job-x-1", "runs", nodes=(silent,)))
    # Gangs of other tests have this name, too, and their pods' finalizers outlive their namespaces' deletion.
    space = f"/api/v1/namespaces/{harness.settings.namespace('red')}/pods"
    [pod] = api.get(space)["items"]
    api.wait_for(space, pod["metadata"]["name"], is_bound)

    say(api, silent, "Unknown")
    api.wait_for(pods, "other", lambda pod: pod is None or pod["metadata"].get("deletionTimestamp"))
    assert "deletionTimestamp" not in api.get(f"{space}/{pod['metadata']['name']}")["metadata"]
    eventually(harness, "job-x-1", all_in(LearnerPhase.UNKNOWN))
    # Its end is the platform's decision alone.
    remove(harness, "job-x-1")
    assert api.get(space)["items"] == []
