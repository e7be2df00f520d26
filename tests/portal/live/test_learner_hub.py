"""When the intents of connected learners are read, and that slow work of one of them delays no halt of another."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from jobs.ingest import checkpoints
from jobs.pubsub import Hint, Subject
from portal.live import learner_hub
from portal.live.learner_consumer import LearnerConsumer
from portal.live.learner_hub import LearnerHub, in_database


class Learner:
    """As much of a connection as the hub wants to know."""

    grant = None

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()


@pytest.mark.asyncio
async def test_hints_that_follow_each_other_are_read_for_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """One query is for all learners: a thousand jobs that move must not make one each."""
    reads: list[int] = []
    rests: asyncio.Queue[asyncio.Event] = asyncio.Queue()
    hub = LearnerHub()

    async def read() -> None:
        reads.append(1)

    async def rest() -> None:
        over = asyncio.Event()
        rests.put_nowait(over)
        await over.wait()

    monkeypatch.setattr(hub, "_refresh", read)
    monkeypatch.setattr(hub, "_rest", rest)
    monkeypatch.setattr(learner_hub, "CHECK_S", 3600.0)
    learner: Any = Learner()
    hub.join(learner)
    try:
        hub.on_hint(Hint(Subject.JOB))
        first = await rests.get()
        for _ in range(5):
            hub.on_hint(Hint(Subject.JOB))
        assert len(reads) == 1, "the first is read for at once, others not during the rest"
        first.set()
        await rests.get()
        assert len(reads) == 2
    finally:
        hub.leave(learner)


async def test_offers_of_files_that_take_long_do_not_delay_the_intents_of_other_learners(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun, free = threading.Event(), threading.Event()

    def slow(*_: object) -> str:
        begun.set()
        return "answer" if free.wait(60) else "too late"

    answers: list[Any] = []

    async def answer(found: Any) -> None:
        answers.append(found)

    monkeypatch.setattr(checkpoints, "offer", slow)
    learners: list[Any] = [LearnerConsumer({"type": "websocket"}, None, None) for _ in range(20)]
    for learner in learners:
        learner.grant = SimpleNamespace(job_id="")
        learner._send_frame = answer
    offers = [asyncio.create_task(learner._offer(SimpleNamespace(key=""))) for learner in learners]
    try:
        assert await asyncio.to_thread(begun.wait, 30), "then all of them were handed to threads"
        async with asyncio.timeout(30):
            assert await in_database(lambda: "halt") == "halt"
        assert answers == []
    finally:
        free.set()
        await asyncio.gather(*offers)
    assert answers == ["answer"] * 20
