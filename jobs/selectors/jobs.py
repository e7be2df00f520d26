"""Jobs as their people may see them: one, many, and whether somebody may act on one."""

from __future__ import annotations

from collections.abc import Iterable

from django.db.models import OuterRef, Q, QuerySet, Subquery
from django.db.models.functions import JSONObject
from guardian.models import UserObjectPermission

from jobs.errors import JobNotFound, NotAllowed
from jobs.ids import is_job_id
from jobs.models import Attempt, Checkpoint, Job
from jobs.states import State
from tenants import access
from tenants.models import User
from tenants.roles import Permission

ORDERS = {
    "newest": ("-id",),
    "oldest": ("id",),
    "name": ("name", "id"),
    "-name": ("-name", "-id"),
    "state": ("state", "-id"),
    "priority": ("-priority_rank", "-id"),
}
"""What a list may be ordered by; each ends in the unique id, so a page's edge is exact."""


def jobs_visible_to(user: access.Person) -> QuerySet[Job]:
    """Every job the caller may read, deleted ones left out: his tenants', and single ones shared with him."""
    rows = Job.objects.filter(deleted_at=None)
    if access.is_platform_admin(user):
        return rows
    if not isinstance(user, User):
        return rows.none()
    mine = Q(tenant__in=access.memberships(user).values("tenant"))
    if shared := shared_ids(user):
        mine |= Q(pk__in=shared)
    return rows.filter(mine)


def shared_ids(user: User) -> list[str]:
    """Jobs of foreign tenants that were shared with this person: few, so they are fetched and the list stays quick."""
    if not access.takes_shares(user):
        return []
    grants = UserObjectPermission.objects.filter(
        user=user,
        content_type__app_label="jobs",
        content_type__model="job",
        permission__codename__in=("view_job", "operate_job"),
    )
    return list(grants.values_list("object_pk", flat=True).distinct())


def with_details(rows: QuerySet[Job]) -> QuerySet[Job]:
    """The same jobs with everything that job_view shows, in one query."""
    newest = Checkpoint.objects.filter(job=OuterRef("pk"), state=Checkpoint.State.COMMITTED)
    newest = newest.order_by(*Checkpoint.NEWEST_FIRST)
    live = Attempt.objects.filter(job=OuterRef("pk"), closed_at=None)
    return rows.select_related("tenant", "owner", "progress", "estimate").annotate(
        newest_checkpoint=Subquery(newest.values(json=JSONObject(n="n", step="step", at="committed_at"))[:1]),
        live_attempt=Subquery(
            live.values(
                json=JSONObject(
                    opened_at="opened_at",
                    slot_type="slot_type",
                    processing_at="processing_at",
                    began_step="resume_from__step",
                )
            )[:1]
        ),
    )


def job_get(*, user: access.Person, job_id: str) -> Job:
    """One job with its details. Raises JobNotFound, for a stranger exactly as for a missing id."""
    if not is_job_id(job_id):
        raise JobNotFound
    job = with_details(jobs_visible_to(user)).filter(pk=job_id).first()
    if job is None:
        raise JobNotFound
    return job


def job_to_operate(*, user: access.Person, job_id: str) -> Job:
    """One job that the caller may act on, without its details. Raises JobNotFound or NotAllowed."""
    rows = jobs_visible_to(user).select_related("tenant", "owner")
    job = rows.filter(pk=job_id).first() if is_job_id(job_id) else None
    if job is None:
        raise JobNotFound
    require_operate(user, job)
    return job


def job_list(
    *,
    user: access.Person,
    tenant: str = "",
    states: Iterable[State] = (),
    owner: str = "",
    tag: str = "",
    gpu_type: str = "",
    q: str = "",
    order: str = "newest",
) -> QuerySet[Job]:
    """Jobs of all tenants the caller belongs to, narrowed; q looks into name, id, owner and tags.

    The answer is lazy and ordered by a unique key: the caller cuts its page. order is one of ORDERS (KeyError else).
    """
    rows = jobs_visible_to(user)
    if tenant:
        rows = rows.filter(tenant__slug=tenant)
    if states := list(states):
        rows = rows.filter(state__in=states)
    if owner:
        rows = rows.filter(owner__username=owner)
    if tag:
        rows = rows.filter(tags__contains=[tag])
    if gpu_type:
        rows = rows.filter(
            Q(gpu_type=gpu_type) | Q(attempts__closed_at=None, attempts__slot_type=gpu_type)
        ).distinct()
    if q := q.strip():
        rows = rows.filter(
            Q(name__icontains=q)
            | Q(pk__startswith=q.lower())
            | Q(owner__username__icontains=q)
            | Q(tags__contains=[q])
        )
    return with_details(rows).order_by(*ORDERS[order])


def may_operate(user: access.Person, job: Job) -> bool:
    """Say whether the caller may halt, resume, cancel, edit and delete: its owner while he may submit, a manager,
    a platform admin, or somebody to whom this one job was entrusted."""
    if access.is_platform_admin(user) or access.may(user, Permission.OPERATE_ANY, job.tenant_id):
        return True
    if not isinstance(user, User):
        return False
    if job.owner_id == user.pk and access.may(user, Permission.SUBMIT, job.tenant_id):
        return True
    return access.takes_shares(user, to_operate=True) and user.has_perm("jobs.operate_job", job)


def require_operate(user: access.Person, job: Job) -> None:
    """Raise NotAllowed unless the caller may act on this job."""
    if not may_operate(user, job):
        raise NotAllowed(f"Only the job's owner, {job.owner}, or a manager of {job.tenant} may do this.")
