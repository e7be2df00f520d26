"""How long plan() takes for a full queue: 10,000 waiting jobs on 1,250 nodes of 8.

Three states: an empty cluster (thousands of starts), a full one (everything explained), and a full one with
queue heads whose starvation timeout is over.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from datetime import UTC, datetime, timedelta

from bench.record import record
from gpu_scheduler.cycle import plan
from gpu_scheduler.model import Gang, Node, Placing, Range, Resources, Running, Share, Snapshot, TenantState
from gpu_scheduler.policies.fair_share import FairShare

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
TYPES = ("a100", "h200", "v100")
BUDGET_MS = 250


def world(jobs: int, nodes: int, *, full: bool, impatient: bool, seed: int = 7) -> Snapshot:
    """A mixed queue of 50 tenants. full: only two slots of each node are free."""
    chance = random.Random(seed)
    machines = tuple(Node.with_slots(f"node-{i:05}", TYPES[i % 3], 8) for i in range(nodes))
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
            slot_type=chance.choice([*TYPES, None]),
            placing=chance.choice(list(Placing)),
            priority=chance.randint(0, 3),
            queued_at=NOW - timedelta(seconds=chance.randint(0, 100_000)),
        )
        for i in range(jobs)
    )
    shares = tuple(Share(t, s, 2000, used.get((t, s), 0)) for t in tenants for s in TYPES)
    heads = {job.job: NOW - timedelta(hours=1) for job in waiting[:100]} if impatient else {}
    return Snapshot(
        NOW, machines, waiting, busy, shares, FairShare(), tuple(map(TenantState, tenants)), heads
    )


def _running(job: str, tenant: str, node: Node) -> Running:
    gang = Gang(job, tenant, Range.fixed(1), Resources(7), node.slot_type, Placing.PACK, 1, NOW)
    return Running(gang, node.slot_type, (node.name,), NOW)


def measure(snapshot: Snapshot, repeats: int) -> dict[str, float]:
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        made = plan(snapshot)
        times.append((time.perf_counter() - began) * 1000)
    return {
        "p50_ms": round(statistics.median(times), 1),
        "max_ms": round(max(times), 1),
        "starts": len(made.starts),
        "waits": len(made.waits),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--nodes", type=int, default=1_250)
    parser.add_argument("--repeats", type=int, default=9)
    asked = parser.parse_args()
    figures = {
        name: measure(world(asked.jobs, asked.nodes, full=full, impatient=impatient), asked.repeats)
        for name, full, impatient in (
            ("empty_cluster", False, False),
            ("full_cluster", True, False),
            ("full_cluster_impatient_heads", True, True),
        )
    }
    record(
        "plan_speed",
        {f"{name}_{key}": value for name, figure in figures.items() for key, value in figure.items()},
        command=f"python -m bench.plan_speed --jobs {asked.jobs} --nodes {asked.nodes}",
        aims={f"{name}_p50_ms": BUDGET_MS for name in figures},
    )


if __name__ == "__main__":
    main()
