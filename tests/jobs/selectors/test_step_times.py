"""Which learners of a gang are slow, by the times of their own reports."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from jobs.models import Job, MetricPoint
from jobs.selectors.throughput import NEWEST, step_times, times_median
from jobs.states import State
from tests import factories

pytestmark = pytest.mark.django_db


def report(
    job: Job, rank: int, every_s: float, *, steps: int = 5, name: str = "loss", attempt: int = 1
) -> None:
    began, seq = timezone.now(), MetricPoint.objects.filter(job=job).count()
    MetricPoint.objects.bulk_create(
        MetricPoint(
            job=job, tenant=job.tenant, attempt=attempt, rank=rank, name=name, step=step * 10, value=1.0,
            at=began + timedelta(seconds=step * 10 * every_s), seq=seq + step,
        )
        for step in range(1, steps + 1)
    )  # fmt: skip


def test_each_learner_is_timed_by_its_own_reports_of_this_attempt() -> None:
    job = factories.job(state=State.PROCESSING, learners=3, attempt=2)
    report(job, 0, 0.5, attempt=2)
    report(job, 0, 9.0, attempt=1)
    report(job, 1, 2.0, name="accuracy", attempt=2)
    report(job, 2, 1.0, steps=1, attempt=2)
    assert step_times(job.pk, 2, "loss") == pytest.approx({0: 0.5, 1: 2.0})


def test_only_the_newest_reports_count() -> None:
    job = factories.job(state=State.PROCESSING)
    report(job, 0, 1.0, steps=NEWEST)
    newest = MetricPoint.objects.order_by("-step").first()
    assert newest is not None
    for place in range(1, NEWEST + 1):
        MetricPoint.objects.create(
            job=job, tenant=job.tenant, attempt=1, rank=0, name="loss", step=newest.step + place, value=1.0,
            at=newest.at + timedelta(seconds=place * 4), seq=newest.seq + place,
        )  # fmt: skip
    assert step_times(job.pk, 1, "loss") == pytest.approx({0: 4.0})


@pytest.mark.parametrize(
    ("seconds", "flagged"),
    [
        ({0: 0.46, 1: 0.47, 2: 0.47, 3: 0.63}, {3: 0.63 / 0.47}),
        ({0: 0.46, 1: 0.47, 2: 0.47, 3: 0.6}, {}),
        ({0: 1.0, 1: 2.0}, {1: 2.0}),
        ({0: 3.0}, {}),
        ({}, {}),
    ],
)
def test_a_learner_is_flagged_from_one_and_three_tenths_of_the_median_on(
    seconds: dict[int, float], flagged: dict[int, float]
) -> None:
    assert times_median(seconds) == pytest.approx(flagged)
