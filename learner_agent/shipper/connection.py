"""The socket to the server: what is unacknowledged is sent again after every reconnection, from the server's cursors.

The window of unacknowledged bytes is the server's. A slow server slows this connection down and never the program.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import random
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from msgspec.structs import replace

from learner_agent.settings import ShipperSettings
from learner_agent.shipper import tls
from learner_agent.shipper.log_sender import LogSender
from learner_agent.shipper.metrics import MetricSender, PointSource
from learner_agent.spool import Spool
from learner_agent.untrusted_files import now_ms
from learner_agent.wire import (
    HEARTBEAT_S,
    HEARTBEAT_TIMEOUT_S,
    MAX_MESSAGE,
    PROTO,
    Ack,
    Beat,
    Bye,
    Ckpt,
    CloseCode,
    Event,
    Final,
    Hello,
    JobIntent,
    Nack,
    Welcome,
    WireError,
    decode,
    encode,
)
from learner_agent.wire_fields import EventKind

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

logger = logging.getLogger(__name__)

LIBRARY = "websockets.asyncio.client"
MAX_BACKOFF_S = 30.0
FIRST_BACKOFF_S = 0.5
UNAUTHORIZED_TRIES, UNAUTHORIZED_S = 5, 900.0
"""A server that does not know a learner may have the wrong database, or an old one: meanwhile its program runs."""


class Fenced(Exception):
    """The server accepts nothing more of this attempt: a newer one took over, or its time is up."""


class WrongVersion(Exception):
    """The server speaks another version of the protocol, which this process will never do."""


class Connection:
    """One learner's connection. Every public method may be called at any time, connected or not.

    changed: set it when there may be something to send. greetings: how often a server has welcomed it.
    """

    def __init__(
        self, settings: ShipperSettings, spool: Spool, on_intent: Callable[[JobIntent], None]
    ) -> None:
        self.log = LogSender(spool)
        self.metrics = MetricSender(self._report_unreadable)
        self.changed = asyncio.Event()
        self.greetings = 0
        self._settings = settings
        self._on_intent = on_intent
        self._beat_s = float(HEARTBEAT_S)
        self._progressed = asyncio.Condition()
        self._waiters = 0
        self._metrics_timer: asyncio.TimerHandle | None = None
        self._events: dict[int, Event] = {}
        self._event_n = 0
        self._sent_events: set[int] = set()
        self._offers: dict[str, Ckpt] = {}
        self._sent_offers: set[str] = set()
        self._responses: dict[str, Ckpt] = {}
        self._received_at = 0.0
        self._retry_s: float | None = None
        self._unauthorized = 0
        self._unknown_since = 0.0

    # --- what the rest of the shipper sends and waits for

    def report(self, what: EventKind, *, at_ms: int | None = None, **data: Any) -> None:
        """Report something that happened, now or at at_ms; sent again until the server has it."""
        data = {name: _text(value) if isinstance(value, str) else value for name, value in data.items()}
        self._event_n += 1
        self._events[self._event_n] = Event(self._event_n, what, now_ms() if at_ms is None else at_ms, data)
        self.changed.set()

    async def offer(self, files: Ckpt) -> Ckpt:
        """Offer a set of files and wait for the server's response, over as many connections as it takes."""
        self._responses.pop(files.key, None)
        self._offers[files.key] = files
        self._sent_offers.discard(files.key)
        self.changed.set()
        await self._until(lambda: files.key in self._responses)
        del self._offers[files.key]
        return self._responses.pop(files.key)

    def finish(self, final: Final) -> None:
        """Declare the log complete; that is sent once everything before it is acknowledged."""
        self.log.finish(final)
        self.changed.set()

    def is_up(self) -> bool:
        """Say whether a message of the server arrived within the last HEARTBEAT_TIMEOUT_S."""
        return 0 < self._received_at > time.monotonic() - HEARTBEAT_TIMEOUT_S

    def use(self, sources: list[PointSource]) -> None:
        """Take metrics from these sources from now on."""
        self.metrics.use(sources)
        self.changed.set()

    async def all_confirmed(self) -> None:
        """Wait until the log is sealed and every event and metric is committed."""
        await self._until(lambda: self.log.sealed and not self._events and self.metrics.is_drained())

    async def metrics_drained(self) -> None:
        """Wait until every metric is committed."""
        await self._until(self.metrics.is_drained)

    def tidy(self) -> None:
        """Remove log from the spool that neither the server nor a metric rule needs any more."""
        self.log.tidy(needed_from=self.metrics.log_needed_from())

    async def _until(self, is_reached: Callable[[], bool]) -> None:
        self._waiters += 1
        try:
            async with self._progressed:
                await self._progressed.wait_for(is_reached)
        finally:
            self._waiters -= 1

    async def _notify_waiters(self) -> None:
        if self._waiters:
            async with self._progressed:
                self._progressed.notify_all()

    def _report_unreadable(self, source: str, error: Exception) -> None:
        message = f"Metrics from {source} are no longer read in this attempt: {error!r}"
        self.report("error", code="metrics_unreadable", message=message[:1000])

    # --- connecting

    async def run(self) -> None:
        """Keep a connection until canceled. Raises Fenced when the server accepts nothing more, or WrongVersion."""
        # Imported late and in a thread: in the 25 ms that this takes, the job's inputs are already requested.
        if LIBRARY not in sys.modules:
            await asyncio.to_thread(importlib.import_module, LIBRARY)
        from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidURI

        failures = (OSError, InvalidHandshake, InvalidURI, ConnectionClosed, WireError, TimeoutError)
        tries = 0
        while True:
            began = time.monotonic()
            try:
                await self._connect_once()
            except failures as error:
                code = error.rcvd.code if isinstance(error, ConnectionClosed) and error.rcvd else 0
                self._check_end(code, error)
            tries = 0 if self._received_at > began else tries + 1
            pause = random.uniform(0, min(MAX_BACKOFF_S, FIRST_BACKOFF_S * 2**tries))
            if self._retry_s is not None:
                pause, self._retry_s = random.uniform(0.5, 1.0) * self._retry_s, None
            await asyncio.sleep(pause)

    def _check_end(self, code: int, error: Exception) -> None:
        """Decide when to reconnect, from the server's close code (0: none) and the error that ended the connection.

        Raises Fenced or WrongVersion if never.
        """
        logger.info("connection ended", extra={"code": code, "error": str(error)[:200]})
        if code == CloseCode.VERSION:
            raise WrongVersion(str(error)) from error
        if code in (CloseCode.FENCED, CloseCode.FORBIDDEN):
            raise Fenced(str(error)) from error
        if code == CloseCode.UNAUTHORIZED:
            self._unauthorized += 1
            if self._unauthorized == 1:
                self._unknown_since = time.monotonic()
            unknown_s = time.monotonic() - self._unknown_since
            if self._unauthorized >= UNAUTHORIZED_TRIES and unknown_s >= UNAUTHORIZED_S:
                raise Fenced("the server does not know this learner's secret") from error
        if code in (CloseCode.RESTART, CloseCode.TRY_LATER) and self._retry_s is None:
            self._retry_s = 2.0

    async def _connect_once(self) -> None:
        from websockets.asyncio.client import connect

        url = self._settings.socket_url
        async with connect(
            url,
            ssl=tls.context() if urlsplit(url).scheme == "wss" else None,
            additional_headers={"Authorization": f"Bearer {self._settings.secret}"},
            compression=None,
            max_size=MAX_MESSAGE,
            ping_interval=None,  # BEAT does this, and carries information
            open_timeout=10,
            close_timeout=2,
            proxy=None,
        ) as socket:
            await self._greet(socket)
            tasks = [asyncio.create_task(part(socket)) for part in (self._receive, self._send, self._beat)]
            try:
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _greet(self, socket: ClientConnection) -> None:
        settings = self._settings
        hello = Hello(job=settings.job, attempt=settings.attempt, rank=settings.rank, proto=PROTO)
        await socket.send(encode(hello))
        welcome = decode(await asyncio.wait_for(_message(socket), HEARTBEAT_TIMEOUT_S))
        if isinstance(welcome, Bye):
            self._retry_s = welcome.retry_ms / 1000 or None
            raise TimeoutError(welcome.reason)
        if not isinstance(welcome, Welcome):
            raise WireError(f"{welcome.type.name} instead of WELCOME")
        self._received_at = time.monotonic()
        self._unauthorized = 0
        self._beat_s = float(welcome.beat_s)
        self.log.restart(welcome)
        self.metrics.restart(welcome.metrics)
        self._sent_events.clear()
        self._sent_offers.clear()
        self.greetings += 1
        self._on_intent(welcome.intent)
        await self._notify_waiters()
        self.changed.set()

    # --- down

    async def _receive(self, socket: ClientConnection) -> None:
        while True:
            frame = decode(await _message(socket))
            self._received_at = time.monotonic()
            if isinstance(frame, Ack):
                self._take_ack(frame)
            elif isinstance(frame, Nack):
                logger.info(
                    "server refused", extra={"stream": frame.stream, "code": frame.code, "next": frame.next}
                )
                (self.log if frame.stream == "log" else self.metrics).take_nack(frame)
            elif isinstance(frame, Ckpt):
                self._responses[frame.key] = frame
            elif isinstance(frame, Bye):
                self._retry_s = frame.retry_ms / 1000 or None
            if isinstance(frame, Ack | Beat) and frame.intent is not None:
                self._on_intent(frame.intent)
            await self._notify_waiters()
            self.changed.set()

    def _take_ack(self, ack: Ack) -> None:
        self.log.take_ack(ack)
        self.metrics.take_ack(ack)
        for n in [n for n in self._events if n <= ack.event]:
            del self._events[n]
        self.log.tidy_if_due(needed_from=self.metrics.log_needed_from())

    # --- up

    async def _beat(self, socket: ClientConnection) -> None:
        n = 0
        while True:
            await asyncio.sleep(self._beat_s)
            if time.monotonic() - self._received_at > HEARTBEAT_TIMEOUT_S:
                raise TimeoutError("no heartbeat from the server")
            n += 1
            await socket.send(encode(Beat(n)))

    async def _send(self, socket: ClientConnection) -> None:
        """Send whatever may be sent now, each time something changed. Events first, the end of the log last."""
        while True:
            await self.changed.wait()
            self.changed.clear()
            for n, event in list(self._events.items()):
                if n not in self._sent_events:
                    self._sent_events.add(n)
                    ago_ms = max(0, now_ms() - event.at_ms)
                    await socket.send(encode(replace(event, ago_ms=ago_ms)))
            for data in self.log.frames():
                await socket.send(encode(data))
            await self._send_metrics(socket)
            for key, files in list(self._offers.items()):
                if key not in self._sent_offers:
                    self._sent_offers.add(key)
                    await socket.send(encode(files))
            final = self.log.final()
            if final is not None:
                await socket.send(encode(final))

    async def _send_metrics(self, socket: ClientConnection) -> None:
        wait_s = self.metrics.wait_s()
        if wait_s > 0 and not self._waiters:
            if self._metrics_timer is None:
                self._metrics_timer = asyncio.get_running_loop().call_later(wait_s, self._metrics_due)
            return
        for frame in self.metrics.frames():
            await socket.send(encode(frame))
        await self._notify_waiters()

    def _metrics_due(self) -> None:
        self._metrics_timer = None
        self.changed.set()


def _text(value: str) -> str:
    """Make text valid for the wire: file names may hold lone surrogates, and a refused frame would be sent forever."""
    return value.encode("utf-8", "backslashreplace").decode().replace("\0", "\\0")[:2000]


async def _message(socket: ClientConnection) -> bytes:
    message = await socket.recv()
    if isinstance(message, str):
        raise WireError("message: frames are binary messages")
    return message
