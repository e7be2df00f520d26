"""Metrics by REST: an answer has an end, and says so."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from django.utils import timezone

from jobs.models import Job, MetricPoint, Progress
from jobs.states import State
from tests import factories
from tests.jobs.conftest import People
from tests.portal.api.conftest import Api

NAMES = [f"m{number:03}" for number in range(250)]


@pytest.fixture
def job(people: People) -> Job:
    job = factories.job(owner=people.alice, of=people.vision, state=State.PROCESSING)
    series = [(name, attempt) for name in NAMES for attempt in (1, 2)]
    like = {"job": job, "tenant": job.tenant, "rank": 0, "value": 0.5, "at": timezone.now()}
    MetricPoint.objects.bulk_create(
        MetricPoint(**like, attempt=attempt, name=name, step=attempt, seq=seq)
        for seq, (name, attempt) in enumerate(series, 1)
    )
    Progress.objects.filter(job=job).update(metric_seq=len(series))
    return job


def read(caller: Api, job: Job, query: str = "") -> dict[str, Any]:
    answer = caller.get(f"/jobs/{job.pk}/metrics{query}")
    assert answer.status_code == 200, answer.content
    return dict(answer.json())


def test_more_names_than_an_answer_holds_are_counted_and_come_in_pages(alice: Api, job: Job) -> None:
    first = read(alice, job)
    assert [one["name"] for one in first["series"]] == NAMES[:200]
    assert first["total"] == 250

    rest = read(alice, job, f"?cursor={first['next']}")
    assert [one["name"] for one in rest["series"]] == NAMES[200:]
    assert (rest["total"], rest["next"]) == (250, None)
    assert {one["points"] for one in first["series"] + rest["series"]} == {2}


def test_names_that_are_asked_for_are_counted_alone(alice: Api, job: Job) -> None:
    few = read(alice, job, "?names=m007,m240")
    assert ([one["name"] for one in few["series"]], few["total"], few["next"]) == (["m007", "m240"], 2, None)

    found = read(alice, job, "?q=M24&page_size=4")
    assert ([one["name"] for one in found["series"]], found["total"]) == (NAMES[240:244], 10)


@pytest.mark.parametrize("x", ["step", "time"])
def test_a_span_that_ends_before_it_begins_is_refused(alice: Api, job: Job, x: str) -> None:
    answer = alice.get(f"/jobs/{job.pk}/metrics?x={x}&from=12&to=10")
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid")
    assert [error["path"] for error in answer.json()["errors"]] == ["from"]
    one = read(alice, job, "?names=m007&from=1&to=1")["series"]
    assert [bucket[0] for bucket in one[0]["buckets"]] == [1]


def test_a_span_of_time_may_be_given_as_times_are_elsewhere(alice: Api, job: Job) -> None:
    at = datetime(2026, 11, 30, 12, 0, 0, 857_000, tzinfo=UTC)
    MetricPoint.objects.filter(job=job, name="m007", attempt=2).update(at=at)
    query = "?names=m007&x=time&from=2026-11-30T12:00:00.857Z&to=2026-11-30T12:00:00.857Z"
    buckets = read(alice, job, query)["series"][0]["buckets"]
    assert [bucket[0] for bucket in buckets] == [at.timestamp() * 1000]
    assert read(alice, job, query.replace("857Z", "858Z"))["series"][0]["buckets"] == []


@pytest.mark.parametrize("query", ["from=2026-11-30T12:00:00Z", "x=time&from=soon", "to=1e"])
def test_what_is_no_place_on_the_axis_is_refused(alice: Api, job: Job, query: str) -> None:
    answer = alice.get(f"/jobs/{job.pk}/metrics?{query}")
    assert answer.status_code == 400
    assert [error["path"] for error in answer.json()["errors"]] == [query.split("=")[-2].rpartition("&")[2]]


def test_a_cursor_serves_the_names_it_was_given_out_for(alice: Api, job: Job) -> None:
    cursor = read(alice, job)["next"]
    answer = alice.get(f"/jobs/{job.pk}/metrics?q=m1&cursor={cursor}")
    assert (answer.status_code, answer.json()["code"]) == (400, "cursor_invalid")


def test_points_that_only_have_an_order_are_said_to_be_in_it(alice: Api, job: Job) -> None:
    newest = {"last": 0.5, "step": 2, "rank": 0, "axis": "order"}
    Progress.objects.filter(job=job).update(metrics={"m007": newest})
    found = read(alice, job, "?names=m007,m008")["series"]
    assert [(one["name"], one["axis"]) for one in found] == [("m007", "order"), ("m008", "step")]
    assert alice.get(f"/jobs/{job.pk}").json()["metrics"]["m007"] == newest


def test_points_that_were_not_kept_are_counted(alice: Api, job: Job) -> None:
    assert read(alice, job)["lost"] == 0
    Progress.objects.filter(job=job).update(metric_lost=7)
    assert read(alice, job)["lost"] == 7
