"""The contract suite of every driver, on the Kubernetes driver."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from tests.cluster.kubernetes_harness import KubernetesHarness
from tests.cluster.permissions import granted, used_permissions
from tests.gpu_scheduler.clusters.harness import remove
from tests.gpu_scheduler.clusters.test_cluster_contract import *  # noqa: F403 - all of it
from tools.kube.client import Api
from tools.kube.cluster import Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("slow_handshakes")]


@pytest.fixture(params=["kubernetes", "kubernetes, watched"])
def harness(
    request: pytest.FixtureRequest, api: Api, cluster: Cluster, two_nodes: None, tmp_path: Path
) -> Iterator[KubernetesHarness]:
    prefix = f"test-{uuid4().hex[:8]}-"
    harness = KubernetesHarness(cluster, tmp_path, prefix)
    watched = request.param.endswith("watched")
    watch = harness.cluster.watch(lambda names: None) if watched else None
    yield harness
    for name in harness.cluster.observe().gangs:
        remove(harness, name)
    if watch is not None:
        watch.close()
    harness.close()
    api.delete(f"/api/v1/namespaces/{harness.settings.namespace('red')}")


def test_the_platforms_roles_are_what_these_tests_have_used(cluster: Cluster) -> None:
    """After all of them: read from the API server's own record, equal to the Role and the ClusterRole, nothing more.

    Of what they grant, a call may be refused in a namespace that has no Role; which one that was is not checked.
    """
    used, refused = used_permissions(cluster.audited())
    assert refused <= granted()
    assert used == granted()
