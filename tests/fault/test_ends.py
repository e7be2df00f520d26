"""Ends on a whole platform: results of jobs that were canceled or failed, and Ctrl-C on the platform, after whose next
start a running job goes on and a finished one stays finished."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.fault.faults import lines_so_far
from tests.fault.specs import TRAINS, spec
from tests.platform import Client, Platform, running, wait_for

pytestmark = [pytest.mark.fault, pytest.mark.timeout(600)]


def attempts(client: Client, job: str) -> list[dict[str, Any]]:
    return list(client.get(f"/jobs/{job}/attempts")["items"])


WRITES = """\
import os, pathlib, sys, time
(pathlib.Path(os.environ["RESULT_DIR"]) / "loss.txt").write_text("falling")
pathlib.Path("model.pt").write_text("weights")
print("written", flush=True)
time.sleep(float(sys.argv[1]))
sys.exit(3)
"""


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    with running(tmp_path_factory.mktemp("stop") / "data", workers=1) as started:
        yield started


def test_results_of_canceled_and_failed_jobs_can_be_fetched(platform: Platform) -> None:
    client = platform.client()
    canceled, failed = (
        client.submit(spec("goes-on", WRITES, command=f"python main.py {pause}", keep=["*.pt"]))["id"]
        for pause in (600, 0)
    )
    wait_for(lambda: lines_so_far(client, canceled), within_s=90, what="its results are written")

    client.post(f"/jobs/{canceled}/cancel")

    for job, state in ((canceled, "CANCELED"), (failed, "FAILED")):
        client.wait_state(job, state, within_s=90)
        files = client.get(f"/jobs/{job}/results")["items"]
        assert {file["path"] for file in files} == {"loss.txt", "model.pt"}


def test_a_stop_of_the_platform_is_no_lost_node_and_costs_nothing(platform: Platform) -> None:
    client = platform.client()
    done = client.submit(spec("goes-on", "print('trained')"))["id"]
    client.wait_state(done, "COMPLETED", within_s=90)
    job = client.submit(spec("goes-on", TRAINS))["id"]
    wait_for(lambda: lines_so_far(client, job), within_s=90, what="the program runs")

    platform.stop()
    platform.start()

    ended = client.wait_state(job, "COMPLETED", within_s=120)
    check_goes_on(platform, client, job, ended)
    assert (client.job(done)["state"], client.job(done)["attempt"]) == ("COMPLETED", 1)


def check_goes_on(platform: Platform, client: Client, job: str, ended: dict[str, Any]) -> None:
    """One stop, one more attempt from its checkpoint with its results, and neither restarts nor back-off."""
    assert (ended["attempt"], ended["restarts_used"]) == (2, 0)
    assert {attempt["n"]: attempt["outcome"] for attempt in attempts(client, job)}[1] == "platform_stopped"
    history = client.get(f"/jobs/{job}/events", page_size=200)["items"]
    stopped = [event for event in history if event["reason"]["code"] == "platform_stopped"]
    queued = next(event for event in stopped if event["to_state"] == "QUEUED")
    assert "wait_s" not in queued["numbers"]
    log = client.raw_log(job, attempt=2).decode()
    assert log.endswith("with ['attempt-1.txt']\n")
    assert not log.startswith("from 0 ")
    results = {file["path"] for file in client.get(f"/jobs/{job}/results")["items"]}
    assert results == {"attempt-1.txt", "attempt-2.txt"}
    platform.manage("invariants")
