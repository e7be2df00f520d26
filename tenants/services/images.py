"""Which container images a tenant's jobs may run: its own patterns, or the installation's where it has none."""

from __future__ import annotations

from collections.abc import Sequence

from django.conf import settings
from django.db import transaction

from tenants import access, audit, checks
from tenants.errors import problem
from tenants.images import MAX_PATTERNS, PATTERN_HELP, wrong_pattern
from tenants.models import Tenant
from tenants.services.editing import content_etag, locked_tenant

CHANGED = "images.change"
"""The audit log's action."""


def default_patterns() -> tuple[str, ...]:
    """The installation's (KUBE_ALLOWED_IMAGES); empty: no images."""
    return tuple(settings.KUBE_ALLOWED_IMAGES)


def effective_patterns(tenant: Tenant) -> tuple[str, ...]:
    """Those that count for this tenant; empty: no images."""
    return default_patterns() if tenant.image_patterns is None else tuple(tenant.image_patterns)


def etag(tenant: Tenant) -> str:
    """The version for If-Match: it follows from the tenant's own patterns alone."""
    return content_etag("i", tenant.image_patterns)


@transaction.atomic
def images_set(
    *,
    user: access.Person,
    slug: str,
    patterns: Sequence[str] | None,
    reason: str,
    if_match: frozenset[str] | None = None,
) -> Tenant:
    """Replace the tenant's own patterns; None: it follows the installation's. Jobs that run continue.

    Raises AdminOnly, NotFound, VersionChanged, FieldsInvalid.
    """
    tenant = locked_tenant(user, slug, etag, if_match)
    wanted = None if patterns is None else list(dict.fromkeys(patterns))
    checks.refuse(*_problems(wanted or []), checks.text("reason", reason, 500))
    before = tenant.image_patterns
    if wanted != before:
        Tenant.objects.filter(pk=tenant.pk).update(image_patterns=wanted)
        details = {"from": before, "to": wanted}
        audit.record(
            actor=user, action=CHANGED, tenant_id=tenant.pk, target=slug, reason=reason, details=details
        )
        tenant.refresh_from_db()
    return tenant


def _problems(patterns: Sequence[str]) -> list[dict[str, object]]:
    found = [
        problem(f"patterns[{index}]", "bad_image_pattern", text, pattern, PATTERN_HELP)
        for index, pattern in enumerate(patterns)
        if (text := wrong_pattern(pattern))
    ]
    if len(patterns) > MAX_PATTERNS:
        text = f"must be at most {MAX_PATTERNS} patterns"
        found.append(problem("patterns", "too_many", text, len(patterns), MAX_PATTERNS))
    return found
