"""Does a batch that may change let a cluster complete more jobs? The study of elastic_throughput, done again.

    python -m bench.elastic_batch

40 GPUs on 10 nodes; jobs of five measured programs arrive for 8 hours and need 20 to 120 minutes on one GPU; a job has
at most 10 GPUs, GPUs are divided every 10 minutes, a restart takes 30 s. Progress counts samples, whatever the batch,
as the paper assumes; gradients are not accumulated, so a large fixed batch needs many GPUs at once. The batch is free
in the validated range, or fixed: to its largest, a random or its smallest value. drop: a job that an interval does not
admit leaves; queue: it waits. Means of five seeds.

Traces are read from ../shared/traces, or the folder named by --traces.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from bench import plot, pollux
from bench.elastic_throughput import ElasticThroughput
from bench.record import record
from bench.traces import BEGIN, NEVER_BINDS, ROOT, TRACES, TYPE, cluster
from gpu_scheduler.model import Gang, PlacementStrategy, QuotaUse, Range, Resources
from gpu_scheduler.simulation import Costs, Rate, Scenario, SimulatedJob, simulate
from gpu_scheduler.simulation.report import completion_times

PROGRAMS = ("bert", "cifar10", "deepspeech2", "imagenet", "yolov3")
NODES, GPUS, MOST = 10, 4, 10
HOURS, EVERY_S, RESTART_S = 8, 600, 30
ARRIVALS = {"low": (20, 20), "high": (60, 60), "bursty": (180, 20)}
"""Jobs in an hour: in the first quarter of each hour, and in the rest of it."""
BATCHES = ("elastic", "fixed_max", "fixed_random", "fixed_min")
SEEDS = range(5)


@dataclass(frozen=True)
class Job:
    """A job and the batches that it may have."""

    name: str
    at_s: float
    application: pollux.Application
    minutes: float
    batches: tuple[int, ...]

    def throughput(self, placement: tuple[int, ...]) -> float:
        """Samples in a second at the best of its batches; 0 where none runs."""
        return max(self.application.samples_per_s(placement, batch) for batch in self.batches)

    def alone(self) -> float:
        """Samples in a second on one GPU, at the best of all batches."""
        every = all_batches(self.application)
        return max(self.application.samples_per_s((1,), batch) for batch in every)

    def speeds(self) -> list[float]:
        packed = [(GPUS,) * (n // GPUS) + ((n % GPUS,) if n % GPUS else ()) for n in range(1, MOST + 1)]
        return [self.throughput(placement) / self.alone() for placement in packed]


def all_batches(application: pollux.Application) -> tuple[int, ...]:
    """16 of the validated range, up to what MOST GPUs hold."""
    least = application.batches.min
    most = min(application.batches.max, MOST * application.most_per_gpu)
    return tuple(sorted({round(least * (most / least) ** (n / 15)) for n in range(16)}))


def jobs(folder: Path, arrivals: str, batch: str, seed: int) -> Iterator[Job]:
    """The same jobs for each kind of batch."""
    first, rest = ARRIVALS[arrivals]
    drawn, at_s = random.Random(seed), 0.0
    number = 0
    while True:
        at_s += drawn.expovariate((first if at_s % 3600 < 900 else rest) / 3600)
        if at_s >= HOURS * 3600:
            return
        application = pollux.application(drawn.choice(PROGRAMS), folder)
        minutes, every = drawn.uniform(20, 120), all_batches(application)
        fixed = {"fixed_max": every[-1], "fixed_random": drawn.choice(every), "fixed_min": every[0]}
        yield Job(
            f"job-{number:04}", at_s, application, minutes, (fixed[batch],) if batch in fixed else every
        )
        number += 1


def scenario(made: list[Job], *, drop: bool) -> Scenario:
    simulated = []
    speeds = {job.name: job.speeds() for job in made}
    by_name = {job.name: job for job in made}
    for job in made:
        runs_on = [n for n, speed in enumerate(speeds[job.name], start=1) if speed]
        gang = Gang(
            job.name,
            "all",
            Range(runs_on[0], runs_on[-1]),
            Resources(1),
            TYPE,
            PlacementStrategy.PACK,
            1,
            BEGIN + timedelta(seconds=job.at_s),
        )
        waits_at_most_s = EVERY_S + 1.0 if drop else None
        costs = Costs(start_s=RESTART_S, restore_s=RESTART_S)
        simulated.append(SimulatedJob(gang, job.minutes * 60, costs, waits_at_most_s))

    def rate(gang: Gang, nodes: tuple[str, ...], done: float) -> Rate:
        job = by_name[gang.job]
        return Rate(job.throughput(pollux.placement_of(nodes)) / job.alone())

    policy = ElasticThroughput(speeds, EVERY_S)
    quotas = (QuotaUse("all", TYPE, NEVER_BINDS, 0),)
    return Scenario(
        cluster(NODES, slots=GPUS), tuple(simulated), quotas, policy, round_s=0, rate=rate, begin=BEGIN
    )


def measure(folder: Path, arrivals: str, batch: str, *, drop: bool) -> dict[str, float]:
    """Means over the seeds."""
    completed, minutes, left = [], [], []
    end = BEGIN + timedelta(hours=HOURS)
    for seed in SEEDS:
        made = scenario(list(jobs(folder, arrivals, batch, seed)), drop=drop)
        outcome = simulate(made)
        assert not outcome.unfinished
        times = completion_times(outcome, made)
        completed.append(sum(at <= end for at in outcome.completed.values()))
        minutes.append(sum(times.values()) / max(1, len(times)) / 60)
        left.append(len(outcome.left) / len(made.jobs))
    count = len(SEEDS)
    return {
        "completed_in_8_h": sum(completed) / count,
        "average_min": sum(minutes) / count,
        "left_share": sum(left) / count,
    }


def draw(figures: Mapping[str, float]) -> None:
    """How many jobs each kind of batch completes, where jobs wait."""
    groups = {
        f"{arrivals} arrivals": {
            batch: figures[f"{batch} completed_in_8_h {arrivals} queue"] for batch in BATCHES
        }
        for arrivals in ARRIVALS
    }
    plot.bars(ROOT / "docs/images/elastic-batch.svg", "Jobs completed in eight hours, by batch", groups)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--traces", type=Path, default=TRACES, help="folder of the public traces")
    asked = parser.parse_args()
    figures: dict[str, float] = {}
    for arrivals in ARRIVALS:
        for mode in ("drop", "queue"):
            row = {batch: measure(asked.traces, arrivals, batch, drop=mode == "drop") for batch in BATCHES}
            for batch, found in row.items():
                figures |= {f"{batch} {key} {arrivals} {mode}": value for key, value in found.items()}
                ratio = row["elastic"]["completed_in_8_h"] / found["completed_in_8_h"]
                figures[f"{batch} elastic_completes_times {arrivals} {mode}"] = ratio
            print(arrivals, mode, {batch: round(found["completed_in_8_h"]) for batch, found in row.items()})
    draw(figures)
    targets = {f"fixed_max elastic_completes_times high {mode}": "≥ 1.8" for mode in ("drop", "queue")}
    record(
        "elastic_batch",
        figures,
        command="python -m bench.elastic_batch",
        targets=targets,
        details={"columns": BATCHES},
    )


if __name__ == "__main__":
    main()
