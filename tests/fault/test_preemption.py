"""An urgent job on a full platform: the low one saves, leaves, and goes on afterwards where it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.fault.faults import lines_so_far
from tests.platform import Client, running, wait_for

pytestmark = [pytest.mark.fault, pytest.mark.timeout(300)]

STEPS = """\
import os, pathlib, time
from learner_agent import training
found = training.resume_from()
step = int((found / "step").read_text()) if found else 0
while not pathlib.Path(os.environ["MAY_END"]).exists() and not training.halt_requested():
    step += 1
    training.report(step, loss=1 / step)
    print("step", step, flush=True)
    time.sleep(0.05)
with training.checkpoint(step) as folder:
    (folder / "step").write_text(str(step))
if not training.halt_requested():
    training.finish()
"""


def spec(name: str, program: str, priority: str, **more: Any) -> dict[str, Any]:
    return {
        "apiVersion": "luthier/v1",
        "name": name,
        "framework": "plain",
        "code": {"files": {"main.py": program}},
        "command": "python main.py",
        "resources": {"learners": 1, "gpus": 0, "cpus": 2, "memory": "256Mi"},
        "priority": priority,
        **more,
    }


def steps(client: Client, job: str, attempt: int) -> list[int]:
    lines = client.raw_log(job, attempt=attempt).decode().splitlines()
    return [int(line.removeprefix("step ")) for line in lines if line.startswith("step ")]


def test_an_urgent_job_starts_once_the_low_one_has_saved_and_no_step_is_lost(tmp_path: Path) -> None:
    with running(tmp_path / "data", nodes="node-a:cpu:2", workers=1) as platform:
        client, may_end = platform.client(), platform.meeting / "may-end"
        allowed = platform.client("admin").call(
            "PATCH",
            f"/tenants/{client.tenant}",
            {"priorities": ["low", "normal", "high", "urgent"], "reason": "A deadline"},
        )
        assert allowed.status == 200, allowed

        low = client.submit(spec("low", STEPS, "low", env={"MAY_END": str(may_end)}))["id"]
        wait_for(lambda: lines_so_far(client, low) > 5, within_s=90, what="its first steps")
        urgent = client.submit(spec("urgent", "print('now')", "urgent"))["id"]
        client.wait_state(urgent, "COMPLETED", within_s=120)
        reasons = [event["reason"]["code"] for event in client.get(f"/jobs/{low}/events")["items"]]
        assert "preempted" in reasons

        client.wait_state(low, "PROCESSING", within_s=90)
        seen = lines_so_far(client, low)
        wait_for(lambda: lines_so_far(client, low) > seen + 5, within_s=90, what="steps after its return")
        may_end.touch()
        ended = client.wait_state(low, "COMPLETED", within_s=90)
        assert (ended["attempt"], ended["restarts_used"]) == (2, 0)
        before, after = steps(client, low, 1), steps(client, low, 2)
        assert before + after == list(range(1, after[-1] + 1)), "each step once"
