"""Ctrl-C on a whole platform while a large file travels: it ends soon, and after the next start the file arrives.

The way between learners and the web process stalls in the middle of the file, so that the stop meets it there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any
from urllib.request import Request, urlopen

import pytest

from tests.fault.replicas import Balancer, WebReplica
from tests.fault.specs import spec
from tests.fault.test_ends import attempts
from tests.platform import Client, Platform, running, wait_for

pytestmark = [pytest.mark.fault, pytest.mark.timeout(900)]

SIZE = 12 << 20
STALLS_AT = 1 << 20
"""Less than one piece of a file, and more than all else that a connection carries here."""
GRACE = "1h"
"""A stop that waits for it does not end within this test."""
LEAVES = f"""\
import hashlib, os
content = os.urandom({SIZE})
with open(os.environ["RESULT_DIR"] + "/large.bin", "wb") as file:
    file.write(content)
print(hashlib.sha256(content).hexdigest())
"""
RESUMES = f"""\
import hashlib, os, sys, time
from learner_agent import training

start = training.resume_from()
if start:
    print(hashlib.sha256((start / "large.bin").read_bytes()).hexdigest())
    training.finish()
    sys.exit()
content = os.urandom({SIZE})
print(hashlib.sha256(content).hexdigest(), flush=True)
while not training.halt_requested():
    time.sleep(0.05)
with training.checkpoint(1) as folder:
    (folder / "large.bin").write_bytes(content)
"""


@pytest.fixture(scope="module")
def way() -> Iterator[Balancer]:
    """Between the learners and the web process."""
    balancer = Balancer()
    yield balancer
    balancer.close()


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory, way: Balancer) -> Iterator[Platform]:
    folder = tmp_path_factory.mktemp("stop") / "data"
    with running(folder, workers=1, LUTHIER_INGEST_URL=f"ws://127.0.0.1:{way.port}") as started:
        way.backends.append(started.port)
        yield started


def large(program: str) -> dict[str, Any]:
    return spec("large-file", program, checkpoint={"grace": GRACE})


def stop_amid_a_file(platform: Platform, way: Balancer) -> None:
    """Once a file is on its way. `Platform.stop` kills what has not ended after a minute, and raises."""
    wait_for(lambda: way.stalled, within_s=120, what="a file is on its way")
    platform.stop()
    way.stalls_at, way.stalled = None, 0
    platform.start()


def printed(client: Client, job: str, attempt: int) -> str:
    return client.raw_log(job, attempt=attempt).decode().strip()


def stored(client: Client, job: str) -> str:
    """The hash of the result, as it is fetched."""
    place = f"{client.url}/api/v1/jobs/{job}/results/large.bin"
    with urlopen(Request(place, headers={"Authorization": f"Bearer {client.token}"}), timeout=60) as answer:
        return hashlib.sha256(answer.read()).hexdigest()


def reasons(client: Client, job: str) -> set[str]:
    """Why the job was stopped, by its history."""
    history = client.get(f"/jobs/{job}/events", page_size=200)["items"]
    return {event["reason"]["code"] for event in history if event["to_state"] in ("STOPPING", "QUEUED")} - {
        ""
    }


def test_results_that_are_being_sent_at_a_stop_are_sent_on_after_it(
    platform: Platform, way: Balancer
) -> None:
    client = platform.client()
    way.stalls_at = STALLS_AT
    job = client.submit(large(LEAVES))["id"]

    stop_amid_a_file(platform, way)

    ended = client.wait_state(job, "COMPLETED", within_s=120)
    assert (ended["attempt"], ended["restarts_used"]) == (1, 0)
    assert reasons(client, job) == set()
    assert stored(client, job) == printed(client, job, 1)
    platform.manage("invariants")


def test_a_checkpoint_that_is_being_fetched_at_a_stop_is_fetched_after_it(
    platform: Platform, way: Balancer
) -> None:
    client = platform.client()
    job = client.submit(large(RESUMES))["id"]
    wait_for(lambda: client.job(job)["state"] == "PROCESSING", within_s=120, what="its program runs")
    client.post(f"/jobs/{job}/halt")
    client.wait_state(job, "HALTED", within_s=120)
    way.stalls_at = STALLS_AT
    client.post(f"/jobs/{job}/resume")

    stop_amid_a_file(platform, way)

    ended = client.wait_state(job, "COMPLETED", within_s=120)
    outcomes = {attempt["n"]: attempt["outcome"] for attempt in attempts(client, job)}
    assert (outcomes[2], ended["attempt"], ended["restarts_used"]) == ("platform_stopped", 3, 0)
    assert printed(client, job, 3) == printed(client, job, 1)
    platform.manage("invariants")


def test_a_file_that_is_being_sent_to_a_web_process_that_stops_is_sent_to_another(
    platform: Platform, way: Balancer
) -> None:
    """As in an upgrade, which takes one web process after the other."""
    client, replica = platform.client(), WebReplica(platform)
    try:
        way.backends[:] = [replica.port]
        way.stalls_at = STALLS_AT
        job = client.submit(large(LEAVES))["id"]
        wait_for(lambda: way.stalled, within_s=120, what="a file is on its way")

        way.backends.append(platform.port)
        replica.stop()
        way.backends[:] = [platform.port]
        way.stalls_at = None

        ended = client.wait_state(job, "COMPLETED", within_s=120)
    finally:
        replica.stop()
        way.backends[:] = [platform.port]
    assert (ended["attempt"], ended["restarts_used"], reasons(client, job)) == (1, 0, set())
    assert stored(client, job) == printed(client, job, 1)
