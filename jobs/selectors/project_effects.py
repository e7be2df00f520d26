"""A tenant's projects with what they use, and what a set of changes of them does at once."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from django.db.models import F, Sum

from gpu_scheduler.model import Project, ProjectShare, Snapshot
from jobs.models import Attempt
from jobs.selectors.snapshot import projects
from jobs.selectors.what_if import Affected, Outcome, current, outcome
from tenants.models import Tenant
from tenants.services.projects import WHOLE, ChangeSet, State, projects_of


@dataclass(frozen=True, slots=True)
class ShareStatus:
    """One slot type of a project, in slots. limit None: no limit."""

    gpu_type: str
    guarantee: int
    limit: int | None
    used: int


@dataclass(frozen=True, slots=True)
class ProjectStatus:
    slug: str
    weight: int
    shares: tuple[ShareStatus, ...]


@dataclass(frozen=True, slots=True)
class ProjectEffects:
    """over: shares whose jobs hold more than the new limit; none is stopped. starts, waits: jobs that now start, or no
    longer do."""

    over: tuple[tuple[str, ShareStatus], ...]
    starts: tuple[Affected, ...]
    waits: tuple[Affected, ...]


def projects_status(tenant: Tenant) -> list[ProjectStatus]:
    """All projects of the tenant by name, with each slot type that one has or uses."""
    return _status(projects_of(tenant), _used(tenant=tenant)[tenant.slug])


def projects_of_all() -> dict[str, list[ProjectStatus]]:
    """The same of every tenant that has projects, by its slug, in two queries."""
    states: defaultdict[str, State] = defaultdict(dict)
    for project in projects():
        own = states[project.tenant]
        own[project.name, WHOLE] = {"weight": project.weight}
        for share in project.shares:
            own[project.name, share.slot_type] = {"guarantee": share.guarantee, "limit": share.limit}
    used = _used() if states else defaultdict(Counter)
    return {tenant: _status(state, used[tenant]) for tenant, state in states.items()}


@dataclass(frozen=True, slots=True)
class Before:
    """What a plan decides before a tenant's projects change. planned: None where nothing of the tenant waits."""

    seen: Snapshot
    planned: Outcome | None


def before_changes(tenant: Tenant) -> Before:
    """Call it before the change, so that this plan is not made under the lock of all quotas."""
    seen = current()
    waits = any(gang.tenant == tenant.slug for gang in seen.waiting)
    return Before(seen, outcome(seen) if waits else None)


def project_effects(tenant: Tenant, made: ChangeSet, before: Before) -> ProjectEffects:
    """The effects of applied changes, or of a dry run: the difference between two plans of one snapshot."""
    changed = {(one.project, one.gpu_type) for one in made.changes}
    over = tuple(
        (project.slug, share)
        for project in _status(made.after, _used(tenant=tenant)[tenant.slug])
        for share in project.shares
        if (project.slug, share.gpu_type) in changed and share.limit is not None and share.used > share.limit
    )
    if not changed or before.planned is None:
        return ProjectEffects(over, (), ())
    started = before.planned.starting_ids
    of_others = [project for project in before.seen.projects if project.tenant != tenant.slug]
    after = outcome(replace(before.seen, projects=(*of_others, *as_planned(tenant.slug, made.after))))
    return ProjectEffects(
        over,
        tuple(job for job in after.starting if job.job not in started and job.tenant == tenant.slug),
        tuple(job for job in after.waiting if job.job in started and job.tenant == tenant.slug),
    )


def as_planned(tenant: str, state: State) -> Iterable[Project]:
    """The tenant's projects as plans know them, if this were set."""
    for project in _status(state, Counter()):
        shares = (ProjectShare(share.gpu_type, share.guarantee, share.limit) for share in project.shares)
        yield Project(tenant, project.slug, project.weight, tuple(shares))


def _status(state: State, used: Counter[tuple[str, str]]) -> list[ProjectStatus]:
    found = []
    for (slug, gpu_type), terms in sorted(state.items()):
        if gpu_type != WHOLE:
            continue
        types = sorted({kind for name, kind in (*state, *used) if name == slug and kind != WHOLE})
        shares = []
        for kind in types:
            share = state.get((slug, kind), {})
            limit = share.get("limit")
            shares.append(ShareStatus(kind, share.get("guarantee") or 0, limit, used[slug, kind]))
        found.append(ProjectStatus(slug, terms["weight"] or 1, tuple(shares)))
    return found


def _used(**narrowed: Any) -> defaultdict[str, Counter[tuple[str, str]]]:
    """By tenant, of all or of some: by project and slot type, the slots that its jobs hold."""
    held = Attempt.objects.filter(held=True, **narrowed).exclude(job__project="").order_by()
    slots = held.values_list("tenant__slug", "job__project", "slot_type")
    found: defaultdict[str, Counter[tuple[str, str]]] = defaultdict(Counter)
    for tenant, project, kind, total in slots.annotate(total=Sum(F("slots") * F("learners"))):
        found[tenant][project, kind] = total
    return found
