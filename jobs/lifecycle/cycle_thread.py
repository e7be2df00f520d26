"""Makes this process's scheduling passes in a thread of its own, which never waits for what a pass started.

A worker that brings jobs on leaves passes to one that does nothing else, and makes one only if none does: see
docs/adr/0107-passes-have-a-process-of-their-own.md. To want a pass is only to set a flag: requests that come together
are one, and no thread that works on jobs makes a pass. Started jobs are due, so those that this process does not take
up are for any other.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence

from django.conf import settings
from django.db import Error as DatabaseFault
from django.db import connection

from jobs import wake
from jobs.lifecycle import cycle

logger = logging.getLogger(__name__)

SHORTEST_S = 0.1
"""Between two looks at whether a pass is due: if another worker holds the cycle, it makes ours, too."""
LOOK_S = 1.0
"""Between two looks at whether one is overdue."""
ABANDONED = 2
"""So many threads that do not come back: they hold connections, so there are no more of them."""


class CycleThread:
    """Makes a pass whenever one is requested or due, until it is stopped.

    started: gets the ids of the jobs that a pass started; it must not wait for them.
    helps: other workers make the passes. This one passes requests on, and makes a pass that is overdue.
    """

    def __init__(self, started: Callable[[Sequence[str]], None], *, helps: bool = False) -> None:
        self._started = started
        self._helps = helps
        self._wanted = threading.Event()
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._abandoned: list[threading.Thread] = []
        self._busy_since: float | None = None

    def start(self) -> None:
        """Begin, unless a thread runs. One that has not come back from a pass for two whole leases is replaced: it may
        wait for something without an end. Should it come back, it ends."""
        if self._over.is_set():
            return
        if self._thread is not None and self._thread.is_alive():
            self._abandoned = [thread for thread in self._abandoned if thread.is_alive()]
            if not _is_stuck(self._busy_since) or len(self._abandoned) >= ABANDONED:
                return
            self._abandoned.append(self._thread)
            logger.error("a scheduling pass does not come back: another thread makes the next one")
        self._busy_since = None
        self._thread = threading.Thread(target=self._run, name="cycle", daemon=True)
        self._thread.start()

    def request(self) -> None:
        """Have a pass made as soon as possible. Callable from any thread; never waits."""
        self._wanted.set()

    def stop(self, timeout_s: float) -> None:
        """Let a pass that has begun end, and begin none."""
        self._over.set()
        self._wanted.set()
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _run(self) -> None:
        wait_s = 0.0
        while self._goes_on():
            requested = self._wanted.wait(wait_s)
            self._wanted.clear()
            if not self._goes_on():
                break
            try:
                wait_s = self._make_passes(requested)
            except DatabaseFault as fault:
                logger.warning("the cycle cannot reach the database", extra={"error": str(fault).strip()})
                wait_s = settings.LUTHIER_TICK_S
                connection.close()
            except Exception:
                logger.exception("a scheduling cycle failed")
                wait_s = settings.LUTHIER_TICK_S
            if self._thread is threading.current_thread():
                self._busy_since = None
        connection.close()

    def _goes_on(self) -> bool:
        return not self._over.is_set() and self._thread is threading.current_thread()

    def _make_passes(self, requested: bool) -> float:
        """Seconds until the next look."""
        if self._helps:
            return self._help(requested)
        while self._goes_on():
            self._busy_since = time.monotonic()
            if not (started := cycle.run(request=requested)):
                break
            self._started(started)
            requested = self._wanted.is_set()
            self._wanted.clear()
        return max(SHORTEST_S, cycle.due_in_s())

    def _help(self, requested: bool) -> float:
        """Pass a request on, and make one pass if one is overdue: the next is for who makes passes, should it be back.
        Hints that nothing takes up would become more and more."""
        if requested:
            cycle.request_pass()
        if cycle.overdue_in_s() > 0:
            if requested:
                wake.cycle()
        else:
            self._busy_since = time.monotonic()
            wake.drop_cycle_hints()
            if started := cycle.run_one():
                self._started(started)
        return max(LOOK_S, cycle.overdue_in_s())


def _is_stuck(since: float | None) -> bool:
    return since is not None and time.monotonic() - since > 2 * settings.LUTHIER_LEASE_S
