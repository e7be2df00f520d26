"""How an operation gets at what it is about: found and allowed, or an error; readings of admins are recorded.

tenant and job are called by operations that read. The others are doors of operations with a body (@operation(door=…)):
they are asked first, and what they find is the call's ``found``.
"""

from __future__ import annotations

from jobs.models import Job
from jobs.selectors.jobs import job_get, job_to_decide, job_to_operate
from jobs.services import may_submit
from portal.api.operations import Call, Door
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


def into_tenant(permission: Permission) -> Door:
    """For who has the permission in the tenant {t} of the path."""

    def door(call: Call, t: str, **_: str) -> Tenant:
        return tenant(call, t, permission)

    return door


def for_admins(call: Call, t: str = "", **_: str) -> Tenant | None:
    """For platform admins; the tenant, where the path names one. A member of it is told, a stranger is not."""
    found = tenant(call, t) if t else None
    access.require_admin(call.user)
    return found


def to_operate(call: Call, job_id: str, **_: str) -> Job:
    """For the job's owner, managers, and whom it was entrusted to."""
    return job_to_operate(user=call.user, job_id=job_id)


def to_decide(call: Call, job_id: str, **_: str) -> Job:
    """For the job's owner and managers."""
    return job_to_decide(user=call.user, job_id=job_id)


def to_clone(call: Call, job_id: str) -> Job:
    """For who sees the job and may submit in its tenant."""
    found = job_get(user=call.user, job_id=job_id)
    may_submit(call.user, found.tenant)
    return found
