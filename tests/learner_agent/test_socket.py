"""The learners' socket against hostile and unlucky peers: a clear close code, and the server lives on."""

from __future__ import annotations

import asyncio
import json
import os
import struct
import zlib
from collections import Counter
from typing import Any

import pytest
from django.conf import LazySettings
from django.db import connection
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from jobs.ingest.intents import SessionState
from jobs.models import Job, Learner
from jobs.tokens import grant_of
from learner_agent import wire
from learner_agent.wire import (
    Ack,
    Beat,
    Data,
    Event,
    Final,
    Hello,
    Metric,
    Nack,
    Welcome,
    WireError,
    decode,
    encode,
)
from portal.live import learner_consumer, learner_hub
from portal.live.learner_consumer import CloseConnection, Gone, LearnerConsumer
from tests import factories
from tests.learner_agent.harness import TIMEOUT_S, AgentServer, make_job
from tests.learner_agent.test_wire import mutations

pytestmark = pytest.mark.usefixtures("server")
FRAMES = 100_000 if os.environ.get("LUTHIER_LONG") else 10_000
"""By the same seed: the shorter form is the longer one's beginning."""


def url(server: AgentServer) -> str:
    return f"ws://127.0.0.1:{server.port}/ws/agent/v1"


def dial(server: AgentServer, secret: str | None) -> Any:
    headers = {} if secret is None else {"Authorization": f"Bearer {secret}"}
    return connect(
        url(server),
        additional_headers=headers,
        compression=None,
        proxy=None,
        max_size=None,
        ping_interval=None,
        open_timeout=TIMEOUT_S,
    )


def hello_of(job: Job, rank: int = 0) -> Hello:
    return Hello(job.pk, job.attempt, rank, wire.PROTO)


async def greeted(server: AgentServer, job: Job) -> ClientConnection:
    """A connection past its WELCOME; use it in `async with`."""
    socket: ClientConnection = await dial(server, factories.secret(job, job.attempt, 0))
    await socket.send(encode(hello_of(job)))
    assert isinstance(decode(await socket.recv()), Welcome)  # type: ignore[arg-type]
    return socket


async def closed_with(socket: ClientConnection) -> tuple[int, str]:
    """Read to the end and say how it ended."""
    with pytest.raises(ConnectionClosed):
        await read_for_ever(socket)
    assert socket.close_code is not None
    return socket.close_code, socket.close_reason or ""


async def read_for_ever(socket: ClientConnection) -> None:
    while True:
        await asyncio.wait_for(socket.recv(), TIMEOUT_S)


async def answer(socket: ClientConnection) -> Any:
    """The next frame that is not a beat."""
    while True:
        frame = decode(await asyncio.wait_for(socket.recv(), TIMEOUT_S))  # type: ignore[arg-type]
        if not isinstance(frame, Beat):
            return frame


def data(off: int, payload: bytes) -> Data:
    return Data(off, payload, 1000, [(len(payload), 0)], zlib.crc32(payload))


def run(scenario: Any) -> Any:
    return asyncio.run(scenario)


@pytest.fixture
def job(server: AgentServer) -> Job:
    return make_job({"train.py": ""})


@pytest.mark.parametrize("secret", [None, "", "wrong", "lsec_" + "x" * 5000])
def test_without_a_known_secret_the_socket_is_closed_and_that_is_logged(
    server: AgentServer, secret: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> tuple[int, str]:
        return await closed_with(await dial(server, secret))

    code, reason = run(scenario())
    assert code == wire.CloseCode.UNAUTHORIZED
    assert "secret" in reason
    (refused,) = [each for each in caplog.records if each.getMessage() == "learner refused"]
    assert (vars(refused)["code"], vars(refused)["address"]) == (4401, "127.0.0.1")


def test_a_connection_counts_for_its_address_until_the_secret_is_known(
    server: AgentServer, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    known: list[Any] = []
    monkeypatch.setattr(learner_consumer, "authenticated", known.append)

    async def scenario() -> tuple[int, int, int]:
        code, _ = await closed_with(await dial(server, "wrong"))
        strangers = len(known)
        await (await greeted(server, job)).close()
        return code, strangers, len(known)

    assert run(scenario()) == (wire.CloseCode.UNAUTHORIZED, 0, 1)


@pytest.mark.parametrize("field", ["job", "attempt", "rank"])
def test_a_secret_is_valid_for_its_own_learner_only(server: AgentServer, job: Job, field: str) -> None:
    other = {"job": "000000000000", "attempt": job.attempt + 1, "rank": 1}
    hello = Hello(
        **({"job": job.pk, "attempt": job.attempt, "rank": 0, "proto": wire.PROTO} | {field: other[field]})
    )

    async def scenario() -> tuple[int, str]:
        socket = await dial(server, factories.secret(job, job.attempt, 0))
        await socket.send(encode(hello))
        return await closed_with(socket)

    assert run(scenario())[0] == wire.CloseCode.FORBIDDEN


def test_an_agent_counts_as_seen_once_its_reconnect_backlog_is_stored(
    server: AgentServer, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[list[int]] = []
    looked = learner_hub.session_states
    noted: list[set[int]] = []

    def look(ids: set[int]) -> dict[int, SessionState]:
        looks.append(list(ids))
        if len(looks) == 1:
            raise ValueError("a fault, after which the others are looked after all the same")
        return looked(ids)

    monkeypatch.setattr(learner_hub, "CHECK_S", 0.02)
    monkeypatch.setattr(learner_hub, "session_states", look)
    monkeypatch.setattr(learner_hub, "note_seen", noted.append)

    async def more_than(count: int, of: list[Any]) -> None:
        while len(of) <= count:
            await asyncio.sleep(0.01)

    async def scenario() -> None:
        async with await greeted(server, job) as socket:
            await asyncio.wait_for(more_than(len(looks) + 2, looks), TIMEOUT_S)
            assert not noted, "it only greeted"
            await socket.send(encode(Event(1, "exit", 0, {"code": 3})))
            await socket.send(encode(Beat(1)))
            await asyncio.wait_for(more_than(0, noted), TIMEOUT_S)

    run(scenario())
    row = Learner.objects.get(job=job)
    assert noted[0] == {row.pk}
    assert row.exit_code == 3


def test_frames_that_came_before_the_first_beat_are_waited_for(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    submitted: list[Any] = []
    monkeypatch.setattr(learner_consumer.writer, "submit", submitted.append)
    frames = [Event(n, "phase", 0, {"phase": "PROCESSING"}) for n in (1, 2)]
    messages = [
        {"type": "websocket.receive", "bytes": encode(frame)} for frame in (*frames, Beat(1), *frames)
    ]

    async def scenario() -> list[bool]:
        async def receive() -> dict[str, Any]:
            return messages.pop(0) if messages else {"type": "websocket.disconnect"}

        consumer = LearnerConsumer({"headers": []}, receive, None)
        secret = factories.secret(job, job.attempt, 0)
        consumer.grant = await asyncio.to_thread(in_own_connection, grant_of, secret)
        with pytest.raises(Gone):
            await consumer._read()
        said = [consumer.is_caught_up]
        for _ in range(3):
            consumer._settle(1, [])
            said.append(consumer.is_caught_up)
        return said

    assert run(scenario()) == [False, False, True, True]
    assert len(submitted) == 4


def test_offers_are_read_no_faster_than_they_are_answered(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each may name thousands of files: a learner that sends a million of them fills nothing."""
    answering, answered, read = asyncio.Event(), [], []

    async def slowly(work: Any, grant: Any, frame: wire.Ckpt, **options: Any) -> wire.Ckpt:
        await answering.wait()
        answered.append(frame.key)
        return frame

    monkeypatch.setattr(learner_consumer, "in_database", slowly)
    most = learner_consumer.OFFERS_WAITING + 1

    async def scenario() -> None:
        async def receive() -> dict[str, Any]:
            read.append(len(read))
            if len(read) > 50:
                return {"type": "websocket.disconnect"}
            return {"type": "websocket.receive", "bytes": encode(wire.Ckpt(str(len(read))))}

        async def send(event: dict[str, Any]) -> None:
            pass

        consumer = LearnerConsumer({"headers": []}, receive, send)
        secret = factories.secret(job, job.attempt, 0)
        consumer.grant = await asyncio.to_thread(in_own_connection, grant_of, secret)
        reading = asyncio.create_task(consumer._read())
        for _ in range(200):  # steps of the loop, of which none waits
            await asyncio.sleep(0)
        assert len(read) == most
        answering.set()
        with pytest.raises(Gone):
            await asyncio.wait_for(reading, TIMEOUT_S)
        while len(answered) < 50:
            await asyncio.sleep(0)

    run(scenario())
    assert answered == [str(n) for n in range(1, 51)]


@pytest.mark.parametrize("proto", [None, "http", "https", "wss"])
def test_a_learner_without_tls_is_refused_for_now(
    server: AgentServer, job: Job, settings: LazySettings, caplog: pytest.LogCaptureFixture, proto: str | None
) -> None:
    """Not for good: a proxy that is not named among the trusted ones looks the same."""
    settings.SECURE_SSL_REDIRECT, settings.LUTHIER_INGEST_URL = True, "wss://luthier.example.org"

    async def scenario() -> tuple[int, str] | None:
        headers = {"Authorization": f"Bearer {factories.secret(job, job.attempt, 0)}"}
        headers |= {"X-Forwarded-Proto": proto} if proto else {}
        async with connect(
            url(server), additional_headers=headers, proxy=None, open_timeout=TIMEOUT_S
        ) as socket:
            if proto in ("https", "wss"):
                await socket.send(encode(hello_of(job)))
                assert isinstance(await answer(socket), Welcome)
                return None
            return await closed_with(socket)

    ended = run(scenario())
    if proto not in ("https", "wss"):
        assert ended == (wire.CloseCode.TRY_LATER, "Use wss://luthier.example.org, with TLS.")
        assert "request without TLS refused" in caplog.text
        settings.LUTHIER_INGEST_URL = "ws://web:8000"
        assert "with TLS" not in str(run(plain(server, job)))


async def plain(server: AgentServer, job: Job) -> Any:
    async with await greeted(server, job) as socket:
        return socket.close_reason


def test_an_offer_that_fails_ends_the_connection_so_that_it_is_made_again(
    server: AgentServer, job: Job, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any) -> wire.Ckpt:
        raise WireError("header: 67863 bytes, at most 65535 fit")

    monkeypatch.setattr(learner_consumer.checkpoints, "offer", fail)

    async def scenario() -> tuple[int, str]:
        async with await greeted(server, job) as socket:
            await socket.send(encode(wire.Ckpt("step-7")))
            return await closed_with(socket)

    assert run(scenario()) == (wire.CloseCode.TRY_LATER, "The offer failed at the server; try again.")
    assert "67863 bytes" in caplog.text


def frame_of(kind: int, header: Any, payload: bytes = b"") -> bytes:
    text = json.dumps(header).encode()
    return struct.pack(">BH", kind, len(text)) + text + payload


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (b"", wire.CloseCode.BAD_FRAME),
        (b"\xff\x00\x02{}", wire.CloseCode.BAD_FRAME),
        ("text", wire.CloseCode.BAD_FRAME),
        (encode(Hello("3f9k2m7qx4ta", 1, 0, wire.PROTO)), wire.CloseCode.BAD_FRAME),
        (encode(Ack(5)), wire.CloseCode.BAD_FRAME),
        (encode(Nack("log", "GAP", 5)), wire.CloseCode.BAD_FRAME),
        (
            frame_of(wire.FrameType.DATA, {"off": 2**63, "crc": 0, "reads": []}, b"x"),
            wire.CloseCode.BAD_FRAME,
        ),
        (
            frame_of(wire.FrameType.METRIC, {"src": "jsonl", "off": 0, "next": 1}, b'[["a",-1,0,1]]'),
            wire.CloseCode.BAD_FRAME,
        ),
        (frame_of(wire.FrameType.EVENT, {"n": 1, "what": "party"}), wire.CloseCode.BAD_FRAME),
        (frame_of(wire.FrameType.EVENT, {"n": 1, "what": "😀" * 60}), wire.CloseCode.BAD_FRAME),
        (
            frame_of(wire.FrameType.EVENT, {"n": 1, "what": "exit", "data": {"x": "a\0b"}}),
            wire.CloseCode.BAD_FRAME,
        ),
        (b"\x03" * (1024 * 1024 + 1), 1009),
    ],
)
def test_a_bad_frame_closes_with_a_text_that_says_why(
    server: AgentServer, job: Job, message: bytes | str, code: int
) -> None:
    async def scenario() -> tuple[int, str]:
        socket = await greeted(server, job)
        await socket.send(message)
        return await closed_with(socket)

    found, reason = run(scenario())
    assert found == code
    assert reason or code == 1009


def test_data_before_hello_is_refused(server: AgentServer, job: Job) -> None:
    async def scenario() -> tuple[int, str]:
        socket = await dial(server, factories.secret(job, job.attempt, 0))
        await socket.send(encode(data(0, b"x")))
        return await closed_with(socket)

    assert run(scenario()) == (wire.CloseCode.BAD_FRAME, "The first frame must be HELLO.")


@pytest.mark.parametrize("proto", [0, 1, wire.PROTO + 1])
def test_another_version_is_refused_for_good_with_the_known_one(
    server: AgentServer, job: Job, proto: int
) -> None:
    async def scenario() -> tuple[int, str]:
        socket = await dial(server, factories.secret(job, job.attempt, 0))
        await socket.send(encode(Hello(job.pk, job.attempt, 0, proto=proto)))
        return await closed_with(socket)

    assert run(scenario()) == (wire.CloseCode.VERSION, "proto: this server speaks 2.")


def test_a_gap_is_answered_with_where_to_go_on_and_the_connection_stays(
    server: AgentServer, job: Job
) -> None:
    async def scenario() -> list[Any]:
        async with await greeted(server, job) as socket:
            await socket.send(encode(data(7, b"later")))
            first = [await answer(socket), await answer(socket)]
            await socket.send(encode(data(0, b"0123456")))
            return [*first, await answer(socket)]

    ack, nack, last = run(scenario())
    assert (ack.log, nack.code, nack.next, last.log) == (0, "GAP", 0, 7)


def test_points_without_number_arrive_and_the_intent_comes_with_the_response(
    server: AgentServer, job: Job
) -> None:
    async def scenario() -> Any:
        async with await greeted(server, job) as socket:
            points = [("loss", 1, 0, float("nan")), ("loss", 2, 0, float("inf"))]
            await socket.send(encode(Metric("jsonl", 0, 50, points)))
            return await answer(socket)

    ack = run(scenario())
    assert ack.metrics == {"jsonl": 50}
    assert ack.intent.intent == "RUN"


def test_damaged_frames_end_in_nothing_but_a_refusal(job: Job) -> None:
    """Each frame goes through a real consumer's reading, and the sound ones through the writer to the database."""
    messages = mutations(FRAMES, seed=7)

    async def scenario() -> Counter[str]:
        found: Counter[str] = Counter()
        waiting: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            return waiting.pop(0)

        async def send(event: dict[str, Any]) -> None:
            found["answers"] += 1

        consumer = LearnerConsumer({"headers": []}, receive, send)
        consumer.grant = await asyncio.to_thread(
            in_own_connection, grant_of, factories.secret(job, job.attempt, 0)
        )
        for message in messages:
            waiting[:] = [{"type": "websocket.receive", "bytes": message}, {"type": "websocket.disconnect"}]
            try:
                await consumer._read()
                found["bye"] += 1
            except Gone:
                found["taken"] += 1
            except (WireError, CloseConnection):
                found["refused"] += 1
        while consumer.waiting_bytes:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        return found

    found = run(scenario())
    assert found["taken"] + found["refused"] + found["bye"] == FRAMES
    assert found["taken"] > FRAMES / 100
    assert found["answers"] > 0


def in_own_connection(work: Any, *arguments: Any) -> Any:
    try:
        return work(*arguments)
    finally:
        connection.close()


def test_bursts_of_damaged_frames_end_connections_but_never_the_server(server: AgentServer, job: Job) -> None:
    messages = mutations(20_000, seed=8)

    async def scenario() -> set[int]:
        codes: set[int] = set()
        for start in range(0, len(messages), 200):
            async with await greeted(server, job) as socket:
                try:
                    for message in messages[start : start + 200]:
                        await socket.send(message)
                    codes.add((await closed_with(socket))[0])
                except ConnectionClosed as end:
                    codes |= {end.rcvd.code} if end.rcvd is not None else set()
        async with await greeted(server, job) as socket:
            await socket.send(encode(Event(1, "phase", 0, {"phase": "PROCESSING"})))
            assert isinstance(await answer(socket), Ack)
        return codes

    assert run(scenario()) <= {wire.CloseCode.BAD_FRAME}


def test_a_flood_fills_its_own_window_and_is_pushed_back(server: AgentServer, job: Job) -> None:
    """Five megabytes without waiting for an answer: all of it arrives, in order."""
    block = b"0123456789abcdef" * 4096

    async def scenario() -> int:
        async with await greeted(server, job) as socket:
            for n in range(80):
                await socket.send(encode(data(n * len(block), block)))
            total = 80 * len(block)
            await socket.send(encode(Final(total, zlib.crc32(block * 80))))
            while True:
                found = await answer(socket)
                if isinstance(found, Ack) and found.sealed:
                    return found.log

    assert run(scenario()) == 80 * len(block)


def test_a_silent_peer_that_never_says_hello_is_let_go(
    server: AgentServer, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    from portal.live import learner_consumer

    monkeypatch.setattr(learner_consumer, "HELLO_S", 0.2)

    async def scenario() -> tuple[int, str]:
        return await closed_with(await dial(server, factories.secret(job, job.attempt, 0)))

    assert run(scenario())[0] == wire.CloseCode.SILENT


def test_an_attempt_that_was_closed_and_sealed_is_fenced(server: AgentServer, job: Job) -> None:
    from django.utils import timezone

    async def before() -> ClientConnection:
        return await greeted(server, job)

    async def scenario() -> int:
        socket = await before()
        await asyncio.to_thread(close_attempt)
        return (await closed_with(socket))[0]

    def close_attempt() -> None:
        from django.db import connection

        job.attempts.update(held=False, closed_at=timezone.now())
        job.learner_rows.update(log_sealed=True)
        connection.close()

    assert run(scenario()) == wire.CloseCode.FENCED
