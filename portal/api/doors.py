"""How an operation gets at what it is about: found and allowed, or an error; readings of admins are recorded."""

from __future__ import annotations

from jobs.models import Job
from jobs.selectors.jobs import job_get
from portal.api.operations import Call
from tenants import access, audit
from tenants.models import Tenant
from tenants.roles import Permission


def tenant(call: Call, slug: str, permission: Permission = Permission.VIEW) -> Tenant:
    """The tenant, if the caller has the permission there; a stranger learns nothing."""
    return access.tenant_get(call.user, slug, permission)


def job(call: Call, job_id: str, what: str = "job.read") -> Job:
    """The job, if the caller may read it. A platform admin's reading of a foreign one is recorded."""
    found = job_get(user=call.user, job_id=job_id)
    audit.admin_read(
        user=call.user, tenant_id=found.tenant_id, action=what, target=found.pk, reason=call.reason
    )
    return found
