"""Error pages: in the portal's design, with a link onward, the same for foreign and missing things."""

from __future__ import annotations

import re

import pytest
from django.http import HttpRequest
from django.test import Client

from portal.pages import confirm
from tenants.models import Tenant, User
from tenants.services.sessions import sessions_end
from tests import factories
from tests.markup import markup
from tests.portal.pages.conftest import SignIn

pytestmark = pytest.mark.django_db


def test_a_refusal_names_the_role_the_helper_and_what_was_asked(
    signed_in: SignIn, lab: Tenant, carol: User, dave: User
) -> None:
    answer = signed_in(carol).post("/t/vision-lab/members/add", {"username": "x", "role": "viewer"})
    page = markup(answer)
    assert answer.status_code == 403
    for text in (
        "requires the role manager in vision-lab",
        "<b>dave</b>",
        "POST /t/vision-lab/members/add",
        "viewer, since",
    ):
        assert text in page


def test_a_viewer_who_opens_the_form_of_a_new_job_sees_who_can_help(
    signed_in: SignIn, lab: Tenant, alice: User, carol: User, dave: User
) -> None:
    answer = signed_in(carol).get("/t/vision-lab/jobs/new")
    page = markup(answer)
    assert answer.status_code == 403
    for text in ("requires the role researcher or higher", "<b>dave</b>", "viewer, since"):
        assert text in page
    stranger = factories.member(factories.tenant("nlp-research"), "bob")
    assert signed_in(stranger).get("/t/vision-lab/jobs/new").status_code == 404


def test_a_foreign_tenant_and_a_missing_one_read_alike(signed_in: SignIn, lab: Tenant, alice: User) -> None:
    factories.tenant("nlp-research")
    client = signed_in(alice)
    foreign, missing = (client.get(f"/t/{slug}/members") for slug in ("nlp-research", "never-was"))
    assert foreign.status_code == missing.status_code == 404
    assert foreign.content == missing.content
    assert f"Jobs of {lab.name}" in markup(foreign)


def test_a_missing_page_has_a_way_onward_for_strangers_too() -> None:
    page = Client().get("/never-was")
    assert page.status_code == 404
    assert "Page not found" in markup(page)


def test_an_old_form_is_refused_with_the_portal_s_error_page(alice: User) -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(alice)
    answer = client.post("/me/sign-out-others")
    assert answer.status_code == 403
    assert "Your session changed" in markup(answer)


def test_who_is_signed_out_elsewhere_in_the_middle_of_a_request_reads_so(
    signed_in: SignIn, alice: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was sent may have been done: "Bad request" would have it sent again."""
    client, own_page = signed_in(alice), confirm._own_page

    def meanwhile(request: HttpRequest, url: str) -> str:
        sessions_end(user=alice, owner=alice)
        return own_page(request, url)

    monkeypatch.setattr(confirm, "_own_page", meanwhile)
    answer = client.get("/me/confirm?next=/me")
    assert answer.status_code == 400
    assert "Your session has ended" in markup(answer)
    assert "What you sent may have been done" in markup(answer)
    assert client.get("/me")["Location"] == "/login?next=/me"


def test_a_fault_gives_an_id_and_no_trace(
    signed_in: SignIn, alice: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("secret detail")

    monkeypatch.setattr("portal.pages.members._rows", fail)
    client = signed_in(alice)
    client.raise_request_exception = False
    answer = client.get("/t/vision-lab/members")
    page = markup(answer)
    assert answer.status_code == 500
    assert re.search(r"Request id</dt><dd class=\"code\">[0-9a-f]{32}", page)
    assert "secret detail" not in page


@pytest.mark.parametrize("path", ["/t/vision-lab/members/add", "/me/password", "/me/appearance"])
def test_a_forms_address_opened_like_a_page_says_so(signed_in: SignIn, alice: User, path: str) -> None:
    answer = signed_in(alice).get(path)
    assert answer.status_code == 405
    assert answer.headers["Allow"] == "POST"
    assert "only accepts form submissions" in markup(answer)


@pytest.mark.parametrize(
    "path",
    [
        "/t/vision-lab/jobs?q=%00",
        "/t/vision-lab/jobs?owner=%00",
        "/t/vision-lab/jobs?tag=%00",
        "/t/vision-lab/jobs?gpu_type=a%00b",
        "/admin-console/users?q=%00",
        "/admin-console/quota-history?tenant=%00&gpu_type=%00",
    ],
)
def test_a_nul_in_an_address_is_refused_in_words(
    signed_in: SignIn, lab: Tenant, admin: User, path: str
) -> None:
    answer = signed_in(admin).get(path)
    assert answer.status_code == 400
    assert "NUL character" in markup(answer)


@pytest.mark.parametrize(
    ("path", "form"),
    [
        ("/login", {"username": "a\0b", "password": "x"}),
        ("/admin-console/tenants/new", {"slug": "a\0", "name": "x", "reason": "x"}),
        ("/t/vision-lab/members/add", {"username": "a\0", "role": "viewer"}),
        ("/t/vision-lab/members/a%00b", {"role": "viewer"}),
        ("/t/vision-lab/tokens/accounts/a%00b/close", {}),
    ],
)
def test_a_nul_in_a_form_is_refused_in_words(
    signed_in: SignIn, lab: Tenant, admin: User, path: str, form: dict[str, str]
) -> None:
    answer = (Client() if path == "/login" else signed_in(admin)).post(path, form)
    assert answer.status_code == 400
    assert "NUL character" in markup(answer)
