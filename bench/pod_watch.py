"""What a bench sees of the platform's pods: one list and one watch, for as long as it runs."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod

from gpu_scheduler.clusters.base import ClusterError
from gpu_scheduler.clusters.kubernetes import manifests
from gpu_scheduler.clusters.kubernetes.client import Api, Object, Stream

PODS = "/api/v1/pods"
WATCH_S, PAUSE_S = 30, 0.5


class PodWatch(ABC):
    """Calls `seen` in a thread of its own for each change of a gang's pod. Follows from the beginning."""

    def __init__(self, api: Api) -> None:
        self._api, self._stream = api, Stream()
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stream.close()
        self._thread.join()

    @abstractmethod
    def seen(self, kind: str, pod: Object) -> None:
        """kind: ADDED, MODIFIED or DELETED."""

    def _follow(self) -> None:
        while not self._stream.is_closed:
            try:
                listed = self._api.get(PODS)
                for pod in listed["items"]:
                    self._see("ADDED", pod)
                version = listed["metadata"]["resourceVersion"]
                while not self._stream.is_closed:
                    for change in self._api.watch(PODS, version, timeout_s=WATCH_S, stream=self._stream):
                        version = change["object"]["metadata"]["resourceVersion"]
                        if change["type"] != "BOOKMARK":
                            self._see(change["type"], change["object"])
            except ClusterError:
                self._stream.wait(PAUSE_S)

    def _see(self, kind: str, pod: Object) -> None:
        if manifests.GANG in pod["metadata"].get("labels", {}):
            self.seen(kind, pod)
