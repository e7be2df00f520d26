"""The path of a metric point: from the frame that the shipper sends to the frame that a viewer gets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from asgiref.testing import ApplicationCommunicator

from jobs.ingest.writer import writer
from jobs.models import Job
from jobs.states import State
from learner_agent.wire import PROTO, Ack, Beat, Hello, Metric, Welcome, WireFrame, decode, encode
from portal.live import learner_hub
from portal.live.routing import websocket_application
from tests import factories
from tests.architecture.tracing import Trace, more_than_stated, traced
from tests.portal.live.conftest import WITHIN_S, connections_closed, hosts, socket_of

__all__ = ["connections_closed", "hosts", "socket_of"]


@pytest.fixture
def trace() -> Iterator[Trace]:
    """All threads of ours start within it."""
    stop_threads()
    with traced() as made:
        yield made
    stop_threads()


def stop_threads() -> None:
    writer.stop()
    learner_hub.THREADS.close()
    learner_hub.OFFERS.close()


class LearnerSocket:
    """The learners' socket as the shipper uses it."""

    def __init__(self, secret: str) -> None:
        headers = [(b"host", b"testserver"), (b"authorization", f"Bearer {secret}".encode())]
        scope = {"type": "websocket", "path": "/ws/agent/v1", "query_string": b"", "headers": headers}
        self._wire = ApplicationCommunicator(websocket_application, scope)

    async def open(self, job: Job) -> None:
        await self._wire.send_input({"type": "websocket.connect"})
        assert (await self._next())["type"] == "websocket.accept"
        await self.send(Hello(job.pk, job.attempt, 0, PROTO))
        assert isinstance(await self.response(), Welcome)

    async def send(self, frame: WireFrame) -> None:
        await self._wire.send_input({"type": "websocket.receive", "bytes": encode(frame)})

    async def response(self) -> WireFrame:
        """The next frame that is not a heartbeat."""
        while isinstance(frame := decode((await self._next())["bytes"]), Beat):
            pass
        return frame

    async def close(self) -> None:
        await self._wire.send_input({"type": "websocket.disconnect", "code": 1000})
        await self._wire.wait(WITHIN_S)

    async def _next(self) -> Any:
        return await asyncio.wait_for(self._wire.output_queue.get(), WITHIN_S)


@pytest.fixture
async def learner(job: Job) -> AsyncIterator[LearnerSocket]:
    made = LearnerSocket(await sync_to_async(factories.secret)(job, job.attempt, 0))
    await made.open(job)
    yield made
    await made.close()


@pytest.fixture
def job(transactional_db: None) -> Job:
    return factories.job(state=State.PROCESSING)


async def test_a_point_passes_no_more_files_than_the_page_states(
    trace: Trace,
    job: Job,
    learner: LearnerSocket,
    socket_of: Callable[..., Any],
) -> None:
    channel = f"job:{job.pk}:metrics"
    viewer = await socket_of(await sync_to_async(lambda: job.owner)())
    await viewer.sub(channel, after=0)

    async def point(step: int) -> None:
        await learner.send(Metric("jsonl", step - 1, step, [("loss", step, 0, step / 8)]))
        assert isinstance(await learner.response(), Ack)
        item = (await viewer.items(channel, step))[-1]
        assert (item["step"], item["value"]) == (step, step / 8), json.dumps(item)

    await point(1)  # everything is imported and every cache is filled
    passed = []
    for step in range(2, 8):
        with trace.record() as files:
            await point(step)
        passed.append(files)

    # What runs by time, such as a check of permissions, does not run with every point.
    every_time = set.intersection(*passed)
    assert not more_than_stated({"a metric point, from the shipper's frame to a viewer": every_time})
