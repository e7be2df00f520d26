"""Charts: buckets, ranges, values that are no numbers, and attempts that overtake each other."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from jobs.models import Job, MetricPoint
from jobs.selectors import metrics
from jobs.states import State
from tests import factories

pytestmark = pytest.mark.django_db


def add(job: Job, steps: dict[int, float], *, attempt: int = 1, name: str = "loss", rank: int = 0) -> None:
    began = timezone.now()
    seq = MetricPoint.objects.filter(job=job).count()
    MetricPoint.objects.bulk_create(
        MetricPoint(
            job=job, tenant=job.tenant, attempt=attempt, rank=rank, name=name, step=step, value=value,
            at=began + timedelta(seconds=step), seq=seq + place,
        )
        for place, (step, value) in enumerate(steps.items(), 1)
    )  # fmt: skip


def series_of(job: Job, **asked: Any) -> list[metrics.Series]:
    which = {name: asked[name] for name in ("names", "q", "x", "upto") if name in asked}
    how = {name: value for name, value in asked.items() if name not in ("names", "q")}
    return metrics.series(job.pk, metrics.spans(job.pk, **which), **how)


@pytest.fixture
def job() -> Job:
    return factories.job(state=State.PROCESSING)


def test_few_points_come_one_by_one_and_are_complete(job: Job) -> None:
    add(job, {0: 1.0, 5: 0.5, 7: 0.25})

    (found,) = series_of(job)

    assert found.buckets == [(0, 1.0, 1.0, 1.0), (5, 0.5, 0.5, 0.5), (7, 0.25, 0.25, 0.25)]
    assert found.complete
    assert found.points == 3


def test_many_points_share_buckets_that_keep_their_extremes(job: Job) -> None:
    add(job, {step: (100.0 if step == 501 else float(step % 10)) for step in range(1000)})

    (found,) = series_of(job, buckets=10)

    assert len(found.buckets) == 10
    assert not found.complete
    assert found.points == 1000
    assert max(high for _, _, high, _ in found.buckets if high is not None) == 100.0
    assert [low for _, low, _, _ in found.buckets] == [0.0] * 10
    assert [at for at, *_ in found.buckets] == [99, 199, 299, 399, 499, 599, 699, 799, 899, 999]
    assert {last for *_, last in found.buckets} == {9.0}


def test_a_range_is_cut_out_before_it_is_thinned(job: Job) -> None:
    add(job, {step: float(step) for step in range(1000)})

    (found,) = series_of(job, x_from=100, x_to=199, buckets=5)

    assert [at for at, *_ in found.buckets] == [119, 139, 159, 179, 199]


def test_nan_and_infinity_are_listed_and_never_an_extreme(job: Job) -> None:
    add(job, {0: 1.0, 1: math.nan, 2: math.inf, 3: 2.0, 4: -math.inf})

    (found,) = series_of(job, buckets=1)

    assert found.buckets == [(4, 1.0, 2.0, "-Infinity")]
    assert found.not_finite == [(1, "NaN"), (2, "Infinity"), (4, "-Infinity")]


def test_a_bucket_without_any_number_has_no_extremes(job: Job) -> None:
    add(job, {0: math.nan})

    (found,) = series_of(job)

    assert found.buckets == [(0, None, None, "NaN")]


def test_the_newest_attempt_wins_where_two_reported_the_same_step(job: Job) -> None:
    add(job, dict.fromkeys(range(10), 1.0))
    add(job, dict.fromkeys(range(6, 8), 2.0), attempt=2)

    (found,) = series_of(job)

    assert [at for at, *_ in found.buckets] == list(range(10))
    assert [last for *_, last in found.buckets] == [1.0] * 6 + [2.0] * 2 + [1.0] * 2
    assert found.superseded == [(6, 1.0, 1.0, 1.0), (7, 1.0, 1.0, 1.0)]


def test_the_time_axis_counts_milliseconds(job: Job) -> None:
    add(job, {0: 1.0, 10: 2.0})

    (found,) = series_of(job, x="time")

    assert found.buckets[1][0] - found.buckets[0][0] == pytest.approx(10_000, abs=1)


def test_names_and_learners_make_series_of_their_own(job: Job) -> None:
    add(job, {0: 1.0})
    add(job, {0: 1.0}, name="acc")
    add(job, {0: 1.0}, rank=1)

    assert [(one.name, one.rank) for one in series_of(job)] == [("acc", 0), ("loss", 0), ("loss", 1)]
    assert [one.name for one in series_of(job, names=["acc"])] == ["acc"]
    assert [one.name for one in series_of(job, q="LO")] == ["loss", "loss"]
    assert metrics.names(job.pk) == ["acc", "loss"]


def test_another_jobs_points_never_show(job: Job) -> None:
    add(factories.job(state=State.PROCESSING), {0: 1.0})

    assert series_of(job) == []


def test_nothing_after_the_named_point_is_in_it(job: Job) -> None:
    add(job, {1: 1.0, 2: 0.5})
    add(job, {3: float("nan")})
    seqs = list(MetricPoint.objects.filter(job=job).order_by("seq").values_list("seq", flat=True))
    (found,) = series_of(job, upto=seqs[1])
    assert ([x for x, *_ in found.buckets], found.not_finite, found.points) == ([1, 2], [], 2)
