"""The suite's own Kubernetes control plane, a namespace per test, and fake GPU nodes."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing, nullcontext
from pathlib import Path
from uuid import uuid4

import pytest

from gpu_scheduler.clusters.kubernetes import client
from tests.cluster.api_proxy import ApiProxy
from tests.cluster.folders import new_folder
from tests.cluster.pods import platform_on_pods
from tests.log_collector import LogCollector
from tests.platform import Platform
from tools.kube import binaries, fake, nodes
from tools.kube.client import Api, Object
from tools.kube.cluster import Cluster
from tools.kube.existing import ExistingCluster

EXISTING = os.environ.get("LUTHIER_TEST_KUBECONFIG", "")

AnyCluster = Cluster | ExistingCluster
AddNodes = Callable[..., list[str]]


def pytest_collection_finish(session: pytest.Session) -> None:
    """Build the cluster's programs before its first test rather than in it: a build takes longer than a test may."""
    selected = any(item.get_closest_marker("cluster") for item in session.items)
    if not selected or session.config.option.collectonly:
        return
    capture = session.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled() if capture else nullcontext():
        try:
            if EXISTING and shutil.which("kubectl"):
                return
            binaries.build()
            nodes.install()
            if any("test_prometheus" in item.nodeid for item in session.items):
                binaries.build_prometheus()
            if any("test_network_policy" in item.nodeid for item in session.items) and not nodes.missing():
                binaries.build_suite()
        except binaries.BuildFailed as error:
            pytest.exit(str(error), returncode=1)


@pytest.fixture
def slow_handshakes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside other suites a TLS handshake may take longer than the driver waits; then it says that the API is busy."""
    monkeypatch.setattr(client, "CONNECT_S", 60.0)


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Started once per run. Its programs die with this process, however it ends."""
    require_own_cluster()
    cluster = Cluster(new_folder("suite"), binaries.build(), tied=True)
    cluster.start()
    yield cluster
    cluster.stop()


@pytest.fixture(scope="session")
def real_cluster() -> Iterator[Cluster]:
    """With two real nodes of four GPUs each, which enforce NetworkPolicy. Started once per run: a test that kills one
    starts it again."""
    require_own_cluster()
    if why := nodes.missing():
        pytest.skip(why)
    cluster = Cluster(new_folder("real"), binaries.build(), tied=True, real_nodes=2, gpus=4, enforced=True)
    cluster.start()
    yield cluster
    cluster.stop()


@pytest.fixture(scope="session")
def api_proxy(real_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiProxy]:
    """Between the platform and the API server of the real nodes."""
    with closing(ApiProxy(real_cluster.service_account(), tmp_path_factory.mktemp("proxy"))) as between:
        yield between


@pytest.fixture(scope="session")
def platform(
    real_cluster: Cluster, api_proxy: ApiProxy, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Platform]:
    """A whole platform with its two tenants, whose learners are pods on the real nodes. Started once per run."""
    data = tmp_path_factory.mktemp("pods") / "data"
    with LogCollector() as collector:
        monitored = {"LUTHIER_METRICS_TOKEN": uuid4().hex * 2, "LUTHIER_AUDIT_URL": collector.url}
        with platform_on_pods(real_cluster, data, api_proxy.kubeconfig, **monitored) as started:
            yield started


@pytest.fixture(scope="session")
def any_cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AnyCluster:
    """The suite's own cluster, or the one that LUTHIER_TEST_KUBECONFIG names: for tests that need its API only."""
    if not EXISTING:
        own: Cluster = request.getfixturevalue("cluster")
        return own
    kubectl = shutil.which("kubectl") or binaries.build()["kubectl"]
    return ExistingCluster(Path(EXISTING), tmp_path_factory.mktemp("existing"), kubectl)


def require_own_cluster() -> None:
    """Skips a test that needs fake nodes, killed nodes, audit logs or other powers over the cluster."""
    if EXISTING:
        pytest.skip(f"needs a cluster of the test's own: LUTHIER_TEST_KUBECONFIG={EXISTING} is set")


@pytest.fixture
def api(any_cluster: AnyCluster) -> Api:
    """As the administrator."""
    return any_cluster.admin


@pytest.fixture
def namespace(api: Api) -> Iterator[str]:
    """One that is ready for pods, with the Pod Security level that tenants get."""
    name = f"test-{uuid4().hex[:8]}"
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    api.create("/api/v1/namespaces", {"metadata": {"name": name, "labels": labels}})
    # Pods are refused until the controller manager has made it.
    api.wait_for(f"/api/v1/namespaces/{name}/serviceaccounts", "default", bool)
    yield name
    api.delete(f"/api/v1/namespaces/{name}")


@pytest.fixture
def pods(namespace: str) -> str:
    """The path of the namespace's pods."""
    return f"/api/v1/namespaces/{namespace}/pods"


@pytest.fixture
def add_nodes(api: Api, cluster: Cluster) -> Iterator[AddNodes]:
    """Add schedulable fake nodes; they are removed after the test. Returns their names."""
    names: list[str] = []

    def add(*nodes: Object) -> list[str]:
        added = [node["metadata"]["name"] for node in nodes]
        names.extend(added)
        fake.add_nodes(api, *nodes)
        return added

    yield add
    there = {node["metadata"]["name"] for node in api.get(fake.NODES)["items"]}
    fake.remove_nodes(api, *there.intersection(names))
