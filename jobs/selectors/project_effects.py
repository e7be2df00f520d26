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
from jobs.selectors.what_if import Affected, current, outcome
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


def project_effects(tenant: Tenant, made: ChangeSet, seen: Snapshot) -> ProjectEffects:
    """The effects of a dry run: the difference between two plans of what was seen before. A set that changes nothing,
    or nothing for a job that waits, is not planned."""
    if not made.changes or not any(gang.tenant == tenant.slug for gang in seen.waiting):
        return ProjectEffects(_over(tenant, made), (), ())
    started = outcome(seen).starting_ids
    of_others = [project for project in seen.projects if project.tenant != tenant.slug]
    after = outcome(replace(seen, projects=(*of_others, *as_planned(tenant.slug, made.after))))
    return ProjectEffects(
        _over(tenant, made),
        tuple(job for job in after.starting if job.job not in started and job.tenant == tenant.slug),
        tuple(job for job in after.waiting if job.job in started and job.tenant == tenant.slug),
    )


@dataclass(frozen=True, slots=True)
class Tried:
    """A dry run and its effects. It is made before the set is applied, so that no plan is made under the lock of all
    quotas, which a request with an Idempotency-Key holds until its answer."""

    tenant: Tenant
    made: ChangeSet
    effects: ProjectEffects
    seen: Snapshot

    def effects_of(self, made: ChangeSet) -> ProjectEffects:
        """The effects of the set as it was applied: planned again only if another one came between."""
        if (made.changes, made.after) != (self.made.changes, self.made.after):
            return project_effects(self.tenant, made, self.seen)
        return replace(self.effects, over=_over(self.tenant, made))


def tried(tenant: Tenant, made: ChangeSet) -> Tried:
    """What this dry run would do now."""
    seen = current()
    return Tried(tenant, made, project_effects(tenant, made, seen), seen)


def _over(tenant: Tenant, made: ChangeSet) -> tuple[tuple[str, ShareStatus], ...]:
    changed = {(one.project, one.gpu_type) for one in made.changes}
    return tuple(
        (project.slug, share)
        for project in _status(made.after, _used(tenant=tenant)[tenant.slug])
        for share in project.shares
        if (project.slug, share.gpu_type) in changed and share.limit is not None and share.used > share.limit
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
    """By tenant, of all or of some: by project and slot type, the slots that its jobs hold of the tenant's quota."""
    held = (
        Attempt.objects.filter(held=True, opportunistic=False, **narrowed).exclude(job__project="").order_by()
    )
    slots = held.values_list("tenant__slug", "job__project", "slot_type")
    found: defaultdict[str, Counter[tuple[str, str]]] = defaultdict(Counter)
    for tenant, project, kind, total in slots.annotate(total=Sum(F("slots") * F("learners"))):
        found[tenant][project, kind] = total
    return found
