"""The best possible of what a plan decides quickly, by an exact solver (HiGHS, as `scipy.optimize.milp`).

Two of a plan's decisions have an exact formulation with the plan's own limits: how elastic gangs divide slots, and
which gangs start now, without regard to the order inside a class. Both are NP-hard, so instances are small.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array

from gpu_scheduler.elastic.allocation import Candidate
from gpu_scheduler.model import Snapshot

GAP = 1e-6
Row = Mapping[int, float]
"""Coefficients by variable."""


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
    rows: Sequence[tuple[Row, float, float]],
    limit_s: float,
) -> Solved:
    """Whole numbers from 0 to `most` with the greatest total worth; rows: (coefficients, least, most) of their sums.
    RuntimeError if none is found within limit_s seconds."""
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
    return Solved(list(np.rint(found.x)), -found.fun, -found.mip_dual_bound, cpu_s)


def division(candidates: Sequence[Candidate], slots: int, rooms: Mapping[str, int], limit_s: float) -> Solved:
    """As ``elastic.allocation.allocate``: one option for each candidate, of so many slots, a group having at most its
    room beside the smallest options. The objective is the sum of utilities."""
    numbered = list(enumerate((n, option) for n, each in enumerate(candidates) for option in each.options))
    rows: list[tuple[Row, float, float]] = []
    one_of: defaultdict[int, dict[int, float]] = defaultdict(dict)
    more: defaultdict[str, dict[int, float]] = defaultdict(dict)
    for variable, (n, option) in numbered:
        one_of[n][variable] = 1
        more[candidates[n].group][variable] = option.slots - candidates[n].options[0].slots
    rows += [(row, 1, 1) for row in one_of.values()]
    rows += [(row, 0, rooms[group]) for group, row in more.items() if group in rooms]
    rows.append(({variable: option.slots for variable, (_, option) in numbered}, 0, slots))
    return solve([option.utility for _, (_, option) in numbered], [1] * len(numbered), rows, limit_s)


@dataclass(frozen=True, slots=True)
class Started:
    """By class, the highest first: the most slots that its gangs can have once those above have theirs."""

    slots: Mapping[int, int]
    cpu_s: float
    are_best: bool


def starts(snapshot: Snapshot, limit_s: float) -> Started:
    """Which gangs start on what is free: all learners or none, within nodes and their tenants' quotas. Of the highest
    class as many slots as can be, then of the next beside these, and so on; limit_s for each class. For gangs of one
    slot type and size, without cohorts, users, projects, topologies and CPUs."""
    gangs, free, room = snapshot.waiting, free_slots(snapshot), _rooms(snapshot)
    nodes = list(free)
    first = {gang.job: len(gangs) + n * len(nodes) for n, gang in enumerate(gangs)}
    most = [1.0] * len(gangs) + [float(gang.learners.min) for gang in gangs for _ in nodes]
    rows: list[tuple[Row, float, float]] = []
    for n, gang in enumerate(gangs):
        learners = {first[gang.job] + place: 1.0 for place in range(len(nodes))}
        rows.append(({**learners, n: -gang.learners.min}, 0, 0))
    for place, node in enumerate(nodes):
        rows.append(({first[gang.job] + place: gang.slots for gang in gangs}, 0, free[node]))
    for tenant, slots in room.items():
        own = {n: gang.asked for n, gang in enumerate(gangs) if gang.tenant == tenant}
        if own:
            rows.append((own, 0, slots))
    found: dict[int, int] = {}
    cpu_s, are_best = 0.0, True
    for priority in sorted({gang.priority for gang in gangs}, reverse=True):
        of_class = {n: gang.asked for n, gang in enumerate(gangs) if gang.priority == priority}
        worth = [float(of_class.get(variable, 0)) for variable in range(len(most))]
        solved = solve(worth, most, rows, limit_s)
        found[priority] = round(solved.objective)
        rows.append((of_class, found[priority], sum(of_class.values())))
        cpu_s += solved.cpu_s
        are_best = are_best and solved.is_best
    return Started(found, cpu_s, are_best)


def free_slots(snapshot: Snapshot) -> dict[str, int]:
    """By node, beside what runs."""
    free = {node.name: node.slots for node in snapshot.nodes}
    for run in snapshot.running:
        for name in run.nodes:
            free[name] -= run.slots
    return free


def _rooms(snapshot: Snapshot) -> dict[str, int]:
    return {quota.tenant: max(0, quota.limit - quota.used) for quota in snapshot.quotas}


def by_class(snapshot: Snapshot, started: set[str]) -> dict[int, int]:
    """Slots of the gangs that start, by class."""
    found: dict[int, int] = {gang.priority: 0 for gang in snapshot.waiting}
    for gang in snapshot.waiting:
        found[gang.priority] += gang.asked if gang.job in started else 0
    return found
