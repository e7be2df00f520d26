"""The cluster drivers by name (LUTHIER_CLUSTER). A driver is imported only when it is selected."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from gpu_scheduler.clusters.base import Capabilities, Cluster, ClusterError


class ClusterMisconfigured(ClusterError):
    """The cluster's name or its settings are wrong; the message says what to change."""


class Driver(Protocol):
    """A driver's class."""

    name: str
    capabilities: Capabilities

    @classmethod
    def connect(cls, settings: Mapping[str, str]) -> Cluster:
        """A cluster that works with these settings (environment variables; each driver reads its own).

        Makes no connection yet: a cluster that is down raises ClusterBusy when it is used. A missing or wrong setting
        raises ValueError with the variable's name and the remedy.
        """


def driver(name: str) -> type[Driver]:
    """The driver of that name. Raises ClusterMisconfigured."""
    try:
        return DRIVERS[name]()
    except KeyError:
        known = sorted(DRIVERS)
        choice = f"{', '.join(known[:-1])} or {known[-1]}"
        raise ClusterMisconfigured(
            f"there is no cluster driver {name[:40]!r} in this version; use {choice}"
        ) from None


def connect(name: str, settings: Mapping[str, str]) -> Cluster:
    """A cluster of that driver. Raises ClusterMisconfigured; see Driver.connect."""
    try:
        return driver(name).connect(settings)
    except ValueError as error:
        raise ClusterMisconfigured(str(error)) from error


def _kubernetes() -> type[Driver]:
    from gpu_scheduler.clusters.kubernetes.driver import KubernetesCluster

    return KubernetesCluster


def _local() -> type[Driver]:
    from gpu_scheduler.clusters.local.driver import LocalCluster

    return LocalCluster


def _memory() -> type[Driver]:
    from gpu_scheduler.clusters.memory import MemoryCluster

    return MemoryCluster


DRIVERS: dict[str, Callable[[], type[Driver]]] = {
    "kubernetes": _kubernetes,
    "local": _local,
    "memory": _memory,
}
"""Every driver. This is the only place that lists them."""
