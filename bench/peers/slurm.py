"""The platform against Slurm, in one run on the same machine: first lines, small jobs, submits.

    python -m bench.peers.slurm

Each round starts Debian's Slurm and `manage.py up`, each with one node of 40 CPUs, and lets both do the same, one after
the other; which comes first alternates. Slurm is installed if this is run by root. Figures are medians of the rounds,
first lines are taken together. `single_…` are jobs submitted one by one on so many connections; `array_…` compares with
an array of Slurm's, of which the platform has none: its figure is that of single jobs. ratio is ours by Slurm's: below
1 is better for seconds, above 1 for rates.

What the two promise differs. Here a job is on disk before its submit is answered, and its output in the database;
Slurm writes its state some seconds later, and a job's output is a file. Its submits are held (`--hold`), ours wait at a
quota of 0, so that nothing starts meanwhile.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bench.peers import slurm_cluster
from bench.peers.ours import POLL_S, WAIT_S, Ours
from bench.peers.sides import Found, alternating, figures
from bench.peers.slurm_cluster import Slurm
from bench.record import record
from tests.platform import running, wait_for

SLOTS = 40


class Theirs:
    """Slurm."""

    def __init__(self, slurm: Slurm, connections: int) -> None:
        self.slurm, self.connections = slurm, connections
        self._lines = 0
        self._line = self._script("line.sh", "echo first line")
        self._true = self._script("true.sh", "true")

    def first_line_s(self) -> float:
        self._lines += 1
        took_s = self.slurm.first_line_s(self._line, self.slurm.folder / f"line-{self._lines}.out")
        self._await_completed(self._lines)
        return took_s

    def jobs_per_s(self, count: int, *, array: bool) -> float:
        """Rate of jobs of `true`, from the first submit until the last has ended."""
        wanted, began = self.slurm.states()["COMPLETED"] + count, time.monotonic()
        if array:
            self.slurm.call(
                "sbatch", "--quiet", "--output=/dev/null", f"--array=0-{count - 1}", str(self._true)
            )
        else:
            self.slurm.submit_many(self._true, count, self.connections)
        self._await_completed(wanted)
        return count / (time.monotonic() - began)

    def submits_per_s(self, count: int) -> float:
        began = time.monotonic()
        self.slurm.submit_many(self._true, count, self.connections, "--hold")
        took_s = time.monotonic() - began
        assert self.slurm.states()["PENDING"] == count, self.slurm.states()
        return count / took_s

    def cpu_s(self) -> float:
        return self.slurm.cpu_s()

    def _await_completed(self, count: int) -> None:
        def completed() -> bool:
            found = self.slurm.states()
            assert not found["FAILED"], found
            return found["COMPLETED"] >= count

        wait_for(completed, within_s=WAIT_S, every_s=POLL_S, what=f"{count} of Slurm's jobs")

    def _script(self, name: str, command: str) -> Path:
        path = self.slurm.folder / name
        path.write_text(f"#!/bin/sh\n{command}\n")
        return path


Side = Ours | Theirs


def one_round(sides: Mapping[str, Side], place: int, chosen: argparse.Namespace, found: Found) -> None:
    def measure(figure: str, take: Callable[[Side], float]) -> None:
        for name, side in alternating(sides, place):
            value = take(side)
            found[name][figure].append(value)
            print(f"round {place + 1}: {name:6} {figure:28} {value:9.3f}", flush=True)

    for run in range(chosen.lines):
        for name, side in alternating(sides, run):
            found[name]["first_line_s"].append(side.first_line_s())

    def single(side: Side) -> float:
        before = side.cpu_s()
        rate = side.jobs_per_s(chosen.jobs, array=False)
        cpu.append((side.cpu_s() - before) / chosen.jobs)
        return rate

    cpu: list[float] = []
    measure("single_jobs_per_s", single)
    for (name, _), spent in zip(alternating(sides, place), cpu, strict=True):
        found[name]["single_job_cpu_s"].append(spent)
    # The platform has no arrays: what it did with single jobs is beside Slurm's array.
    found["ours"]["array_jobs_per_s"].append(found["ours"]["single_jobs_per_s"][-1])
    found["slurm"]["array_jobs_per_s"].append(sides["slurm"].jobs_per_s(chosen.jobs, array=True))
    print(f"round {place + 1}: slurm  array {found['slurm']['array_jobs_per_s'][-1]:.3f} jobs/s", flush=True)
    measure("submits_per_s", lambda side: side.submits_per_s(chosen.submits))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--lines", type=int, default=25, help="first lines in each round")
    parser.add_argument("--jobs", type=int, default=1_000, help="jobs of `true` in each round")
    parser.add_argument("--submits", type=int, default=10_000)
    parser.add_argument("--connections", type=int, default=4)
    chosen = parser.parse_args()
    try:
        slurm_cluster.install()
    except slurm_cluster.MissingPackages as error:
        sys.exit(str(error))
    busy = os.getloadavg()[0]
    found: Found = {"ours": defaultdict(list), "slurm": defaultdict(list)}
    room = chosen.lines + 2 * chosen.jobs + chosen.submits + 1
    for place in range(chosen.rounds):
        with (
            tempfile.TemporaryDirectory() as folder,
            slurm_cluster.running(Path(folder) / "slurm", cpus=SLOTS, jobs=room) as slurm,
            running(Path(folder) / "data", nodes=f"node-a:cpu:{SLOTS}") as platform,
        ):
            sides: dict[str, Side] = {
                "ours": Ours(platform, chosen.connections),
                "slurm": Theirs(slurm, chosen.connections),
            }
            one_round(sides, place, chosen, found)
    details: dict[str, Any] = {"columns": ["ours", "slurm", "ratio"], "values": found}
    record(
        "slurm",
        figures(found, "slurm"),
        command=f"python -m bench.peers.slurm {' '.join(sys.argv[1:])}".strip(),
        baseline="Slurm, in the same run on the same machine, where other programs kept "
        f"{busy:.1f} processes busy before it",
        targets={
            "ratio first_line_p50_s": "≤ 1",
            "ratio array_jobs_per_s": "≥ 1",
            "ratio submits_per_s": "≥ 1",
        },
        details=details,
    )


if __name__ == "__main__":
    main()
