"""Something else that happens in the middle of a transaction, by a connection of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from django.db import connection, connections

GIVE_UP_S = 60


class Meanwhile:
    """Work in a thread. The test has to commit (transaction=True), or it sees none of the test's rows."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self._work = work
        self._result: Any = None
        self._failure: BaseException | None = None
        self._pid: int | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def begin(self) -> None:
        """Return once it is over, or waits for a lock that another connection holds."""
        self._thread.start()
        gives_up = time.monotonic() + GIVE_UP_S
        while self._thread.is_alive() and not self._waits():
            assert time.monotonic() < gives_up, "it neither ends nor waits"
            time.sleep(0.01)

    @property
    def is_over(self) -> bool:
        return not self._thread.is_alive()

    def result(self) -> Any:
        """What it returned; raises what it raised."""
        self._thread.join(GIVE_UP_S)
        assert self.is_over, "it still waits"
        if self._failure is not None:
            raise self._failure
        return self._result

    def _waits(self) -> bool:
        if self._pid is None:
            return False
        with connection.cursor() as cursor:
            cursor.execute("SELECT cardinality(pg_blocking_pids(%s)) > 0", [self._pid])
            return bool(cursor.fetchone()[0])

    def _run(self) -> None:
        try:
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_backend_pid()")
                self._pid = cursor.fetchone()[0]
            self._result = self._work()
        except BaseException as failure:
            self._failure = failure
        finally:
            connections.close_all()
