"""One job shared with one person outside: seen or operated as granted, not passed on, ended at once."""

from __future__ import annotations

import pytest

from jobs.models import Job
from jobs.states import State
from tenants.models import AuditEntry
from tests import factories
from tests.jobs.conftest import People
from tests.portal.api.conftest import Api


@pytest.fixture
def job(people: People) -> Job:
    return factories.job(owner=people.alice, state=State.PROCESSING)


def test_a_guest_sees_a_shared_job_until_the_share_ends(alice: Api, bob: Api, job: Job) -> None:
    assert bob.get(f"/jobs/{job.pk}").status_code == 404
    made = alice.post(f"/jobs/{job.pk}/shares", {"username": "bob", "permission": "view"})
    assert (made.status_code, made.json()) == (201, {"username": "bob", "permission": "view"})
    assert bob.get(f"/jobs/{job.pk}/logs").status_code == 200
    assert bob.post(f"/jobs/{job.pk}/halt").status_code == 403
    assert alice.delete(f"/jobs/{job.pk}/shares/bob").status_code == 204
    assert bob.get(f"/jobs/{job.pk}").status_code == 404


def test_an_entrusted_job_may_be_halted(alice: Api, bob: Api, job: Job) -> None:
    alice.post(f"/jobs/{job.pk}/shares", {"username": "bob", "permission": "operate"})
    assert bob.post(f"/jobs/{job.pk}/halt").status_code == 202
    alice.post(f"/jobs/{job.pk}/shares", {"username": "bob", "permission": "view"})
    assert bob.post(f"/jobs/{job.pk}/cancel").status_code == 403
    assert alice.get(f"/jobs/{job.pk}/shares").json()["items"] == [{"username": "bob", "permission": "view"}]


def test_a_guest_passes_nothing_on(alice: Api, bob: Api, job: Job) -> None:
    alice.post(f"/jobs/{job.pk}/shares", {"username": "bob", "permission": "operate"})
    answer = bob.post(f"/jobs/{job.pk}/shares", {"username": "admin", "permission": "view"})
    assert answer.status_code == 403


def test_a_token_bound_to_another_tenant_carries_no_share(alice: Api, bob: Api, job: Job) -> None:
    alice.post(f"/jobs/{job.pk}/shares", {"username": "bob", "permission": "view"})
    secret = bob.post("/me/tokens", {"name": "x", "tenant": "nlp-research"}).json()["secret"]
    assert Api(secret=secret).get(f"/jobs/{job.pk}").status_code == 404


def test_members_and_strangers_to_the_installation_are_refused_by_name(alice: Api, job: Job) -> None:
    for username, code in (("carol", "already_member"), ("nobody", "user_not_found")):
        answer = alice.post(f"/jobs/{job.pk}/shares", {"username": username, "permission": "view"})
        assert (answer.status_code, answer.json()["errors"][0]["code"]) == (400, code)


def test_sharing_leaves_an_audit_row(alice: Api, dave: Api, job: Job) -> None:
    alice.post(f"/jobs/{job.pk}/shares", {"username": "bob", "permission": "view"})
    assert AuditEntry.objects.get(action="job.share").details == {"username": "bob", "permission": "view"}
    assert dave.get("/tenants/vision-lab/audit").json()["items"][0]["action"] == "job.share"
