"""A list never keeps an ended job as running, however many events there were and in whatever order they came."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.utils import timezone

from jobs import events
from jobs.models import Job
from jobs.selectors import heads
from jobs.states import EventCode, State
from portal.live import read_jobs
from portal.live.frames import FrameBatch, ReadRequest
from portal.live.protocol import Channel, parse_channel
from portal.live.read_jobs import TenantJobsSource
from tenants.models import Tenant
from tests import factories

pytestmark = pytest.mark.django_db


@pytest.fixture
def tenant() -> Tenant:
    return factories.tenant()


@pytest.fixture
def channel(tenant: Tenant) -> Channel:
    found = parse_channel(f"tenant:{tenant.slug}:jobs")
    assert found is not None
    return found


def read(channel: Channel, after: int, stamp: Any = None) -> FrameBatch:
    return TenantJobsSource().read([ReadRequest(channel, after, stamp)])[channel.name]


def states(batch: FrameBatch) -> dict[str, str]:
    rows = [row for frame in batch.frames for row in json.loads(frame.text).get("items", [])]
    return {row["id"]: "deleted" if row.get("deleted") else row["state"] for row in rows}


def event(job: Job) -> None:
    events.append(job_id=job.pk, tenant_id=job.tenant_id, code=EventCode.EDITED, source="api")


def end(job: Job) -> None:
    Job.objects.filter(pk=job.pk).update(state=State.COMPLETED)


def test_a_job_whose_last_event_was_committed_late_is_shown_as_ended(
    tenant: Tenant, channel: Channel
) -> None:
    job, other = factories.job(of=tenant, state=State.STORING), factories.job(of=tenant)
    first = read(channel, 0)
    for _ in range(read_jobs.OVERLAP + 10):  # committed first, although their numbers are higher
        event(other)
    second = read(channel, first.head, first.stamp)
    assert job.pk not in states(second)

    end(job)

    third = read(channel, second.head, second.stamp)
    assert states(third) == {job.pk: "COMPLETED"}
    assert states(read(channel, third.head, third.stamp)) == {}, "once"


def test_a_deleted_job_is_marked_even_if_no_event_says_so(tenant: Tenant, channel: Channel) -> None:
    job = factories.job(of=tenant, state=State.STORING)
    first = read(channel, 0)
    Job.objects.filter(pk=job.pk).update(deleted_at=timezone.now())
    for _ in range(read_jobs.OVERLAP + 10):
        event(factories.job(of=tenant))
    second = read(channel, heads.of_jobs(tenant.slug), first.stamp)
    assert states(second)[job.pk] == "deleted"


def test_jobs_that_end_together_are_all_shown_as_ended(
    tenant: Tenant, channel: Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More of them than rows that are followed without an event."""
    monkeypatch.setattr(read_jobs, "LIST_ROWS", 2)
    jobs = [factories.job(of=tenant, state=State.STORING) for _ in range(5)]
    first = read(channel, 0)
    for job in jobs:
        end(job)
        event(job)
    found = states(read(channel, first.head, first.stamp))
    assert {job.pk: found.get(job.pk) for job in jobs} == dict.fromkeys((job.pk for job in jobs), "COMPLETED")


def test_a_viewer_that_returns_after_many_events_gets_the_job_that_ended_first(
    tenant: Tenant, channel: Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_jobs, "LIST_ROWS", 10)
    ended, busy = factories.job(of=tenant, state=State.STORING), factories.job(of=tenant)
    seen = read(channel, 0).head
    end(ended)
    event(ended)
    for _ in range(20):
        event(busy)
    assert states(read(channel, seen))[ended.pk] == "COMPLETED"


def test_a_viewer_that_returns_after_too_many_events_gets_a_gap(
    tenant: Tenant, channel: Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_jobs, "CHANGES_AT_ONCE", 5)
    busy = factories.job(of=tenant)
    seen = read(channel, 0).head
    for _ in range(read_jobs.OVERLAP + 10):
        event(busy)
    batch = read(channel, seen)
    gap, rows = batch.frames
    assert json.loads(gap.numbered(7))["gap"] == {"from": seen + 1, "to": batch.head}
    assert json.loads(rows.numbered(7))["from"] == 8, "a gap is no row"


def test_only_the_last_of_several_frames_takes_a_viewer_to_the_newest_event(
    tenant: Tenant, channel: Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A viewer that falls behind between two of them reads from its cursor again."""
    monkeypatch.setattr(read_jobs, "FRAME_ITEMS", 2)
    for _ in range(5):
        factories.job(of=tenant)
    batch = read(channel, 0)
    assert [frame.rows for frame in batch.frames] == [2, 2, 1]
    assert [frame.last for frame in batch.frames] == [0, 0, batch.head]
