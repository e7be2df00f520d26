"""Metrics as CSV: every point, as a file that a spreadsheet opens without running anything."""

from __future__ import annotations

import csv
import io
import math
from datetime import UTC, datetime
from typing import Any

import pytest

from jobs.models import Job, MetricPoint, Progress
from jobs.selectors import metric_csv
from jobs.states import State
from tests import factories
from tests.jobs.conftest import People
from tests.portal.api.conftest import Api

AT = datetime(2026, 11, 21, 9, 0, tzinfo=UTC)


@pytest.fixture
def job(people: People) -> Job:
    return factories.job(owner=people.alice, of=people.vision, state=State.PROCESSING)


def report(job: Job, name: str, *values: float, attempt: int = 1) -> None:
    seq = MetricPoint.objects.filter(job=job).count()
    like = {"job": job, "tenant": job.tenant, "attempt": attempt, "rank": 0, "name": name, "at": AT}
    MetricPoint.objects.bulk_create(
        MetricPoint(**like, step=step, value=value, seq=seq + step) for step, value in enumerate(values, 1)
    )
    Progress.objects.filter(job=job).update(metric_seq=seq + len(values))


def content(answer: Any) -> str:
    assert answer.status_code == 200, answer.content
    return b"".join(answer.streaming_content).decode()


def test_every_point_is_a_line_of_a_csv_attachment(alice: Api, job: Job) -> None:
    report(job, "train/loss", 0.1, math.nan, -math.inf)
    report(job, "acc", 1e-9, attempt=2)

    answer = alice.get(f"/jobs/{job.pk}/metrics.csv")

    assert answer["Content-Type"] == "text/csv; charset=utf-8"
    assert answer["Content-Disposition"] == f'attachment; filename="{job.pk}-metrics.csv"'
    assert answer["X-Content-Type-Options"] == "nosniff"
    assert content(answer).split("\r\n") == [
        "name,learner,attempt,step,time,value",
        "train/loss,0,1,1,2026-11-21T09:00:00.000Z,0.1",
        "train/loss,0,1,2,2026-11-21T09:00:00.000Z,NaN",
        "train/loss,0,1,3,2026-11-21T09:00:00.000Z,-Infinity",
        "acc,0,2,1,2026-11-21T09:00:00.000Z,1e-09",
        "",
    ]


def test_one_series_comes_under_its_own_file_name(alice: Api, job: Job) -> None:
    report(job, "train/loss", 1.0)
    report(job, "acc", 2.0)

    answer = alice.get(f"/jobs/{job.pk}/metrics.csv?names=train/loss")
    assert answer["Content-Disposition"] == f'attachment; filename="{job.pk}-train-loss.csv"'
    assert [row["name"] for row in csv.DictReader(io.StringIO(content(answer)))] == ["train/loss"]
    assert content(alice.get(f"/jobs/{job.pk}/metrics.csv?q=AC")).count("\r\n") == 2
    assert content(alice.get(f"/jobs/{job.pk}/metrics.csv?names=missing")).count("\r\n") == 1


@pytest.mark.parametrize("name", ["=1+1", "+cmd", "-x", "@SUM(A1)", '=HYPERLINK("x","y")'])
def test_no_name_is_a_formula_to_a_spreadsheet(alice: Api, job: Job, name: str) -> None:
    report(job, name, 1.0)
    (row,) = csv.DictReader(io.StringIO(content(alice.get(f"/jobs/{job.pk}/metrics.csv"))))
    assert row["name"] == f"'{name}"


def test_points_are_read_block_by_block_and_none_twice(
    alice: Api, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metric_csv, "BLOCK_POINTS", 7)
    report(job, "loss", *map(float, range(40)))
    blocks = list(metric_csv.csv_blocks(job.pk))
    assert len(blocks) == 1 + 6
    rows = list(csv.DictReader(io.StringIO(b"".join(blocks).decode())))
    assert [row["step"] for row in rows] == [str(step) for step in range(1, 41)]
    assert [row["value"] for row in rows] == [str(float(value)) for value in range(40)]


def test_the_points_of_a_job_that_one_may_not_see_are_not_there(bob: Api, job: Job) -> None:
    report(job, "loss", 1.0)
    assert bob.get(f"/jobs/{job.pk}/metrics.csv").status_code == 404
