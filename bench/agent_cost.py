"""What the agent costs a training: CPU-seconds of launcher and shipper per training second, and the slowdown.

A program of fixed work (steps of a quarter of a second, each printing a line and reporting a number) runs bare and
under launcher and shipper in the sandbox that this machine allows, in pairs of random order, on the same machine
against a real web server. It measures the
wall time and the CPU time of its own loop. The slowdown is the geometric mean of the pairs' ratios, with the 95 %
interval of a bootstrap over the pairs. The ratio of CPU times hardly knows what else the machine does; that of wall
times does.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from bench.log_path import make_jobs
from bench.record import record
from gpu_scheduler.clusters.local import isolation
from gpu_scheduler.clusters.local.environment import SANDBOX, Folders, agent_command
from gpu_scheduler.clusters.local.isolation import Mode, Sandboxing
from tests.platform import ROOT, Platform, running

AGENT = agent_command(Path(sys.executable), ROOT / "learner_agent")
SETTLED_S = 4.0
"""The cost of a training second counts from here, after the starts and the fetching of inputs, to the program's end."""

STEP_S = 0.25
RESAMPLES = 10_000

PROGRAM = """
import json, sys, time
from learner_agent import training

def train(steps, size):
    for step in range(steps):
        total = 0
        for n in range(size):
            total += n * n
        print("step", step, "total", total)
        training.report(step, total=steps, loss=1 / (step + 1))

wall, cpu = time.perf_counter(), time.process_time()
train(int(sys.argv[1]), int(sys.argv[2]))
took = {"wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu}
open(sys.argv[3], "w").write(json.dumps(took))
"""

Took = dict[str, float]
"""wall_s and cpu_s of the program's own loop."""


def size_of_a_step() -> int:
    """How many iterations of the program's inner loop take STEP_S of CPU on this machine."""
    turns = 1_000_000
    began, total = time.process_time(), 0
    for n in range(turns):
        total += n * n
    return int(turns * STEP_S / (time.process_time() - began))


def bare(folder: Path, steps: int, size: int) -> Took:
    out = folder / "bare"
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    subprocess.run(
        [sys.executable, str(folder / "train.py"), str(steps), str(size), str(out)],
        env=env,
        stdout=subprocess.PIPE,
        check=True,
    )
    return dict(json.loads(out.read_text()))


def cpu_of(pid: int) -> float:
    """CPU-seconds of all threads of a process, by the scheduler's own clock: ticks of 10 ms are too coarse here."""
    spent = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        spent += int((task / "schedstat").read_text().split()[0])
    return spent / 1e9


def interval(ratios: list[float]) -> tuple[float, float, float]:
    """The geometric mean, and its 95 % interval over resampled pairs."""
    logs = [math.log(ratio) for ratio in ratios]
    chance = random.Random(len(logs))
    means = sorted(statistics.fmean(chance.choices(logs, k=len(logs))) for _ in range(RESAMPLES))
    low, high = means[int(0.025 * RESAMPLES)], means[int(0.975 * RESAMPLES)]
    return math.exp(statistics.fmean(logs)), math.exp(low), math.exp(high)


def under_the_agent(
    platform: Platform, folders: Folders, sandboxing: Sandboxing, job: str, number: int, steps: int, size: int
) -> tuple[Took, dict[str, float]]:
    """One run by launcher and shipper: what the program took, and both processes' CPU-seconds and peak memory."""
    folders.make()
    (folders.code / "train.py").write_text(PROGRAM)
    out = folders.state / "took.json"
    env = {
        "PATH": os.environ["PATH"], "TRAINING_ID": job, "LUTHIER_ATTEMPT": "1", "LUTHIER_RANK": "0",
        "TRAINING_COMMAND": f"exec {sys.executable} train.py {steps} {size} {out}",
    } | folders.named()  # fmt: skip
    if sandbox := sandboxing.of_learner(folders, [Path(sys.prefix)], [ROOT]):
        env[SANDBOX] = sandbox
    secret = {
        "LUTHIER_INGEST_URL": platform.url,
        "LUTHIER_SECRET": f"bench-{number}",
        "PYTHONPATH": str(ROOT),
    }
    shipper = subprocess.Popen(
        [sys.executable, "-m", "learner_agent", "shipper"], env=env | secret, cwd=folders.root
    )
    launcher = subprocess.Popen([*AGENT, "launcher"], env=env, cwd=folders.root)
    began = time.monotonic()
    cpu: dict[str, float] = {}
    rss: dict[str, float] = {"launcher": 0.0, "shipper": 0.0}
    samples: list[tuple[float, float]] = []
    while shipper.poll() is None:
        for name, process in (("launcher", launcher), ("shipper", shipper)):
            try:
                watched = psutil.Process(process.pid)
                cpu[name] = cpu_of(process.pid)
                rss[name] = max(rss[name], watched.memory_info().rss / 2**20)
            except (psutil.NoSuchProcess, psutil.ZombieProcess, OSError):
                continue
        if launcher.poll() is None:
            samples.append((time.monotonic() - began, sum(cpu.values())))
        time.sleep(0.1)
        assert time.monotonic() - began < 10 * steps * STEP_S + 120, "the agent does not end"
    launcher.wait()
    settled = next(sample for sample in samples if sample[0] >= SETTLED_S)
    return json.loads(out.read_text()), {
        "cpu_s": sum(cpu.values()),
        "steady_cpu_per_s": (samples[-1][1] - settled[1]) / (samples[-1][0] - settled[0]),
        "launcher_rss_mib": rss["launcher"],
        "shipper_rss_mib": rss["shipper"],
    }


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--pairs", type=int, default=12)
    arguments.add_argument("--seconds", type=float, default=10, help="of each run, on a quiet machine")
    options = arguments.parse_args()
    steps, size = int(options.seconds / STEP_S), size_of_a_step()
    order = random.Random(options.pairs)
    sandboxing = isolation.probe(AGENT, Mode.AUTO)
    print(sandboxing.report().text)
    with tempfile.TemporaryDirectory() as name, running(Path(name) / "data", workers=1) as platform:
        folder = Path(name)
        (folder / "train.py").write_text(PROGRAM)
        pairs: list[tuple[Took, Took]] = []
        runs = []
        for number, job in enumerate(make_jobs(platform, options.pairs)):
            alone = bare(folder, steps, size) if order.random() < 0.5 else None
            folders = Folders(folder / f"learner-{number}")
            watched, run = under_the_agent(platform, folders, sandboxing, job, number, steps, size)
            pairs.append((watched, alone or bare(folder, steps, size)))
            runs.append(run)
    figures = {
        "agent_cpu_per_training_s": statistics.fmean(run["steady_cpu_per_s"] for run in runs),
        "agent_cpu_s_of_a_whole_run": statistics.fmean(run["cpu_s"] for run in runs),
        "landlock": sandboxing.landlock,
        "pairs": len(pairs),
    }
    for kind in ("cpu", "wall"):
        ratios = [watched[f"{kind}_s"] / alone[f"{kind}_s"] for watched, alone in pairs]
        mean, low, high = interval(ratios)
        figures |= {
            f"{kind}_slowdown": mean, f"{kind}_slowdown_95_low": low, f"{kind}_slowdown_95_high": high
        }  # fmt: skip
    figures |= {
        "shipper_rss_mib": max(run["shipper_rss_mib"] for run in runs),
        "launcher_rss_mib": max(run["launcher_rss_mib"] for run in runs),
    }
    record(
        "agent_cost",
        figures,
        command=f"python -m bench.agent_cost --pairs {options.pairs} --seconds {options.seconds:g}",
        baseline="the same program without the agent, in pairs of random order",
        targets={"agent_cpu_per_training_s": "≤ 0.01", "shipper_rss_mib": "≤ 64"},
    )


if __name__ == "__main__":
    main()
