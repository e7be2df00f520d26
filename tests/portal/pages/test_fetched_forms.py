"""Forms that a script submits: it learns where to go next or what was wrong, and acts for the page's user alone."""

from __future__ import annotations

import pytest
from django.test import Client

from tenants.models import Membership, User
from tests.markup import markup
from tests.portal.pages.conftest import SignIn

pytestmark = pytest.mark.django_db
ADD = "/t/vision-lab/members/add"


def fetched(who: str) -> dict[str, str]:
    return {"X-Luthier-Form": who}


def test_a_script_learns_where_to_go_next(signed_in: SignIn, dave: User, carol: User) -> None:
    client = signed_in(dave)
    answer = client.post("/t/vision-lab/members/carol", {"role": "manager"}, headers=fetched("dave"))
    assert (answer.status_code, answer.headers["Location"]) == (204, "/t/vision-lab/members")
    assert not answer.content
    assert Membership.objects.get(user=carol).role == "manager"
    assert "carol is now a manager" in markup(client.get("/t/vision-lab/members")), "the message is not lost"


def test_a_script_learns_what_was_wrong_and_stays(signed_in: SignIn, dave: User) -> None:
    client = signed_in(dave)
    answer = client.post("/t/vision-lab/members/dave", {"remove": "yes"}, headers=fetched("dave"))
    assert (answer.status_code, answer.headers["Content-Type"]) == (422, "text/plain")
    assert "at least one manager" in answer.content.decode()


def test_without_scripts_a_form_redirects_as_before(signed_in: SignIn, dave: User) -> None:
    answer = signed_in(dave).post("/t/vision-lab/members/dave", {"remove": "yes"})
    assert answer.status_code == 302


def test_an_ended_session_leads_to_the_login_page(dave: User) -> None:
    answer = Client().post(ADD, {"username": "carol"}, headers=fetched("dave"))
    assert answer.status_code == 204
    assert answer.headers["Location"].startswith("/login?next=")


def test_a_page_does_not_act_for_another_user(signed_in: SignIn, dave: User, carol: User) -> None:
    answer = signed_in(dave).post(
        "/t/vision-lab/members/carol", {"role": "manager"}, headers=fetched("alice")
    )
    assert answer.status_code == 409
    assert answer.content.decode() == "You are now signed in as dave. Sign in as alice to submit this form."
    assert Membership.objects.get(user=carol).role == "viewer"
