"""What the agent costs a training: CPU-seconds of launcher and shipper per training second, and the slowdown.

A program that computes, prints ten lines and reports ten times a second runs bare and under launcher and shipper in
turn, on the same machine against a real web server; the slowdown is the mean of the pairs' ratios of its own CPU-bound
work, with the 95 % interval over the pairs.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from bench.log_path import make_jobs
from bench.record import record
from tests.platform import ROOT, Platform, running

SETTLED_S = 4.0
"""After the starts and the fetching of inputs, from here to the program's end, is what a training second costs."""

PROGRAM = """
import sys, time
from learner_agent import training
steps, began, worked = int(sys.argv[1]), time.perf_counter(), 0.0
for step in range(steps):
    start = time.perf_counter()
    total = 0
    for n in range(400_000):
        total += n * n
    worked += time.perf_counter() - start
    print("step", step, "total", total)
    training.report(step, total=steps, loss=1 / (step + 1))
    time.sleep(max(0.0, began + (step + 1) * 0.1 - time.perf_counter()))
open(sys.argv[2], "w").write(str(worked))
"""


def bare(folder: Path, steps: int) -> float:
    out = folder / "bare"
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    subprocess.run(
        [sys.executable, str(folder / "train.py"), str(steps), str(out)],
        env=env,
        stdout=subprocess.PIPE,
        check=True,
    )
    return float(out.read_text())


def under_the_agent(platform: Platform, folder: Path, job: str, number: int, steps: int) -> dict[str, float]:
    """One run by launcher and shipper: the program's work, and each process's CPU-seconds and peak memory."""
    home = folder / f"learner-{number}"
    (home / "code").mkdir(parents=True)
    (home / "code" / "train.py").write_text(PROGRAM)
    out = home / "work"
    env = {
        "PATH": os.environ["PATH"], "TRAINING_ID": job, "LUTHIER_ATTEMPT": "1", "LUTHIER_RANK": "0",
        "JOB_STATE_DIR": str(home / "state"), "MODEL_DIR": str(home / "code"), "DATA_DIR": str(home / "data"),
        "TRAINING_COMMAND": f"exec {sys.executable} train.py {steps} {out}",
    }  # fmt: skip
    secret = {
        "LUTHIER_INGEST_URL": platform.url,
        "LUTHIER_SECRET": f"bench-{number}",
        "PYTHONPATH": str(ROOT),
    }
    shipper = subprocess.Popen(
        [sys.executable, "-m", "learner_agent", "shipper"], env=env | secret, cwd=folder
    )
    launcher = subprocess.Popen(
        [sys.executable, str(ROOT / "learner_agent"), "launcher"], env=env, cwd=folder
    )
    began = time.monotonic()
    cpu: dict[str, float] = {}
    rss: dict[str, float] = {"launcher": 0.0, "shipper": 0.0}
    samples: list[tuple[float, float]] = []
    while shipper.poll() is None:
        for name, process in (("launcher", launcher), ("shipper", shipper)):
            try:
                watched = psutil.Process(process.pid)
                times = watched.cpu_times()
                cpu[name] = times.user + times.system
                rss[name] = max(rss[name], watched.memory_info().rss / 2**20)
            except (psutil.NoSuchProcess, psutil.ZombieProcess):
                continue
        if launcher.poll() is None:
            samples.append((time.monotonic() - began, sum(cpu.values())))
        time.sleep(0.1)
        assert time.monotonic() - began < steps, "the agent does not end"
    launcher.wait()
    settled = next(sample for sample in samples if sample[0] >= SETTLED_S)
    return {
        "cpu_s": sum(cpu.values()),
        "steady_cpu_per_s": (samples[-1][1] - settled[1]) / (samples[-1][0] - settled[0]),
        "launcher_rss_mib": rss["launcher"],
        "shipper_rss_mib": rss["shipper"],
        "work_s": float(out.read_text()),
    }


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--pairs", type=int, default=5)
    arguments.add_argument("--seconds", type=float, default=20, help="of each run")
    options = arguments.parse_args()
    steps = int(options.seconds * 10)
    with tempfile.TemporaryDirectory() as name, running(Path(name) / "data", workers=1) as platform:
        folder = Path(name)
        (folder / "train.py").write_text(PROGRAM)
        jobs = make_jobs(platform, options.pairs)
        ratios, runs = [], []
        for number, job in enumerate(jobs):
            without = bare(folder, steps)
            runs.append(under_the_agent(platform, folder, job, number, steps))
            ratios.append(runs[-1]["work_s"] / without)
    spread = statistics.stdev(ratios) / math.sqrt(len(ratios)) * 2.78 if len(ratios) > 1 else 0.0
    figures = {
        "agent_cpu_per_training_s": statistics.mean(run["steady_cpu_per_s"] for run in runs),
        "agent_cpu_s_of_a_whole_run": statistics.mean(run["cpu_s"] for run in runs),
        "slowdown": statistics.mean(ratios),
        "slowdown_95_low": statistics.mean(ratios) - spread,
        "slowdown_95_high": statistics.mean(ratios) + spread,
        "shipper_rss_mib": max(run["shipper_rss_mib"] for run in runs),
        "launcher_rss_mib": max(run["launcher_rss_mib"] for run in runs),
    }  # fmt: skip
    record(
        "agent_cost",
        figures,
        command=f"python -m bench.agent_cost --pairs {options.pairs} --seconds {options.seconds:g}",
        baseline="the same program without the agent, in turn",
        aims={"agent_cpu_per_training_s": 0.01, "shipper_rss_mib": 64},
    )


if __name__ == "__main__":
    main()
