"""One tenant floods the queue with 1-GPU jobs; do the others get what they are entitled to?

    python -m bench.flood

Four tenants are entitled to a quarter of the cluster each. Three of them submit jobs of 1 to 8 GPUs and 5 to 55 minutes
that take 70 % of their part, with random arrivals of a fixed seed. After an hour the fourth queues twice as many 1-GPU
jobs of 15 minutes as the cluster could do in all the time. In the last column, "cohort", each tenant's quota is its
part and the four lend each other what they do not use; in the others, every quota is the whole cluster. A tenant's
ratio is its mean completion time by that on its own part alone (finish-time fairness).
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from bench.record import record
from gpu_scheduler.model import Gang, Node, PlacementStrategy, QuotaUse, Range, Resources
from gpu_scheduler.policies.base import Policy
from gpu_scheduler.policies.selection import policy_from
from gpu_scheduler.simulation import Costs, Scenario, SimulatedJob, simulate
from gpu_scheduler.simulation.report import completion_times, jain, report, shares_received

TYPE, NODES, SLOTS = "gpu", 8, 8
REGULAR, FLOOD = ("red", "green", "blue"), "flood"
OURS = ("fair_share", "cohort")
PART = NODES * SLOTS // 4
NOMINAL: Mapping[str, float] = dict.fromkeys((*REGULAR, FLOOD), float(PART))
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
COSTS = Costs(start_s=30, restore_s=30, checkpoint_s=10)


def scenario(hours: float, policy: Policy, *, cohort: str = "", load: float = 0.7, seed: int = 5) -> Scenario:
    """So many hours of arrivals; the flood comes after the first, with twice what the cluster can do in all of them.

    cohort: each tenant's quota is its part, and the others lend it what they do not use. Without one, every quota is
    the whole cluster.
    """
    chance = random.Random(seed)
    jobs = []
    for tenant in REGULAR:
        at_s = 0.0
        while at_s < hours * 3600:
            gpus, work_s = chance.choice((1, 1, 1, 2, 2, 4, 8)), chance.uniform(300, 3300)
            jobs.append(_job(f"{tenant}-{len(jobs):05}", tenant, gpus, at_s, work_s))
            # The mean of size times length, by what the tenant's part does in a second at this load.
            at_s += chance.expovariate(PART * load / (19 / 7 * 1800))
    length_s, total_s = 900.0, 2 * NODES * SLOTS * hours * 3600
    jobs += [
        _job(f"{FLOOD}-{number:05}", FLOOD, 1, 3600.0, length_s) for number in range(int(total_s / length_s))
    ]
    nodes = tuple(Node.with_slots(f"node-{i}", TYPE, SLOTS) for i in range(NODES))
    limit = PART if cohort else NODES * SLOTS
    quotas = tuple(QuotaUse(tenant, TYPE, limit, 0, cohort) for tenant in NOMINAL)
    return Scenario(nodes, tuple(jobs), quotas, policy, begin=BEGIN)


def _job(name: str, tenant: str, gpus: int, at_s: float, work_s: float) -> SimulatedJob:
    at = BEGIN + timedelta(seconds=at_s)
    gang = Gang(name, tenant, Range.fixed(1), Resources(gpus), TYPE, PlacementStrategy.PACK, 1, at)
    return SimulatedJob(gang, work_s, COSTS)


def figures(made: Scenario) -> dict[str, float]:
    """regular: over the three tenants that do not flood."""
    outcome = simulate(made)
    times = completion_times(outcome, made)
    by_tenant: defaultdict[str, list[SimulatedJob]] = defaultdict(list)
    for job in made.jobs:
        by_tenant[job.gang.tenant].append(job)
    ratios = {}
    for tenant in REGULAR:
        part = replace(made, nodes=made.nodes[: PART // SLOTS], jobs=tuple(by_tenant[tenant]))
        alone = completion_times(simulate(part), part)
        ratios[tenant] = sum(times[job] for job in alone) / sum(alone.values())
    found = report(outcome, made, NOMINAL)
    regular_s = [times[job.gang.job] for tenant in REGULAR for job in by_tenant[tenant]]
    return {
        "worst_regular_tenant_ratio": max(ratios.values()),
        "jain": jain(shares_received(outcome, made, NOMINAL).values()),
        "regular_average_s": sum(regular_s) / len(regular_s),
        "flood_average_s": sum(times[job.gang.job] for job in by_tenant[FLOOD]) / len(by_tenant[FLOOD]),
        "guarantee_violation_h": found.guarantee_violation_h,
        "utilization_while_jobs_wait": found.utilization_while_waiting,
        "stops": found.stops,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hours", type=float, default=8)
    parser.add_argument("--policies", default="fifo,fifo_backfill,fair_share")
    asked = parser.parse_args()
    names = asked.policies.split(",")
    found = {name: figures(scenario(asked.hours, policy_from(name))) for name in names}
    found["cohort"] = figures(scenario(asked.hours, policy_from("fair_share"), cohort="all"))
    record(
        "flood",
        {f"{name} {figure}": value for name, each in found.items() for figure, value in each.items()},
        command=f"python -m bench.flood {' '.join(sys.argv[1:])}".strip(),
        targets={
            **{f"{name} worst_regular_tenant_ratio": "≤ 1.5" for name in OURS},
            **{f"{name} jain": "≥ 0.95" for name in OURS},
            "cohort guarantee_violation_h": "= 0",
        },
        details={"columns": list(found)},
    )


if __name__ == "__main__":
    main()
