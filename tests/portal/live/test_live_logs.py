"""`/ws/v1/live`: the lines of a log, each once, from the cursor on, also to several readers."""

from __future__ import annotations

import asyncio
import json

import pytest
from asgiref.sync import sync_to_async
from django.db import OperationalError

from jobs import pubsub
from jobs.ingest.store import commit
from jobs.models import Job
from jobs.selectors import log_cache
from jobs.states import State
from portal.live.identity import watchable
from portal.live.protocol import parse_channel
from portal.live.read_logs import LogSource
from portal.live.viewer_hub import hub
from tenants.models import User
from tests import factories
from tests.jobs.ingest.test_commit import data, grant
from tests.portal.live.conftest import Open
from tests.portal.live.lines import logs_of, print_lines, store_async


async def test_lines_come_each_once_from_the_cursor_on_and_as_they_are_printed(
    job: Job, alice: User, socket_of: Open
) -> None:
    await print_lines(job, 1, 10)
    socket = await socket_of(alice)
    await socket.sub(logs_of(job), after=3)
    assert [item["n"] for item in await socket.items(logs_of(job), 10)] == list(range(4, 11))
    for first in range(11, 200, 20):
        await print_lines(job, first, first + 19)
    assert [item["text"] for item in await socket.items(logs_of(job), 210)] == [
        f"line {n}" for n in range(11, 211)
    ]


async def test_a_reader_who_names_no_cursor_gets_what_comes(job: Job, alice: User, socket_of: Open) -> None:
    await print_lines(job, 1, 10)
    socket = await socket_of(alice)
    await socket.sub(logs_of(job))
    hello = await socket.next(ch=logs_of(job))
    assert (hello["from"], hello["to"], hello["items"]) == (11, 10, [])
    await print_lines(job, 11, 11)
    assert [item["n"] for item in await socket.items(logs_of(job), 11)] == [11]


async def test_a_cursor_beyond_the_end_is_put_back_to_it(job: Job, alice: User, socket_of: Open) -> None:
    await print_lines(job, 1, 2)
    socket = await socket_of(alice)
    await socket.sub(logs_of(job), after=1_000_000)
    assert (await socket.next(ch=logs_of(job)))["to"] == 2
    await print_lines(job, 3, 3)
    assert [item["n"] for item in await socket.items(logs_of(job), 3)] == [3]


async def test_a_lost_hint_costs_a_second_and_no_line(job: Job, alice: User, socket_of: Open) -> None:
    socket = await socket_of(alice)
    await socket.sub(logs_of(job), after=0)
    await socket.next(ch=logs_of(job))
    await print_lines(job, 1, 5, notify=False)
    assert len(await socket.items(logs_of(job), 5)) == 5


async def test_lines_stored_by_this_very_process_are_not_read_back(
    job: Job, alice: User, socket_of: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_cache, "FRESH_S", 60.0)
    socket = await socket_of(alice)
    await socket.sub(logs_of(job), after=0)
    await socket.next(ch=logs_of(job))
    while (job.pk, 1, 0) not in log_cache._streams:
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.2)  # the look that asked for it has ended

    def down(*_: object) -> None:
        raise OperationalError

    monkeypatch.setattr(LogSource, "read", down)
    who = await sync_to_async(grant)(job)
    for n in range(1, 6):
        line = b"line %d\n" % n
        await sync_to_async(lambda n=n, line=line: commit([(who, data(7 * n - 7, line))]).publish())()
        assert [item["n"] for item in await socket.items(logs_of(job), n)] == [n]


async def test_a_large_log_comes_in_frames_of_bounded_size(job: Job, alice: User, socket_of: Open) -> None:
    await store_async(job, [b"".join(b"%d %s\n" % (n, b"x" * 500) for n in range(1, 1_001))])
    socket = await socket_of(alice)
    await socket.sub(logs_of(job), after=0)
    sizes = []
    last = 0
    while last < 1_000:
        frame = await socket.next(ch=logs_of(job), items=...)
        sizes.append((len(json.dumps(frame)), len(frame["items"])))
        last = frame["to"]
    assert max(size for size, _ in sizes) <= 64 * 1024 + 1_000
    assert max(count for _, count in sizes) <= 500


async def test_an_unfinished_line_and_the_end_of_the_log_are_sent(
    job: Job, alice: User, socket_of: Open
) -> None:
    socket = await socket_of(alice)
    await socket.sub(logs_of(job), after=0)
    await socket.next(ch=logs_of(job))
    await store_async(job, [b"10 %\r20 %"])
    pubsub.logs_grew(job.pk, attempt=1, rank=0)
    frame = await socket.next(ch=logs_of(job), items=[])
    assert frame["tail"]["text"] == "20 %"
    assert frame["sealed"] is False
    await store_async(job, [], sealed=True)
    frame = await socket.next(ch=logs_of(job), sealed=True)
    assert [item["text"] for item in frame["items"]] == ["20 %"]


async def test_the_log_of_the_next_attempt_can_be_watched_from_its_first_line_on(
    alice: User, socket_of: Open
) -> None:
    job = await sync_to_async(factories.job)(owner=alice, learners=2)
    ended = await sync_to_async(factories.job)(owner=alice, state=State.COMPLETED)
    socket = await socket_of(alice)
    for other in (f"job:{job.pk}:logs:2:0", f"job:{job.pk}:logs:1:2", f"job:{ended.pk}:logs:2:0"):
        await socket.sub(other, after=0)
        assert (await socket.next(ch=other, error=...))["error"]["code"] == "not_found"
    await socket.sub(logs_of(job), after=0)
    first = await socket.next(ch=logs_of(job))
    assert (first["from"], first["to"], first["items"]) == (1, 0, [])
    await Job.objects.filter(pk=job.pk).aupdate(attempt=1)
    await sync_to_async(factories.add_attempt)(job, 1, held=False)
    await job.arefresh_from_db()
    await print_lines(job, 1, 3)
    assert [line["n"] for line in (await socket.next(ch=logs_of(job)))["items"]] == [1, 2, 3]


@pytest.mark.django_db
@pytest.mark.parametrize(
    "resources", ["[1]", "{", '{"learners": {"at_least": 2}}', '{"learners": {"min": "a"}}']
)
def test_a_job_whose_size_cannot_be_read_hides_the_next_log_and_no_other_channel(
    alice: User, resources: str
) -> None:
    job = factories.job(owner=alice)
    Job.objects.filter(pk=job.pk).update(resources=resources)
    names = [f"job:{job.pk}", logs_of(job), "cluster"]
    channels = [channel for name in names if (channel := parse_channel(name))]
    assert watchable(alice, channels) == {f"job:{job.pk}", "cluster"}


async def test_two_tabs_see_the_same_lines_from_one_reading(job: Job, alice: User, socket_of: Open) -> None:
    first, second = await socket_of(alice), await socket_of(alice)
    for socket in (first, second):
        await socket.sub(logs_of(job), after=0)
        await socket.next(ch=logs_of(job))
    assert len(hub().feeds) == 1
    for start in range(1, 100, 10):
        await print_lines(job, start, start + 9)
    one, other = await first.items(logs_of(job), 100), await second.items(logs_of(job), 100)
    assert one == other
    assert [item["n"] for item in one] == list(range(1, 101))
