"""Gives tenants their namespaces, as another identity than the platform's. See tenancy for what is in them.

Every object is compared by the API server itself: a dry run of the replacement shows what would be different, defaults
included. So a second run changes nothing, and what people changed by hand is changed back.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gpu_scheduler.clusters.base import ClusterError
from gpu_scheduler.clusters.kubernetes import tenancy
from gpu_scheduler.clusters.kubernetes.client import Api, Conflict, NotFound, Object, RequestRejected
from gpu_scheduler.clusters.kubernetes.manifests import INSTALLATION, Manifest
from gpu_scheduler.clusters.kubernetes.settings import KubernetesSettings, ProvisionSettings
from gpu_scheduler.clusters.kubernetes.tenancy import RBAC, TenantLimits

COLLECTIONS = {
    "Namespace": "/api/v1/namespaces",
    "ServiceAccount": "/api/v1/namespaces/{namespace}/serviceaccounts",
    "ResourceQuota": "/api/v1/namespaces/{namespace}/resourcequotas",
    "LimitRange": "/api/v1/namespaces/{namespace}/limitranges",
    "NetworkPolicy": "/apis/networking.k8s.io/v1/namespaces/{namespace}/networkpolicies",
    "Role": f"/apis/{RBAC}/v1/namespaces/{{namespace}}/roles",
    "RoleBinding": f"/apis/{RBAC}/v1/namespaces/{{namespace}}/rolebindings",
    "PriorityClass": "/apis/scheduling.k8s.io/v1/priorityclasses",
    "ClusterRole": f"/apis/{RBAC}/v1/clusterroles",
    "ClusterRoleBinding": f"/apis/{RBAC}/v1/clusterrolebindings",
}
SERVER_OWNED = ("resourceVersion", "managedFields", "generation", "creationTimestamp", "uid")
INVALID = 422


class NotProvisioned(ClusterError):
    """This tenant's namespace is not touched; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Change:
    """An object that was created, changed or replaced, or would be."""

    verb: str
    kind: str
    name: str


class Provisioner:
    """dry_run: find the changes, make none."""

    def __init__(
        self, api: Api, settings: KubernetesSettings, provision: ProvisionSettings, *, dry_run: bool = False
    ) -> None:
        self._api = api
        self._settings = settings
        self._provision = provision
        self._dry_run = dry_run

    def installation(self) -> Iterator[Change]:
        """What all tenants share. Raises ClusterError."""
        shared = [
            *tenancy.reader(self._settings, self._provision),
            tenancy.opportunistic_class(self._settings),
        ]
        for wanted in shared:
            yield from self._apply(wanted)

    def tenant(self, tenant: TenantLimits) -> Iterator[Change]:
        """Raises NotProvisioned and other ClusterErrors; what was done is kept, and a repeated call continues."""
        wanted = tenancy.namespace(tenant, self._settings)
        found = self._get(_path(wanted))
        if found is not None:
            self._require_ours(found, tenant)
        yield from self._apply(wanted)
        for each in tenancy.content(tenant, self._settings, self._provision):
            if found is None and self._dry_run:  # nothing can be in it yet
                yield _change("created", each)
            else:
                yield from self._apply(each)

    def foreign_policies(self, tenant: TenantLimits) -> list[str]:
        """NetworkPolicies in the tenant's namespace that are not this installation's: each can only allow more."""
        namespace = self._settings.namespace(tenant.slug)
        found = self._get(COLLECTIONS["NetworkPolicy"].format(namespace=namespace)) or {"items": []}
        return [each["metadata"]["name"] for each in found["items"] if not self._is_ours(each)]

    def _require_ours(self, namespace: Object, tenant: TenantLimits) -> None:
        name, metadata = namespace["metadata"]["name"], namespace["metadata"]
        ours = f"{INSTALLATION}={self._settings.installation}"
        if not self._is_ours(namespace):
            raise NotProvisioned(
                f"Namespace {name} exists without the label {ours}, so it may belong to others. Choose another"
                f" KUBE_NAMESPACE_PREFIX; or, if it is yours: kubectl label namespace {name} {ours}"
            )
        owner = metadata.get("annotations", {}).get(tenancy.SLUG, tenant.slug)
        if owner != tenant.slug:
            raise NotProvisioned(f"Namespace {name} belongs to tenant {owner}.")
        if "deletionTimestamp" in metadata:
            raise NotProvisioned(f"Namespace {name} is being deleted. Run this again once it is gone.")

    def _is_ours(self, found: Object) -> bool:
        labels = found["metadata"].get("labels") or {}
        return bool(labels.get(INSTALLATION) == self._settings.installation)

    def _apply(self, wanted: Manifest) -> Iterator[Change]:
        path = _path(wanted)
        current = self._get(path)
        if current is None:
            try:
                self._create(wanted)
            except (
                Conflict
            ):  # by the cluster itself at the same moment: every namespace gets its default account
                current = self._api.get(path)
            else:
                yield _change("created", wanted)
                return
        try:
            replacement = _merged(current, wanted)
            becomes = self._api.request("PUT", path, replacement, query={"dryRun": "All"})
            if _content(becomes) == _content(current):
                return
            if not self._dry_run:
                self._api.request("PUT", path, replacement)
            yield _change("changed", wanted)
        except RequestRejected as error:
            if error.status != INVALID or "roleRef" not in wanted:
                raise
            if not self._dry_run:  # the role of a binding cannot be changed
                self._api.delete(path, uid=current["metadata"]["uid"])
                self._create(wanted)
            yield _change("replaced", wanted)

    def _create(self, wanted: Manifest) -> None:
        query = {"dryRun": "All"} if self._dry_run else {}
        self._api.request("POST", _collection(wanted), wanted, query=query)

    def _get(self, path: str) -> Object | None:
        try:
            return self._api.get(path)
        except NotFound:
            return None


def _change(verb: str, wanted: Manifest) -> Change:
    return Change(verb, wanted["kind"], wanted["metadata"]["name"])


def _collection(wanted: Manifest) -> str:
    return COLLECTIONS[wanted["kind"]].format(namespace=wanted["metadata"].get("namespace"))


def _path(wanted: Manifest) -> str:
    return f"{_collection(wanted)}/{wanted['metadata']['name']}"


def _merged(current: Object, wanted: Manifest) -> Object:
    """The current object with every field of the wanted one. Labels and annotations of others stay."""
    metadata = {**current["metadata"]}
    for owned in (
        SERVER_OWNED
    ):  # without a version it replaces whatever is there, a status that changes often included
        metadata.pop(owned, None)
    for field in ("labels", "annotations"):
        metadata[field] = {**(metadata.get(field) or {}), **wanted["metadata"].get(field, {})}
    return {**current, **wanted, "metadata": metadata}


def _content(found: Object) -> Object:
    metadata = {
        name: value for name, value in found["metadata"].items() if name not in SERVER_OWNED and value
    }
    return {**found, "metadata": metadata, "status": None}
