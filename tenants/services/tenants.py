"""Tenants themselves: created, renamed, suspended and resumed by platform admins, each with a reason."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.db import transaction
from django.db.models import OuterRef, QuerySet, Subquery

from tenants import access, audit, checks
from tenants.errors import FieldsInvalid, NameTaken, problem
from tenants.models import AuditEntry, Tenant
from tenants.services import quotas
from tenants.services.editing import locked_tenant

PRIORITIES = ("low", "normal", "high", "urgent")
EDITABLE = (
    "name",
    "state",
    "priorities",
    "jobs_limit",
    "user_jobs_limit",
    "max_time_s",
    "cohort",
    "budget_gpu_hours",
    "budget_is_hard",
)


def version(tenant: Tenant) -> str:
    """The version for If-Match: the number of the tenant's newest edit."""
    if not hasattr(tenant, "newest_edit"):
        tenant = with_versions(Tenant.objects.filter(pk=tenant.pk)).get()
    return f'"t{tenant.newest_edit or 0}"'  # type: ignore[attr-defined]  # annotated above


def with_versions(rows: QuerySet[Tenant]) -> QuerySet[Tenant]:
    """The same tenants with what `version` needs, in one query. The newest edit is 0 or null before the first."""
    edits = AuditEntry.objects.filter(tenant=OuterRef("pk"), action__startswith="tenant.").order_by("-pk")
    return rows.annotate(newest_edit=Subquery(edits.values("pk")[:1]))


@transaction.atomic
def tenant_create(
    *, user: access.Person, slug: str, name: str, reason: str, settings: Mapping[str, Any] | None = None
) -> Tenant:
    """A new, active tenant without quotas. settings: of EDITABLE. Raises AdminOnly, FieldsInvalid or NameTaken."""
    access.require_admin(user)
    values = dict(settings or {})
    _check(values)
    checks.refuse(
        checks.slug("slug", slug, 40), checks.text("name", name, 120), checks.text("reason", reason, 500)
    )
    tenant, made = Tenant.objects.get_or_create(slug=slug, defaults={"name": name, **values})
    if not made:
        raise NameTaken(f"The tenant {slug} already exists.", path="slug", got=slug)
    audit.record(
        actor=user,
        action="tenant.create",
        tenant_id=tenant.pk,
        target=slug,
        reason=reason,
        details={"name": name, **values},
    )
    usual = quotas.WHOLE_TERMS
    pairs = {term: (usual[term], value) for term, value in values.items() if value != usual.get(term, value)}
    quotas.whole_changed(tenant, pairs, reason=reason, user=user)
    return tenant


@transaction.atomic
def tenant_change(
    *,
    user: access.Person,
    slug: str,
    changes: Mapping[str, Any],
    reason: str,
    if_match: frozenset[str] | None = None,
) -> Tenant:
    """Change what is EDITABLE; state is active or suspended. Suspending stops nothing that runs.

    Raises AdminOnly, NotFound, VersionChanged, FieldsInvalid.
    """
    tenant = locked_tenant(user, slug, version, if_match)
    _check(changes)
    name = changes.get("name", tenant.name)
    checks.refuse(checks.text("name", name, 120), checks.text("reason", reason, 500))
    before = {field: getattr(tenant, field) for field in changes if field in EDITABLE}
    different = {field: value for field, value in changes.items() if before[field] != value}
    if different:
        Tenant.objects.filter(pk=tenant.pk).update(**different)
        details = {field: {"from": before[field], "to": value} for field, value in different.items()}
        action = {"suspended": "tenant.suspend", "active": "tenant.resume"}.get(
            different.get("state", ""), "tenant.change"
        )
        audit.record(
            actor=user, action=action, tenant_id=tenant.pk, target=slug, reason=reason, details=details
        )
        pairs = {field: (before[field], value) for field, value in different.items()}
        quotas.whole_changed(tenant, pairs, reason=reason, user=user)
    tenant.refresh_from_db()
    return tenant


def _check(values: Mapping[str, Any]) -> None:
    if values.get("cohort"):
        checks.refuse(checks.slug("cohort", values["cohort"], 40))
    wrong = [name for name in values.get("priorities", ()) if name not in PRIORITIES]
    if wrong:
        raise FieldsInvalid(
            errors=[
                problem("priorities", "not_allowed", "unknown priority", name, list(PRIORITIES))
                for name in wrong
            ]
        )
