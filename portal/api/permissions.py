"""Permission checks that load the target object: the tenant or the job, or an error. Admins' reads are recorded.

Operations that read call `tenant` and `job` themselves. An operation with a body names one of the others,
`@operation(authorize=…)`: it runs before the body is parsed, and what it returns is the call's `found`.
"""

from __future__ import annotations

from jobs.models import Job
from jobs.selectors.jobs import job_get, job_to_manage, job_to_operate
from jobs.services import require_submit
from portal import proof
from portal.api.operations import Authorize, Call
from tenants import access, audit
from tenants.models import Tenant, User
from tenants.roles import Permission
from tenants.services.users import user_get


def tenant(call: Call, slug: str, permission: Permission = Permission.VIEW) -> Tenant:
    """The tenant, if the caller has the permission there; NotFound for anyone who cannot see it."""
    return access.tenant_get(call.user, slug, permission)


def job(call: Call, job_id: str, what: str = "job.read") -> Job:
    """The job, if the caller may read it. Recorded: downloads, and reads by a platform admin from outside its tenant.

    what: the action; it ends with .download for what leaves the platform as a file.
    """
    found = job_get(user=call.user, job_id=job_id)
    if what.endswith(".download"):
        audit.downloaded(
            user=call.user, tenant_id=found.tenant_id, action=what, target=found.pk, reason=call.reason
        )
        return found
    audit.admin_read(
        user=call.user, tenant_id=found.tenant_id, action=what, target=found.pk, reason=call.reason
    )
    return found


def into_tenant(permission: Permission) -> Authorize:
    """Require the permission in the tenant {t} of the path."""

    def authorize(call: Call, t: str, **_: str) -> Tenant:
        return tenant(call, t, permission)

    return authorize


def for_admins(call: Call, t: str = "", **_: str) -> Tenant | None:
    """Require a platform admin. Members of the tenant in the path get 403, everyone else 404."""
    found = tenant(call, t) if t else None
    access.require_admin(call.user)
    return found


def for_admins_on_user(call: Call, username: str, **_: str) -> User:
    """Require a platform admin whose session is fresh, and that there is such a user: for what changes who signs in."""
    found = user_get(user=call.user, username=username)
    by_fresh_session(call)
    return found


def for_admins_to_invite(call: Call) -> None:
    """Require a platform admin whose session is fresh."""
    access.require_admin(call.user)
    by_fresh_session(call)


def by_fresh_session(call: Call, **_: str) -> None:
    """Require that who is signed in has shown their factors a moment ago; nothing of a token."""
    proof.require_fresh(call.request._request, call.user)


def to_see(call: Call, job_id: str, **_: str) -> Job:
    """Require that the caller may read the job."""
    return job(call, job_id)


def to_operate(call: Call, job_id: str, **_: str) -> Job:
    """Require the job's owner, a manager, or a person with whom it is shared for operation."""
    return job_to_operate(user=call.user, job_id=job_id)


def to_manage(call: Call, job_id: str, **_: str) -> Job:
    """Require the job's owner or a manager."""
    return job_to_manage(user=call.user, job_id=job_id)


def to_clone(call: Call, job_id: str) -> Job:
    """Require that the caller can see the job and submit in its tenant."""
    found = job_get(user=call.user, job_id=job_id)
    require_submit(call.user, found.tenant)
    return found
