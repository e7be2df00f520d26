"""deploy/kubernetes, rendered, before the real API server: each object and each pod would be admitted."""

from __future__ import annotations

import subprocess
from dataclasses import fields
from typing import Any

import pytest
import yaml

from jobs.selectors import monitoring
from portal.settings.env import Environment
from tools.kube import binaries
from tools.kube.binaries import ROOT
from tools.kube.client import Api, ApiError

pytestmark = pytest.mark.cluster

DRY_RUN = {"dryRun": "All", "fieldValidation": "Strict"}
PATHS = {
    "ServiceAccount": "/api/v1/namespaces/{}/serviceaccounts",
    "ConfigMap": "/api/v1/namespaces/{}/configmaps",
    "Service": "/api/v1/namespaces/{}/services",
    "Deployment": "/apis/apps/v1/namespaces/{}/deployments",
    "Job": "/apis/batch/v1/namespaces/{}/jobs",
    "PodDisruptionBudget": "/apis/policy/v1/namespaces/{}/poddisruptionbudgets",
    "HorizontalPodAutoscaler": "/apis/autoscaling/v2/namespaces/{}/horizontalpodautoscalers",
    "NetworkPolicy": "/apis/networking.k8s.io/v1/namespaces/{}/networkpolicies",
}
SECRET = {
    "DATABASE_URL", "REDIS_URL", "SECRET_KEY", "LUTHIER_SECRETS_KEYS", "LUTHIER_METRICS_TOKEN",
    "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION", "AWS_ENDPOINT_URL",
}  # fmt: skip


@pytest.fixture(scope="module")
def rendered() -> list[dict[str, Any]]:
    command = [binaries.build()["kubectl"], "kustomize", str(ROOT / "deploy" / "kubernetes")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def in_namespace(found: dict[str, Any], namespace: str) -> dict[str, Any]:
    return found | {"metadata": found["metadata"] | {"namespace": namespace}}


def pods_of(rendered: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The pod template of each Deployment and Job, by its name."""
    return {
        found["metadata"]["name"]: found["spec"]["template"]
        for found in rendered
        if found["kind"] in ("Deployment", "Job")
    }


def test_the_api_server_would_admit_every_object(
    api: Api, namespace: str, rendered: list[dict[str, Any]]
) -> None:
    kinds = [found["kind"] for found in rendered if found["kind"] != "Namespace"]
    assert set(kinds) == set(PATHS)
    for found in rendered:
        if found["kind"] == "Namespace":
            renamed = found | {"metadata": found["metadata"] | {"name": f"{namespace}-dry"}}
            api.request("POST", "/api/v1/namespaces", renamed, query=DRY_RUN)
        else:
            path = PATHS[found["kind"]].format(namespace)
            api.request("POST", path, in_namespace(found, namespace), query=DRY_RUN)


def test_every_pod_passes_the_restricted_level_and_states_what_it_needs(
    api: Api, namespace: str, pods: str, rendered: list[dict[str, Any]]
) -> None:
    api.create(f"/api/v1/namespaces/{namespace}/serviceaccounts", {"metadata": {"name": "luthier"}})
    templates = pods_of(rendered)
    assert set(templates) == {"prepare", "web", "worker", "scheduler"}
    for name, template in templates.items():
        pod = {"metadata": {"name": name}, "spec": template["spec"]}
        api.request("POST", pods, pod, query=DRY_RUN)
        (container,) = template["spec"]["containers"]
        assert {"cpu", "memory"} <= set(container["resources"]["requests"])
        assert "memory" in container["resources"]["limits"]


def test_a_field_that_no_api_has_would_be_refused(
    api: Api, namespace: str, rendered: list[dict[str, Any]]
) -> None:
    (web,) = [
        found for found in rendered if (found["kind"], found["metadata"]["name"]) == ("Deployment", "web")
    ]
    wrong = in_namespace(web, namespace) | {"spec": web["spec"] | {"replica": 2}}
    with pytest.raises(ApiError, match="replica"):
        api.request("POST", PATHS["Deployment"].format(namespace), wrong, query=DRY_RUN)


def test_every_setting_is_one_that_the_platform_reads(rendered: list[dict[str, Any]]) -> None:
    known = {field.name.upper() for field in fields(Environment)}
    (settings,) = [found["data"] for found in rendered if found["kind"] == "ConfigMap"]
    assert set(settings) - known == {"PUBLIC_HOST"}
    assert {name for name in SECRET if not name.startswith("AWS_")} <= known
    page = (ROOT / "docs" / "kubernetes.md").read_text()
    assert [name for name in sorted(SECRET) if name not in page] == []


def test_budgets_and_policies_select_pods_that_exist(rendered: list[dict[str, Any]]) -> None:
    labels = [template["metadata"]["labels"] for template in pods_of(rendered).values()]
    selectors = [
        found["spec"]["selector"].get("matchLabels", found["spec"]["selector"])
        for found in rendered
        if found["kind"] in ("PodDisruptionBudget", "Service")
    ]
    assert len(selectors) == 3
    for selector in selectors:
        assert any(selector.items() <= each.items() for each in labels), selector


def test_the_metric_that_workers_follow_is_served_once_whatever_the_number_of_web_processes(
    rendered: list[dict[str, Any]],
) -> None:
    """The autoscaler adds up the series of an external metric, and every web process has the same one."""
    (scaled,) = [found["spec"]["metrics"] for found in rendered if found["kind"] == "HorizontalPodAutoscaler"]
    [wanted] = [each["external"]["metric"]["name"] for each in scaled]
    rules = yaml.safe_load((ROOT / "deploy" / "monitoring" / "adapter.yml").read_text())["externalRules"]
    [rule] = [each for each in rules if each["name"]["as"] == wanted]
    assert rule["metricsQuery"].startswith("max(")
    [fact] = [each for each in monitoring.FACTS if each.name == rule["seriesQuery"]]
    assert fact.labels == ()
