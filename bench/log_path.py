"""The log path: 50 learners print, 200 viewers watch, over the real web server, PostgreSQL and sockets.

On one platform: quiet (each learner prints a line a second), loud (a fixed total rate), the highest rate at which 99 %
of what viewers see is at most 100 ms old, and full (as fast as acknowledgments come, without viewers). Each viewer
watches one learner, four of them the same. Learners and viewers are played by processes of this benchmark
(`bench.log_clients`) that share the machine's cores with the server; the figures include how late their own event loops
were, and the CPU time of all parts. Nothing may be lost: every viewer counts lines and gaps, and every tenth compares
each line.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import queue
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import uvloop

from bench.log_clients import play_learners, play_viewers
from bench.record import percentile, record
from tests.platform import ROOT, Platform, running

WARM_S = 2.0
VIEWER_PROCESSES = 2
AIM_MS = 100
LADDER = (1.5, 1.25, 1.0, 0.8, 0.65, 0.5, 0.35, 0.25)
SETUP = """
import hashlib, json, sys
from datetime import timedelta
from django.utils import timezone
from jobs.models import Attempt, Job, Learner, Progress
from tests.factories import spec
from tenants.models import Membership, Token, User
owner = User.objects.get(username="{of}")
tenant = Membership.objects.get(user=owner).tenant
count = int({learners})
jobs = []
for n in range({first}, {first} + count):
    job = Job.objects.create(
        tenant=tenant, owner=owner, name=f"bench-{{n}}", spec=spec(), framework="plain", learners=1, gpus=0, slots=1,
        placement="pack", priority="normal", priority_rank=1, max_restarts=0, state="PROCESSING", attempt=1,
        settled=True)
    Progress.objects.create(job=job)
    Attempt.objects.create(job=job, tenant=tenant, n=1, cluster="local", slot_type="cpu", slots=1, learners=1,
                           nodes=["node-a"])
    Learner.objects.create(job=job, tenant=tenant, attempt=1, rank=0, node="node-a",
                           secret_sha256=hashlib.sha256(f"bench-{{n}}".encode()).hexdigest())
    jobs.append(job.pk)
print(json.dumps(jobs))
"""


class Clock:
    """CPU time of the platform's processes, of this benchmark's, and of the whole machine between two samples."""

    def __init__(self, platform: Platform, viewers: list[int]) -> None:
        pids = platform.pids()
        self.groups = {"web": [pids["web"]], "valkey": [pids["valkey"]], "learners": [os.getpid()]}
        self.groups["viewers"] = viewers
        self.postgres = pids["postgres"]
        self.samples: list[tuple[float, dict[str, float]]] = []

    def __call__(self) -> None:
        spent = {name: sum(map(cpu_s, pids)) for name, pids in self.groups.items()}
        spent["postgres"] = sum(map(cpu_s, family(self.postgres)))
        machine = psutil.cpu_times()
        spent["machine"] = sum(machine) - machine.idle - machine.iowait
        self.samples.append((time.monotonic(), spent))

    def cores(self) -> dict[str, float]:
        """How many cores each kept busy; others: programs that are not part of this measurement."""
        (began, before), (ended, after) = self.samples
        used = {name: (after[name] - before[name]) / (ended - began) for name in after}
        used["others"] = max(0.0, used.pop("machine") - sum(used.values()))
        return used

    def spent(self, name: str) -> float:
        return max(self.samples[1][1][name] - self.samples[0][1][name], 1e-6)


def family(pid: int) -> list[int]:
    """A process and its children: PostgreSQL has one for each connection."""
    return [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]


def cpu_s(pid: int) -> float:
    """Its own, and that of its children which have ended."""
    try:
        return float(sum(psutil.Process(pid).cpu_times()[:4]))
    except psutil.NoSuchProcess:
        return 0.0


class Audience:
    """The viewers, in separate processes; use as a context manager."""

    def __init__(self, platform: Platform, jobs: list[str], starts: list[int], viewers: int) -> None:
        spawn = multiprocessing.get_context("spawn")
        self.measured_from = spawn.Value("q", 0, lock=False)
        self.arrived = [spawn.Value("q", 0, lock=False) for _ in range(VIEWER_PROCESSES)]
        self.done, self.out, ready = spawn.Event(), spawn.Queue(), spawn.Semaphore(0)
        tokens = [
            str(platform.users[name]["token"]) for name in ("alice", "carol", "dave")
        ]  # 100 sockets each
        watched = [(n, jobs[n % len(jobs)], starts[n % len(jobs)]) for n in range(viewers)]
        self.processes = [
            spawn.Process(
                target=play_viewers,
                args=(platform.url, tokens, watched[place::VIEWER_PROCESSES], self.measured_from, arrived, ready,
                      self.done, self.out),
                daemon=True,
            )
            for place, arrived in enumerate(self.arrived)
        ]  # fmt: skip
        for process in self.processes:
            process.start()
        for _ in self.processes:
            assert ready.acquire(timeout=60), "the viewers did not come"

    def wait_for_the_rest(self, expected: int) -> None:
        """Wait until everything has arrived, or nothing more arrives."""
        last, since = -1, time.monotonic()
        while (
            arrived := sum(one.value for one in self.arrived)
        ) < expected and time.monotonic() - since < 15:
            if arrived != last:
                last, since = arrived, time.monotonic()
            time.sleep(0.05)

    def leave(self) -> dict[str, Any]:
        """The sum of what they saw."""
        self.done.set()
        total: dict[str, Any] = {}
        for _ in self.processes:
            try:
                found = self.out.get(timeout=30)
            except queue.Empty:
                raise AssertionError("the viewers died") from None
            total = {name: total[name] + value for name, value in found.items()} if total else found
        for process in self.processes:
            process.join()
        return total


def measure(
    platform: Platform, jobs: list[str], starts: list[int], *, rate: float, seconds: float, viewers: int
) -> dict[str, float]:
    """One run; returns its figures and advances starts."""
    audience = Audience(platform, jobs, starts, viewers) if viewers else None
    clock = Clock(platform, [process.pid or 0 for process in audience.processes] if audience else [])

    def counting() -> None:
        clock()
        if audience and not audience.measured_from.value:
            audience.measured_from.value = time.time_ns()

    sent = uvloop.run(play_learners(platform.url, jobs, rate, WARM_S, seconds, counting))
    figures = {
        "lines": sent["lines"],
        "lines_per_s": sent["lines"] / sent["seconds"],
        "lines_per_web_cpu_s": sent["lines"] / clock.spent("web"),
        "stored_p50_ms": percentile(sent["stored_ms"], 0.5),
        "stored_p99_ms": percentile(sent["stored_ms"], 0.99),
        "learners_loop_late_p99_ms": percentile(sent["lags_ms"], 0.99),
    }
    expected = sum(
        printed * len(range(place, viewers, len(jobs))) for place, printed in enumerate(sent["printed"])
    )
    for place, printed in enumerate(sent["printed"]):
        starts[place] += printed
    if audience is not None:
        audience.wait_for_the_rest(expected)
        found = audience.leave()
        assert not found["closed"], found["closed"]
        assert found["compared"]
        assert not found["wrong"], "viewers got other lines than were printed"
        figures |= {
            "delivered_share": found["lines"] / expected,
            "left_to_rest_share": found["gap_lines"] / expected,
            "holes": float(found["holes"]),
            "p50_ms": percentile(found["delays_ms"], 0.5),
            "p99_ms": percentile(found["delays_ms"], 0.99),
            "max_ms": max(found["delays_ms"]),
            "viewers_loop_late_p99_ms": percentile(found["lags_ms"], 0.99),
        }
    return figures | {f"{name}_cores": cores for name, cores in clock.cores().items()}


def highest_rate(run: Callable[[float], dict[str, float]], loud: float, known: dict[str, float]) -> float:
    """The highest rate of a ladder around loud at which the target holds and nothing is lost; 0 if none does."""
    best = 0.0
    steps = [step for step in LADDER if step != 1.0]
    good = known["p99_ms"] <= AIM_MS
    for step in [step for step in steps if (step > 1) == good]:
        found = run(loud * step)
        if found["p99_ms"] <= AIM_MS and found["left_to_rest_share"] == 0:
            best = found["lines_per_s"]
            break
    return best or (known["lines_per_s"] if good else 0.0)


def make_jobs(platform: Platform, learners: int, *, of: str = "alice", first: int = 0) -> list[str]:
    """Jobs of one learner each, in rows alone. first: the number from which their secrets count."""
    setup = SETUP.format(learners=learners, of=of, first=first)
    done = subprocess.run(
        [sys.executable, "manage.py", "shell", "-v", "0", "-c", setup], cwd=ROOT,
        env=platform.environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout.strip().splitlines()[-1]))


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--learners", type=int, default=50)
    arguments.add_argument("--viewers", type=int, default=200)
    arguments.add_argument("--seconds", type=float, default=12)
    arguments.add_argument("--rate", type=float, default=100_000, help="lines per second in the loud run")
    arguments.add_argument(
        "--only", default="", help="quiet, loud or full: print that run's figures, keep none"
    )
    options = arguments.parse_args()
    with tempfile.TemporaryDirectory() as folder, running(Path(folder), workers=1) as platform:
        jobs = make_jobs(platform, options.learners)
        starts = [0] * len(jobs)

        def run(
            rate: float, seconds: float = options.seconds, viewers: int = options.viewers
        ) -> dict[str, float]:
            return measure(platform, jobs, starts, rate=rate, seconds=seconds, viewers=viewers)

        if options.only:
            rates = {"quiet": options.learners, "loud": options.rate, "full": 0}
            found = run(rates[options.only], viewers=0 if options.only == "full" else options.viewers)
            print(json.dumps({name: round(value, 3) for name, value in found.items()}, indent=1))
            return
        runs = {"quiet": run(options.learners), "loud": run(options.rate)}
        best = highest_rate(lambda rate: run(rate, 5), options.rate, runs["loud"])
        runs["full"] = run(0, 6, 0)
    figures = {f"{run}_{name}": value for run, found in runs.items() for name, value in found.items()}
    figures["rate_at_p99_100ms"] = best
    record(
        "log_path",
        figures,
        command=f"python -m bench.log_path --learners {options.learners} --viewers {options.viewers}",
        baseline="none; learners and viewers share the cores with the server",
        targets={
            "full_lines_per_s": "≥ 100,000",
            "loud_p99_ms": f"≤ {AIM_MS}",
            "quiet_p99_ms": f"≤ {AIM_MS}",
            "loud_delivered_share": "≥ 1",
            "quiet_delivered_share": "≥ 1",
            "rate_at_p99_100ms": "≥ 100,000",
        },
    )


if __name__ == "__main__":
    os.environ.setdefault("PYTHONHASHSEED", "0")
    main()
