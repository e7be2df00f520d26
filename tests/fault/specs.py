"""Specs of the jobs that meet faults, and the program of those that go on after one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

TRAINS = """\
import os, pathlib, time
from learner_agent import training

start = training.resume_from()
first = int((start / "step").read_text()) + 1 if start else 0
results = pathlib.Path(os.environ["RESULT_DIR"])
print("from", first, "with", sorted(path.name for path in results.iterdir()), flush=True)
(results / f"attempt-{os.environ['LUTHIER_ATTEMPT']}.txt").write_text("here")
for step in range(first, first + (5 if start else 100_000)):
    training.report(step, loss=1.0)
    time.sleep(0.02)
    if training.halt_requested():
        with training.checkpoint(step) as folder:
            (folder / "step").write_text(str(step))
        break
else:
    training.finish()
"""


def spec(name: str, program: str, *, resources: Mapping[str, str | int] = {}, **more: Any) -> dict[str, Any]:
    """A job of the plain runtime that runs this program: by default one learner with one CPU."""
    return {
        "apiVersion": "luthier/v1",
        "name": name,
        "framework": "plain",
        "code": {"files": {"main.py": program}},
        "command": "python main.py",
        "resources": {"learners": 1, "gpus": 0, "cpus": 1, **resources},
    } | more
