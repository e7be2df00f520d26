"""What a platform admin sees of jobs, and does to them, is in the audit log of their tenant."""

from __future__ import annotations

import pytest

from jobs.states import State
from tenants.models import Membership
from tenants.roles import Role
from tests import factories
from tests.jobs.conftest import People
from tests.portal.api.conftest import Api, submit

pytestmark = pytest.mark.usefixtures("installation")


def audit_of(caller: Api, tenant: str) -> list[tuple[str, str, str]]:
    """What a manager reads of a platform admin's deeds, oldest first."""
    items = caller.get(f"/tenants/{tenant}/audit").json()["items"]
    return [(each["action"], each["target"], each["reason"]) for each in items if each["actor"] == "admin"][
        ::-1
    ]


def test_managers_of_every_tenant_shown_see_that_an_admin_listed_their_jobs(
    admin: Api, dave: Api, alice: Api, people: People
) -> None:
    submit(alice)
    factories.job(of=people.nlp, owner=people.bob)
    erin = Api(factories.member(people.nlp, "erin", Role.MANAGER))
    assert len(admin.get("/jobs", X_Access_Reason="asked by alice").json()["items"]) == 2
    admin.get("/jobs", X_Access_Reason="asked by alice")  # the same looking again is no entry of its own
    assert audit_of(dave, "vision-lab") == [("job.list", "vision-lab", "asked by alice")]
    assert audit_of(erin, "nlp-research") == [("job.list", "nlp-research", "asked by alice")]


def test_an_admins_list_leaves_nothing_where_nothing_of_the_tenant_was_shown(
    admin: Api, dave: Api, people: People
) -> None:
    factories.job(of=people.nlp, owner=people.bob)
    admin.get("/jobs")
    assert audit_of(dave, "vision-lab") == []
    assert admin.get("/jobs?tenant=vision-lab").json()["items"] == []  # but the read was recorded
    assert audit_of(dave, "vision-lab") == [("job.list", "vision-lab", "")]


def test_managers_see_what_an_admin_did_to_their_jobs(admin: Api, dave: Api, people: People) -> None:
    waiting = factories.job(owner=people.alice, state=State.PROCESSING).pk
    over = factories.job(owner=people.alice, state=State.COMPLETED).pk
    assert admin.patch(f"/jobs/{waiting}", {"tags": ["looked-at"]}).status_code == 200
    assert admin.patch(f"/jobs/{waiting}", {"tags": ["looked-at"]}).status_code == 200  # changes nothing
    assert admin.post(f"/jobs/{waiting}/halt", X_Access_Reason="asked by dave\x07").status_code == 202
    assert admin.post(f"/jobs/{waiting}/resume?access_reason=done").status_code == 202
    assert admin.post(f"/jobs/{waiting}/cancel").status_code == 202
    assert admin.post(f"/jobs/{waiting}/cancel").status_code == 202  # requested already
    assert admin.delete(f"/jobs/{over}").status_code == 204
    assert admin.post(f"/jobs/{over}/halt").status_code == 404
    assert audit_of(dave, "vision-lab") == [
        ("job.edit", waiting, ""),
        ("job.halt", waiting, "asked by dave"),
        ("job.resume", waiting, "done"),
        ("job.cancel", waiting, ""),
        ("job.delete", over, ""),
    ]


def test_what_a_member_or_an_admin_among_them_does_is_in_the_job_s_history_alone(
    dave: Api, admin: Api, people: People
) -> None:
    Membership.objects.create(user=people.admin, tenant=people.vision, role=Role.RESEARCHER)
    job = factories.job(owner=people.alice, state=State.PROCESSING).pk
    assert dave.patch(f"/jobs/{job}", {"tags": ["a"]}).status_code == 200
    assert admin.patch(f"/jobs/{job}", {"tags": ["b"]}).status_code == 200
    assert dave.post(f"/jobs/{job}/halt").status_code == 202
    assert admin.get("/jobs").status_code == 200
    assert dave.get("/tenants/vision-lab/audit").json()["items"] == []
