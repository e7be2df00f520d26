"""What the driver will rely on: authentication, RBAC, and the admission of nodes and pods, as in production."""

from __future__ import annotations

import ssl
from http.client import HTTPSConnection
from urllib.parse import urlsplit

import pytest
import yaml

from tests.cluster.conftest import AddNodes
from tools.kube import binaries, fake
from tools.kube.client import Api, ApiError
from tools.kube.cluster import Cluster

pytestmark = pytest.mark.cluster

RBAC = "/apis/rbac.authorization.k8s.io/v1"
REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


def test_the_api_server_has_the_version_that_was_built(api: Api) -> None:
    assert api.get("/version")["gitVersion"] == binaries.kubernetes_version()
    assert api.text("/readyz") == "ok"


def test_a_stranger_may_do_nothing(cluster: Cluster, pods: str) -> None:
    charlie = cluster.user("charlie")
    with pytest.raises(ApiError) as refused:
        charlie.get(pods)
    assert refused.value.status == 403
    assert 'User "charlie" cannot list resource "pods"' in refused.value.message
    with pytest.raises(ApiError, match=r'403 Forbidden: .* cannot create resource "pods"'):
        charlie.create(pods, fake.pod("learner"))


def test_a_role_counts_in_its_namespace_only(cluster: Cluster, api: Api, namespace: str, pods: str) -> None:
    bob = cluster.user("bob")
    group = "rbac.authorization.k8s.io"
    binding = {
        "metadata": {"name": "view"},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "view"},
        "subjects": [{"apiGroup": group, "kind": "User", "name": "bob"}],
    }
    api.create(f"{RBAC}/namespaces/{namespace}/rolebindings", binding)
    attributes = {"verb": "list", "resource": "pods", "namespace": namespace}
    review = {"spec": {"resourceAttributes": attributes}}
    # The API server's own cache of roles follows within milliseconds.
    while not bob.create(REVIEWS, review)["status"]["allowed"]:
        pass
    assert bob.get(pods)["items"] == []
    with pytest.raises(ApiError, match="403 Forbidden"):
        bob.get("/api/v1/namespaces/default/pods")


def test_without_a_certificate_no_object_is_shown(cluster: Cluster) -> None:
    config = yaml.safe_load(cluster.kubeconfig.read_text())["clusters"][0]["cluster"]
    address = urlsplit(config["server"])
    trusted = ssl.create_default_context(cafile=config["certificate-authority"])
    assert address.hostname
    connection = HTTPSConnection(address.hostname, address.port, context=trusted, timeout=30)
    connection.request("GET", "/api/v1/nodes")
    assert connection.getresponse().status == 403
    connection.close()


def test_a_kubelet_may_change_its_own_node_only(cluster: Cluster, add_nodes: AddNodes) -> None:
    mine, other = add_nodes(fake.node(), fake.node())
    kubelet = cluster.user(f"system:node:{mine}", "system:nodes")
    change = {"metadata": {"annotations": {"test.luthier/changed": "yes"}}}
    kubelet.patch(f"{fake.NODES}/{mine}", change)
    with pytest.raises(ApiError) as refused:
        kubelet.patch(f"{fake.NODES}/{other}", change)
    assert refused.value.status == 403
    assert "is not allowed to modify node" in refused.value.message


def test_a_restricted_namespace_refuses_a_pod_that_may_be_root(api: Api, pods: str) -> None:
    api.create(pods, fake.pod("modest"))
    as_root = fake.pod("as-root")
    as_root["spec"]["securityContext"] = {"runAsUser": 0}
    with pytest.raises(ApiError, match=r'403 Forbidden: .*violates PodSecurity "restricted'):
        api.create(pods, as_root)


def test_a_quota_of_gpus_is_enforced(api: Api, namespace: str, pods: str) -> None:
    quotas = f"/api/v1/namespaces/{namespace}/resourcequotas"
    quota = {"metadata": {"name": "gpus"}, "spec": {"hard": {f"requests.{fake.GPU}": "8"}}}
    api.create(quotas, quota)
    api.wait_for(quotas, "gpus", lambda found: found and found["status"].get("hard"))
    with pytest.raises(ApiError, match=r"403 Forbidden: .*exceeded quota: gpus"):
        api.create(pods, fake.pod("learner", gpus=9))
