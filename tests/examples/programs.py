"""Run an example as the platform would: its own folders, the agent's files, a halt that appears as a file."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from gpu_scheduler.clusters.local.runtimes import Runtimes

REPOSITORY = Path(__file__).resolve().parents[2]
EXAMPLES = REPOSITORY / "examples"
BUILT = REPOSITORY / ".venv" / "examples"
"""Runtimes and data sets that the tests make once."""


def share(data: Path) -> None:
    """Let an installation in this folder use the runtimes and data sets that the tests make once."""
    for stored in ("datasets", "runtimes"):
        (BUILT / stored).mkdir(parents=True, exist_ok=True)
        (data / stored).symlink_to(BUILT / stored)


@cache
def runtime(name: str) -> Path:
    """Return the Python of a runtime, built as the local cluster builds it when it is not there yet."""
    builder = [sys.executable, "-m", "gpu_scheduler.clusters.local.runtimes", "--data", str(BUILT)]
    subprocess.run([*builder, name], check=True, cwd=REPOSITORY, stdout=subprocess.DEVNULL)
    return Runtimes(BUILT, EXAMPLES / "runtimes").folder(name) / "bin" / "python"


@dataclass
class Program:
    """One example in one working folder; each ``start`` is an attempt, resumed from the newest checkpoint."""

    folder: Path
    example: str
    runtime: str
    arguments: Sequence[str]
    environment: dict[str, str] = field(default_factory=dict)
    attempt: int = 0

    def start(self) -> subprocess.Popen[str]:
        """Start the next attempt as a process whose output is one text stream."""
        self.attempt += 1
        shutil.rmtree(self.state, ignore_errors=True)
        for place in (self.state, self.checkpoints, self.folder / "result"):
            place.mkdir(parents=True, exist_ok=True)
        command = [str(runtime(self.runtime)), *self.arguments]
        return subprocess.Popen(
            command,
            cwd=EXAMPLES / self.example,
            env=self._variables(),
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    def run(self, timeout_s: float = 120) -> str:
        """Run one attempt to its end and return what it printed; a failure shows it."""
        process = self.start()
        printed, _ = process.communicate(timeout=timeout_s)
        assert process.returncode == 0, printed
        return printed

    def run_until(self, condition: Callable[[], bool], timeout_s: float = 60) -> str:
        """Start an attempt, request a halt once the condition holds, and return what it printed."""
        process = self.start()
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert process.poll() is None, "it ended before its halt could be requested"
            assert time.monotonic() < deadline, "it never came so far"
            time.sleep(0.005)
        (self.state / "halt").write_text("{}")
        printed, _ = process.communicate(timeout=timeout_s)
        assert process.returncode == 0, printed
        return printed

    def stop_by_signal(self, process: subprocess.Popen[str]) -> str:
        process.send_signal(signal.SIGTERM)
        return process.communicate(timeout=30)[0]

    @property
    def state(self) -> Path:
        return self.folder / "state"

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    @property
    def finished(self) -> bool:
        return (self.state / "finished").exists()

    def reports(self) -> list[dict[str, float]]:
        """Return the points reported by the present attempt so far; a line half written is left out."""
        try:
            lines = (self.state / "metrics.jsonl").read_text().splitlines(keepends=True)
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def newest_checkpoint(self) -> Path | None:
        """Return the checkpoint of the highest step whose manifest is there."""
        whole = [manifest.parent for manifest in self.checkpoints.glob("step-*/manifest.json")]
        return max(whole, key=lambda folder: int(folder.name.removeprefix("step-")), default=None)

    def _variables(self) -> dict[str, str]:
        newest = self.newest_checkpoint()
        resume = {"RESUME_FROM": str(newest)} if newest else {}
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(self.folder),
            "PYTHONPATH": str(REPOSITORY),
            "TRAINING_ID": "test",
            "JOB_STATE_DIR": str(self.state),
            "CHECKPOINT_DIR": str(self.checkpoints),
            "RESULT_DIR": str(self.folder / "result"),
            **resume,
            **self.environment,
        }
