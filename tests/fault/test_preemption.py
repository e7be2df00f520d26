"""A job that may stop another one on a full platform: that saves, leaves, and goes on afterwards where it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.fault.faults import lines_so_far
from tests.fault.specs import spec
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


SIZE = {"cpus": 2, "memory": "256Mi"}


def steps(client: Client, job: str, attempt: int) -> list[int]:
    lines = client.raw_log(job, attempt=attempt).decode().splitlines()
    return [int(line.removeprefix("step ")) for line in lines if line.startswith("step ")]


@pytest.mark.parametrize(
    ("first", "second"),
    [({"priority": "low"}, {"priority": "urgent"}), ({"opportunistic": True}, {"priority": "low"})],
)
def test_a_job_on_a_full_platform_starts_once_the_other_has_saved_and_no_step_is_lost(
    first: dict[str, Any], second: dict[str, Any], tmp_path: Path
) -> None:
    with running(tmp_path / "data", nodes="node-a:cpu:2", workers=1) as platform:
        client, may_end = platform.client(), platform.meeting / "may-end"
        allowed = platform.client("admin").call(
            "PATCH",
            f"/tenants/{client.tenant}",
            {"priorities": ["low", "normal", "high", "urgent"], "reason": "A deadline"},
        )
        assert allowed.status == 200, allowed

        env = {"MAY_END": str(may_end)}
        leaves = client.submit(spec("leaves", STEPS, resources=SIZE, env=env, **first))["id"]
        wait_for(lambda: lines_so_far(client, leaves) > 5, within_s=90, what="its first steps")
        comes = client.submit(spec("comes", "print('now')", resources=SIZE, **second))["id"]
        client.wait_state(comes, "COMPLETED", within_s=120)
        reasons = [event["reason"]["code"] for event in client.get(f"/jobs/{leaves}/events")["items"]]
        assert "preempted" in reasons

        client.wait_state(leaves, "PROCESSING", within_s=90)
        seen = lines_so_far(client, leaves)
        wait_for(lambda: lines_so_far(client, leaves) > seen + 5, within_s=90, what="steps after its return")
        may_end.touch()
        ended = client.wait_state(leaves, "COMPLETED", within_s=90)
        assert (ended["attempt"], ended["restarts_used"]) == (2, 0)
        before, after = steps(client, leaves, 1), steps(client, leaves, 2)
        assert before + after == list(range(1, after[-1] + 1)), "each step once"
