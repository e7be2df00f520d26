"""Ten greedy tenants submit 900 jobs each as fast as they can; how long do forty others wait for a decision?

    python -m bench.greedy_tenants [--jobs 90] [--record]

Each of the forty submits ten jobs, spread over the time in which the flood comes in. A decision is the first thing
that the scheduler says of a job: it is placed, or a reason why it waits. Everything goes through REST, PostgreSQL and
the lifecycle on the `memory` cluster, whose learners are played (bench/played.py). Each tenant has four slots and
jobs of half a second, so what a greedy tenant submits waits in the queue for longer than the others submit.
"""

from __future__ import annotations

from bench.crowd import Request, account, crowded, options, run, show
from bench.record import percentile, record

GREEDY, GREEDY_JOBS = 10, 900
REGULAR, REGULAR_JOBS = 40, 10
SLOTS, SECONDS = 4, 0.5
SUBMITS_PER_S = 100.0
"""What the flood is taken to come in at: the regular jobs are spread over the time for which it then lasts."""


def main() -> None:
    arguments = options(__doc__)
    arguments.add_argument("--jobs", type=int, default=GREEDY_JOBS, help="of each greedy tenant")
    chosen = arguments.parse_args()
    spread_s = GREEDY * chosen.jobs / SUBMITS_PER_S
    with crowded([SLOTS * 10] * ((GREEDY + REGULAR) // 10)) as crowd:
        greedy = [account(crowd.platform, f"greedy-{number}", SLOTS) for number in range(GREEDY)]
        regular = [account(crowd.platform, f"regular-{number}", SLOTS) for number in range(REGULAR)]
        flood = [
            Request(0.0, one, f"flood-{number}", SECONDS) for number in range(chosen.jobs) for one in greedy
        ]
        others = [
            Request(spread_s * (number + place / REGULAR) / REGULAR_JOBS, one, f"run-{number}", SECONDS)
            for number in range(REGULAR_JOBS)
            for place, one in enumerate(regular)
        ]
        done = run(crowd, flood, others, connections=chosen.connections, within_s=120 + len(flood))
    regular_waits = [one for one in done.waits if one.tenant.startswith("regular-")]
    waits = [one.decided_s for one in regular_waits]
    placed = [one.placed_s for one in regular_waits]
    theirs = [one.decided_s for one in done.waits if one.tenant.startswith("greedy-")]
    figures = {
        "jobs": len(flood) + len(others),
        "regular_decision_p50_s": percentile(waits, 0.5),
        "regular_decision_p99_s": percentile(waits, 0.99),
        "regular_decision_max_s": max(waits),
        "regular_placed_p50_s": percentile(placed, 0.5),
        "regular_placed_p99_s": percentile(placed, 0.99),
        "greedy_decision_p99_s": percentile(theirs, 0.99),
        "regular_submit_p99_ms": percentile(done.submits[1], 0.99) * 1000,
        "submitting_s": done.submitting_s,
        "total_s": done.total_s,
        "decisions_per_s": done.decisions / done.total_s,
    }
    figures |= {f"{role}_cpu_ms_per_job": ms for role, ms in sorted(done.cpu_ms.items())}
    if not chosen.record:
        show(figures)
        return
    record(
        "greedy_tenants",
        figures,
        command=f"python -m bench.greedy_tenants --jobs {chosen.jobs} --record",
        targets={"regular_decision_p99_s": "≤ 2"} if chosen.jobs == GREEDY_JOBS else {},
    )


if __name__ == "__main__":
    main()
