"""The clusters of this installation. The only module that reads their settings and connects to them, once per process.

New attempts go to the cluster that LUTHIER_CLUSTER names. An attempt that was started on another one stays there, and
is observed and stopped by that cluster's driver.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from typing import Any

from django.conf import settings

from gpu_scheduler.clusters import registry
from gpu_scheduler.clusters.base import Capabilities, Cluster, Isolation, ReportsIsolation

NO_RESPONSE = "the cluster did not respond"
"""How the problem of a scheduling pass begins whose cluster raised a ClusterError."""

_connected: dict[str, Cluster] = {}
_lock = threading.Lock()


def current() -> Cluster:
    """The cluster for new attempts. Raises ClusterMisconfigured."""
    return named(settings.LUTHIER_CLUSTER)


def configuration_problem() -> str:
    """What is wrong with the settings of the cluster for new attempts; empty: nothing. Makes no connection."""
    try:
        current()
    except registry.ClusterMisconfigured as error:
        return str(error)
    return ""


def named(name: str) -> Cluster:
    """The cluster of that name, for attempts that run there. Raises ClusterMisconfigured."""
    with _lock:
        if name not in _connected:
            _connected[name] = registry.connect(name, DriverSettings())
        return _connected[name]


def capabilities() -> Capabilities:
    """What jobs on the current cluster may use. Makes no connection."""
    return registry.driver(settings.LUTHIER_CLUSTER).capabilities


def isolation() -> Isolation | None:
    """What keeps programs apart on the cluster for new attempts; None where that is the cluster's own matter.

    Raises ClusterError.
    """
    cluster = current()
    return cluster.isolation() if isinstance(cluster, ReportsIsolation) else None


def has_deploy_deadline(name: str) -> bool:
    """Whether gangs on that cluster must be complete in time. False for a cluster that the settings do not reach."""
    try:
        return named(name).capabilities.deploy_deadline
    except registry.ClusterMisconfigured:
        return False


def has_data_folders(name: str) -> bool:
    """Whether that cluster's data sets are folders of the learners' machine, which shippers link; False: its driver
    provides them. Makes no connection."""
    return registry.driver(name).capabilities.node_local_data


def use(cluster: Cluster | None) -> None:
    """Replace the current cluster, for tests; None forgets all connections."""
    with _lock:
        _connected.clear()
        if cluster is not None:
            _connected[settings.LUTHIER_CLUSTER] = _connected[cluster.name] = cluster


class DriverSettings(Mapping[str, str]):
    """Django's settings as a driver reads them: environment names, text values, no unset ones."""

    def __getitem__(self, name: str) -> str:
        value: Any = getattr(settings, name, None)
        if value is None:
            raise KeyError(name)
        return str(value)

    def __iter__(self) -> Iterator[str]:
        return (name for name in dir(settings) if name.isupper() and getattr(settings, name) is not None)

    def __len__(self) -> int:
        return sum(1 for _ in self)
