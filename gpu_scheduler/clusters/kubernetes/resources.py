"""What pods hold and what nodes have left, in the scheduler's own values."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gpu_scheduler.clusters.kubernetes import manifests
from gpu_scheduler.clusters.kubernetes.manifests import SHIPPER_MIB, SILENT_NODE
from gpu_scheduler.clusters.kubernetes.pools import GpuResources
from gpu_scheduler.clusters.kubernetes.settings import Toleration
from gpu_scheduler.model import CPU_TYPE, NOTHING, Node, Resources

Object = dict[str, Any]
MIB = 1024**2
SLOT_TYPE = "luthier.dev/slot-type"
"""Label of a node: its slot type, where the administrators do not want the one that its GPUs' label gives."""
GPU_PRODUCT = "nvidia.com/gpu.product"
ANY_GPU = "gpu"
"""Slot type of GPUs whose model no label names."""
PER_LEARNER = Resources(memory_mib=SHIPPER_MIB)
"""Of a pod, beyond what its learner requests. The launcher's container has ended when the learner's starts."""
_SUFFIXES = {"n": 1e-9, "u": 1e-6, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_SUFFIXES |= {f"{each}i": 1024.0**power for power, each in enumerate("KMGTPE", 1)}
_QUANTITY = re.compile(r"([0-9.]+(?:[eE][+-]?[0-9]+)?)([a-zA-Z]*)")


@dataclass(frozen=True, slots=True)
class Amount:
    """GPUs, CPU cores and bytes of memory that a pod requests or a node has."""

    gpus: float = 0
    cpus: float = 0
    memory: float = 0
    pods: int = 0

    def __add__(self, other: Amount) -> Amount:
        return Amount(
            self.gpus + other.gpus,
            self.cpus + other.cpus,
            self.memory + other.memory,
            self.pods + other.pods,
        )

    def __sub__(self, other: Amount) -> Amount:
        return Amount(
            self.gpus - other.gpus,
            self.cpus - other.cpus,
            self.memory - other.memory,
            self.pods - other.pods,
        )

    def lacks(self, needed: Amount) -> str:
        """What of the needed is not here, for people; empty: nothing. Rounding errors do not count."""
        if self.gpus < needed.gpus:
            return f"{max(0, self.gpus):g} of {needed.gpus:g} GPUs free"
        if self.cpus + 1e-6 < needed.cpus:
            return f"{max(0, self.cpus):g} of {needed.cpus:g} CPUs free"
        if self.memory + 1 < needed.memory:
            return f"{max(0, self.memory) // MIB:g} of {needed.memory // MIB:g} MiB free"
        return "no room for another pod" if self.pods < needed.pods else ""


@dataclass(frozen=True, slots=True)
class Holding:
    """What one pod holds of a node. amount: without GPUs, which gpus has by resource."""

    node: str
    amount: Amount
    ours: bool
    gpus: Mapping[str, float] = field(default_factory=dict)

    def of_pool(self, gpu_resource: str) -> Amount:
        """With the GPUs that this resource counts: those that the node's pool has."""
        return replace(self.amount, gpus=self.gpus.get(gpu_resource, 0))


def quantity(text: str | float) -> float:
    """A Kubernetes quantity: "250m", "1Ti", 4. Raises ValueError."""
    found = _QUANTITY.fullmatch(str(text))
    if found is None:
        raise ValueError(f"not a quantity: {text!r}")
    number, suffix = found.groups()
    return float(number) * (_SUFFIXES[suffix] if suffix else 1)


def amount_of(resources: Mapping[str, Any], gpu_resource: str) -> Amount:
    """Of a container's requests or a node's allocatable resources."""
    return Amount(
        quantity(resources.get(gpu_resource, 0)),
        quantity(resources.get("cpu", 0)),
        quantity(resources.get("memory", 0)),
    )


def needed_by(pod: Object, gpu_resource: str) -> Amount:
    """What the scheduler counts for a pod: the most that any phase of its life needs, and its overhead."""
    spec = pod["spec"]

    def request(container: Object) -> Amount:
        return amount_of(container.get("resources", {}).get("requests", {}), gpu_resource)

    sidecars, most = Amount(), Amount()
    for container in spec.get("initContainers", []):
        if container.get("restartPolicy") == "Always":
            sidecars += request(container)
            most = _greater(most, sidecars)
        else:
            most = _greater(most, sidecars + request(container))
    running = sum(map(request, spec["containers"]), sidecars)
    overhead = amount_of(spec.get("overhead", {}), gpu_resource)
    return _of_whole_pod(spec, _greater(most, running)) + overhead + Amount(pods=1)


def _of_whole_pod(spec: Object, of_containers: Amount) -> Amount:
    """What a pod requests as a whole (KEP-2837) counts in place of what its containers do; it may not be less."""
    whole = spec.get("resources", {}).get("requests", {})
    cpus = quantity(whole["cpu"]) if "cpu" in whole else of_containers.cpus
    memory = quantity(whole["memory"]) if "memory" in whole else of_containers.memory
    return replace(of_containers, cpus=cpus, memory=memory)


def held_by(pod: Object, *, ours: bool, gpu_resources: Collection[str]) -> Holding | None:
    """None: the pod holds nothing, because it has ended or has no node yet."""
    node = pod["spec"].get("nodeName") or pod["metadata"].get("annotations", {}).get(manifests.NODE, "")
    if not ours:
        node = pod["spec"].get("nodeName", "")
    if not node or pod.get("status", {}).get("phase") in ("Succeeded", "Failed"):
        return None
    needed = {name: needed_by(pod, name) for name in gpu_resources}
    gpus = {name: amount.gpus for name, amount in needed.items() if amount.gpus}
    return Holding(node, replace(next(iter(needed.values())), gpus=0), ours, gpus)


def free_of(node: Object, holdings: Iterable[Holding], gpu_resource: str) -> Amount:
    """What a pod of ours can still get on a node."""
    allocatable = node["status"].get("allocatable", {})
    free = amount_of(allocatable, gpu_resource) + Amount(pods=_pods(allocatable))
    for holding in holdings:
        free -= holding.of_pool(gpu_resource)
    return free


def _pods(allocatable: Mapping[str, Any]) -> int:
    return int(quantity(allocatable.get("pods", 110)))


def slot_type_of(node: Object, gpus: GpuResources) -> str:
    """A node is in one pool: that of its label, else of the first resource that it has, else of its GPUs' model."""
    labels, capacity = node["metadata"].get("labels", {}), node["status"].get("capacity", {})
    if named := labels.get(SLOT_TYPE):
        return str(named)
    has = [name for name in gpus.names if name in capacity]
    if not has:
        return CPU_TYPE
    # A kubelet that has restarted shows 0 of each until its device plugin has registered again.
    resource = next((name for name in has if quantity(capacity[name]) >= 1), has[-1])
    return gpus.type_of(resource) or str(labels.get(GPU_PRODUCT) or ANY_GPU).lower()[:40]


def is_ready(node: Object) -> bool:
    conditions = node["status"].get("conditions", [])
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def to_node(
    node: Object,
    holdings: Iterable[Holding],
    gpus: GpuResources,
    tolerated: Collection[Toleration] = (),
    *,
    rack_labels: Sequence[str] = (),
    block_labels: Sequence[str] = (),
) -> Node:
    """The scheduler's view of a node: what the kubelet compares with the sum of all pods' requests.

    Of the labels that name its rack, and its block, the first one that it has counts.
    """
    slot_type = slot_type_of(node, gpus)
    gpu_resource = gpus.of(slot_type)
    allocatable, holdings = node["status"].get("allocatable", {}), list(holdings)
    found = amount_of(allocatable, gpu_resource)
    used = sum((each.of_pool(gpu_resource) for each in holdings if not each.ours), Amount())
    most_pods = _pods(allocatable)
    full = sum(each.amount.pods for each in holdings) >= most_pods
    # A fraction of a CPU that others hold can cost a whole slot, or none, depending on the rest.
    used_cpus = int(found.cpus) - int(found.cpus - used.cpus + 1e-6) if slot_type == CPU_TYPE else used.cpus
    others = Resources(math.ceil(used.gpus), used_cpus, math.ceil(used.memory / MIB))
    return Node(
        node["metadata"]["name"],
        slot_type,
        Resources(int(found.gpus), found.cpus, int(found.memory // MIB)),
        ready=is_ready(node),
        used_by_others=others if used != Amount() else NOTHING,
        cordoned=bool(keeps_away := _keeps_us_away(node, slot_type, gpu_resource, tolerated)),
        per_learner=PER_LEARNER,
        unhealthy=max(0, int(quantity(node["status"].get("capacity", {}).get(gpu_resource, 0)) - found.gpus)),
        full=full,
        why=" ".join(
            filter(
                None,
                [
                    _not_ready(node),
                    keeps_away,
                    _without_plugin(node, slot_type, gpu_resource),
                    f"Runs as many pods as its kubelet allows ({most_pods})." if full else "",
                ],
            )
        ),
        rack=_first_label(node, rack_labels),
        block=_first_label(node, block_labels),
    )


def _first_label(node: Object, names: Sequence[str]) -> str:
    labels = node["metadata"].get("labels", {})
    return next((str(labels[name]) for name in names if labels.get(name)), "")


def _keeps_us_away(node: Object, slot_type: str, gpu_resource: str, tolerated: Collection[Toleration]) -> str:
    """A sentence about why our pods may not go there: cordoned, or tainted with what they do not tolerate. Empty:
    they may."""
    spec = node.get("spec", {})
    if spec.get("unschedulable"):
        return "Cordoned (kubectl uncordon ends it)."
    for taint in spec.get("taints", []):
        if taint["effect"] not in ("NoSchedule", "NoExecute") or _is_of_silence(taint):
            continue
        by_gpus = slot_type != CPU_TYPE and (taint["key"], taint["effect"]) == (gpu_resource, "NoSchedule")
        if not by_gpus and not any(_tolerates(each, taint) for each in tolerated):
            value = f"={taint['value']}" if taint.get("value") else ""
            return f"Tainted with {taint['key']}{value}:{taint['effect']}, which learners do not tolerate."
    return ""


def _is_of_silence(taint: Object) -> bool:
    """Every learner tolerates it; a node that is really silent is not ready, and has its NoSchedule twin."""
    return taint["effect"] == "NoExecute" and taint["key"] in SILENT_NODE


def _tolerates(toleration: Toleration, taint: Object) -> bool:
    same = (toleration.key, toleration.effect) == (taint["key"], taint["effect"])
    return same and toleration.value in (None, taint.get("value", ""))


def _not_ready(node: Object) -> str:
    """What the cluster says of a node that is not ready; empty: it is ready."""
    if is_ready(node):
        return ""
    conditions = node["status"].get("conditions", [])
    said = next((each.get("message", "") for each in conditions if each["type"] == "Ready"), "")
    return f"Not ready: {said.rstrip('.') or 'its kubelet has not reported'}."


def _without_plugin(node: Object, slot_type: str, gpu_resource: str) -> str:
    """What is to be said of a node of GPUs that has none; empty: nothing."""
    has = quantity(node["status"].get("capacity", {}).get(gpu_resource, 0))
    return "" if slot_type == CPU_TYPE or has else f"No device plugin offers {gpu_resource} there now."


def _greater(one: Amount, other: Amount) -> Amount:
    return Amount(
        max(one.gpus, other.gpus),
        max(one.cpus, other.cpus),
        max(one.memory, other.memory),
        max(one.pods, other.pods),
    )
