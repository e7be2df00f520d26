"""The five verbs, passed on to this machine's node daemon. Holds nothing, so any number may live and die."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from gpu_scheduler.clusters.base import (
    Capabilities,
    Launch,
    LaunchRefused,
    Observation,
    RefusalCode,
    Removal,
)
from gpu_scheduler.clusters.local import protocol
from gpu_scheduler.clusters.local.client import ask
from gpu_scheduler.model import Node

NO_IMAGES = (
    "The local cluster runs no images: name a framework instead of an image, or use the Kubernetes cluster."
)


CAPABILITIES = Capabilities(node_daemon=True, remedy="See logs/nodes.log in the data folder.")


class LocalCluster:
    """See ``clusters.base.Cluster``; the daemon does the work."""

    name = "local"
    capabilities = CAPABILITIES

    def __init__(self, socket: str | Path) -> None:
        self._socket = socket

    @classmethod
    def connect(cls, settings: Mapping[str, str]) -> LocalCluster:
        socket = settings.get("LUTHIER_NODE_SOCKET")
        if not socket:
            raise ValueError(
                "LUTHIER_NODE_SOCKET is not set: the local cluster needs the path of its node daemon's socket;"
                " `manage.py up` sets it"
            )
        return cls(socket)

    def nodes(self) -> list[Node]:
        return [protocol.node_from_json(node) for node in ask(self._socket, "nodes")]

    def launch(self, gang: Launch) -> None:
        if gang.image is not None:
            raise LaunchRefused(NO_IMAGES, code=RefusalCode.IMAGE_ERROR)
        ask(self._socket, "launch", gang=protocol.launch_to_json(gang))

    def observe(self, names: Sequence[str] | None = None) -> Observation:
        seen_at = time.monotonic()
        asked = None if names is None else list(names)
        reports = map(protocol.report_from_json, ask(self._socket, "observe", names=asked))
        gangs = {report.name: report for report in reports}
        return Observation(gangs, seen_at, not_found=frozenset(names or ()) - gangs.keys())

    def stop(self, name: str, *, grace_s: float) -> None:
        ask(self._socket, "stop", name=name, grace_s=grace_s)

    def remove(self, name: str, *, uids: Sequence[str] | None = None) -> Removal:
        return Removal(ask(self._socket, "remove", name=name, uids=None if uids is None else list(uids)))
