"""The platform against Ray Jobs, in one run on the same machine: from the submit to the first line.

    python -m bench.peers.ray_jobs

A head node of Ray and `manage.py up` run side by side and take turns: a job of one process that prints a line, one at a
time, until its client has the line; both clients look every 10 ms. Who is first changes each time. Ray comes from PyPI
into an environment of its own, the first time. `ray` hands its program in with the submit (`working_dir`), as ours
does; `ray_in_place` starts a file that is there. ratio is ours by ray's: below 1 is better. line_cpu_s: CPU time of all
that each runs, from a submit until the job has ended, on average; without the clients.

What the two promise differs: see docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import os
import shlex
import statistics
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Protocol

from bench.peers import ray_cluster
from bench.peers.ours import Ours
from bench.peers.ray_cluster import Ray
from bench.peers.sides import Found, alternating, figures
from bench.record import record
from bench.submit_latency import PROGRAM
from tests.platform import running

COLUMNS = ("ours", "ray", "ray_in_place")


class Side(Protocol):
    def first_line_s(self) -> float: ...
    def cpu_s(self) -> float: ...


class Theirs:
    """Ray. handed_in: its program comes with the submit."""

    def __init__(self, ray: Ray, *, handed_in: bool) -> None:
        self.ray = ray
        code = ray.folder.with_name("program")
        code.mkdir(exist_ok=True)
        program = code / "main.py"
        program.write_text(PROGRAM)
        self._python = shlex.quote(str(ray.python))
        self._code = code if handed_in else None
        self._program = "main.py" if handed_in else shlex.quote(str(program))
        self.first_line_s()  # its own preparations, as those of ours

    def first_line_s(self) -> float:
        return self.ray.first_line_s(f"{self._python} {self._program}", self._code)

    def cpu_s(self) -> float:
        return self.ray.cpu_s()


def measure(sides: dict[str, Side], lines: int) -> Found:
    """So many first lines of each side in turn, and the CPU time of each by its side's own work."""
    found: Found = {name: defaultdict(list) for name in sides}
    cpu_s: dict[str, list[float]] = {name: [] for name in sides}
    for place in range(lines):
        for name, side in alternating(sides, place):
            before = side.cpu_s()
            found[name]["first_line_s"].append(side.first_line_s())
            cpu_s[name].append(side.cpu_s() - before)
        print(
            f"line {place + 1}: "
            + "  ".join(f"{name} {found[name]['first_line_s'][-1]:.3f} s" for name in sides)
        )
    for name, spent in cpu_s.items():
        found[name]["line_cpu_s"] = [statistics.fmean(spent)]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lines", type=int, default=50)
    chosen = parser.parse_args()
    busy = os.getloadavg()[0]
    with (
        tempfile.TemporaryDirectory() as folder,
        ray_cluster.running(Path(folder) / "ray") as ray,
        running(Path(folder) / "data") as platform,
    ):
        sides: dict[str, Side] = dict(
            zip(
                COLUMNS,
                (Ours(platform), Theirs(ray, handed_in=True), Theirs(ray, handed_in=False)),
                strict=True,
            )
        )
        found = measure(sides, chosen.lines)
    record(
        "ray_jobs",
        figures(found, "ray"),
        command=f"python -m bench.peers.ray_jobs {' '.join(sys.argv[1:])}".strip(),
        baseline=f"Ray {ray_cluster.version()}, in the same run on the same machine, where other programs kept "
        f"{busy:.1f} processes busy before it",
        details={"columns": [*COLUMNS, "ratio"], "values": found},
    )


if __name__ == "__main__":
    main()
