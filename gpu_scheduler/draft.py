"""A plan while it is made: what is free, what each tenant uses, and what is reserved, after the decisions so far."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Hashable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from gpu_scheduler import cordoned
from gpu_scheduler.ledger import Account, JobCount, Ledger, UserLimits
from gpu_scheduler.model import (
    CPU_TYPE,
    Gang,
    Node,
    Placement,
    Priority,
    Running,
    Snapshot,
    Start,
    StartReason,
)
from gpu_scheduler.placement import Pool
from gpu_scheduler.projects import ProjectAccount, Projects

PREEMPTS = Priority.URGENT
"""The class from which on a waiting job stops others; its own class, not one to which it rose by aging."""


def promised_now(snapshot: Snapshot) -> set[str]:
    """The gangs to which slots are promised that others give up."""
    promised = snapshot.promised.items()
    return {job for job, until in promised if until is None or snapshot.now < until}


@dataclass(slots=True, eq=False)
class Supply:
    """What the gangs of one tenant can get of one slot type. pool: None if no node has this type."""

    slot_type: str
    pool: Pool | None
    account: Account
    jobs: JobCount
    users: UserLimits
    projects: Projects
    now: datetime

    def project(self, gang: Gang) -> ProjectAccount:
        """What the gang's project has and uses of the type."""
        return self.projects.account(gang, self.slot_type)

    def numbers(self, gang: Gang) -> dict[str, Any]:
        """The facts behind every check of a gang, as plain JSON. Counts are slots unless the name says otherwise."""
        account, pool = self.account, self.pool
        found: dict[str, Any] = {
            "slot_type": self.slot_type,
            "learners": gang.learners.min,
            "slots": gang.slots,
            "asked": gang.asked,
            "limit": account.limit,
            "used": account.used,
            "jobs_limit": self.jobs.limit,
            "jobs_used": self.jobs.used,
        }
        if account.cohort is not None:
            found |= {
                "cohort": account.cohort.name,
                "most": account.most,
                "borrowed": account.borrowed,
                "cohort_room": max(0, account.cohort_room(gang.asked, gang.job)),
                "claimed": account.cohort.claimed,
            }
        if pool is not None:
            found |= pool.numbers()
            found["learners_fitting"] = pool.learners_fitting(gang)
        return found


class Draft:
    """Pools and ledger of one snapshot; a policy reserves in it, the cycle starts gangs in it.

    waiting: the gangs that the policy at hand orders. state: what that policy asked to have carried over.
    What runs that save to leave cordoned nodes need on others is offered to no gang, unless an urgent one waits for
    the type: it would stop those at once.
    kept_for: these runs. They give up nothing on nodes that take learners, unless they change the rack or block that
    they require.
    failed, failed_by_all: what the cycle found out of gangs that are alike; emptied when slots are taken or reserved.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.waiting: Sequence[Gang] = snapshot.waiting
        self.state: Mapping[str, Any] = snapshot.policy_state
        self.ledger = Ledger(snapshot.quotas, snapshot.tenants, snapshot.running, snapshot.projects)
        self.pools = _pools(snapshot)
        self.gpu_types = [slot_type for slot_type in self.pools if slot_type != CPU_TYPE] or [""]
        leaving = list(cordoned.leaving(snapshot))  # in few plans any
        urgent = self.awaited_urgently() if leaving else ()
        self.kept_for: set[str] = set()
        for run, learners in leaving:
            if run.slot_type in self.pools and run.slot_type not in urgent:
                self.pools[run.slot_type].withhold_beside(run, learners)
                self.kept_for.add(run.job)
        self.failed: dict[Hashable, Any] = {}
        self.failed_by_all: dict[Hashable, Any] = {}
        self.supplies: dict[tuple[str, str], Supply] = {}

    def limited_to(self, waiting: Sequence[Gang], state: Mapping[str, Any]) -> Draft:
        """The same draft for a policy that orders only these gangs."""
        limited = copy(self)
        limited.waiting, limited.state = waiting, state
        return limited

    def supply(self, tenant: str, slot_type: str) -> Supply:
        """Follows what is started and reserved in this draft."""
        key = (tenant, slot_type)
        found = self.supplies.get(key)
        if found is None:
            account, jobs = self.ledger.account(tenant, slot_type), self.ledger.jobs(tenant)
            users = self.ledger.users(tenant, slot_type)
            pool, projects = self.pools.get(slot_type), self.ledger.projects
            found = Supply(slot_type, pool, account, jobs, users, projects, self.snapshot.now)
            self.supplies[key] = found
        return found

    def is_urgent(self, gang: Gang, promised: Collection[str]) -> bool:
        """Whether it may stop those of lower classes. One to which slots are promised waits for these only."""
        return gang.priority >= PREEMPTS and gang.job not in promised and self.may_start(gang)

    def awaited_urgently(self) -> Collection[str]:
        """The types for which an urgent gang waits: on these nothing is kept for runs that leave."""
        promised = promised_now(self.snapshot)
        found: set[str] = set()
        for gang in self.waiting:
            if not gang.opportunistic and self.is_urgent(gang, promised):
                found.update(self.gpu_types if gang.slot_type is None else [gang.slot_type])
        return found

    def _changed(self) -> None:
        self.failed.clear()
        self.failed_by_all.clear()

    def may_start(self, gang: Gang) -> bool:
        """Whether its tenant as a whole lets it start, whatever quotas leave: for others nothing is kept or moved."""
        return self.ledger.jobs(gang.tenant).can_start(gang)

    def start(self, gang: Gang, slot_type: str) -> Start:
        """Place a gang that passed all checks on this type, and count its slots and itself as used."""
        pool, account = self.pools[slot_type], self.ledger.account(gang.tenant, slot_type)
        kept_for = pool.reserved_for
        passes = kept_for is not None and kept_for.job != gang.job
        nodes = pool.place(gang)
        borrowed = account.borrowed
        self.ledger.take(gang, slot_type, len(nodes) * gang.slots)
        borrowed = account.borrowed - borrowed
        self._changed()
        reason = StartReason.BORROWED if borrowed else StartReason.GUARANTEED
        if gang.opportunistic:
            reason = StartReason.OPPORTUNISTIC
        elif self._is_promised(gang):
            reason = StartReason.NOMINATED
        elif passes:
            reason = StartReason.BACKFILLED
        return Start(gang.job, Placement(slot_type, nodes), reason, borrowed, gang.generation)

    def _is_promised(self, gang: Gang) -> bool:
        promised = self.snapshot.promised
        until = promised.get(gang.job)
        return gang.job in promised and (until is None or self.snapshot.now < until)

    def reserve(
        self, gang: Gang, slot_type: str, slots: int, *, on_nodes: bool, whole_pool: bool = False
    ) -> None:
        """Reserve slots and a live job of the limits of its tenant, project and user for this gang, and with on_nodes
        the nodes where it can start soonest, or with whole_pool all of its type.

        Does nothing where the tenant's account, or the pool, has a reservation already.
        """
        in_quota = self.ledger.reserve(gang.tenant, slot_type, slots, job=gang.job)
        on_pool = on_nodes and self.pools[slot_type].reserve_for(gang, all_nodes=whole_pool)
        of_user = self.reserve_of_user(gang, slot_type, slots)
        divided = self.ledger.projects.tenants  # read here: plans reserve for thousands of jobs
        of_project = gang.tenant in divided and self.reserve_of_project(gang, slot_type, slots)
        if in_quota or on_pool or of_user or of_project:
            self._changed()

    def reserve_of_user(self, gang: Gang, slot_type: str, slots: int) -> bool:
        """Reserve slots and a live job of its user's own limits alone for this gang; other users' jobs can still have
        the tenant's.

        False if there is no such limit, or a reservation already.
        """
        if gang.tenant not in self.ledger.limits_users:
            return False
        made = self.ledger.reserve_of_user(gang.tenant, gang.user, slot_type, slots, job=gang.job)
        if made:
            self._changed()
        return made

    def reserve_of_project(self, gang: Gang, slot_type: str, slots: int) -> bool:
        """Reserve slots of its project's limit alone for this gang; other projects' jobs can still have the tenant's.

        False if there is no such limit, or a reservation already.
        """
        made = self.ledger.reserve_of_project(gang, slot_type, slots)
        if made:
            self._changed()
        return made

    def claim(self, tenant: str, slot_type: str, slots: int) -> None:
        """Keep so many slots of the tenant's limit, as far as it has them left, from those that would borrow them."""
        self.ledger.claim(tenant, slot_type, slots)
        self._changed()

    def reserve_nodes(self, gang: Gang, slot_type: str, learners: Mapping[str, int]) -> None:
        """Reserve for this gang the places of so many learners by node, whatever else is reserved."""
        self.ledger.with_reservation.add(gang.job)
        self.pools[slot_type].reserve_nodes(gang, learners)
        self._changed()


def _pools(snapshot: Snapshot) -> Mapping[str, Pool]:
    by_type: defaultdict[str, list[Node]] = defaultdict(list)
    for node in snapshot.nodes:
        by_type[node.slot_type].append(node)
    held: defaultdict[str, list[Running]] = defaultdict(list)
    for run in snapshot.running:
        held[run.slot_type].append(run)
    return {
        slot_type: Pool(slot_type, by_type[slot_type], held[slot_type], snapshot.now)
        for slot_type in sorted(by_type)
    }
