"""The contract, forwarded to this machine's node daemon. Keeps nothing but a cache, so any number may come and go."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gpu_scheduler.clusters.base import (
    Capabilities,
    EnvironmentSpec,
    GangSpec,
    Isolation,
    LaunchRefused,
    Observation,
    OnChange,
    RefusalCode,
    Removal,
    Watch,
)
from gpu_scheduler.clusters.local import interpreters, protocol
from gpu_scheduler.clusters.local.client import Address, ping, request
from gpu_scheduler.clusters.local.feed import Feed
from gpu_scheduler.model import Node

CHOOSE_S = 5.0
"""No job is worth waiting longer for its versions: it is asked about again."""
NO_IMAGES = "The local cluster runs no container images: name a framework instead."


NEEDED = {
    "LUTHIER_NODE_SOCKET": "the local cluster needs the path of its node daemon's socket",
    "LUTHIER_NODE_KEY": "the local cluster needs the file of its node daemon's key",
}
CAPABILITIES = Capabilities(
    node_daemon=True, pythons=interpreters.versions, remedy="See logs/nodes.log in the data folder."
)


class LocalCluster:
    """See ``clusters.base.Cluster``; the daemon does the work."""

    name = "local"
    capabilities = CAPABILITIES

    def __init__(self, address: Address) -> None:
        self._address = address
        self._feed = Feed(address)

    @classmethod
    def connect(cls, settings: Mapping[str, str]) -> LocalCluster:
        missing = [f"{name} is not set: {why}" for name, why in NEEDED.items() if not settings.get(name)]
        if missing:
            raise ValueError("; ".join(missing) + "; `manage.py up` sets it")
        return cls(Address(*(Path(settings[name]) for name in NEEDED)))

    def nodes(self) -> list[Node]:
        return [protocol.node_from_json(node) for node in request(self._address, "nodes")]

    def isolation(self) -> Isolation:
        return Isolation(**ping(self._address)["isolation"])

    def launch(self, spec: GangSpec) -> None:
        if spec.image is not None:
            raise LaunchRefused(NO_IMAGES, code=RefusalCode.IMAGE_ERROR)
        self._effect("launch", gang=protocol.spec_to_json(spec))

    def choose(self, environment: EnvironmentSpec) -> tuple[str, ...] | None:
        found = request(self._address, "choose", timeout_s=CHOOSE_S, environment=asdict(environment))
        lock = found["lock"]
        return None if lock is None else tuple(lock)

    def observe(self, names: Sequence[str] | None = None) -> Observation:
        if (cached := self._feed.observation(names)) is not None:
            return cached
        seen_at = time.monotonic()
        requested = None if names is None else list(names)
        reports = map(protocol.report_from_json, request(self._address, "observe", names=requested))
        gangs = {report.name: report for report in reports}
        return Observation(gangs, seen_at, not_found=frozenset(names or ()) - gangs.keys())

    def stop(self, name: str, *, grace_s: float) -> None:
        self._effect("stop", name=name, grace_s=grace_s)

    def remove(self, name: str, *, uids: Sequence[str] | None = None) -> Removal:
        result = self._effect("remove", name=name, uids=None if uids is None else list(uids))
        return Removal(result["removal"])

    def watch(self, on_change: OnChange) -> Watch:
        return self._feed.watch(on_change)

    def _effect(self, op: str, **values: Any) -> dict[str, Any]:
        """Change something; from now on the cache must show at least that."""
        result: dict[str, Any] = request(self._address, op, **values)
        self._feed.require(result["revision"])
        return result
