"""A whole platform, `manage.py up` with all its parts, whose learners are pods on the test cluster's real nodes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

from gpu_scheduler.clusters.kubernetes.settings import KubernetesSettings
from tests.cluster.kubernetes_harness import provisioner
from tests.cluster.proxy import Proxy
from tests.examples.programs import runtime
from tests.platform import Platform
from tools.kube.cluster import Cluster
from tools.kube.images import AGENT, RUNTIME

GPU_TYPE = "nvidia-h100-80gb-hbm3"
TENANTS = ("vision-lab", "nlp-research")


@contextmanager
def platform_on_pods(
    cluster: Cluster, data: Path, kubeconfig: Path | None = None, **options: Any
) -> Iterator[Platform]:
    """It runs as the service account that tenant_provision has let in, on nodes that enforce NetworkPolicy. Learners
    reach its web server, which listens on loopback only, through a port at the nodes' gateway. kubeconfig: of another
    way to the API server."""
    assert cluster.network is not None
    name, gateway = f"test-{uuid4().hex[:8]}", cluster.network.gateway
    platform = Platform(
        data,
        LUTHIER_CLUSTER="kubernetes",
        KUBECONFIG=str(kubeconfig or cluster.service_account()),
        KUBE_INSTALLATION=name,
        KUBE_AGENT_IMAGE=AGENT,
        KUBE_RUNTIME_IMAGE=RUNTIME,
        KUBE_ALLOWED_IMAGES="luthier.test/**,registry.invalid/**",
        KUBE_NAMESPACE_PREFIX=f"{name}-",
        KUBE_DNS_PEERS=f"{gateway}/32:53",
        **options,
    )
    ingest = Proxy(platform.port, gateway)  # the platform's own port need not be free there
    platform.env |= {
        "LUTHIER_INGEST_URL": f"ws://{gateway}:{ingest.port}",
        "ALLOWED_HOSTS": f"127.0.0.1,localhost,{gateway}",
    }
    settings = KubernetesSettings(name, AGENT, namespace_prefix=f"{name}-")
    list(provisioner(cluster, settings).installation())  # without it no platform is ready
    spaces = [f"{name}-{tenant}" for tenant in TENANTS]
    try:
        with platform:
            provision(platform, cluster)
            yield platform
    finally:
        ingest.refuse()
        for space in spaces:
            remove_pods(cluster, space)
            cluster.admin.delete(f"/api/v1/namespaces/{space}")


def provision(platform: Platform, cluster: Cluster) -> None:
    """Both tenants, as the administrator."""
    platform.manage("tenant_provision", *TENANTS, KUBE_PROVISION_KUBECONFIG=str(cluster.kubeconfig))


def remove_pods(cluster: Cluster, namespace: str) -> None:
    """What a platform that is stopped leaves, with the finalizers that it would have taken away."""
    pods = f"/api/v1/namespaces/{namespace}/pods"
    for pod in cluster.admin.get(pods)["items"]:
        path = f"{pods}/{pod['metadata']['name']}"
        cluster.admin.patch(path, {"metadata": {"finalizers": None}})
        cluster.admin.request("DELETE", path, {"gracePeriodSeconds": 0})


def load_runtime(cluster: Cluster, name: str) -> None:
    """Give the nodes the image of a framework, made of the packages that the local cluster installs for it."""
    environment = runtime(name).parents[1]
    [packages] = environment.glob("lib/python*/site-packages")
    cluster.load(RUNTIME.format(runtime=name), packages)


def spec(name: str, program: str, **more: Any) -> dict[str, Any]:
    """A job of one learner with one GPU that runs this Python program."""
    resources = {"learners": 1, "gpus": 1, "gpu_type": GPU_TYPE, "cpus": 1, "memory": "512Mi"}
    return (
        {
            "apiVersion": "luthier/v1",
            "name": name,
            "framework": "plain",
            "code": {"files": {"main.py": program}},
            "command": "python3 main.py",
            "checkpoint": {"every": "2s", "keep": 3, "grace": "20s"},
        }
        | more
        | {"resources": resources | more.get("resources", {})}
    )
