"""A halt that may lose something asks before it takes effect; any other takes one click."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from jobs.models import Job, Learner, Progress
from jobs.states import Intent, State
from portal.pages.job_halt import question
from tenants.models import Tenant, User
from tests import factories
from tests.markup import markup
from tests.portal.pages.conftest import OpenPage

pytestmark = pytest.mark.django_db


def running(owner: User, *, checks: bool = False, step: int | None = None, **fields: Any) -> Job:
    """A job whose program began two hours ago and reported this step."""
    job = factories.job(owner=owner, state=State.PROCESSING, grace_s=45, **fields)
    Learner.objects.filter(job=job).update(checks_halt=checks)
    job.attempts.update(processing_at=timezone.now() - timedelta(hours=2))
    Progress.objects.filter(job=job).update(step=step)
    return job


def asked(job: Job) -> str:
    return question(Job.objects.get(pk=job.pk), timezone.now())


def intent(job: Job) -> Intent:
    return Intent(Job.objects.values_list("intent", flat=True).get(pk=job.pk))


def test_the_question_says_what_may_be_lost_and_no_more_than_is_known(alice: User) -> None:
    signal = "it gets SIGTERM and 45 s to save."
    unaware = "the program has not checked for a halt so far: " + signal
    job = running(alice, step=344)
    assert asked(job) == (
        f"No checkpoint has been stored so far, and {unaware} What it has saved in CHECKPOINT_DIR by then is kept."
        " If that is nothing, a resume starts from scratch, and everything up to step 344, the last one reported,"
        " is repeated."
    )
    silent = running(alice)
    assert asked(silent).endswith(
        "a resume starts from scratch, and what it did in 2 h 00 min of running is repeated."
    )
    aware = running(alice, checks=True, step=1_200)
    assert asked(aware).startswith(
        "No checkpoint has been stored so far. The program checks for a halt and may save before it ends. What"
    )
    saves = running(alice, step=344)
    factories.checkpoint(saves, step=300)
    assert asked(saves) == (
        f"The{unaware[3:]} What it has saved in CHECKPOINT_DIR by then is kept. If that is nothing new, a resume"
        " starts from checkpoint 1 (step 300), and everything from step"
        " 300 to step 344, the last one reported, is repeated."
    )
    unknown = running(alice, step=344)
    factories.checkpoint(
        unknown, step=None, implicit=True, committed_at=timezone.now() - timedelta(minutes=5)
    )
    assert "checkpoint 1 (step unknown), and everything since it was stored, 5 min 00 s ago," in asked(
        unknown
    )


def test_one_click_is_enough_where_nothing_is_known_to_be_lost(
    alice: User, client: Client, open_page: OpenPage
) -> None:
    job = running(alice, checks=True, step=344)
    factories.checkpoint(job, step=300)
    page = open_page(alice, job)
    assert "halt-dialog" not in page

    client.post(f"/t/{job.tenant.slug}/jobs/{job.pk}/halt")

    assert intent(job) == Intent.HALT


@pytest.mark.parametrize("state", [State.QUEUED, State.DEPLOYING, State.DOWNLOADING])
def test_a_job_whose_program_does_not_run_yet_halts_at_once(alice: User, state: State) -> None:
    assert asked(factories.job(owner=alice, state=state)) == ""


def test_a_halt_without_a_checkpoint_takes_effect_after_the_question_only(
    alice: User, client: Client, open_page: OpenPage
) -> None:
    job = running(alice, step=344)
    base = f"/t/{job.tenant.slug}/jobs/{job.pk}"
    page = open_page(alice, job)
    assert 'data-dialog="halt-dialog"' in page  # with scripts a dialog, without them a page of its own
    assert "up to step 344" in markup(client.get(f"{base}/halt"))

    question_page = client.post(f"{base}/halt")

    assert "Halt train?" in markup(question_page)
    assert intent(job) == Intent.RUN
    assert client.post(f"{base}/halt", {"confirmed": "yes"})["Location"] == base
    assert intent(job) == Intent.HALT


def test_halting_many_asks_once_and_names_each_job_that_may_lose_something(
    alice: User, client: Client, lab: Tenant
) -> None:
    client.force_login(alice)
    loses = running(alice, of=lab, name="loses", step=344)
    safe = running(alice, of=lab, name="safe", checks=True)
    factories.checkpoint(safe)
    chosen = {"job": [loses.pk, safe.pk], "state": "active"}

    page = markup(client.post("/t/vision-lab/jobs/halt", chosen))

    assert "1 of 2 may lose something" in page
    assert "loses" in page
    assert f'<input type="hidden" name="job" value="{safe.pk}">' in page
    assert (intent(loses), intent(safe)) == (Intent.RUN, Intent.RUN)
    client.post("/t/vision-lab/jobs/halt", chosen | {"confirmed": "yes"})
    assert (intent(loses), intent(safe)) == (Intent.HALT, Intent.HALT)
