"""What is known of a cluster's nodes and pods, and of the pods that this process has changed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from gpu_scheduler.clusters.base import GangReport
from gpu_scheduler.clusters.kubernetes import manifests, reports, resources, versions
from gpu_scheduler.clusters.kubernetes.client import Object
from gpu_scheduler.clusters.kubernetes.pools import GpuResources
from gpu_scheduler.clusters.kubernetes.resources import Amount, Holding
from gpu_scheduler.clusters.kubernetes.settings import KubernetesSettings, parse_labels
from gpu_scheduler.model import Node


@dataclass(frozen=True, slots=True)
class KeptPod:
    """What is kept of a pod. held: None: nothing. pod: of ours only."""

    uid: str
    held: Holding | None
    pod: Object | None


@dataclass(slots=True)
class View:
    """Nodes by name, our pods by gang, and what every pod holds by node. Pods of others are not kept.

    One change costs what its own gang and node have, however large the cluster is.
    """

    settings: KubernetesSettings
    nodes: dict[str, Object] = field(default_factory=dict)
    _gangs: dict[str, dict[str, Object]] = field(default_factory=dict)
    """By name, then by uid."""
    _held: dict[str, dict[str, Holding]] = field(default_factory=dict)
    """By node, then by uid."""
    _chosen: dict[str, dict[str, str]] = field(default_factory=dict)
    """Our pods' gangs by the node that the platform chose, then by uid."""
    _places: dict[str, tuple[str | None, str | None, str | None]] = field(default_factory=dict)
    """By uid: the keys under which a pod is kept in these three."""
    _gpus: GpuResources = field(init=False)

    def __post_init__(self) -> None:
        self._gpus = self.settings.gpu_resources()

    @classmethod
    def of(cls, nodes: Iterable[Object], pods: Iterable[Object], settings: KubernetesSettings) -> View:
        view = cls(settings)
        for node in nodes:
            view.put_node(node)
        for pod in pods:
            view.put_pod(pod)
        return view

    def copy(self) -> View:
        gangs = {name: dict(pods) for name, pods in self._gangs.items()}
        held = {name: dict(holdings) for name, holdings in self._held.items()}
        chosen = {name: dict(uids) for name, uids in self._chosen.items()}
        return View(self.settings, dict(self.nodes), gangs, held, chosen, dict(self._places))

    def put_node(self, node: Object) -> None:
        self.nodes[node["metadata"]["name"]] = kept_node(node)

    def put_pod(self, pod: Object) -> None:
        self.put(self.kept(pod))

    def kept(self, pod: Object) -> KeptPod:
        """Raises ValueError for a pod that cannot be read."""
        is_ours = gang_of(pod, self.settings) is not None
        held = resources.held_by(pod, ours=is_ours, gpu_resources=self._gpus.names)
        pod["metadata"].pop("managedFields", None)  # half of its size
        return KeptPod(pod["metadata"]["uid"], held, pod if is_ours else None)

    def put(self, each: KeptPod) -> None:
        self.drop_pod(each.uid)
        gang = chosen = None
        if each.pod is not None and (gang := gang_of(each.pod, self.settings)) is not None:
            self._gangs.setdefault(gang, {})[each.uid] = each.pod
            chosen = reports.node_of(each.pod)
            self._chosen.setdefault(chosen, {})[each.uid] = gang
        if each.held is not None:
            self._held.setdefault(each.held.node, {})[each.uid] = each.held
        self._places[each.uid] = gang, None if each.held is None else each.held.node, chosen

    def drop_pod(self, uid: str) -> None:
        places = self._places.pop(uid, (None, None, None))
        kept: tuple[dict[str, Any], ...] = (self._gangs, self._held, self._chosen)
        for place, by_uid in zip(places, kept, strict=True):
            if place is not None:
                del by_uid[place][uid]
                if not by_uid[place]:
                    del by_uid[place]

    def has_pod(self, uid: str) -> bool:
        return uid in self._places

    def clear_pods(self) -> None:
        for kept in (self._gangs, self._held, self._chosen, self._places):
            kept.clear()

    def is_ready(self, node: str) -> bool | None:
        """None: there is no such node."""
        found = self.nodes.get(node)
        return None if found is None else resources.is_ready(found)

    def gang_names(self) -> set[str]:
        return set(self._gangs)

    def gangs_on(self, node: str) -> set[str]:
        """Whose pods the platform has put there, ended ones included."""
        return set(self._chosen.get(node, {}).values())

    def gangs(self, names: Iterable[str] | None = None) -> list[GangReport]:
        """Those of these names that have pods, or all."""
        wanted = self._gangs.keys() if names is None else self._gangs.keys() & set(names)
        return [self._gang(name) for name in wanted]

    def scheduler_nodes(self) -> list[Node]:
        tolerated = self.settings.tolerated()
        racks, blocks = parse_labels(self.settings.rack_label), parse_labels(self.settings.block_label)
        return [
            resources.to_node(
                node, self._holdings(name), self._gpus, tolerated, rack_labels=racks, block_labels=blocks
            )
            for name, node in sorted(self.nodes.items())
        ]

    def free(self, node: str) -> Amount:
        found = self.nodes[node]
        gpu_resource = self._gpus.of(resources.slot_type_of(found, self._gpus))
        return resources.free_of(found, self._holdings(node), gpu_resource)

    def _gang(self, name: str) -> GangReport:
        pods = self._gangs[name].values()
        on = {reports.node_of(pod) for pod in pods} & self.nodes.keys()
        return reports.gang(name, pods, {node: resources.is_ready(self.nodes[node]) for node in on})

    def _holdings(self, node: str) -> Iterable[Holding]:
        return self._held.get(node, {}).values()


def kept_node(node: Object) -> Object:
    """The node without what is large and never read: a kubelet lists up to 50 images."""
    node["metadata"].pop("managedFields", None)
    node.get("status", {}).pop("images", None)
    return node


def gang_of(pod: Object, settings: KubernetesSettings) -> str | None:
    """The gang of a pod of this installation; None for any other pod."""
    labels = pod["metadata"].get("labels", {})
    if labels.get(manifests.INSTALLATION) != settings.installation or manifests.RANK not in labels:
        return None
    return str(labels.get(manifests.GANG))


class OwnWrites:
    """What this process has changed and a stream of changes has not reported yet, by the pods' uid.

    So a process reads its own writes at once, and neither the stream nor a list undoes one of them for a moment.
    Versions grow with every change of the cluster, and the stream reports all up to its own.
    """

    def __init__(self) -> None:
        self._written: dict[str, Object] = {}
        self._removed: dict[str, int] = {}
        """The last known version of each pod, before that of its deletion, which no response contains."""

    def add(self, pod: Object) -> None:
        self._written[pod["metadata"]["uid"]] = pod

    def remove(self, pod: Object) -> None:
        uid = pod["metadata"]["uid"]
        self._removed[uid] = max(_version(pod), _version(self._written.pop(uid, pod)))

    def newest(self, pod: Object) -> Object | None:
        """The newer one of a pod that was reported and of what this process wrote. None: this process removed it."""
        uid = pod["metadata"]["uid"]
        if uid in self._removed:
            return None
        written = self._written.get(uid, pod)
        return written if _version(written) > _version(pod) else pod

    def reported(self, version: int) -> None:
        """The stream has reported everything up to this version."""
        if self._written:
            self._written = {uid: pod for uid, pod in self._written.items() if _version(pod) > version}

    def deleted(self, uid: str) -> None:
        """The stream has reported a deletion."""
        self._written.pop(uid, None)
        self._removed.pop(uid, None)

    def listed(self, pods: Iterable[Object], version: int) -> list[Object]:
        """What to show after a list of this version: with what was written after it, without what was removed."""
        found = {pod["metadata"]["uid"]: pod for pod in pods}
        self._removed = {uid: at for uid, at in self._removed.items() if uid in found or at > version}
        self.reported(version)
        return [shown for pod in (found | self._written).values() if (shown := self.newest(pod)) is not None]

    def clear(self) -> None:
        self._written.clear()
        self._removed.clear()

    def __bool__(self) -> bool:
        return bool(self._written or self._removed)


def _version(pod: Object) -> int:
    return versions.number(pod["metadata"].get("resourceVersion", ""))
