"""What a launch requests, and that one which the API server refuses half way leaves nothing of its gang, also not in
what this process shows."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from gpu_scheduler.clusters.base import ClusterBusy, GangBlocked, LaunchRefused, ProvisionOutdated
from gpu_scheduler.clusters.kubernetes.client import (
    Conflict,
    NoPermission,
    NotFound,
    Object,
    RequestRejected,
    Stream,
)
from gpu_scheduler.clusters.kubernetes.driver import SERVICES, KubernetesCluster
from gpu_scheduler.clusters.kubernetes.settings import KubernetesSettings
from gpu_scheduler.clusters.kubernetes.view import View
from gpu_scheduler.clusters.kubernetes.watching import NODES, PODS
from tests.gpu_scheduler.clusters.harness import launch
from tests.gpu_scheduler.clusters.node_daemon import wait_for

SETTINGS = KubernetesSettings(
    installation="here", agent_image="test.invalid/agent:1", runtime_image="test.invalid/{runtime}:1"
)
GANG = "job-x-1"
EXCEEDED = (
    'pods "job-x-1-1" is forbidden: exceeded quota: luthier-jobs, requested: pods=1,requests.nvidia.com/gpu=2, used:'
    " pods=0,requests.nvidia.com/gpu=0, limited: pods=0,requests.nvidia.com/gpu=0"
)
INVALID = RequestRejected(422, "Invalid", "spec.nodeName: Invalid value")
NODE = {
    "metadata": {"name": "node-a"},
    "status": {
        "conditions": [{"type": "Ready", "status": "True"}],
        "allocatable": {"pods": "9", "cpu": "8", "memory": "8Gi"},
        "capacity": {},
    },
}


class Refusing:
    """An API server that takes each object but the second pod, and no pod once it is full. Its watches report
    nothing."""

    def __init__(self) -> None:
        self.objects: dict[str, Object] = {}
        self.version, self.lock = 5, threading.Lock()
        self.error: RequestRejected | None = INVALID
        """Of the second pod."""
        self.is_full = False
        """As with a quota: that is asked first, also about a pod that exists."""
        self.ends_at_once = True
        """A pod whose deletion is requested ends with it, as one that no kubelet has seen yet."""
        self.role = True
        self.looked_at: list[str] = []
        """Single objects."""

    def get(self, path: str, **query: str) -> Object:
        kind = path.rpartition("/")[2]
        if path in (NODES, PODS, SERVICES):
            if path == SERVICES and not self.role:
                raise NoPermission(403, "Forbidden", "")
            found = [each for at, each in self.objects.items() if f"/{kind}/" in at]
            items = [NODE] if path == NODES else found
            return {"items": items, "metadata": {"resourceVersion": str(self.version)}}
        self.looked_at.append(path)
        if path.startswith(f"{NODES}/"):
            return NODE
        return self._found(path)

    def create(self, path: str, manifest: Object) -> Object:
        name = manifest["metadata"]["name"]
        if path.endswith("/pods"):
            if self.is_full:
                raise RequestRejected(403, "Forbidden", EXCEEDED)
            if name.endswith("-1") and self.error is not None:
                raise self.error
        if f"{path}/{name}" in self.objects:
            raise Conflict(409, "AlreadyExists", "")
        space = path.split("/namespaces/")[1].partition("/")[0]
        return self._write(f"{path}/{name}", manifest, uid=f"uid of {path}/{name}", namespace=space)

    def delete(self, path: str, *, uid: str, grace_s: int | None = None) -> Object:
        found = self._found(path)
        assert found["metadata"]["uid"] == uid
        if "/pods/" not in path:
            return self.objects.pop(path)
        if not self.ends_at_once:
            found["spec"]["nodeName"] = "node-a"
        elif "nodeName" in found["spec"]:
            found["status"] = {"phase": "Failed"}
        return self._write(path, found, deletionTimestamp="2026-01-01T00:00:00Z")

    def patch(self, path: str, body: Object) -> Object:
        if "/services/" in path:
            return self._write(path, self._found(path), **body["metadata"])
        return self.objects.pop(path)  # without its finalizer

    def request(self, method: str, path: str) -> Object:
        self._found(path)
        return self.objects.pop(path)

    def watch(self, path: str, version: str, *, timeout_s: int, stream: Stream) -> Iterator[Object]:
        stream.wait(0.02)
        yield from ()

    def close(self) -> None:
        pass

    def _found(self, path: str) -> Object:
        if path not in self.objects:
            raise NotFound(404, "NotFound", "")
        return self.objects[path]

    def _write(self, path: str, found: Object, **metadata: Any) -> Object:
        with self.lock:
            self.version += 1
            changed = {**found["metadata"], **metadata, "resourceVersion": str(self.version)}
            self.objects[path] = {**found, "metadata": changed}
            return self.objects[path]


@pytest.fixture
def api() -> Refusing:
    return Refusing()


@pytest.fixture
def driver(api: Refusing) -> Iterator[KubernetesCluster]:
    server: Any = api
    driver = KubernetesCluster(SETTINGS, server)
    driver.watch(lambda names: None)
    wait_for(lambda: driver._watcher.view())
    yield driver
    driver.close()


def shown(driver: KubernetesCluster) -> list[str]:
    """The gangs of the cache, which the watch has not reported anything of."""
    found = driver._watcher.observation(None)
    assert found is not None
    return list(found.gangs)


def test_the_service_is_looked_at_only_if_it_is_there_already(
    driver: KubernetesCluster, api: Refusing
) -> None:
    driver.launch(launch(GANG, "runs"))
    assert api.looked_at == []
    made = dict(api.objects)
    driver.launch(launch(GANG, "runs"))
    assert len(api.looked_at) == 1
    assert api.objects == made


def test_a_gang_that_is_refused_half_way_is_removed_and_not_shown(
    driver: KubernetesCluster, api: Refusing
) -> None:
    with pytest.raises(LaunchRefused, match="Invalid value"):
        driver.launch(launch(GANG, "runs", "runs", "runs"))
    assert api.objects == {}
    assert shown(driver) == []
    view = driver._watcher.view()
    assert view is not None
    assert view.free("node-a").pods == 9, "and holds nothing of its node"


def test_pods_that_take_a_while_to_end_are_shown_as_stopping_until_they_are_removed(
    driver: KubernetesCluster, api: Refusing
) -> None:
    api.ends_at_once = False
    with pytest.raises(LaunchRefused):
        driver.launch(launch(GANG, "runs", "runs"))
    found = driver._watcher.observation(None)
    assert found is not None
    assert found.gangs[GANG].stopping
    api.ends_at_once = True
    driver.remove(GANG)
    assert (api.objects, shown(driver)) == ({}, [])


def test_a_gang_that_is_there_is_launched_again_although_the_quota_is_full(
    driver: KubernetesCluster, api: Refusing
) -> None:
    api.error = None
    gang = launch(GANG, "runs", "runs")
    driver.launch(gang)
    made, api.is_full = dict(api.objects), True
    driver.launch(gang)
    assert api.objects == made


def test_a_gang_that_another_process_launches_at_the_same_time_is_not_removed_for_a_quota_that_is_full(
    driver: KubernetesCluster, api: Refusing, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.error = None
    gang, look = launch(GANG, "runs"), driver._pod_names
    driver.launch(gang)
    made, looks = dict(api.objects), iter([lambda name: frozenset[str](), look])
    api.is_full = True
    monkeypatch.setattr(driver, "_pod_names", lambda name: next(looks)(name))
    driver.launch(gang)
    assert api.objects == made


def test_what_was_refused_half_way_is_gone_before_it_is_launched_again(
    driver: KubernetesCluster, api: Refusing
) -> None:
    gang = launch(GANG, "runs", "runs")
    api.ends_at_once = False
    with pytest.raises(LaunchRefused):
        driver.launch(gang)
    api.error = None
    with pytest.raises(GangBlocked, match="is being removed"):
        driver.launch(gang)
    api.ends_at_once = True
    driver.launch(gang)
    pods = [each for path, each in api.objects.items() if "/pods/" in path]
    assert len(pods) == 2
    assert not any("deletionTimestamp" in pod["metadata"] for pod in pods)


@pytest.mark.parametrize("ends_at_once", [True, False])
def test_a_gang_whose_service_was_deleted_by_hand_is_gone_before_it_is_launched_again(
    driver: KubernetesCluster, api: Refusing, *, ends_at_once: bool
) -> None:
    """Its pods keep the Service until they are removed, and a gang that is blocked for too long releases its slots."""
    api.error, api.ends_at_once = None, ends_at_once
    gang = launch(GANG, "runs", "runs")
    driver.launch(gang)
    [service] = [each for path, each in api.objects.items() if "/services/" in path]
    service["metadata"]["deletionTimestamp"] = "2026-12-01T00:00:00Z"
    if not ends_at_once:
        with pytest.raises(GangBlocked, match="is being removed"):
            driver.launch(gang)
        api.ends_at_once = True
    driver.launch(gang)
    assert len([path for path in api.objects if "/pods/" in path]) == 2
    assert not any("deletionTimestamp" in each["metadata"] for each in api.objects.values())


def test_a_gang_that_may_be_accepted_later_is_not_said_to_be_gone(
    driver: KubernetesCluster, api: Refusing
) -> None:
    """Another process may launch it next, and this one must look for it."""
    api.error = RequestRejected(403, "Forbidden", EXCEEDED)
    with pytest.raises(GangBlocked):
        driver.launch(launch(GANG, "runs", "runs"))
    assert GANG not in driver._gone


@pytest.mark.parametrize(
    ("said", "what"),
    [
        (EXCEEDED, "no room for pods, requests.nvidia.com/gpu, "),
        (
            'pods "x" is forbidden: no PriorityClass with name luthier-here-opportunistic was found',
            "no PriorityClass",
        ),
        ("namespace luthier-red is being terminated", ""),
    ],
)
def test_a_gang_that_may_be_accepted_later_leaves_nothing_either_and_can_be_launched_then(
    driver: KubernetesCluster, api: Refusing, said: str, what: str
) -> None:
    api.error = RequestRejected(403, "Forbidden", said)
    with pytest.raises(GangBlocked) as blocked:
        driver.launch(launch(GANG, "runs", "runs"))
    assert isinstance(blocked.value, ProvisionOutdated) is bool(what)
    assert what in str(blocked.value)
    if what:
        assert "namespace luthier-red" in str(blocked.value) or "PriorityClass" in str(blocked.value)
        assert str(blocked.value).endswith("manage.py tenant_provision red")
        assert "limited" not in str(blocked.value), "guests read it, too"
    assert (api.objects, shown(driver)) == ({}, [])
    driver.launch(launch(GANG, "runs"))
    assert shown(driver) == [GANG]


def test_a_role_that_is_lost_meanwhile_hides_no_reason(driver: KubernetesCluster, api: Refusing) -> None:
    api.error, api.role = NoPermission(403, "Forbidden", ""), False
    with pytest.raises(LaunchRefused, match=r"manage\.py tenant_provision red"):
        driver.launch(launch(GANG, "runs", "runs"))


def test_what_was_launched_before_is_launched_on_although_the_cluster_cannot_be_listed(
    driver: KubernetesCluster, api: Refusing, monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy() -> View:
        raise ClusterBusy("The API server is busy.")

    driver.launch(launch(GANG, "runs"))
    monkeypatch.setattr(driver, "_view", busy)
    driver.launch(launch(GANG, "runs"))
    with pytest.raises(ClusterBusy):
        driver.launch(launch("job-y-1", "runs"))


def test_a_launch_that_is_blocked_says_so_although_its_service_cannot_be_looked_at(
    driver: KubernetesCluster, api: Refusing, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise GangBlocked("node-a is full.", node="node-a")

    def busy(*_: object, **__: object) -> Object:
        raise ClusterBusy("The API server is busy.")

    monkeypatch.setattr("gpu_scheduler.clusters.kubernetes.driver._Launch.require_room", full)
    monkeypatch.setattr(api, "get", busy)
    with pytest.raises(GangBlocked, match="full") as refused:
        driver.launch(launch(GANG, "runs"))
    assert refused.value.node == "node-a"


def test_a_repeated_launch_waits_while_pods_may_not_be_listed(
    driver: KubernetesCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbidden(*_: object) -> frozenset[str]:
        raise NoPermission(403, "Forbidden", "pods is forbidden")

    driver.launch(launch(GANG, "runs"))
    monkeypatch.setattr(driver, "_pod_names", forbidden)
    with pytest.raises(NoPermission, match="pods is forbidden"):  # LaunchRefused would end the job for good
        driver.launch(launch(GANG, "runs"))


def test_a_launch_of_a_tenant_that_is_not_provisioned_names_the_remedy_whatever_else_is_forbidden(
    driver: KubernetesCluster, api: Refusing, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbidden(*_: object, **__: object) -> Any:
        raise NoPermission(403, "Forbidden", "pods is forbidden")

    monkeypatch.setattr(driver, "_view", forbidden)
    monkeypatch.setattr(api, "get", forbidden)
    with pytest.raises(LaunchRefused, match=r"manage\.py tenant_provision red"):
        driver.launch(launch(GANG, "runs"))
