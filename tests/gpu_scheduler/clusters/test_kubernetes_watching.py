"""What the Kubernetes driver's cache shows, on an API server that answers exactly as a test sets it up to."""

from __future__ import annotations

import queue
import threading
import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from gpu_scheduler.clusters.base import STALE_S, ClusterBusy, Observation
from gpu_scheduler.clusters.kubernetes import manifests, reports, versions
from gpu_scheduler.clusters.kubernetes.client import Object, RequestRejected, Stream
from gpu_scheduler.clusters.kubernetes.driver import KubernetesCluster
from gpu_scheduler.clusters.kubernetes.settings import KubernetesSettings
from gpu_scheduler.clusters.kubernetes.versions import OUTDATED_S
from gpu_scheduler.clusters.kubernetes.view import View
from gpu_scheduler.clusters.kubernetes.watching import NODES, PODS, Watcher
from tests.gpu_scheduler.clusters.node_daemon import wait_for

SETTINGS = KubernetesSettings(installation="here", agent_image="test.invalid/agent:1")


def pod(rank: int, version: int) -> Object:
    labels = {manifests.INSTALLATION: "here", manifests.GANG: "job-x-1", manifests.RANK: str(rank)}
    metadata = {"name": f"job-x-1-{rank}", "uid": f"uid-{rank}", "resourceVersion": str(version)}
    return {
        "metadata": {**metadata, "labels": labels, "annotations": {manifests.NODE: "node-a"}},
        "spec": {"nodeName": "node-a", "containers": [{"name": manifests.LEARNER}]},
        "status": {"phase": "Running"},
    }


class Scripted:
    """An API server whose watches report what is put into `changes`, and nothing if they begin in the future."""

    def __init__(self) -> None:
        self.changes: queue.Queue[Object] = queue.Queue()
        self.pods = [pod(0, 1), pod(1, 2)]
        self.version = 2
        self.breaks = threading.Event()
        """Set: the next watch of the pods ends with an error."""
        self.lists: Counter[str] = Counter()
        """Whole ones, by their path."""
        self.forgets = 0
        """So many requests for another page than the first are refused: the list's version is not known any more."""

    def get(self, path: str, **query: str) -> Object:
        items, limit = self.pods if path == PODS else [], int(query["limit"])
        version, first = query.get("continue", f"{self.version}/0").split("/")
        last = int(first) + limit
        self.lists[path] += limit > 1 and first == "0"
        if first != "0" and self.forgets:
            self.forgets -= 1
            raise RequestRejected(410, "Expired", "The provided continue parameter is too old.")
        rest = {"continue": f"{version}/{last}"} if last < len(items) else {}
        return {"items": items[int(first) : last], "metadata": {"resourceVersion": version, **rest}}

    def watch(self, path: str, version: str, *, timeout_s: int, stream: Stream) -> Iterator[Object]:
        if path == NODES or int(version) > self.version:
            stream.wait(0.02)
            return
        if self.breaks.is_set():
            self.breaks.clear()
            raise ClusterBusy("The connection broke.")
        try:
            change = self.changes.get(timeout=0.02)
        except queue.Empty:
            return
        self.version = int(change["object"]["metadata"]["resourceVersion"])
        yield change

    def list_twice_more(self) -> None:
        """Wait until each collection has been requested and what came of it has been used."""
        wanted = {path: self.lists[path] + 2 for path in (NODES, PODS)}
        wait_for(lambda: all(self.lists[path] >= count for path, count in wanted.items()))


def show_list(watcher: Watcher, pods: list[Object], version: str) -> None:
    watcher._pods_listed([watcher._view.kept(pod) for pod in pods], version)


def deleted(pod: Object) -> Object:
    return {**pod, "metadata": {**pod["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}}


@pytest.fixture
def api() -> Scripted:
    return Scripted()


@pytest.fixture
def watcher(api: Scripted) -> Iterator[Watcher]:
    server: Any = api
    watcher = Watcher(server, SETTINGS)
    watcher.watch(lambda names: None)
    wait_for(lambda: watcher.observation(None))
    yield watcher
    watcher.close()


def ranks(watcher: Watcher) -> list[int]:
    found = watcher.observation(None)
    assert isinstance(found, Observation)
    return [learner.rank for gang in found.gangs.values() for learner in gang.learners]


def stopping(watcher: Watcher) -> bool:
    found = watcher.observation(None)
    assert found is not None
    return found.gangs["job-x-1"].stopping


def test_a_pod_that_this_process_removed_is_not_shown_before_the_watch_reports_it(
    watcher: Watcher, api: Scripted
) -> None:
    assert ranks(watcher) == [0, 1]
    watcher.removed(pod(0, 1))
    assert ranks(watcher) == [1]

    api.changes.put({"type": "MODIFIED", "object": pod(0, 3)})  # from before its removal
    api.changes.put({"type": "DELETED", "object": pod(0, 4)})
    api.changes.put({"type": "DELETED", "object": pod(1, 5)})
    wait_for(lambda: 1 not in ranks(watcher))
    assert ranks(watcher) == []
    assert not watcher._own


def test_a_pod_that_this_process_wrote_is_shown_at_once_and_no_list_is_needed(
    watcher: Watcher, api: Scripted
) -> None:
    before = api.lists.copy()
    watcher.wrote(pod(2, 5))
    watcher.wrote(deleted(pod(0, 6)))
    assert ranks(watcher) == [0, 1, 2]
    assert stopping(watcher)
    view = watcher.view()
    assert view is not None
    assert [len(gang.learners) for gang in view.gangs()] == [3]
    assert api.lists == before


def test_a_change_that_says_nothing_of_a_learner_is_not_reported(watcher: Watcher, api: Scripted) -> None:
    api.version = 9  # what is written here is older than its lists
    ready = {"conditions": [{"type": "Ready", "status": "True"}]}
    watcher._nodes_listed([{"metadata": {"name": "node-a"}, "status": ready}], "9")
    seen: list[set[str]] = []
    watcher.watch(seen.append)
    watcher.wrote(pod(2, 3))
    waits = {**pod(3, 4), "status": {"phase": "Pending"}}
    containers = [{"name": manifests.LEARNER, "state": {"running": {}}}]
    runs = {**pod(3, 6), "status": {"phase": "Running", "containerStatuses": containers}}
    waiting = {"waiting": {"reason": "ErrImagePull", "message": "no such host"}}
    pulling = [{"name": manifests.LEARNER, "image": "x", "state": waiting}]
    pulls = {**pod(3, 5), "status": {"phase": "Pending", "containerStatuses": pulling}}
    bound = {**waits, "metadata": {**waits["metadata"], "resourceVersion": "5"}}
    for kind, change, reported in (
        ("ADDED", pod(2, 3), False),  # as this process made it
        ("ADDED", waits, False),  # as another process made it
        ("MODIFIED", bound, False),
        ("MODIFIED", pulls, True),
        ("ADDED", {**pulls, **pod(4, 5), "status": pulls["status"]}, True),  # one more that waits
        ("MODIFIED", runs, True),
        ("MODIFIED", {**pod(3, 7), "status": {"phase": "Failed"}}, True),
        ("DELETED", pod(3, 8), True),
    ):
        watcher._pod_changed(kind, change)
        assert seen == [{"job-x-1"}] * reported, (kind, change)
        seen.clear()
    watcher.removed(pod(2, 3))
    watcher._pod_changed("DELETED", pod(2, 9))
    assert seen == [{"job-x-1"}], "what this process has removed is gone now"


def test_what_a_pod_has_waited_for_is_seen_although_it_does_not_change(
    watcher: Watcher, api: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kubelet that cannot mount a volume tries again and again, and says nothing in the pod's status."""

    def says() -> str:
        found = watcher.observation(["job-x-1"])
        assert found is not None
        return found.gangs["job-x-1"].message

    api.version = 9
    ready = {"conditions": [{"type": "Ready", "status": "True"}]}
    watcher._nodes_listed([{"metadata": {"name": "node-a"}, "status": ready}], "9")
    unprepared = {
        "type": "PodReadyToStartContainers",
        "status": "False",
        "lastTransitionTime": "2020-01-01T00:00:00+00:00",
    }
    monkeypatch.setattr(reports, "PREPARED_S", 10.0**12)
    status = {"phase": "Pending", "conditions": [unprepared]}
    watcher._pod_changed("MODIFIED", {**pod(0, 3), "status": status})
    assert says() == ""
    monkeypatch.setattr(reports, "PREPARED_S", 15.0)
    assert says().startswith("Learner 0: Node node-a has not prepared its volumes")


def test_a_change_that_was_reported_late_does_not_undo_what_this_process_wrote_after_it(
    watcher: Watcher, api: Scripted
) -> None:
    watcher.wrote(deleted(pod(0, 6)))
    api.changes.put({"type": "MODIFIED", "object": pod(0, 4)})
    api.changes.put({"type": "MODIFIED", "object": pod(3, 5)})
    wait_for(lambda: 3 in ranks(watcher))
    assert stopping(watcher)

    api.changes.put({"type": "MODIFIED", "object": pod(0, 7)})
    wait_for(lambda: not stopping(watcher))
    assert not watcher._own


def test_what_another_removed_before_its_own_change_was_known_here_is_not_shown_again(
    watcher: Watcher, api: Scripted
) -> None:
    """The response to a request may be read after the watch has reported more."""
    api.changes.put({"type": "DELETED", "object": pod(0, 7)})
    wait_for(lambda: ranks(watcher) == [1])
    watcher.wrote(deleted(pod(0, 6)))
    assert ranks(watcher) == [1]


def test_a_removal_that_the_watch_has_reported_already_leaves_no_note(
    watcher: Watcher, api: Scripted
) -> None:
    """No report would ever take it away."""
    api.changes.put({"type": "DELETED", "object": pod(0, 7)})
    wait_for(lambda: ranks(watcher) == [1])
    watcher.removed(pod(0, 6))
    assert not watcher._own


def test_a_pod_that_cannot_be_read_changes_nothing() -> None:
    view = View.of([], [pod(0, 1)], SETTINGS)
    broken = pod(0, 2)
    broken["spec"]["containers"] = [{"name": "x", "resources": {"requests": {"cpu": "?"}}}]
    with pytest.raises(ValueError, match="not a quantity"):
        view.put_pod(broken)
    view.drop_pod("uid-0")
    assert view.gangs() == []


def test_a_node_that_changes_costs_a_look_at_none_of_the_pods(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many nodes may change at once, and each has few of the cluster's pods."""
    ended = {**pod(1, 2), "status": {"phase": "Succeeded"}}
    view = View.of([], [pod(0, 1), ended], SETTINGS).copy()
    monkeypatch.delattr(reports, "node_of")
    assert view.gangs_on("node-a") == {"job-x-1"}
    view.drop_pod("uid-0")
    assert view.gangs_on("node-a") == {"job-x-1"}
    view.drop_pod("uid-1")
    assert view.gangs_on("node-a") == view.gangs_on("node-b") == set()


def test_a_list_that_was_requested_before_a_change_does_not_undo_it(watcher: Watcher, api: Scripted) -> None:
    watcher.wrote(pod(2, 5))
    watcher.wrote(pod(3, 6))
    watcher.removed(pod(3, 6))
    watcher.removed(pod(1, 2))
    show_list(watcher, [pod(0, 1), pod(1, 2)], "4")
    assert ranks(watcher) == [0, 2]
    for kind, change in (("ADDED", pod(2, 5)), ("ADDED", pod(3, 6)), ("DELETED", pod(3, 7))):
        watcher._pod_changed(kind, change)
        assert ranks(watcher) == [0, 2]
    show_list(watcher, [pod(0, 1), pod(2, 5)], "8")
    assert ranks(watcher) == [0, 2]
    assert not watcher._own


def test_nodes_of_which_the_cache_is_current_are_not_listed_for_a_look_at_one_gang(
    watcher: Watcher, api: Scripted
) -> None:
    server: Any = api
    cluster = KubernetesCluster(SETTINGS, server)
    cluster._watcher = watcher
    before = api.lists.copy()
    cluster.observe(["job-unknown-1"])
    assert api.lists - before == Counter({PODS: 1})


def test_looks_at_a_thousand_jobs_ask_the_api_server_nothing(watcher: Watcher, api: Scripted) -> None:
    """Every one is looked at every few seconds: only the watches and their comparison are calls."""
    gangs = [f"job-{number}-1" for number in range(1000)]
    pods = []
    for number, gang in enumerate(gangs):
        one = pod(0, number)
        labels = one["metadata"]["labels"] | {manifests.GANG: gang}
        pods.append(one | {"metadata": one["metadata"] | {"uid": gang, "labels": labels}})
    show_list(watcher, pods, "2000")
    server: Any = api
    cluster = KubernetesCluster(SETTINGS, server)
    cluster._watcher = watcher
    before = api.lists.copy()
    for gang in gangs:
        assert list(cluster.observe([gang]).gangs) == [gang]
    for first in range(0, len(gangs), 16):  # as a worker looks at those that are due together
        assert len(cluster.observe(gangs[first : first + 16]).gangs) == len(gangs[first : first + 16])
    assert api.lists == before


def test_a_list_that_is_older_than_what_was_written_is_refused_but_not_forever(api: Scripted) -> None:
    """However long nothing has changed: what counts is for how long nothing else has been returned."""
    server: Any = api
    now = 1000.0
    watcher = Watcher(server, SETTINGS, clock=lambda: now)
    assert len(watcher.listed(PODS)) == 2
    watcher.wrote(pod(0, 5))
    now += 10 * OUTDATED_S
    for _ in range(2):
        with pytest.raises(ClusterBusy, match="older than what it showed before"):
            watcher.listed(PODS)
        now += OUTDATED_S - 1
        assert watcher.listed(NODES) == []
    api.version = 6
    assert len(watcher.listed(PODS)) == 2, "the cache is current for once"
    api.version = 2
    with pytest.raises(ClusterBusy, match="older than what it showed before"):
        watcher.listed(PODS)
    now += OUTDATED_S + 1
    assert len(watcher.listed(PODS)) == 2


def test_after_a_restore_of_etcd_nothing_is_shown_for_a_minute_and_then_what_there_is(api: Scripted) -> None:
    """No connection breaks, and a watch from a version that is not reached yet ends like any other."""
    server: Any = api
    now = 1000.0
    api.version = 1000
    watcher = Watcher(server, SETTINGS, clock=lambda: now)
    with closing(watcher.watch(lambda names: None)):
        wait_for(lambda: watcher.observation(None))
        watcher.removed(pod(1, 1))
        watcher.wrote(pod(0, 1001))

        api.pods, api.version = [pod(1, 499)], 500
        api.list_twice_more()
        now += STALE_S + 1
        assert watcher.observation(None) is None
        with pytest.raises(ClusterBusy, match="older than what it showed before"):
            watcher.listed(PODS)
        now += OUTDATED_S
        wait_for(lambda: watcher.observation(None))
        assert ranks(watcher) == [1]
        assert watcher.view() is not None


def test_a_watch_that_broke_is_followed_by_a_new_list(watcher: Watcher, api: Scripted) -> None:
    """Behind the next connection there may be an older state, which the next changes do not mention."""
    before = api.lists[PODS]
    api.pods = [pod(1, 2)]
    api.breaks.set()
    wait_for(lambda: api.lists[PODS] > before and ranks(watcher) == [1])


class OfOthers(dict[str, Any]):
    """A pod of another program, of which one can see whether it is still kept."""

    def __init__(self, number: int) -> None:
        super().__init__(
            metadata={"name": f"p{number}", "uid": f"other-{number}", "resourceVersion": "1"},
            spec={"nodeName": "node-a", "containers": [{"resources": {"requests": {"cpu": "1"}}}]},
            status={"phase": "Running"},
        )


def test_a_list_is_read_in_pages_and_nothing_of_others_pods_outlives_its_page(
    api: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cluster can have more pods than a process has memory for."""
    monkeypatch.setattr(versions, "PAGE", 3)
    given: list[weakref.ref[Object]] = []
    most = 0

    def pages(path: str, **query: str) -> Object:
        nonlocal most
        most = max(most, sum(each() is not None for each in given))
        first, limit = int(query.get("continue", "0")), int(query.get("limit", "100"))
        items: list[Object] = [OfOthers(n) for n in range(first, min(first + limit, 10))]
        items = items if path == PODS else []
        given.extend(map(weakref.ref, items))
        rest = {"continue": str(first + limit)} if path == PODS and first + limit < 10 else {}
        if path == PODS and not rest:
            items.append(pod(0, 1))
        return {"items": items, "metadata": {"resourceVersion": "2", **rest}}

    monkeypatch.setattr(api, "get", pages)
    server: Any = api
    watcher = Watcher(server, SETTINGS)
    with closing(watcher.watch(lambda names: None)):
        wait_for(lambda: watcher.observation(None))
        assert ranks(watcher) == [0]
        view = watcher.view()
    assert view is not None
    assert sum(each.amount.cpus for each in view._holdings("node-a") if not each.ours) == 10
    assert most <= 3
    most = 0
    KubernetesCluster(SETTINGS, server).nodes()  # of a process without a watch
    assert most <= 3


def test_a_list_whose_version_is_forgotten_between_two_pages_begins_again(
    api: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(versions, "PAGE", 1)
    server: Any = api
    watcher = Watcher(server, SETTINGS)
    api.forgets = versions.TRIES - 1
    assert [each["metadata"]["uid"] for each in watcher.listed(PODS)] == ["uid-0", "uid-1"]
    assert api.lists[PODS] == 0, "pages of one are no whole list here"
    api.forgets = versions.TRIES
    with pytest.raises(ClusterBusy, match="has forgotten 3 lists"):
        watcher.listed(PODS)
    assert api.forgets == 0


def test_pages_of_two_versions_are_no_list(api: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    """A watch from either one would miss what the other does not contain."""
    monkeypatch.setattr(versions, "PAGE", 1)
    server: Any = api
    watcher, get = Watcher(server, SETTINGS), api.get

    def jumps(path: str, **query: str) -> Object:
        found = get(path, **query)
        if "continue" in query:
            found["metadata"]["resourceVersion"] = "99"
            monkeypatch.setattr(api, "get", get)
        return found

    monkeypatch.setattr(api, "get", jumps)
    assert versions.listed(server, PODS, watcher._newest[PODS], {}, str)[1] == "2"


def test_a_probe_reads_one_object_of_each_kind_however_many_there_are(api: Scripted) -> None:
    api.pods = [OfOthers(n) for n in range(1200)]
    asked: list[dict[str, str]] = []
    get = api.get

    def noted(path: str, **query: str) -> Object:
        asked.append({"path": path, **query})
        return get(path, **query)

    server: Any = api
    api.get = noted  # type: ignore[method-assign]
    KubernetesCluster(SETTINGS, server).probe()
    assert asked == [{"path": path, "limit": "1"} for path in (NODES, PODS)]
