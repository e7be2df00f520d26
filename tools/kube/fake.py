"""Fake GPU nodes and the pods that run on them: real objects of the API server, played by KWOK.

The real scheduler binds the pods; no container runs, and kubectl has no logs to show.
"""

from __future__ import annotations

from uuid import uuid4

from tools.kube.client import Api, Object

NODES = "/api/v1/nodes"
GPU = "nvidia.com/gpu"
MODEL = "nvidia.com/gpu.product"
MEMORY = "nvidia.com/gpu.memory"
"""MiB of one GPU. The labels of nodes are those that NVIDIA's feature discovery sets."""
EXIT_CODE = "test.luthier/exit-code"
RUNS_FOR = "test.luthier/runs-for"
IGNORES_SIGTERM = "test.luthier/ignores-sigterm"
"""A deleted pod with a finalizer ends with 143, or with 137 after its grace if it has this annotation."""
START_S = 60


def node(
    name: str = "",
    *,
    gpus: int = 8,
    model: str = "NVIDIA-H100-80GB-HBM3",
    gpu_mib: int = 81_559,
    cpus: int = 128,
) -> Object:
    """A node of this size. Without a name it gets one that is unique: KWOK may take more than a minute to start the
    pods of a node that has a deleted one's name."""
    name = name or f"gpu-{uuid4().hex[:8]}"
    capacity = {"cpu": str(cpus), "memory": "1Ti", "pods": "110", "ephemeral-storage": "1Ti"}
    labels = {"kubernetes.io/hostname": name, "kubernetes.io/arch": "amd64", "kubernetes.io/os": "linux"}
    if gpus:
        capacity[GPU] = str(gpus)
        labels |= {MODEL: model, MEMORY: str(gpu_mib), "nvidia.com/gpu.count": str(gpus)}
    return {
        "metadata": {"name": name, "labels": labels, "annotations": {"kwok.x-k8s.io/node": "fake"}},
        "status": {"allocatable": capacity, "capacity": capacity},
    }


def pod(
    name: str, *, gpus: int = 0, exit_code: int | None = None, runs_for: str = "0s", model: str | None = None
) -> Object:
    """A pod of one container, which passes Pod Security `restricted`.

    exit_code: with which it ends, `runs_for` (Go's notation) after its start; without one it runs until deleted.
    model: of the GPUs it needs, as in the nodes' label.
    """
    ending = {} if exit_code is None else {EXIT_CODE: str(exit_code), RUNS_FOR: runs_for}
    container = {
        "name": "program",
        "image": "test.invalid/program:1",
        "resources": {"limits": {GPU: str(gpus)} if gpus else {}},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    return {
        "metadata": {"name": name, "annotations": ending},
        "spec": {
            "automountServiceAccountToken": False,
            "containers": [container],
            "nodeSelector": {MODEL: model} if model else {},
            "restartPolicy": "Never",
            "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
            "terminationGracePeriodSeconds": 0,
        },
    }


def add_nodes(api: Api, *nodes: Object) -> None:
    """Create the nodes and wait until the scheduler may use them."""
    for each in nodes:
        api.create(NODES, each)
    for each in nodes:
        api.wait_for(NODES, each["metadata"]["name"], is_schedulable, START_S)


def remove_nodes(api: Api, *names: str) -> None:
    for name in names:
        api.delete(f"{NODES}/{name}")


def is_schedulable(found: Object | None) -> bool:
    """Ready, and without the taint that the controller manager leaves on a node until it has seen it ready."""
    if found is None or found["spec"].get("taints"):
        return False
    return condition(found, "Ready") == "True"


def condition(found: Object, kind: str) -> str | None:
    conditions = found.get("status", {}).get("conditions", [])
    return next((each["status"] for each in conditions if each["type"] == kind), None)


def phase(found: Object | None) -> str | None:
    return found["status"].get("phase") if found else None
