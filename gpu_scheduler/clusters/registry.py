"""From a cluster's name (LUTHIER_CLUSTER) to its driver. Drivers are imported when they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache

from gpu_scheduler.clusters.base import Cluster, ClusterError


class ClusterMisconfigured(ClusterError):
    """The cluster's name or its settings are wrong; the message names the variable and the remedy."""


def connect(name: str, settings: Mapping[str, str]) -> Cluster:
    """Give the driver of that name. settings: environment variables, of which each driver reads its own.

    Connects to nothing yet: a cluster that is down shows as ``ClusterBusy`` when it is used.
    """
    try:
        driver = _DRIVERS[name]
    except KeyError:
        known = ", ".join(sorted(_DRIVERS))
        raise ClusterMisconfigured(
            f"LUTHIER_CLUSTER: there is no cluster {name!r}; choose one of {known}."
        ) from None
    return driver(settings)


def _local(settings: Mapping[str, str]) -> Cluster:
    from gpu_scheduler.clusters.local.driver import LocalCluster

    socket = settings.get("LUTHIER_NODE_SOCKET")
    if not socket:
        raise ClusterMisconfigured(
            "LUTHIER_NODE_SOCKET: the local cluster needs the path of its node daemon's socket;"
            " `manage.py up` sets it."
        )
    return LocalCluster(socket)


@cache
def shared_memory_cluster() -> Cluster:
    """The one memory cluster of this process, so that its web and worker parts see the same gangs."""
    from gpu_scheduler.clusters.memory import MemoryCluster
    from gpu_scheduler.model import CPU_TYPE, Node

    return MemoryCluster([Node.with_slots("node-a", CPU_TYPE, 8), Node.with_slots("node-b", CPU_TYPE, 8)])


_DRIVERS: dict[str, Callable[[Mapping[str, str]], Cluster]] = {
    "local": _local,
    "memory": lambda _: shared_memory_cluster(),
}
