"""An API server that refuses, is slow, forgets or repeats old answers: what the driver's cache shows meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest

from gpu_scheduler.clusters.base import STALE_S, ClusterBusy, Observation
from gpu_scheduler.clusters.kubernetes import versions
from gpu_scheduler.clusters.kubernetes.driver import KubernetesCluster
from gpu_scheduler.clusters.kubernetes.watching import NODES, PODS
from tests.cluster.api_proxy import ApiProxy
from tests.cluster.kubernetes_harness import KubernetesHarness, PlayedApi
from tests.gpu_scheduler.clusters.harness import launch, remove
from tests.gpu_scheduler.clusters.node_daemon import wait_for
from tools.kube.cluster import Cluster

pytestmark = pytest.mark.cluster
RUNS, LATER = "job-runs-1", "job-later-1"
SLACK_S = 1.0
"""Between the age that a test computes and the one that counted inside the driver."""


@pytest.fixture
def harness(cluster: Cluster, two_nodes: None, tmp_path: Path) -> Iterator[KubernetesHarness]:
    """With a gang that runs; its own driver goes around the proxy."""
    harness = KubernetesHarness(cluster, tmp_path, f"test-{uuid4().hex[:8]}-")
    try:
        harness.cluster.launch(launch(RUNS, "runs", "runs"))
        harness.programs_run(RUNS)
        yield harness
    finally:  # what a failed test leaves would take the next one's room
        for name in (RUNS, LATER):
            remove(harness, name)
        harness.close()
        cluster.admin.delete(f"/api/v1/namespaces/{harness.settings.namespace('red')}")


@pytest.fixture
def proxy(harness: KubernetesHarness, cluster: Cluster, tmp_path: Path) -> Iterator[ApiProxy]:
    with closing(ApiProxy(cluster.service_account(), tmp_path)) as between:
        yield between


@pytest.fixture
def driver(harness: KubernetesHarness, proxy: ApiProxy) -> Iterator[KubernetesCluster]:
    """Behind the proxy, with a cache that is filled."""
    settings = replace(harness.settings, kubeconfig=str(proxy.kubeconfig))
    driver = KubernetesCluster(settings, PlayedApi(str(proxy.kubeconfig)))
    with closing(driver), closing(driver.watch(lambda names: None)):
        wait_for(lambda: is_cached(driver))
        yield driver


def is_cached(driver: KubernetesCluster) -> bool:
    return driver._watcher.observation([RUNS]) is not None


def observed(driver: KubernetesCluster) -> Observation | None:
    """None while the driver says that it does not know. Whatever it shows is complete, and not too old."""
    try:
        found, nodes = driver.observe(), driver.nodes()
    except ClusterBusy:
        return None
    assert time.monotonic() - found.seen_at <= STALE_S + SLACK_S
    assert RUNS in found.gangs, "a gang that runs is never shown as gone"
    assert {node.name for node in nodes} >= {"node-a", "node-b"}
    return found


def watched_until(driver: KubernetesCluster, done: Callable[[Observation | None], bool]) -> None:
    wait_for(lambda: done(observed(driver)))


def test_a_server_that_refuses_is_unknown_after_a_while_and_is_asked_rarely(
    driver: KubernetesCluster, proxy: ApiProxy
) -> None:
    with proxy.behaving(status=429, retry_after_s=1):
        began = time.monotonic()
        watched_until(driver, lambda found: found is None)
        for _ in range(100):
            assert observed(driver) is None
        refused, took_s = proxy.seen["refused"], time.monotonic() - began
        assert 0 < refused <= 4 * (took_s + 1), "each refusal says to wait for a second, to every thread"
    watched_until(driver, lambda found: found is not None and is_cached(driver))


def test_a_slow_server_delays_what_is_shown_and_no_more(driver: KubernetesCluster, proxy: ApiProxy) -> None:
    """Each response takes longer than a watch lasts."""
    with proxy.behaving(delay_s=2.5):
        watched_until(driver, lambda found: proxy.seen["watched"] >= 4)
    watched_until(driver, lambda found: found is not None and is_cached(driver))


def test_a_server_that_has_forgotten_the_changes_is_listed_again(
    driver: KubernetesCluster, proxy: ApiProxy, harness: KubernetesHarness
) -> None:
    with proxy.behaving(forgets=True):
        watched_until(driver, lambda found: proxy.seen["forgotten"] >= 4)
        harness.cluster.launch(launch(LATER, "runs"))
        watched_until(driver, lambda found: found is not None and LATER in found.gangs)
    watched_until(driver, lambda found: found is not None and is_cached(driver))


def test_a_list_from_before_a_gang_is_never_proof_of_its_absence(
    driver: KubernetesCluster, proxy: ApiProxy
) -> None:
    """A cache in between repeats the lists of an earlier moment. What this process has written or seen since is not
    in them: they say nothing."""
    with proxy.behaving(replays=True, forgets=True):
        watched_until(driver, lambda found: proxy.seen["replayed"] >= 2)
        driver.launch(launch(LATER, "runs"))
        repeated = proxy.seen["replayed"]

        def has_repeated(found: Observation | None) -> bool:
            assert found is None or LATER in found.gangs
            return proxy.seen["replayed"] > repeated + 4

        watched_until(driver, has_repeated)
    watched_until(driver, lambda found: found is not None and LATER in found.gangs and is_cached(driver))


def test_the_pages_of_a_list_are_of_one_version_and_are_the_whole_of_it(
    driver: KubernetesCluster, proxy: ApiProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    def listed() -> tuple[set[str], int]:
        """The uids, and how many responses it took."""
        before = proxy.seen["passed"]
        found = [each["metadata"]["uid"] for path in (NODES, PODS) for each in driver._watcher.listed(path)]
        assert len(set(found)) == len(found)
        return set(found), proxy.seen["passed"] - before

    whole, _ = listed()
    assert len(whole) >= 4, "two nodes, and the gang's pods"
    monkeypatch.setattr(versions, "PAGE", 1)
    in_pages, responses = listed()
    assert in_pages == whole
    assert responses >= len(whole)
    unwatched = KubernetesCluster(driver._settings, driver._api)
    assert [node.name for node in unwatched.nodes()] == [node.name for node in driver.nodes()]
    unwatched.probe()
