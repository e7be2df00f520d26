"""Which data sets a shipper has to link: those of a cluster whose driver does not provide them itself."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from jobs.models import Attempt, Job
from jobs.states import State
from tests import factories

pytestmark = pytest.mark.django_db
MOUNTS = [{"name": "mnist", "path": "images/mnist"}]


def linked(job: Job) -> Any:
    secret = factories.secret(job, 1, 0)
    answer = Client().get("/agent/v1/job", headers={"Authorization": f"Bearer {secret}"})
    assert answer.status_code == 200, answer.content
    return answer.json()["data"]


def test_a_shipper_links_data_sets_only_where_they_are_folders_of_its_machine() -> None:
    job = factories.job(state=State.DOWNLOADING, spec=factories.spec(data=MOUNTS))
    assert linked(job) == MOUNTS
    Attempt.objects.filter(job=job).update(cluster="kubernetes")
    assert linked(job) == []
    Job.objects.filter(pk=job.pk).update(spec=factories.spec())
    assert linked(job) == []
