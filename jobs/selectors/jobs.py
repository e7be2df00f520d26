"""Which jobs a user can see, list and act on, and which actions a job allows now."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db.models import BooleanField, Count, Exists, ExpressionWrapper, OuterRef, Q, QuerySet, Subquery
from django.db.models.functions import JSONObject
from guardian.models import UserObjectPermission

from gpu_scheduler.model import CPU_TYPE
from jobs.accounting import counts_until, time_left_s
from jobs.errors import JobForbidden, JobNotFound
from jobs.ids import is_job_id, may_begin_id
from jobs.models import JOB_TERMS, Attempt, Checkpoint, Job
from jobs.selectors.attempts import counted_after
from jobs.selectors.redaction import redacted_job
from jobs.states import Action, Intent, State, allowed_actions, ends_failed
from tenants import access, search
from tenants.models import Tenant, User
from tenants.roles import Permission

ORDERS = {
    "newest": ("-id",),
    "oldest": ("id",),
    "name": ("name", "id"),
    "-name": ("-name", "-id"),
    "state": ("state", "-id"),
    "priority": ("-priority_rank", "-id"),
}
"""What a list can be ordered by; each ends in the unique id, so pages neither repeat nor skip a job."""
ENDED_WITHIN = {"24h": timedelta(hours=24), "7d": timedelta(days=7)}
"""How long ago jobs of a list can have ended at most, by name."""
COMPARED = 10_000
"""At most so many of the newest jobs are compared to count what a search finds."""


def jobs_visible_to(user: access.Person) -> QuerySet[Job]:
    """Every job that the caller can read, without deleted ones: those of their tenants, and jobs shared with them."""
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
    """Jobs of other tenants shared with this user. There are few: as a list of ids they keep the main query fast."""
    if not access.may_use_shares(user):
        return []
    grants = UserObjectPermission.objects.filter(
        user=user,
        content_type__app_label="jobs",
        content_type__model="job",
        permission__codename__in=("view_job", "operate_job"),
    )
    return list(grants.values_list("object_pk", flat=True).distinct())


def jobs_shared_with(user: User) -> QuerySet[Job]:
    """Jobs that the user can read because they were shared, not as a member of their tenants; the newest first. Only
    what a list of links shows is read: a spec may be large."""
    mine = access.memberships(user).values("tenant")
    rows = Job.objects.filter(deleted_at=None, pk__in=shared_ids(user)).exclude(tenant__in=mine)
    return rows.select_related("tenant").only("name", "created_at", "tenant__slug").order_by("-pk")


def with_details(rows: QuerySet[Job]) -> QuerySet[Job]:
    """The same jobs with everything that JobSerializer reads, in one query."""
    newest = Checkpoint.objects.filter(job=OuterRef("pk"), state=Checkpoint.State.COMMITTED)
    newest = newest.order_by(*Checkpoint.NEWEST_FIRST)
    live = Attempt.objects.filter(job=OuterRef("pk"), closed_at=None)
    first = Attempt.objects.filter(job=OuterRef("pk"), n=1)
    last = Attempt.objects.filter(job=OuterRef("pk"), n=OuterRef("attempt"))
    return rows.select_related("tenant", "owner", "progress", "estimate").annotate(
        slot_type=Subquery(last.values("slot_type")[:1]),
        first_step=Subquery(first.values(step=counted_after())[:1]),
        newest_checkpoint=Subquery(newest.values(json=JSONObject(n="n", step="step", at="committed_at"))[:1]),
        live_attempt=Subquery(
            live.values(
                json=JSONObject(
                    opened_at="opened_at",
                    known_at="known_at",
                    processing_at="processing_at",
                    began_step=counted_after(),
                )
            )[:1]
        ),
    )


def job_get(*, user: access.Person, job_id: str) -> Job:
    """One job with its details, redacted for this user. Raises JobNotFound for a missing id and for outsiders alike."""
    if not is_job_id(job_id):
        raise JobNotFound
    job = with_details(jobs_visible_to(user)).filter(pk=job_id).first()
    if job is None:
        raise JobNotFound
    return redacted_job(user, job)


def job_to_operate(*, user: access.Person, job_id: str) -> Job:
    """One job that the caller can halt, resume, save and cancel, without its details.

    Raises JobNotFound or JobForbidden.
    """
    job = _bare(user, job_id)
    if not may_operate(user, job):
        raise JobForbidden(_who_may(user, job))
    return job


def job_to_manage(*, user: access.Person, job_id: str) -> Job:
    """One job that the caller can edit, delete and share, without its details. Raises JobNotFound or JobForbidden."""
    job = _bare(user, job_id)
    if not may_manage(user, job):
        raise JobForbidden(_who_may(user, job))
    return job


def _bare(user: access.Person, job_id: str) -> Job:
    rows = jobs_visible_to(user).select_related("tenant", "owner")
    job = rows.filter(pk=job_id).first() if is_job_id(job_id) else None
    if job is None:
        raise JobNotFound
    return job


def job_list(*, user: access.Person, order: str = "newest", **filters: Any) -> QuerySet[Job]:
    """Jobs of all tenants that the caller belongs to, filtered as by job_listing.

    The result is lazy and ordered by a unique key: slice a page from it and load that with `detailed`. Raises KeyError
    if order is not one of ORDERS.
    """
    return job_listing(user=user, **filters).rows.order_by(*ORDERS[order])


@dataclass(frozen=True, slots=True)
class Listing:
    """Jobs in no order. whole, matches: if a search compares row by row, the jobs without it, and its condition."""

    rows: QuerySet[Job]
    whole: QuerySet[Job] | None = None
    matches: Q | None = None

    def count(self, cap: int) -> tuple[int, bool]:
        """How many there are; if more, at least so many. Beyond cap none is counted, and a search that compares row by
        row looks at the COMPARED newest jobs alone, so that the work does not grow with the history."""
        if self.whole is None or self.matches is None:
            found = self.rows.order_by().values("pk")[: cap + 1].count()
            return min(found, cap), found > cap
        is_match = ExpressionWrapper(self.matches, output_field=BooleanField())
        newest = self.whole.order_by("-pk").values(is_match=is_match)[: COMPARED + 1]
        seen = newest.aggregate(rows=Count("*"), found=Count("is_match", filter=Q(is_match=True)))
        return min(seen["found"], cap), seen["rows"] > COMPARED or seen["found"] > cap


def job_listing(
    *,
    user: access.Person,
    tenant: str = "",
    states: Iterable[State] = (),
    owner: str = "",
    tag: str = "",
    gpu_type: str = "",
    project: str = "",
    opportunistic: bool | None = None,
    ended_after: datetime | None = None,
    q: str = "",
) -> Listing:
    """Jobs of all tenants that the caller belongs to, filtered; q searches name, id, owner and tags. opportunistic:
    None: these and others. ended_after: only jobs that have ended since."""
    scope = _scope(user, tenant)
    rows = scope.rows
    if states := list(states):
        rows = rows.filter(state__in=states)
    if owner:
        rows = rows.filter(owner__in=_ids(User.objects.filter(username=owner)))
    if tag:
        rows = rows.filter(tags__contains=[tag])
    if gpu_type:
        rows = rows.filter(_on(gpu_type))
    if project:
        rows = rows.filter(project=project)
    if opportunistic is not None:
        rows = rows.filter(opportunistic=opportunistic)
    if ended_after is not None:
        rows = rows.filter(finished_at__gt=ended_after)
    if not (q := q.strip()):
        return Listing(rows)
    matches, found = _sought(scope, q)
    if found is None:
        return Listing(rows.filter(matches), rows, matches)
    return Listing(rows.filter(pk__in=found))


def _sought(scope: _Scope, q: str) -> tuple[Q, list[str] | None]:
    """The condition of a search: q in the name, at the begin of the id, in the owner's name, or one of the tags; and
    the ids of all jobs that meet it, unless they are many.

    Each part is looked up by an index of its own: an OR of them would be compared with every job of the tenant.
    """
    owners = _ids(User.objects.filter(username__icontains=q))
    named = Q(name__icontains=q)
    matches = named | Q(owner__in=owners) | Q(tags__contains=[q])
    begins = may_begin_id(q.lower())
    if begins:
        matches |= Q(pk__startswith=q.lower())
    found = search.find(
        scope.rows,
        JOB_TERMS,
        q,
        matches=matches,
        text_matches=named,
        tenants=scope.tenants,
        also=[*search.marks("word", [q]), *search.marks("person", owners)],
    )
    if found is None:
        return matches, None
    ids = set(found)
    if begins:
        # Narrowed afterwards: with the tenant, its whole index may look cheaper than the range of ids.
        begun = _pks(Job.objects.filter(pk__startswith=q.lower()), search.MOST + 1)
        if len(begun) > search.MOST:
            return matches, None
        ids.update(_pks(scope.rows.filter(pk__in=begun)))
    if scope.shared:
        ids.update(_pks(Job.objects.filter(matches, pk__in=scope.shared)))
    return matches, sorted(ids)


def _pks(rows: QuerySet[Job], at_most: int | None = None) -> list[str]:
    return list(rows.order_by().values_list("pk", flat=True)[:at_most])


def _on(slot_type: str) -> Q:
    """Jobs that request slots of the type, or accept any type and were last placed on it."""
    if slot_type == CPU_TYPE:
        return Q(gpus=0)
    last = Attempt.objects.filter(job=OuterRef("pk"), n=OuterRef("attempt"), slot_type=slot_type)
    # Said twice, so that it is two ranges of an index and attempts are looked up of the second one only.
    ranges = Q(gpus__gt=0, gpu_type__in=(slot_type, ""))
    return ranges & (Q(gpu_type=slot_type) | Q(Exists(last)))


@dataclass(frozen=True, slots=True)
class _Scope:
    """rows: the jobs of jobs_visible_to in one tenant or in all: those of these tenants (None: of any), and the shared
    ones.

    Tenants and owners are in the query as ids, not as joins: the planner then knows how many jobs each has, and a list
    of one tenant is one range of an index in any order.
    """

    rows: QuerySet[Job]
    tenants: list[int] | None
    shared: list[str]


def _scope(user: access.Person, tenant: str) -> _Scope:
    rows = Job.objects.filter(deleted_at=None)
    if not tenant and access.is_platform_admin(user):
        return _Scope(rows, None, [])
    if tenant:
        tenants = _ids(Tenant.objects.filter(slug=tenant))
        rows = rows.filter(tenant__in=tenants)
        if access.find_tenant(user, tenant) is not None:
            return _Scope(rows, tenants, [])
    shared = shared_ids(user) if isinstance(user, User) else []
    if tenant:
        return _Scope(rows.filter(pk__in=shared), [], shared)
    tenants = _ids(access.visible_tenants(user))
    mine = Q(tenant__in=tenants)
    return _Scope(rows.filter(mine | Q(pk__in=shared) if shared else mine), tenants, shared)


def _ids(rows: QuerySet[Any]) -> list[int]:
    return list(rows.order_by().values_list("pk", flat=True))


def detailed(rows: Iterable[Job]) -> list[Job]:
    """These rows in their order, with everything that JobSerializer reads and no more, in one query.

    The jobs of a page are selected first, without details: a sort then moves no specs.
    """
    return detailed_lists([rows])[0]


def detailed_lists(lists: Iterable[Iterable[Job]]) -> list[list[Job]]:
    """As `detailed`, several lists in one query, which takes longer to build than to run."""
    wanted = [[job.pk for job in rows] for rows in lists]
    ids = {pk for each in wanted for pk in each}
    found = {
        job.pk: job for job in with_details(Job.objects.filter(pk__in=ids)).defer("spec_text", "packages")
    }
    return [[found[pk] for pk in each if pk in found] for each in wanted]


def may_operate(user: access.Person, job: Job) -> bool:
    """True if the caller can halt, resume, save and cancel: may_manage, or it was shared with them to operate it."""
    return may_manage(user, job) or (
        access.may_use_shares(user, to_operate=True) and _is_shared_to_operate(user, job)
    )


def may_manage(user: access.Person, job: Job) -> bool:
    """True if the caller can also edit, delete and share: the owner while they can submit, a manager, an admin."""
    if access.is_platform_admin(user) or access.may(user, Permission.OPERATE_ANY, job.tenant_id):
        return True
    return job.owner_id == user.pk and access.may(user, Permission.SUBMIT, job.tenant_id)


def _is_shared_to_operate(user: access.Person, job: Job) -> bool:
    return isinstance(user, User) and user.has_perm("jobs.operate_job", job)


def _who_may(user: access.Person, job: Job) -> str:
    """Why this caller cannot act, and what to do about it."""
    if problem := access.only_reads(user):
        return f"{problem} Use a token with the role researcher."
    if job.owner_id == user.pk:
        return f"This requires the role researcher or higher in {job.tenant}, even for your own jobs."
    if _is_shared_to_operate(user, job):
        may = "It was shared with you to halt, resume, save and cancel it"
        return f"{may}; anything else needs a role in {job.tenant}."
    return f"Only the job's owner ({job.owner}) or a manager of {job.tenant} can do this."


def actions_of(job: Job, live: Attempt | None, now: datetime) -> tuple[Action, ...]:
    """The actions that REST and pages offer now; all others are refused. live: the attempt that is not closed."""
    return allowed_actions(
        State(job.state), Intent(job.intent), fails=will_fail(job), time_is_up=is_time_up(job, live, now)
    )


def will_fail(job: Job) -> bool:
    """True if the job is stopping and will end as FAILED."""
    return ends_failed(State(job.state), job.stop_reason, job.restarts_used, job.max_restarts)


def is_time_up(job: Job, live: Attempt | None, now: datetime) -> bool:
    """True if the job has used up its time limit."""
    began, known_at = (live.processing_at, live.known_at) if live else (None, None)
    left_s = time_left_s(job.time_limit_s, job.running_s, began, counts_until(known_at, None, now))
    return left_s is not None and left_s <= 0


def live_attempt(job: Job) -> Attempt | None:
    """The attempt that is not closed; None for a job without a time limit, because only is_time_up needs it."""
    return job.attempts.filter(closed_at=None).first() if job.time_limit_s is not None else None


def etag(job: Job) -> str:
    """The row's version for If-Match: the number of its newest event."""
    return f'"{job.event_seq}"'
