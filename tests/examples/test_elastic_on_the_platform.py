"""An elastic job on a whole platform: others come and go, its learners with them, and its training goes on as if it had
had one learner all the time. Long."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from examples import catalog
from tests.examples.programs import Program, share
from tests.platform import Client, running, wait_for

pytestmark = [pytest.mark.fault, pytest.mark.timeout(600)]

BATCH_S = "0.4"
LOSS = re.compile(r"step (\d+) loss (\S+)")
"""As rank 0 prints it every 20 steps."""
WAITS = """\
import pathlib, time
from learner_agent import training
while not training.halt_requested() and not pathlib.Path("{end}").exists():
    time.sleep(0.1)
training.finish()
"""


def elastic(name: str) -> dict[str, Any]:
    spec = catalog.load("gang-numpy")
    spec |= {"name": name, "placement": "pack"}
    spec["resources"] |= {"learners": {"min": 1, "max": 4}, "memory": "512Mi"}
    spec["env"] |= {"STEPS": "100000", "STEP_S": "0", "BATCH_S": BATCH_S}
    del spec["time_limit"]
    return spec


def other(name: str, cpus: int, end: Path) -> dict[str, Any]:
    """A job that holds its CPUs until this file is there."""
    return {
        "apiVersion": "luthier/v1",
        "name": name,
        "framework": "plain",
        "code": {"files": {"main.py": WAITS.format(end=end)}},
        "command": "python main.py",
        "resources": {"learners": 1, "gpus": 0, "cpus": cpus, "memory": "128Mi"},
    }


def has(client: Client, job: str, learners: int) -> None:
    """Await that it trains with so many learners."""

    def look() -> bool:
        found = client.job(job)
        return bool(found["state"] == "PROCESSING" and found["learners"] == learners)

    wait_for(look, within_s=180, what=f"{learners} learners")
    at = client.job(job)["progress"]["step"] or 0
    wait_for(lambda: (client.job(job)["progress"]["step"] or 0) > at + 5, within_s=90, what="further steps")


def attempts_of(client: Client, job: str) -> list[dict[str, Any]]:
    """The newest first."""
    return list(client.get(f"/jobs/{job}/attempts")["items"])


def losses(printed: str) -> dict[int, float]:
    return {int(step): float(loss) for step, loss in LOSS.findall(printed)}


def test_an_elastic_job_shrinks_for_others_and_grows_when_they_leave(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    share(data)
    with running(data, nodes="node-a:cpu:4") as platform:
        client, bob, end = platform.client("alice"), platform.client("bob"), platform.meeting
        limit = {"tenant": client.tenant, "gpu_type": "cpu", "limit": 4}
        platform.client("admin").post("/quota-changes", {"changes": [limit], "reason": "All of it"})
        first = client.submit(other("first", 2, end / "first"))["id"]
        client.wait_state(first, "PROCESSING", within_s=60)
        job = client.submit(elastic("digits"))["id"]
        has(client, job, 1)  # nothing is known of it yet
        has(client, job, 2)  # it makes use of the two CPUs that are left
        second = bob.submit(other("second", 1, end / "second"))["id"]
        has(client, job, 1)
        bob.wait_state(second, "PROCESSING", within_s=60)
        for name in ("first", "second"):
            (end / name).touch()
        has(client, job, 4)
        wait_for(lambda: attempts_of(client, job)[0]["step_s"], within_s=60, what="its measured step")
        client.post(f"/jobs/{job}/halt")
        halted = client.wait_state(job, "HALTED", within_s=90)
        assert halted["elastic"] == {"min": 1, "max": 4}

        attempts = attempts_of(client, job)
        assert [attempt["learners"] for attempt in reversed(attempts)] == [1, 2, 1, 4]
        assert all(attempt["step_s"] for attempt in attempts)
        assert halted["restarts_used"] == 0
        events = client.get(f"/jobs/{job}/events", page_size=200)["items"]
        messages = " ".join(event["message"] for event in events)
        assert "from 1 to 2 learners into free devices" in messages
        assert "from 2 to 1 learner to leave devices to other jobs" in messages
        assert "from 1 to 4 learners into free devices" in messages

        printed = "".join(client.raw_log(job, attempt=n).decode() for n in (1, 2, 3, 4))
        seen = losses(printed)
        assert list(seen) == list(range(20, max(seen) + 1, 20)), "each step once, in order"
    alone = Program(tmp_path / "alone", "gang-numpy", "sklearn", ["train.py"], {"STEPS": str(max(seen))})
    expected = losses(alone.run())
    assert {step: expected[step] for step in seen} == pytest.approx(seen, rel=1e-3), "the same training"


def test_with_a_range_of_batches_each_size_trains_with_the_batch_that_was_chosen_for_it(
    tmp_path: Path,
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    share(data)
    with running(data, nodes="node-a:cpu:4") as platform:
        client = platform.client("alice")
        limit = {"tenant": client.tenant, "gpu_type": "cpu", "limit": 4}
        platform.client("admin").post("/quota-changes", {"changes": [limit], "reason": "All of it"})
        spec = elastic("batches")
        spec["resources"] |= {"batch": {"min": 32, "max": 256}}
        job = client.submit(spec)["id"]
        has(client, job, 1)  # nothing is known of it yet
        has(client, job, 4)  # maybe with two in between
        client.post(f"/jobs/{job}/halt")
        client.wait_state(job, "HALTED", within_s=90)

        attempts = [each for each in reversed(attempts_of(client, job)) if each["processing_at"]]
        batches = [attempt["batch"] for attempt in attempts]
        assert batches[0] == 32, "the smallest, which is known to train well"
        assert 32 < batches[-1] <= 256, "more learners compute more samples in a step"
        for attempt in attempts:
            printed = client.raw_log(job, attempt=attempt["n"]).decode()
            assert f"batch {attempt['batch']}, {attempt['micro_batch']} at once" in printed
            assert attempt["micro_batch"] <= 32, "no learner computes more at once than one has before"
        events = client.get(f"/jobs/{job}/events", page_size=200)["items"]
        placed = " ".join(event["message"] for event in events)
        assert all(f", batch {batch}" in placed for batch in batches)
