"""The best possible of what a plan decides quickly, by an exact solver (HiGHS, as `scipy.optimize.milp`).

Two of a plan's decisions have an exact formulation with the plan's own limits: how elastic gangs divide slots, and
which gangs start now: those that fill most (without regard to the order inside a class), or those whose turn comes
first. All are NP-hard, so instances are small.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array

from gpu_scheduler.draft import Draft
from gpu_scheduler.elastic.allocation import Candidate
from gpu_scheduler.model import Snapshot
from gpu_scheduler.policies.queues import by_tenant, first_come

GAP = 1e-6
Row = Mapping[int, float]
"""Coefficients by variable."""
Limited = tuple[Row, float, float]
"""Coefficients, and the least and the most of their sum."""


@dataclass(frozen=True, slots=True)
class Solved:
    """values: of the variables. objective: what they reach; bound: what no solution is above. cpu_s: over all threads.
    is_best: this was proved within the time limit."""

    values: Sequence[float]
    objective: float
    bound: float
    cpu_s: float

    @property
    def is_best(self) -> bool:
        return self.bound - self.objective <= 2 * GAP * max(1.0, abs(self.objective))


def solve(
    worth: Sequence[float],
    most: Sequence[float],
    rows: Sequence[Limited],
    limit_s: float,
) -> Solved:
    """Whole numbers from 0 to `most` with the greatest total worth, within these rows. RuntimeError if there are none,
    or none is found within limit_s seconds."""
    places = [(n, column, factor) for n, (row, _, _) in enumerate(rows) for column, factor in row.items()]
    at, columns, factors = zip(*places, strict=True)
    matrix = coo_array((factors, (at, columns)), shape=(len(rows), len(worth)))
    began = time.process_time()
    found = milp(
        -np.array(worth),
        integrality=np.ones(len(worth)),
        bounds=Bounds(0, most),
        constraints=LinearConstraint(
            matrix.tocsr(), [least for _, least, _ in rows], [most for _, _, most in rows]
        ),
        options={"time_limit": limit_s, "mip_rel_gap": GAP},
    )
    cpu_s = time.process_time() - began
    if found.x is None:
        raise RuntimeError(f"no solution within {limit_s:g} s: {found.message}")
    return Solved(np.rint(found.x).tolist(), float(-found.fun), float(-found.mip_dual_bound), cpu_s)


def division(
    candidates: Sequence[Candidate], slots: int, limits: Mapping[str, int], limit_s: float
) -> Solved:
    """As ``elastic.allocation.allocate``: one option for each candidate, of so many slots, a group having at most its
    room beside the smallest options. The objective is the sum of utilities. RuntimeError if the smallest options do not
    fit: only there is it another rule than that of ``allocate``, which takes them nevertheless."""
    numbered = list(enumerate((n, option) for n, each in enumerate(candidates) for option in each.options))
    rows: list[Limited] = []
    one_of: defaultdict[int, dict[int, float]] = defaultdict(dict)
    more: defaultdict[str, dict[int, float]] = defaultdict(dict)
    for variable, (n, option) in numbered:
        one_of[n][variable] = 1
        more[candidates[n].group][variable] = option.slots - candidates[n].options[0].slots
    rows += [(row, 1, 1) for row in one_of.values()]
    rows += [(row, 0, limits[group]) for group, row in more.items() if group in limits]
    rows.append(({variable: option.slots for variable, (_, option) in numbered}, 0, slots))
    return solve([option.utility for _, (_, option) in numbered], [1] * len(numbered), rows, limit_s)


@dataclass(frozen=True, slots=True)
class Started:
    """slots: by class, the highest first, those of the gangs that start. jobs: their ids."""

    slots: Mapping[int, int]
    jobs: frozenset[str]
    cpu_s: float
    are_best: bool


def starts(snapshot: Snapshot, limit_s: float) -> Started:
    """The gangs that fill most on what is free: all learners or none, within nodes and their tenants' quotas. Of the
    highest class as many slots as can be, then of the next beside these, and so on; limit_s for each class. For gangs
    of one slot type and size, without cohorts, users, projects, topologies and CPUs."""
    gangs, free = snapshot.waiting, free_slots(snapshot)
    needs = Counter[int]()
    for gang in gangs:
        needs[gang.slots] += gang.learners.min
    placed = _Placed(needs, free, first=len(gangs))
    most = [1.0] * len(gangs) + placed.most
    rows = [*placed.nodes]
    for size, learners in placed.of_size.items():
        of_size = {n: -float(gang.learners.min) for n, gang in enumerate(gangs) if gang.slots == size}
        rows.append(({**learners, **of_size}, 0, 0))
    for tenant, slots in rooms(snapshot).items():
        own = {n: float(gang.asked) for n, gang in enumerate(gangs) if gang.tenant == tenant}
        if own:
            rows.append((own, 0, slots))
    cpu_s, are_best, values = 0.0, True, [0.0] * len(most)
    for priority in sorted({gang.priority for gang in gangs}, reverse=True):
        of_class = {n: float(gang.asked) for n, gang in enumerate(gangs) if gang.priority == priority}
        solved = solve([of_class.get(variable, 0.0) for variable in range(len(most))], most, rows, limit_s)
        rows.append((of_class, round(solved.objective), sum(of_class.values())))
        cpu_s += solved.cpu_s
        are_best = are_best and solved.is_best
        values = list(solved.values)
    jobs = frozenset(gang.job for n, gang in enumerate(gangs) if values[n])
    return Started(by_class(snapshot, jobs), jobs, cpu_s, are_best)


def in_order(snapshot: Snapshot, limit_s: float) -> Started:
    """The gangs that `fair_share` starts if any placement of them all together will do: the same order and the same
    quotas, but none waits because those before it were placed badly. limit_s for each gang; the same limits as
    ``starts``, and no queue head that has waited too long."""
    free, left = free_slots(snapshot), rooms(snapshot)
    limits = {quota.tenant: quota.limit for quota in snapshot.quotas}
    draft, jobs, needs = Draft(snapshot), set[str](), Counter[int]()
    cpu_s, are_best = 0.0, True
    for priority in sorted({gang.priority for gang in snapshot.waiting}, reverse=True):
        of_class = [gang for gang in snapshot.waiting if gang.priority == priority]
        turns = by_tenant(
            sorted(of_class, key=first_come), lambda tenant: 1 - left[tenant] / limits[tenant], draft
        )
        for gang in turns:
            if gang.asked > left[gang.tenant]:
                continue
            more = needs + Counter({gang.slots: gang.learners.min})
            placed = _Placed(more, free)
            rows = [*placed.nodes, *((row, 0, more[size]) for size, row in placed.of_size.items())]
            solved = solve([1.0] * len(placed.most), placed.most, rows, limit_s)
            cpu_s += solved.cpu_s
            if round(solved.objective) == more.total():
                needs = more
                left[gang.tenant] -= gang.asked
                jobs.add(gang.job)
            else:
                are_best = are_best and solved.is_best
    return Started(by_class(snapshot, jobs), frozenset(jobs), cpu_s, are_best)


class _Placed:
    """Variables for how many learners of a size are on a node, numbered from `first` on: those of one size are alike,
    whatever their gangs. most: of each. nodes: the rows that keep nodes from holding more than they can. of_size: the
    sum of those of each size."""

    def __init__(self, needs: Mapping[int, int], free: Mapping[str, int], first: int = 0) -> None:
        places = [(size, node) for size in sorted(needs) for node in free]
        self.most = [float(min(needs[size], free[node] // size)) for size, node in places]
        self.nodes: list[Limited] = []
        self.of_size: defaultdict[int, dict[int, float]] = defaultdict(dict)
        on: defaultdict[str, dict[int, float]] = defaultdict(dict)
        for variable, (size, node) in enumerate(places, first):
            self.of_size[size][variable] = 1.0
            on[node][variable] = size
        self.nodes += [(row, 0, free[node]) for node, row in on.items()]


def free_slots(snapshot: Snapshot) -> dict[str, int]:
    """By node, beside what runs."""
    free = {node.name: node.slots for node in snapshot.nodes}
    for run in snapshot.running:
        for name in run.nodes:
            free[name] -= run.slots
    return free


def rooms(snapshot: Snapshot) -> dict[str, int]:
    """By tenant, the slots that its quota leaves."""
    return {quota.tenant: max(0, quota.limit - quota.used) for quota in snapshot.quotas}


def by_class(snapshot: Snapshot, started: Collection[str]) -> dict[int, int]:
    """Slots of the gangs that start, by class, the highest first."""
    found = dict.fromkeys(sorted({gang.priority for gang in snapshot.waiting}, reverse=True), 0)
    for gang in snapshot.waiting:
        found[gang.priority] += gang.asked if gang.job in started else 0
    return found
