"""Elastic jobs on the workloads of the Pollux artifact, by the simulator.

    python -m bench.elastic

Each job may have from one to all GPUs, one for a learner, and any batch with which it was validated. What the scheduler
knows of a job is what was measured until then: the times of steps at the sizes in which it ran, and the noise of its
gradients; alone: of this job, history: of all jobs of the same program. The batch is chosen again at each start and
each epoch. Compared with the average completion times that the artifact published for Pollux on the same workloads.
(Pollux uses no history, so "alone" is the comparison like for like.)

Traces are read from ../shared/traces, or the folder named by --traces.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path

from bench import plot, pollux
from bench.record import percentile, record
from bench.traces import BEGIN, NEVER_BINDS, ROOT, TRACES, TYPE, Timed, cluster, read
from gpu_scheduler.elastic.performance import Sample, choose_batch, fit
from gpu_scheduler.model import (
    Gang,
    GradientNoise,
    PlacementStrategy,
    Profile,
    QuotaUse,
    Range,
    Resources,
    StepTimes,
)
from gpu_scheduler.policies.fair_share import FairShare
from gpu_scheduler.policies.sizes import Resizes
from gpu_scheduler.simulation import Costs, Rate, Scenario, SimulatedJob, simulate
from gpu_scheduler.simulation.report import completion_times

NODES, GPUS = 16, 4
RESTART_S = 30
LOADS = {"0.5": "workloads-0.5", "1.0": "workloads", "2.0": "workloads-2.0"}
VARIANTS = {"alone": False, "history": True}
"""Each job begins knowing nothing; or with what was measured of earlier jobs of the same program."""
COLUMNS = (
    "published_s",
    *(
        f"{variant}_{figure}"
        for variant in VARIANTS
        for figure in ("average_s", "against_published", "restarts")
    ),
)
PUBLISHED = "pollux"
"""The policy of the artifact whose averages are compared with."""


@dataclass(slots=True)
class Measured:
    """What was measured of a program's steps, by one job or by all of the same program. noise: that of the first epoch
    in which it was."""

    samples: dict[tuple[int, int, float, int], Sample] = field(default_factory=dict)
    times: StepTimes | None = None
    largest: int = 0
    noise: GradientNoise | None = None

    def add(self, sample: Sample) -> None:
        key = (sample.learners, sample.nodes, sample.micro_batch, sample.accumulations)
        if key not in self.samples:
            self.samples[key] = sample
            self.times = fit(self.samples.values())
            self.largest = max(self.largest, sample.learners)


@dataclass(slots=True)
class Program:
    """One job's program, and what is known of it."""

    application: pollux.Application
    measured: Measured
    profile: Profile = field(init=False)
    noise: GradientNoise | None = None

    def __post_init__(self) -> None:
        most = self.application.most_per_gpu
        self.profile = Profile(self.application.batches, most_per_learner=most)

    def rate(self, nodes: tuple[str, ...], done: float) -> Rate:
        """From here to the end of the epoch."""
        placement, epoch = pollux.placement_of(nodes), self.application.epoch_at(done)
        rate = self.application.useful_steps_per_s(placement, self.batch(placement), epoch)
        return Rate(rate, self.application.progress[epoch])

    def batch(self, placement: tuple[int, ...]) -> int:
        return choose_batch(self.profile, sum(placement), len(placement)).batch

    def known(self, nodes: tuple[str, ...], done: float) -> Profile:
        """After some steps on these nodes, or before it starts."""
        if nodes:
            placement, epoch = pollux.placement_of(nodes), self.application.epoch_at(done)
            batch = self.batch(placement)
            self.measured.add(self.application.sample(placement, batch))
            self.noise = self.application.noise(batch, epoch)
            self.measured.noise = self.measured.noise or self.noise
        self.profile = replace(
            self.profile,
            step_times=self.measured.times,
            noise=self.noise or self.measured.noise,
            largest=self.measured.largest,
        )
        return self.profile


def workload(folder: Path, path: Path, policy: FairShare, *, history: bool) -> Scenario:
    """160 jobs in 8 hours at load 1, on 16 nodes of 4 GPUs. history: what jobs measure counts for all of the same
    program; else each one begins knowing nothing."""
    programs: dict[str, Program] = {}
    measured: defaultdict[str, Measured] = defaultdict(Measured)
    jobs = []
    for row in read(path.parent, path.name):
        name = row["application"]
        application = pollux.application(name, folder)
        program = Program(application, measured[name] if history else Measured())
        programs[row["name"]] = program
        at = BEGIN + timedelta(seconds=int(row["time"]))
        gang = Gang(
            row["name"],
            "all",
            Range(1, NODES * GPUS),
            Resources(1),
            TYPE,
            PlacementStrategy.PACK,
            1,
            at,
            elastic=program.profile,
        )
        work = program.application.progress[-1]
        jobs.append(SimulatedJob(gang, work, Costs(start_s=RESTART_S, restore_s=RESTART_S)))
    return Scenario(
        cluster(NODES, slots=GPUS),
        tuple(jobs),
        (QuotaUse("all", TYPE, NEVER_BINDS, 0),),
        policy,
        rate=lambda gang, nodes, done: programs[gang.job].rate(nodes, done),
        known=lambda gang, nodes, done: programs[gang.job].known(nodes, done),
        begin=BEGIN,
    )


def measure(folder: Path, path: Path, policy: FairShare, *, history: bool) -> dict[str, float]:
    """Completion times, restarts, and what a plan took."""
    scenario, timed = workload(folder, path, policy, history=history), Timed()
    outcome = simulate(scenario, timed)
    times = list(completion_times(outcome, scenario).values())
    return {
        "average_s": sum(times) / len(times),
        "p99_h": percentile(times, 0.99) / 3600,
        "restarts": len(outcome.runs) / len(times) - 1,
        "plan_cpu_p99_ms": percentile(timed.seconds, 0.99) * 1000,
    }


def published(folder: Path, load: str) -> Mapping[str, float]:
    path = folder / f"pollux/results-jobload/{PUBLISHED}-{load}/summary.json"
    if not path.is_file():
        sys.exit(
            f"{path} is missing: put the public traces into {folder}, or name their folder with --traces"
        )
    averages: Mapping[str, float] = json.loads(path.read_text())["avgs"]
    return averages


def draw(figures: Mapping[str, float]) -> None:
    """Each workload's average completion time as a multiple of what was published for Pollux."""
    key = "history_against_published"
    workloads = [name.removeprefix(f"{key} ") for name in figures if name.startswith(key)]
    groups = {
        workload.replace(" workload-", ": "): {
            name: figures[f"{name}_against_published {workload}"] for name in VARIANTS
        }
        for workload in workloads
    }
    title = "Average completion time / that published for Pollux, by load: workload"
    plot.bars(ROOT / "docs/images/elastic-pollux.svg", title, groups, line=1)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--traces", type=Path, default=TRACES, help="folder of the public traces")
    asked = parser.parse_args()
    policy = FairShare(resizes=Resizes(cost_s=RESTART_S))
    figures: dict[str, float] = {}
    for load, folder in LOADS.items():
        known = published(asked.traces, load)
        paths = sorted((asked.traces / "pollux" / folder).glob("workload-*.csv"))
        for path in paths:
            row = {"published_s": known[path.stem]}
            for name, history in VARIANTS.items():
                found = measure(asked.traces, path, policy, history=history)
                row |= {f"{name}_{key}": value for key, value in found.items()}
                row[f"{name}_against_published"] = found["average_s"] / known[path.stem]
            print(load, path.stem, *(f"{key}={value:,.2f}" for key, value in row.items()), flush=True)
            figures |= {f"{key} {load} {path.stem}": value for key, value in row.items()}
    draw(figures)
    targets = {key: "≤ 1" for key in figures if "against_published" in key}
    baseline = "published: Pollux itself, as its artifact gives it for the same workloads"
    record(
        "elastic",
        figures,
        command="python -m bench.elastic",
        targets=targets,
        baseline=baseline,
        details={"columns": COLUMNS},
    )


if __name__ == "__main__":
    main()
