"""What was measured of an elastic job is known of the next one of the same program."""

from __future__ import annotations

from typing import Any

from gpu_scheduler.model import Profile
from jobs.models import Attempt, Job, Runtime
from jobs.selectors import requests
from jobs.selectors.snapshot import database_now
from jobs.services import job_submit
from tests import factories
from tests.jobs.conftest import People


def test_what_was_measured_of_a_program_is_known_of_its_next_job(people: People) -> None:
    Runtime.objects.get_or_create(slug="sklearn", defaults={"title": "scikit-learn"})

    def submitted(owner: Any = people.alice, **more: Any) -> Job:
        resources = {"learners": {"min": 1, "max": 4}} | more.pop("resources", {})
        spec = factories.spec(resources=resources, **more)
        return job_submit(user=owner, tenant=people.vision, source=spec)

    first = submitted()
    assert first.measured is None
    Attempt.objects.create(
        job=first, tenant=first.tenant, n=1, cluster="local", slot_type="cpu", slots=1, learners=1, nodes=["node-a"],
        held=False, closed_at=database_now(),
    )  # fmt: skip
    Job.objects.filter(pk=first.pk).update(measured=requests.measured(Profile(largest=3)))
    assert requests.profile(None, submitted(owner=people.dave).measured) == Profile(largest=3)
    for other in (
        {"command": "python other.py"},
        {"env": {"SIZE": "large"}},
        {"code": {"files": {"train.py": "print(2)"}}},
        {"resources": {"cpus": 2}},
        {"resources": {"learners": 2}},
    ):
        assert submitted(**other).measured is None, other
