"""What a notice is worth where machines are taken back: half of the nodes are revoked again and again.

    python -m bench.revocations

16 nodes of 4 GPUs, 8 of them spot machines: each is taken back after two hours on average, and is there again 20
minutes later. 20 jobs an hour come for eight hours, half of them elastic (one to 16 learners of a GPU; how fast a step
is at each size is known), half of one size (1 to 8 GPUs). Each saves every half an hour by itself; a save on request
takes 20 s, a start or a restart 30 s. Columns: the nodes go without a notice (0 s), or with one of 120 s; "whole": with
one of 120 s, and every job on such a node leaves as a whole, as what the plan orders elastic jobs to leave it by is
dropped. All columns have the same jobs and revocations, of fixed seeds; figures are means over these.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from bench.record import record
from gpu_scheduler.elastic.utility import speed
from gpu_scheduler.model import (
    Gang,
    Node,
    PlacementStrategy,
    Plan,
    Profile,
    QuotaUse,
    Range,
    Resources,
    Snapshot,
    StepTimes,
)
from gpu_scheduler.policies.selection import policy_from
from gpu_scheduler.simulation import Costs, NodeFailure, Rate, Scenario, SimulatedJob, simulate
from gpu_scheduler.simulation.engine import unexplained
from gpu_scheduler.simulation.report import report

TYPE, NODES, SPOT, GPUS = "gpu", 16, 8, 4
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
COSTS = Costs(start_s=30, restore_s=30, checkpoint_s=20, checkpoint_every_s=1800)
STEPS = Profile(step_times=StepTimes(0.02, 1.0, 0.02, 0.002, 0.06, 0.003, 1.5), largest=16)
HOURS, PER_HOUR, LIVES_H, AWAY_S, NOTICE_S = 8.0, 20.0, 2.0, 1200.0, 120.0
NOTICES = 0.0, NOTICE_S
POLICIES = ("fifo", "fifo_backfill", "fair_share")
WHOLE = "fair_share, whole"
TENANTS = ("red", "green", "blue")


def jobs(seed: int) -> Iterator[SimulatedJob]:
    chance, at_s, number = random.Random(seed), 0.0, 0
    while at_s < HOURS * 3600:
        at = BEGIN + timedelta(seconds=at_s)
        name, tenant = f"job-{number:04}", chance.choice(TENANTS)
        if chance.random() < 0.5:
            gang = _gang(name, tenant, Range(1, 16), 1, at, STEPS)
            work_s = chance.uniform(1800, 14_400)
        else:
            gpus = chance.choice((1, 1, 2, 4, 8))
            gang = _gang(name, tenant, Range.fixed(max(1, gpus // GPUS)), min(gpus, GPUS), at, None)
            work_s = chance.uniform(600, 3600)
        yield SimulatedJob(gang, work_s, COSTS)
        number += 1
        at_s += chance.expovariate(PER_HOUR / 3600)


def _gang(name: str, tenant: str, learners: Range, gpus: int, at: datetime, elastic: Profile | None) -> Gang:
    pack = PlacementStrategy.PACK
    return Gang(name, tenant, learners, Resources(gpus), TYPE, pack, 1, at, elastic=elastic)


def revocations(seed: int, notice_s: float) -> Iterator[NodeFailure]:
    """Of three times the hours in which jobs come: by then all have ended."""
    for number in range(SPOT):
        chance, at_s = random.Random(f"{seed}/{number}"), 0.0
        while (at_s := at_s + NOTICE_S + chance.expovariate(1 / (LIVES_H * 3600))) < 3 * HOURS * 3600:
            yield NodeFailure(BEGIN + timedelta(seconds=at_s), f"node-{number:02}", AWAY_S, notice_s)
            at_s += AWAY_S


def rate(gang: Gang, nodes: tuple[str, ...], done_s: float) -> Rate:
    """Work is in seconds of one learner; a gang of one size does a second of it in a second."""
    if gang.elastic is None:
        return Rate(1.0)
    return Rate(speed(gang, len(nodes), len(set(nodes))) / speed(gang, 1, 1))


def scenario(policy: str, seed: int, notice_s: float) -> Scenario:
    return Scenario(
        tuple(Node.with_slots(f"node-{number:02}", TYPE, GPUS) for number in range(NODES)),
        tuple(jobs(seed)),
        tuple(QuotaUse(tenant, TYPE, NODES * GPUS, 0) for tenant in TENANTS),
        policy_from(policy),
        failures=tuple(revocations(seed, notice_s)),
        rate=rate,
        begin=BEGIN,
    )


def leaving_whole(seen: Snapshot) -> Plan:
    """The plan, as if no run could leave a node by another size."""
    made = unexplained(seen)
    return replace(made, resizes=tuple(each for each in made.resizes if not each.leaves))


def figures(policy: str, seeds: int, notice_s: float, *, whole: bool = False) -> list[dict[str, float]]:
    """By seed. lost_work: what was done again. held_without_progress: that, saves, and all starts but a job's first."""
    found = []
    for seed in range(seeds):
        made = scenario(policy, seed, notice_s)
        outcome = simulate(made, leaving_whole if whole else unexplained)
        seen = report(outcome, made, dict.fromkeys(TENANTS, NODES * GPUS / len(TENANTS)))
        assert not outcome.unfinished
        found.append(
            {
                "jobs": seen.jobs,
                "average_s": seen.average_s,
                "p99_s": seen.p99_s,
                "lost_work_gpu_h": sum(run.slots * run.lost_s for run in outcome.runs) / 3600,
                "held_without_progress_gpu_h": seen.lost_slot_h,
                "runs_that_left_in_time": seen.revocations,
                "runs_that_were_lost": seen.node_failures,
                "other_stops": seen.stops,
            }
        )
    return found


def mean(found: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: sum(each[name] for each in found) / len(found) for name in found[0]}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=20, help="so many runs of each column are averaged")
    seeds = parser.parse_args().seeds
    found = {
        **{
            f"{policy}, {notice:.0f} s": figures(policy, seeds, notice)
            for policy in POLICIES
            for notice in NOTICES
        },
        WHOLE: figures("fair_share", seeds, NOTICE_S, whole=True),
    }
    columns = {name: mean(each) for name, each in found.items()}
    with_resizes = found[f"fair_share, {NOTICE_S:.0f} s"]
    shorter = [
        one["average_s"] < other["average_s"] for one, other in zip(with_resizes, found[WHOLE], strict=True)
    ]
    columns[WHOLE]["seeds_with_a_longer_average_than_without_whole"] = sum(shorter)
    record(
        "revocations",
        {f"{column} {name}": value for column, each in columns.items() for name, value in each.items()},
        command="python -m bench.revocations",
        details={"columns": list(columns), "seeds": seeds},
    )


if __name__ == "__main__":
    main()
