"""One job shared with one person outside: seen or operated as granted, not passed on, ended at once."""

from __future__ import annotations

from urllib.parse import urljoin

import pytest

from jobs.models import Job
from jobs.states import State
from tenants.models import AuditEntry, GroupMapping, Membership
from tenants.services import groups
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


def test_a_member_is_refused_by_name(alice: Api, job: Job) -> None:
    answer = alice.post(f"/jobs/{job.pk}/shares", {"username": "carol", "permission": "view"})
    assert (answer.status_code, answer.json()["errors"][0]["code"]) == (400, "already_member")


def test_sharing_does_not_reveal_which_users_exist(alice: Api, job: Job, people: People) -> None:
    factories.user("gone", is_active=False)
    factories.user("nlp-research.ci", is_service_account=True)
    names = ("bob", "gone", "nlp-research.ci", "no-such-user")
    answered = set()
    for name in names:
        made = alice.post(f"/jobs/{job.pk}/shares", {"username": name, "permission": "view"})
        listed = alice.get(f"/jobs/{job.pk}/shares").content.decode()
        ended = alice.delete(f"/jobs/{job.pk}/shares/{name}")
        texts = (made.content.decode(), listed, ended.content.decode())
        answered.add((made.status_code, *(text.replace(name, "NAME") for text in texts), ended.status_code))
    assert len(answered) == 1


def test_a_user_who_is_made_later_gets_no_share_of_before(alice: Api, job: Job) -> None:
    alice.post(f"/jobs/{job.pk}/shares", {"username": "late", "permission": "view"})
    assert Api(factories.user("late")).get(f"/jobs/{job.pk}").status_code == 404


def test_shares_end_with_the_membership_of_who_granted_them(
    alice: Api, bob: Api, dave: Api, job: Job
) -> None:
    alice.post(f"/jobs/{job.pk}/shares", {"username": "bob", "permission": "operate"})
    assert dave.delete("/tenants/vision-lab/members/alice").status_code == 204
    assert bob.get(f"/jobs/{job.pk}").status_code == 404
    assert dave.get(f"/jobs/{job.pk}/shares").json()["items"] == []
    because = AuditEntry.objects.get(action="job.unshare").details["because"]
    assert because == "the membership of alice ended"


def test_shares_end_with_the_account_of_who_granted_them(
    alice: Api, bob: Api, dave: Api, admin: Api, job: Job
) -> None:
    alice.post(f"/jobs/{job.pk}/shares", {"username": "bob", "permission": "operate"})
    assert admin.post("/users/alice/disable").status_code == 200
    assert bob.get(f"/jobs/{job.pk}").status_code == 404
    assert dave.get(f"/jobs/{job.pk}/shares").json()["items"] == []
    entry = AuditEntry.objects.get(action="job.unshare")
    assert (entry.target, entry.details) == (job.pk, {"username": "bob", "because": "alice was disabled"})
    admin.post("/users/alice/enable")
    assert bob.get(f"/jobs/{job.pk}").status_code == 404, "it does not come back"


def test_shares_end_with_the_role_that_granted_them(
    alice: Api, bob: Api, dave: Api, admin: Api, people: People, job: Job
) -> None:
    managed = factories.job(owner=people.dave, state=State.PROCESSING)
    Membership.objects.filter(user=people.alice).update(role="manager")
    for each in (job, managed):
        alice.post(f"/jobs/{each.pk}/shares", {"username": "bob", "permission": "view"})
    changed = dave.patch("/tenants/vision-lab/members/alice", {"role": "researcher"})
    assert changed.status_code == 200, changed.json()
    assert bob.get(f"/jobs/{managed.pk}").status_code == 404, "of others only a manager shares"
    assert bob.get(f"/jobs/{job.pk}").status_code == 200, "a researcher shares their own"
    dave.patch("/tenants/vision-lab/members/alice", {"role": "viewer"})
    assert bob.get(f"/jobs/{job.pk}").status_code == 404
    said = AuditEntry.objects.filter(action="job.unshare").values_list("details__because", flat=True)
    assert set(said) == {"the role of alice in vision-lab changed"}


def test_shares_end_with_the_role_of_a_group(alice: Api, bob: Api, people: People, job: Job) -> None:
    alice.post(f"/jobs/{job.pk}/shares", {"username": "bob", "permission": "view"})
    Membership.objects.filter(user=people.alice).update(group="staff")
    GroupMapping.objects.create(group="staff", tenant=people.vision, role="viewer")
    groups.apply_groups(people.alice, ["staff"])
    assert bob.get(f"/jobs/{job.pk}").status_code == 404


def test_what_a_platform_admin_shared_ends_with_the_role(
    admin: Api, bob: Api, dave: Api, people: People, job: Job
) -> None:
    second = factories.user("second", is_superuser=True)
    second.set_password("one that signs in")
    second.save()
    admin.post(f"/jobs/{job.pk}/shares", {"username": "bob", "permission": "view"})
    assert bob.get(f"/jobs/{job.pk}").status_code == 200
    changed = Api(second).patch("/users/admin", {"is_platform_admin": False})
    assert changed.status_code == 200, changed.json()
    assert bob.get(f"/jobs/{job.pk}").status_code == 404
    assert (
        AuditEntry.objects.get(action="job.unshare").details["because"]
        == "admin is no platform admin any more"
    )


def test_shares_of_others_stay_when_a_member_leaves(dave: Api, bob: Api, job: Job) -> None:
    dave.post(f"/jobs/{job.pk}/shares", {"username": "bob", "permission": "view"})
    dave.delete("/tenants/vision-lab/members/alice")
    assert bob.get(f"/jobs/{job.pk}").status_code == 200


def test_shares_end_with_the_guests_last_membership(alice: Api, bob: Api, job: Job, people: People) -> None:
    alice.post(f"/jobs/{job.pk}/shares", {"username": "bob", "permission": "view"})
    second = factories.tenant("speech")
    Membership.objects.create(user=people.bob, tenant=second, role="viewer")
    Membership.objects.get(user=people.bob, tenant=second).delete()
    assert bob.get(f"/jobs/{job.pk}").status_code == 200
    Membership.objects.filter(user=people.bob).delete()
    assert bob.get(f"/jobs/{job.pk}").status_code == 404


def test_who_leaves_the_tenant_keeps_no_share_of_before(alice: Api, bob: Api, dave: Api, job: Job) -> None:
    alice.post(f"/jobs/{job.pk}/shares", {"username": "bob", "permission": "view"})
    members = "/api/v1/tenants/vision-lab/members"
    made = dave.post("/tenants/vision-lab/members", {"username": "bob", "role": "viewer"})
    assert urljoin(members, made["Location"]) == f"{members}/bob"
    assert bob.get(f"/jobs/{job.pk}").status_code == 200
    dave.delete("/tenants/vision-lab/members/bob")
    assert bob.get(f"/jobs/{job.pk}").status_code == 404


def test_sharing_leaves_an_audit_row(alice: Api, dave: Api, job: Job) -> None:
    alice.post(f"/jobs/{job.pk}/shares", {"username": "bob", "permission": "view"})
    assert AuditEntry.objects.get(action="job.share").details == {"username": "bob", "permission": "view"}
    assert dave.get("/tenants/vision-lab/audit").json()["items"][0]["action"] == "job.share"
