"""What the platform's service account does, from the API server's audit log, in the terms of its roles."""

from __future__ import annotations

from collections.abc import Iterable

from gpu_scheduler.clusters.kubernetes import tenancy
from tools.kube.client import Object

Permission = tuple[str, str, str]
"""Where it holds ("namespace" or "cluster"), verb, resource with its API group."""


def used_permissions(events: Iterable[Object]) -> tuple[set[Permission], set[Permission]]:
    """What was done in tenants' namespaces and in the whole cluster; and what of it RBAC has refused."""
    used, refused = set(), set()
    for event in events:
        about = event.get("objectRef")
        if about is None or "resource" not in about:
            continue
        where = "namespace" if about.get("namespace") else "cluster"
        permission = (where, event["verb"], _resource(about.get("apiGroup", ""), about["resource"]))
        allowed = event["annotations"].get("authorization.k8s.io/decision") == "allow"
        (used if allowed else refused).add(permission)
    return used, refused


def granted() -> set[Permission]:
    rules = {"namespace": tenancy.TENANT_RULES, "cluster": tenancy.CLUSTER_RULES}
    return {
        (where, verb, _resource(group, resource))
        for where, each in rules.items()
        for rule in each
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def _resource(group: str, resource: str) -> str:
    return f"{resource}.{group}" if group else resource
