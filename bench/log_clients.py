"""Learners that print and viewers that watch, for `bench.log_path`: they speak the real protocols and cost little.

A line carries the moment it was printed. A viewer takes the time of a frame when its last byte was read from the
socket, before anything is parsed, and both kinds measure how late their own event loop is.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import struct
import time
import zlib
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.sharedctypes import Synchronized
from typing import Any
from urllib.parse import urlsplit

import orjson
import uvloop
from websockets.asyncio.client import ClientConnection, connect

from learner_agent import wire

FILL = "epoch 3 loss 0.123456 accuracy 0.987654 learning_rate 0.000100 throughput 1234.5 images/s"
SECRET = "bench-{rank}"  # of each learner; its hash is in the table
LAG_EVERY_S = 0.01


async def note_lag(lags_ms: list[float]) -> None:
    """Sleep briefly in a loop, and record by how much each sleep was too long."""
    while True:
        due = time.monotonic() + LAG_EVERY_S
        await asyncio.sleep(LAG_EVERY_S)
        lags_ms.append((time.monotonic() - due) * 1000)


# --- learners


@dataclass
class Learner:
    """One learner's stream as its shipper would send it: at once with nothing in flight, else in full frames."""

    job: str
    number: int
    socket: ClientConnection
    buffer: deque[bytes] = field(default_factory=deque)
    buffered: int = 0
    sent: int = 0
    acked: int = 0
    printed: int = 0
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    unstored: deque[tuple[int, int]] = field(default_factory=deque)
    """Offsets after what was printed together, and when."""
    stored_ms: list[float] = field(default_factory=list)

    def print(self, lines: int) -> None:
        stamp = time.time_ns()
        block = "".join(f"{stamp} {self.printed + n} {FILL}\n" for n in range(lines)).encode()
        self.printed += lines
        self.buffer.append(block)
        self.buffered += len(block)
        self.unstored.append((self.sent + self.buffered, stamp))
        self.changed.set()

    async def pump(self) -> None:
        while True:
            await self.changed.wait()
            self.changed.clear()
            while self.buffered and (
                self.sent == self.acked
                or (self.buffered >= wire.MAX_DATA and self.sent - self.acked < 4 * wire.MAX_DATA)
            ):
                payload = b"".join(self.buffer)
                payload, rest = payload[: wire.MAX_DATA], payload[wire.MAX_DATA :]
                self.buffer = deque([rest] if rest else [])
                self.buffered = len(rest)
                now_ms = time.time_ns() // 1_000_000
                frame = wire.Data(self.sent, payload, now_ms, [(len(payload), 0)], zlib.crc32(payload))
                self.sent += len(payload)
                await self.socket.send(wire.encode(frame))

    async def listen(self) -> None:
        beat = wire.encode(wire.Beat(1))
        beat_at = time.monotonic() + 2 * (1 + self.number / 50)
        while True:
            message = await self.socket.recv()
            now = time.time_ns()
            if message[0] == wire.FrameType.ACK:
                self.acked = wire.decode(message).log  # type: ignore[arg-type]
                while self.unstored and self.unstored[0][0] <= self.acked:
                    self.stored_ms.append((now - self.unstored.popleft()[1]) / 1e6)
                self.changed.set()
            elif message[0] == wire.FrameType.NACK:
                raise AssertionError(wire.decode(message))  # type: ignore[arg-type]
            if time.monotonic() > beat_at:
                beat_at = time.monotonic() + 2
                await self.socket.send(beat)


async def greet(url: str, job: str, number: int) -> Learner:
    headers = {"Authorization": f"Bearer {SECRET.format(rank=number)}"}
    socket = await connect(
        url.replace("http", "ws", 1) + "/ws/agent/v1", additional_headers=headers, compression=None, proxy=None,
        ping_interval=None,
    )  # fmt: skip
    await socket.send(wire.encode(wire.Hello(job, 1, 0, wire.PROTO)))
    welcome = wire.decode(await socket.recv())  # type: ignore[arg-type]
    return Learner(job, number, socket, sent=welcome.log, acked=welcome.log)


async def play_learners(
    url: str, jobs: Sequence[str], rate: float, warm_s: float, seconds: float, counting: Any
) -> dict[str, Any]:
    """Print at rate lines/s over all learners (0: as fast as acknowledged) until all is stored.

    counting() is called after warm_s, when measuring begins, and again when the last line is stored.
    """
    learners = [await greet(url, job, number) for number, job in enumerate(jobs)]
    lags: list[float] = []
    tasks = [asyncio.create_task(work()) for one in learners for work in (one.pump, one.listen)]
    tasks.append(asyncio.create_task(note_lag(lags)))
    quiet = 0 < rate < 50 * len(jobs)
    tick = len(jobs) / rate if quiet else 0.02
    debt, began = 0.0, time.monotonic()
    at, warm, before = began, False, 0
    while (now := time.monotonic()) - began < warm_s + seconds:
        if not warm and now - began >= warm_s:
            warm, before, measured_from = True, sum(one.printed for one in learners), now
            lags.clear()
            for one in learners:
                one.stored_ms.clear()
            counting()
        debt += rate * tick / len(jobs)
        lines, debt = int(debt), debt - int(debt)
        for place, one in enumerate(learners):
            # Programs do not print at the same time: each has its own offset within a tick.
            if rate and (quiet or place % 10 == 0):
                await asyncio.sleep(max(0.0, at + tick * place / len(learners) - time.monotonic()))
            if rate and lines:
                one.print(lines)
            elif not rate and one.buffered < wire.MAX_DATA:
                one.print(2000)
        at += tick
        await asyncio.sleep(max(0.001, at - time.monotonic()) if rate else 0.001)
    while any(one.buffered or one.acked < one.sent for one in learners):  # noqa: ASYNC110
        await asyncio.sleep(0.002)
    counting()
    took = time.monotonic() - measured_from
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for one in learners:
        await one.socket.close()
    return {
        "printed": [one.printed for one in learners],
        "lines": float(sum(one.printed for one in learners) - before),
        "seconds": took,
        "stored_ms": [ms for one in learners for ms in one.stored_ms],
        "lags_ms": lags,
    }


# --- viewers

HEAD = re.compile(rb'\{"ch":"[^"]*","from":(\d+),"to":(\d+),"items":\[')
GAP = re.compile(rb'\{"ch":"[^"]*","gap":')


class Viewer(asyncio.Protocol):
    """One viewer's socket, down to the bytes: frames are counted and timed, every tenth viewer reads every line."""

    def __init__(self, found: Found, url: str, token: str, job: str, start: int, thorough: bool) -> None:
        self.found, self.url, self.token, self.job = found, url, token, job
        self.start = self.at = start
        self.thorough = thorough
        self.data = b""
        self.shaken = False

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        key = base64.b64encode(os.urandom(16)).decode()
        transport.write(
            f"GET /ws/v1/live HTTP/1.1\r\nHost: {urlsplit(self.url).netloc}\r\nUpgrade: websocket\r\n"
            f"Connection: Upgrade\r\nSec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n"
            f"Authorization: Bearer {self.token}\r\n\r\n".encode()
        )

    def say(self, opcode: int, payload: bytes) -> None:
        mask = os.urandom(4)
        hidden = bytes(byte ^ mask[place % 4] for place, byte in enumerate(payload))
        self.transport.write(bytes([0x80 | opcode, 0x80 | len(payload)]) + mask + hidden)

    def data_received(self, data: bytes) -> None:
        now = time.time_ns()
        data = self.data + data if self.data else data
        if not self.shaken:
            head, end, data = data.partition(b"\r\n\r\n")
            if not end:
                self.data = head
                return
            assert head.startswith(b"HTTP/1.1 101"), head
            self.shaken = True
            ask = {"op": "sub", "ch": f"job:{self.job}:logs:1:0", "after": self.start}
            self.say(1, json.dumps(ask).encode())
        at = 0
        while len(data) - at >= 2:
            size, begin = data[at + 1], at + 2
            if size >= 126:
                width = 2 if size == 126 else 8
                if len(data) < begin + width:
                    break
                size = int.from_bytes(data[begin : begin + width], "big")
                begin += width
            if len(data) < begin + size:
                break
            self.frame(data[at] & 15, data[begin : begin + size], now)
            at = begin + size
        self.data = data[at:]

    def frame(self, opcode: int, body: bytes, now: int) -> None:
        found = self.found
        if opcode == 9:
            self.say(10, body)
            return
        if opcode == 8:
            found.closed.append(body[2:].decode() or str(struct.unpack("!H", body[:2])))
            return
        head = HEAD.match(body)
        if head is None:
            if GAP.match(body):  # too slow for the socket: these lines would be fetched by REST
                gap = orjson.loads(body)["gap"]
                found.gap_lines += gap["to"] - gap["from"] + 1
                found.arrived.value += gap["to"] - gap["from"] + 1
                self.at = gap["to"]
            return
        first, last = int(head[1]), int(head[2])
        if last < first:  # a state without lines: the response to the subscription
            found.ready += 1
            return
        if first > self.at + 1:
            found.holes += 1
        if self.thorough:
            self.compare(body, first, last)
        fresh = max(0, last - max(self.at, first - 1))  # the line number shows what overlaps
        self.at = max(self.at, last)
        found.lines += fresh
        found.arrived.value += fresh
        for where in (
            body.find(b'"text":"', head.end()),
            body.rfind(b'"text":"'),
        ):  # its oldest, its newest line
            stamp = int(body[where + 8 : where + 27])
            if stamp >= found.measured_from.value > 0:
                found.delays_ms.append((now - stamp) / 1e6)

    def compare(self, body: bytes, first: int, last: int) -> None:
        items = orjson.loads(body)["items"]
        right = [item["n"] for item in items] == list(range(first, last + 1)) and all(
            item["text"].partition(" ")[2] == f"{item['n'] - self.start - 1} {FILL}" for item in items
        )
        self.found.compared += len(items)
        self.found.wrong += not right


@dataclass
class Found:
    """What the viewers of one process have seen."""

    arrived: Synchronized[int]
    measured_from: Synchronized[int]
    lines: int = 0
    compared: int = 0
    wrong: int = 0
    holes: int = 0
    gap_lines: int = 0
    ready: int = 0
    delays_ms: list[float] = field(default_factory=list)
    lags_ms: list[float] = field(default_factory=list)
    closed: list[str] = field(default_factory=list)


def play_viewers(
    url: str, tokens: list[str], watched: list[tuple[int, str, int]], measured_from: Any, arrived: Any, ready: Any,
    done: Any, out: Any,
) -> None:  # fmt: skip
    """A process of viewers. watched: (number of the viewer, job, its last line so far) for each."""

    async def all_of_them() -> dict[str, Any]:
        found = Found(arrived, measured_from)
        where = urlsplit(url)
        loop = asyncio.get_running_loop()
        transports = []
        for number, job, start in watched:
            transport, _ = await loop.create_connection(
                lambda number=number, job=job, start=start: Viewer(  # type: ignore[misc]
                    found, url, tokens[number % len(tokens)], job, start, number % 10 == 0
                ),
                where.hostname,
                where.port,
            )
            transports.append(transport)
        while found.ready < len(watched) and not found.closed:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        ready.release()
        lag = asyncio.create_task(note_lag(found.lags_ms))
        while not measured_from.value and not done.is_set():  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        found.lags_ms.clear()
        while not done.is_set():  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        lag.cancel()
        for transport in transports:
            transport.close()
        names = ("lines", "compared", "wrong", "holes", "gap_lines", "delays_ms", "lags_ms", "closed")
        return {name: getattr(found, name) for name in names}

    out.put(uvloop.run(all_of_them()))
