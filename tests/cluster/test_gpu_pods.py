"""GPU pods on fake nodes: bound by the real scheduler, refused by it, and ended by the real controllers."""

from __future__ import annotations

import os
import re

import pytest

from tests.cluster.conftest import AddNodes
from tools.kube import fake
from tools.kube.client import Api, Object

pytestmark = pytest.mark.cluster

A100 = "NVIDIA-A100-SXM4-40GB"


def is_running(pod: Object | None) -> bool:
    return fake.phase(pod) == "Running"


def unschedulable(pod: Object | None) -> str:
    """The scheduler's message, once it has tried."""
    conditions = pod["status"].get("conditions", []) if pod else []
    return next((each["message"] for each in conditions if each.get("reason") == "Unschedulable"), "")


def test_a_gpu_pod_is_bound_by_the_scheduler_and_runs(api: Api, pods: str, add_nodes: AddNodes) -> None:
    [node] = add_nodes(fake.node(gpus=8))
    api.create(pods, fake.pod("learner", gpus=8))
    running = api.wait_for(pods, "learner", is_running)
    assert running is not None
    assert running["spec"]["nodeName"] == node
    assert fake.condition(running, "PodScheduled") == "True"


def test_a_pod_goes_to_a_node_with_its_gpu_model(api: Api, pods: str, add_nodes: AddNodes) -> None:
    _, wanted = add_nodes(fake.node(), fake.node(model=A100))
    api.create(pods, fake.pod("learner", gpus=1, model=A100))
    running = api.wait_for(pods, "learner", is_running)
    assert running is not None
    assert running["spec"]["nodeName"] == wanted


@pytest.mark.parametrize(("exit_code", "phase"), [(0, "Succeeded"), (3, "Failed")])
def test_a_pod_ends_with_its_exit_code(
    api: Api, pods: str, add_nodes: AddNodes, exit_code: int, phase: str
) -> None:
    add_nodes(fake.node())
    api.create(pods, fake.pod("learner", gpus=1, exit_code=exit_code, runs_for="100ms"))
    ended = api.wait_for(pods, "learner", lambda pod: fake.phase(pod) in ("Succeeded", "Failed"))
    assert ended is not None
    assert ended["status"]["phase"] == phase
    [container] = ended["status"]["containerStatuses"]
    assert container["state"]["terminated"]["exitCode"] == exit_code


def test_a_pod_that_no_node_can_hold_stays_pending_with_the_reason(
    api: Api, pods: str, add_nodes: AddNodes
) -> None:
    add_nodes(fake.node(gpus=8), fake.node(gpus=4))
    api.create(pods, fake.pod("learner", gpus=16))
    waiting = api.wait_for(pods, "learner", unschedulable)
    assert fake.phase(waiting) == "Pending"
    assert re.match(r"0/(\d+) nodes are available: \1 Insufficient nvidia.com/gpu\.", unschedulable(waiting))


def test_a_waiting_pod_starts_on_a_node_that_is_added(api: Api, pods: str, add_nodes: AddNodes) -> None:
    add_nodes(fake.node(gpus=1))
    api.create(pods, fake.pod("learner", gpus=8))
    api.wait_for(pods, "learner", unschedulable)
    [large] = add_nodes(fake.node(gpus=8))
    running = api.wait_for(pods, "learner", is_running)
    assert running is not None
    assert running["spec"]["nodeName"] == large


def test_gpus_are_free_again_when_their_pod_is_deleted(api: Api, pods: str, add_nodes: AddNodes) -> None:
    add_nodes(fake.node(gpus=8))
    api.create(pods, fake.pod("first", gpus=8))
    api.wait_for(pods, "first", is_running)
    api.create(pods, fake.pod("second", gpus=8))
    api.wait_for(pods, "second", unschedulable)
    api.delete(f"{pods}/first")
    api.wait_for(pods, "second", is_running)


@pytest.mark.skipif(
    "LUTHIER_LONG" not in os.environ,
    reason="a minute of waiting for Kubernetes' own controller: only by make test-long",
)
@pytest.mark.timeout(240)  # the controller manager looks for such pods every 20 s and waits 40 s more
def test_the_pods_of_a_deleted_node_are_removed(api: Api, pods: str, add_nodes: AddNodes) -> None:
    kept, lost = add_nodes(fake.node(model=A100), fake.node())
    api.create(pods, fake.pod("on-kept", gpus=8, model=A100))
    api.create(pods, fake.pod("on-lost", gpus=8))
    api.wait_for(pods, "on-kept", is_running)
    bound = api.wait_for(pods, "on-lost", is_running)
    assert bound is not None
    assert bound["spec"]["nodeName"] == lost
    api.delete(f"{fake.NODES}/{lost}")
    api.wait_for(pods, "on-lost", lambda pod: pod is None, timeout_s=180)
    left = {node["metadata"]["name"] for node in api.get(fake.NODES)["items"]}
    assert kept in left
    assert lost not in left
    assert is_running(api.get(f"{pods}/on-kept"))
