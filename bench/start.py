"""Cold and warm start of the whole platform, and the memory it takes when idle.

cold: empty data folder, so initdb, all migrations, the demo. warm: the same folder again. Both end when /readyz says
that database, workers and cluster answer. Memory is the proportional share (PSS) summed over all processes: pages
which they share count once. The plain sum of resident sets is recorded beside it.

Run: .venv/bin/python -m bench.start
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

import psutil

from bench.record import record
from tests.platform import Platform

ROUNDS = 3
MIB = 1024 * 1024
SETTLE_S = 5


def main() -> None:
    cold, warm, stop, pss, rss = [], [], [], [], []
    for _ in range(ROUNDS):
        with tempfile.TemporaryDirectory() as folder:
            first, second = started(folder), None
            cold.append(first[1])
            first[0].stop()
            second = started(folder)
            warm.append(second[1])
            time.sleep(SETTLE_S)
            shared, resident = memory(second[0])
            pss.append(shared)
            rss.append(resident)
            began = time.monotonic()
            second[0].stop()
            stop.append(time.monotonic() - began)
    figures = {
        "cold_start_s": statistics.median(cold),
        "warm_start_s": statistics.median(warm),
        "stop_s": statistics.median(stop),
        "memory_pss_mib": statistics.median(pss),
        "memory_rss_sum_mib": statistics.median(rss),
    }
    aims = {"cold_start_s": 6, "warm_start_s": 6, "memory_pss_mib": 520, "memory_rss_sum_mib": 520}
    record("start", figures, command="python -m bench.start", aims=aims)


def started(folder: str) -> tuple[Platform, float]:
    """A platform on this folder and the seconds until it was ready."""
    platform = Platform(Path(folder), nodes="auto", demo=True)
    platform.users = {
        "nobody": {}
    }  # the demo's passwords are not needed, and making them is not part of a start
    began = time.monotonic()
    platform.start()
    return platform, time.monotonic() - began


def memory(platform: Platform) -> tuple[float, float]:
    """MiB of all processes of the platform: shared pages counted once, and counted each time."""
    assert platform.process is not None
    top = psutil.Process(platform.process.pid)
    every = [top, *top.children(recursive=True)]
    usage = [process.memory_full_info() for process in every]
    return sum(use.pss for use in usage) / MIB, sum(use.rss for use in usage) / MIB


if __name__ == "__main__":
    main()
