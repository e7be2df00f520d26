"""Real frames, damaged by a seed: each is taken or refused with a documented code, and only the sender's rows change.

Some thousands every day; LUTHIER_LONG makes it a million.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from typing import Any

import psutil
import pytest
from django.test import Client
from websockets.exceptions import ConnectionClosed

from jobs import counters
from jobs.ingest.writer import writer
from jobs.models import (
    Attempt,
    Checkpoint,
    CheckpointFile,
    Job,
    JobEvent,
    Learner,
    LogChunk,
    MetricPoint,
    Progress,
    ResultFile,
)
from jobs.states import State
from jobs.tokens import grant_of
from learner_agent import wire
from learner_agent.wire import CloseCode, WireError, decode, encode
from portal.live import learner_hub
from portal.live.learner_consumer import CloseConnection, Gone, LearnerConsumer
from tests import factories
from tests.jobs.ingest.test_commit import data, submit
from tests.learner_agent.harness import TIMEOUT_S, AgentServer
from tests.learner_agent.hostile_frames import HostileShipper
from tests.learner_agent.test_socket import dial, hello_of, in_own_connection

LONG = bool(os.environ.get("LUTHIER_LONG"))
PER_JOB, JOBS = (20_000, 50) if LONG else (5_000, 2)
MESSAGES_BY_SOCKET = 50_000 if LONG else 2_000
REFUSALS = {CloseCode.BAD_FRAME, CloseCode.TOO_LARGE, CloseCode.FORBIDDEN, CloseCode.VERSION}
GROWTH = 150 * 1024 * 1024
"""Bytes by which the process may grow, whatever is sent: caches and the allocator's own, measured 40 MiB."""
TABS = ("", "/metrics", "/logs", "/learners", "/events", "/checkpoints", "/spec")
READS = (
    "", "/events", "/learners", "/logs", "/logs/levels", "/logs/raw", "/metrics", "/metrics?x=time",
    "/metrics?buckets=2", "/metrics.csv", "/checkpoints", "/results",
)  # fmt: skip

pytestmark = [pytest.mark.timeout(3_600 if LONG else 180), pytest.mark.usefixtures("transactional_db")]


def rows_of(job: Job, attempts: tuple[int, ...]) -> dict[str, list[Any]]:
    """Everything that is stored of these attempts of a job, and of the job itself."""
    by_attempt = (Learner, LogChunk, MetricPoint, Checkpoint, ResultFile, JobEvent)
    found = {
        model.__name__: list(model.objects.filter(job=job, attempt__in=attempts).order_by("pk").values())
        for model in by_attempt
    }
    return found | {"Attempt": list(Attempt.objects.filter(job=job, n__in=attempts).order_by("n").values())}


def bystander() -> Job:
    """A job of another tenant that runs meanwhile, with something of every kind."""
    job = factories.job(state=State.PROCESSING)
    submit(job, data(0, b"mine\n"), wire.Metric("jsonl", 0, 5, [("loss", 1, 0, 0.5)]))
    saved = factories.checkpoint(job)
    CheckpointFile.objects.filter(checkpoint=saved).count()
    return job


def whole(job: Job) -> dict[str, list[Any]]:
    mine = rows_of(job, (1,))
    return mine | {
        model.__name__: list(model.objects.filter(pk=job.pk).values()) for model in (Job, Progress)
    }


def restarted() -> Job:
    """A job in its second attempt, whose first one has a log and points."""
    job = factories.job(state=State.PROCESSING)
    submit(job, data(0, b"first\n"), wire.Metric("jsonl", 0, 5, [("loss", 1, 0, 0.5)]))
    Attempt.objects.filter(job=job).update(held=False, closed_at="2026-01-01T00:00Z")
    Learner.objects.filter(job=job).update(log_sealed=True)
    factories.add_attempt(job, 2, held=True)
    Job.objects.filter(pk=job.pk).update(attempt=2)
    job.refresh_from_db()
    return job


async def swallow(job: Job, shipper: HostileShipper, count: int) -> Counter[str]:
    """Have a consumer read this many messages. A refusal does not end it here: a connection each would take hours."""
    found: Counter[str] = Counter()
    faults: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))

    async def receive() -> dict[str, Any]:
        if found["messages"] == count:
            return {"type": "websocket.disconnect"}
        found["messages"] += 1
        if found["messages"] % 20 == 0:
            await asyncio.sleep(0)
        message = shipper.message()
        if isinstance(message, str):
            return {"type": "websocket.receive", "text": message}
        return {"type": "websocket.receive", "bytes": message}

    async def send(event: dict[str, Any]) -> None:
        found["answers"] += 1
        shipper.follow(decode(event["bytes"]))

    consumer = LearnerConsumer({"headers": []}, receive, send)
    secret = factories.secret(job, job.attempt, 0)
    consumer.grant = await asyncio.to_thread(in_own_connection, grant_of, secret)
    while found["messages"] < count:
        try:
            await consumer._read()
            found["bye"] += 1
        except Gone:
            break
        except WireError:
            found[CloseCode.BAD_FRAME.name] += 1
        except CloseConnection as refusal:
            found[refusal.code.name] += 1
    while consumer.waiting_bytes or consumer._tasks:
        await asyncio.sleep(0.005)
    assert found.keys() <= {"messages", "answers", "bye", *(code.name for code in REFUSALS)}
    assert not faults, faults
    assert not consumer._ending.done(), consumer._ending.result().reason
    return found


def assert_readable(job: Job) -> None:
    """Whatever a program sent, its job can be looked at."""
    client = Client()
    client.force_login(job.owner)
    paths = [f"/api/v1/jobs/{job.pk}{read}" for read in READS]
    paths += [f"/t/{job.tenant.slug}/jobs/{job.pk}{tab}" for tab in TABS]
    for path in paths:  # in part: a log that claims to have lost 2^60 bytes is as long
        part = {"Range": "bytes=0-99999"} if path.endswith("/raw") else {}
        answer = client.get(path, headers=part)
        body = b"".join(answer.streaming_content) if answer.streaming else answer.content
        assert answer.status_code in ((206, 416) if part else (200,)), (path, answer.status_code, body[:2000])


def refused_by_database() -> float:
    (metric,) = counters.INGEST_REFUSED.collect()
    return next(sample.value for sample in metric.samples if sample.name.endswith("_total"))


def test_hostile_frames_are_refused_by_code_and_change_nothing_of_another_attempt() -> None:
    other = bystander()
    before, refused = whole(other), refused_by_database()
    process, found, sizes = psutil.Process(), Counter[str](), []
    try:
        for n in range(JOBS):
            job = restarted()
            closed = rows_of(job, (1,))
            shipper = HostileShipper(n, [(other.pk, 1, 0), (job.pk, 1, 0), (job.pk, 2, 1)])
            found += asyncio.run(swallow(job, shipper, PER_JOB))
            assert rows_of(job, (1,)) == closed
            assert_readable(job)
            sizes.append(process.memory_info().rss)
            print(f"{found['messages']} messages, {sizes[-1] >> 20} MiB", flush=True)
    finally:
        writer.stop()
        learner_hub.OFFERS.close()
    print(f"\n{dict(found)}, MiB: {[size >> 20 for size in sizes[:: max(1, len(sizes) // 20)]]}")
    assert whole(other) == before
    assert refused_by_database() == refused, "what the database cannot store is refused when it is read"
    assert found["messages"] == JOBS * PER_JOB
    assert found["BAD_FRAME"] > found["messages"] // 4
    assert MetricPoint.objects.exclude(job=other).count() > 100 * JOBS
    assert max(sizes) - sizes[0] < GROWTH


def test_hostile_sessions_end_with_documented_codes_and_the_server_serves_the_next(
    server: AgentServer,
) -> None:
    other, job = bystander(), restarted()
    before, closed = whole(other), rows_of(job, (1,))
    shipper = HostileShipper(9, [(other.pk, 1, 0), (job.pk, 1, 0), (job.pk, 2, 1)])
    codes: Counter[int] = Counter()

    async def session() -> int:
        """Messages until the server closes; returns how many were sent."""
        sent = 0
        async with await dial(server, factories.secret(job, job.attempt, 0)) as socket:
            luck = shipper.chance.random()
            if luck < 0.8:
                await socket.send(encode(hello_of(job)))
            elif luck < 0.9:
                await socket.send(encode(wire.Hello(*shipper.chance.choice(shipper.others), wire.PROTO)))
            try:
                while sent < 25:
                    sent += 1
                    await socket.send(shipper.message())
                await socket.send(b"\x03" * (wire.MAX_MESSAGE + 1))
                while True:
                    await asyncio.wait_for(socket.recv(), TIMEOUT_S)
            except ConnectionClosed:
                codes[socket.close_code or 0] += 1
        return sent

    async def scenario() -> int:
        total = 0
        while total < MESSAGES_BY_SOCKET:
            total += await session()
        async with await dial(server, factories.secret(other, 1, 0)) as socket:
            await socket.send(encode(hello_of(other)))
            assert isinstance(decode(await socket.recv()), wire.Welcome)  # type: ignore[arg-type]
        return total

    total = asyncio.run(scenario())
    print(f"\n{total} messages, sessions by close code: {dict(codes)}")
    # 1006: a server that hangs up on bytes that it has not read may lose its close frame.
    assert set(codes) <= REFUSALS | {1000, 1006, 1009}, codes
    assert codes[1006] <= codes[CloseCode.BAD_FRAME] // 20
    assert codes[CloseCode.BAD_FRAME] > total // 50
    assert codes[CloseCode.FORBIDDEN] > 0
    assert whole(other) == before
    assert rows_of(job, (1,)) == closed
    assert_readable(job)
