"""Learners that are played: for benchmarks of the lifecycle on the `memory` cluster, where no process runs.

    python -m bench.played            with a platform's environment; ends with its standard input

Each learner of a launched gang says that its program runs, then, after the seconds that its job's command sleeps, that
it ended and that everything is delivered; one that is asked to stop does so at once, halted. Their frames go through
the same writer as those of shippers (`jobs.ingest.writer`), which commits and notifies the lifecycle: what is not
measured is sockets and processes.
"""

from __future__ import annotations

import heapq
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import django

from learner_agent.wire import Event, Final
from tests.platform import ROOT, Platform

LOOK_S = 0.02
LIVE = """
SELECT l.id, l.job_id, l.tenant_id, l.attempt, l.rank, j.spec->>'command', j.state = 'STOPPING'
FROM jobs_attempt a
JOIN jobs_job j ON j.id = a.job_id
JOIN jobs_learner l ON l.job_id = a.job_id AND l.attempt = a.n
WHERE a.held AND a.launched_at IS NOT NULL AND l.done_at IS NULL
"""


@contextmanager
def learners(platform: Platform) -> Iterator[subprocess.Popen[bytes]]:
    """All learners of this platform are played by this process, until the end of the block."""
    command = [sys.executable, "-m", "bench.played"]
    process = subprocess.Popen(command, cwd=ROOT, env=platform.environment(), stdin=subprocess.PIPE)
    try:
        yield process
    finally:
        process.communicate(timeout=30)


@dataclass
class _Learner:
    """One that is not done yet."""

    grant: Any
    ended: bool = False


class Players:
    """Plays every learner that the database shows."""

    def __init__(self) -> None:
        from django.db import connection

        from jobs.ingest.writer import Writer

        with (
            connection.cursor() as cursor
        ):  # of this process alone: looks must cost the platform's database little
            cursor.execute("SET enable_seqscan = off")
        self._writer = Writer()
        self._known: dict[int, _Learner] = {}
        self._ends: list[tuple[float, int]] = []

    def look(self) -> None:
        """Begin what was launched, and end what is over or must stop."""
        from django.db import connection

        from jobs.tokens import Grant

        with connection.cursor() as cursor:
            cursor.execute(LIVE)
            rows = cursor.fetchall()
        now = time.monotonic()
        live = {row[0] for row in rows}
        self._known = {number: one for number, one in self._known.items() if number in live}
        for number, job, tenant, attempt, rank, command, stopping in rows:
            one = self._known.get(number)
            if one is None:
                ends_at = now + float(command.removeprefix("sleep "))
                one = self._known[number] = _Learner(Grant(number, job, tenant, attempt, rank, live=True))
                heapq.heappush(self._ends, (ends_at, number))  # by this process's monotonic clock
                self._send(one, Event(1, "phase", data={"phase": "PROCESSING"}))
            if stopping and not one.ended:
                self._end(one, halted=True)
        while self._ends and self._ends[0][0] <= now:
            _, number = heapq.heappop(self._ends)
            if number in self._known and not self._known[number].ended:
                self._end(self._known[number], halted=False)

    def _end(self, one: _Learner, *, halted: bool) -> None:
        one.ended = True
        self._send(
            one,
            Event(2, "exit", data={"code": 143 if halted else 0, "halted": halted}),
            Final(0, 0),
            Event(3, "phase", data={"phase": "DONE"}),
        )

    def _send(self, one: _Learner, *frames: Event | Final) -> None:
        from jobs.ingest.writer import Item

        for frame in frames:
            self._writer.submit(Item(one.grant, frame, _acknowledged))


def _acknowledged(count: int, answer: object) -> None:
    """A played learner sends nothing twice, so one that is refused would never end."""
    if answer is None:
        raise RuntimeError("a played learner's frame was refused")


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "portal.settings.base")
    django.setup()
    over = threading.Event()

    def await_the_end() -> None:
        sys.stdin.read()
        over.set()

    threading.Thread(target=await_the_end, daemon=True).start()
    players = Players()
    while not over.wait(LOOK_S):
        players.look()


if __name__ == "__main__":
    main()
