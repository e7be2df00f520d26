"""Scheduling policies on public traces, by the simulator: production's plan() and policies, in rounds of 60 s.

    python -m bench.traces --trace philly
    python -m bench.traces --trace pollux

philly: 82,247 jobs of 2017, their virtual clusters as tenants, on a cluster that is smaller than theirs was, so that
jobs have to wait. A tenant is entitled to the part of the cluster that its virtual cluster had, and can use more while
others leave it.

pollux: checks the simulator. Workloads with measured profiles on 16 nodes of 4 GPUs under Tiresias, against the average
completion times that the Pollux artifact published for it.

Traces are read from ../shared/traces, or the folder named by --traces.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from bench import plot, pollux
from bench.drf import Drf
from bench.oracle import ShortestFirst
from bench.record import percentile, record
from bench.tiresias import Tiresias
from gpu_scheduler.cycle import plan
from gpu_scheduler.model import Gang, Node, PlacementStrategy, Plan, QuotaUse, Range, Resources, Snapshot
from gpu_scheduler.policies.base import Policy
from gpu_scheduler.policies.selection import policy_from
from gpu_scheduler.simulation import Costs, Rate, Scenario, SimulatedJob, simulate
from gpu_scheduler.simulation.report import completion_times, finish_time_ratios, report

ROOT = Path(__file__).resolve().parents[1]
TRACES = ROOT.parent / "shared" / "traces"
SLOTS, TYPE = 8, "gpu"
NEVER_BINDS = 1_000_000
COSTS = Costs(start_s=30, restore_s=30, checkpoint_s=10)
POLICIES = "fifo,fifo_backfill,fair_share,drf,tiresias,shortest_first"
H = 3600
BEGIN = datetime(2020, 1, 1, tzinfo=UTC)


def read(folder: Path, name: str) -> list[dict[str, str]]:
    """The rows of a trace's file. Ends the program with a clear error where it is absent."""
    path = folder / name
    if not path.is_file():
        sys.exit(
            f"{path} is missing: put the public traces into {folder}, or name their folder with --traces"
        )
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


class Timed:
    """plan(), with the CPU seconds that each call took."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def __call__(self, snapshot: Snapshot) -> Plan:
        began = time.thread_time()
        made = plan(snapshot, explained=False)
        self.seconds.append(time.thread_time() - began)
        return made


def philly(folder: Path, nodes: int, first_day: str, days: int) -> tuple[Scenario, dict[str, float]]:
    """The jobs of these days on so many nodes of 8 GPUs, under fifo, and how many GPUs each tenant is entitled to.

    Quotas are in proportion to the virtual clusters, and so large that they never bind: only nodes are scarce. The 18
    jobs of four virtual clusters whose size is not public are left out.
    """
    sizes = {row["vc"]: int(row["node num"]) for row in read(folder, "philly/philly_vc_nodes.csv")}
    begin = datetime.fromisoformat(first_day).replace(tzinfo=UTC)
    rows = [row for row in read(folder, "philly/philly_jobs.csv") if row["cluster"] in sizes]
    jobs = []
    for number, row in enumerate(sorted(rows, key=lambda row: row["timestamp"])):
        at = datetime.fromisoformat(row["timestamp"]).replace(tzinfo=UTC)
        if begin <= at < begin + timedelta(days=days):
            gang = gang_of(f"job-{number:05}", row["cluster"], int(row["num_gpus"]), at)
            jobs.append(SimulatedJob(gang, float(row["duration"]), COSTS))
    quotas = tuple(QuotaUse(vc, TYPE, size * nodes * SLOTS, 0) for vc, size in sorted(sizes.items()))
    nominal = {vc: size * nodes * SLOTS / sum(sizes.values()) for vc, size in sizes.items()}
    return Scenario(cluster(nodes), tuple(jobs), quotas, policy_from("fifo")), nominal


def cluster(nodes: int, slots: int = SLOTS) -> tuple[Node, ...]:
    return tuple(Node.with_slots(f"node-{i:03}", TYPE, slots) for i in range(nodes))


def gang_of(job: str, tenant: str, gpus: int, at: datetime) -> Gang:
    """Learners of a whole node's GPUs at most, as few as possible."""
    learners = Range.fixed(-(-gpus // SLOTS))
    resources = Resources(gpus // learners.min)
    return Gang(job, tenant, learners, resources, TYPE, PlacementStrategy.PACK, 1, at)


def alone(scenario: Scenario, nominal: Mapping[str, float]) -> dict[str, float]:
    """Completion times in seconds if every tenant had its own part of the cluster, with fifo_backfill. The part is
    rounded up to nodes, and holds at least the tenant's largest job."""
    jobs: defaultdict[str, list[SimulatedJob]] = defaultdict(list)
    for job in scenario.jobs:
        jobs[job.gang.tenant].append(job)
    found: dict[str, float] = {}
    for tenant, own in jobs.items():
        slots = max(nominal[tenant], *(job.gang.asked for job in own), 1)
        part = replace(
            scenario,
            nodes=cluster(-int(-slots // SLOTS)),
            jobs=tuple(own),
            policy=policy_from("fifo_backfill"),
        )
        found |= completion_times(simulate(part), part)
    return found


def measure(
    scenario: Scenario, nominal: Mapping[str, float], reference: Mapping[str, float]
) -> tuple[dict[str, float], dict[str, float]]:
    """The figures of one policy, and completion times by job in seconds."""
    timed = Timed()
    outcome = simulate(scenario, timed)
    figures, times = report(outcome, scenario, nominal), completion_times(outcome, scenario)
    ratios = finish_time_ratios(times, reference)
    by_tenant: defaultdict[str, list[str]] = defaultdict(list)
    for job in scenario.jobs:
        if job.gang.job in ratios:
            by_tenant[job.gang.tenant].append(job.gang.job)
    tenant_ratios = [
        sum(times[job] for job in jobs) / sum(reference[job] for job in jobs) for jobs in by_tenant.values()
    ]
    return {
        "average_h": figures.average_s / H,
        "median_h": figures.median_s / H,
        "p99_h": figures.p99_s / H,
        "wait_average_h": figures.average_wait_s / H,
        "wait_p99_h": figures.p99_wait_s / H,
        "makespan_days": figures.makespan_s / H / 24,
        "utilization": figures.utilization,
        "utilization_while_jobs_wait": figures.utilization_while_waiting,
        "later_than_alone_share": sum(ratio > 1 for ratio in ratios.values()) / max(1, len(ratios)),
        "worst_tenant_ratio": max(tenant_ratios),
        "jain": figures.jain,
        "guarantee_violation_h": figures.guarantee_violation_h,
        "stops": figures.stops,
        "lost_gpu_h": figures.lost_slot_h,
        "unfinished": figures.unfinished,
        "plans": outcome.plans,
        "plan_cpu_p50_ms": percentile(timed.seconds, 0.5) * 1000,
        "plan_cpu_p99_ms": percentile(timed.seconds, 0.99) * 1000,
    }, times


def policy_named(name: str, scenario: Scenario) -> Policy:
    if name == ShortestFirst.name:
        return ShortestFirst({job.gang.job: job.work_s for job in scenario.jobs})
    ours = {Tiresias.name: Tiresias, Drf.name: Drf}
    return ours[name]() if name in ours else policy_from(name)


def compare_on_philly(asked: argparse.Namespace) -> None:
    scenario, nominal = philly(asked.traces, asked.nodes, asked.first_day, asked.days)
    names = asked.policies.split(",")
    reference = alone(scenario, nominal)
    figures: dict[str, float] = {}
    curves: dict[str, list[float]] = {}
    for name in names:
        found, times = measure(replace(scenario, policy=policy_named(name, scenario)), nominal, reference)
        figures |= {f"{name} {figure}": value for figure, value in found.items()}
        curves[name] = [seconds / H for seconds in times.values()]
    title = f"Completed jobs, {len(scenario.jobs):,} jobs on {asked.nodes * SLOTS} GPUs"
    plot.shares(ROOT / "docs/images/traces-philly.svg", title, "hours from arrival to end", curves)
    details = {"columns": names, "jobs": len(scenario.jobs), "gpus": asked.nodes * SLOTS}
    record("traces_philly", figures, command=command(), details=details)


def pollux_workload(folder: Path, path: Path) -> Scenario:
    """160 jobs in 8 hours at load 1; a learner has one GPU. As in the artifact: rounds of 60 s, 30 s for each start,
    and a stop takes no time."""
    known, jobs = {}, []
    for row in read(path.parent, path.name):
        application = pollux.application(row["application"], folder)
        gpus, batch = int(row["num_replicas"]), int(row["batch_size"])
        known[row["name"]] = (application, batch)
        at = BEGIN + timedelta(seconds=int(row["time"]))
        gang = Gang(row["name"], "all", Range.fixed(gpus), Resources(1), TYPE, PlacementStrategy.PACK, 1, at)
        jobs.append(SimulatedJob(gang, application.steps(gpus, batch), Costs(start_s=30, restore_s=30)))

    def rate(gang: Gang, nodes: tuple[str, ...], done: float) -> Rate:
        application, batch = known[gang.job]
        return Rate(application.steps_per_s(pollux.placement_of(nodes), batch))

    quotas = (QuotaUse("all", TYPE, NEVER_BINDS, 0),)
    return Scenario(cluster(16, slots=4), tuple(jobs), quotas, Tiresias(), rate=rate, begin=BEGIN)


def check_on_pollux(asked: argparse.Namespace) -> None:
    """Every workload that is present at each load. error: of the average completion time, against the published one."""
    figures: dict[str, float] = {}
    columns = ("simulated_s", "published_s", "error")
    for load, workloads in (("0.5", "workloads-0.5"), ("1.0", "workloads"), ("2.0", "workloads-2.0")):
        published_in = asked.traces / f"pollux/results-jobload/tiresias-{load}/summary.json"
        paths = sorted((asked.traces / "pollux" / workloads).glob("workload-*.csv"))
        if not paths or not published_in.is_file():
            sys.exit(f"{published_in.parents[2]} lacks {workloads} or its published results: see --traces")
        published = json.loads(published_in.read_text())["avgs"]
        averages = []
        for path in paths:
            scenario = pollux_workload(asked.traces, path)
            times = completion_times(simulate(scenario), scenario)
            averages.append((path.stem, sum(times.values()) / len(times), published[path.stem]))
        ours, theirs = (sum(each) / len(paths) for each in list(zip(*averages, strict=True))[1:])
        for name, one, other in [*averages, (f"mean of {len(paths)}", ours, theirs)]:
            values = (one, other, one / other - 1)
            figures |= {
                f"{column} {load} {name}": value for column, value in zip(columns, values, strict=True)
            }
    record(
        "traces_pollux",
        figures,
        command=command(),
        targets={"error 1.0 mean of 8": "± 0.03"},
        details={"columns": columns},
    )


def command(module: str = "bench.traces") -> str:
    """This run's command; the folder of the traces differs from machine to machine."""
    words = sys.argv[1:]
    words = [word for at, word in enumerate(words) if "--traces" not in (word, words[at - 1])]
    return f"python -m {module} {' '.join(words)}".strip()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trace", choices=["philly", "pollux"], required=True)
    parser.add_argument("--traces", type=Path, default=TRACES, help="folder of the public traces")
    only = parser.add_argument_group("philly only")
    only.add_argument("--policies", default=POLICIES)
    only.add_argument("--nodes", type=int, default=80)
    only.add_argument("--first-day", default="2017-09-04")
    only.add_argument("--days", type=int, default=120)
    asked = parser.parse_args()
    compare = compare_on_philly if asked.trace == "philly" else check_on_pollux
    compare(asked)


if __name__ == "__main__":
    main()
