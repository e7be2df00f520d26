"""The periodic task that keeps estimates: what it writes, what it leaves, and what is left of it after the start."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from django.utils.dateparse import parse_datetime

from jobs.lifecycle import cycle, forecasting
from jobs.models import Attempt, Blob, Estimate, Job, Progress
from jobs.selectors.jobs import job_get
from jobs.selectors.queue import EstimateHits, estimate_hits
from jobs.selectors.serializers import JobSerializer
from jobs.selectors.snapshot import database_now, snapshot
from jobs.states import Phase, State
from portal.pages.job_cards import kpis
from tests import factories
from tests.jobs.lifecycle.world import World, job_of

pytestmark = pytest.mark.django_db


def estimate(world: World, job: Job) -> dict[str, object]:
    view = JobSerializer.render(job_get(user=world.alice, job_id=job.pk))["estimate"]
    json.dumps(view)
    return dict(view)


def minutes(world: World, job: Job) -> float:
    start = parse_datetime(str(estimate(world, job)["from"]))
    assert start is not None
    return (start - timezone.now()).total_seconds() / 60


def past(world: World, *seconds: float, **fields: object) -> None:
    """Completed runs of the program that every job here has, or of another one."""
    for each in seconds:
        factories.job(owner=world.alice, of=world.tenant, state=State.COMPLETED, running_s=each, **fields)


def full(world: World, *, runs_s: float | None = None, **fields: object) -> tuple[Job, Job]:
    """A job that holds the cluster and one that waits for it. runs_s: how long its program took before."""
    if runs_s is not None:
        past(world, runs_s, runs_s)
    holder = world.running(learners=2, slots=4, **fields)
    waiter = world.submit(learners=2, slots=4)
    world.settle()
    return holder, waiter


def test_the_throughput_of_the_running_job_gives_the_start(world: World) -> None:
    holder, waiter = full(world)
    world.elapse(600)
    Progress.objects.filter(job=holder).update(step=250, total=1000, reported_at=timezone.now())
    forecasting.update_estimates({})
    assert minutes(world, waiter) == pytest.approx(30, abs=0.2)
    assert estimate(world, waiter)["basis"] == ["progress"]
    assert estimate(world, waiter)["message"] == "Based on the progress of running jobs; assumes no new jobs."


def test_without_progress_the_past_counts_and_a_limit_only_cuts_it(world: World) -> None:
    past(world, 1200, 2400, 3600, 4800)
    holder, waiter = full(world)
    world.elapse(60)
    forecasting.update_estimates({})
    assert estimate(world, waiter)["basis"] == ["history"]
    assert 19 - 0.1 <= minutes(world, waiter) <= 79
    Job.objects.filter(pk=holder.pk).update(time_limit_s=660)
    forecasting.update_estimates({})
    assert estimate(world, waiter)["basis"] == ["history"]
    assert minutes(world, waiter) == pytest.approx(10, abs=0.2)


def test_one_past_run_that_outlasted_all_others_is_no_estimate(world: World) -> None:
    """Five past jobs of seconds and one of three minutes: a job that had run for two was expected to end in one."""
    past(world, 5, 6, 7, 8, 9, 180)
    _, waiter = full(world)
    world.elapse(120)
    forecasting.update_estimates({})
    assert (estimate(world, waiter)["from"], estimate(world, waiter)["basis"]) == (None, [])


def test_a_time_limit_alone_is_no_estimate(world: World) -> None:
    """A program of minutes with a limit of three hours was expected to end "in 3 h"."""
    _, waiter = full(world, time_limit_s=3 * 3600)
    forecasting.update_estimates({})
    found = estimate(world, waiter)
    assert (found["from"], found["basis"]) == (None, [])
    assert "A time limit is not a run time." in str(found["message"])


def test_past_runs_of_the_same_program_count_before_those_of_others(world: World) -> None:
    command = {"spec": factories.spec(command="python other.py")}
    past(world, 7200, 7200, 7200, **command)
    past(world, 300, 300)
    _, waiter = full(world)
    forecasting.update_estimates({})
    assert minutes(world, waiter) == pytest.approx(5, abs=0.2)


def test_an_edited_program_is_like_those_of_the_same_command_before_the_framework(world: World) -> None:
    code = Blob.objects.create(tenant=world.tenant, sha256="0" * 64, size=1)
    past(world, 7200, 7200, 7200, 7200, spec=factories.spec(command="python other.py"))
    past(world, 300, 300, 300, code=code)
    _, waiter = full(world)
    forecasting.update_estimates({})
    assert minutes(world, waiter) == pytest.approx(5, abs=0.2)


def test_the_share_of_right_estimates_is_counted(world: World) -> None:
    now = timezone.now()
    for started, later in ((-5, 10), (5, 10), (20, 10)):
        job = factories.job(owner=world.alice, of=world.tenant, state=State.PROCESSING)
        Estimate.objects.create(
            job=job,
            tenant=world.tenant,
            first_at=now,
            first_soonest=now,
            first_latest=now + timedelta(minutes=later),
            started_at=now + timedelta(minutes=started),
        )
    assert estimate_hits(world.tenant, since=now - timedelta(days=1)) == EstimateHits(3, 1, 2)


def test_another_tenants_past_says_nothing(world: World) -> None:
    other = factories.tenant("other-lab")
    for seconds in (1200, 2400, 3600):
        factories.job(of=other, state=State.COMPLETED, running_s=seconds)
    _, waiter = full(world)
    forecasting.update_estimates({})
    assert estimate(world, waiter)["from"] is None
    assert "no known end" in str(estimate(world, waiter)["message"])


def test_an_estimate_in_the_past_is_shown_as_now(world: World) -> None:
    _, waiter = full(world, runs_s=600)
    forecasting.update_estimates({})
    world.elapse(3600)
    assert minutes(world, waiter) == pytest.approx(0, abs=0.1)


def test_only_what_changed_is_written_and_the_first_one_stays(world: World) -> None:
    _, waiter = full(world, runs_s=600)
    assert forecasting.update_estimates({})["changed"] == 1
    first = estimate(world, waiter)["first"]
    assert forecasting.update_estimates({})["changed"] == 0
    Job.objects.filter(state=State.COMPLETED).update(running_s=6000)
    assert forecasting.update_estimates({})["changed"] == 1
    assert estimate(world, waiter)["first"] == first
    assert minutes(world, waiter) == pytest.approx(100, abs=1)


def test_after_the_start_the_first_estimate_is_shown_beside_the_actual_start(world: World) -> None:
    holder, waiter = full(world, runs_s=600)
    forecasting.update_estimates({})
    world.elapse(540)
    world.exit(holder)
    world.done(holder)
    world.settle()
    assert job_of(waiter).state == State.DEPLOYING
    hindsight = estimate(world, waiter)
    assert hindsight["from"] is None
    first = hindsight["first"]
    assert isinstance(first, dict)
    begun, expected, started = (
        parse_datetime(str(at)) for at in (first["at"], first["from"], hindsight["started_at"])
    )
    assert begun
    assert expected
    assert started
    assert (expected - begun).total_seconds() == pytest.approx(600, abs=5)
    assert (started - begun).total_seconds() == pytest.approx(540, abs=5)


def test_a_job_that_queues_again_gets_a_new_estimate(world: World) -> None:
    _, waiter = full(world, runs_s=600)
    long_ago = timezone.now() - timedelta(days=1)
    Estimate.objects.create(
        job=waiter,
        tenant=world.tenant,
        soonest=long_ago,
        latest=long_ago,
        first_soonest=long_ago,
        first_latest=long_ago,
        first_at=long_ago,
        started_at=long_ago,
    )
    assert estimate(world, waiter)["message"] == "The first estimate follows within seconds."
    forecasting.update_estimates({})
    first = estimate(world, waiter)["first"]
    assert isinstance(first, dict)
    assert first["from"] == estimate(world, waiter)["from"]
    assert estimate(world, waiter)["started_at"] is None


def test_a_job_that_waits_without_an_estimate_calls_the_forecast(world: World) -> None:
    world.running(learners=2, slots=4)
    forecasting_task = cycle.PeriodicTask.objects.create(
        name=forecasting.TASK, next_at=timezone.now() + timedelta(hours=1)
    )
    world.submit(learners=2, slots=4)
    cycle.run()
    forecasting_task.refresh_from_db()
    assert forecasting_task.next_at <= timezone.now()


def test_a_long_queue_costs_no_more_queries_and_its_end_is_reported_as_too_far(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    full(world, runs_s=600)
    counts = []
    monkeypatch.setattr(forecasting, "FORECAST_JOBS", 5)
    for _ in range(2):
        for _ in range(6):
            last = world.submit(learners=2, slots=4)
        Estimate.objects.all().delete()
        with CaptureQueriesContext(connection) as queries:
            forecasting.update_estimates({})
        counts.append(len(queries))
    assert counts[0] == counts[1] <= 20
    assert estimate(world, last)["message"] == "Its start is too far ahead to estimate."
    assert Estimate.objects.filter(why_none="too_far").count() == 13 - 5


def test_older_opportunistic_jobs_keep_no_other_out_of_the_forecast(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, ahead = full(world, runs_s=600)
    for _ in range(6):
        crowd = world.submit(learners=2, slots=4, opportunistic=True)
    waiter = world.submit(learners=2, slots=4)
    urged = world.submit(learners=2, slots=4, priority_rank=2, opportunistic=True)
    monkeypatch.setattr(forecasting, "FORECAST_JOBS", 3)
    forecasting.update_estimates({})
    assert minutes(world, waiter) == pytest.approx(20, abs=0.2)
    assert estimate(world, crowd)["message"] == "Its start is too far ahead to estimate."
    seen = snapshot(nodes=[], now=database_now(), at_most=3)
    assert [gang.job for gang in seen.waiting] == [ahead.pk, waiter.pk, urged.pk]


def test_learners_that_have_not_begun_count_from_their_placement(world: World) -> None:
    past(world, 600, 600)
    holder = world.submit(learners=2, slots=4)
    world.settle()
    world.report(holder, phase=Phase.DOWNLOADING)
    waiter = world.submit(learners=2, slots=4)
    world.settle()
    forecasting.update_estimates({})
    assert minutes(world, waiter) == pytest.approx(10, abs=0.2)


def test_right_after_a_resume_forecast_pages_and_rest_say_the_same(world: World) -> None:
    holder, waiter = full(world)
    Job.objects.filter(pk=holder.pk).update(running_s=300, attempt=2)
    kept = factories.checkpoint(holder, step=500)
    first = Attempt.objects.get(job=holder)
    Attempt.objects.filter(job=holder).update(n=2, resume_from=kept)
    first.pk, first.held, first.closed_at = None, False, first.opened_at
    first.save()
    Progress.objects.filter(job=holder).update(step=500, total=1000, reported_at=None)
    forecasting.update_estimates({})
    view = JobSerializer.render(job_get(user=world.alice, job_id=holder.pk))
    assert view["throughput"]["seconds_left"] == pytest.approx(300, abs=5)
    assert minutes(world, waiter) == pytest.approx(5, abs=0.1)
    assert next(
        kpi for kpi in kpis(view | {"devices_text": ""}, ran_s=0) if kpi.title == "Time left"
    ).value in (
        "5 min 00 s",
        "4 min 59 s",
    )
