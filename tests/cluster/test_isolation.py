"""From a learner's pod on a real node: what it reaches, and that the rest would be there for a pod without policies."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from gpu_scheduler.clusters.kubernetes import manifests
from tests.cluster.pods import spec
from tests.cluster.proxy import Proxy
from tests.platform import Platform, wait_for
from tools.kube import network
from tools.kube.client import Object
from tools.kube.cluster import Cluster
from tools.kube.images import AGENT

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]
PROGRAM = Path(__file__).with_name("probing_program.py").read_text()
PORT = 8080
INTERNET = "198.51.100.7"
"""An address for documentation (RFC 5737): nothing else can have it."""

Targets = dict[str, tuple[str, int]]


@pytest.fixture(scope="module")
def outside(real_cluster: Cluster, platform: Platform) -> Iterator[Targets]:
    """What is there beyond the tenants' namespaces, all of it listening, by name."""
    assert real_cluster.network is not None
    cluster_network = real_cluster.network
    gateway = cluster_network.gateway
    network.run(f"ip address add {INTERNET}/32 dev luthier-{cluster_network.subnet}")
    for node in real_cluster.nodes:
        network.inside(node.holder, f"ip route add {INTERNET}/32 via {gateway}")
    # Where a database would listen on the platform's machine; and a server on the internet.
    database, server = Proxy(platform.port, gateway), Proxy(platform.port, INTERNET)
    api = urlsplit(json.loads(real_cluster.kubeconfig.read_text())["clusters"][0]["cluster"]["server"])
    assert api.hostname
    assert api.port
    yield {
        "API server": (api.hostname, api.port),
        "API server's Service": ("10.96.0.1", 443),
        "database": (gateway, database.port),
        "internet": (INTERNET, server.port),
        "kubelet of node-1": (cluster_network.node_address(1), 10250),
        "kubelet of node-2": (cluster_network.node_address(2), 10250),
    }
    for proxy in (database, server):
        proxy.refuse()
    for node in real_cluster.nodes:
        network.inside(node.holder, f"ip route delete {INTERNET}/32")
    network.run(f"ip address delete {INTERNET}/32 dev luthier-{cluster_network.subnet}")


@pytest.fixture
def neighbors(real_cluster: Cluster, platform: Platform) -> Iterator[Targets]:
    """Pods that listen beside the gang: of another tenant, and of another gang of the same tenant."""
    prefix, installation = platform.env["KUBE_NAMESPACE_PREFIX"], platform.env["KUBE_INSTALLATION"]
    labels = {manifests.INSTALLATION: installation, manifests.GANG: "other"}
    spaces = {"another tenant's pod": f"{prefix}nlp-research", "a pod of another gang": f"{prefix}vision-lab"}
    for space in spaces.values():
        start_pod(real_cluster, space, "neighbor", labels, {}, {})
    yield {name: (address_of(real_cluster, space, "neighbor"), PORT) for name, space in spaces.items()}
    for space in spaces.values():
        real_cluster.admin.delete(f"{pods_of(space)}/neighbor")


def pods_of(space: str) -> str:
    return f"/api/v1/namespaces/{space}/pods"


def address_of(cluster: Cluster, space: str, pod: str) -> str:
    return str(cluster.admin.get(f"{pods_of(space)}/{pod}")["status"]["podIP"])


def reached(log: str) -> set[str] | None:
    found = re.search(r"reaches (\[.*\])", log)
    return set(json.loads(found[1])) if found else None


def test_learners_reach_the_platform_and_their_gang_and_nothing_else(
    real_cluster: Cluster, platform: Platform, outside: Targets, neighbors: Targets
) -> None:
    alice = platform.client("alice")
    address = urlsplit(platform.env["LUTHIER_INGEST_URL"])
    assert address.hostname
    assert address.port
    ingest: Targets = {"ingest": (address.hostname, address.port)}
    forbidden = outside | neighbors
    size = {"learners": 2, "memory": "256Mi"}
    env = variables(ingest | forbidden, forbidden)
    job = alice.submit(spec("probing", PROGRAM, env=env, placement="spread", resources=size))["id"]

    def says(learner: int) -> set[str] | None:
        return reached(alice.raw_log(job, attempt=1, learner=learner).decode())

    alice.wait_state(job, "PROCESSING", within_s=120)
    for learner in (0, 1):
        found = wait_for(lambda learner=learner: says(learner), within_s=90, what="what it reaches")
        assert found == {"ingest", "peer 0", "peer 1"}

    # A pod that no policy isolates reaches what is outside: it is there. Nothing enters the tenants' namespaces.
    gang, space = f"job-{job}-1", f"{platform.env['KUBE_NAMESPACE_PREFIX']}vision-lab"
    learner_pod: Targets = {"a learner": (address_of(real_cluster, space, f"{gang}-0"), PORT)}
    inside = neighbors | learner_pod
    start_pod(real_cluster, "default", "free", {}, outside | ingest | inside, inside)
    log = f"{pods_of('default')}/free/log"
    free = wait_for(
        lambda: reached(real_cluster.admin.text(log)), within_s=90, what="what a free pod reaches"
    )
    real_cluster.admin.delete(f"{pods_of('default')}/free")
    assert free == outside.keys() | {"ingest"}

    alice.post(f"/jobs/{job}/cancel")
    alice.wait_state(job, "CANCELED", within_s=120)


def variables(targets: Targets, forbidden: Targets) -> dict[str, str]:
    return {"TARGETS": json.dumps(targets), "FORBIDDEN": ",".join(forbidden)}


def start_pod(
    cluster: Cluster, space: str, name: str, labels: dict[str, str], targets: Targets, forbidden: Targets
) -> None:
    """One that runs the program without the platform. Returns when it runs."""
    env = [{"name": key, "value": value} for key, value in variables(targets, forbidden).items()]
    confined = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    user = {"runAsNonRoot": True, "runAsUser": 65534, "seccompProfile": {"type": "RuntimeDefault"}}
    container = {
        "name": "program",
        "image": AGENT,
        "command": ["python3", "-c", PROGRAM],
        "env": env,
        "resources": {"requests": {"cpu": "10m", "memory": "64Mi"}, "limits": {"cpu": "1", "memory": "64Mi"}},
        "securityContext": confined,
    }
    about = {"containers": [container], "securityContext": user, "terminationGracePeriodSeconds": 1}
    cluster.admin.create(pods_of(space), {"metadata": {"name": name, "labels": labels}, "spec": about})

    def runs(pod: Object | None) -> bool:
        return pod is not None and pod["status"].get("phase") == "Running"

    cluster.admin.wait_for(pods_of(space), name, runs)
