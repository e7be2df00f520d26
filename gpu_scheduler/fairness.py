"""What tenants were entitled to, beside what they received: computed from spans of use and of waiting. Pure.

At every moment, for each tenant and slot type, in slots:

* demand: what its jobs hold, and what those ask for that others, or the cluster's size, keep waiting;
* guaranteed: demand up to its limit;
* share: of what the tenants of its cohort lend and do not use, its weighted part, as far as it has demand beyond its
  limit and may borrow. Shares are max-min fair by weight: what one does not need goes to the others.

It is entitled to guaranteed + share. Figures are these numbers over time, in slot-seconds. ADR 0074 gives the reasons.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from gpu_scheduler.ledger import loans
from gpu_scheduler.model import QuotaUse

Key = tuple[str, str]
"""Tenant and slot type."""


@dataclass(frozen=True, slots=True)
class Span:
    """Slots of one tenant and type from a time until another: held by a job, or asked for by one that waits."""

    tenant: str
    slot_type: str
    slots: int
    since: datetime
    until: datetime


@dataclass(frozen=True, slots=True)
class Terms:
    """The quotas that were in force from a time until another. Their `used` is not read."""

    since: datetime
    until: datetime
    quotas: tuple[QuotaUse, ...]


@dataclass(frozen=True, slots=True)
class Figures:
    """Slot-seconds. received: held; borrowed: the part of it beyond the limit that others lent; lent: to others.

    shortfall: what was missing of the entitlement while it was missing: what is received at another time makes up for
    nothing.
    """

    guaranteed: float = 0.0
    share: float = 0.0
    received: float = 0.0
    borrowed: float = 0.0
    lent: float = 0.0
    shortfall: float = 0.0

    @property
    def entitled(self) -> float:
        return self.guaranteed + self.share

    @property
    def satisfied(self) -> float | None:
        """The part of the entitlement that it received, 0 to 1; None if it was entitled to nothing."""
        return 1 - self.shortfall / self.entitled if self.entitled > 0 else None

    def plus(self, other: Figures, times: float = 1.0) -> Figures:
        return Figures(
            self.guaranteed + times * other.guaranteed,
            self.share + times * other.share,
            self.received + times * other.received,
            self.borrowed + times * other.borrowed,
            self.lent + times * other.lent,
            self.shortfall + times * other.shortfall,
        )


NONE = Figures()


def figures(held: Iterable[Span], waiting: Iterable[Span], terms: Iterable[Terms]) -> dict[Key, Figures]:
    """The figures of each tenant and type with any, over the time that the terms cover; spans are cut to it."""
    of_held, of_waiting = _by_key(held), _by_key(waiting)
    sums: defaultdict[Key, Figures] = defaultdict(Figures)
    for each in terms:
        for group in _groups(each, [*of_held, *of_waiting]):
            for key, found in _over_time(group, of_held, of_waiting, each).items():
                sums[key] = sums[key].plus(found)
    return {key: found for key, found in sums.items() if found != NONE}


Spans = Mapping[Key, Sequence[Span]]


def _by_key(spans: Iterable[Span]) -> Spans:
    found: defaultdict[Key, list[Span]] = defaultdict(list)
    for span in spans:
        found[span.tenant, span.slot_type].append(span)
    return found


def jain(found: Iterable[Figures]) -> float | None:
    """Jain's index over the tenants that were entitled to anything, of the part that each received: 1 if all received
    the same part, 1/n if one of n received all. None: none was entitled to anything, or none received any.

    Jain, Chiu and Hawe, "A Quantitative Measure of Fairness and Discrimination", DEC-TR-301, 1984.
    """
    parts = [part for each in found if (part := each.satisfied) is not None]
    squares = sum(part * part for part in parts)
    return sum(parts) ** 2 / (len(parts) * squares) if squares else None


def at_once(quotas: Sequence[QuotaUse], waiting: Mapping[str, int]) -> dict[str, Figures]:
    """The figures per second of the tenants that share one stock of one type: a cohort's, or one tenant alone.

    waiting: slots that each tenant's waiting jobs ask for.
    """
    guaranteed = {quota.tenant: min(quota.limit, quota.used + waiting[quota.tenant]) for quota in quotas}
    beyond = {quota.tenant: _may_borrow(quota, waiting[quota.tenant]) for quota in quotas}
    stock = sum(min(quota.lends, quota.limit - guaranteed[quota.tenant]) for quota in quotas)
    shares = _by_weight(stock, beyond, {quota.tenant: quota.weight for quota in quotas})
    borrowed: defaultdict[str, int] = defaultdict(int)
    lent: defaultdict[str, int] = defaultdict(int)
    for loan in loans(quotas) if any(quota.used > quota.limit for quota in quotas) else ():
        borrowed[loan.borrower] += loan.slots
        lent[loan.lender] += loan.slots
    found = {}
    for quota in quotas:
        own, share = guaranteed[quota.tenant], shares[quota.tenant]
        missing = max(0.0, own + share - quota.used)
        found[quota.tenant] = Figures(
            own, share, quota.used, borrowed[quota.tenant], lent[quota.tenant], missing
        )
    return found


def _may_borrow(quota: QuotaUse, waiting: int) -> int:
    beyond = max(0, quota.used + waiting - quota.limit) if quota.cohort else 0
    return beyond if quota.borrowing_limit is None else min(beyond, quota.borrowing_limit)


def _by_weight(stock: float, wanted: Mapping[str, int], weights: Mapping[str, int]) -> dict[str, float]:
    """Max-min fair by weight: those that want less than their part get it all, the others share what is left."""
    given = dict.fromkeys(wanted, 0.0)
    order = sorted((tenant for tenant in wanted if wanted[tenant]), key=lambda t: (wanted[t] / weights[t], t))
    left = sum(weights[tenant] for tenant in order)
    for tenant in order:
        given[tenant] = min(float(wanted[tenant]), stock * weights[tenant] / left)
        stock -= given[tenant]
        left -= weights[tenant]
    return given


def _groups(terms: Terms, keys: Iterable[Key]) -> list[tuple[QuotaUse, ...]]:
    """The quotas that share a stock, together; what has no quota has a limit of 0."""
    quotas = {(quota.tenant, quota.slot_type): quota for quota in terms.quotas}
    for key in keys:
        quotas.setdefault(key, QuotaUse(*key, limit=0, used=0))
    groups: defaultdict[tuple[str, str, str], list[QuotaUse]] = defaultdict(list)
    for quota in quotas.values():
        alone = "" if quota.cohort else quota.tenant
        groups[quota.cohort, alone, quota.slot_type].append(quota)
    return [tuple(group) for group in groups.values()]


def _over_time(group: Sequence[QuotaUse], held: Spans, waiting: Spans, terms: Terms) -> dict[Key, Figures]:
    """From one change of the group's use or demand to the next; of each tenant, from one of its rates to the next."""
    changes: defaultdict[datetime, list[tuple[str, int, int]]] = defaultdict(list)
    for spans, of_held in ((held, 1), (waiting, 0)):
        for quota in group:
            for span in spans.get((quota.tenant, quota.slot_type), ()):
                since, until = max(span.since, terms.since), min(span.until, terms.until)
                if since < until:
                    more, asked_more = span.slots * of_held, span.slots * (1 - of_held)
                    changes[since].append((span.tenant, more, asked_more))
                    changes[until].append((span.tenant, -more, -asked_more))
    now = {quota.tenant: replace(quota, used=0) for quota in group}
    asked = dict.fromkeys(now, 0)
    rates = dict.fromkeys(now, (NONE, terms.since))
    sums = dict.fromkeys(now, NONE)
    for at in sorted(changes):
        for tenant, held_now, asked_now in changes[at]:
            now[tenant] = replace(now[tenant], used=now[tenant].used + held_now)
            asked[tenant] += asked_now
        for tenant, rate in at_once(list(now.values()), asked).items():
            before, since = rates[tenant]
            if rate != before:
                sums[tenant] = sums[tenant].plus(before, (at - since).total_seconds())
                rates[tenant] = rate, at
    return {(quota.tenant, quota.slot_type): sums[quota.tenant] for quota in group}
