"""The platform as the opponent of another one, on one installation."""

from __future__ import annotations

import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import psycopg2

from bench.submit_latency import first_line_s
from bench.submits import cpu_s, submit_many
from portal.settings.embedded import layout
from tests.platform import Platform, wait_for

WAIT_S = 3600
POLL_S = 0.2
TRUE = {
    "apiVersion": "luthier/v1",
    "name": "true",
    "framework": "plain",
    "code": {"files": {"main.py": ""}},
    "command": "true",
    "resources": {"learners": 1, "gpus": 0, "cpus": 1},
}


class Ours:
    """A running platform; its runtime is made and used once before anything is measured."""

    def __init__(self, platform: Platform, connections: int = 1) -> None:
        self.platform, self.connections = platform, connections
        self.client = platform.client()
        self._submitted = 0
        self._waiting: list[str] = []
        first_line_s(self.client)

    def first_line_s(self) -> float:
        return first_line_s(self.client)

    def jobs_per_s(self, count: int, *, array: bool = False) -> float:
        """Rate of jobs of `true`, from the first submit until the last has ended. There are no arrays here."""
        # One connection: opening one for each look would count as the platform's CPU time.
        with closing(psycopg2.connect(layout(self.platform.data).database_url)) as watching:
            watching.autocommit = True
            wanted, began = _states(watching)["COMPLETED"] + count, time.monotonic()
            self._submit(count)
            wait_for(
                lambda: _states(watching)["COMPLETED"] >= wanted,
                within_s=WAIT_S,
                every_s=POLL_S,
                what=f"{count} jobs",
            )
            return count / (time.monotonic() - began)

    def submits_per_s(self, count: int) -> float:
        path = f"/tenants/{self.client.tenant}/quotas/cpu"
        closed = self.platform.client("admin").call("PUT", path, {"limit": 0, "reason": "measuring submits"})
        assert closed.status == 200, closed
        began = time.monotonic()
        self._waiting += self._submit(count)
        return count / (time.monotonic() - began)

    def withdraw(self) -> None:
        """Cancel what submits_per_s left waiting: it would be planned all the time beside what is measured next."""
        waiting, self._waiting = self._waiting, []
        with ThreadPoolExecutor(self.connections) as threads:
            statuses = set(
                threads.map(lambda job: self.client.call("POST", f"/jobs/{job}/cancel").status, waiting)
            )
        assert statuses <= {202}, statuses
        with closing(psycopg2.connect(layout(self.platform.data).database_url)) as watching:
            watching.autocommit = True
            wait_for(
                lambda: not _states(watching)["QUEUED"],
                within_s=WAIT_S,
                every_s=POLL_S,
                what="canceled jobs",
            )

    def cpu_s(self) -> float:
        return sum(cpu_s(self.platform).values())

    def _submit(self, count: int) -> list[str]:
        """The ids of so many new jobs."""
        firsts = range(self._submitted, self._submitted + count)
        shares = [firsts[place :: self.connections] for place in range(self.connections)]
        starts = [firsts[0] + sum(map(len, shares[:place])) for place in range(len(shares))]
        self._submitted += count
        with ThreadPoolExecutor(self.connections) as threads:
            parts = threads.map(
                lambda n, share: submit_many(self.client, n, len(share), TRUE), starts, shares
            )
            sent = [each for part in parts for each in part]
        statuses = Counter(status for status, _, _ in sent)
        assert set(statuses) == {201}, statuses
        return [job for _, job, _ in sent]


def _states(watching: Any) -> Counter[str]:
    """How many jobs are in which state, by an open connection."""
    with watching.cursor() as cursor:
        cursor.execute("SELECT state, count(*) FROM jobs_job GROUP BY state")
        found = Counter(dict(cursor.fetchall()))
    assert not found["FAILED"], found
    return found
