"""A thread in every worker process that takes up due jobs and periodic tasks, even if every hint is lost.

It needs nothing but the database. A few threads do the work that it finds, so that one slow cluster call does not delay
the next tick. The scheduling cycle has a thread of its own: it waits for none of them.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

from django.conf import settings
from django.db import Error as DatabaseFault
from django.db import connection

from gpu_scheduler.clusters.base import Watch, job_of_gang
from jobs import clusters, wake
from jobs.lifecycle import cycle, leases, periodic, reconcile, together
from jobs.lifecycle.cycle_thread import CycleThread
from jobs.models import SCHEDULER, PeriodicTask

logger = logging.getLogger(__name__)

THREADS = 4
BATCH = 16
OWN_TURN = periodic.SLOW | {periodic.NOTICE}
"""Tasks that neither wait for others nor keep them waiting: one that takes long must not look like a stopped platform,
and a slow server takes long."""
STOP_S = 10.0
"""What has begun has so long to end when a worker stops."""
MAX_CHANGED = 10_000
"""Jobs with changed gangs kept between two ticks; beyond that, every gang counts as changed."""


class ChangedGangs:
    """The jobs whose gangs a watch reported since the last ``take``, and when it last did, in bounded memory."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._at: dict[str, float] = {}
        self._all = False

    def add(self, names: set[str]) -> None:
        """By the names of the gangs. Callable from any thread."""
        self.put_back(dict.fromkeys(map(job_of_gang, names), time.monotonic()))

    def take(self) -> dict[str, float] | None:
        """Job -> when, by the monotonic clock; they are then forgotten. None for all gangs."""
        with self._lock:
            at, every = self._at, self._all
            self._at, self._all = {}, False
        return None if every else at

    def put_back(self, at: Mapping[str, float] | None) -> None:
        """Of what was taken, what is to be taken again, unless something newer is known."""
        with self._lock:
            self._all = self._all or at is None
            for job, reported in (at or {}).items():
                self._at[job] = max(reported, self._at.get(job, reported))
            if self._all or len(self._at) > MAX_CHANGED:
                self._at, self._all = {}, True


class Ticker(threading.Thread):
    """Ticks every tick_s ± 20 % until it is stopped, and at once when its threads run out of work while more is due.

    brings_on: takes up jobs and periodic tasks. plans: makes scheduling passes as soon as they are requested; else only
    those that no other worker makes.
    """

    def __init__(
        self, name: str, *, tick_s: float | None = None, brings_on: bool = True, plans: bool = True
    ) -> None:
        super().__init__(name="ticker", daemon=True)
        self.worker_name = name if brings_on else f"{SCHEDULER}{name}"
        self.tick_s = tick_s or settings.LUTHIER_TICK_S
        self._over = threading.Event()
        self._woken = threading.Event()
        self._worker_id: int | None = None
        self._watch: Watch | None = None
        self._changed_gangs = ChangedGangs()
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="lifecycle")
        self._busy: set[Future[None]] = set()
        self._pending = 0
        """Of this work, what has not ended."""
        self._pending_lock = threading.Lock()
        self._together = 0
        """Jobs of batches whose shared turn has not ended: a lease that waits for long for a thread would end before
        its turn. Those that go on alone are work of their own."""
        self._alone = 0
        """Jobs that wait for a thread of their own."""
        self._left_more = False
        """The last claim took as many jobs as it might: more may be due."""
        self._sweeps_at = 0.0
        """From then on, by the monotonic clock, a tick looks at the jobs without GPUs, too: thousands may wait, and few
        of them are due. One that idle threads asked for in between does not, unless the last look found many."""
        self._periodic_turn = threading.Lock()
        self._own_turns = {name: threading.Lock() for name in OWN_TURN}
        self._brings_on, self._plans = brings_on, plans
        self._cycle = CycleThread(self._take_up if brings_on else self._leave_to_others, helps=not plans)

    def run(self) -> None:
        """Tick until stopped; an error costs one tick, never the thread."""
        _of_this_process.append(self)
        while not self._over.is_set():
            try:
                self.tick()
            except DatabaseFault as fault:
                logger.warning("ticker cannot reach the database", extra={"error": str(fault).strip()})
                self._worker_id = None
                connection.close()
            except Exception:
                logger.exception("a tick failed")
            if (
                self._worker_id is not None
            ):  # the cycle's lease is a registered worker's: it ends with the worker
                self._cycle.start()
            self._woken.wait(self.tick_s * random.uniform(0.8, 1.2))
            self._woken.clear()
        _of_this_process.remove(self)
        self._cycle.stop(STOP_S)  # before it is deregistered: the cycle's lease ends with the worker
        self._deregister()

    def tick(self) -> None:
        """Renew the registration and hand what is due to the threads, without waiting for them."""
        if self._worker_id is None or not leases.keep_worker_alive(self._worker_id):
            self._worker_id = leases.register_worker(self.worker_name)
        due = periodic.due(PeriodicTask.CYCLE)
        if (self._plans and PeriodicTask.CYCLE in due) or cycle.has_new():
            self._cycle.request()
        try:
            self._make_changed_due()  # before this worker takes up what is due, so that it finds these jobs, too
        finally:
            if self._brings_on:
                self._hand_out(due - {PeriodicTask.CYCLE})
        if self._watch is None:  # it also makes observations free of calls
            self._watch = clusters.current().watch(self._changed_gangs.add)

    def _hand_out(self, due: set[str]) -> None:
        """Give the threads the jobs that are due, and these periodic tasks."""
        with self._pending_lock:
            self._busy = {work for work in self._busy if not work.done()}
            wanted = min(BATCH, 2 * BATCH - len(self._busy) - self._together)
        if wanted > 0:
            regular = time.monotonic() >= self._sweeps_at
            claimed = leases.claim_due(leases.owner(), wanted, with_gpus=not regular)
            self._left_more = len(claimed) == wanted
            if regular and not (self._left_more and not all(lease.with_gpus for lease in claimed)):
                self._sweeps_at = time.monotonic() + self.tick_s / 2
            if claimed:
                self._count_together(len(claimed))
                if not self._submit(lambda: self._hold_all(claimed)):
                    together.hand_back(claimed)
        for name in due & OWN_TURN:
            self._in_turn(self._own_turns[name], partial(periodic.run_due, name))
        if others := [name for name in periodic.TASKS if name in due - OWN_TURN]:
            self._in_turn(self._periodic_turn, partial(periodic.run_due, *others))

    def _make_changed_due(self) -> None:
        """What cannot be written now, as its row is locked or the database fails, is left for the next tick."""
        changed, now = self._changed_gangs.take(), time.monotonic()
        if not self._brings_on or changed == {}:
            return
        try:
            ages_s = None if changed is None else {job: now - at for job, at in changed.items()}
            locked = leases.make_due(ages_s)
        except Exception:
            self._changed_gangs.put_back(changed)
            raise
        self._changed_gangs.put_back({job: now if changed is None else changed[job] for job in locked})

    def request_cycle(self) -> None:
        """Have the scheduling cycle run as soon as possible."""
        self._cycle.request()

    def stop(self, timeout_s: float = STOP_S) -> None:
        """Stop ticking, let begun work end, and deregister. A second call does nothing."""
        if self._over.is_set():
            return
        self._over.set()
        self._woken.set()
        if self.is_alive():
            self.join(timeout_s)
        self._cycle.stop(timeout_s)
        if self._watch is not None:
            self._watch.close()
        with self._pending_lock:
            begun = list(self._busy)
        for work in begun:
            work.cancel()
        together = threading.Barrier(THREADS)
        for _ in range(THREADS):
            self._pool.submit(_close_connection, together)
        self._pool.shutdown(wait=True)

    def _hold_all(self, claimed: Sequence[leases.Lease]) -> None:
        """What cannot be shared is for all threads, as each may wait for the cluster; at the end, for this one."""
        if self._share(claimed):
            self._cycle.request()

    def _take_up(self, started: Sequence[str]) -> None:
        """Have the threads bring these jobs on, many together. Each job is claimed when its turn comes: until then, any
        worker that has a free thread may have it."""
        for first in range(0, len(started), together.SHARED):
            self._submit(partial(self._claim, started[first : first + together.SHARED]))

    def _leave_to_others(self, started: Sequence[str]) -> None:
        """These jobs are due: have a thread notify the workers that bring jobs on, as the broker may take long. Each
        hint is for as many as one takes up."""
        for job in started[:: together.SHARED]:
            self._submit(partial(wake.hint, "jobs.tasks.reconcile_job", job))

    def _claim(self, jobs: Sequence[str]) -> None:
        """Unless the threads have enough to do: then these are left to ticks, and to other workers."""
        with self._pending_lock:
            if self._over.is_set() or self._together + self._alone > 2 * BATCH:
                self._left_more = True
                return
        claimed = leases.claim_all(jobs, leases.owner())
        self._count_together(len(claimed))
        self._hold_all(claimed)

    def _share(self, claimed: Sequence[leases.Lease]) -> bool:
        """True if the scheduling cycle must run. More may be claimed while it does. A worker that stops hands back what
        it has not begun: other workers can take it up at once."""
        try:
            wants_cycle, left = together.bring_on(claimed)
            here = left if len(left) == 1 and not self._over.is_set() else []
            together.hand_back(
                [lease for lease in left if lease not in here and not self._submit_hold(lease)]
            )
        finally:
            self._count_together(-len(claimed))
        hold = together.hold_alone if len(claimed) > 1 else reconcile.hold
        return (bool(here) and hold(here[0])) or wants_cycle

    def _submit_hold(self, lease: leases.Lease) -> bool:
        if self._over.is_set() or not self._submit(lambda: self._hold(lease)):
            return False
        with self._pending_lock:
            self._alone += 1
        return True

    def _count_together(self, more: int) -> None:
        with self._pending_lock:
            self._together += more
            idle = self._pending < THREADS
        if more < 0 and idle and self._left_more:
            self._woken.set()

    def _hold(self, lease: leases.Lease) -> None:
        with self._pending_lock:
            self._alone -= 1
        if self._over.is_set():
            together.hand_back([lease])
        elif together.hold_alone(lease):
            self._cycle.request()

    def _in_turn(self, turn: threading.Lock, work: Callable[[], object]) -> None:
        """Hand this work to a thread, unless it is still running since an earlier tick."""
        if turn.acquire(blocking=False) and not self._submit(work, turn.release):
            turn.release()

    def _submit(self, work: Callable[[], object], after: Callable[[], None] | None = None) -> bool:
        """False if the worker stops: the threads take no work any more."""

        def safely() -> None:
            try:
                work()
            except DatabaseFault as fault:
                logger.warning("the database went away during work", extra={"error": str(fault).strip()})
                connection.close()
            except Exception:
                logger.exception("work of a tick failed")
            finally:
                if after is not None:
                    after()
                self._ended()

        with self._pending_lock:
            try:
                self._busy.add(self._pool.submit(safely))
            except RuntimeError:  # the pool was shut down meanwhile
                return False
            self._pending += 1
        return True

    def _ended(self) -> None:
        with self._pending_lock:
            self._pending -= 1
            idle = self._pending < THREADS
        if idle and self._left_more:
            self._woken.set()

    def _deregister(self) -> None:
        try:
            if self._worker_id is not None:
                leases.deregister_worker(self._worker_id)
        except DatabaseFault:
            pass  # its row expires, and is deleted later
        finally:
            connection.close()


def _close_connection(together: threading.Barrier) -> None:
    """Close this thread's connection; all threads meet, so that each of them does it."""
    connection.close()
    together.wait(timeout=30)


_of_this_process: list[Ticker] = []
"""The ticker that runs, if any. A list, as tests may have several."""


def request_cycle() -> None:
    """Start what can start: the thread that this process's ticker has for that, at once. In a process without a ticker
    nothing happens, but the pass is requested for any that has one."""
    if _of_this_process:
        _of_this_process[-1].request_cycle()
    else:
        cycle.request_pass()
