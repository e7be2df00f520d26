"""What a set of quota changes does at once: tenants over their limit, jobs that start or wait because of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from django.db.models import F

from gpu_scheduler.model import Snapshot
from jobs.selectors.budgets import with_use
from jobs.selectors.what_if import Affected, current, outcome, with_limits
from tenants.models import Quota, Tenant
from tenants.services.quotas import WHOLE, Applied, ChangeSet, Total


@dataclass(frozen=True, slots=True)
class QuotaEffects:
    """over: changes that leave a tenant in no cohort above its limit. starts, waits: jobs that now start, or no longer
    do. stops: running jobs that are stopped because of it.

    totals: the sum of the limits by slot type.
    """

    over: tuple[Applied, ...]
    starts: tuple[Affected, ...]
    waits: tuple[Affected, ...]
    stops: tuple[Affected, ...]
    totals: tuple[Total, ...]

    @property
    def overallocated(self) -> tuple[Total, ...]:
        """Slot types whose limits sum to more than the cluster has."""
        return tuple(total for total in self.totals if total.limits > total.capacity)

    @property
    def none(self) -> bool:
        """True if nothing changes that anyone must know before the set is applied."""
        return not (self.over or self.starts or self.waits or self.stops or self.overallocated)


def quota_effects(made: ChangeSet, seen: Snapshot) -> QuotaEffects:
    """The effects of a dry run: the difference between two plans of what was seen before. A set that changes nothing is
    not planned."""
    if not any(one.changes for one in made.changes):
        return QuotaEffects(tuple(_over(made)), (), (), (), made.totals)
    limits = {
        (one.tenant, one.gpu_type): {
            **({} if one.gpu_type == WHOLE else {"limit": one.new_limit}),
            **{name: new for name, (_, new) in one.terms.items()},
        }
        for one in made.changes
    }
    changed = with_limits(seen, limits)
    changed = replace(changed, tenants=with_use(changed.tenants, seen.now))
    before, after = outcome(seen), outcome(changed)
    stopped_before = {job.job for job in before.stopping}
    return QuotaEffects(
        tuple(_over(made)),
        tuple(job for job in after.starting if job.job not in before.starting_ids),
        tuple(job for job in after.waiting if job.job in before.starting_ids),
        tuple(job for job in after.stopping if job.job not in stopped_before),
        made.totals,
    )


@dataclass(frozen=True, slots=True)
class Tried:
    """A dry run and its effects. It is made before the set is applied, so that no plan is made under the lock of all
    quotas, which a request with an Idempotency-Key holds until its answer."""

    made: ChangeSet
    effects: QuotaEffects
    seen: Snapshot

    def effects_of(self, made: ChangeSet) -> QuotaEffects:
        """The effects of the set as it was applied: planned again only if another one came between."""
        if _without_use(made) != _without_use(self.made):
            return quota_effects(made, self.seen)
        return replace(self.effects, over=tuple(_over(made)), totals=made.totals)


def tried(made: ChangeSet) -> Tried:
    """What this dry run would do now."""
    seen = current()
    return Tried(made, quota_effects(made, seen), seen)


def _without_use(made: ChangeSet) -> list[Applied]:
    """Jobs that start meanwhile change no plan of what was seen."""
    return [replace(one, used=0) for one in made.changes]


def _over(made: ChangeSet) -> Iterator[Applied]:
    """What tenants in no cohort use above their limits; in a cohort, it is borrowed."""
    moved = {one.tenant: one.terms["cohort"][1] for one in made.changes if "cohort" in one.terms}
    slugs = {one.tenant for one in made.changes}
    cohorts = dict(Tenant.objects.filter(slug__in=slugs).values_list("slug", "cohort")) | moved
    named = {(one.tenant, one.gpu_type) for one in made.changes}
    for one in made.changes:
        if one.used > one.new_limit and not cohorts[one.tenant]:
            yield one
    left = [tenant for tenant, cohort in moved.items() if not cohort]
    for quota in Quota.objects.filter(tenant__slug__in=left, used__gt=F("limit")).select_related("tenant"):
        if (quota.tenant.slug, quota.gpu_type) not in named:
            yield Applied(quota.tenant.slug, quota.gpu_type, quota.limit, quota.limit, quota.used)
