"""One job shown or entrusted to one person outside its tenant, by django-guardian. Its owner or a manager decides.

A share reads the same whether or not there is a user of its name, so that sharing reveals no account.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from django.contrib.contenttypes.models import ContentType
from django.db import transaction
from django.db.models import Q, QuerySet
from guardian.models import UserObjectPermission
from guardian.shortcuts import assign_perm, remove_perm

from jobs import pubsub
from jobs.models import Job, Share
from jobs.selectors.jobs import job_to_manage, may_manage
from tenants import access, audit, checks
from tenants.errors import FieldsInvalid, NotFound, problem
from tenants.models import Membership, User


class SharePermission(StrEnum):
    """What a guest may do with the one job. operate includes view."""

    VIEW = "view"
    OPERATE = "operate"


def shares_of(*, user: access.Person, job_id: str) -> list[Share]:
    """Everyone outside the tenant who may see this job, by name. Raises JobNotFound; JobForbidden for a guest."""
    job = job_to_manage(user=user, job_id=job_id)
    return list(Share.objects.filter(job=job).order_by("username"))


@transaction.atomic
def job_share(*, user: access.Person, job_id: str, username: str, permission: SharePermission) -> Share:
    """Let a person see or operate this job; a second share replaces the first. Raises FieldsInvalid, JobForbidden."""
    job = job_to_manage(user=user, job_id=job_id)
    checks.refuse(checks.text("username", username, 150))
    if Membership.objects.filter(user__username=username, tenant=job.tenant_id).exists():
        text = f"is already a member of {job.tenant} and can see the job"
        raise FieldsInvalid(errors=[problem("username", "already_member", text, username)])
    share, _ = Share.objects.update_or_create(
        job=job,
        username=username,
        defaults={
            "tenant_id": job.tenant_id,
            "permission": permission.value,
            "granted_by": user if isinstance(user, User) else None,
        },
    )
    guest = User.objects.filter(username=username, is_active=True, is_service_account=False).first()
    if guest is not None:
        assign_perm("jobs.view_job", guest, job)
        change = assign_perm if permission is SharePermission.OPERATE else remove_perm
        change("jobs.operate_job", guest, job)
    _record(user, job, "job.share", {"username": username, "permission": permission.value})
    return share


@transaction.atomic
def job_unshare(*, user: access.Person, job_id: str, username: str) -> None:
    """Take a share back; it ends at once. Raises NotFound when there is none."""
    job = job_to_manage(user=user, job_id=job_id)
    share = Share.objects.filter(job=job, username=username).first()
    if share is None:
        raise NotFound
    _end(share)
    _record(user, job, "job.unshare", {"username": username})


def end_with_membership(sender: object, instance: Membership, **more: object) -> None:
    """Receiver of a membership's deletion, in its transaction: what the user granted there ends, and what they were
    granted on its jobs; with their last membership, also what they were granted elsewhere."""
    user = User.objects.get(pk=instance.user_id)
    own = Q(username=user.get_username())
    if Membership.objects.filter(user=user).exists():
        own &= Q(tenant=instance.tenant_id)
    ended: QuerySet[Share] = Share.objects.filter(own | Q(granted_by=user, tenant=instance.tenant_id))
    for share in ended.select_related("job").order_by("job_id", "username"):
        _end_because(share, f"the membership of {user.get_username()} ended")


def end_with_rights(sender: object, user: User, because: str, **more: object) -> None:
    """Receiver of tenants.signals.rights_lost: what the user granted and could not grant any more ends."""
    granted = Share.objects.filter(granted_by=user).select_related("job__tenant", "job__owner")
    for share in granted.order_by("job_id", "username"):
        if not (user.is_active and may_manage(user, share.job)):
            _end_because(share, because)


def _end_because(share: Share, because: str) -> None:
    _end(share)
    _record(None, share.job, "job.unshare", {"username": share.username, "because": because})


def _end(share: Share) -> None:
    UserObjectPermission.objects.filter(
        object_pk=share.job_id,
        content_type=ContentType.objects.get_for_model(Job),
        user__username=share.username,
    ).delete()
    share.delete()


def _record(user: access.Person | None, job: Job, action: str, details: dict[str, Any]) -> None:
    audit.record(actor=user, action=action, tenant_id=job.tenant_id, target=job.pk, details=details)
    transaction.on_commit(pubsub.access_changed)
