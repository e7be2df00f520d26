"""The Kubernetes objects that one tenant needs before its first gang. Pure: no clock, no API, no randomness.

The platform's own limits and permissions come first; these hold if it is wrong or has been taken over.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from gpu_scheduler.clusters.kubernetes.manifests import INSTALLATION, MANAGED_BY, Manifest
from gpu_scheduler.clusters.kubernetes.peers import Peer
from gpu_scheduler.clusters.kubernetes.settings import KubernetesSettings, ProvisionSettings
from gpu_scheduler.model import CPU_TYPE

SLUG = "luthier.dev/tenant-slug"
"""Annotation of a namespace: whose it is. A label could not hold every name."""
POD_SECURITY = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn", "audit")}
RBAC = "rbac.authorization.k8s.io"

JOBS_QUOTA = "luthier-jobs"

TENANT_RULES: list[dict[str, list[str]]] = [
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["create", "delete", "patch"]},
    {"apiGroups": [""], "resources": ["secrets"], "verbs": ["create", "delete"]},
    {"apiGroups": [""], "resources": ["services"], "verbs": ["create", "delete", "get", "patch"]},
    {"apiGroups": ["networking.k8s.io"], "resources": ["networkpolicies"], "verbs": ["create", "delete"]},
]
"""What the driver does in a tenant's namespace, and nothing more: tests/cluster compares it with the audit log."""
CLUSTER_RULES: list[dict[str, list[str]]] = [
    {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "watch"]},
    # Pods of others hold resources of the nodes, and a gang's name does not say whose it is.
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]},
    {"apiGroups": [""], "resources": ["services"], "verbs": ["list"]},
]
"""What the driver reads beyond the tenants' namespaces. It changes nothing there, and reads no secret anywhere."""


OPPORTUNISTIC_PRIORITY = -1000
"""Below the 0 that pods without a class have: a kubelet that lacks memory or disk space evicts these first, and the
cluster's own scheduler takes their place for pods of others."""


@dataclass(frozen=True, slots=True)
class TenantLimits:
    """A tenant by its slug, with the most that it may hold, borrowed slots included: slots by type. Its opportunistic
    jobs may hold more of these types."""

    slug: str
    slots: Mapping[str, int]

    @property
    def gpus(self) -> int:
        return sum(limit for kind, limit in self.slots.items() if kind != CPU_TYPE)

    @property
    def cpus(self) -> int:
        return self.slots.get(CPU_TYPE, 0)


def namespace(tenant: TenantLimits, settings: KubernetesSettings) -> Manifest:
    found = _object("v1", "Namespace", settings.namespace(tenant.slug), settings)
    found["metadata"]["labels"] |= POD_SECURITY
    found["metadata"]["annotations"] = {SLUG: tenant.slug}
    return found


def content(
    tenant: TenantLimits, settings: KubernetesSettings, provision: ProvisionSettings
) -> list[Manifest]:
    """What is in the namespace. The rule that denies everything comes first, the platform's permissions last."""

    def inside(api: str, kind: str, name: str, **fields: Any) -> Manifest:
        found = _object(api, kind, name, settings, **fields)
        found["metadata"]["namespace"] = settings.namespace(tenant.slug)
        return found

    networking = "networking.k8s.io/v1"
    return [
        inside(networking, "NetworkPolicy", "deny-all", spec=_policy({})),
        inside(networking, "NetworkPolicy", "learners", spec=_learners(settings, provision)),
        # No pod gets a token, whatever its manifest says. Pods are refused until this account exists.
        inside("v1", "ServiceAccount", "default", automountServiceAccountToken=False),
        inside("v1", "ResourceQuota", "luthier", spec={"hard": _quota(tenant, settings)}),
        inside("v1", "ResourceQuota", JOBS_QUOTA, spec=_jobs_quota(tenant, settings)),
        inside("v1", "LimitRange", "luthier", spec={"limits": [_DEFAULTS]}),
        inside(f"{RBAC}/v1", "Role", "luthier", rules=TENANT_RULES),
        inside(f"{RBAC}/v1", "RoleBinding", "luthier", **_binding("Role", "luthier", provision)),
    ]


def reader(settings: KubernetesSettings, provision: ProvisionSettings) -> list[Manifest]:
    """What the platform may read in the whole cluster: one for all tenants of an installation."""
    name = f"luthier-{settings.installation}"
    return [
        _object(f"{RBAC}/v1", "ClusterRole", name, settings, rules=CLUSTER_RULES),
        _object(
            f"{RBAC}/v1", "ClusterRoleBinding", name, settings, **_binding("ClusterRole", name, provision)
        ),
    ]


def opportunistic_class(settings: KubernetesSettings) -> Manifest:
    """What pods beyond their tenant's limits have: one for all tenants of an installation."""
    return _object(
        "scheduling.k8s.io/v1",
        "PriorityClass",
        settings.opportunistic_class,
        settings,
        value=OPPORTUNISTIC_PRIORITY,
        preemptionPolicy="Never",
        description="Opportunistic jobs of Luthier: they run on what no other job can take.",
    )


def _object(api: str, kind: str, name: str, settings: KubernetesSettings, **fields: Any) -> Manifest:
    labels = {MANAGED_BY: "luthier", INSTALLATION: settings.installation}
    return {"apiVersion": api, "kind": kind, "metadata": {"name": name, "labels": labels}, **fields}


def _binding(kind: str, name: str, provision: ProvisionSettings) -> Manifest:
    namespace, account = provision.service_account
    subject = {"kind": "ServiceAccount", "name": account, "namespace": namespace}
    return {"roleRef": {"apiGroup": RBAC, "kind": kind, "name": name}, "subjects": [subject]}


def _policy(selector: Manifest, **rules: list[Manifest]) -> Manifest:
    return {"podSelector": selector, "policyTypes": ["Ingress", "Egress"], **rules}


def _learners(settings: KubernetesSettings, provision: ProvisionSettings) -> Manifest:
    """Outward to the platform and to DNS. Between the pods of a gang its own policy allows it, see manifests.policy."""
    egress = [_to(provision.ingest, "TCP"), _to(provision.dns, "UDP", "TCP")]
    rules = [rule for group in egress for rule in group]
    return _policy({"matchLabels": {INSTALLATION: settings.installation}}, egress=rules)


def _to(peers: Iterable[Peer], *protocols: str) -> list[Manifest]:
    return [
        {
            "to": [peer.selector()],
            "ports": [{"protocol": protocol, "port": peer.port} for protocol in protocols],
        }
        for peer in peers
    ]


def _quota(tenant: TenantLimits, settings: KubernetesSettings) -> dict[str, str]:
    """Of all pods: no resource of which the tenant has no slots, however its jobs are marked. Without any slots it has
    no pods either."""
    used = {settings.gpu_resources().of(kind) for kind in tenant.slots if kind != CPU_TYPE}
    hard = {f"requests.{name}": "0" for name in settings.gpu_resources().names if name not in used}
    if not tenant.slots:
        hard["pods"] = "0"
    return {**hard, "services.loadbalancers": "0", "services.nodeports": "0"}


def _jobs_quota(tenant: TenantLimits, settings: KubernetesSettings) -> Manifest:
    """Of all pods but those of opportunistic jobs, which other jobs' starts end. Every learner holds a slot at least.
    CPUs are bounded only without GPUs: limits do not say how many come with a GPU."""
    gpus = settings.gpu_resources()
    hard = {"pods": tenant.gpus + tenant.cpus}
    for kind, most in tenant.slots.items():
        if kind != CPU_TYPE:  # by resource, as the API server counts them
            name = f"requests.{gpus.of(kind)}"
            hard[name] = hard.get(name, 0) + most
    if not tenant.gpus:
        hard["requests.cpu"] = tenant.cpus
    others = {"scopeName": "PriorityClass", "operator": "NotIn", "values": [settings.opportunistic_class]}
    return {
        "hard": {name: str(value) for name, value in hard.items()},
        "scopeSelector": {"matchExpressions": [others]},
    }


_DEFAULTS: Manifest = {
    "type": "Container",
    "default": {"cpu": "1", "memory": "256Mi"},
    "defaultRequest": {"cpu": "100m", "memory": "256Mi"},
}
"""Of a container that states none, which the quota would refuse with an unclear message."""
