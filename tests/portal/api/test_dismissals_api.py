"""Dismissals by REST: repeatable, the caller's own, and of failures alone."""

from __future__ import annotations

from datetime import timedelta

from django.utils import timezone

from jobs.models import Dismissal, Job
from jobs.states import State
from tenants.models import Token
from tenants.roles import Role
from tests import factories
from tests.jobs.conftest import People
from tests.portal.api.conftest import Api

ALL = "/tenants/vision-lab/dismissals"


def test_a_failure_is_dismissed_listed_and_restored_and_each_may_be_repeated(
    people: People, alice: Api, carol: Api
) -> None:
    job = factories.job(owner=people.alice, state=State.FAILED)
    path = f"/jobs/{job.pk}/dismissal"
    first, again = (alice.put(path, {}) for _ in range(2))
    assert (first.status_code, again.json()) == (200, first.json())
    assert set(first.json()) == {"job", "dismissed_at"}
    assert first.json()["job"] == job.pk
    assert alice.get(ALL).json()["items"] == [first.json()]
    assert carol.get(ALL).json()["items"] == []
    assert [alice.delete(path).status_code for _ in range(2)] == [204, 204]
    assert alice.get(ALL).json()["items"] == []


def test_a_job_that_has_not_failed_is_a_conflict(people: People, alice: Api) -> None:
    job = factories.job(owner=people.alice, state=State.COMPLETED)
    answer = alice.put(f"/jobs/{job.pk}/dismissal", {})
    assert (answer.status_code, answer.json()["code"]) == (409, "illegal_transition")
    assert not Dismissal.objects.exists()


def test_all_of_a_day_are_dismissed_once_up_to_what_was_seen(people: People, alice: Api) -> None:
    jobs = [factories.job(owner=people.alice, state=State.FAILED) for _ in range(3)]
    now = timezone.now()
    for job, ago_h in zip(jobs, (0, 1, 25), strict=True):
        Job.objects.filter(pk=job.pk).update(finished_at=now - timedelta(hours=ago_h))
    until = (now - timedelta(minutes=30)).isoformat()
    assert alice.post(ALL, {"until": until}).json() == {"dismissed": 1}
    assert alice.post(ALL, {}).json() == {"dismissed": 1}
    assert alice.post(ALL, {}).json() == {"dismissed": 0}
    assert alice.delete(ALL).status_code == 204
    assert alice.post(ALL, {}).json() == {"dismissed": 2}


def test_the_newest_dismissal_comes_first_and_a_repeat_moves_none(people: People, alice: Api) -> None:
    first, other = (factories.job(owner=people.alice, state=State.FAILED) for _ in range(2))
    for job in (first, other, first):
        assert alice.put(f"/jobs/{job.pk}/dismissal", {}).status_code == 200
    listed = alice.get(ALL).json()["items"]
    assert [row["job"] for row in listed] == [other.pk, first.pk]
    assert listed[0]["dismissed_at"] >= listed[1]["dismissed_at"]


def test_a_token_that_can_only_read_dismisses_nothing(people: People) -> None:
    job = factories.job(owner=people.alice, state=State.FAILED)
    _, secret = Token.objects.create(user=people.alice, name="reads", role_ceiling=Role.VIEWER)
    reader = Api(secret=secret)
    answers = (
        reader.put(f"/jobs/{job.pk}/dismissal", {}),
        reader.delete(f"/jobs/{job.pk}/dismissal"),
        reader.post(ALL, {}),
        reader.delete(ALL),
    )
    assert [answer.status_code for answer in answers] == [403] * 4
    assert not Dismissal.objects.exists()
