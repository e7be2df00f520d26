"""The console's frame: a sidebar of its own and the way back."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest

from jobs.selectors import installation
from portal.pages.shell import last_tenant
from tenants.models import Tenant, User

REASON_REQUIRED = "A reason is required; it goes into the audit log."


def frame(request: HttpRequest, here: str) -> dict[str, Any]:
    """here: the sidebar entry to mark (overview, tenants, users, quotas, history, fairness, audit, runtimes)."""
    return {
        "here": here,
        "back": last_tenant(request),
        "tenant_count": Tenant.objects.count(),
        "people_count": User.objects.filter(is_service_account=False).count(),
        "nodes_out": installation.nodes().filter(ready=False).count(),
    }
