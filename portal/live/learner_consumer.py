"""The learners' socket, /ws/agent/v1: frames in, acknowledgements and the intent out.

A plain ASGI application instead of a Channels consumer, because each learner sends many frames and a consumer's
dispatch costs three times as much per frame. It has no state besides the connection: cursors, intents and secrets
are read from the database, and frames are acknowledged after the commit.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from typing import Any

from django.conf import settings
from django.db import Error as DatabaseError
from msgspec.structs import replace

from jobs import tokens
from jobs.ingest import checkpoints
from jobs.ingest.intents import SessionState, resumption, session_states
from jobs.ingest.writer import Item, writer
from jobs.tokens import Grant
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
    Data,
    Event,
    Final,
    Hello,
    JobIntent,
    Metric,
    Nack,
    StreamFrame,
    Welcome,
    WireError,
    WireFrame,
    decode,
    encode,
)
from learner_agent.wire_fields import MAX_DATA
from portal import strangers
from portal.forwarded import learners_need_tls, socket_has_tls
from portal.live.learner_hub import OFFERS, hub, in_database
from portal.live.socket import REFUSALS, authenticated, binary_frame, close_reason, direct_write

logger = logging.getLogger(__name__)

HELLO_S = 5.0
WINDOW_BYTES = 1024 * 1024
"""Unacknowledged bytes of log per learner; beyond them the server stops reading, and TCP applies backpressure."""

OFFERS_WAITING = 4
"""Offers of files per learner that were read and not answered. Each may name thousands of files and takes its time, so
beyond them the server stops reading, too."""


class CloseConnection(Exception):
    """The server closes the connection, with a code and the reason."""

    def __init__(self, code: CloseCode, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


class Gone(Exception):
    """The learner has closed the connection."""


class LearnerConsumer:
    """One learner's connection."""

    def __init__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        self.scope = scope
        self._receive = receive
        self._send = send
        self.loop = asyncio.get_running_loop()
        self.grant: Grant | None = None
        self.intent: JobIntent | None = None
        self.received_at = time.monotonic()
        self.waiting_bytes = 0
        self._waiting: list[int] = []
        self._ahead: int | None = None  # unacknowledged frames that came before its first heartbeat
        self._room = asyncio.Event()
        self._ending: asyncio.Future[CloseConnection] = self.loop.create_future()
        self._offers = asyncio.Lock()
        self._offered = 0
        self._write = direct_write(scope)
        self._queued = 0
        self._tasks: set[asyncio.Task[None]] = set()

    @classmethod
    def as_asgi(cls) -> Any:
        async def application(scope: dict[str, Any], receive: Any, send: Any) -> None:
            await cls(scope, receive, send).run()

        return application

    async def run(self) -> None:
        """Serve the connection until either side closes it."""
        if (await self._receive())["type"] != "websocket.connect":
            return
        await self._send({"type": "websocket.accept"})
        try:
            await self._serve()
        except Gone:
            pass
        except CloseConnection as end:
            await self._close(end)
        except WireError as error:
            await self._close(CloseConnection(CloseCode.BAD_FRAME, str(error)))
        except DatabaseError as error:
            logger.warning("learner connection failed: no database", extra={"error": str(error)[:200]})
            await self._close(
                CloseConnection(CloseCode.TRY_LATER, "The database is not responding; try again.")
            )
        finally:
            hub.leave(self)
            for task in self._tasks:
                task.cancel()

    def _address(self) -> str:
        client = self.scope.get("client")
        return client[0] if client else ""

    async def _close(self, end: CloseConnection) -> None:
        if end.code in REFUSALS:
            said = {"code": int(end.code), "why": str(end)[:200]}
            if self.grant:
                where = {"job": self.grant.job_id, "address": self._address()}
                logger.warning("learner refused", extra=where | said)
            else:
                strangers.warn(logger, "learner refused", self._address(), job="", **said)
        try:
            await self._send(
                {"type": "websocket.close", "code": end.code, "reason": close_reason(end.reason)}
            )
        except (OSError, RuntimeError):
            pass  # already closed

    async def _serve(self) -> None:
        if learners_need_tls() and not socket_has_tls(self.scope):
            # Temporary: a proxy that is not named in the settings looks the same, and no job has to end for it.
            strangers.warn(logger, "request without TLS refused", self._address(), path=self.scope["path"])
            raise CloseConnection(CloseCode.TRY_LATER, f"Use {settings.LUTHIER_INGEST_URL}, with TLS.")
        headers = {name.lower(): value for name, value in self.scope.get("headers", [])}
        secret = tokens.bearer(headers.get(b"authorization", b"").decode("latin-1"))
        grant = await in_database(tokens.grant_of, secret) if secret else None
        if grant is None:
            raise CloseConnection(CloseCode.UNAUTHORIZED, "This secret is unknown or its attempt is over.")
        self.grant = grant
        authenticated(self.scope)
        await self._handshake(grant)
        reading = self._spawn(self._read())
        beating = self._spawn(self._beat())
        waited: list[asyncio.Future[Any]] = [reading, beating, self._ending]
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        for task in (reading, beating):
            if task.done():
                task.result()
        if self._ending.done():
            raise self._ending.result()

    @property
    def is_caught_up(self) -> bool:
        """The reconnect backlog is committed: agents send it first. Until then, frames do not prove that the program is
        running now."""
        return self._ahead == 0

    def _spawn(self, work: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _handshake(self, grant: Grant) -> None:
        try:
            hello = decode(await asyncio.wait_for(self._message(), HELLO_S))
        except TimeoutError:
            raise CloseConnection(CloseCode.SILENT, "HELLO is due within 5 seconds.") from None
        if not isinstance(hello, Hello):
            raise CloseConnection(CloseCode.BAD_FRAME, "The first frame must be HELLO.")
        if hello.proto != PROTO:
            raise CloseConnection(CloseCode.VERSION, f"proto: this server speaks {PROTO}.")
        if (hello.job, hello.attempt, hello.rank) != (grant.job_id, grant.attempt, grant.rank):
            raise CloseConnection(CloseCode.FORBIDDEN, "This secret belongs to another learner.")
        hub.join(self)
        cursors = await in_database(resumption, grant.learner_id)
        state = (await in_database(session_states, [grant.learner_id])).get(grant.learner_id)
        if cursors is None or state is None or not state.admitted:
            raise CloseConnection(CloseCode.FENCED, "This attempt is over.")
        self.intent = state.intent
        await self._send_frame(
            Welcome(
                session=secrets.token_hex(8), now_ms=int(time.time() * 1000), log=cursors.log, sealed=cursors.sealed,
                max_data=MAX_DATA,
                metrics=cursors.metrics, intent=state.intent, beat_s=HEARTBEAT_S, window=WINDOW_BYTES,
            )
        )  # fmt: skip

    # --- in

    async def _message(self) -> bytes:
        event = await self._receive()
        if event["type"] != "websocket.receive":
            raise Gone
        message: bytes | None = event.get("bytes")
        if message is None:
            raise CloseConnection(CloseCode.BAD_FRAME, "Frames are binary messages.")
        if len(message) > MAX_MESSAGE:
            raise CloseConnection(CloseCode.TOO_LARGE, f"A message can have at most {MAX_MESSAGE} bytes.")
        self.received_at = time.monotonic()
        return message

    async def _read(self) -> None:
        while True:
            frame = decode(await self._message())
            if isinstance(frame, Data | Metric | Event | Final):
                await self._submit(frame)
            elif isinstance(frame, Ckpt):
                self._offered += 1
                self._spawn(self._offer(frame))
                await self._wait_for_room()
            elif isinstance(frame, Bye):
                return
            elif isinstance(frame, Beat):
                self._ahead = len(self._waiting) if self._ahead is None else self._ahead
            else:
                raise CloseConnection(
                    CloseCode.BAD_FRAME, f"{type(frame).__name__.upper()} must not be sent by learners."
                )

    async def _submit(self, frame: StreamFrame) -> None:
        assert self.grant is not None
        item = Item(self.grant, frame, self._stored)
        self._waiting.append(item.weight)
        self.waiting_bytes += item.weight
        writer.submit(item)
        await self._wait_for_room()

    async def _wait_for_room(self) -> None:
        while self.waiting_bytes > WINDOW_BYTES + MAX_DATA or self._offered > OFFERS_WAITING:
            self._room.clear()
            await self._room.wait()

    async def _offer(self, frame: Ckpt) -> None:
        assert self.grant is not None
        try:
            async with self._offers:
                answer = await in_database(checkpoints.offer, self.grant, frame, threads=OFFERS)
                await self._send_frame(answer)
        except DatabaseError as error:
            logger.warning("offer failed: no database", extra={"error": str(error)[:200]})
            self.end(CloseConnection(CloseCode.TRY_LATER, "The database is not responding; try again."))
        except Exception:  # without an answer or an end the learner would wait for ever
            logger.exception("offer failed", extra={"job": self.grant.job_id, "key": frame.key})
            self.end(CloseConnection(CloseCode.TRY_LATER, "The offer failed at the server; try again."))
        finally:
            self._offered -= 1
            self._room.set()

    # --- out

    def _stored(self, count: int, answers: list[Ack | Nack] | None) -> None:
        """Called in the writer's thread: `count` frames are committed; send these answers."""
        try:
            self.loop.call_soon_threadsafe(self._settle, count, answers)
        except RuntimeError:
            pass  # the loop has ended; the learner will reconnect elsewhere

    def _settle(self, count: int, answers: list[Ack | Nack] | None) -> None:
        for weight in self._waiting[:count]:
            self.waiting_bytes -= weight
        del self._waiting[:count]
        self._ahead = max(0, self._ahead - count) if self._ahead else self._ahead
        self._room.set()
        if answers is None:
            self.end(CloseConnection(CloseCode.BAD_FRAME, "A frame cannot be stored."))
        for answer in answers or ():
            said = encode(replace(answer, intent=self.intent) if isinstance(answer, Ack) else answer)
            if self._queued or not self._write(binary_frame(said)):
                self._queued += 1
                self._spawn(self._send_queued(said))

    async def _send_queued(self, message: bytes) -> None:
        try:
            await self._send_bytes(message)
        finally:
            self._queued -= 1

    async def _send_frame(self, frame: WireFrame) -> None:
        await self._send_bytes(encode(frame))

    async def _send_bytes(self, message: bytes) -> None:
        try:
            await self._send({"type": "websocket.send", "bytes": message})
        except (OSError, RuntimeError) as error:  # what servers raise when the peer is gone
            self.end(CloseConnection(CloseCode.RESTART, str(error)))

    async def _beat(self) -> None:
        n = 0
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            if (
                time.monotonic() - self.received_at > HEARTBEAT_TIMEOUT_S
                and self.waiting_bytes <= WINDOW_BYTES
                and self._offered <= OFFERS_WAITING
            ):
                raise CloseConnection(
                    CloseCode.SILENT, f"Nothing received for {HEARTBEAT_TIMEOUT_S:.0f} seconds."
                )
            n += 1
            await self._send_frame(Beat(n, intent=self.intent))

    def update(self, state: SessionState | None) -> None:
        """Called by the hub: the learner's current state. A changed intent is sent at once."""
        if self.intent is None:
            return  # before the handshake: WELCOME is sent first and includes the intent
        if state is None or not state.admitted:
            self.end(CloseConnection(CloseCode.FENCED, "This attempt is over."))
        elif state.intent != self.intent:
            self.intent = state.intent
            self._spawn(self._send_frame(Beat(0, intent=self.intent)))

    def end(self, how: CloseConnection) -> None:
        if not self._ending.done():
            self._ending.set_result(how)
