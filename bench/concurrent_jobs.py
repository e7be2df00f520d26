"""10, 20, 30 and 40 identical jobs at once on 40 CPU slots: does a busy platform slow its jobs down?

FfDL's table gives mean, min, max and standard deviation of completion; ours too, launch time apart. The load
sleeps, so two cores suffice and what is seen is the platform's own cost. The baseline is the mean at 10 jobs in
the same run.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from datetime import datetime
from pathlib import Path
from typing import Any

from bench.record import record
from tests.platform import Client, running

PROGRAM = """\
import time
from learner_agent import training
started = time.monotonic()
for step in range(1, {steps} + 1):
    time.sleep(max(0.0, started + step - time.monotonic()))
    print(f"step {{step}}", flush=True)
    training.report(step, total={steps}, elapsed=time.monotonic() - started)
"""


def spec(seconds: int, name: str) -> dict[str, Any]:
    return {
        "apiVersion": "luthier/v1",
        "name": name,
        "framework": "plain",
        "code": {"files": {"main.py": PROGRAM.format(steps=seconds)}},
        "command": "python main.py",
        "resources": {"learners": 1, "gpus": 0, "cpus": 1},
    }


def batch(client: Client, count: int, seconds: int) -> tuple[list[float], list[float]]:
    """Submit count jobs at once; seconds each was PROCESSING until COMPLETED, and seconds from submit to PROCESSING."""
    jobs = [client.submit(spec(seconds, f"sleep-{count}-{place}"))["id"] for place in range(count)]
    ended = [client.wait_state(job, "COMPLETED", within_s=seconds * 3 + 120) for job in jobs]

    def gap(job: dict[str, Any], start: str, end: str) -> float:
        return (datetime.fromisoformat(job[end]) - datetime.fromisoformat(job[start])).total_seconds()

    return [gap(job, "started_at", "finished_at") for job in ended], [
        gap(job, "created_at", "started_at") for job in ended
    ]


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--seconds", type=int, default=120)
    arguments.add_argument("--counts", type=int, nargs="+", default=[10, 20, 30, 40])
    chosen = arguments.parse_args()
    figures: dict[str, float] = {}
    nodes = ",".join(f"node-{letter}:cpu:10" for letter in "abcd")
    with tempfile.TemporaryDirectory() as folder, running(Path(folder) / "data", nodes=nodes) as platform:
        client = platform.client()
        batch(client, 1, 2)  # make the runtime
        for count in chosen.counts:
            completion, launch = batch(client, count, chosen.seconds)
            mean = statistics.mean(completion)
            figures |= {
                f"mean_s_{count}": mean,
                f"min_s_{count}": min(completion),
                f"max_s_{count}": max(completion),
                f"stdev_over_mean_{count}": statistics.pstdev(completion) / mean,
                f"launch_mean_s_{count}": statistics.mean(launch),
                f"launch_max_s_{count}": max(launch),
            }
            print(
                f"{count:3} jobs: mean {mean:.2f} s, launch mean {figures[f'launch_mean_s_{count}']:.2f} s",
                flush=True,
            )
    first, last = chosen.counts[0], chosen.counts[-1]
    figures[f"ratio_mean_{last}_to_{first}"] = figures[f"mean_s_{last}"] / figures[f"mean_s_{first}"]
    record(
        "concurrent_jobs",
        figures,
        command=f"python -m bench.concurrent_jobs --seconds {chosen.seconds}",
        baseline=f"mean completion of {first} jobs in the same run; a job alone sleeps {chosen.seconds} s",
        targets={f"ratio_mean_{last}_to_{first}": "≤ 1.1", f"stdev_over_mean_{last}": "≤ 0.1"},
    )


if __name__ == "__main__":
    main()
