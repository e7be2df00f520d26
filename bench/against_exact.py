"""Plans against the best that is possible, in one run: how close they come, and how much quicker they are.

    python -m bench.against_exact

Instances are random and small enough for an exact solver (`bench.exact`). Elastic gangs that divide slots: both have
the same aim, the sum of utilities, and the same limits. Of the starts of one plan the classes are the same aim; inside
a class a plan follows the tenants' shares and who came first. So there are two answers to compare with: what fills
most, class by class, whatever the order; and what the plan's own order would start if all placements could be chosen
together.
What the second has more than the plan is what placing one gang after the other costs, and what the first has more than
the second is what the order costs.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from typing import TypeVar

from bench import exact
from bench.record import record
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
    which a tenant can have between a fiftieth and an eighth, beyond one GPU for each of its gangs."""
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
    rooms = {f"tenant-{n}": int(slots * chance.uniform(0.02, 0.125)) for n in range(10)}
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
    """Slots on which the plans start gangs, by those of each exact answer, over all instances: of the highest class,
    and of all classes. as_in_order: in how many instances a plan starts just what its own order could start."""
    ours_s, exact_s, in_order_s, proved, as_in_order = [], [], [], 0, 0
    slots: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0])
    for seed in range(instances):
        made = starts(nodes, gangs, seed)
        decided, spent = timed(lambda made=made: plan(made, explained=False), repeats)
        started = {start.job for start in decided.starts}
        most, in_order = exact.starts(made, LIMIT_S), exact.in_order(made, LIMIT_S)
        ours_s.append(spent)
        exact_s.append(most.cpu_s)
        in_order_s.append(in_order.cpu_s)
        proved += most.are_best and in_order.are_best
        as_in_order += started == in_order.jobs
        for name, found in (
            ("plan", exact.by_class(made, started)),
            ("most", most.slots),
            ("in_order", in_order.slots),
        ):
            slots[name][0] += found[max(found)]
            slots[name][1] += sum(found.values())
    shares = {
        f"{which}_by_{name}": slots["plan"][place] / slots[name][place]
        for name in ("most", "in_order")
        for place, which in enumerate(("highest_class", "all_classes"))
    }
    return (
        summary(ours_s, exact_s, proved)
        | shares
        | {"as_in_order": as_in_order, "in_order_solver_ms": statistics.median(in_order_s) * 1000}
    )


def summary(ours_s: Sequence[float], exact_s: Sequence[float], proved: int) -> dict[str, float]:
    """Medians; time_ratio: of each instance the solver's time by ours. proved: in how many it was done in time."""
    return {
        "ours_ms": statistics.median(ours_s) * 1000,
        "solver_ms": statistics.median(exact_s) * 1000,
        "time_ratio": statistics.median(theirs / own for own, theirs in zip(ours_s, exact_s, strict=True)),
        "instances": len(ours_s),
        "proved": proved,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--instances", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=9)
    asked = parser.parse_args()
    figures = {
        "division_100": measure_division(100, asked.instances, asked.repeats),
        "division_1000": measure_division(1000, asked.instances, asked.repeats),
        "starts_40": measure_starts(12, 40, asked.instances, asked.repeats),
        "starts_150": measure_starts(40, 150, asked.instances, asked.repeats),
    }
    record(
        "exact",
        {f"{name} {key}": value for name, figure in figures.items() for key, value in figure.items()},
        command=f"python -m bench.against_exact {' '.join(sys.argv[1:])}".strip(),
        baseline=f"HiGHS, as `scipy.optimize.milp` of SciPy {version('scipy')}, in the same run; both in CPU time",
    )


if __name__ == "__main__":
    main()
