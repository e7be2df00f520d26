"""One job shown or entrusted to one person outside its tenant, by django-guardian. Its owner or a manager decides."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from django.contrib.contenttypes.models import ContentType
from django.db import transaction
from guardian.models import UserObjectPermission
from guardian.shortcuts import assign_perm, remove_perm

from jobs import pubsub
from jobs.models import Job
from jobs.selectors.jobs import job_to_manage
from tenants import access, audit
from tenants.errors import FieldsInvalid, NotFound, problem
from tenants.models import Membership, User


class SharePermission(StrEnum):
    """What a guest may do with the one job. operate includes view."""

    VIEW = "view"
    OPERATE = "operate"


@dataclass(frozen=True, slots=True)
class JobShare:
    username: str
    permission: SharePermission


def shares_of(*, user: access.Person, job_id: str) -> list[JobShare]:
    """Everyone outside the tenant who may see this job, by name. Raises JobNotFound; JobForbidden for a guest."""
    job = job_to_manage(user=user, job_id=job_id)
    grants = UserObjectPermission.objects.filter(
        object_pk=job.pk, content_type=ContentType.objects.get_for_model(Job)
    ).values_list("user__username", "permission__codename")
    best: dict[str, SharePermission] = {}
    for username, codename in grants:
        grant = SharePermission.OPERATE if codename == "operate_job" else SharePermission.VIEW
        best[username] = (
            SharePermission.OPERATE if SharePermission.OPERATE in (grant, best.get(username)) else grant
        )
    return [JobShare(name, best[name]) for name in sorted(best)]


@transaction.atomic
def job_share(*, user: access.Person, job_id: str, username: str, permission: SharePermission) -> JobShare:
    """Let a person see or operate this job; a second share replaces the first. Raises FieldsInvalid, JobForbidden."""
    job = job_to_manage(user=user, job_id=job_id)
    guest = User.objects.filter(username=username, is_active=True, is_service_account=False).first()
    if guest is None:
        raise FieldsInvalid(errors=[problem("username", "user_not_found", "no such user", username)])
    if Membership.objects.filter(user=guest, tenant=job.tenant_id).exists():
        text = f"is already a member of {job.tenant} and can see the job"
        raise FieldsInvalid(errors=[problem("username", "already_member", text, username)])
    assign_perm("jobs.view_job", guest, job)
    (assign_perm if permission is SharePermission.OPERATE else remove_perm)("jobs.operate_job", guest, job)
    _record(user, job, "job.share", username, permission)
    return JobShare(username, permission)


@transaction.atomic
def job_unshare(*, user: access.Person, job_id: str, username: str) -> None:
    """Take a share back; it ends at once. Raises NotFound when there is none."""
    job = job_to_manage(user=user, job_id=job_id)
    grants = UserObjectPermission.objects.filter(
        object_pk=job.pk, content_type=ContentType.objects.get_for_model(Job), user__username=username
    )
    if not grants.exists():
        raise NotFound
    grants.delete()
    _record(user, job, "job.unshare", username, None)


def _record(
    user: access.Person, job: Job, action: str, username: str, permission: SharePermission | None
) -> None:
    details = {"username": username} | ({"permission": permission.value} if permission else {})
    audit.record(actor=user, action=action, tenant_id=job.tenant_id, target=job.pk, details=details)
    transaction.on_commit(pubsub.access_changed)
