"""Kill every part of the platform in turn while a job prints.

Each byte is stored once, the job completes, the slots come back, and no process is left behind.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from functools import partial

import pytest

from tests.fault.faults import FAULTS, frozen, kill_workers, learner_processes, lines_so_far
from tests.fault.specs import spec
from tests.platform import Client, Platform, running, wait_for

pytestmark = [pytest.mark.fault, pytest.mark.timeout(600)]
LINES = 200_000
SECONDS = 25

PROGRAM = f"""\
import sys, time
started = time.monotonic()
for n in range(1, {LINES} + 1):
    sys.stdout.write(f"line {{n:07d}} of {LINES}\\n")
    if n % 400 == 0:
        sys.stdout.flush()
        ahead = started + n * {SECONDS} / {LINES} - time.monotonic()
        time.sleep(max(0.0, ahead))
"""
SPEC = spec("counter", PROGRAM)
EXPECTED = b"".join(b"line %07d of %d\n" % (n, LINES) for n in range(1, LINES + 1))


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    with running(tmp_path_factory.mktemp("fault") / "data", workers=2) as started:
        yield started


@contextlib.contextmanager
def without_valkey(platform: Platform) -> Iterator[None]:
    """Kill Valkey again each time that the supervisor has restarted it."""
    stop = threading.Event()

    def keep_it_down() -> None:
        while not stop.wait(0.05):
            with contextlib.suppress(OSError, KeyError):
                os.kill(platform.pids()["valkey"], signal.SIGKILL)

    killer = threading.Thread(target=keep_it_down)
    killer.start()
    try:
        yield
    finally:
        stop.set()
        killer.join()


def check_end(platform: Platform, client: Client, job: str) -> None:
    """What must hold after any fault: completed, log byte-equal, slots free, no process left, invariants intact."""
    ended = client.wait_state(job, "COMPLETED", within_s=SECONDS * 3 + 120)
    stored = client.raw_log(job, attempt=ended_attempt(client, job))
    assert len(stored) == len(EXPECTED)
    assert stored == EXPECTED
    assert ended["restarts_used"] == 0
    wait_for(
        lambda: all(row["used"] == 0 for row in client.get(f"/tenants/{client.tenant}/quotas")["items"]),
        within_s=30,
    )
    wait_for(lambda: not learner_processes(job, ""), within_s=30, what="no process of the job is left")
    platform.manage("invariants")


def ended_attempt(client: Client, job: str) -> int:
    return int(client.get(f"/jobs/{job}/attempts")["items"][-1]["n"])


@pytest.mark.parametrize("fault", FAULTS)
def test_no_line_is_lost_or_doubled(platform: Platform, fault: str) -> None:
    client = platform.client()
    job = client.submit(SPEC)["id"]
    client.wait_state(job, "PROCESSING", within_s=90)
    wait_for(lambda: lines_so_far(client, job) > 2000, within_s=30, what="lines before the fault")
    FAULTS[fault](platform, job)
    check_end(platform, client, job)
    wait_for(platform.is_ready, within_s=60, what="ready again")


def test_jobs_start_while_the_scheduler_is_frozen(platform: Platform) -> None:
    """Workers make the passes that are overdue, once its lease has ended if it held the cycle."""
    client = platform.client()
    with frozen(platform.pids()["scheduler"]):
        job = client.submit(SPEC)["id"]
        client.wait_state(job, "PROCESSING", within_s=90)
    check_end(platform, client, job)


@pytest.mark.skipif(
    "LUTHIER_LONG" not in os.environ, reason="five minutes of silence: only by make test-long"
)
@pytest.mark.timeout(1200)
def test_five_minutes_without_a_web_server(platform: Platform) -> None:
    client = platform.client()
    job = client.submit(SPEC)["id"]
    client.wait_state(job, "PROCESSING", within_s=90)
    with frozen(platform.pids()["web"]):
        time.sleep(300)
    check_end(platform, client, job)


def test_everything_at_once(platform: Platform) -> None:
    """One fault after another, each between lines: the program prints a part when its fault comes, not before."""
    client, parts = platform.client(), platform.meeting / "parts"
    parts.mkdir()
    faults = ("flush", "workers", "shipper", "web", "nodes", "postgres")
    program = PROGRAM.replace(
        "    if n % 400", f"    started = await_part(n // {LINES // len(faults) + 1}, n)\n    if n % 400"
    )
    job = client.submit(spec("counter", AWAITS + program, env={"PARTS": str(parts)}))
    for part, name in enumerate(faults):
        client.wait_state(job["id"], "PROCESSING", within_s=90)
        seen = lines_so_far(client, job["id"])
        (parts / str(part)).touch()
        FAULTS[name](platform, job["id"])
        wait_for(partial(has_more_lines, client, job["id"], seen), within_s=90, what=f"lines after {name}")
    check_end(platform, client, job["id"])


AWAITS = f"""\
import os, pathlib, sys, time

begun = {{}}

def await_part(part, n):
    if part not in begun:
        sys.stdout.flush()
        while not pathlib.Path(os.environ["PARTS"], str(part)).exists():
            time.sleep(0.02)
        begun[part] = time.monotonic() - n * {SECONDS} / {LINES}
    return begun[part]

"""


def has_more_lines(client: Client, job: str, seen: int) -> bool:
    return lines_so_far(client, job) > seen


def test_without_valkey_for_good_everything_works_only_slower(platform: Platform) -> None:
    client = platform.client()
    with without_valkey(platform):
        job = client.submit(SPEC)["id"]
        client.wait_state(job, "PROCESSING", within_s=90)
        check_end(platform, client, job)
    wait_for(platform.is_ready, within_s=120, what="ready again")


STATES_AT = {
    "deploy": "DEPLOYING DOWNLOADING PROCESSING",
    "halt": "PROCESSING",
    "finish": "STORING COMPLETED",
}


@pytest.mark.parametrize("moment", STATES_AT)
def test_workers_killed_in_the_middle_cost_seconds_and_no_job(platform: Platform, moment: str) -> None:
    """Kill every worker just as one acts: while deploying, right after a halt was requested, and while finishing."""
    client, gate = platform.client(), platform.meeting / f"gate-{moment}"
    if moment != "halt":
        gate.touch()
    job = client.submit(spec("brief", COUNTING, env={"GATE": str(gate)}))["id"]
    if moment != "deploy":
        client.wait_state(job, *STATES_AT[moment].split(), within_s=60)
    if moment == "halt":
        client.post(f"/jobs/{job}/halt")
    kill_workers(platform, job)
    if moment == "halt":
        halted = client.wait_state(job, "HALTED", within_s=90)
        assert halted["last_halt"]["steps_lost"] == 0
        gate.touch()
        client.post(f"/jobs/{job}/resume")
    ended = client.wait_state(job, "COMPLETED", within_s=90)
    assert ended["progress"]["step"] == 40
    assert ended["restarts_used"] == 0
    platform.manage("invariants")
    wait_for(platform.is_ready, within_s=60, what="ready again")


COUNTING = """\
import os, pathlib, time
from learner_agent import training
start = training.resume_from()
gate = pathlib.Path(os.environ["GATE"])  # the last step waits for this file, or for a halt
first = int((start / "step").read_text()) if start else 0
for step in range(first + 1, 41):
    time.sleep(0.1)
    while step == 40 and not (gate.exists() or training.halt_requested()):
        time.sleep(0.05)
    training.report(step, total=40, value=step)
    if training.halt_requested() or step == 40:
        with training.checkpoint(step) as folder:
            (folder / "step").write_text(str(step))
    if training.halt_requested():
        break
"""
"""Four seconds of counting that save when a halt is requested."""
