"""The running gangs in one plan: which of them can still be ordered to stop or to resize, and for whom they do so."""

from __future__ import annotations

from collections import Counter, defaultdict
from datetime import timedelta

from gpu_scheduler.draft import Draft
from gpu_scheduler.model import Gang, Resize, Running, Stop
from gpu_scheduler.placement import Pool
from gpu_scheduler.policies.room import MOVED, RoomLeft, RoomMade

Order = Stop | Resize


def can_be_ordered(run: Running) -> bool:
    """Whether an order would be carried out: it is not on its way out already, and queues again after that."""
    return not run.stopping and run.order is None and run.requeues


class Orders:
    """What the rules of one plan share: an order of one is known to the others.

    free_to_go: by type, the runs that can be ordered. given_for: by waiting job, the runs that leave or shrink for it,
    by orders that are under way and by those of this plan. stops, resizes: those of this plan. given_up: by tenant and
    type, the slots that these free. moving: by tenant and type, the slots of the runs that will start again elsewhere,
    by those of this plan (they are in given_up, too) and by stops that are under way.
    """

    def __init__(self, draft: Draft) -> None:
        self.draft = draft
        self.now = draft.snapshot.now
        self.of_type: defaultdict[str, list[Running]] = defaultdict(list)
        self.free_to_go: defaultdict[str, dict[str, Running]] = defaultdict(dict)
        self.given_for: defaultdict[str, list[tuple[Running, Order]]] = defaultdict(list)
        self.stops: list[Stop] = []
        self.resizes: list[Resize] = []
        self.given_up: Counter[tuple[str, str]] = Counter()
        self.moving: Counter[tuple[str, str]] = Counter()
        self._rooms: dict[str, RoomLeft] = {}
        self._users: Counter[tuple[str, str, str]] = Counter()
        """By tenant, user and type, the slots that this plan makes room for; the type "" counts jobs."""
        self._projects: Counter[tuple[str, str, str]] = Counter()
        """By tenant, project and type, the slots that this plan makes room for."""
        for run in draft.snapshot.running:
            self.of_type[run.slot_type].append(run)
            if can_be_ordered(run):
                self.free_to_go[run.slot_type][run.job] = run
                continue
            self._count_move(run, run.order)
            if run.order is not None and run.order.for_job is not None:
                self.given_for[run.order.for_job].append((run, run.order))

    def rooms(self, pool: Pool) -> RoomLeft:
        """What this type's nodes and limits will have left, after what was ordered for others."""
        found = self._rooms.get(pool.slot_type)
        if found is None:
            found = self._rooms[pool.slot_type] = RoomLeft(pool, self.of_type[pool.slot_type])
        return found

    def past(self, run: Running, lease_s: float) -> bool:
        """Whether it has run for so long, so that one that is ordered again and again still gets on in between."""
        return self.now - run.started_at >= timedelta(seconds=lease_s)

    def limits_allow(self, gang: Gang, slot_type: str, *, freed: int = 0) -> bool:
        """Whether its user and its project can have what it asks for, with what this plan makes room for before. freed:
        slots of this user that leave for it."""
        ledger = self.draft.ledger
        if not ledger.limits_users and not ledger.projects.tenants:
            return True
        project = ledger.projects.account(gang, slot_type)
        if not project.allows(self._projects[gang.tenant, project.name, slot_type] + gang.asked):
            return False
        users = ledger.users(gang.tenant, slot_type)
        slots = self._users[gang.tenant, gang.user, slot_type] + gang.asked - freed
        return users.allow(gang.user, slots=slots, jobs=self._users[gang.tenant, gang.user, ""] + 1)

    def given(self, gang: Gang, slot_type: str) -> list[tuple[Running, Order]]:
        """The runs on this type that leave or shrink for the gang."""
        orders = self.given_for.get(gang.job, ())
        return [(run, order) for run, order in orders if run.slot_type == slot_type]

    def give(self, gang: Gang, made: RoomMade, orders: list[tuple[Running, Order]]) -> int:
        """Order this, and reserve what it frees for the gang and for those that start again. How many runs leave or
        shrink for it, those ordered to before included."""
        slot_type = made.slot_type
        made.await_of_cohort()
        self.rooms(self.draft.pools[slot_type]).keep(made)
        project = self.draft.ledger.projects.account(gang, slot_type)
        self._projects[gang.tenant, project.name, slot_type] += gang.asked
        self._users[gang.tenant, gang.user, slot_type] += gang.asked
        self._users[gang.tenant, gang.user, ""] += 1
        self.draft.reserve_nodes(gang, slot_type, made.nodes())
        for back, nodes in made.returns():
            self.draft.reserve_nodes(back, slot_type, nodes)
        for run, order in orders:
            self.order(run, order)
            self.given_for[gang.job].append((run, order))
        return len(self.given_for[gang.job])

    def order(self, run: Running, order: Order) -> None:
        """One order of this plan; its run can be ordered nothing else."""
        left = 0
        if isinstance(order, Stop):
            self.stops.append(order)
        else:
            self.resizes.append(order)
            left = min(order.learners, len(run.nodes))
        self.given_up[run.tenant, run.slot_type] += run.slots * (len(run.nodes) - left)
        self._count_move(run, order)
        del self.free_to_go[run.slot_type][run.job]

    def _count_move(self, run: Running, order: Order | None) -> None:
        if isinstance(order, Stop) and order.reason == MOVED:
            self.moving[run.tenant, run.slot_type] += run.slots * len(run.nodes)
