"""Recent security activity on the profile: what happened to the account, with or without a mail server."""

from __future__ import annotations

import pytest
from django.conf import LazySettings
from django.test import Client

from tenants import audit, notices
from tenants.models import User
from tests import factories
from tests.factories import PASSWORD
from tests.markup import markup

pytestmark = pytest.mark.django_db

FIREFOX = "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"
CHROME = "Mozilla/5.0 (Windows NT 10.0) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/140.0.0.0 Safari/537.36"


@pytest.fixture
def alice() -> User:
    return factories.member(factories.tenant("vision"), "alice", password=PASSWORD)


def card(client: Client) -> str:
    return markup(client.get("/me")).split('id="activity"')[1].split("</section>")[0]


def activity(client: Client) -> str:
    return card(client).split('class="need"')[0]


def mail_line(client: Client) -> str:
    return card(client).split('class="need"')[1]


def sign_in(address: str = "192.0.2.7", agent: str = FIREFOX, password: str = PASSWORD) -> Client:
    client = Client(REMOTE_ADDR=address, HTTP_USER_AGENT=agent)
    client.post("/login", {"username": "alice", "password": password})
    return client


def test_it_says_that_nothing_happened(alice: User, client: Client) -> None:
    client.force_login(alice)
    assert "Nothing" in activity(client)


def test_a_changed_password_is_there_for_the_one_who_did_not_change_it(alice: User) -> None:
    stolen, own = sign_in(), sign_in()
    new = "purple otters sing low"
    stolen.post("/me/password", {"old_password": PASSWORD, "new_password1": new, "new_password2": new})
    assert own.get("/me").status_code == 302, "signed out"
    own = sign_in(password=new)
    assert "Your password was changed." in activity(own)
    assert "192.0.2.7" in activity(own)


def test_a_sign_in_from_elsewhere_is_there_with_its_browser(alice: User) -> None:
    own = sign_in()
    assert "Nothing" in activity(own)
    sign_in("203.0.113.9", CHROME)
    shown = activity(own)
    assert "network or browser not seen" in shown
    assert "203.0.113.9" in shown
    assert "Chrome on Windows" in shown


def test_failed_attempts_are_there_and_of_no_one_else(alice: User) -> None:
    bob = factories.member(factories.tenant("speech"), "bob", password=PASSWORD)
    own, other = sign_in(), Client()
    other.force_login(bob)
    for n in range(8):
        sign_in(f"198.51.100.{n}", password="wrong password here")
    notices.watch()
    assert "attempts to sign in to your account failed" in activity(own)
    assert "Nothing" in activity(other)


def test_a_name_with_markup_is_text(alice: User, client: Client) -> None:
    client.force_login(alice)
    audit.record(actor=alice, action="token.create", target="alice", details={"name": "<b>x</b>"})
    assert "&lt;b&gt;x" in client.get("/me").content.decode()


def test_it_says_where_mails_go(alice: User, client: Client, settings: LazySettings) -> None:
    client.force_login(alice)
    assert "alice@example.org" not in mail_line(client)
    settings.LUTHIER_SENDS_MAIL = True
    assert "alice@example.org" in mail_line(client)
    User.objects.filter(pk=alice.pk).update(email="")
    assert "no e-mail address" in mail_line(client)
