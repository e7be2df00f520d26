"""Roll-ups: charts of long runs read few rows, and show what they would show of the points themselves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import pytest
from django.db import connection

from jobs import rollups
from jobs.models import Job, MetricPoint, MetricRollup, Progress
from jobs.rollups import roll_up
from jobs.selectors import metrics
from jobs.states import State
from tests import factories
from tests.reads import pages_read

pytestmark = pytest.mark.django_db
BEGAN = datetime(2026, 11, 21, 9, 0, tzinfo=UTC)
Given = tuple[str, int, int, int, float]
"""Name, rank, attempt, step, value."""


@pytest.fixture
def job() -> Job:
    return factories.job(state=State.PROCESSING)


@pytest.fixture(autouse=True)
def short_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MetricRollup, "SEGMENT", 512)


def store(job: Job, points: Sequence[Given]) -> None:
    """Store points as ingest does: numbered in the order given, and rolled up."""
    progress = Progress.objects.get(job=job)
    MetricPoint.objects.bulk_create(
        MetricPoint(
            job=job, tenant=job.tenant, name=name, rank=rank, attempt=attempt, step=step, value=value, seq=seq,
            at=BEGAN + timedelta(seconds=seq),
        )
        for seq, (name, rank, attempt, step, value) in enumerate(points, progress.metric_seq + 1)
    )  # fmt: skip
    progress.metric_seq += len(points)
    if progress.metric_seq - progress.metric_rolled >= MetricRollup.SEGMENT:
        with connection.cursor() as cursor:
            progress.metric_rolled = roll_up(cursor, job.pk, progress.metric_rolled, progress.metric_seq)
    progress.save()


def series_of(job: Job, *, x: metrics.Axis = "step", **how: Any) -> list[metrics.Series]:
    upto = metrics.newest(job.pk)
    return metrics.series(job.pk, metrics.spans(job.pk, x=x, upto=upto), x=x, upto=upto, **how)


def of_points(job: Job, **how: Any) -> list[metrics.Series]:
    """The same, read from the points alone."""
    before = Progress.objects.filter(job=job).values_list("metric_rolled", flat=True).get()
    Progress.objects.filter(job=job).update(metric_rolled=0)
    try:
        return series_of(job, **how)
    finally:
        Progress.objects.filter(job=job).update(metric_rolled=before)


def run(name: str, first: int, last: int, *, attempt: int = 1, rank: int = 0) -> list[Given]:
    return [(name, rank, attempt, step, math.sin(step) + step) for step in range(first, last)]


def test_a_long_series_is_read_from_roll_ups_and_keeps_its_spike(job: Job) -> None:
    points = run("loss", 0, 5_000)
    points[2_345] = ("loss", 0, 1, 2_345, 1e9)
    store(job, points)
    MetricPoint.objects.filter(job=job, seq__lte=9 * 512).delete()  # so that nothing can be read from these

    (found,) = series_of(job, buckets=50)

    assert 40 <= len(found.buckets) <= 50
    assert found.points == 5_000
    assert not found.complete
    ends = [at for at, *_ in found.buckets]
    assert [at for at, _, high, _ in found.buckets if high == 1e9] == [min(at for at in ends if at >= 2_345)]
    assert (ends[-1], found.buckets[-1][3]) == (4_999, points[-1][4])
    assert found.buckets[0][1] == points[0][4]


def test_few_points_and_ranges_of_few_come_one_by_one(job: Job) -> None:
    store(job, run("loss", 0, 3_000))
    ranges: list[dict[str, Any]] = [{"x_from": 1_000, "x_to": 1_100}, {"buckets": 2_000, "x_to": 1_500}]
    for how in ranges:
        assert series_of(job, **how) == of_points(job, **how)
    (found,) = series_of(job, x_from=1_000, x_to=1_100, buckets=500)
    assert [at for at, *_ in found.buckets] == list(range(1_000, 1_101))


def checked(job: Job, given: Sequence[Given], **how: Any) -> None:
    """Every point within the range is in exactly one bucket, and the bucket's extremes and last value are true."""
    fast, slow = series_of(job, **how), of_points(job, **how)
    assert [(one.name, one.rank, one.points) for one in fast] == [
        (one.name, one.rank, one.points) for one in slow
    ]
    assert [one.not_finite for one in fast] == [one.not_finite for one in slow]
    low, high = how.get("x_from", -math.inf), how.get("x_to", math.inf)
    for one in fast:
        own = {
            step: value
            for name, rank, _, step, value in given
            if (name, rank) == (one.name, one.rank) and low <= step <= high
        }
        assert len(one.buckets) <= how["buckets"]
        after = -math.inf
        for at, least, greatest, last in one.buckets:
            inside = [(step, value) for step, value in own.items() if after < step <= at]
            finite = [value for _, value in inside if math.isfinite(value)]
            assert (least, greatest) == (min(finite, default=None), max(finite, default=None))
            assert last == metrics.number_out(max(inside)[1])
            after = at


@pytest.mark.parametrize("seed", range(3))
def test_buckets_of_roll_ups_are_true_of_their_points(job: Job, seed: int) -> None:
    dice = Random(seed)
    given: list[Given] = []
    steps = dict.fromkeys(("loss", "acc", "rare"), 0)
    for _ in range(6_000):
        name = dice.choices(list(steps), (10, 5, 0.2))[0]
        steps[name] += dice.choice((1, 1, 1, 7))
        value = dice.choices((dice.gauss(0, 1), math.nan, math.inf), (1000, 1, 1))[0]
        given.append((name, steps[name] % 2, 1, steps[name], value))
    for start in range(0, len(given), 700):
        store(job, given[start : start + 700])
    for how in ({"buckets": 40}, {"buckets": 25, "x_from": 900.0, "x_to": 4_321.0}):
        checked(job, given, **how)
        for x in ("step", "time"):
            if "x_from" not in how:
                same = [(one.points, one.not_finite) for one in of_points(job, x=x, **how)]
                assert [(one.points, one.not_finite) for one in series_of(job, x=x, **how)] == same


def test_steps_out_of_order_are_read_point_by_point(job: Job) -> None:
    given = run("loss", 0, 2_048)
    Random(1).shuffle(given)
    store(job, given)
    assert series_of(job, buckets=30) == of_points(job, buckets=30)


def test_what_a_newer_attempt_reported_again_is_superseded_to_the_point(job: Job) -> None:
    store(job, run("loss", 0, 3_000))
    store(job, run("loss", 1_700, 4_000, attempt=2))
    fast, slow = series_of(job, buckets=40)[0], of_points(job, buckets=40)[0]
    assert (fast.points, slow.points) == (4_000, 4_000)
    assert fast.superseded[-1][0] == slow.superseded[-1][0] == 2_999
    assert fast.superseded[0][1] == slow.superseded[0][1] == math.sin(1_700) + 1_700
    assert min(high for at, _, high, _ in fast.buckets if at >= 1_700 and high) > 1_690


def test_each_point_is_rolled_up_once(job: Job) -> None:
    for n in range(40):
        store(job, run("loss", n * 100, n * 100 + 100))
    rolled = MetricRollup.objects.filter(job=job)
    assert sum(rolled.values_list("points", flat=True)) == 4_000 // 512 * 512
    assert max(rolled.values_list("points", flat=True)) == 32
    assert Progress.objects.get(job=job).metric_rolled == 4_000 // 512 * 512


def test_points_of_an_earlier_version_are_rolled_up_in_steps_as_ingest_does(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = factories.job(state=State.COMPLETED)
    for one in (job, other):
        store(one, [*run("loss", 0, 1_500), *run("acc", 0, 1_500)])
    fields = [field.attname for field in MetricRollup._meta.fields if field.attname != "id"]
    made = list(MetricRollup.objects.order_by("job", "name", "first_seq").values_list(*fields))
    MetricRollup.objects.all().delete()
    Progress.objects.update(metric_rolled=0)
    monkeypatch.setattr(rollups, "SEGMENTS", 2)
    monkeypatch.setattr(rollups, "RUN_S", -1.0)

    reached = rollups.roll_up_stored({})
    assert sum(Progress.objects.values_list("metric_rolled", flat=True)) == 2 * 512, "more than one step"
    runs = 1
    while not reached["done"]:
        reached, runs = rollups.roll_up_stored(reached), runs + 1
    assert runs == 7  # three steps of each job, then the end
    assert list(MetricRollup.objects.order_by("job", "name", "first_seq").values_list(*fields)) == made
    assert rollups.roll_up_stored(reached) == reached


def test_a_commit_rolls_up_no_more_than_some_segments_of_an_earlier_version(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A live job may have millions of them, and every learner waits for the commit."""
    store(job, run("loss", 0, 3_000))
    MetricRollup.objects.all().delete()
    Progress.objects.filter(job=job).update(metric_rolled=0)
    monkeypatch.setattr(rollups, "SEGMENTS", 2)
    store(job, run("loss", 3_000, 3_001))
    assert Progress.objects.get(job=job).metric_rolled == 2 * 512


def test_a_wide_zoom_reads_roll_ups_and_points_only_at_its_ends(job: Job) -> None:
    """Just below a roll-up a bucket, every point of the range was read."""
    for first in range(0, 20_000, 4_000):  # a commit rolls up only so many
        store(job, run("loss", first, first + 4_000))
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE jobs_metricpoint, jobs_metricrollup")
    # A bucket is 20 points wide here, and a roll-up 32.
    zoom: dict[str, Any] = {"x_from": 1_010.0, "x_to": 9_010.0, "buckets": 400}
    spans = metrics.spans(job.pk)

    of_zoom = pages_read(lambda: metrics.series(job.pk, spans, **zoom))

    (found,) = metrics.series(job.pk, spans, **zoom)
    assert found.points == 8_001
    assert 200 <= len(found.buckets) <= 400
    assert found.buckets[-1][0] == 9_010
    Progress.objects.filter(job=job).update(metric_rolled=0)
    assert of_zoom * 4 < pages_read(lambda: metrics.series(job.pk, spans, **zoom))
