"""Programs are confined by default: jobs run, halt and resume, survive the node daemon, and reach no keys."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fault.faults import lines_so_far
from tests.fault.specs import spec
from tests.platform import Platform, running, wait_for

pytestmark = [pytest.mark.fault, pytest.mark.timeout(300)]

STEPS = """\
import os, pathlib, time
from learner_agent import training
found = training.resume_from()
first = int((found / "step").read_text()) + 1 if found else 1
for step in range(first, 1000):
    training.report(step, loss=1 / step)
    if pathlib.Path(os.environ["MAY_END"]).exists() or training.halt_requested():
        break
    print("step", step, flush=True)
    time.sleep(0.05)
with training.checkpoint(step) as folder:
    (folder / "step").write_text(str(step))
if not training.halt_requested():
    training.finish()
"""


SMALL = {"memory": "256Mi"}


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    place = tmp_path_factory.mktemp("sandboxed") / "data"
    with running(place, workers=1) as started:
        yield started


def test_a_job_halts_resumes_and_outlives_the_node_daemon(platform: Platform) -> None:
    client, may_end = platform.client(), platform.meeting / "may-end"
    job = client.submit(spec("steps", STEPS, resources=SMALL, env={"MAY_END": str(may_end)}))["id"]
    wait_for(lambda: lines_so_far(client, job) > 5, within_s=90, what="its first steps")
    client.post(f"/jobs/{job}/halt")
    assert client.wait_state(job, "HALTED", within_s=90)["last_halt"]["steps_lost"] == 0
    client.post(f"/jobs/{job}/resume")
    client.wait_state(job, "PROCESSING", within_s=90)
    platform.kill("nodes")
    seen = lines_so_far(client, job)
    wait_for(lambda: lines_so_far(client, job) > seen + 5, within_s=90, what="steps after the daemon's death")
    may_end.touch()
    ended = client.wait_state(job, "COMPLETED", within_s=90)
    assert ended["attempt"] == 2, "the daemon that came back found it again"


def test_a_job_that_reads_the_platforms_keys_fails_with_a_diagnosis(platform: Platform) -> None:
    client = platform.client()
    for path in (platform.data / "secret_key", platform.data / "keys" / "postgres"):
        thief = spec("thief", f"print(open({str(path)!r}).read())", resources=SMALL, max_restarts=0)
        job = client.submit(thief)["id"]
        reason = client.wait_state(job, "FAILED", within_s=90)["reason"]
        # Hidden, because it is below /tmp, as it would below the home folder of the platform's user.
        assert f"could not find the file {path}" in reason["message"], reason
        assert path.read_text() not in client.raw_log(job, attempt=1).decode()


def test_a_job_that_fills_shared_memory_ends_at_its_memory(platform: Platform) -> None:
    client = platform.client()
    fills = "import time\nwith open('/dev/shm/file', 'wb') as file:\n"
    fills += (
        "    for _ in range(250):\n        file.write(bytes(1 << 20))\nprint('all written')\ntime.sleep(600)"
    )
    job = client.submit(spec("fills", fills, resources=SMALL | {"memory": "128Mi"}, max_restarts=0))["id"]
    client.wait_state(job, "FAILED", within_s=90)
    assert b"No space left on device" in client.raw_log(job, attempt=1)
    holds = fills.replace("250", "120").replace("time.sleep", "held = b'x' * (64 << 20)\ntime.sleep")
    job = client.submit(spec("holds", holds, resources=SMALL | {"memory": "128Mi"}, max_restarts=0))["id"]
    reason = client.wait_state(job, "FAILED", within_s=90)["reason"]
    assert reason["code"] == "out_of_memory", reason
    assert b"all written" in client.raw_log(job, attempt=1)


def test_doctor_says_what_is_active(platform: Platform) -> None:
    assert "isolated by Landlock" in platform.manage("doctor")
