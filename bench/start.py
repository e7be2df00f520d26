"""Cold and warm start of the whole platform, and the memory it takes when idle.

cold: empty data folder, so initdb, all migrations, the demo with its first job. warm: a folder that was used before,
without jobs. Both end when /readyz says
that database, workers and cluster answer. Memory is the proportional share (PSS) summed over all processes: pages
which they share count once. The plain sum of resident sets is recorded beside it. cold_start_cpu_s is what the start
costs all processes, however busy the machine is: no start is faster than that divided by the cores.

Run: .venv/bin/python -m bench.start
"""

from __future__ import annotations

import contextlib
import statistics
import tempfile
import time
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import psutil

from bench.record import record
from tests.platform import Platform

ROUNDS = 3
MIB = 1024 * 1024
SETTLE_S = 5


class Starting(Platform):
    """One whose start ends with the first answer that all is ready, even if another asked for it: that an answer is
    shared for a second is no part of a start."""

    def is_ready(self) -> bool:
        try:
            with urlopen(f"{self.url}/readyz", timeout=5):
                return True
        except (URLError, OSError):  # a 503 is one of them
            return False


def main() -> None:
    cold, cpu, warm, stop, shared, resident = [], [], [], [], [], []
    for _ in range(ROUNDS):
        with tempfile.TemporaryDirectory() as folder:
            first = Starting(Path(folder), nodes="auto", demo=True)
            cold.append(seconds_to_ready(first))
            cpu.append(cpu_seconds(first))
            first.stop()
        with tempfile.TemporaryDirectory() as folder:
            idle = Starting(Path(folder), nodes="auto")
            seconds_to_ready(idle)
            idle.stop()
            warm.append(seconds_to_ready(idle))
            time.sleep(SETTLE_S)
            once, each = memory(idle)
            shared.append(once)
            resident.append(each)
            began = time.monotonic()
            idle.stop()
            stop.append(time.monotonic() - began)
    figures = {
        "cold_start_s": statistics.median(cold),
        "cold_start_cpu_s": statistics.median(cpu),
        "warm_start_s": statistics.median(warm),
        "stop_s": statistics.median(stop),
        "memory_pss_mib": statistics.median(shared),
        "memory_rss_sum_mib": statistics.median(resident),
    }
    targets = {"cold_start_s": "≤ 4", "warm_start_s": "≤ 4", "memory_pss_mib": "≤ 350"}
    record("start", figures, command="python -m bench.start", targets=targets)


def seconds_to_ready(platform: Platform) -> float:
    """Start it, and the seconds until /readyz said yes. The users' passwords are no part of a start."""
    platform.users = {"nobody": {}}
    began = time.monotonic()
    platform.start()
    return time.monotonic() - began


def cpu_seconds(platform: Platform) -> float:
    """Processor time of all processes of the platform so far, those that have ended included."""
    while True:
        with contextlib.suppress(
            psutil.NoSuchProcess
        ):  # one has just ended: its parent knows its time by now
            return sum(sum(process.cpu_times()[:4]) for process in processes(platform))


def processes(platform: Platform) -> list[psutil.Process]:
    assert platform.process is not None
    top = psutil.Process(platform.process.pid)
    return [top, *top.children(recursive=True)]


def memory(platform: Platform) -> tuple[float, float]:
    """MiB of all processes of the platform: shared pages counted once, and counted each time."""
    usage = [process.memory_full_info() for process in processes(platform)]
    return sum(use.pss for use in usage) / MIB, sum(use.rss for use in usage) / MIB


if __name__ == "__main__":
    main()
