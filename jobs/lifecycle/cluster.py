"""The one cluster of this installation, connected once per process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.conf import settings

from gpu_scheduler.clusters import registry
from gpu_scheduler.clusters.base import Cluster

_connected: Cluster | None = None


def connected() -> Cluster:
    """The cluster that LUTHIER_CLUSTER names. Raises ClusterMisconfigured naming the variable."""
    global _connected
    if _connected is None:
        _connected = registry.connect(settings.LUTHIER_CLUSTER, _Settings())
    return _connected


def use(cluster: Cluster | None) -> None:
    """Work on this cluster from now on; None connects anew. For tests."""
    global _connected
    _connected = cluster


class _Settings(Mapping[str, str]):
    """Django's settings as a driver reads them: by environment name, as text, unset ones absent."""

    def __getitem__(self, name: str) -> str:
        value: Any = getattr(settings, name, None)
        if value is None:
            raise KeyError(name)
        return str(value)

    def __iter__(self) -> Any:
        return iter(
            name for name in dir(settings) if name.isupper() and getattr(settings, name, None) is not None
        )

    def __len__(self) -> int:
        return sum(1 for _ in self)
