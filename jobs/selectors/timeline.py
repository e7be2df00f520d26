"""Nodes over time: how many of their slots were held, what the nodes were, and why nothing ran in a gap.

Everybody may see how much was held. Which job it was, and why it waited, is for those who may see the job.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db.models import Q

from jobs.models import ClusterNode, DecidedPlan, Job, JobEvent, NodeChange
from jobs.selectors.demand import Use, Wait, events_removed_between, uses_between, waits_between
from jobs.selectors.jobs import shared_ids
from jobs.selectors.platform_stops import stops_between
from jobs.selectors.usage import gpus_first
from jobs.states import State
from tenants import access
from tenants.models import User

UNKNOWN = "unknown"
"""The state of a node before the first line of its history."""
MOST = 40_000
"""Attempts or waits that are read for one answer: about a second's work."""
MOST_PLANS = 8
"""Plans that are named for one gap."""


@dataclass(frozen=True, slots=True)
class Phase:
    """What a node was from a time until another: a NodeChange.State, or UNKNOWN."""

    state: str
    since: datetime
    until: datetime


@dataclass(frozen=True, slots=True)
class NodeTime:
    """One node: in each of the parts of the time, the slots that visible jobs and those of others held, on average.
    opportunistic: those of both that opportunistic jobs held."""

    name: str
    slot_type: str
    slots: int
    visible: tuple[float, ...]
    others: tuple[float, ...]
    phases: tuple[Phase, ...]
    opportunistic: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class WaitingJob:
    """A job that waited in a gap, visible to the person who asks. slots: of all its learners.
    name: None if it was deleted since."""

    job: str
    name: str | None
    tenant: str
    slots: int
    reason: str
    since: datetime
    until: datetime


@dataclass(frozen=True, slots=True)
class Losses:
    """What the orders of one plan to stop or resize jobs cost, in slot-seconds, of jobs that the reader may know of.
    expected: what was at stake when they were decided, without the restarts of the jobs (unmeasured) for which none was
    measured yet. lost: the work that was lost by those that went back to the queue for it; the others are pending: they
    still save, ended otherwise, or their order became void."""

    orders: int
    expected: float
    unmeasured: int
    lost: float
    pending: int


@dataclass(frozen=True, slots=True)
class Decided:
    """A plan that decided something: the digest of its snapshot, and whether that is kept, so that it can be made
    again. losses: of its orders on the node's type; None: there were none, or an earlier version decided."""

    digest: str
    at: datetime
    kept: bool
    losses: Losses | None = None


@dataclass(frozen=True, slots=True)
class Gap:
    """Why nothing more ran on a node from a time until another.

    others: how many jobs of others waited for its type. stops: when the platform was stopped. removed: jobs of that
    time whose events were removed by a retention rule, so that their reasons are unknown; purged: deleted jobs of that
    time may be gone altogether. plans: those that decided something in this time, and the last one before it, which
    what held then follows from; the newest first, of more_plans further ones none is named.
    """

    node: str
    slot_type: str
    since: datetime
    until: datetime
    phases: tuple[Phase, ...]
    jobs: tuple[WaitingJob, ...]
    others: int
    stops: tuple[tuple[datetime, datetime], ...]
    removed: int
    purged: bool
    plans: tuple[Decided, ...] = ()
    more_plans: int = 0

    @property
    def complete(self) -> bool:
        """Whether a job that is not in here did not wait."""
        return not self.removed and not self.purged

    @property
    def has_earlier_plan(self) -> bool:
        """Whether one from before it is stored. Otherwise there was none, or it was removed with others."""
        return any(plan.at < self.since for plan in self.plans)


def nodes() -> list[ClusterNode]:
    """The nodes of now, by type and name."""
    return sorted(ClusterNode.objects.all(), key=lambda node: (gpus_first(node.slot_type), node.name))


def timeline(
    user: access.Person,
    shown_nodes: Sequence[ClusterNode],
    start: datetime,
    end: datetime,
    parts: int,
    now: datetime,
) -> list[NodeTime]:
    """These nodes in as many equal parts of the time. Of the last part, what is over counts. Raises TooMuch."""
    part = (end - start) / parts
    uses = uses_between(start, end, [node.name for node in shown_nodes], MOST)
    last = max(0.001, min(1.0, (now - (end - part)) / part))
    sees = _sees(user)
    held: dict[bool, defaultdict[str, list[float]]] = {
        seen: defaultdict(lambda: [0.0] * parts) for seen in (True, False)
    }
    opportunistic: defaultdict[str, list[float]] = defaultdict(lambda: [0.0] * parts)
    for use in uses:
        seen = sees(use)
        for node, ranks in Counter(use.nodes).items():
            _add(held[seen][node], use, use.slots * ranks, start, part)
            if use.opportunistic:
                _add(opportunistic[node], use, use.slots * ranks, start, part)
    for sums in (*held[True].values(), *held[False].values(), *opportunistic.values()):
        sums[-1] /= last
    phases = _phases([node.name for node in shown_nodes], start, end)
    return [
        NodeTime(
            node.name,
            node.slot_type,
            node.slots,
            tuple(held[True][node.name]),
            tuple(held[False][node.name]),
            phases[node.name],
            tuple(opportunistic[node.name]),
        )
        for node in shown_nodes
    ]


def _add(sums: list[float], use: Use, slots: int, start: datetime, part: timedelta) -> None:
    """Add the slots to the average of each part, as far as it was held then."""
    since = max((use.since - start) / part, 0.0)
    until = min((use.until - start) / part, float(len(sums)))
    for n in range(int(since), min(len(sums), int(until) + 1)):
        sums[n] += slots * max(0.0, min(until, n + 1) - max(since, n))


def _phases(names: Sequence[str], start: datetime, end: datetime) -> dict[str, tuple[Phase, ...]]:
    """What each node was in this time, without holes."""
    rows = NodeChange.objects.filter(name__in=names).values_list("name", "state", "at")
    before = rows.filter(at__lte=start).order_by("name", "-at", "-pk").distinct("name")
    found = {name: [(UNKNOWN, start)] for name in names}
    found |= {name: [(state, start)] for name, state, _ in before}
    for name, state, at in rows.filter(at__gt=start, at__lt=end).order_by("at", "pk"):
        found[name].append((state, at))
    return {
        node: tuple(
            Phase(state, since, until)
            for (state, since), (_, until) in zip(changes, [*changes[1:], ("", end)], strict=True)
            if since < until
        )
        for node, changes in found.items()
    }


def gap(user: access.Person, node: str, start: datetime, end: datetime, now: datetime) -> Gap | None:
    """Why nothing more ran there then; None if there is no such node. Raises TooMuch."""
    row = ClusterNode.objects.filter(name=node).first()
    if row is None:
        return None
    waits = [each for each in waits_between(start, end, MOST) if each.slot_type in ("", row.slot_type)]
    sees = _sees(user)
    shown = {wait.job for wait in waits if sees(wait)}
    names = dict(Job.objects.filter(pk__in=shown, deleted_at=None).values_list("pk", "name"))
    plans, more_plans = _plans(start, end, row.slot_type, user)
    return Gap(
        node,
        row.slot_type,
        start,
        end,
        _phases([node], start, end)[node],
        tuple(_waiting(wait, names.get(wait.job), start, end) for wait in _longest(waits, shown)),
        len({wait.job for wait in waits} - shown),
        tuple(stops_between(start, end)),
        events_removed_between(start, end),
        now - start > timedelta(days=settings.LUTHIER_RETENTION_DAYS),
        plans,
        more_plans,
    )


def _plans(
    start: datetime, end: datetime, slot_type: str, user: access.Person
) -> tuple[tuple[Decided, ...], int]:
    """What the answer about a gap follows from. A digest says nothing of whose jobs the plan was about."""
    rows = DecidedPlan.objects.order_by("-at", "-pk")
    named = rows.annotate(kept=Q(snapshot__isnull=False)).values_list(
        "digest", "at", "kept", "decided__losses"
    )
    within = rows.filter(at__gte=start, at__lt=end)
    found = [*named.filter(at__gte=start, at__lt=end)[: MOST_PLANS - 1], *named.filter(at__lt=start)[:1]]
    more = max(0, within.count() - (MOST_PLANS - 1))
    return tuple(
        Decided(digest, at, kept, _losses(digest, expected or {}, slot_type, user))
        for digest, at, kept, expected in found
    ), more


def _losses(
    digest: str, expected: Mapping[str, Mapping[str, Any]], slot_type: str, user: access.Person
) -> Losses | None:
    """Of the orders on one type, by job as gpu_scheduler.losses.Loss; of jobs that this person may know: a sum of one
    would say how long another tenant's job has not saved."""
    of_type = {job: loss for job, loss in expected.items() if loss["slot_type"] == slot_type}
    knows = _knows(user)
    tenants = Job.objects.filter(pk__in=of_type).values_list("pk", "tenant__slug")
    of_type = {job: of_type[job] for job, tenant in tenants if knows(tenant, job)}
    if not of_type:
        return None
    ended = JobEvent.objects.filter(
        job__in=of_type, to_state=State.QUEUED, numbers__plan__snapshot=digest, numbers__has_key="lost"
    )
    lost = dict(ended.values_list("job", "numbers__lost"))
    return Losses(
        len(of_type),
        sum(loss["unsaved"] + (loss["restart"] or 0) for loss in of_type.values()),
        sum(loss["restart"] is None for loss in of_type.values()),
        sum(lost.values()),
        len(of_type.keys() - lost.keys()),
    )


def _sees(user: access.Person) -> Callable[[Use | Wait], bool]:
    knows = _knows(user)
    return lambda each: knows(each.tenant, each.job)


def _knows(user: access.Person) -> Callable[[str, str], bool]:
    """Whether this person may know that the job of a tenant, by its slug, is this one. What a tenant deleted is still
    its own."""
    if access.is_platform_admin(user):
        return lambda _tenant, _job: True
    if not isinstance(user, User):
        return lambda _tenant, _job: False
    own = set(access.memberships(user).values_list("tenant__slug", flat=True))
    shared = set(shared_ids(user))
    return lambda tenant, job: tenant in own or job in shared


def _longest(waits: Sequence[Wait], shown: set[str]) -> list[Wait]:
    """The longest wait of each visible job, longest first."""
    longest: dict[str, Wait] = {}
    for wait in waits:
        known = longest.get(wait.job)
        if wait.job in shown and (known is None or wait.until - wait.since > known.until - known.since):
            longest[wait.job] = wait
    return sorted(longest.values(), key=lambda wait: (wait.since - wait.until, wait.job))


def _waiting(wait: Wait, name: str | None, start: datetime, end: datetime) -> WaitingJob:
    return WaitingJob(
        wait.job, name, wait.tenant, wait.slots, wait.reason, max(wait.since, start), min(wait.until, end)
    )
