"""Gangs: what is held by incomplete ones without gang scheduling, and how PACK and SPREAD differ on a trace.

    python -m bench.gangs

Deadlock: 50 synchronous jobs of 2 to 8 learners with a GPU each on 15 nodes of 4, in so many runs of random arrivals;
the queue is longer than the cluster nearly all the time. The learners of a job appear within half a minute. A scheduler
that knows no gangs binds them one by one, each to the freest node: a job computes once all its learners are bound, and
those of an incomplete one hold their GPUs. in_order takes them first come, first served; any_order takes any that waits
when a GPU is free, as where they are tried again after a pause. Ours is fair_share in the simulator, the same jobs.

PACK and SPREAD: days of the Philly trace on a smaller cluster, every job with the one or the other strategy.
queued_15_min counts the jobs that wait for longer than 15 minutes.
"""

from __future__ import annotations

import argparse
import heapq
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

from bench.record import record
from bench.traces import BEGIN, TRACES, TYPE, cluster, command, philly
from gpu_scheduler.model import Gang, PlacementStrategy, QuotaUse, Range, Resources
from gpu_scheduler.policies.selection import policy_from
from gpu_scheduler.simulation import Outcome, Scenario, SimulatedJob, simulate
from gpu_scheduler.simulation.report import completion_times, report

NODES, GPUS = 15, 4
JOBS = 50
LATE_S = 900.0


@dataclass(frozen=True, slots=True)
class Job:
    """at_s: when each of its learners appears, in seconds."""

    name: str
    at_s: tuple[float, ...]
    work_s: float


def jobs_of(seed: int) -> list[Job]:
    chance = random.Random(seed)
    found, at_s = [], 0.0
    for number in range(JOBS):
        at_s += chance.expovariate(1 / 60)
        learners = chance.randint(2, 8)
        appear = tuple(sorted(at_s + chance.uniform(0, 30) for _ in range(learners)))
        found.append(Job(f"job-{number:02}", appear, chance.uniform(600, 3600)))
    return found


@dataclass(slots=True)
class Held:
    """What incomplete gangs hold: the most at a time, the mean over the time until the last job ended or nothing moves
    any more (both as parts of all GPUs); incomplete: the most such gangs at a time. unfinished: jobs that never end."""

    most: float = 0.0
    mean: float = 0.0
    incomplete: int = 0
    unfinished: int = 0


def one_by_one(jobs: Sequence[Job], chance: random.Random | None = None) -> Held:
    """Bind learners without gangs, in the order in which they appear; with chance, any of those that wait."""
    size = {job.name: len(job.at_s) for job in jobs}
    work = {job.name: job.work_s for job in jobs}
    events: list[tuple[float, str, bool]] = [(at, job.name, False) for job in jobs for at in job.at_s]
    heapq.heapify(events)
    free = [GPUS] * NODES
    bound: dict[str, list[int]] = {job.name: [] for job in jobs}
    queue: list[str] = []
    found, ended, before, gpu_s = Held(), 0, 0.0, 0.0
    while events:
        at, name, ends = heapq.heappop(events)
        waiting = [held for job, held in bound.items() if held and len(held) < size[job]]
        gpu_s += sum(map(len, waiting)) * (at - before)
        before = at
        if ends:
            ended += 1
            for node in bound[name]:
                free[node] += 1
            bound[name] = []
        else:
            queue.append(name)
        while queue and free[node := max(range(NODES), key=lambda each: (free[each], -each))]:
            first = queue.pop(chance.randrange(len(queue)) if chance else 0)
            free[node] -= 1
            bound[first].append(node)
            if len(bound[first]) == size[first]:
                heapq.heappush(events, (at + work[first], first, True))
        waiting = [held for job, held in bound.items() if held and len(held) < size[job]]
        found.most = max(found.most, sum(map(len, waiting)) / (NODES * GPUS))
        found.incomplete = max(found.incomplete, len(waiting))
    found.mean = gpu_s / before / (NODES * GPUS)
    found.unfinished = len(jobs) - ended
    return found


def as_gangs(jobs: Sequence[Job]) -> Outcome:
    """Run the same jobs by production's plan(), each from when its last learner appears."""
    made = tuple(
        SimulatedJob(
            Gang(
                job.name,
                "all",
                Range.fixed(len(job.at_s)),
                Resources(1),
                TYPE,
                PlacementStrategy.PACK,
                1,
                BEGIN + timedelta(seconds=job.at_s[-1]),
            ),
            job.work_s,
        )
        for job in jobs
    )
    quotas = (QuotaUse("all", TYPE, NODES * GPUS, 0),)
    nodes = cluster(NODES, GPUS)
    return simulate(Scenario(nodes, made, quotas, policy_from("fair_share"), begin=BEGIN, round_s=0))


def held_by_gangs(jobs: Sequence[Job]) -> Held:
    outcome = as_gangs(jobs)
    size = {job.name: len(job.at_s) for job in jobs}
    partial = [run for run in outcome.runs if len(run.nodes) != size[run.gang.job]]
    return Held(incomplete=len(partial), unfinished=len(jobs) - len(outcome.completed))


def deadlock(runs: int) -> dict[str, dict[str, float]]:
    found = {}
    kinds: dict[str, Callable[[int], Held]] = {
        "in_order": lambda seed: one_by_one(jobs_of(seed)),
        "any_order": lambda seed: one_by_one(jobs_of(seed), random.Random(seed)),
        "gangs": lambda seed: held_by_gangs(jobs_of(seed)),
    }
    for column, one in kinds.items():
        held = [one(seed) for seed in range(runs)]
        found[column] = {
            "runs": len(held),
            "runs_with_jobs_that_never_end": sum(each.unfinished > 0 for each in held),
            "jobs_that_never_end": sum(each.unfinished for each in held),
            "most_incomplete_gangs": max(each.incomplete for each in held),
            "most_gpus_held_idle_share": max(each.most for each in held),
            "mean_gpus_held_idle_share": sum(each.mean for each in held) / len(held),
        }
    return found


def strategies(folder: Path, nodes: int, first_day: str, days: int) -> dict[str, dict[str, float]]:
    scenario, nominal = philly(folder, nodes, first_day, days)
    found = {}
    for strategy in PlacementStrategy:
        jobs = tuple(replace(job, gang=replace(job.gang, strategy=strategy)) for job in scenario.jobs)
        made = replace(scenario, jobs=jobs, policy=policy_from("fair_share"))
        outcome = simulate(made)
        waits = {
            job.gang.job: (outcome.first_started[job.gang.job] - job.gang.queued_at).total_seconds()
            for job in jobs
            if job.gang.job in outcome.first_started
        }
        late = Counter(
            "whole_node" if job.gang.asked >= GPUS * 2 else "smaller"
            for job in jobs
            if waits.get(job.gang.job, LATE_S + 1) > LATE_S
        )
        figures, times = report(outcome, made, nominal), completion_times(outcome, made)
        found[strategy.value] = {
            "jobs": len(jobs),
            "queued_15_min": late.total(),
            "queued_15_min_whole_nodes": late["whole_node"],
            "average_h": sum(times.values()) / len(times) / 3600,
            "wait_average_h": figures.average_wait_s / 3600,
            "wait_p99_h": figures.p99_wait_s / 3600,
            "utilization_while_jobs_wait": figures.utilization_while_waiting,
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--traces", type=Path, default=TRACES, help="folder of the public traces")
    parser.add_argument("--nodes", type=int, default=80)
    parser.add_argument("--first-day", default="2017-10-09")
    parser.add_argument("--days", type=int, default=14)
    asked = parser.parse_args()
    for name, found in (
        ("gang_deadlock", deadlock(asked.runs)),
        ("pack_spread", strategies(asked.traces, asked.nodes, asked.first_day, asked.days)),
    ):
        record(
            name,
            {f"{column} {figure}": value for column, each in found.items() for figure, value in each.items()},
            command=command("bench.gangs"),
            targets={"gangs most_incomplete_gangs": "= 0"},
            details={"columns": list(found)},
        )


if __name__ == "__main__":
    main()
