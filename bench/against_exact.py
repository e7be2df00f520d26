"""Plans against the best that is possible, in one run: how much quicker, and how close (`bench.plan_speed`).

Only where an exact formulation has the same limits and the same aim. A division of slots among elastic gangs has: the
sum of their utilities. Of the starts of one plan the classes are the same aim; inside a class a plan follows the
tenants' shares and who came first, the solver whatever fills more slots. So what a plan has less of these is what its
order costs, together with what placing one gang after the other costs.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from bench import exact
from gpu_scheduler.cycle import plan
from gpu_scheduler.elastic.allocation import Allocation, Candidate, allocate
from gpu_scheduler.elastic.utility import proportional, sizes
from gpu_scheduler.model import (
    Gang,
    Node,
    PlacementStrategy,
    Profile,
    QuotaUse,
    Range,
    Resources,
    Running,
    Snapshot,
    StepTimes,
    TenantState,
)
from gpu_scheduler.policies.fair_share import FairShare

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
TYPE, PER_NODE = "a100", 8
LIMIT_S = 60.0
"""For the solver; each class of starts has as long."""
T = TypeVar("T")


def gang_of(job: str, tenant: str, learners: Range, slots: int, priority: int, queued_s: int = 0) -> Gang:
    queued_at = NOW - timedelta(seconds=queued_s)
    return Gang(job, tenant, learners, Resources(slots), TYPE, PlacementStrategy.PACK, priority, queued_at)


@dataclass(frozen=True, slots=True)
class Division:
    """What is divided: see ``elastic.allocation.allocate``."""

    candidates: tuple[Candidate, ...]
    slots: int
    rooms: Mapping[str, int]


def division(gangs: int, seed: int) -> Division:
    """Elastic gangs of ten tenants, each of which trains at its own speed with 1 to 32 GPUs; four for each gang, of
    which a tenant can have a sixth."""
    chance = random.Random(seed)
    slots = 4 * gangs
    candidates = []
    for n in range(gangs):
        step = StepTimes(
            compute_s=chance.uniform(0.05, 0.5),
            per_sample_s=chance.uniform(0.001, 0.02),
            exchange_s=chance.uniform(0.0, 0.1),
            per_learner_s=chance.uniform(0.0, 0.01),
            exchange_across_s=chance.uniform(0.05, 0.5),
            per_learner_across_s=chance.uniform(0.0, 0.02),
            overlap=chance.uniform(1, 3),
        )
        tenant = f"tenant-{n % 10}"
        profile = Profile(batch=Range(32, 1024), step_times=step, largest=32)
        gang = replace(gang_of(f"job-{n:05}", tenant, Range(1, 32), 1, 1), elastic=profile)
        choices = {size: -(-size // PER_NODE) for size in sizes(1, 32, PER_NODE)}
        worth = proportional(gang, choices, now=1, kept=1.0, weight=1.0)
        candidates.append(Candidate(gang.job, worth, tenant))
    rooms = {f"tenant-{n}": slots // 6 for n in range(10)}
    return Division(tuple(candidates), slots, rooms)


def starts(nodes: int, gangs: int, seed: int) -> Snapshot:
    """Gangs of four tenants and three classes, for more than is free; some slots of each node are held. Quotas bind."""
    chance = random.Random(seed)
    machines = tuple(Node.with_slots(f"node-{n:03}", TYPE, PER_NODE) for n in range(nodes))
    tenants = [f"tenant-{n}" for n in range(4)]
    running = tuple(
        Running(gang_of(f"run-{n:03}", "others", Range.fixed(1), held, 3), TYPE, (node.name,), NOW)
        for n, node in enumerate(machines)
        if (held := chance.randrange(6))
    )
    waiting = tuple(
        gang_of(
            f"job-{n:03}",
            chance.choice(tenants),
            Range.fixed(chance.choice([1, 1, 1, 2, 3])),
            chance.choice([1, 2, 3, 4, 5, 6, 8]),
            chance.randrange(3),
            chance.randrange(100_000),
        )
        for n in range(gangs)
    )
    held = sum(run.slots for run in running)
    quotas = (
        *(QuotaUse(tenant, TYPE, nodes * PER_NODE // 5, 0) for tenant in tenants),
        QuotaUse("others", TYPE, held, held),
    )
    states = tuple(TenantState(quota.tenant) for quota in quotas)
    return Snapshot(NOW, machines, waiting, running, quotas, FairShare(), states)


def timed(make: Callable[[], T], repeats: int) -> tuple[T, float]:
    """What it makes, and the median of its CPU seconds."""
    spent = []
    for _ in range(repeats):
        began = time.thread_time()
        made = make()
        spent.append(time.thread_time() - began)
    return made, statistics.median(spent)


def gain(made: Division, taken: Allocation | Sequence[float]) -> float:
    """The sum of utilities beyond that of the smallest options. taken: ours, or the solver's variables."""
    options = [(each, option) for each in made.candidates for option in each.options]
    least = sum(each.options[0].utility for each in made.candidates)
    if isinstance(taken, Mapping):
        return sum(option.utility for option in taken.values()) - least
    return sum(option.utility * value for (_, option), value in zip(options, taken, strict=True)) - least


def measure_division(gangs: int, instances: int, repeats: int) -> dict[str, float]:
    """quality: the part of the greatest possible gain that ours has, in the median and at worst."""
    ours_s, exact_s, quality, proved = [], [], [], 0
    for seed in range(instances):
        made = division(gangs, seed)
        taken, spent = timed(lambda made=made: allocate(made.candidates, made.slots, made.rooms), repeats)
        best = exact.division(made.candidates, made.slots, made.rooms, LIMIT_S)
        ours_s.append(spent)
        exact_s.append(best.cpu_s)
        quality.append(gain(made, taken) / gain(made, best.values))
        proved += best.is_best
    return summary(ours_s, exact_s, proved) | {
        "quality_p50": statistics.median(quality),
        "quality_least": min(quality),
    }


def measure_starts(nodes: int, gangs: int, instances: int, repeats: int) -> dict[str, float]:
    """Shares of the slots that the solver starts gangs on, over all instances: of the highest class, and of all."""
    ours_s, exact_s, proved = [], [], 0
    first, everything = [0, 0], [0, 0]
    for seed in range(instances):
        made = starts(nodes, gangs, seed)
        decided, spent = timed(lambda made=made: plan(made, explained=False), repeats)
        mine = exact.by_class(made, {start.job for start in decided.starts})
        best = exact.starts(made, LIMIT_S)
        ours_s.append(spent)
        exact_s.append(best.cpu_s)
        proved += best.are_best
        highest = max(mine)
        for place, each in enumerate((mine, best.slots)):
            first[place] += each[highest]
            everything[place] += sum(each.values())
    return summary(ours_s, exact_s, proved) | {
        "highest_class_share": first[0] / first[1],
        "all_classes_share": everything[0] / everything[1],
    }


def summary(ours_s: Sequence[float], exact_s: Sequence[float], proved: int) -> dict[str, float]:
    """Medians; time_ratio: of each instance the solver's time by ours. proved: in how many it was done in time."""
    return {
        "ours_ms": statistics.median(ours_s) * 1000,
        "solver_ms": statistics.median(exact_s) * 1000,
        "time_ratio": statistics.median(theirs / own for own, theirs in zip(ours_s, exact_s, strict=True)),
        "instances": len(ours_s),
        "proved": proved,
    }


def measure(repeats: int) -> dict[str, dict[str, float]]:
    """All of it, by name."""
    return {
        "exact_division_100": measure_division(100, 5, repeats),
        "exact_division_1000": measure_division(1000, 5, repeats),
        "exact_starts": measure_starts(12, 40, 10, repeats),
    }
