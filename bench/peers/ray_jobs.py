"""The platform against Ray Jobs, in one run on the same machine: first lines, small jobs, submits.

    python -m bench.peers.ray_jobs

A head node of Ray and `manage.py up`, each with as many CPUs for jobs, run side by side. At lines and at jobs they take
turns; who is first changes each time. Submits are ours first: what waits after them would be in the way of the other
side, ours is canceled, and Ray asks a job's own process to stop, which one that waits has not. Ray comes from PyPI into
an environment of its own, the first time.

first_line: a job of one process that prints a line, one at a time, from the submit until its client has the line; both
clients look every 10 ms. Ray's program comes with the submit (`working_dir`), as ours does; in_place_line: a file that
is there, of Ray alone and before all turns, as the platform has no such start. jobs_per_s: jobs of `true` that take one
CPU each, from the first submit until the last has ended. submits_per_s: of jobs that have to wait, at a quota of 0
here, for a resource that no node has there. ratio is ours by Ray's: below 1 is better for seconds, above 1 for rates.
CPU time is not compared: Ray does not wait for the processes of its jobs, so what they used is lost when they end.

What the two promise differs: see docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Protocol

from bench.peers import ray_cluster
from bench.peers.ours import POLL_S, WAIT_S, Ours
from bench.peers.ray_cluster import Ray
from bench.peers.sides import Found, alternating, figures
from bench.record import record
from bench.submit_latency import PROGRAM
from tests.platform import running, wait_for

SLOTS = 8
ONE_CPU = {"entrypoint_num_cpus": 1}
HELD = {"entrypoint_resources": {"held": 1}}
"""No node has it."""


class Side(Protocol):
    def first_line_s(self) -> float: ...
    def jobs_per_s(self, count: int) -> float: ...
    def submits_per_s(self, count: int) -> float: ...


class Withdraws(Side, Protocol):
    def withdraw(self) -> None: ...


class Theirs:
    """Ray; its programs are made and used once before anything is measured."""

    def __init__(self, ray: Ray, connections: int) -> None:
        self.ray, self.connections = ray, connections
        self._code = ray.folder.with_name("program")
        self._code.mkdir()
        (self._code / "main.py").write_text(PROGRAM)
        self._python = shlex.quote(str(ray.python))
        self.first_line_s()
        self.in_place_line_s()

    def first_line_s(self) -> float:
        return self.ray.first_line_s(f"{self._python} main.py", self._code)

    def in_place_line_s(self) -> float:
        return self.ray.first_line_s(f"{self._python} {shlex.quote(str(self._code / 'main.py'))}")

    def jobs_per_s(self, count: int) -> float:
        wanted, began = self.ray.states()["SUCCEEDED"] + count, time.monotonic()
        self.ray.submit_many({"entrypoint": "true"} | ONE_CPU, count, self.connections)

        def ended() -> bool:
            found = self.ray.states()
            assert not found["FAILED"], found
            return found["SUCCEEDED"] >= wanted

        wait_for(ended, within_s=WAIT_S, every_s=POLL_S, what=f"{count} of Ray's jobs")
        return count / (time.monotonic() - began)

    def submits_per_s(self, count: int) -> float:
        before = self.ray.states()
        took_s = self.ray.submit_many({"entrypoint": "true"} | HELD, count, self.connections)
        after = self.ray.states()
        assert after["PENDING"] - before["PENDING"] == count, after
        return count / took_s


def measure(ours: Withdraws, ray: Side, lines: int, jobs: int, submits: int) -> Found:
    """So many first lines and jobs of each side, in turns, and submits, one side after the other."""
    sides: dict[str, Side] = {"ours": ours, "ray": ray}
    found: Found = {name: defaultdict(list) for name in sides}

    def take(name: str, figure: str, value: float) -> None:
        found[name][figure].append(value)
        print(f"{name:5} {figure:16} {value:9.3f}", flush=True)

    for place in range(lines):
        for name, side in alternating(sides, place):
            take(name, "first_line_s", side.first_line_s())
    for name, side in alternating(sides, lines):
        take(name, "jobs_per_s", side.jobs_per_s(jobs))
    take("ours", "submits_per_s", ours.submits_per_s(submits))
    ours.withdraw()
    take("ray", "submits_per_s", ray.submits_per_s(submits))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lines", type=int, default=20)
    parser.add_argument("--jobs", type=int, default=60, help="jobs of `true`")
    parser.add_argument("--submits", type=int, default=1_000)
    parser.add_argument("--connections", type=int, default=4)
    parser.add_argument("--record", action="store_true", help="keep the figures: only on a quiet machine")
    chosen = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started ends, too
    busy = os.getloadavg()[0]
    with (
        tempfile.TemporaryDirectory() as folder,
        ray_cluster.running(Path(folder) / "ray", cpus=SLOTS) as ray,
        running(Path(folder) / "data", nodes=f"node-a:cpu:{SLOTS}") as platform,
    ):
        theirs = Theirs(ray, chosen.connections)
        ours = Ours(platform, chosen.connections)
        in_place = [
            theirs.in_place_line_s() for _ in range(chosen.lines)
        ]  # before what the submits leave there
        found = measure(ours, theirs, chosen.lines, chosen.jobs, chosen.submits)
    found["ray"]["in_place_line_s"] = in_place
    measured = figures(found, "ray")
    command = f"python -m bench.peers.ray_jobs {' '.join(sys.argv[1:])}".strip()
    if not chosen.record:
        for name, value in measured.items():
            print(f"{name:28} {value:10.4g}")
        return
    record(
        "ray_jobs",
        measured,
        command=command,
        baseline=f"Ray {ray_cluster.version()}, in the same run on the same machine, where other programs kept "
        f"{busy:.1f} processes busy before it",
        details={"columns": ["ours", "ray", "ratio"], "values": found},
    )


if __name__ == "__main__":
    main()
