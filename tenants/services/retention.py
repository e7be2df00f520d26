"""The retention rules of tenants: those of their own, and the installation's defaults where they have none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.conf import settings
from django.db import transaction

from tenants import access, audit, checks
from tenants.errors import FieldsInvalid, problem
from tenants.models import RetentionRule, Tenant
from tenants.retention import FOREVER, OF_TENANTS, Kind, Rule, Rules, wrong_rule
from tenants.services.editing import content_etag, locked_tenant


def default_rules() -> dict[Kind, Rule]:
    """The installation's rules (LUTHIER_RETENTION_RULES), by kind."""
    return dict(settings.LUTHIER_RETENTION_RULES)


def own_rules(tenant: Tenant) -> dict[Kind, Rule]:
    """The rules that were set for this tenant."""
    return {Kind(row.kind): Rule(row.days, row.bytes) for row in tenant.retention_rules.order_by("kind")}


def effective_rules(tenant: Tenant, own: Rules | None = None) -> dict[Kind, Rule]:
    """The rule that counts for each kind of a tenant's data. own: as if these were its own rules."""
    of_tenant = own_rules(tenant) if own is None else own
    defaults = default_rules()
    return {kind: of_tenant.get(kind, defaults.get(kind, FOREVER)) for kind in OF_TENANTS}


def etag(tenant: Tenant) -> str:
    """The version for If-Match: it follows from the tenant's own rules alone."""
    return content_etag("r", _as_json(own_rules(tenant)))


def checked_rules(rules: Mapping[str, Mapping[str, int | None]]) -> dict[Kind, Rule]:
    """The rules of a request. Raises FieldsInvalid naming everything that is wrong."""
    read: dict[Kind, Rule] = {}
    wrong = []
    for name, limits in rules.items():
        if name not in set(OF_TENANTS):
            wrong.append(problem(f"rules.{name}", "unknown_kind", _unknown(name), name, list(OF_TENANTS)))
            continue
        kind = Kind(name)
        read[kind] = Rule(limits.get("days"), limits.get("bytes"))
        wrong += [
            problem(f"rules.{name}.{field}", "out_of_range", text, limits.get(field))
            for field, text in wrong_rule(kind, read[kind]).items()
        ]
    if wrong:
        raise FieldsInvalid(errors=wrong)
    return read


def _unknown(name: str) -> str:
    if name == Kind.SESSIONS:
        return "sessions belong to no tenant: LUTHIER_RETENTION_RULES has their rule"
    return f"must be one of {', '.join(OF_TENANTS)}"


@transaction.atomic
def retention_set(
    *,
    user: access.Person,
    slug: str,
    rules: Mapping[str, Mapping[str, int | None]],
    reason: str,
    if_match: frozenset[str] | None = None,
) -> Tenant:
    """Replace all rules of a tenant. A kind that is not named follows the installation's default.

    Raises AdminOnly, NotFound, VersionChanged, FieldsInvalid.
    """
    tenant = locked_tenant(user, slug, etag, if_match)
    wanted = checked_rules(rules)
    checks.refuse(checks.text("reason", reason, 500))
    before = own_rules(tenant)
    if wanted != before:
        tenant.retention_rules.all().delete()
        RetentionRule.objects.bulk_create(
            RetentionRule(tenant=tenant, kind=kind, days=rule.days, bytes=rule.bytes)
            for kind, rule in wanted.items()
        )
        audit.record(
            actor=user,
            action="retention.change",
            tenant_id=tenant.pk,
            target=slug,
            reason=reason,
            details={"from": _as_json(before), "to": _as_json(wanted)},
        )
    return tenant


def _as_json(rules: Rules) -> dict[str, Any]:
    return {kind.value: {"days": rule.days, "bytes": rule.bytes} for kind, rule in rules.items()}
