"""`/ws/v1/live`: what a viewer receives, and what is never sent."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import OperationalError
from django.utils import timezone

from jobs import events, pubsub
from jobs.ingest.store import commit
from jobs.models import ClusterNode, Job, MetricPoint, Progress
from jobs.selectors import heads, log_cache
from jobs.states import EventCode, State
from portal.live import guard, read_jobs
from portal.live import viewer as viewers
from portal.live import viewer_hub as hubs
from portal.live.frames import FrameBatch, ReadRequest
from portal.live.identity import Credentials, watchable
from portal.live.live_consumer import REFUSALS_LOGGED
from portal.live.protocol import Topic, parse_channel
from portal.live.read_logs import LogSource
from portal.live.sources import SOURCES
from portal.live.viewer_hub import hub
from tenants.models import Membership, Quota, Session, Token, User
from tests import factories
from tests.jobs.ingest.test_commit import data, grant
from tests.jobs.test_log_lines import store

Open = Callable[..., Any]
store_async = sync_to_async(store)


async def print_lines(job: Job, first: int, last: int, *, notify: bool = True) -> None:
    await store_async(job, [b"".join(b"line %d\n" % n for n in range(first, last + 1))])
    if notify:
        pubsub.logs_grew(job.pk, attempt=1, rank=0, upto=last)


async def until_head(ch: str, head: int) -> None:
    """Wait until the hub has served a channel up to this number."""
    while (hub().feeds[ch].head or 0) < head:
        await asyncio.sleep(0.01)


def logs_of(job: Job) -> str:
    return f"job:{job.pk}:logs:1:0"


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


async def test_permission_is_asked_once_for_all_sockets_of_a_session(
    job: Job, alice: User, socket_of: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Credentials] = []
    really = guard.who

    def who(known: Credentials) -> User | None:
        asked.append(known)
        return really(known)

    monkeypatch.setattr(guard, "who", who)
    _, token = await sync_to_async(Token.objects.create)(user=alice)
    sockets = [await socket_of(token=token) for _ in range(20)]
    for socket in sockets:
        await socket.sub(logs_of(job), after=0)
        await socket.next(ch=logs_of(job))
    asked.clear()
    began = asyncio.get_running_loop().time()
    while len(asked) < 5:
        await asyncio.sleep(0.05)
    assert len(asked) <= (asyncio.get_running_loop().time() - began) / guard.CHECK_S + 1, (
        "not for each socket"
    )
    await Membership.objects.filter(user=alice).adelete()
    for socket in sockets:
        assert (await socket.next(ch=logs_of(job), error=...))["error"]["code"] == "not_found"


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


async def test_a_job_s_events_include_the_current_job(job: Job, alice: User, socket_of: Open) -> None:
    ch = f"job:{job.pk}"
    socket = await socket_of(alice)
    await socket.sub(ch, after=0)
    frame = await socket.next(ch=ch)
    assert [(item["n"], item["code"]) for item in frame["items"]] == [(1, "SUBMITTED")]
    assert (frame["job"]["state"], frame["job"]["phase"]) == ("PROCESSING", "Processing")
    await sync_to_async(events.append)(
        source="learner",
        job_id=job.pk,
        tenant_id=job.tenant_id,
        code=EventCode.CHECKPOINT_STORED,
        message="step 10",
        attempt=1,
    )
    frame = await socket.next(ch=ch, to=2)
    assert [(item["n"], item["message"], item["state"]) for item in frame["items"]] == [
        (2, "step 10", "PROCESSING")
    ]
    await Progress.objects.filter(job=job).aupdate(step=50, total=200)
    frame = await socket.next(ch=ch, items=[], to=2)
    assert (frame["from"], frame["to"]) == (3, 2)
    assert frame["job"]["progress"] == {"step": 50, "total": 200, "percent": 25.0}
    assert "spec" not in frame["job"]


async def test_a_checkpoint_that_arrives_while_the_job_halts_is_sent_like_any_event(
    job: Job, alice: User, socket_of: Open
) -> None:
    ch = f"job:{job.pk}"
    await Job.objects.filter(pk=job.pk).aupdate(
        state="STOPPING", stop_reason="halt_requested", stop_at=timezone.now()
    )
    append = sync_to_async(events.append)
    for message in ("saved", "and saved again"):
        await append(
            source="learner",
            job_id=job.pk,
            tenant_id=job.tenant_id,
            code=EventCode.CHECKPOINT_STORED,
            message=message,
            attempt=1,
        )
    socket = await socket_of(alice)
    await socket.sub(ch, after=0)
    items = await socket.items(ch, 3)
    assert [(item["message"], item["phase"]) for item in items[1:]] == [
        ("saved", "Halting"),
        ("and saved again", "Halting"),
    ]


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


async def test_metric_points_come_in_order_and_not_a_number_is_a_word(
    job: Job, alice: User, socket_of: Open
) -> None:
    values = [1.5, float("nan"), float("-inf")]
    for seq, value in enumerate(values, 1):
        await MetricPoint.objects.acreate(
            job=job, tenant_id=job.tenant_id, attempt=1, rank=0, name="loss", step=seq, value=value,
            at=timezone.now(), seq=seq,
        )  # fmt: skip
    await Progress.objects.filter(job=job).aupdate(metric_seq=3)
    socket = await socket_of(alice)
    await socket.sub(f"job:{job.pk}:metrics", after=0)
    assert [item["value"] for item in await socket.items(f"job:{job.pk}:metrics", 3)] == [
        1.5,
        "NaN",
        "-Infinity",
    ]


async def test_a_metric_point_in_order_says_that_it_is_at_no_step(
    job: Job, alice: User, socket_of: Open
) -> None:
    for seq, name in enumerate(("loss", "acc"), 1):
        await MetricPoint.objects.acreate(
            job=job,
            tenant_id=job.tenant_id,
            attempt=1,
            rank=0,
            name=name,
            step=9,
            value=1,
            at=timezone.now(),
            seq=seq,
        )
    newest = {"last": 1, "step": 9, "rank": 0}
    known = {"loss": newest | {"axis": "order"}, "acc": newest | {"axis": "step"}}
    await Progress.objects.filter(job=job).aupdate(metric_seq=2, metrics=known)
    socket = await socket_of(alice)
    await socket.sub(f"job:{job.pk}:metrics", after=0)
    items = await socket.items(f"job:{job.pk}:metrics", 2)
    assert [item.get("axis", "step") for item in items] == ["order", "step"]


async def test_a_tenant_s_rows_and_quotas_come_when_they_change(
    job: Job, alice: User, socket_of: Open
) -> None:
    socket = await socket_of(alice)
    await socket.sub("tenant:vision-lab:jobs", after=0)
    assert [item["id"] for item in (await socket.next(ch="tenant:vision-lab:jobs"))["items"]] == [job.pk]
    await socket.sub("tenant:vision-lab:quotas")
    quota = (await socket.next(ch="tenant:vision-lab:quotas"))["items"][0]
    assert quota == {
        "gpu_type": "cpu", "limit": 8, "used": 1, "borrowed": 0, "lent": 0, "waiting": 0, "etag": '"limit-8"',
        "opportunistic": 0, "user_limit": None, "gang_limit": None,
        "cohort": "", "borrowing_limit": None, "lending_limit": None, "weight": 1,
    }  # fmt: skip
    other = await sync_to_async(factories.job)(owner=alice)
    pubsub.job_changed(other.pk, other.tenant_id, 1)
    assert [item["id"] for item in (await socket.next(ch="tenant:vision-lab:jobs"))["items"]] == [other.pk]
    quota = (await socket.next(ch="tenant:vision-lab:quotas"))["items"][0]
    assert quota["waiting"] == 1


async def test_the_rows_of_a_state_are_counted_without_a_hole(job: Job, alice: User, socket_of: Open) -> None:
    socket = await socket_of(alice)
    channels = ("tenant:vision-lab:jobs", "tenant:vision-lab:quotas", "cluster")
    last = dict.fromkeys(channels, 0)

    async def take(ch: str) -> dict[str, Any]:
        frame = await socket.next(ch=ch, items=...)
        assert (frame["from"], frame["to"]) == (last[ch] + 1, last[ch] + len(frame["items"]))
        last[ch] = frame["to"]
        return frame

    await sync_to_async(ClusterNode.objects.create)(name="n", cluster="memory", slot_type="cpu", slots=8)
    for ch in channels:
        await socket.sub(ch, after=0)
        assert (await take(ch))["items"]
    for step in (1, 2):  # numbers without an event, too
        await sync_to_async(Progress.objects.filter(job=job).update)(step=step)
        assert [row["progress"]["step"] for row in (await take("tenant:vision-lab:jobs"))["items"]] == [step]
    await sync_to_async(Quota.objects.update)(limit=5)
    assert (await take("tenant:vision-lab:quotas"))["items"][0]["limit"] == 5
    await sync_to_async(ClusterNode.objects.update)(ready=False)
    assert not (await take("cluster"))["items"][0]["ready"]
    await sync_to_async(ClusterNode.objects.update)(
        others_cpus=2.5
    )  # a pod of others, on the cluster page only
    assert (await take("cluster"))["items"][0]["others"]["cpus"] == 2.5
    for ch in channels:  # a lost connection continues from the last number
        await socket.sub(ch, after=last[ch])
        await take(ch)


async def test_a_returning_viewer_gets_the_rows_that_changed_since_the_first_subscription(
    job: Job, alice: User, socket_of: Open
) -> None:
    ch = "tenant:vision-lab:jobs"
    for _ in range(60):  # events of long ago
        await sync_to_async(factories.job)(owner=alice, state=State.COMPLETED)
    first = await socket_of(alice)
    await first.sub(ch)
    seen = (await first.next(ch=ch))["to"]
    ended = await sync_to_async(factories.job)(owner=alice, state=State.COMPLETED)
    again = await socket_of(alice)
    await again.sub(ch, after=seen)
    frame = await again.next(ch=ch)
    rows = {row["id"] for row in frame["items"]}
    assert frame["from"] == seen + 1
    assert ended.pk in rows
    assert len(rows) < 60


async def test_rows_still_come_after_an_event_that_changed_none(
    job: Job, alice: User, socket_of: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The channel's number grows with the events; the viewers' cursors grow with the rows."""
    monkeypatch.setattr(hubs, "BEAT_S", 1_000.0)  # nothing else is sent that would wake the socket
    ch = "tenant:vision-lab:jobs"
    deleted = await sync_to_async(factories.job)(owner=alice, state=State.COMPLETED)
    socket = await socket_of(alice)
    await socket.sub(ch, after=0)
    assert deleted.pk in {row["id"] for row in (await socket.next(ch=ch, items=...))["items"]}
    await sync_to_async(Job.objects.filter(pk=deleted.pk).update)(deleted_at=timezone.now())
    for _ in range(2):  # the second shows nothing that the first did not
        await sync_to_async(events.append)(
            job_id=deleted.pk, tenant_id=deleted.tenant_id, code=EventCode.EDITED, source="api"
        )
        await until_head(ch, await sync_to_async(heads.of_jobs)("vision-lab"))

    other = await sync_to_async(factories.job)(owner=alice)
    pubsub.job_changed(other.pk, other.tenant_id, 1)

    while other.pk not in {row["id"] for row in (await socket.next(ch=ch, items=...))["items"]}:
        pass


async def test_what_is_served_to_all_while_a_viewer_catches_up_reaches_it(
    job: Job, alice: User, socket_of: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row changed without an event after the viewer's own reading and before it joined the others."""
    ch = "tenant:vision-lab:jobs"
    first, second = await socket_of(alice), await socket_of(alice)
    await first.sub(ch, after=0)
    await first.next(ch=ch, items=...)
    read = hub().in_side_reader
    is_changed = False

    async def read_then_change(function: Callable[..., Any], *arguments: Any) -> Any:
        nonlocal is_changed
        result = await read(function, *arguments)
        if function.__name__ == "read" and not is_changed:
            is_changed = True
            await sync_to_async(Progress.objects.filter(job=job).update)(step=7)
            pubsub.job_changed(job.pk, job.tenant_id, 1)
            while [row["progress"]["step"] for row in (await first.next(ch=ch, items=...))["items"]] != [7]:
                pass
        return result

    monkeypatch.setattr(hub(), "in_side_reader", read_then_change)
    await second.sub(ch, after=0)

    while [row["progress"]["step"] for row in (await second.next(ch=ch, items=...))["items"]] != [7]:
        pass


async def test_a_stranger_gets_the_same_for_a_foreign_channel_as_for_a_missing_one(
    job: Job, bob: User, socket_of: Open
) -> None:
    await print_lines(job, 1, 3)
    socket = await socket_of(bob)
    pairs = [
        (f"job:{job.pk}", "job:3f9k2m7qx4ta"),
        (logs_of(job), "job:3f9k2m7qx4ta:logs:1:0"),
        (f"job:{job.pk}:metrics", "job:3f9k2m7qx4ta:metrics"),
        ("tenant:vision-lab:jobs", "tenant:no-such:jobs"),
        ("tenant:vision-lab:quotas", "tenant:no-such:quotas"),
        ("nonsense", "more:nonsense"),
    ]
    for pair in pairs:
        answers = []
        for ch in pair:
            await socket.sub(ch, after=0)
            answers.append((await socket.next(ch=ch))["error"])
        assert answers[0] == answers[1]
        assert answers[0]["code"] == "not_found"


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


async def test_a_viewer_who_loses_membership_is_unsubscribed_at_once(
    job: Job, alice: User, socket_of: Open
) -> None:
    socket = await socket_of(alice)
    await socket.sub(logs_of(job), after=0)
    await socket.next(ch=logs_of(job))
    await Membership.objects.filter(user=alice).adelete()
    assert (await socket.next(ch=logs_of(job), error=...))["error"]["code"] == "not_found"
    await print_lines(job, 1, 3)
    with pytest.raises(asyncio.TimeoutError):
        await socket.next(1.5, ch=logs_of(job))


async def test_the_end_of_a_session_closes_its_socket(alice: User, socket_of: Open) -> None:
    socket = await socket_of(alice)
    await Session.objects.all().adelete()
    assert await socket.closed() == 4401


async def test_a_socket_without_credentials_is_asked_to_log_in(alice: User, socket_of: Open) -> None:
    assert await (await socket_of()).closed() == 4401
    assert await (await socket_of(token="lut_nonsense")).closed() == 4401


async def test_a_cookie_from_a_foreign_page_opens_nothing(alice: User, socket_of: Open) -> None:
    for origin in ("http://evil.example", "null", "", "http://testserver.evil.example"):
        assert await (await socket_of(alice, origin=origin)).closed() == 4403


async def test_a_program_uses_a_token_and_receives_no_more_than_it_permits(
    job: Job, alice: User, socket_of: Open
) -> None:
    other = await sync_to_async(factories.tenant)("elsewhere")
    await Membership.objects.acreate(user=alice, tenant=other, role="researcher")

    def make(**fields: Any) -> str:
        return str(Token.objects.create(user=alice, name="t", expiry=timedelta(hours=1), **fields)[1])

    free = await socket_of(token=await sync_to_async(make)())
    await free.sub(f"job:{job.pk}", after=0)
    assert (await free.next(ch=f"job:{job.pk}"))["items"]
    bound = await socket_of(token=await sync_to_async(make)(tenant=other))
    await bound.sub(f"job:{job.pk}", after=0)
    assert (await bound.next(ch=f"job:{job.pk}"))["error"]["code"] == "not_found"
    await Token.objects.all().adelete()
    assert await free.closed() == 4401


@pytest.mark.parametrize(
    "text",
    ["", "[]", "null", "1", '"ping"', "{", '{"op":"shout"}', '{"op":"sub"}', '{"op":"sub","ch":7}',
     '{"op":"sub","ch":"job:x","after":-1}', '{"op":"sub","ch":"job:x","after":"1"}',
     '{"op":"sub","ch":"job:x","after":true}', '{"op":"sub","ch":"job:x","after":1e400}',
     '{"op":"sub","ch":"' + "x" * 9_000 + '"}', "[" * 5_000, '{"op":"sub","ch":"a\\u0000b"}',
     '{"op":"sub","ch":"cluster","afer":1}', '{"op":"ping","x":1}',
     '{"op":"sub","ch":"cluster","' + "😀" * 40 + '":1}'],
)  # fmt: skip
async def test_a_frame_that_cannot_be_read_ends_the_socket_with_the_reason(
    alice: User, socket_of: Open, text: str
) -> None:
    socket = await socket_of(alice)
    await socket.say(text)
    assert await socket.closed() == 4400


async def test_binary_frames_end_the_socket(alice: User, socket_of: Open) -> None:
    socket = await socket_of(alice)
    await socket.wire.send_input({"type": "websocket.receive", "bytes": b"\x00\x01"})
    assert await socket.closed() == 4400


async def test_a_flood_of_frames_ends_the_socket(alice: User, socket_of: Open) -> None:
    socket = await socket_of(alice)
    for _ in range(4_000):  # more than a busy machine could answer at the allowed rate
        await socket.say({"op": "ping"})
    assert await socket.closed() == 1013


async def test_a_socket_carries_a_bounded_number_of_channels(
    job: Job, alice: User, socket_of: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("portal.live.live_consumer.CHANNELS_MAX", 2)
    socket = await socket_of(alice)
    for ch in (f"job:{job.pk}", logs_of(job), "cluster"):
        await socket.sub(ch, after=0)
    assert (await socket.next(ch="cluster"))["error"]["code"] == "too_many_channels"
    await socket.say({"op": "unsub", "ch": logs_of(job)})
    await socket.sub("cluster")
    assert "items" in await socket.next(ch="cluster")


async def test_every_ping_is_answered_and_an_idle_socket_gets_heartbeats(
    alice: User, socket_of: Open
) -> None:
    socket = await socket_of(alice)
    await socket.say({"op": "ping"})
    assert await socket.next() == {"op": "pong"}
    assert await socket.next() == {"op": "pong"}
    assert await socket.next() == {"op": "pong"}


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


async def test_the_hub_is_idle_without_viewers(alice: User, socket_of: Open) -> None:
    socket = await socket_of(alice)
    await socket.sub("cluster")
    await socket.next(ch="cluster")
    await socket.close()
    assert hub().viewers == set()
    assert hub().feeds == {}
    assert not hub()._tasks


async def test_another_address_says_so(alice: User, socket_of: Open) -> None:
    assert await (await socket_of(alice, path="/ws/v1/nothing")).closed() == 4404


async def test_what_a_socket_refuses_is_logged_with_who_and_from_where(
    job: Job, bob: User, socket_of: Open, caplog: pytest.LogCaptureFixture
) -> None:
    socket = await socket_of(bob)
    await socket.sub(f"job:{job.pk}")
    assert (await socket.next(ch=f"job:{job.pk}"))["error"]["code"] == "not_found"
    stranger = await socket_of(token="lut_wrong")
    assert await stranger.closed() == 4401
    await socket.say("no json")
    assert await socket.closed() == 4400
    seen = [each for each in caplog.records if each.name == "portal.live.live_consumer"]
    assert [(each.getMessage(), vars(each)["user"]) for each in seen] == [
        ("channel refused", "bob"),
        ("socket refused", ""),
        ("socket refused", "bob"),
    ]
    assert [vars(each).get("channel") or vars(each)["code"] for each in seen] == [f"job:{job.pk}", 4401, 4400]
    assert all("address" in vars(each) for each in seen)


async def test_one_socket_does_not_fill_the_log_with_what_it_is_refused(
    job: Job, bob: User, socket_of: Open, caplog: pytest.LogCaptureFixture
) -> None:
    socket = await socket_of(bob)
    for n in range(REFUSALS_LOGGED + 5):
        await socket.sub(f"job:{n:012}")
        assert (await socket.next(ch=f"job:{n:012}"))["error"]["code"] == "not_found"
    seen = [each for each in caplog.records if each.getMessage() == "channel refused"]
    assert len(seen) == REFUSALS_LOGGED
