"""Admins invite, reset, disable and sign out users; users set a password by a link and end sessions of their own."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.test import Client

from portal.pages import welcome
from tenants.models import AuditEntry, Token, User
from tenants.services.users import user_reset
from tests import factories
from tests.markup import markup
from tests.portal.pages.conftest import SignIn

pytestmark = pytest.mark.django_db
USERS = "/admin-console/users"
NEW = "a brand new passphrase"
SECRET = re.compile(r"once-(?:[0-9a-z]{4}-){6}[0-9a-z]{4}")


@pytest.fixture
def console(signed_in: SignIn, admin: User) -> Client:
    return signed_in(admin)


def invite(console: Client, **values: str) -> str:
    """Create erin; the one-time password that the next page shows."""
    made = console.post("/admin-console/new-user", {"username": "erin"} | values)
    assert made.headers["Location"] == f"{USERS}/erin"
    return secret_of(console)


def secret_of(console: Client) -> str:
    page = markup(console.get(f"{USERS}/erin"))
    assert SECRET.search(page)
    assert SECRET.search(markup(console.get(f"{USERS}/erin"))) is None, "shown twice"
    return SECRET.search(page)[0]  # type: ignore[index]


def log_in(client: Client, password: str, name: str = "erin", **more: str) -> Any:
    return client.post("/login", {"username": name, "password": password} | more)


def set_password(client: Client, password: str = NEW) -> Any:
    return client.post("/welcome/password", {"new_password1": password, "new_password2": password})


def test_an_invited_user_sets_a_password_and_signs_in(console: Client) -> None:
    secret = invite(console, email="erin@example.org")
    client = Client()
    assert client.get("/welcome").status_code == 200
    assert log_in(client, secret).headers["Location"] == "/welcome/password"
    assert client.get("/me").status_code == 302, "signed in without a password of their own"
    assert markup(client.get("/welcome/password")).count("erin") >= 1
    done = set_password(client)
    assert done.headers["Location"] == "/login"
    assert "Password set. Sign in with it." in markup(client.get("/login"))
    assert log_in(client, NEW).headers["Location"] == "/"
    assert client.get("/me").status_code == 200
    actions = list(AuditEntry.objects.order_by("pk").values_list("action", "address"))
    assert actions == [
        (action, "127.0.0.1") for action in ("user.create", "login.one_time", "password.set", "login.success")
    ]


def test_a_reset_between_sign_in_and_answer_gives_the_new_one_time_password_to_no_one_else(
    console: Client, monkeypatch: pytest.MonkeyPatch, admin: User
) -> None:
    first, begin, issued = invite(console), welcome.begin, []

    def late(*given: Any) -> Any:
        issued.append(user_reset(user=admin, username="erin").secret)
        return begin(*given)

    other, erin = Client(), Client()
    with monkeypatch.context() as patch:
        patch.setattr(welcome, "begin", late)
        assert log_in(other, first).status_code == 302
    assert log_in(erin, issued[0]).status_code == 302
    assert set_password(other).headers["Location"] == "/login"
    assert not User.objects.get(username="erin").has_usable_password()
    set_password(erin)
    assert User.objects.get(username="erin").check_password(NEW)


def test_a_bad_password_is_refused_and_may_be_corrected(console: Client) -> None:
    client = Client()
    log_in(client, invite(console))
    short = set_password(client, "short")
    assert short.status_code == 422
    assert "at least 12 characters" in markup(short)
    assert set_password(client).status_code == 302
    assert set_password(client, NEW + "!").headers["Location"] == "/login"
    assert log_in(client, NEW).headers["Location"] == "/"


def test_a_one_time_password_that_was_used_reads_like_a_wrong_one(console: Client) -> None:
    secret = invite(console)
    assert log_in(Client(), secret).status_code == 302
    used, wrong = log_in(Client(), secret, invited="yes"), log_in(Client(), "once-0000-0000-0000-0000")
    assert (
        used.context["form"].non_field_errors()
        == wrong.context["form"].non_field_errors()
        == ["Incorrect username or password."]
    )
    assert "works once and expires" in markup(used)


def test_no_one_without_a_one_time_password_sets_one(console: Client) -> None:
    invite(console)
    assert Client().get("/welcome/password").headers["Location"] == "/login"
    assert set_password(Client()).headers["Location"] == "/login"
    assert not User.objects.get(username="erin").has_usable_password()


def test_a_repeated_form_makes_one_user_and_shows_the_same_password(console: Client) -> None:
    values = {"username": "erin", "form_key": "k" * 24}
    console.post("/admin-console/new-user", values)
    first = secret_of(console)
    console.post("/admin-console/new-user", values)
    assert secret_of(console) == first
    assert AuditEntry.objects.filter(action="user.create").count() == 1


def test_wrong_fields_of_a_new_user_are_marked_and_keep_what_was_typed(console: Client) -> None:
    answer = console.post("/admin-console/new-user", {"username": "no spaces", "email": "nowhere@"})
    assert answer.status_code == 422
    assert set(answer.context["problems"]) == {"username", "email"}
    assert 'value="nowhere@"' in markup(answer)
    assert not User.objects.filter(email="nowhere@").exists()


def test_an_admin_resets_disables_and_enables(console: Client, alice: User) -> None:
    own = Client()
    own.force_login(alice)
    assert console.post(f"{USERS}/alice/reset").status_code == 302
    assert own.get("/me").status_code == 302
    assert SECRET.search(markup(console.get(f"{USERS}/alice")))
    assert "Disabled" in markup(console.post(f"{USERS}/alice/disable", follow=True))
    alice.refresh_from_db()
    assert not alice.is_active
    console.post(f"{USERS}/alice/enable")
    alice.refresh_from_db()
    assert alice.is_active
    assert console.post(f"{USERS}/alice/destroy").status_code == 404
    assert console.post(f"{USERS}/no-such-user/reset").status_code == 404


def test_the_last_admin_is_neither_demoted_nor_disabled(console: Client, admin: User) -> None:
    refused = console.post(f"{USERS}/admin/edit", {"email": "a@example.org"})
    assert refused.status_code == 422
    assert "at least one platform admin" in markup(refused)
    page = console.post(f"{USERS}/admin/disable", follow=True)
    assert "at least one platform admin" in markup(page)
    admin.refresh_from_db()
    assert admin.is_platform_admin
    assert admin.email == "admin@example.org"


def test_an_admin_ends_sessions_of_a_user(console: Client, alice: User) -> None:
    clients = [Client(), Client()]
    for client in clients:
        client.force_login(alice)
    Token.objects.create(user=alice, name="laptop")
    page = console.get(f"{USERS}/alice")
    one = page.context["sessions"][0]["session"].id
    console.post(f"{USERS}/alice/sessions", {"session": one})
    assert sorted(client.get("/me").status_code for client in clients) == [200, 302]
    assert console.post(f"{USERS}/alice/sessions", {"session": one}).status_code == 404
    done = console.post(f"{USERS}/alice/sessions", {"tokens": "yes"}, follow=True)
    assert "1 session ended, 1 API token revoked." in markup(done)
    assert {client.get("/me").status_code for client in clients} == {302}
    assert console.get("/me").status_code == 200


def test_a_user_ends_one_of_their_sessions_or_all_others(alice: User) -> None:
    here, there, phone = Client(), Client(headers={"User-Agent": "Mozilla/5.0 (iPhone) Safari/604"}), Client()
    for client in (here, there, phone):
        client.force_login(alice)
    there.get("/login")
    rows = here.get("/me").context["sessions"]
    assert [row["session"].current for row in rows].count(True) == 1
    other = next(row["session"].id for row in rows if not row["session"].current)
    assert "Session ended." in markup(here.post(f"/me/sessions/{other}/end", follow=True))
    Token.objects.create(user=alice, name="laptop")
    said = markup(here.post("/me/sign-out-others", follow=True))
    assert "1 other session ended." in said
    assert Token.objects.filter(user=alice).exists()
    assert "revokes" in markup(here.get("/me")), "said before the click"
    said = markup(here.post("/me/sign-out-others", {"tokens": "yes"}, follow=True))
    assert "0 other sessions ended, 1 API token revoked." in said
    assert [client.get("/me").status_code for client in (here, there, phone)] == [200, 302, 302]
    assert not Token.objects.filter(user=alice).exists()


def test_a_changed_password_leaves_one_session(alice: User) -> None:
    here, there = Client(), Client()
    here.force_login(alice)
    there.force_login(alice)
    form = {"old_password": factories.PASSWORD, "new_password1": NEW, "new_password2": NEW}
    here.post("/me/password", form)
    assert [row["session"].current for row in here.get("/me").context["sessions"]] == [True]
    assert there.get("/me").status_code == 302
