"""Why an elastic job that runs gets no more learners: from the pass to its row, its API body and its page."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.conf import settings
from django.db import connection
from django.db.models import F
from django.test import Client
from django.test.utils import CaptureQueriesContext

from gpu_scheduler.model import Growth, GrowthReason, Snapshot
from jobs.lifecycle import growths
from jobs.models import Attempt, Job, Learner
from jobs.selectors.jobs import job_get
from jobs.selectors.redaction import redact_job
from jobs.selectors.serializers import JobSerializer
from jobs.selectors.snapshot import database_now, snapshot
from jobs.services.sharing import SharePermission, job_share
from jobs.states import Intent, Phase, State
from tenants.models import Token
from tests import factories
from tests.jobs.lifecycle.test_elastic import elastic
from tests.jobs.lifecycle.world import World, job_of, one_pass, state
from tests.markup import markup

pytestmark = pytest.mark.django_db


def processing(world: World) -> Job:
    job = elastic(world)
    one_pass()
    world.settle()
    world.report(job, phase=Phase.PROCESSING)
    world.settle()
    assert state(job) == State.PROCESSING
    return job


def keep(job: Job, code: GrowthReason = GrowthReason.NOT_FREE) -> None:
    """As a pass that finds this of it, and sees what runs."""
    growths.keep([Growth(job.pk, 1, code, "Full.", {"learners": 1, "free": 0})], seen().running)


def seen() -> Snapshot:
    return snapshot(nodes=[], now=database_now())


def body(job: Job) -> dict[str, Any] | None:
    found: dict[str, Any] | None = JobSerializer.render(job_get(user=job.owner, job_id=job.pk))["growth"]
    return found


def test_a_pass_says_why_and_the_api_and_the_page_show_it(world: World) -> None:
    job = processing(world)
    one_pass()
    assert job_of(job).growth["code"] == "settling"
    hour = timedelta(hours=1)  # both: the time between them is what a start costs
    Attempt.objects.filter(job=job).update(
        opened_at=F("opened_at") - hour, processing_at=F("processing_at") - hour
    )
    one_pass()
    assert job_of(job).growth["code"] == "costs", "nothing of an hour's work is saved"
    Learner.objects.filter(job=job).update(checks_halt=True)
    one_pass()
    _, secret = Token.objects.create(user=job.owner, name="t")
    answer = Client().get(f"/api/v1/jobs/{job.pk}", headers={"Authorization": f"Bearer {secret}"}).json()
    assert answer["growth"]["code"] == "not_measured"
    message = answer["growth"]["message"]
    assert message.startswith("Runs with 1 of up to 4 learners: not known yet")
    client = Client()
    client.force_login(job.owner)
    assert message in markup(client.get(f"/t/{job.tenant.slug}/jobs/{job.pk}"))


def test_what_has_not_changed_is_not_written_again(world: World) -> None:
    job = processing(world)
    found = [Growth(job.pk, 1, GrowthReason.NOT_FREE, "Full.", {"learners": 1, "free": 0})]
    running = seen().running
    growths.keep(found, running)
    with CaptureQueriesContext(connection) as asked:
        growths.keep(found, running)
        growths.keep([], [])
    assert [query["sql"][:6] for query in asked] == ["SELECT"]


def test_what_was_said_of_another_size_or_state_is_not_shown(world: World) -> None:
    job = processing(world)
    keep(job)
    assert body(job) is not None
    Job.objects.filter(pk=job.pk).update(learners=2)
    assert body(job) is None
    Job.objects.filter(pk=job.pk).update(learners=1, state=State.STOPPING)
    assert body(job) is None


def test_a_job_that_no_longer_runs_keeps_nothing(world: World) -> None:
    job = processing(world)
    running = seen().running
    Job.objects.filter(pk=job.pk).update(state=State.STOPPING)
    growths.keep([Growth(job.pk, 1, GrowthReason.NOT_FREE, "Full.", {"learners": 1})], running)
    assert job_of(job).growth is None


def test_a_job_that_is_being_halted_says_nothing_and_the_next_pass_removes_it(world: World) -> None:
    job = processing(world)
    keep(job)
    world.request(job, Intent.HALT)
    assert body(job_of(job)) is None
    growths.keep([], seen().running)
    assert job_of(job).growth is None


def test_a_new_attempt_of_the_same_size_does_not_repeat_what_was_said_of_the_last(world: World) -> None:
    job = processing(world)
    keep(job)
    world.request(job, Intent.HALT)
    world.settle()
    world.exit(job, halted=True)
    world.done(job)
    world.settle()
    assert state(job) == State.HALTED
    Job.objects.filter(pk=job.pk).update(
        growth={"code": "not_free", "message": "", "numbers": {"learners": 1}}
    )
    world.request(job, Intent.RUN)
    world.settle()
    one_pass()
    world.settle()
    world.report(job, phase=Phase.PROCESSING)
    world.settle()
    assert (state(job), job_of(job).attempt, job_of(job).learners) == (State.PROCESSING, 2, 1)
    assert body(job_of(job)) is None


def test_a_policy_that_resizes_nothing_removes_what_the_last_one_said(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = processing(world)
    one_pass()
    assert job_of(job).growth is not None
    monkeypatch.setattr(settings, "LUTHIER_SCHEDULER_POLICY", "fifo")
    world.submit()
    one_pass()
    assert (state(job), job_of(job).growth) == (State.PROCESSING, None)


def test_a_guest_does_not_see_numbers_of_the_tenant(world: World) -> None:
    job = processing(world)
    keep(job, GrowthReason.QUOTA)
    guest = factories.user("gina")
    job_share(user=job.owner, job_id=job.pk, username="gina", permission=SharePermission.VIEW)
    assert JobSerializer.render(job_get(user=guest, job_id=job.pk))["growth"] is None
    members = JobSerializer.render(job_get(user=job.owner, job_id=job.pk))
    assert members["growth"]
    assert redact_job(members)["growth"] is None, "by socket"
    assert body(job) is not None
