"""One throughput for forecasts, pages and REST: of all attempts together, so that a resume changes no estimate."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.utils import timezone

from jobs.models import Attempt, Learner, Progress
from jobs.selectors.jobs import job_get
from jobs.selectors.serializers import JobSerializer
from jobs.selectors.snapshot import database_now, snapshot
from jobs.selectors.throughput import Run, run_times, throughput
from jobs.states import State
from tests import factories

BEGAN = datetime(2026, 11, 22, tzinfo=UTC)
FIRST = Run(400, 1000, BEGAN + timedelta(seconds=200), 0.0, 0, BEGAN, 0)


def after(seconds: float) -> datetime:
    return BEGAN + timedelta(seconds=seconds)


def left(run: Run, at_s: float) -> float | None:
    found = throughput(run, after(at_s))
    return found and found.left_s


def test_a_first_attempt_goes_on_as_it_went() -> None:
    assert left(FIRST, 200) == pytest.approx(300)
    assert left(FIRST, 230) == pytest.approx(270)  # the steps since the last report were made meanwhile


def test_a_resume_without_reports_keeps_the_earlier_throughput() -> None:
    run = Run(400, 1000, after(-60), 200.0, 0, BEGAN, 400)
    assert left(run, 0) == pytest.approx(300)


def test_a_slow_first_step_after_a_resume_hardly_changes_the_estimate() -> None:
    run = Run(401, 1000, after(10), 200.0, 0, BEGAN, 400)  # ten seconds of imports, then one step
    assert left(run, 10) == pytest.approx(599 * 210 / 401)


def test_what_was_lost_is_to_be_made_again() -> None:
    run = Run(450, 1000, after(-60), 225.0, 0, BEGAN, 400)
    assert left(run, 0) == pytest.approx(600 * 225 / 400)


def test_a_waiting_job_keeps_its_throughput() -> None:
    assert left(Run(400, 1000, after(-60), 200.0, 0, None, 0), 0) == pytest.approx(300)


def test_steps_that_a_clone_was_given_count_for_nothing() -> None:
    assert left(Run(500, 1000, after(50), 0.0, 400, BEGAN, 400), 50) == pytest.approx(250)
    assert left(Run(500, 1000, after(-60), 50.0, 400, BEGAN, 500), 0) == pytest.approx(250)


@pytest.mark.parametrize(
    "run",
    [
        Run(None, 1000, None, 0.0, 0, BEGAN, 0),
        Run(400, None, after(10), 0.0, 0, BEGAN, 0),
        Run(400, 1000, after(-60), 0.0, 400, BEGAN, 400),
        Run(0, 1000, after(10), 0.0, 0, BEGAN, 0),
    ],
)
def test_without_steps_there_is_no_throughput(run: Run) -> None:
    assert left(run, 20) is None


@pytest.mark.django_db
@pytest.mark.parametrize("fell", [False, True])
def test_steps_that_fall_back_say_nothing_of_the_time_that_is_left(*, fell: bool) -> None:
    """As of a program that counts within each epoch, in the first step of its fifth one."""
    now = timezone.now()
    began = now - timedelta(seconds=401)
    job = factories.job(state=State.PROCESSING)
    Attempt.objects.filter(job=job).update(opened_at=began, processing_at=began)
    fell_ms = int(now.timestamp() * 1000) if fell else None
    Learner.objects.filter(job=job).update(first_step=0, last_step=1, fell_ms=fell_ms, processing_at=began)
    Progress.objects.filter(job=job).update(step=1, total=100, reported_at=now)
    view = JobSerializer.render(job_get(user=job.owner, job_id=job.pk))
    assert (view["throughput"]["seconds_left"] is None) == fell
    seen = snapshot(nodes=[], now=database_now())
    assert (job.pk in run_times(seen)) != fell
