"""What it takes on Kubernetes until a gang counts as gone, with a cache in front of the API server."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_scheduler.clusters.base import (
    ABSENCE_S,
    APART_S,
    Absences,
    ClusterBusy,
    GangBlocked,
    LaunchRefused,
    Removal,
)
from gpu_scheduler.clusters.kubernetes import manifests
from gpu_scheduler.clusters.kubernetes.client import Conflict, NotFound, Object
from gpu_scheduler.clusters.kubernetes.driver import KubernetesCluster
from gpu_scheduler.clusters.kubernetes.settings import KubernetesSettings
from gpu_scheduler.clusters.kubernetes.watching import NODES, PODS
from tests.gpu_scheduler.clusters.harness import launch

SETTINGS = KubernetesSettings(
    installation="here", agent_image="test.invalid/agent:1", runtime_image="test.invalid/{runtime}:1"
)
GANG = "job-x-1"
ENDED = {"state": {"terminated": {"exitCode": 0}}}


def ended_pod() -> Object:
    labels = {manifests.INSTALLATION: "here", manifests.GANG: GANG, manifests.RANK: "0"}
    metadata = {"name": f"{GANG}-0", "namespace": "luthier-red", "uid": "uid-0", "resourceVersion": "7"}
    return {
        "metadata": {**metadata, "labels": labels, "annotations": {manifests.NODE: "node-a"}},
        "spec": {"nodeName": "node-a", "containers": [{"name": manifests.LEARNER}]},
        "status": {"phase": "Succeeded", "containerStatuses": [{"name": manifests.LEARNER, **ENDED}]},
    }


class Lists:
    """An API server that returns these pods in lists of this version, and has no other object."""

    def __init__(self, *pods: Object, version: int) -> None:
        self.pods, self.version = list(pods), version

    def get(self, path: str, **query: str) -> Object:
        if path.count("/") > PODS.count("/"):
            raise NotFound(404, "NotFound", "")
        items = self.pods if path == PODS else []
        return {"items": items, "metadata": {"resourceVersion": str(self.version)}}

    def delete(self, path: str, *, uid: str, grace_s: int) -> Object:
        self.pods, self.version = [], 9
        return {"metadata": {"resourceVersion": "8"}}

    def patch(self, path: str, body: Object) -> Object:
        return body


class Changing(Lists):
    """Someone changes the pod whenever its finalizer is to be taken away."""

    def delete(self, path: str, *, uid: str, grace_s: int) -> Object:
        self.version = 8
        return {"metadata": {"resourceVersion": "8"}}

    def patch(self, path: str, body: Object) -> Object:
        raise Conflict(409, "Conflict", "the object has been modified")


class FullNode(Lists):
    """Has one node, which cannot take another pod."""

    def get(self, path: str, **query: str) -> Object:
        found = super().get(path, **query)
        if path == NODES:
            status = {"conditions": [{"type": "Ready", "status": "True"}], "allocatable": {"pods": "0"}}
            found["items"] = [{"metadata": {"name": "node-a"}, "status": status}]
        return found


class Launched(Lists):
    """Has all objects of the gang, but none of its nodes any more."""

    def get(self, path: str, **query: str) -> Object:
        if path.endswith(f"/services/{GANG}"):
            return {"metadata": {"name": GANG, "uid": "service"}}
        return super().get(path, **query)

    def create(self, path: str, body: Object) -> Object:
        raise Conflict(409, "AlreadyExists", "")


def on(api: Any) -> KubernetesCluster:
    return KubernetesCluster(SETTINGS, api)


def test_one_list_without_a_gang_is_no_proof_in_a_process_that_never_saw_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A worker that has just started cannot know that the list is old."""
    now, absences, driver = 1000.0, Absences(), on(Lists(version=5))
    monkeypatch.setattr("time.monotonic", lambda: now)
    for after_s in (0, APART_S / 2):
        now += after_s
        assert not absences.is_gone(GANG, driver.observe([GANG]))
    now += APART_S
    assert absences.is_gone(GANG, driver.observe([GANG]))


def test_what_this_process_removed_is_gone_at_once() -> None:
    driver = on(Lists(ended_pod(), version=7))
    assert driver.remove(GANG) is Removal.GONE
    assert Absences().is_gone(GANG, driver.observe([GANG]))


def test_a_pod_that_someone_changes_while_it_is_removed_is_not_gone() -> None:
    """A conflict may be of its uid, then it is, or of its version."""
    driver = on(Changing(ended_pod(), version=7))
    assert driver.remove(GANG) is Removal.TERMINATING
    assert list(driver.observe([GANG]).gangs) == [GANG]


def test_what_the_api_server_says_was_never_made_is_gone_at_once() -> None:
    driver = on(Lists(version=5))
    with pytest.raises(LaunchRefused):
        driver.launch(launch(GANG, "runs"))
    assert Absences().is_gone(GANG, driver.observe([GANG]))


def test_what_waits_to_be_launched_is_not_gone_since_another_process_may_launch_it() -> None:
    driver = on(FullNode(version=5))
    with pytest.raises(GangBlocked):
        driver.launch(launch(GANG, "runs"))
    assert not Absences().is_gone(GANG, driver.observe([GANG]))


def test_what_was_launched_before_is_not_refused_for_the_room_that_it_holds() -> None:
    driver = on(Launched(version=5))
    driver.launch(launch(GANG, "runs"))
    assert not Absences().is_gone(GANG, driver.observe([GANG]))


def test_what_this_process_knew_to_be_gone_is_looked_for_again_after_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, driver = 1000.0, on(Lists(ended_pod(), version=7))
    monkeypatch.setattr("time.monotonic", lambda: now)
    assert driver.remove(GANG) is Removal.GONE
    now += ABSENCE_S + 1
    assert not Absences().is_gone(GANG, driver.observe([GANG]))


def test_a_list_without_its_pods_that_is_too_old_removes_nothing() -> None:
    api = Lists(ended_pod(), version=7)
    driver = on(api)
    assert list(driver.observe([GANG]).gangs) == [GANG]
    api.pods, api.version = [], 5
    with pytest.raises(ClusterBusy):
        driver.remove(GANG)
    with pytest.raises(ClusterBusy):
        driver.stop(GANG, grace_s=1)
