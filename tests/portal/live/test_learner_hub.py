"""When the intents of connected learners are read."""

from __future__ import annotations

import asyncio

import pytest

from jobs.pubsub import Hint, Subject
from portal.live import learner_hub
from portal.live.learner_hub import LearnerHub


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
    learner = Learner()
    hub.join(learner)  # type: ignore[arg-type]  # see Learner
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
        hub.leave(learner)  # type: ignore[arg-type]
