"""`/ws/v1/live`: events, metric points, rows of lists and quotas, in order and without a hole."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.utils import timezone

from jobs import events, pubsub
from jobs.models import ClusterNode, Job, MetricPoint, Progress
from jobs.selectors import heads
from jobs.states import EventCode, State
from portal.live import viewer_hub as hubs
from portal.live.viewer_hub import hub
from tenants.models import Quota, User
from tests import factories
from tests.portal.live.conftest import Open


async def until_head(ch: str, head: int) -> None:
    """Wait until the hub has served a channel up to this number."""
    while (hub().feeds[ch].head or 0) < head:
        await asyncio.sleep(0.01)


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
