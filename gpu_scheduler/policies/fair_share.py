"""fair_share: priority class, then queue heads that waited too long, then the tenant that uses the least of its quota.
Runs of lower classes are stopped for an urgent job; elastic ones are resized as nodes are free or wanted.

Tenants in a cohort borrow what others lend: jobs that would run on borrowed slots come after all others, and what the
others wait for is kept from them. What a tenant lends comes back when its own jobs ask for it: borrowers are stopped.

Inside a tenant the order is priority class, then first come, first served. Aging counts only the time for which a job
was its tenant's queue head: a tenant does not gain on others by queueing ten thousand jobs, or by having many users.
What waits for its own user's jobs gains on none but the user's later ones.

A tenant with projects divides its turns among them: those below their guarantee first, then the one with the least use.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, ClassVar

from gpu_scheduler.checks import Finding, Scope
from gpu_scheduler.draft import PREEMPTS, Draft, promised_now
from gpu_scheduler.model import Gang, Growth, Resize, Snapshot, Stop, WaitReason, timestamp
from gpu_scheduler.places import is_stuck
from gpu_scheduler.policies.base import Policy, PolicyState, Round, Window, reservations_move_at
from gpu_scheduler.policies.departing import Departing
from gpu_scheduler.policies.orders import Orders
from gpu_scheduler.policies.preemption import PREEMPTED, RECLAIMED, Asker, Preemption
from gpu_scheduler.policies.queues import by_tenant, first_come
from gpu_scheduler.policies.reclaim import MOVES_AFTER_S
from gpu_scheduler.policies.resizing import Resizing
from gpu_scheduler.policies.returning import Returning
from gpu_scheduler.policies.room import MOVED
from gpu_scheduler.policies.shrinking import Shrinking
from gpu_scheduler.policies.sizes import Resizes, Sizes

NO_TIME = timedelta()
OF_USER = "user:"
"""Before the id of a job in the state: since when it is the first of its user's, or its project's, that waits for the
limit of that user or project."""
RESIZES = Resizes()
ELASTIC = "elastic:"
"""In the state while an elastic job runs: plans are made then although no job waits. When that was last so."""
LEFT_OUT = "left_out:"
"""Before a slot type, a slash and a tenant in the state: the last plan did not get to search for what to stop for it.
When the next one is due."""
OTHERS = f"{LEFT_OUT}/"
"""In the state: the last plan searched for those alone that had been left out before."""
DELAYED = "delayed:"
"""Before the id of a job in the state: the last plan would have started it, but opportunistic jobs had to leave first.
When that was. It is offered slots first, so that it keeps the place that it had."""
NEXT_SEARCH, NEXT_IN_VAIN = timedelta(seconds=1), timedelta(seconds=5)
"""After such a plan the next one is made so soon, although nothing else happened; later if it found nothing to stop."""

WHOSE = {
    PREEMPTED: "of lower priority",
    RECLAIMED: "on borrowed devices",
    MOVED: "that can start again elsewhere",
}


@dataclass(frozen=True, slots=True)
class FairShare(Policy):
    """Quota-weighted fair share with backfill; docs/scheduling.md states what it promises. Times are in seconds.

    starvation_timeout_s: how long later jobs can overtake a queue head, before slots are reserved for it. aging_s: a
    queue head rises by one priority class each time it has waited this long; 0: never. lease_s: how long a run is safe
    from being stopped for another job. resizes: when elastic jobs get another size.

    PolicyState: job id -> since when it is a queue head (the first job of its tenant that cannot start on a type).
    OF_USER and a job id -> since when its user's or project's jobs hold it back. ELASTIC: while an elastic job runs.
    LEFT_OUT and a type and a tenant, OTHERS -> when the plan that searches for them is due.
    DELAYED and a job id -> when it was about to start.
    """

    name: ClassVar[str] = "fair_share"
    starvation_timeout_s: float = 300
    aging_s: float = 3600
    lease_s: float = 20
    resizes: Resizes = RESIZES

    def begin(self, draft: Draft) -> FairShareRound:
        return FairShareRound(self, draft)

    def next_event_at(self, snapshot: Snapshot) -> datetime | None:
        """The end of a queue head's starvation timeout, its rise by a class, the end of a promise or of a lease, when
        a run may be moved, when the end of a run comes in sight, or an elastic job is due for another size."""
        now, changes = snapshot.now, [until for until in snapshot.promised.values() if until is not None]
        changes += reservations_move_at(snapshot)
        lends = any(quota.cohort for quota in snapshot.quotas)
        if snapshot.waiting and (lends or any(gang.priority >= PREEMPTS for gang in snapshot.waiting)):
            lease = timedelta(seconds=self.lease_s)
            changes += [
                run.started_at + lease for run in snapshot.running if lends or run.priority < PREEMPTS
            ]
            moves = timedelta(seconds=MOVES_AFTER_S)
            changes += [run.started_at + moves for run in snapshot.running if lends]
        if (resize_at := self.resizes.next_at(snapshot, self.lease_s)) is not None:
            changes.append(resize_at)
        changes += [due for key, due in snapshot.policy_state.items() if key.startswith(LEFT_OUT)]
        for key, since in _of_jobs(snapshot.policy_state):
            changes.append(since + timedelta(seconds=self.starvation_timeout_s))
            if self.aging_s > 0 and not key.startswith(OF_USER):
                classes = (now - since).total_seconds() // self.aging_s + 1
                changes.append(since + timedelta(seconds=classes * self.aging_s))
        return min((at for at in changes if at > now), default=None)

    def window(self, state: PolicyState) -> Window:
        jobs = {key.removeprefix(OF_USER) for key, _ in _of_jobs(state)} | _delayed(state)
        return Window(frozenset(jobs), levels=("-priority",), queue=("tenant", "project", "priority"))

    def state_refused(self, before: PolicyState, after: PolicyState, refused: Collection[str]) -> PolicyState:
        """They keep their time as queue heads, and their place."""
        keys = (f"{of}{job}" for job in refused for of in ("", OF_USER, DELAYED))
        return {**after, **{key: before[key] for key in keys if key in before}}

    def dump(self, state: PolicyState) -> dict[str, Any]:
        return {key: since.isoformat() for key, since in state.items()}

    def load(self, stored: Mapping[str, Any]) -> PolicyState:
        return {key: datetime.fromisoformat(since) for key, since in stored.items()}


class FairShareRound(Round):
    """One plan by FairShare."""

    def __init__(self, policy: FairShare, draft: Draft) -> None:
        self._draft = draft
        self._now = draft.snapshot.now
        self._since: dict[str, datetime] = {}
        self._since_of_user: dict[str, datetime] = {}
        for key, since in _of_jobs(draft.state):
            of = self._since_of_user if key.startswith(OF_USER) else self._since
            of[key.removeprefix(OF_USER)] = since
        self._promised = promised_now(draft.snapshot) | _delayed(draft.state)
        urgent = any(draft.is_urgent(gang, self._promised) for gang in draft.waiting)
        back = [gang for gang in draft.waiting if gang.target is not None and gang.job in self._promised]
        if urgent:  # it would stop those of lower classes at once
            self._promised -= {gang.job for gang in back if gang.priority < PREEMPTS}
        self._returning = {gang.job for gang in back if gang.job in self._promised}
        self._timeout = timedelta(seconds=policy.starvation_timeout_s)
        self._aging = timedelta(seconds=policy.aging_s)
        self._queues_with_head: set[tuple[str, str]] = set()
        self._marks: dict[str, datetime] = {}
        self._users_with_head: set[tuple[str, ...]] = set()
        self._marks_of_user: dict[str, datetime] = {}
        self._must_start_next: set[str] = set()
        self._orders = Orders(draft)
        sizes = Sizes(self._orders, policy.resizes, policy.lease_s)
        self._has_elastic = sizes.any_runs
        self._preemption = Preemption(self._orders, policy.lease_s, _left_out(draft.state))
        self._shrinking = Shrinking(self._orders, sizes)
        self._resizing = Resizing(self._orders, sizes, policy.resizes)
        self._departing = Departing(self._orders, sizes, policy.resizes)
        self._borrowing: list[tuple[int, Gang]] = []
        self._lenders_waiting: list[tuple[Gang, Finding]] = []

    def queue(self) -> Iterator[Gang]:
        """Gangs that their tenants' limits cover, then those that would borrow. O(n log n)."""
        if not self._draft.ledger.lends:
            yield from self._in_order()
            return
        for gang in self._in_order():
            if gang.job not in self._promised and self._would_borrow(gang):
                self._borrowing.append((self._level(gang), gang))
                self._keep_own(gang)
            else:
                yield gang
        self._keep_for_lenders()
        yield from self._borrowers()

    def _level(self, gang: Gang) -> int:
        """Its class, and one more for each whole aging time as a queue head."""
        waited = self._now - self._since.get(gang.job, self._now)
        return gang.priority + (waited // self._aging if self._aging and waited > NO_TIME else 0)

    def _would_borrow(self, gang: Gang) -> bool:
        """On every type that it takes. Starts only make that more certain, so it is asked once."""
        types = [gang.slot_type] if gang.slot_type is not None else self._draft.gpu_types
        account = self._draft.ledger.account
        return all(account(gang.tenant, slot_type).borrows(gang.asked) for slot_type in types)

    def _keep_own(self, gang: Gang) -> None:
        """If runs leave already for a job that comes after all covered ones, jobs of its tenant that come after it in
        the tenant's own order leave it what it needs of the tenant's limit."""
        for run, _ in self._orders.given_for.get(gang.job, ()):
            if not is_stuck(run, self._now) and self._draft.may_start(gang):
                self._draft.reserve(gang, run.slot_type, gang.asked, on_nodes=False)

    def _keep_for_lenders(self) -> None:
        """What a job waits for that its own tenant's limit covers is not lent: neither the slots of the cohort, nor
        those on the nodes where the first such job of a type can start soonest."""
        for gang, finding in self._lenders_waiting:
            slot_type, pool = finding.supply.slot_type, finding.supply.pool
            if pool is None or not pool.up_could_hold(gang):
                continue
            self._draft.claim(gang.tenant, slot_type, gang.asked)
            if finding.scope is Scope.CLUSTER:
                self._draft.reserve(gang, slot_type, gang.asked, on_nodes=True)

    def _borrowers(self) -> Iterator[Gang]:
        """Those for which runs leave already, then those that must start next, the longest waiting first; then always
        the first gang of the tenant that borrows the least by its weight."""
        awaiting, next_ones = self._orders.given_for.keys(), self._must_start_next
        is_first = [gang.job in awaiting or gang.job in next_ones for _, gang in self._borrowing]
        first = [gang for (_, gang), comes in zip(self._borrowing, is_first, strict=True) if comes]
        others = [each for each, comes in zip(self._borrowing, is_first, strict=True) if not comes]
        first.sort(
            key=lambda gang: (
                gang.job not in awaiting,
                self._since.get(gang.job, self._now),
                gang.queued_at,
                gang.job,
            )
        )
        yield from first
        others.sort(key=lambda each: (-each[0], *first_come(each[1])))
        types = list(self._draft.pools)
        share = self._draft.ledger.borrowed_share
        yield from by_tenant([gang for _, gang in others], lambda tenant: share(tenant, types), self._draft)

    def _in_order(self) -> Iterator[Gang]:
        """Gangs that slots are promised to, then by level. Inside a level come those that must start next, then the
        others: the tenants' order follows their use as starts are counted."""
        promised: list[tuple[int, Gang]] = []
        next_ones: defaultdict[int, list[Gang]] = defaultdict(list)
        others: defaultdict[int, list[Gang]] = defaultdict(list)
        since_of, first = self._since, self._promised
        for gang in self._draft.waiting:
            job = gang.job
            if job not in since_of and job not in first:  # most of ten thousand
                others[gang.priority].append(gang)
                continue
            level, since = self._level(gang), since_of.get(job)
            if job in first:
                self._must_start_next.add(job)
                promised.append((level, gang))
            elif since is not None and self._now - since >= self._timeout:
                self._must_start_next.add(job)
                next_ones[level].append(gang)
            else:
                others[level].append(gang)
        # What was resized comes after what it was resized for: that is placed where the room was made.
        # What its tenant's limit covers comes before what would borrow here, too: both can have waited for others to
        # leave.
        borrows = self._would_borrow if promised and self._draft.ledger.lends else lambda _: False
        promised.sort(
            key=lambda each: (
                each[1].target is not None,
                borrows(each[1]),
                -each[0],
                each[1].queued_at,
                each[1].job,
            )
        )
        yield from (gang for _, gang in promised)
        for level in sorted(next_ones.keys() | others.keys(), reverse=True):
            overdue = next_ones.get(level, [])
            overdue.sort(key=self.overdue_order)
            yield from overdue
            gangs = others.get(level, [])
            gangs.sort(key=first_come)
            yield from by_tenant(gangs, self.share, self._draft)

    def overdue_order(self, gang: Gang) -> tuple[Any, ...]:
        """Of a queue head whose starvation timeout is over, beside the others of its class."""
        return self._since[gang.job], gang.queued_at, gang.job

    def share(self, tenant: str) -> float:
        """The tenant with the smallest has its turn first."""
        return self._draft.ledger.dominant_share(tenant)

    def wait(self, gang: Gang, finding: Finding) -> None:
        """Note since when a queue head waits, and reserve slots for it once its starvation timeout is over, or as soon
        as others are stopped for it."""
        check = finding.check
        if not check.queues:
            return
        if check.own:
            self._shrinking.make_room(gang, finding)
            self._wait_for_own(gang, finding)
            return
        supply = finding.supply
        account, slot_type = supply.account, supply.slot_type
        in_need = finding.scope is Scope.CLUSTER or check.code is WaitReason.COHORT_GPUS
        if in_need and account.cohort is not None and not account.borrows(gang.asked):
            self._lenders_waiting.append((gang, finding))
        if self._makes_room(gang, finding):
            self._must_start_next.add(gang.job)
        self._mark(gang, slot_type)
        if gang.job in self._must_start_next:
            on_nodes = finding.scope is Scope.CLUSTER
            self._draft.reserve(gang, slot_type, gang.asked, on_nodes=on_nodes)
        if (since := self._since_of_user.get(gang.job)) is not None:
            # Kept until it starts: else the user's later jobs would hold it back again.
            self._marks_of_user[gang.job] = since
            self._reserve_own(gang, finding, since)

    def _makes_room(self, gang: Gang, finding: Finding) -> bool:
        """Whether runs shrink or leave for it. Asked of ten thousand, so first whether any could."""
        if self._has_elastic and self._shrinking.make_room(gang, finding):
            return True
        if gang.priority < PREEMPTS and finding.supply.account.cohort is None:
            return False
        return self._preemption.make_room(gang, finding) > 0

    def _wait_for_own(self, gang: Gang, finding: Finding) -> None:
        """Its user's or its project's own jobs hold it back: nothing is stopped for it, only later ones of these leave
        it slots and a place. It is no queue head, so this time does not lift it over other tenants' jobs."""
        slot_type, project = finding.supply.slot_type, finding.supply.project(gang).name
        queue: tuple[str, ...] = (gang.tenant, gang.user, slot_type)
        if finding.check.of_project:
            queue = (gang.tenant, project, slot_type, "project")
        since = self._since_of_user.get(gang.job, self._since.get(gang.job))
        if since is None and queue not in self._users_with_head:
            since = self._now
        self._users_with_head.add(queue)
        if since is not None:
            self._marks_of_user[gang.job] = since
            self._reserve_own(gang, finding, since)

    def _reserve_own(self, gang: Gang, finding: Finding, since: datetime) -> None:
        """What waits for its user holds back nothing of its project's: other users can have that."""
        if self._now - since >= self._timeout:
            slot_type = finding.supply.slot_type
            self._draft.reserve_of_user(gang, slot_type, gang.asked)
            if finding.check.of_project or not finding.check.own:
                self._draft.reserve_of_project(gang, slot_type, gang.asked)

    def _mark(self, gang: Gang, slot_type: str) -> None:
        """Remember since when it is a queue head, if it is one."""
        queue = (gang.tenant, slot_type)
        since = self._since.get(gang.job)
        if since is not None:
            self._marks[gang.job] = since
        elif queue not in self._queues_with_head:
            self._marks[gang.job] = self._now
        self._queues_with_head.add(queue)

    def size(self, gang: Gang) -> int:
        """Its fewest learners while one that was resized has still to be placed: nothing may take its place. One that
        was resized leaves room for what came to wait meanwhile and has a right to it."""
        is_back = gang.job in self._returning
        self._returning.discard(gang.job)
        size = self._resizing.first_size(gang)
        if gang.target is None:
            return gang.learners.min if self._returning else size
        if not is_back or gang.slot_type is None or size <= gang.learners.min:
            return size
        waiting = (each for each in self._draft.waiting if self._resizing.waits(each))
        others = [each for each in self._draft.waiting if each.job in self._returning]
        return Returning(self._draft, gang, gang.slot_type).size(size, waiting, self._first, others)

    def _first(self, gang: Gang) -> tuple[Any, ...]:
        return -self._level(gang), self._since.get(gang.job, self._now), gang.queued_at, gang.job

    def orders(self, waits: Iterable[tuple[Gang, Finding]]) -> tuple[Sequence[Stop], Sequence[Resize]]:
        self._departing.orders()
        self._resizing.orders(waits)
        return self._orders.stops, self._orders.resizes

    def state(self) -> PolicyState:
        of_users = {f"{OF_USER}{job}": since for job, since in self._marks_of_user.items()}
        next_search = self._now + (NEXT_SEARCH if self._orders.stops else NEXT_IN_VAIN)
        left_out = {
            f"{LEFT_OUT}{slot_type}/{tenant}": next_search
            for tenant, slot_type in sorted(self._preemption.left_out)
        }
        if self._preemption.others_wait and not left_out:
            left_out = {OTHERS: next_search}
        elastic = {ELASTIC: self._now} if self._resizing.is_needed else {}
        return self._marks | of_users | left_out | elastic

    def state_delayed(self, delayed: Iterable[tuple[Gang, str]]) -> PolicyState:
        """They keep their time as queue heads, and are offered slots first in the next plan."""
        found = {}
        for gang, slot_type in delayed:
            self._mark(gang, slot_type)
            if (since := self._since_of_user.get(gang.job)) is not None:
                self._marks_of_user[gang.job] = since
            found[f"{DELAYED}{gang.job}"] = self._now
        return {**self.state(), **found}

    def notes(self) -> Mapping[str, Mapping[str, Any]]:
        """queue_head_since; stopping_for_it, resizing_for_it: how many running jobs are stopped, or shrink, for it."""
        found: defaultdict[str, dict[str, Any]] = defaultdict(dict)
        for job, since in self._marks.items():
            found[job]["queue_head_since"] = timestamp(since)
        for job in self._orders.given_for:
            stops, resizes = self._given(job)
            if stops:
                found[job]["stopping_for_it"] = len(stops)
            if resizes:
                found[job]["resizing_for_it"] = len(resizes)
        return found

    def growths(self) -> Sequence[Growth]:
        return self._resizing.growths()

    def remarks(self) -> Mapping[str, str]:
        return {job: _remark(*self._given(job)) for job in self._orders.given_for}

    def _given(self, job: str) -> tuple[list[Stop], list[Resize]]:
        """The orders that are carried out for the job."""
        orders = [order for _, order in self._orders.given_for[job]]
        stops = [order for order in orders if isinstance(order, Stop)]
        return stops, [order for order in orders if isinstance(order, Resize)]


def _remark(stops: Sequence[Stop], resizes: Sequence[Resize]) -> str:
    found = []
    if stops:
        which = _whose({stop.reason for stop in stops})
        jobs = "A running job" if len(stops) == 1 else f"{len(stops)} running jobs"
        found.append(f"{jobs} {which} {'is' if len(stops) == 1 else 'are'} being stopped for it.")
    if resizes:
        jobs = "An elastic job shrinks" if len(resizes) == 1 else f"{len(resizes)} elastic jobs shrink"
        found.append(f"{jobs} for it.")
    return " ".join(found)


def _whose(reasons: Collection[str]) -> str:
    """Which runs are stopped for these reasons, in words that follow "a running job"."""
    return " or ".join(words for reason, words in WHOSE.items() if reason in reasons) or WHOSE[PREEMPTED]


def _of_jobs(state: PolicyState) -> Iterable[tuple[str, datetime]]:
    """The part of the state that is about single jobs."""
    others = (LEFT_OUT, DELAYED)
    return ((key, since) for key, since in state.items() if key != ELASTIC and not key.startswith(others))


def _delayed(state: PolicyState) -> set[str]:
    """The jobs that the last plan would have started."""
    return {key.removeprefix(DELAYED) for key in state if key.startswith(DELAYED)}


def _left_out(state: PolicyState) -> set[Asker]:
    """The tenants and types for whose jobs the last plan did not get to search."""
    keys = (key.removeprefix(LEFT_OUT) for key in state if key.startswith(LEFT_OUT) and key != OTHERS)
    return {(tenant, slot_type) for slot_type, _, tenant in (key.rpartition("/") for key in keys)}
