"""Every pod that the driver can make passes the Pod Security level `restricted` of the real API server."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings

from gpu_scheduler.clusters.base import GangSpec
from gpu_scheduler.clusters.kubernetes import manifests
from tests.gpu_scheduler.clusters.harness import launch
from tests.gpu_scheduler.clusters.kubernetes_specs import OWNER, SETTINGS, gang_specs
from tools.kube.client import Api, ApiError

pytestmark = pytest.mark.cluster
DRY_RUN = {"dryRun": "All", "fieldValidation": "Strict"}


@pytest.mark.timeout(300)
@settings(max_examples=500, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(spec=gang_specs())
def test_the_objects_of_every_gang_are_admitted(api: Api, namespace: str, spec: GangSpec) -> None:
    path = f"/api/v1/namespaces/{namespace}"
    api.request("POST", f"{path}/services", manifests.service(spec, SETTINGS), query=DRY_RUN)
    api.request("POST", f"{path}/secrets", manifests.secret(spec, SETTINGS, OWNER), query=DRY_RUN)
    for learner in spec.learners:
        pod = manifests.pod(spec, learner.rank, SETTINGS, "test.invalid/program:1", OWNER)
        api.request("POST", f"{path}/pods", pod, query=DRY_RUN)


def test_the_admission_would_refuse_a_pod_that_is_less_confined(api: Api, pods: str) -> None:
    bad = manifests.pod(launch("job-x-1", "runs"), 0, SETTINGS, "test.invalid/program:1", OWNER)
    del bad["spec"]["initContainers"][1]["securityContext"]
    with pytest.raises(ApiError, match=r'violates PodSecurity "restricted'):
        api.request("POST", pods, bad, query=DRY_RUN)
