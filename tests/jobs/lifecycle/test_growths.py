"""Why an elastic job that runs gets no more learners: from the pass to its row, its API body and its page."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.db.models import F
from django.test import Client
from django.test.utils import CaptureQueriesContext

from gpu_scheduler.model import Growth, GrowthReason
from jobs.lifecycle import growths
from jobs.models import Attempt, Job, Learner
from jobs.selectors.jobs import job_get
from jobs.selectors.serializers import JobSerializer
from jobs.services.sharing import SharePermission, job_share
from jobs.states import Phase, State
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
    growths.keep(found)
    with CaptureQueriesContext(connection) as asked:
        growths.keep(found)
        growths.keep([])
    assert [query["sql"][:6] for query in asked] == ["SELECT"]


def test_what_was_said_of_another_size_or_state_is_not_shown(world: World) -> None:
    job = processing(world)
    growths.keep([Growth(job.pk, 1, GrowthReason.NOT_FREE, "Full.", {"learners": 1, "free": 0})])
    assert body(job) is not None
    Job.objects.filter(pk=job.pk).update(learners=2)
    assert body(job) is None
    Job.objects.filter(pk=job.pk).update(learners=1, state=State.STOPPING)
    assert body(job) is None


def test_a_job_that_does_not_run_keeps_nothing(world: World) -> None:
    job = elastic(world)
    growths.keep([Growth(job.pk, 1, GrowthReason.NOT_FREE, "Full.", {"learners": 1})])
    assert job_of(job).growth is None


def test_a_guest_does_not_see_numbers_of_the_tenant(world: World) -> None:
    job = processing(world)
    growths.keep([Growth(job.pk, 1, GrowthReason.QUOTA, "Its quota.", {"learners": 1, "left": 0})])
    guest = factories.user("gina")
    job_share(user=job.owner, job_id=job.pk, username="gina", permission=SharePermission.VIEW)
    assert JobSerializer.render(job_get(user=guest, job_id=job.pk))["growth"] is None
    assert body(job) is not None
