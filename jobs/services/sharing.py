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
from jobs.selectors.jobs import job_to_decide
from tenants import access, audit
from tenants.errors import FieldsInvalid, NotFound, problem
from tenants.models import Membership, User


class Grant(StrEnum):
    """What a guest may do with the one job. operate includes view."""

    VIEW = "view"
    OPERATE = "operate"


@dataclass(frozen=True, slots=True)
class Share:
    username: str
    permission: Grant


def shares_of(*, user: access.Person, job_id: str) -> list[Share]:
    """Everybody outside the tenant who may see this job, by name. Raises JobNotFound; NotAllowed for a guest."""
    job = job_to_decide(user=user, job_id=job_id)
    grants = UserObjectPermission.objects.filter(
        object_pk=job.pk, content_type=ContentType.objects.get_for_model(Job)
    ).values_list("user__username", "permission__codename")
    best: dict[str, Grant] = {}
    for username, codename in grants:
        grant = Grant.OPERATE if codename == "operate_job" else Grant.VIEW
        best[username] = Grant.OPERATE if Grant.OPERATE in (grant, best.get(username)) else grant
    return [Share(name, best[name]) for name in sorted(best)]


@transaction.atomic
def job_share(*, user: access.Person, job_id: str, username: str, permission: Grant) -> Share:
    """Let a person see or operate this job; a second share replaces the first. Raises FieldsInvalid, NotAllowed."""
    job = job_to_decide(user=user, job_id=job_id)
    guest = User.objects.filter(username=username, is_active=True, is_service_account=False).first()
    if guest is None:
        raise FieldsInvalid(
            errors=[problem("username", "user_not_found", "there is no such person", username)]
        )
    if Membership.objects.filter(user=guest, tenant=job.tenant_id).exists():
        text = f"is a member of {job.tenant} and sees the job anyway"
        raise FieldsInvalid(errors=[problem("username", "already_member", text, username)])
    assign_perm("jobs.view_job", guest, job)
    (assign_perm if permission is Grant.OPERATE else remove_perm)("jobs.operate_job", guest, job)
    _record(user, job, "job.share", username, permission)
    return Share(username, permission)


@transaction.atomic
def job_unshare(*, user: access.Person, job_id: str, username: str) -> None:
    """Take a share back; it ends at once. Raises NotFound when there is none."""
    job = job_to_decide(user=user, job_id=job_id)
    grants = UserObjectPermission.objects.filter(
        object_pk=job.pk, content_type=ContentType.objects.get_for_model(Job), user__username=username
    )
    if not grants.exists():
        raise NotFound
    grants.delete()
    _record(user, job, "job.unshare", username, None)


def _record(user: access.Person, job: Job, action: str, username: str, permission: Grant | None) -> None:
    details = {"username": username} | ({"permission": permission.value} if permission else {})
    audit.record(actor=user, action=action, tenant_id=job.tenant_id, target=job.pk, details=details)
    transaction.on_commit(pubsub.access_changed)
