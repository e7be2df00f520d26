"""The examples that need nothing but Python: sunspots, the counter, the waiting learner."""

from __future__ import annotations

import re
import zlib
from pathlib import Path

from examples import catalog
from jobs.spec import parse
from tests.examples.programs import Program


def sunspots(folder: Path, steps: int = 60, step_s: float = 0.01) -> Program:
    settings = {"STEPS": str(steps), "STEP_S": str(step_s)}
    return Program(folder, "plain", "plain", ["train.py"], settings)


def weights(printed: str) -> str:
    found = re.search(r"done: weights (.*)", printed)
    assert found, printed
    return found[1]


def test_a_program_that_ignores_the_platform_resumes_from_its_own_file(tmp_path: Path) -> None:
    straight, stopped = sunspots(tmp_path / "straight"), sunspots(tmp_path / "stopped", step_s=0.3)
    expected = weights(straight.run())
    process = stopped.start()
    assert process.stdout
    while not process.stdout.readline().startswith("step=5 "):  # many seconds of work are left
        pass
    printed = stopped.stop_by_signal(process)
    assert process.returncode == 143
    step = int(re.search(r"stopped after step (\d+)", printed)[1])  # type: ignore[index]
    stopped.environment = straight.environment
    printed = stopped.run()
    assert f"continuing at step {step}" in printed
    assert weights(printed) == expected


def test_metrics_of_the_plain_program_are_found_by_its_rule(tmp_path: Path) -> None:
    (pattern,) = parse(catalog.load("plain")).metrics
    lines = sunspots(tmp_path).run().splitlines()
    points = [found.groupdict() for found in (re.search(pattern, line) for line in lines) if found]
    assert [int(point["step"]) for point in points] == list(range(1, 61))
    losses = [float(point["loss"]) for point in points]
    assert losses[0] > 2 * losses[-1] > 0


def test_counter_loses_no_number_over_a_halt(tmp_path: Path) -> None:
    counter = Program(tmp_path, "counter", "plain", ["count.py", "3000", "100"])
    printed = counter.run_until(lambda: counter.newest_checkpoint() is not None)
    counter.arguments = ["count.py", "3000"]
    printed += counter.run()
    numbers = [int(line.split()[1]) for line in printed.splitlines()]
    assert numbers == list(range(1, 3001))
    assert counter.finished


def test_counter_lines_carry_their_checksum(tmp_path: Path) -> None:
    printed = Program(tmp_path, "counter", "plain", ["count.py", "20000"]).run()
    for line in printed.splitlines():
        text, _, checksum = line.rpartition(" ")
        assert f"{zlib.crc32(text.encode()):08x}" == checksum
    assert len(printed.splitlines()) == 20_000


def test_waiting_learner_waits_on_after_a_halt(tmp_path: Path) -> None:
    waiting = Program(tmp_path, "sleep", "plain", ["wait.py", "60"])
    waiting.run_until(lambda: bool(waiting.reports()))
    assert not waiting.finished
    waited = int(waiting.reports()[-1]["step"])
    seconds = waited + 2
    waiting.arguments = ["wait.py", str(seconds)]
    waiting.run()
    assert waiting.finished
    assert [point["step"] for point in waiting.reports()] == [waited + 1, seconds]
    assert (point := waiting.reports()[-1])["total"] == point["waited_s"] == seconds
