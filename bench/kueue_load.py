"""Kueue's own performance test through our API: 15,000 workloads in 30 queues, and how long until all are over.

    python -m bench.kueue_load [--workloads 600] [--record]

The generator is that of Kueue's `test/performance/scheduler` (baseline): five cohorts of six queues with 20 CPUs each
that may borrow 100, and per queue 350 small workloads (1 CPU, 200 ms, one every 100 ms), 100 medium (5 CPUs, 500 ms,
every 500 ms) and 50 large (20 CPUs, 1 s, every 1.2 s), the larger with the higher priority. Kueue's mean for it is
351.1 s, its limit 425 s; what the slots allow is 66 s. As there, the jobs' processes are played (bench/played.py);
submits go through REST, and each decision and state is committed to PostgreSQL. A smaller number of workloads has as
many queues with the first of each class, at the same rates.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from bench.crowd import Account, Request, account, crowded, options, run, show
from bench.record import percentile, record

COHORTS, QUEUES = 5, 6
NOMINAL, BORROWS = 20, 100
WORKLOADS = 15_000


@dataclass(frozen=True)
class Class:
    """Workloads of one size: count per queue of the whole test, one every `every_s`."""

    name: str
    count: int
    cpus: int
    seconds: float
    every_s: float
    priority: str


CLASSES = (
    Class("small", 350, 1, 0.2, 0.1, "low"),
    Class("medium", 100, 5, 0.5, 0.5, "normal"),
    Class("large", 50, 20, 1.0, 1.2, "high"),
)


def workloads(queue: Account, share: float) -> list[Request]:
    """Those of one queue; share: how much of the whole test, up to 1."""
    return [
        Request(
            at_s=number * size.every_s,
            account=queue,
            name=f"{size.name}-{number}",
            seconds=size.seconds,
            cpus=size.cpus,
            priority=size.priority,
        )
        for size in CLASSES
        for number in range(math.ceil(size.count * share))
    ]


def least_s(requests: Sequence[Request]) -> float:
    """The time in which the slots could do this work, all cohorts alike."""
    return sum(one.cpus * one.seconds for one in requests) / (COHORTS * QUEUES * NOMINAL)


def main() -> None:
    arguments = options(__doc__)
    arguments.add_argument("--workloads", type=int, default=WORKLOADS)
    chosen = arguments.parse_args()
    if not 1 <= chosen.workloads <= WORKLOADS:
        arguments.error(f"--workloads: must be 1 to {WORKLOADS}, is {chosen.workloads}")
    with crowded([QUEUES * NOMINAL] * COHORTS) as crowd:
        queues = [
            account(
                crowd.platform,
                f"queue-{cohort}-{number}",
                NOMINAL,
                cohort=f"cohort-{cohort}",
                borrows=BORROWS,
            )
            for cohort in range(COHORTS)
            for number in range(QUEUES)
        ]
        requests = [one for queue in queues for one in workloads(queue, chosen.workloads / WORKLOADS)]
        done = run(crowd, requests, connections=chosen.connections, within_s=60 + len(requests))
    figures = {
        "workloads": len(requests),
        "total_s": done.total_s,
        "workloads_per_s": len(requests) / done.total_s,
        "decisions_per_s": done.decisions / done.total_s,
        "commits_per_workload": done.commits / len(requests),
        "submitting_s": done.submitting_s,
        "submit_p99_ms": percentile(done.submits[0], 0.99) * 1000,
        "least_s": least_s(requests),
        "ratio_to_kueue": done.total_s / len(requests) * WORKLOADS / 351.1,
    }
    for size in CLASSES:
        waits = [one.placed_s for one in done.waits if one.name.startswith(f"{size.name}-")]
        figures[f"{size.name}_to_placed_mean_s"] = statistics.mean(waits)
    figures |= {f"{role}_cpu_ms_per_workload": ms for role, ms in sorted(done.cpu_ms.items())}
    if not chosen.record:
        show(figures)
        return
    record(
        "kueue_load",
        figures,
        command=f"python -m bench.kueue_load --workloads {chosen.workloads} --record",
        baseline="ratio_to_kueue: Kueue's published mean of 351.1 s for 15,000 workloads, on its own machine",
        targets={"total_s": "≤ 120"} if len(requests) == WORKLOADS else {},
    )


if __name__ == "__main__":
    main()
