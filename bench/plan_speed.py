"""How long plan() takes for a full queue: 10,000 waiting jobs on 1,250 nodes of 8; and how long a forecast takes.

Times are CPU time of the one thread that plans, with the garbage collector set as in the process that makes passes.
Jobs and nodes are of three types, and a quarter of the jobs takes any;
of one type alone in one_pool. 40,000 jobs on 10,000 nodes are in many.

Three states: an empty cluster (thousands of starts), a full one (everything explained), and a full one with
queue heads whose starvation timeout is over. The same with half of the jobs in one node, rack or block (topology), and
with a limit for each of 20 users of a tenant (users). 2,000 of the jobs opportunistic, and 200 running ones
(opportunistic). A third of the tenants with a GPU-hour budget that is used up, a third with one that nearly is
(budgets). A full one whose jobs may be stopped for a quarter of the queue,
which is urgent (preempting). One where runs of one GPU on every slot, half of them borrowed, are in the way of 2,000
jobs of 40 lenders for whole and half nodes (reclaiming). 1,000 elastic jobs of one learner, which may all grow
(elastic); the same with three learners each on nodes that all differ, none of which has anything free, while 2,000
small jobs wait (elastic_crowded).
Two forecasts on a full cluster, all run times known: one of few plans over 2,000 jobs, one of many plans over 300 jobs
on 60 nodes.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from bench.record import percentile, record
from gpu_scheduler.cycle import plan
from gpu_scheduler.forecast import FORECAST_JOBS, Basis, RunTime, forecast
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
    Topology,
)
from gpu_scheduler.policies.fair_share import FairShare
from portal.interpreter import settle

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
TYPES = ("a100", "h200", "v100")
BUDGET_MS = 250
MANY_JOBS, MANY_NODES, MANY_MS = 40_000, 10_000, 1000


def world(
    jobs: int,
    nodes: int,
    *,
    full: bool,
    impatient: bool,
    seed: int = 7,
    types: tuple[str, ...] = TYPES,
) -> Snapshot:
    """A mixed queue of 50 tenants. full: only one slot of each node is free."""
    chance = random.Random(seed)
    machines = tuple(Node.with_slots(f"node-{i:05}", types[i % len(types)], 8) for i in range(nodes))
    tenants = [f"tenant-{i:02}" for i in range(50)]
    busy = tuple(
        _running(f"run-{i:05}", chance.choice(tenants), node) for i, node in enumerate(machines) if full
    )
    used: dict[tuple[str, str], int] = {}
    for run in busy:
        used[run.tenant, run.slot_type] = used.get((run.tenant, run.slot_type), 0) + run.slots
    waiting = tuple(
        Gang(
            job=f"job-{i:05}",
            tenant=chance.choice(tenants),
            learners=Range.fixed(chance.choice([1, 1, 1, 1, 2, 4, 8, 16])),
            resources=Resources(chance.choice([2, 2, 4, 8] if full else [1, 1, 2, 4, 8])),
            slot_type=chance.choice([*types, None]),
            strategy=chance.choice(list(PlacementStrategy)),
            priority=chance.randint(0, 3),
            queued_at=NOW - timedelta(seconds=chance.randint(0, 100_000)),
        )
        for i in range(jobs)
    )
    quotas = tuple(QuotaUse(t, s, 2000, used.get((t, s), 0)) for t in tenants for s in types)
    heads = {job.job: NOW - timedelta(hours=1) for job in waiting[:100]} if impatient else {}
    return Snapshot(
        NOW, machines, waiting, busy, quotas, FairShare(), tuple(map(TenantState, tenants)), heads
    )


def _running(job: str, tenant: str, node: Node, slots: int = 7) -> Running:
    gang = Gang(job, tenant, Range.fixed(1), Resources(slots), node.slot_type, PlacementStrategy.PACK, 1, NOW)
    return Running(gang, node.slot_type, (node.name,), NOW)


def in_domains(made: Snapshot, seed: int = 5) -> Snapshot:
    """Racks of 16 nodes, blocks of 10 racks; half of the jobs must, or should, be in one of these or on one node."""
    chance = random.Random(seed)
    machines = tuple(
        replace(node, rack=f"rack-{i // 16:03}", block=f"block-{i // 160:02}")
        for i, node in enumerate(made.nodes)
    )
    kinds = [
        None,
        *map(Topology.read, ("required node", "required rack", "preferred rack", "preferred block")),
    ]
    weights = [4, 1, 1, 1, 1]
    waiting = tuple(replace(gang, topology=chance.choices(kinds, weights)[0]) for gang in made.waiting)
    return replace(made, nodes=machines, waiting=waiting)


def with_users(made: Snapshot, seed: int = 5) -> Snapshot:
    chance = random.Random(seed)
    waiting = tuple(replace(gang, user=f"user-{chance.randrange(20):02}") for gang in made.waiting)
    return replace(
        made, waiting=waiting, quotas=tuple(replace(quota, user_limit=64) for quota in made.quotas)
    )


def with_opportunistic(made: Snapshot, waiting: int = 2000, running: int = 200, seed: int = 9) -> Snapshot:
    """So many of its jobs are opportunistic; where none runs, so many runs on half a node each are added."""
    chance = random.Random(seed)
    runs = made.running or tuple(
        _running(f"run-{i:05}", chance.choice(made.quotas).tenant, node, slots=4)
        for i, node in enumerate(made.nodes[:running])
    )
    return replace(
        made,
        waiting=_some_opportunistic(made.waiting, waiting, chance),
        running=tuple(
            replace(run, gang=gang)
            for run, gang in zip(
                runs, _some_opportunistic([run.gang for run in runs], running, chance), strict=True
            )
        ),
    )


def _some_opportunistic(gangs: Sequence[Gang], count: int, chance: random.Random) -> tuple[Gang, ...]:
    chosen = set(chance.sample(range(len(gangs)), min(count, len(gangs))))
    return tuple(replace(gang, opportunistic=True) if i in chosen else gang for i, gang in enumerate(gangs))


def with_budgets(made: Snapshot) -> Snapshot:
    """Of each three tenants one has used nothing of its budget, one nearly all, one all."""
    hours, used = 1000.0, (0.0, 999.97, 1000.0)
    return replace(
        made,
        tenants=tuple(
            replace(
                state,
                budget_gpu_hours=hours,
                used_gpu_s=used[i % len(used)] * 3600,
                month_ends=NOW + timedelta(days=3),
            )
            for i, state in enumerate(made.tenants)
        ),
    )


def settled(made: Snapshot) -> Snapshot:
    """Its jobs have run for an hour."""
    hour = timedelta(hours=1)
    return replace(made, running=tuple(replace(run, started_at=NOW - hour) for run in made.running))


def reclaiming(nodes: int, seed: int = 3) -> Snapshot:
    """Four tenants hold every slot in runs of one GPU; 40 others of their cohort, whose limits are half of the slots,
    wait for learners that such runs are in the way of."""
    chance = random.Random(seed)
    machines = tuple(Node.with_slots(f"node-{i:05}", TYPES[0], 8) for i in range(nodes))
    busy = tuple(
        replace(run, started_at=NOW - timedelta(seconds=chance.randint(60, 7200)))
        for i, node in enumerate(machines * 8)
        for run in [_running(f"run-{i:05}", f"flood-{i % 4}", node, slots=1)]
    )
    waiting = tuple(
        Gang(
            job=f"job-{tenant:02}-{i:02}",
            tenant=f"lender-{tenant:02}",
            learners=Range.fixed(chance.choice([1, 2, 4, 8, 16])),
            resources=Resources(chance.choice([1, 2, 4, 8])),
            slot_type=TYPES[0],
            strategy=PlacementStrategy.PACK,
            priority=chance.randint(0, 2),
            queued_at=NOW - timedelta(seconds=chance.randint(0, 10_000)),
        )
        for tenant in range(40)
        for i in range(50)
    )
    quotas = [QuotaUse(f"lender-{i:02}", TYPES[0], nodes // 10, 0, "lab") for i in range(40)]
    quotas += [QuotaUse(f"flood-{i}", TYPES[0], nodes, 2 * nodes, "lab") for i in range(4)]
    tenants = tuple(TenantState(quota.tenant) for quota in quotas)
    return Snapshot(NOW, machines, waiting, busy, tuple(quotas), FairShare(), tenants)


def elastic(nodes: int, seed: int = 7) -> Snapshot:
    """1,000 measured elastic jobs with one learner each, which have run for an hour, and nothing that waits."""
    made = world(0, nodes, full=True, impatient=False, seed=seed)
    profile = Profile(step_times=StepTimes(0.1, 1.0, 0.05, 0.01, 0.1, 0.01), largest=64)
    running = tuple(
        replace(
            run,
            gang=replace(run.gang, learners=Range(1, 16), resources=Resources(1), elastic=profile),
            started_at=NOW - timedelta(hours=1),
        )
        for run in made.running[:1000]
    )
    return replace(made, running=running, quotas=tuple(replace(each, used=0) for each in made.quotas))


def elastic_crowded(nodes: int, seed: int = 7) -> Snapshot:
    """1,000 elastic jobs that shrink for what waits, on nodes of which no two have the same CPUs."""
    made, chance = elastic(nodes, seed), random.Random(seed)
    machines = tuple(
        replace(node, allocatable=replace(node.allocatable, cpus=64 + i / 1000))
        for i, node in enumerate(made.nodes)
    )
    running = tuple(replace(run, nodes=run.nodes * 3) for run in made.running)
    fixed = tuple(
        Running(
            Gang(f"fixed-{i}", "t-0", Range.fixed(1), Resources(left), node.slot_type,
                 PlacementStrategy.PACK, 1, NOW),
            node.slot_type, (node.name,), NOW,
        )
        for i, node in enumerate(machines)
        if (left := node.slots - sum(run.nodes.count(node.name) for run in running if node.name in run.nodes))
    )  # fmt: skip
    small = tuple(
        replace(gang, learners=Range.fixed(chance.choice([1, 2])), resources=Resources(1, cpus=2), priority=1)
        for gang in world(2000, nodes, full=True, impatient=False, seed=seed).waiting
    )
    return replace(made, nodes=machines, running=(*running, *fixed), waiting=small)


def measure(snapshot: Snapshot, repeats: int) -> dict[str, float]:
    times = []
    for _ in range(repeats):
        began = time.thread_time()
        made = plan(snapshot)
        times.append((time.thread_time() - began) * 1000)
    counts = {
        "starts": len(made.starts),
        "waits": len(made.waits),
        "stops": len(made.stops),
        "resizes": len(made.resizes),
    }
    return {
        "p50_ms": round(statistics.median(times), 1),
        "p99_ms": round(percentile(times, 0.99), 1),
        **{name: count for name, count in counts.items() if count or name in ("starts", "waits")},
    }


def measure_forecast(snapshot: Snapshot, repeats: int, seed: int = 3) -> dict[str, float]:
    chance = random.Random(seed)
    jobs = [*snapshot.running, *snapshot.waiting]
    runs = {job.job: RunTime((float(chance.randint(60, 100_000)),), Basis.PROGRESS) for job in jobs}
    times = []
    for _ in range(repeats):
        began = time.thread_time()
        found = forecast(snapshot, runs)
        times.append((time.thread_time() - began) * 1000)
    return {
        "p50_ms": round(statistics.median(times), 1),
        "p99_ms": round(percentile(times, 0.99), 1),
        "estimates": sum(estimate.p50 is not None for estimate in found.values()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--nodes", type=int, default=1_250)
    parser.add_argument("--repeats", type=int, default=9)
    asked = parser.parse_args()
    settle()
    worlds = {
        name: world(asked.jobs, asked.nodes, full=full, impatient=impatient)
        for name, full, impatient in (
            ("empty_cluster", False, False),
            ("full_cluster", True, False),
            ("full_cluster_impatient_heads", True, True),
        )
    }
    worlds |= {f"topology_{name}": in_domains(made) for name, made in worlds.items()} | {
        f"users_{name}": with_users(made) for name, made in worlds.items()
    }
    worlds |= {
        f"one_pool_{name}": world(asked.jobs, asked.nodes, full=full, impatient=False, types=TYPES[:1])
        for name, full in (("empty_cluster", False), ("full_cluster", True))
    }
    worlds |= {
        f"{kind}_{name}": changed(worlds[name])
        for kind, changed in (("opportunistic", with_opportunistic), ("budgets", with_budgets))
        for name in ("empty_cluster", "full_cluster")
    }
    figures = {name: measure(made, asked.repeats) for name, made in worlds.items()}
    figures["preempting"] = measure(settled(worlds["full_cluster"]), asked.repeats)
    figures["elastic"] = measure(elastic(asked.nodes), asked.repeats)
    figures["elastic_crowded"] = measure(elastic_crowded(asked.nodes), asked.repeats)
    targets = {f"{name}_p99_ms": f"≤ {BUDGET_MS}" for name in figures}
    figures["reclaiming"] = measure(reclaiming(asked.nodes), asked.repeats)
    for name, full in (("many_empty_cluster", False), ("many_full_cluster", True)):
        figures[name] = measure(
            world(MANY_JOBS, MANY_NODES, full=full, impatient=False), max(3, asked.repeats // 3)
        )
        targets[f"{name}_p99_ms"] = f"≤ {MANY_MS:,}"
    figures |= {
        name: measure_forecast(world(jobs, nodes, full=True, impatient=False), asked.repeats)
        for name, jobs, nodes in (
            ("forecast_full_cluster", asked.jobs // 5, asked.nodes),
            ("forecast_many_ends", FORECAST_JOBS, 60),
        )
    }
    record(
        "plan_speed",
        {f"{name}_{key}": value for name, figure in figures.items() for key, value in figure.items()}
        | {"load_average": os.getloadavg()[0]},
        command=f"python -m bench.plan_speed --jobs {asked.jobs} --nodes {asked.nodes}",
        targets=targets,
    )


if __name__ == "__main__":
    main()
