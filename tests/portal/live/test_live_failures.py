"""`/ws/v1/live`: a row that cannot be read and a reader who is slow keep no other waiting."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from asgiref.sync import sync_to_async

from jobs.models import Job, Progress
from portal.live import read_jobs
from portal.live import viewer as viewers
from portal.live import viewer_hub as hubs
from portal.live.frames import FrameBatch, ReadRequest
from portal.live.protocol import Topic
from portal.live.sources import SOURCES
from portal.live.viewer_hub import hub
from tenants.models import User
from tests import factories
from tests.portal.live.conftest import Open
from tests.portal.live.lines import logs_of, print_lines


async def test_one_row_that_cannot_be_read_is_said_and_ends_nothing(
    job: Job, alice: User, socket_of: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    ch = f"job:{job.pk}"
    socket = await socket_of(alice)
    await socket.sub(ch, after=0)
    await socket.next(ch=ch)
    with monkeypatch.context() as broken:
        broken.setattr("portal.live.read_jobs.job_state", lambda job: 1 / 0)
        await Progress.objects.filter(job=job).aupdate(step=1)
        assert (await socket.next(ch=ch, error=...))["error"]["code"] == "unavailable"
    assert (await socket.next(ch=ch, items=[]))["job"]["progress"]["step"] == 1


async def test_a_channel_that_cannot_be_read_keeps_no_other_waiting(
    job: Job, alice: User, socket_of: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    sound = await sync_to_async(factories.job)(owner=alice)
    socket = await socket_of(alice)
    for one in (job, sound):
        await socket.sub(f"job:{one.pk}", after=0)
        await socket.next(ch=f"job:{one.pk}")
    whole = read_jobs.job_state
    monkeypatch.setattr(read_jobs, "job_state", lambda row: whole(row) if row.pk == sound.pk else 1 / 0)
    for step in (1, 2, 3):
        await Progress.objects.filter(job__in=[job, sound]).aupdate(step=step)
        answered = await socket.next(ch=f"job:{sound.pk}", items=[])
        assert answered["job"]["progress"]["step"] == step
    error = (await socket.next(ch=f"job:{job.pk}", error=...))["error"]
    assert error["message"] == "The data cannot be read; retrying every second."
    assert not [
        frame for frame in socket.passed_over if frame["ch"] == f"job:{sound.pk}" and "error" in frame
    ]


async def test_of_many_channels_the_one_that_cannot_be_read_is_found_by_halving_and_then_left_out(
    job: Job, alice: User, socket_of: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = [await sync_to_async(factories.job)(owner=alice) for _ in range(31)]
    socket = await socket_of(alice)
    for one in (job, *others):
        await socket.sub(f"job:{one.pk}", after=0)
        await socket.next(ch=f"job:{one.pk}")
    source, read = SOURCES[Topic.JOB], SOURCES[Topic.JOB].read
    spoilt: list[int] = []  # how many were asked for together with the one that cannot be read
    singly: list[str] = []  # who else was asked for all alone

    def counted(requests: Sequence[ReadRequest]) -> dict[str, FrameBatch]:
        if any(request.channel.name == f"job:{job.pk}" for request in requests):
            spoilt.append(len(requests))
        elif len(requests) == 1:
            singly.append(requests[0].channel.name)
        return read(requests)

    whole = read_jobs.job_state
    monkeypatch.setattr(read_jobs, "job_state", lambda row: 1 / 0 if row.pk == job.pk else whole(row))
    monkeypatch.setattr(source, "read", counted)

    async def all_others_have(step: int) -> None:
        await Progress.objects.all().aupdate(step=step)
        for one in others:
            answered = await socket.next(ch=f"job:{one.pk}", items=[])
            assert answered["job"]["progress"]["step"] == step

    await all_others_have(1)
    assert (await socket.next(ch=f"job:{job.pk}", error=...))["error"]["code"] == "unavailable"
    # All at once is tried again where one of them was not due yet; the halves are 16, 8, 4 and 2.
    assert len([size for size in spoilt if 1 < size <= 16]) <= 4, "32 channels are halved five times"
    assert len(singly) < 5, "found by halves, not by asking for each"
    spoilt.clear()
    for step in (2, 3):
        await all_others_have(step)
    assert set(spoilt) <= {1}, "it spoils no reading of the others any more"


async def test_a_viewer_who_cannot_be_brought_up_is_sent_away_to_come_again(
    job: Job, alice: User, socket_of: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(viewers.Subscription, "put", broken)
    socket = await socket_of(alice)
    await socket.sub(f"job:{job.pk}", after=0)
    assert await socket.closed() == 1011


async def test_a_slow_reader_gets_a_gap_frame_and_delays_no_one(
    job: Job, alice: User, socket_of: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(viewers, "OUTBOX_BYTES", 4_000)
    slow, quick = await socket_of(alice), await socket_of(alice)
    for socket in (slow, quick):
        await socket.sub(logs_of(job), after=0)
        await socket.next(ch=logs_of(job))
    viewer = next(one for one in hub().viewers if one.id == min(v.id for v in hub().viewers))
    gate = asyncio.Event()
    send = viewer.send

    async def held(text: bytes) -> None:
        await gate.wait()
        await send(text)

    viewer.send = held
    for start in range(1, 2_000, 100):
        await print_lines(job, start, start + 99)
        await quick.next(ch=logs_of(job), items=...)
    assert viewer._bytes <= 4_000 + 64 * 1024
    gate.set()
    seen, missed, last = [], [], 0
    while last < 2_000:
        frame = await slow.next(ch=logs_of(job))
        first, last_now = (
            (frame["gap"]["from"], frame["gap"]["to"]) if "gap" in frame else (frame["from"], frame["to"])
        )
        assert first == last + 1
        (missed if "gap" in frame else seen).extend(range(first, last_now + 1))
        last = last_now
    assert missed
    assert seen + missed != []
    assert sorted(seen + missed) == list(range(1, 2_001))


async def test_a_reader_who_takes_nothing_is_cut(
    alice: User, socket_of: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    socket = await socket_of(alice)
    await socket.say({"op": "ping"})
    await socket.next()
    monkeypatch.setattr(hubs, "STUCK_S", 0.1)
    viewer = next(iter(hub().viewers))

    async def never(text: bytes) -> None:
        await asyncio.Event().wait()

    viewer.send = never
    await socket.say({"op": "ping"})
    assert await socket.closed() == 4408
