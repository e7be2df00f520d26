"""What the Kubernetes driver's cache shows, on an API server that answers exactly as a test sets it up to."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from typing import Any

import pytest

from gpu_scheduler.clusters.base import ClusterBusy, Observation
from gpu_scheduler.clusters.kubernetes import manifests
from gpu_scheduler.clusters.kubernetes.client import Object, Stream
from gpu_scheduler.clusters.kubernetes.settings import KubernetesSettings
from gpu_scheduler.clusters.kubernetes.watching import NODES, OUTDATED_S, PODS, Watcher
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
    """An API server with two pods, whose watches report what is put into `changes`."""

    def __init__(self) -> None:
        self.changes: queue.Queue[Object] = queue.Queue()

    def get(self, path: str, **query: str) -> Object:
        items = [pod(0, 1), pod(1, 2)] if path == PODS else []
        return {"items": items, "metadata": {"resourceVersion": "2"}}

    def watch(self, path: str, version: str, *, timeout_s: int, stream: Stream) -> Iterator[Object]:
        if path == NODES:
            stream.wait(0.02)
            return
        try:
            yield self.changes.get(timeout=0.02)
        except queue.Empty:
            return


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


def test_a_pod_that_this_process_removed_is_not_shown_before_the_watch_reports_it(
    watcher: Watcher, api: Scripted
) -> None:
    assert ranks(watcher) == [0, 1]
    watcher.removed(pod(0, 1))
    assert ranks(watcher) == [1]

    api.changes.put({"type": "MODIFIED", "object": pod(0, 3)})  # from before its removal
    api.changes.put({"type": "DELETED", "object": pod(0, 4)})
    api.changes.put({"type": "MODIFIED", "object": pod(1, 5)})
    watcher.require({"metadata": {"resourceVersion": "5"}})
    wait_for(lambda: watcher.observation(None))
    assert ranks(watcher) == [1]
    assert not watcher._removed


def test_a_list_that_is_older_than_what_was_written_is_refused_but_not_forever(api: Scripted) -> None:
    """An API server whose etcd was restored from a backup returns lower versions from then on."""
    server: Any = api
    now = 1000.0
    watcher = Watcher(server, SETTINGS, clock=lambda: now)
    assert len(watcher.listed(PODS)) == 2
    watcher.require({"metadata": {"resourceVersion": "5"}})
    with pytest.raises(ClusterBusy, match="older than what it showed before"):
        watcher.listed(PODS)
    assert watcher.listed(NODES) == []
    now += OUTDATED_S + 1
    assert len(watcher.listed(PODS)) == 2
