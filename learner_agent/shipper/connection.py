"""The socket to the server: what is unconfirmed is said again after every reconnection, from the server's cursors.

Nothing in flight: a frame goes at once. Else bytes gather until the ACK returns or a frame is full. The window of
unacknowledged bytes is the server's; a slow server is felt here and never by the program.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import secrets
import time
import zlib
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidURI

from learner_agent import VERSION
from learner_agent.log_segments import LogReader, Piece, log_span
from learner_agent.settings import ShipperSettings
from learner_agent.shipper.sources import Batch, Source
from learner_agent.spool import Gap, Spool
from learner_agent.untrusted_files import now_ms
from learner_agent.wire import (
    CLOSE_FENCED,
    CLOSE_FORBIDDEN,
    CLOSE_RESTART,
    CLOSE_TRY_LATER,
    CLOSE_UNAUTHORIZED,
    MAX_MESSAGE,
    Ack,
    Beat,
    Bye,
    Ckpt,
    Data,
    Event,
    EventKind,
    Final,
    Hello,
    JobIntent,
    Metric,
    Nack,
    Welcome,
    WireError,
    decode,
    encode,
)

logger = logging.getLogger(__name__)

MAX_BACKOFF_S = 30.0
FIRST_BACKOFF_S = 0.5
SILENT_S = 20.0
"""A server that says nothing for so long is taken for gone: it beats every two seconds."""
MAX_READS = 1_000
UNAUTHORIZED_TRIES = 5
KEPT_BYTES = 64 * 1024 * 1024
"""Acknowledged log that the spool keeps, so that a checksum that disagrees can be answered by sending again."""
TIDY_S = 2.0
METRICS_PACE_S = 0.5
"""Points that follow a batch sooner than this gather for the next one: nobody draws faster."""


class Fenced(Exception):
    """The server wants nothing more of this attempt: a newer one took over, or its time is up."""


class Connection:
    """One learner's connection. Everything public may be called at any time, connected or not."""

    def __init__(
        self, settings: ShipperSettings, spool: Spool, on_intent: Callable[[JobIntent], None]
    ) -> None:
        self.settings = settings
        self.spool = spool
        self.on_intent = on_intent
        self.sources: list[Source] = []
        self.gen_seen = 0
        self.acked = spool.acked()
        self.sealed = False
        self.changed = asyncio.Event()
        self._moved = asyncio.Condition()
        self._awaited = 0
        self._metrics_at = 0.0
        self._metrics_timer: asyncio.TimerHandle | None = None
        self._reader = LogReader(spool)
        self._boot = secrets.token_hex(8)
        self._sent = self.acked
        self._bulk = False
        self._window = self._max_data = 0
        self._beat_s = 2.0
        self._busy: dict[str, Batch] = {}
        self._metric_cursors: dict[str, int] = {}
        self._events: dict[int, Event] = {}
        self._event_n = 0
        self._said: set[int] = set()
        self._offers: dict[str, Ckpt] = {}
        self._offered: set[str] = set()
        self._answers: dict[str, Ckpt] = {}
        self._final: Final | None = None
        self._final_said = False
        self._received_at = 0.0
        self._tidied_at = 0.0
        self._retry_s: float | None = None
        self._unauthorized = 0

    # --- what the rest of the shipper says and asks

    def report(self, what: EventKind, *, at_ms: int | None = None, **data: Any) -> None:
        """Report something that happened, now or then; repeated until the server has it."""
        data = {name: _text(value) if isinstance(value, str) else value for name, value in data.items()}
        self._event_n += 1
        self._events[self._event_n] = Event(self._event_n, what, now_ms() if at_ms is None else at_ms, data)
        self.changed.set()

    async def offer(self, offer: Ckpt) -> Ckpt:
        """Offer a set of files and wait for the server's answer, over as many connections as it takes."""
        self._answers.pop(offer.key, None)
        self._offers[offer.key] = offer
        self._offered.discard(offer.key)
        self.changed.set()
        await self._until(lambda: offer.key in self._answers)
        del self._offers[offer.key]
        return self._answers.pop(offer.key)

    def finish(self, final: Final) -> None:
        """Announce the end of the log; it is said once everything before it is confirmed."""
        self._final = final
        self.changed.set()

    def use(self, sources: list[Source]) -> None:
        """Take metrics from these sources from now on."""
        for source in sources:
            source.rewind(self._metric_cursors.get(source.name, 0))
        self.sources = sources
        self._busy.clear()
        self.changed.set()

    async def all_confirmed(self) -> None:
        """Wait until the log is sealed, every event told and every metric taken in."""
        await self._until(lambda: self.sealed and not self._events and self._drained())

    async def metrics_drained(self) -> None:
        """Wait until no source has anything left and nothing of them is under way."""
        await self._until(self._drained)

    async def _until(self, claim: Callable[[], bool]) -> None:
        self._awaited += 1
        try:
            async with self._moved:
                await self._moved.wait_for(claim)
        finally:
            self._awaited -= 1

    def _drained(self) -> bool:
        return not self._busy and all(self._read(source) is None for source in self.sources)

    # --- the connection

    async def run(self) -> None:
        """Keep a connection until cancelled. Raises Fenced when the server wants nothing more."""
        tries = 0
        while True:
            began = time.monotonic()
            try:
                await self._connect_once()
            except (
                OSError,
                InvalidHandshake,
                InvalidURI,
                ConnectionClosed,
                WireError,
                TimeoutError,
            ) as error:
                self._judge(error)
            tries = 0 if self._received_at > began else tries + 1
            pause = random.uniform(0, min(MAX_BACKOFF_S, FIRST_BACKOFF_S * 2**tries))
            if self._retry_s is not None:
                pause, self._retry_s = random.uniform(0.5, 1.0) * self._retry_s, None
            await asyncio.sleep(pause)

    def _judge(self, error: Exception) -> None:
        """Say what an ended connection means: come back, or never again."""
        code = error.rcvd.code if isinstance(error, ConnectionClosed) and error.rcvd is not None else 0
        logger.info("link ended", extra={"code": code, "error": str(error)[:200]})
        if code in (CLOSE_FENCED, CLOSE_FORBIDDEN):
            raise Fenced(str(error)) from error
        if code == CLOSE_UNAUTHORIZED:
            self._unauthorized += 1
            if self._unauthorized >= UNAUTHORIZED_TRIES:
                raise Fenced("the server does not know this learner's secret") from error
        if code in (CLOSE_RESTART, CLOSE_TRY_LATER) and self._retry_s is None:
            self._retry_s = 2.0

    async def _connect_once(self) -> None:
        async with connect(
            self.settings.socket_url,
            additional_headers={"Authorization": f"Bearer {self.settings.secret}"},
            compression=None,
            max_size=MAX_MESSAGE,
            ping_interval=None,  # BEAT does it, and tells something
            open_timeout=10,
            close_timeout=2,
            proxy=None,
        ) as socket:
            await self._greet(socket)
            tasks = [asyncio.create_task(part(socket)) for part in (self._listen, self._pump, self._beat)]
            try:
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _greet(self, socket: ClientConnection) -> None:
        first, last = log_span(self.spool)
        settings = self.settings
        hello = Hello(
            job=settings.job, attempt=settings.attempt, rank=settings.rank, version=VERSION, boot=self._boot,
            log_from=first, log_to=last, gen_seen=self.gen_seen,
        )  # fmt: skip
        await socket.send(encode(hello))
        welcome = decode(await asyncio.wait_for(_receive(socket), SILENT_S))
        if isinstance(welcome, Bye):
            self._retry_s = welcome.retry_ms / 1000 or None
            raise TimeoutError(welcome.reason)
        if not isinstance(welcome, Welcome):
            raise WireError(f"{type(welcome).__name__} instead of WELCOME")
        self._received_at = time.monotonic()
        self._unauthorized = 0
        self.acked = self._sent = welcome.log
        self._bulk = False
        self._window, self._max_data, self._beat_s = welcome.window, welcome.max_data, float(welcome.beat_s)
        self._busy.clear()
        self._said.clear()
        self._offered.clear()
        self._final_said = False
        self._metric_cursors = welcome.metrics
        for source in self.sources:
            source.rewind(welcome.metrics.get(source.name, 0))
        self.sealed = self.sealed or welcome.sealed
        self.on_intent(welcome.intent)
        await self._notify()
        self.changed.set()

    async def _listen(self, socket: ClientConnection) -> None:
        while True:
            frame = decode(await _receive(socket))
            self._received_at = time.monotonic()
            if isinstance(frame, Ack):
                self._take_ack(frame)
            elif isinstance(frame, Nack):
                self._take_nack(frame)
            elif isinstance(frame, Ckpt):
                self._answers[frame.key] = frame
            elif isinstance(frame, Bye):
                self._retry_s = frame.retry_ms / 1000 or None
            intent = getattr(frame, "intent", None)
            if intent is not None:
                self.on_intent(intent)
            await self._notify()
            self.changed.set()

    async def _beat(self, socket: ClientConnection) -> None:
        n = 0
        while True:
            await asyncio.sleep(self._beat_s)
            if time.monotonic() - self._received_at > SILENT_S:
                raise TimeoutError("the server fell silent")
            n += 1
            await socket.send(encode(Beat(n, now_ms(), self._unsent(), self.gen_seen)))

    async def _notify(self) -> None:
        if self._awaited:
            async with self._moved:
                self._moved.notify_all()

    # --- up

    async def _pump(self, socket: ClientConnection) -> None:
        """Send whatever may be sent now, each time something changed."""
        while True:
            await self.changed.wait()
            self.changed.clear()
            for n, event in list(self._events.items()):
                if n not in self._said:
                    self._said.add(n)
                    ago_ms = max(0, now_ms() - event.at_ms)
                    await socket.send(encode(replace(event, ago_ms=ago_ms)))
            await self._send_log(socket)
            await self._send_metrics(socket)
            for key, offer in list(self._offers.items()):
                if key not in self._offered:
                    self._offered.add(key)
                    await socket.send(encode(offer))
            await self._send_final(socket)

    async def _send_log(self, socket: ClientConnection) -> None:
        while not self.sealed and self._sent - self.acked < self._window:
            in_flight = self._sent - self.acked
            if in_flight and not self._bulk:
                return
            found = self._next_data()
            full = found is not None and (found.size >= self._max_data or len(found.reads) >= MAX_READS)
            if found is None or (in_flight and not full):
                self._bulk = False
                return
            self._bulk = full
            self._sent += found.size
            await socket.send(encode(found))

    def _next_data(self) -> Data | None:
        found: Piece | Gap | None = self._reader.read(self._sent, limit=self._max_data, max_reads=MAX_READS)
        if isinstance(found, Piece):
            crc = zlib.crc32(found.data)
            return Data(found.off, payload=found.data, t0=found.t0, reads=found.reads, crc=crc)
        if found is None:
            return None
        return Data(found.off, gone=found.to - found.off, lines=found.lines)

    async def _send_metrics(self, socket: ClientConnection) -> None:
        now = time.monotonic()
        early_s = self._metrics_at + METRICS_PACE_S - now
        if early_s > 0 and not self._awaited:
            if self._metrics_timer is None:
                self._metrics_timer = asyncio.get_running_loop().call_later(early_s, self._metrics_due)
            return
        for source in self.sources:
            if source.name in self._busy:
                continue
            batch = self._read(source)
            if batch is not None:
                self._metrics_at = now
                self._busy[source.name] = batch
                frame = Metric(source.name, batch.off, batch.next, batch.points, batch.total)
                await socket.send(encode(frame))
        await self._notify()

    def _read(self, source: Source) -> Batch | None:
        """What a source has next. One that fails is read no more, and that is told: it must cost no log, no files
        and no exit code, whatever a program wrote."""
        try:
            return source.read()
        except Exception as error:
            logger.exception("metrics are not readable", extra={"source": source.name})
            self.sources = [other for other in self.sources if other is not source]
            message = f"Metrics of the kind {source.name} are read no more in this run: {error!r}"
            self.report("error", code="metrics_unreadable", message=message[:1000])
            return None

    async def _send_final(self, socket: ClientConnection) -> None:
        final = self._final
        if final is not None and not self._final_said and not self.sealed and self.acked >= final.size:
            self._final_said = True
            first, _ = log_span(self.spool)  # segments may have been dropped since the end was announced
            await socket.send(encode(replace(final, log_from=first)))

    def _metrics_due(self) -> None:
        self._metrics_timer = None
        self.changed.set()

    def _unsent(self) -> int:
        starts = self.spool.segments()
        return max(0, starts[-1] - self.acked) if starts else 0

    # --- down

    def _take_ack(self, ack: Ack) -> None:
        self.acked = max(self.acked, ack.log)
        self._sent = max(self._sent, self.acked)
        self.sealed = self.sealed or ack.sealed
        for source in self.sources:
            batch = self._busy.get(source.name)
            if batch is not None and ack.metrics.get(source.name, -1) >= batch.next:
                source.confirm(self._busy.pop(source.name))
        for n in [n for n in self._events if n <= ack.event]:
            del self._events[n]
        if time.monotonic() - self._tidied_at > TIDY_S:
            self.tidy()

    def _take_nack(self, nack: Nack) -> None:
        logger.info("server refused", extra={"stream": nack.stream, "code": nack.code, "next": nack.next})
        if nack.stream == "log":
            self.sealed = self.sealed or nack.code == "SEALED"
            self.acked = self._sent = nack.next
            self._bulk = self._final_said = False
            return
        for source in self.sources:
            if source.name == nack.stream:
                self._busy.pop(source.name, None)
                source.rewind(nack.next)

    def tidy(self) -> None:
        """Note how far the server is, for the launcher, and remove what nobody needs any more."""
        self._tidied_at = time.monotonic()
        with contextlib.suppress(OSError):  # a full disk must not cost the connection
            self.spool.set_acked(self.acked)
        rules = [source.cursor for source in self.sources if source.name == "rules"]
        self.spool.drop_below(min([self.acked, *rules]), keep=KEPT_BYTES)


def _text(value: str) -> str:
    """What the wire takes as text: file names may hold lone surrogates, and one refused frame would come for ever."""
    return value.encode("utf-8", "backslashreplace").decode().replace("\0", "\\0")[:2000]


async def _receive(socket: ClientConnection) -> bytes:
    message = await socket.recv()
    if isinstance(message, str):
        raise WireError("message: frames are binary messages")
    return message
