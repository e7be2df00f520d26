"""Four web processes and ten workers on one database: any may be killed or replaced while jobs run and people watch."""

from __future__ import annotations

import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import psycopg2
import pytest

from portal.settings.embedded import layout
from tests.fault.faults import statuses_until
from tests.fault.replicas import Balancer, LogViewer, WebReplica
from tests.fault.specs import spec
from tests.platform import Client, Platform, wait_for

pytestmark = [pytest.mark.fault, pytest.mark.timeout(600)]
JOBS = 20
WEB_CONNECTIONS = 26
"""Of each of four web processes, as docs/operations.md says for ten workers and PostgreSQL's 200."""
WORKER_CONNECTIONS = 9
CROWD = 100
"""Requests at once; 24 are run."""

PROGRAM = """\
import itertools, time
from learner_agent import training
for n in itertools.count(1):
    print(f"line {n}", flush=True)
    if training.halt_requested():
        break
    time.sleep(0.05)
"""
SPEC = spec("lines", PROGRAM)


@dataclass
class Installation:
    platform: Platform
    balancer: Balancer
    replicas: list[WebReplica]

    def client(self) -> Client:
        """Alice's, through the balancer."""
        alice = self.platform.client()
        return Client(f"http://127.0.0.1:{self.balancer.port}", alice.token, alice.tenant)


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    balancer = Balancer()
    platform = Platform(
        tmp_path_factory.mktemp("replicas") / "data",
        nodes=f"node-a:cpu:{JOBS + 12}",
        workers=10,
        LUTHIER_PUBLIC_URL=f"http://127.0.0.1:{balancer.port}",
        LUTHIER_INGEST_URL=f"ws://127.0.0.1:{balancer.port}",
        LUTHIER_WEB_CONNECTIONS=str(WEB_CONNECTIONS),
    )
    replicas: list[WebReplica] = []
    try:
        platform.start()
        replicas += [WebReplica(platform) for _ in range(3)]
        balancer.backends += [platform.port, *(replica.port for replica in replicas)]
        yield Installation(platform, balancer, replicas)
    finally:
        for replica in replicas:
            replica.stop()
        platform.stop()
        balancer.close()


class ConnectionCount(threading.Thread):
    """Counts the connections to PostgreSQL again and again, but for its own."""

    def __init__(self, platform: Platform) -> None:
        super().__init__(daemon=True)
        self._where = layout(platform.data).database_url
        self._over = threading.Event()
        self.most = 0

    def run(self) -> None:
        with psycopg2.connect(self._where) as connection:
            connection.autocommit = True
            while not self._over.wait(0.02):
                with connection.cursor() as cursor:
                    cursor.execute(
                        "SELECT count(*) FROM pg_stat_activity"
                        " WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
                    )
                    (count,) = cursor.fetchone() or (0,)
                    self.most = max(self.most, count)
        connection.close()

    def stop(self) -> int:
        self._over.set()
        self.join()
        return self.most


def test_a_crowd_gets_no_more_connections_than_documented(installation: Installation) -> None:
    alice = installation.client()
    short = spec("short", "print('here')\n")
    jobs = [alice.submit(short)["id"] for _ in range(JOBS)]  # so that the workers are busy, too
    count, ended, all_here = (
        ConnectionCount(installation.platform),
        threading.Event(),
        threading.Barrier(CROWD),
    )
    count.start()
    with ThreadPoolExecutor(CROWD) as threads:
        requests = [threads.submit(statuses_until, ended, all_here, alice) for _ in range(CROWD)]
        try:
            for job in jobs:
                Client(installation.platform.url, alice.token, alice.tenant).wait_state(
                    job, "COMPLETED", within_s=200
                )
        finally:
            ended.set()
        statuses = Counter(status for one in requests for status in one.result())
    most = count.stop()
    print(f"{most} connections at most, {dict(statuses)}")
    assert set(statuses) == {200}
    assert most <= 4 * WEB_CONNECTIONS + 10 * WORKER_CONNECTIONS


def test_a_killed_web_process_and_a_rolling_restart_cost_no_line(installation: Installation) -> None:
    alice, balancer = installation.client(), installation.balancer
    jobs = [alice.submit(SPEC)["id"] for _ in range(JOBS)]
    for job in jobs:
        alice.wait_state(job, "PROCESSING", within_s=120)
    viewers = [LogViewer(alice, job) for job in jobs]
    for viewer in viewers:
        viewer.start()
    try:
        await_new_lines(viewers)
        killed = installation.replicas[0]
        assert balancer.open[killed.port] > 0, "learners and viewers are on the one that is killed"
        moment = time.monotonic()
        killed.kill()
        await_new_lines(viewers)
        print(
            f"every viewer had new lines {max(viewer.last_at for viewer in viewers) - moment:.1f} s after it"
        )
        killed.start()

        installation.platform.manage(
            "prepare", "--no-demo"
        )  # of the next version, under the running processes
        for replica in installation.replicas:
            replica.stop()
            await_new_lines(viewers)
            replica.start()
        for role in [
            role for role in installation.platform.pids() if role.startswith(("worker", "scheduler", "web"))
        ]:
            restart(installation.platform, role)
        await_new_lines(viewers)

        printed = {}
        for job in jobs:
            alice.post(f"/jobs/{job}/halt")
        for job in jobs:
            ended = alice.wait_state(job, "HALTED", within_s=120)
            assert (ended["restarts_used"], len(alice.get(f"/jobs/{job}/attempts")["items"])) == (0, 1)
            printed[job] = alice.raw_log(job, attempt=1).decode().splitlines()
        for viewer, job in zip(viewers, jobs, strict=True):
            wait_for(partial(viewer.has_seen, len(printed[job])), within_s=60, what="the log's last line")
    finally:
        for viewer in viewers:
            viewer.stop()
    for viewer, job in zip(viewers, jobs, strict=True):
        assert viewer.wrong == []
        assert viewer.lines == printed[job] == [f"line {n}" for n in range(1, len(printed[job]) + 1)]
    installation.platform.manage("invariants")


def await_new_lines(viewers: list[LogViewer]) -> None:
    """Until every viewer has seen more than it has now."""
    seen = [len(viewer.lines) for viewer in viewers]
    wait_for(
        lambda: all(len(viewer.lines) > lines + 1 for viewer, lines in zip(viewers, seen, strict=True)),
        within_s=120,
        what="new lines for every viewer",
    )


def restart(platform: Platform, role: str) -> None:
    """End a process in order; the supervisor starts the next one."""
    before = platform.pids()[role]
    platform.kill(role, signal.SIGTERM)
    wait_for(lambda: platform.pids().get(role, before) != before, within_s=60, what=f"a new {role}")
    wait_for(platform.is_ready, within_s=120, what="ready again")
