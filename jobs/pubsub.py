"""Publish hints that there is more to read, and subscribe to them. The only caller of the channel layer.

A hint carries no fact. It may be lost, duplicated or delayed: its subscribers read the database, and do so from time to
time anyway. So publishing never waits and never fails: a hint goes at once to the subscribers in this process, and a
thread of its own passes the pending ones to the other processes through the Channels group.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Collection
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from channels.layers import InMemoryChannelLayer, get_channel_layer

logger = logging.getLogger(__name__)

GROUP = "hints"
SEND_S = 0.2  # longest that one send may take before its hints are dropped
PAUSE_S = 1.0  # after a failure, hints are dropped for this long
CANCEL_RETRY_S = 0.2
APART_S = 0.1  # the first of many hints goes at once, those that follow so soon go together
BATCH = 500  # hints per message
PENDING_MAX = 10_000  # distinct hints kept while a send is under way


class Subject(StrEnum):
    """What there is more of."""

    JOB = "job"  # events of one job: its state, intent, reason
    LOGS = "logs"  # lines of one learner
    METRICS = "metrics"  # points of one job
    QUOTAS = "quotas"  # a tenant's limits or use
    CLUSTER = "cluster"  # nodes came, went or changed
    ACCESS = "access"  # a role, token or share changed


class Hint(NamedTuple):
    """There is more of `subject`, up to `upto` where that is known. Fields that do not apply are empty or 0."""

    subject: Subject
    job_id: str = ""
    tenant_id: int = 0
    attempt: int = 0
    rank: int = 0
    upto: int = 0


Listener = Callable[[Hint], None]
_listeners: list[tuple[Listener, Collection[Subject]]] = []


def job_changed(job_id: str, tenant_id: int, event_n: int) -> None:
    """Say that a job has events up to number event_n. Call after commit."""
    _publish(Hint(Subject.JOB, job_id=job_id, tenant_id=tenant_id, upto=event_n))


def logs_grew(job_id: str, *, attempt: int, rank: int, upto: int = 0) -> None:
    """Say that a learner's log has complete lines up to number upto (0: ask the store). Call after commit."""
    _publish(Hint(Subject.LOGS, job_id=job_id, attempt=attempt, rank=rank, upto=upto))


def metrics_grew(job_id: str, *, upto: int = 0) -> None:
    """Say that a job's metric points reach ingest number upto (0: ask the store). Call after commit."""
    _publish(Hint(Subject.METRICS, job_id=job_id, upto=upto))


def quotas_changed(tenant_id: int) -> None:
    """Say that a tenant's limits or use changed. Call after commit."""
    _publish(Hint(Subject.QUOTAS, tenant_id=tenant_id))


def cluster_changed() -> None:
    """Say that nodes came, went or changed."""
    _publish(Hint(Subject.CLUSTER))


def access_changed() -> None:
    """Say that memberships, tokens or shares changed, so that open WebSockets authenticate again."""
    _publish(Hint(Subject.ACCESS))


def subscribe(listener: Listener, subjects: Collection[Subject] = tuple(Subject)) -> None:
    """Call listener with every hint about these subjects, in the publishing thread; it must return at once."""
    _listeners.append((listener, subjects))


def unsubscribe(listener: Listener) -> None:
    _listeners[:] = [(other, subjects) for other, subjects in _listeners if other != listener]


@dataclass
class _Subscription:
    users: int = 0
    task: asyncio.Task[None] | None = None


_subscriptions: WeakKeyDictionary[asyncio.AbstractEventLoop, _Subscription] = WeakKeyDictionary()


def _publish(hint: Hint) -> None:
    _deliver(hint)
    _publisher.enqueue(hint)


def _deliver(hint: Hint) -> None:
    for listener, subjects in tuple(_listeners):
        if hint.subject not in subjects:
            continue
        try:
            listener(hint)
        except Exception:
            logger.exception("a listener failed on a hint", extra={"subject": hint.subject})


@contextlib.asynccontextmanager
async def subscribed(
    listener: Listener, subjects: Collection[Subject] = tuple(Subject)
) -> AsyncIterator[None]:
    """Call listener with every process's hints about these subjects meanwhile.

    An event loop has one subscription to the group.
    """
    loop = asyncio.get_running_loop()
    subscription = _subscriptions.setdefault(loop, _Subscription())
    subscribe(listener, subjects)
    subscription.users += 1
    if subscription.task is None:
        subscription.task = loop.create_task(receive())
    try:
        yield
    finally:
        unsubscribe(listener)
        subscription.users -= 1
        if subscription.users == 0 and subscription.task is not None:
            task, subscription.task = subscription.task, None
            await _end(task)


async def _end(task: asyncio.Task[None]) -> None:
    """Cancel a task until it is over: a channel layer cancelled while it subscribes may raise something else."""
    while not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=CANCEL_RETRY_S)


async def receive() -> None:
    """Deliver other processes' hints to this process's listeners, until cancelled; outlives an absent Valkey."""
    while True:
        try:
            await _receive_once()
        except asyncio.CancelledError:
            raise
        except Exception as error:
            logger.debug("no hints for now", extra={"error": repr(error)})
        await asyncio.sleep(PAUSE_S)


async def _receive_once() -> None:
    layer = get_channel_layer()
    if layer is None or isinstance(layer, InMemoryChannelLayer):
        await asyncio.Event().wait()  # there is no other process
        return
    channel = await layer.new_channel()
    await layer.group_add(GROUP, channel)
    try:
        while True:
            message = await layer.receive(channel)
            if message.get("from") == _publisher.name:
                continue
            for subject, *rest in message["hints"]:
                _deliver(Hint(Subject(subject), *rest))
    finally:
        await layer.group_discard(GROUP, channel)


class _Publisher:
    """Gathers this process's hints and sends them from a thread of its own; of equal ones the newest is kept."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Start empty: also after a fork, where the parent's thread does not exist."""
        self.name = f"{os.getpid()}-{time.time_ns():x}"
        self._pending: dict[
            tuple[Any, ...], Hint
        ] = {}  # by the hint without its number: the newest number wins
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._quiet_until = 0.0

    def enqueue(self, hint: Hint) -> None:
        if time.monotonic() < self._quiet_until or isinstance(get_channel_layer(), InMemoryChannelLayer):
            return
        with self._changed:
            if len(self._pending) < PENDING_MAX:
                self._pending[hint[:-1]] = hint
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="publisher", daemon=True)
                self._thread.start()
            self._changed.notify()

    def _take(self) -> list[Hint]:
        with self._changed:
            self._changed.wait_for(lambda: self._pending)
            keys = list(self._pending)[:BATCH]
            return [self._pending.pop(key) for key in keys]

    def _run(self) -> None:
        loop = asyncio.new_event_loop()
        while True:
            hints = self._take()
            try:
                loop.run_until_complete(asyncio.wait_for(self._send(hints), SEND_S))
                if len(hints) < BATCH:
                    time.sleep(APART_S)
            except Exception as error:
                logger.debug("hints dropped", extra={"count": len(hints), "error": repr(error)})
                with self._changed:
                    self._quiet_until = time.monotonic() + PAUSE_S
                    self._pending.clear()

    async def _send(self, hints: list[Hint]) -> None:
        layer = get_channel_layer()
        if layer is not None:
            message = {"type": "hints", "from": self.name, "hints": [list(hint) for hint in hints]}
            await layer.group_send(GROUP, message)


_publisher = _Publisher()
os.register_at_fork(after_in_child=_publisher.reset)
