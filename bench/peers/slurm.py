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
import statistics
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg2

from bench.peers import slurm_cluster
from bench.peers.slurm_cluster import Slurm
from bench.record import percentile, record
from bench.submit_latency import first_line_s
from bench.submits import cpu_s, submit_many
from portal.settings.embedded import layout
from tests.platform import Platform, running, wait_for

SLOTS = 40
WAIT_S = 3600
POLL_S = 0.2
TRUE = {
    "apiVersion": "luthier/v1",
    "name": "true",
    "framework": "plain",
    "code": {"files": {"main.py": ""}},
    "command": "true",
    "resources": {"learners": 1, "gpus": 0, "cpus": 1},
}


class Ours:
    """The platform, as Slurm's opponent."""

    def __init__(self, platform: Platform, connections: int) -> None:
        self.platform, self.connections = platform, connections
        self.client = platform.client()
        self._submitted = 0
        first_line_s(self.client)  # make the runtime

    def first_line_s(self) -> float:
        return first_line_s(self.client)

    def jobs_per_s(self, count: int, *, array: bool) -> float:
        """Rate of jobs of `true`, from the first submit until the last has ended. There are no arrays here."""
        # One connection: opening one for each look would count as the platform's CPU time.
        with closing(psycopg2.connect(layout(self.platform.data).database_url)) as watching:
            watching.autocommit = True
            wanted, began = _states(watching)["COMPLETED"] + count, time.monotonic()
            self._submit(count)
            wait_for(
                lambda: _states(watching)["COMPLETED"] >= wanted,
                within_s=WAIT_S,
                every_s=POLL_S,
                what=f"{count} jobs",
            )
            return count / (time.monotonic() - began)

    def submits_per_s(self, count: int) -> float:
        path = f"/tenants/{self.client.tenant}/quotas/cpu"
        closed = self.platform.client("admin").call("PUT", path, {"limit": 0, "reason": "measuring submits"})
        assert closed.status == 200, closed
        began = time.monotonic()
        self._submit(count)
        return count / (time.monotonic() - began)

    def cpu_s(self) -> float:
        return sum(cpu_s(self.platform).values())

    def _submit(self, count: int) -> None:
        firsts = range(self._submitted, self._submitted + count)
        shares = [firsts[place :: self.connections] for place in range(self.connections)]
        starts = [firsts[0] + sum(map(len, shares[:place])) for place in range(len(shares))]
        self._submitted += count
        with ThreadPoolExecutor(self.connections) as threads:
            sent = threads.map(lambda n, share: submit_many(self.client, n, len(share), TRUE), starts, shares)
            statuses = Counter(status for part in sent for status, _, _ in part)
        assert set(statuses) == {201}, statuses


def _states(watching: Any) -> Counter[str]:
    """How many jobs are in which state, by an open connection."""
    with watching.cursor() as cursor:
        cursor.execute("SELECT state, count(*) FROM jobs_job GROUP BY state")
        found = Counter(dict(cursor.fetchall()))
    assert not found["FAILED"], found
    return found


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
Found = dict[str, defaultdict[str, list[float]]]


def alternating(sides: Mapping[str, Side], place: int) -> list[tuple[str, Side]]:
    """Both; which is first changes from place to place."""
    both = list(sides.items())
    return both if place % 2 == 0 else both[::-1]


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


def figures(found: Mapping[str, Mapping[str, list[float]]]) -> dict[str, float]:
    """Medians of each side, and ours by Slurm's. found: values by side and figure."""
    flat: dict[str, dict[str, float]] = {}
    for name, values in found.items():
        lines = values["first_line_s"]
        flat[name] = {"first_line_p50_s": percentile(lines, 0.5), "first_line_p99_s": percentile(lines, 0.99)}
        flat[name] |= {
            key: statistics.median(taken) for key, taken in values.items() if key != "first_line_s"
        }
    flat["ratio"] = {key: flat["ours"][key] / flat["slurm"][key] for key in flat["slurm"]}
    return {f"{name} {key}": value for name, each in flat.items() for key, value in each.items()}


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
        figures(found),
        command=f"python -m bench.peers.slurm {' '.join(sys.argv[1:])}".strip(),
        baseline="Slurm, in the same run on the same machine, where other programs kept "
        f"{busy:.1f} processes busy before it",
        details=details,
    )


if __name__ == "__main__":
    main()
