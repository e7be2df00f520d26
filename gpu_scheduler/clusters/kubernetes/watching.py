"""The cluster's nodes and pods in memory: listed once, then kept current by one watch each for all of a process.

The API server ends each watch after WATCH_S, and the next one continues where it ended. So an answer that comes every
WATCH_S proves that the watch is alive, which silence does not, and what is shown is at most STALE_S old. Whatever
breaks a watch leads to a new list: behind it may be a restored etcd, which counts from lower versions on. A watch from
a version that it has not reached yet ends like any other and reports nothing, so versions are also compared.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from gpu_scheduler.clusters.base import (
    STALE_S,
    ClusterBusy,
    ClusterError,
    GangReport,
    LearnerPhase,
    Observation,
    OnChange,
    Watch,
    Watches,
)
from gpu_scheduler.clusters.cache import GangCache
from gpu_scheduler.clusters.kubernetes import versions
from gpu_scheduler.clusters.kubernetes.client import Api, Object, Stream
from gpu_scheduler.clusters.kubernetes.settings import KubernetesSettings
from gpu_scheduler.clusters.kubernetes.versions import Newest
from gpu_scheduler.clusters.kubernetes.view import KeptPod, OwnWrites, View, gang_of, kept_node

logger = logging.getLogger(__name__)

NODES, PODS = "/api/v1/nodes", "/api/v1/pods"
WATCH_S = 2
RECONNECT_S, RECONNECT_MAX_S = 0.5, 8.0
"""Seconds between two attempts: doubled after each failure, up to the second number, with jitter: many processes lose
the API server at the same moment."""
COMPARED_EVERY = 5
"""Watches (of WATCH_S) after which the version that is followed is compared with that of the API server."""


class Watcher:
    """Runs while there is a watch. Safe to share between threads."""

    def __init__(
        self, api: Api, settings: KubernetesSettings, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._api = api
        self._clock = clock
        self._cache = GangCache(clock)
        self._watches = Watches()  # not the cache's: they are notified once the lock is free
        self._lock = threading.RLock()
        self._view = View(settings)
        self._seen_at: dict[str, float] = {}
        """When the nodes and the pods were last known to be complete. Missing: not listed yet."""
        self._revision = 0
        """Of the pods: everything up to this version has been reported."""
        self._own = OwnWrites()
        self._newest = {NODES: Newest(clock), PODS: Newest(clock, self._restarted)}
        self._threads: list[_Follower] = []

    def watch(self, on_change: OnChange) -> Watch:
        watch = self._watches.add(on_change, on_close=self._close_if_unwatched)
        with self._lock:
            if not self._threads:
                self._threads = [
                    _Follower(self._api, path, self._newest[path], relist, changed, self._confirmed)
                    for path, relist, changed in (
                        (NODES, self._list_nodes, self._node_changed),
                        (PODS, self._list_pods, self._pod_changed),
                    )
                ]
                for thread in self._threads:
                    thread.start()
        return watch

    def observation(self, names: Sequence[str] | None) -> Observation | None:
        """What the cache shows; None if the API server must be asked."""
        with self._lock:
            if not self._is_current():
                return None
            # What a pod waits for may be clear only once it has waited for long, without any change of it.
            if waiting := [name for name in names or () if _is_preparing(self._cache.last(name))]:
                self._update(waiting)
            found = self._cache.observation(names)
            return None if found is None else replace(found, seen_at=self._seen_at[PODS])

    def view(self) -> View | None:
        """A copy of everything; None if the API server must be asked."""
        with self._lock:
            if not self._is_current() or self._cache.observation([]) is None:
                return None
            return self._view.copy()

    def nodes(self) -> list[Object] | None:
        """None if the API server must be asked."""
        with self._lock:
            return list(self._view.nodes.values()) if self._is_current() else None

    def wrote(self, pod: Object) -> None:
        """Show this pod, which this process has made or changed, as the API server returned it, and nothing older."""
        version = versions.number(pod["metadata"].get("resourceVersion", ""))
        self._newest[PODS].note(version)
        with self._lock:
            if self._threads and version > self._revision and "uid" in pod["metadata"]:
                self._own.add(pod)
                self._show(pod)

    def listed(self, path: str, **query: str) -> list[Object]:
        """This collection, or a part of it, from the API server. Raises ClusterBusy, also if it is outdated."""
        keep = kept_node if path == NODES else _whole
        return versions.listed(self._api, path, self._newest[path], query, keep)[0]

    def listed_pods(self, **query: str) -> list[KeptPod]:
        """As listed, for what a view keeps of pods: those of a whole cluster may be more than there is memory for."""
        return versions.listed(self._api, PODS, self._newest[PODS], query, self._view.kept)[0]

    def probe(self, path: str) -> None:
        """Raises ClusterError unless this collection can be listed now, without listing it."""
        versions.version_of(self._api, path, self._newest[path])

    def removed(self, pod: Object) -> None:
        """Show this pod no more."""
        version, uid = versions.number(pod["metadata"]["resourceVersion"]), pod["metadata"]["uid"]
        with self._lock:
            # Otherwise its deletion has been reported, and no report would ever take the note of it away.
            if self._threads and (version > self._revision or self._view.has_pod(uid)):
                self._own.remove(pod)
                self._drop(pod)

    def close(self) -> None:
        with self._lock:
            threads, self._threads = self._threads, []
            self._seen_at.clear()
            self._own.clear()
            self._cache.lose()
        for thread in threads:
            thread.close()

    def _close_if_unwatched(self) -> None:
        if not self._watches:
            self.close()

    def _is_current(self) -> bool:
        ages = [self._clock() - at for at in self._seen_at.values()]
        return len(ages) == 2 and max(ages) <= STALE_S

    def _list_nodes(self) -> str:
        nodes, version = versions.listed(self._api, NODES, self._newest[NODES], {}, kept_node)
        self._nodes_listed(nodes, version)
        return version

    def _list_pods(self) -> str:
        pods, version = versions.listed(self._api, PODS, self._newest[PODS], {}, self._view.kept)
        self._pods_listed(pods, version)
        return version

    def _nodes_listed(self, items: Iterable[Object], version: str) -> None:
        with self._lock:
            self._view.nodes = {node["metadata"]["name"]: node for node in items}
            changed = self._listed(NODES)
        self._watches.notify(changed)

    def _pods_listed(self, items: Sequence[KeptPod], version: str) -> None:
        with self._lock:
            before = self._view.gang_names()
            self._revision = versions.number(version)
            self._view.clear_pods()
            for each in items:
                if each.pod is None:
                    self._view.put(each)
            ours = [each.pod for each in items if each.pod is not None]
            for pod in self._own.listed(ours, self._revision):
                self._view.put_pod(pod)
            changed = before | self._listed(PODS)
        self._watches.notify(changed)

    def _restarted(self) -> None:
        """Versions count from lower ones on: what was written before may never be reached, and what was removed may be
        there again."""
        with self._lock:
            self._own.clear()

    def _listed(self, what: str) -> set[str]:
        self._seen_at[what] = self._clock()
        if len(self._seen_at) == 2:
            self._cache.replace(self._view.gangs(), self._revision)
        return self._view.gang_names()

    def _confirmed(self, what: str) -> None:
        with self._lock:
            self._seen_at[what] = self._clock()
            self._cache.update([], [], self._revision)

    def _node_changed(self, kind: str, node: Object) -> None:
        name = node["metadata"]["name"]
        changed: list[str] = []
        with self._lock:
            before = self._view.is_ready(name)
            if kind == "DELETED":
                self._view.nodes.pop(name, None)
            else:
                self._view.put_node(node)
            self._seen_at[NODES] = self._clock()
            if self._view.is_ready(name) != before:
                changed = sorted(self._view.gangs_on(name))
                self._update(changed)
        self._watches.notify(changed)

    def _pod_changed(self, kind: str, pod: Object) -> None:
        with self._lock:
            self._seen_at[PODS] = self._clock()
            self._revision = max(self._revision, versions.number(pod["metadata"]["resourceVersion"]))
            gang = gang_of(pod, self._view.settings)
            before = None if gang is None else self._cache.last(gang)
            if kind == "DELETED":
                self._own.deleted(pod["metadata"]["uid"])
                self._drop(pod)
            elif (newest := self._own.newest(pod)) is None:
                self._update_gang_of(pod)
            else:
                self._show(newest)
            self._own.reported(self._revision)
            # Half of a pod's changes say nothing about its learner, and each would have its job looked at.
            is_other = gang is not None and (
                kind == "DELETED" or _says(self._cache.last(gang)) != _says(before)
            )
        self._watches.notify([gang] if gang is not None and is_other else [])

    def _show(self, pod: Object) -> None:
        self._view.put_pod(pod)
        self._update_gang_of(pod)

    def _drop(self, pod: Object) -> None:
        self._view.drop_pod(pod["metadata"]["uid"])
        self._update_gang_of(pod)

    def _update_gang_of(self, pod: Object) -> None:
        gang = gang_of(pod, self._view.settings)
        self._update([] if gang is None else [gang])

    def _update(self, gangs: Sequence[str]) -> None:
        found = self._view.gangs(gangs)
        gone = set(gangs) - {report.name for report in found}
        self._cache.update(found, gone, self._revision)


def _is_preparing(gang: GangReport | None) -> bool:
    return gang is not None and any(learner.phase is LearnerPhase.PREPARING for learner in gang.learners)


def _says(gang: GangReport | None) -> tuple[object, ...]:
    """What there is to see beyond learners that are being prepared, as all are at first: the worker that launched
    them looks at them again."""
    if gang is None:
        return (), False, ""
    shown = tuple(
        each
        for each in gang.learners
        if each.phase is not LearnerPhase.PREPARING or each.reason is not None or each.message
    )
    return shown, gang.stopping, gang.message


def _whole(found: Object) -> Object:
    return found


class _Follower(threading.Thread):
    """Lists one collection and follows its changes until it is closed. Never gives up.

    relist: lists it, and returns the version to follow from.
    """

    def __init__(
        self,
        api: Api,
        path: str,
        newest: Newest,
        relist: Callable[[], str],
        changed: Callable[[str, Object], None],
        confirmed: Callable[[str], None],
    ) -> None:
        super().__init__(name=f"watch {path}", daemon=True)
        self._api = api
        self._path = path
        self._newest = newest
        self._relist = relist
        self._changed = changed
        self._confirmed = confirmed
        self._stream = Stream()
        self._version: str | None = None
        self._watches = 0
        """Since the version was last compared."""
        self._failures = 0

    def run(self) -> None:
        while not self._stream.is_closed:
            try:
                if self._version is None:
                    self._version, self._watches = self._relist(), 0
                self._follow()
                self._failures = 0
                continue
            except ClusterError as error:
                if not self._stream.is_closed:
                    logger.info("cluster watch interrupted", extra={"of": self._path, "error": str(error)})
            except Exception:
                logger.exception("cluster watch failed")
            self._version = None
            self._pause()

    def close(self) -> None:
        """End the thread; waits for it unless it is the caller."""
        self._stream.close()
        if threading.current_thread() is not self:
            self.join(timeout=5)

    def _follow(self) -> None:
        assert self._version is not None
        for change in self._api.watch(self._path, self._version, timeout_s=WATCH_S, stream=self._stream):
            if self._stream.is_closed:
                return
            if change["type"] != "BOOKMARK":
                self._changed(change["type"], change["object"])
            self._version = change["object"]["metadata"]["resourceVersion"]
            self._newest.note(versions.number(self._version))
        self._compare()
        if not self._stream.is_closed:
            self._confirmed(self._path)

    def _compare(self) -> None:
        """Raises ClusterBusy if the API server has not reached the version that is followed."""
        self._watches += 1
        if self._stream.is_closed or self._watches < COMPARED_EVERY:
            return
        version = versions.version_of(self._api, self._path, self._newest)
        if versions.number(version) < versions.number(self._version or ""):
            raise ClusterBusy(versions.OLDER)
        self._watches = 0

    def _pause(self) -> None:
        longest = min(RECONNECT_MAX_S, RECONNECT_S * 2.0 ** min(self._failures, 10))
        self._failures += 1
        self._stream.wait(random.uniform(longest / 2, longest))
