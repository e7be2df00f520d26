"""Other members see a member's e-mail address once they have accepted the membership, in pages and by REST."""

from __future__ import annotations

import pytest

from tenants.models import AuditEntry, Tenant, User
from tests import factories
from tests.markup import markup
from tests.portal.api.conftest import Api
from tests.portal.pages.conftest import SignIn

pytestmark = pytest.mark.django_db
ADDRESS = "erin@example.org"


def test_an_address_is_shown_after_the_member_accepted(signed_in: SignIn, lab: Tenant, dave: User) -> None:
    erin = factories.user("erin")
    manager, member = signed_in(dave), signed_in(erin)
    manager.post("/t/vision-lab/members/add", {"username": "erin", "role": "viewer"})
    assert ADDRESS not in markup(manager.get("/t/vision-lab/members"))
    assert ADDRESS not in Api(dave).get("/tenants/vision-lab/members").content.decode()
    assert "until you accept" in " ".join(markup(member.get("/me")).split())
    accepted = markup(member.post("/me/memberships/vision-lab/accept", follow=True))
    assert "now see your e-mail address" in accepted
    assert "until you accept" not in " ".join(accepted.split())
    assert ADDRESS in markup(manager.get("/t/vision-lab/members"))
    assert ADDRESS in Api(dave).get("/tenants/vision-lab/members").content.decode()
    assert AuditEntry.objects.get(action="member.accept").actor == erin


def test_a_member_accepts_by_rest_and_once(lab: Tenant, dave: User) -> None:
    erin = factories.user("erin")
    Api(dave).post("/tenants/vision-lab/members", {"username": "erin", "role": "viewer"})
    for _ in range(2):
        assert Api(erin).post("/me/memberships/vision-lab/accept").json()["email"] == ADDRESS
    assert AuditEntry.objects.filter(action="member.accept").count() == 1


def test_no_one_accepts_for_another_or_where_they_are_no_member(signed_in: SignIn, lab: Tenant) -> None:
    stranger = factories.user("bob")
    assert signed_in(stranger).post("/me/memberships/vision-lab/accept").status_code == 404
    assert Api(stranger).post("/me/memberships/vision-lab/accept").status_code == 404
