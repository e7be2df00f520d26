"""The learners tab: the start as bars, and the flag of a slow learner."""

from __future__ import annotations

import json
from datetime import datetime, timedelta

import pytest
from django.utils import timezone

from jobs.models import Attempt, Job, Learner
from jobs.states import Phase, State
from portal.pages import job_learners
from portal.pages.badges import phase_badge
from portal.pages.job_learners import MAX_BARS, LearnerStart, start
from tenants.models import Tenant, User
from tests import factories
from tests.jobs.selectors.test_step_times import report
from tests.markup import markup
from tests.portal.pages.conftest import SignIn

pytestmark = pytest.mark.django_db
BEGAN = datetime(2026, 11, 20, 12, 0, tzinfo=timezone.get_default_timezone())


def after(seconds: float) -> datetime:
    return BEGAN + timedelta(seconds=seconds)


def drawn(*began: float | None) -> LearnerStart:
    """A start in which each learner had its inputs 2 s before its program began; None: it still downloads."""
    attempt = Attempt(opened_at=BEGAN, launched_at=after(1))
    learners = [
        Learner(rank=rank, node="node-a", downloading_at=after(2)) if at is None else
        Learner(
            rank=rank, node="node-a", downloading_at=after(2), ready_at=after(at - 2), processing_at=after(at)
        )
        for rank, at in enumerate(began)
    ]  # fmt: skip
    found = start(attempt, learners, after(90))
    assert found is not None
    return found


def test_bars_follow_each_other_on_one_axis() -> None:
    chart = drawn(54, 67)
    assert (chart.last, chart.took, chart.missing) == (1, 67, 0)
    assert chart.ticks == ("0 s", "20 s", "40 s", "60 s", "80 s")
    first = chart.lanes[0]
    assert [(bar.name, bar.x, bar.width) for bar in first.bars] == [
        ("placed", 0, 1.25), ("deploying", 1.25, 1.25), ("downloading", 2.5, 62.5), ("starting", 65, 2.5),
        ("processing", 67.5, 32.5),
    ]  # fmt: skip
    assert (first.after, first.waited) == (54, 13)


def test_an_unfinished_start_names_no_learner_as_the_last() -> None:
    chart = drawn(10, None)
    assert (chart.last, chart.took, chart.missing) == (None, None, 1)
    late = chart.lanes[1]
    assert (late.after, late.waited) == (None, None)
    assert [bar.name for bar in late.bars] == ["placed", "deploying", "downloading"]
    assert late.bars[-1].x + late.bars[-1].width == pytest.approx(90)  # until now, on an axis of 100 s


def test_of_a_large_gang_those_that_came_last_are_drawn() -> None:
    chart = drawn(*range(10, 10 + MAX_BARS + 8))
    assert [lane.rank for lane in chart.lanes] == list(range(8, MAX_BARS + 8))
    assert chart.hidden == 8


def test_an_attempt_without_stored_timestamps_has_no_bars() -> None:
    assert start(Attempt(opened_at=BEGAN), [Learner(rank=0)], after(9)) is None


def test_the_page_flags_who_is_slow_and_draws_the_start(alice: User, signed_in: SignIn) -> None:
    job: Job = factories.job(owner=alice, state=State.PROCESSING, learners=2)
    Learner.objects.filter(job=job).update(
        phase=Phase.PROCESSING,
        downloading_at=timezone.now(),
        processing_at=timezone.now() + timedelta(seconds=3),
    )
    report(job, 0, 0.5)
    report(job, 1, 0.67)
    page = markup(signed_in(alice).get(f"/t/{job.tenant.slug}/jobs/{job.pk}/learners"))
    assert page.count("1.34 × median") == 2, "in the strip and in the learner's row"
    assert "A step of L1 takes 1.34 × as long" in page
    assert page.count('class="split-bar"') == 2


def test_the_size_of_an_elastic_job_is_drawn_over_its_attempts(alice: User, signed_in: SignIn) -> None:
    resources = {"learners": {"min": 1, "max": 4}, "gpus": 0, "cpus": 1, "memory": "1Gi"}
    job: Job = factories.job(
        owner=alice,
        state=State.PROCESSING,
        learners=2,
        attempt=30,
        resources=json.dumps(resources),
        spec=factories.spec(resources=resources),
    )
    Attempt.objects.filter(job=job, n__lt=30).delete()
    Attempt.objects.filter(job=job, n=30).update(opened_at=after(100))
    Attempt.objects.create(
        job=job, tenant=job.tenant, n=29, cluster="local", slot_type="cpu", slots=1, learners=4, nodes=["node-a"] * 4,
        held=False, opened_at=BEGAN, closed_at=after(50),
    )  # fmt: skip
    sizes = job_learners.sizes(job_of(job), after(200))
    assert sizes is not None
    assert sizes.first == BEGAN
    assert sizes.line.startswith("M0 100.00H0.00V9.09H25.00V100.00H50.00V54.55"), (
        "4, none, then 2 of 4 learners"
    )

    client, at = signed_in(alice), f"/t/{job.tenant.slug}/jobs/{job.pk}"
    page = markup(client.get(f"{at}/learners?attempt=1"))
    assert 'class="step-chart"' in page
    assert page.count('href="?attempt=') == job_learners.ATTEMPTS_SHOWN + 1, "the newest, and the one shown"
    assert "2 of 1–4 learners" in " ".join(markup(client.get(at)).split())
    assert "2 of 1–4 × 1" in markup(client.get(f"/t/{job.tenant.slug}/jobs"))
    Job.objects.filter(pk=job.pk).update(resources=None)
    assert job_learners.sizes(job_of(job), after(200)) is None


def test_the_batch_that_was_chosen_for_an_attempt_is_shown_with_it(alice: User, signed_in: SignIn) -> None:
    job: Job = factories.job(owner=alice, state=State.PROCESSING, learners=2)
    client, at = signed_in(alice), f"/t/{job.tenant.slug}/jobs/{job.pk}/learners"
    assert "samples in a step" not in markup(client.get(at)), "the program has its own"
    Attempt.objects.filter(job=job).update(batch=4096, micro_batch=512)
    page = " ".join(markup(client.get(at)).split())
    assert "4,096" in page
    assert "samples in a step, 512 at once" in page


def job_of(job: Job) -> Job:
    return Job.objects.get(pk=job.pk)


def test_a_program_too_quick_to_be_seen_is_not_said_never_to_have_begun(
    alice: User, signed_in: SignIn
) -> None:
    job: Job = factories.job(owner=alice, state=State.COMPLETED)
    Learner.objects.filter(job=job).update(
        phase=Phase.DONE, downloading_at=timezone.now(), exited_at=timezone.now(), exit_code=0
    )
    page = markup(signed_in(alice).get(f"/t/{job.tenant.slug}/jobs/{job.pk}/learners"))
    assert "1 of 1 without a recorded start" in page
    assert "never began" not in page


def test_how_a_learner_ended_is_not_a_green_done(lab: Tenant) -> None:
    """Rank 1 exited with 1 and was "Done", as its log had been delivered; rank 0 was stopped for it."""
    job = factories.job(of=lab, state=State.FAILED, learners=5)
    at = timezone.now()
    for rank, fields in enumerate(
        (
            {"exit_code": 143, "exited_at": at},
            {"exit_code": 1, "exited_at": at - timedelta(seconds=3)},
            {"exit_code": 0, "exited_at": at - timedelta(seconds=9)},
            {"exit_code": 143, "exited_at": at, "halted": True},  # by the SIGTERM of the stop
            {"exited_at": at},
        )
    ):
        Learner.objects.filter(job=job, rank=rank).update(phase=Phase.DONE, done_at=at, **fields)
    shown = [(one.phase, phase_badge(one.phase).family) for one in job_learners.rows(job, None, at)]
    assert shown == [
        ("Stopped", "neutral"),
        ("Failed", "red"),
        ("Done", "green"),
        ("Stopped", "neutral"),
        ("Lost", "neutral"),
    ]
    Learner.objects.filter(job=job).update(exit_code=143, exited_at=at, halted=True)
    assert {one.phase for one in job_learners.rows(job, None, at)} == {"Halted"}
