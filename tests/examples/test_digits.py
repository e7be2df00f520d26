"""The first job of a new installation: it learns, halts, resumes, and ends with the same numbers, bit for bit."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from tests.examples.programs import Program

STEPS = 300
HALTS = 10 if os.environ.get("LUTHIER_LONG") else 3
"""Each starts an interpreter that loads a framework; from the second on, what a resumed run does not save shows."""


def digits(folder: Path, step_s: float = 0) -> Program:
    arguments = ["train.py", "--steps", str(STEPS), "--checkpoint-s", "0.1", "--step-s", str(step_s)]
    return Program(folder, "digits-sklearn", "sklearn", arguments)


def score(program: Program) -> dict[str, object]:
    loaded: dict[str, object] = json.loads((program.folder / "result" / "score.json").read_text())
    return loaded


def test_digits_learns_and_reports_every_step(tmp_path: Path) -> None:
    program = digits(tmp_path)
    program.run()
    points = program.reports()
    assert [point["step"] for point in points] == list(range(1, STEPS + 1))
    assert points[0]["loss"] > 2 > 0.7 > points[-1]["loss"]
    assert points[-1]["accuracy"] > 0.93
    assert {point["total"] for point in points} == {STEPS}
    assert program.finished


def test_halts_and_resumes_end_in_the_same_bits(tmp_path: Path) -> None:
    """Its steps are slow while halts are requested, so that a delayed halt still finds it running."""
    straight, halted = digits(tmp_path / "straight"), digits(tmp_path / "halted", step_s=0.1)
    straight.run()
    steps = [0]
    for halt in range(1, HALTS + 1):
        until = steps[-1] + 4
        printed = halted.run_until(lambda until=until: any(p["step"] >= until for p in halted.reports()))
        newest = halted.newest_checkpoint()
        assert newest is not None
        steps.append(int(newest.name.removeprefix("step-")))
        assert f"halted after step {steps[-1]}" in printed
        assert not halted.finished
        if halt > 1:
            assert f"resumed at step {steps[-2]}" in printed
            assert halted.reports()[0]["step"] == steps[-2] + 1
    halted.arguments = straight.arguments
    printed = halted.run()
    assert f"resumed at step {steps[-1]}" in printed
    assert steps == sorted(set(steps))
    assert halted.finished
    assert score(halted) == score(straight)


def test_digits_killed_without_warning_resumes_from_its_last_checkpoint(tmp_path: Path) -> None:
    straight, killed = digits(tmp_path / "straight"), digits(tmp_path / "killed", step_s=0.1)
    straight.run()
    process = killed.start()
    while killed.newest_checkpoint() is None:
        assert process.poll() is None
        time.sleep(0.005)
    process.kill()
    process.communicate()
    killed.arguments = straight.arguments
    assert "resumed at step" in killed.run()
    assert score(killed) == score(straight)
