"""The login page: what it says, what it hides, how long it refuses, and what it sets."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from axes.models import AccessAttempt
from django.conf import LazySettings
from django.db.models import F
from django.test import Client

from tenants.models import User
from tests import factories
from tests.markup import markup

pytestmark = pytest.mark.django_db


def sign_in(client: Client, name: str, password: str, **more: str) -> object:
    return client.post("/login", {"username": name, "password": password} | more)


def test_the_session_gets_a_new_key_at_login(alice: User) -> None:
    client = Client()
    client.get("/login")
    session = client.session
    session["planted"] = "yes"
    session.save()
    client.cookies["luthier"] = session.session_key or ""
    sign_in(client, "alice", factories.PASSWORD)
    assert client.get("/me").status_code == 200
    assert client.session.session_key != session.session_key


@pytest.mark.parametrize(
    "target", ["https://evil.example/", "//evil.example/x", "javascript:alert(1)", "/\\\\evil.example"]
)
def test_the_login_does_not_redirect_to_another_site(alice: User, target: str) -> None:
    client = Client()
    assert "evil" not in markup(client.get("/login", {"next": target}))
    answer = client.post("/login", {"username": "alice", "password": factories.PASSWORD, "next": target})
    assert answer.headers["Location"] == "/"


def test_a_wrong_password_and_an_unknown_name_read_alike(alice: User) -> None:
    pages = []
    for name in ("alice", "nobody"):
        answer = Client().post("/login", {"username": name, "password": "wrong"})
        assert answer.status_code == 200
        pages.append(answer.context["form"].non_field_errors())
    assert pages[0] == pages[1] == ["Incorrect username or password."]


def test_after_a_wrong_password_one_types_the_next_at_once(alice: User) -> None:
    page = markup(Client().post("/login", {"username": "alice", "password": "wrong"}))
    (field,) = re.findall(r"<input[^>]* name=\"password\"[^>]*>", page)
    assert " autofocus" in field
    assert " autofocus" not in markup(Client().get("/login"))


def test_service_accounts_and_closed_accounts_read_as_unknown(alice: User) -> None:
    User.objects.filter(pk=alice.pk).update(is_active=False)
    answer = Client().post("/login", {"username": "alice", "password": factories.PASSWORD})
    assert answer.context["form"].non_field_errors() == ["Incorrect username or password."]


def test_the_wait_is_shown_in_advance_counts_down_and_ends(alice: User, settings: LazySettings) -> None:
    settings.AXES_ENABLED = True
    settings.AXES_FAILURE_LIMIT = 4
    client = Client()
    for left in (3, 2, 1):
        page = markup(client.post("/login", {"username": "alice", "password": "wrong"}))
        assert f"{left} attempt{'s' * (left != 1)} left, then a wait of 5 min" in page
    client.post("/login", {"username": "alice", "password": "wrong"})
    AccessAttempt.objects.update(attempt_time=F("attempt_time") - timedelta(minutes=3))
    for _ in range(2):  # a try meanwhile does not restart the wait
        held = client.post("/login", {"username": "alice", "password": factories.PASSWORD})
        assert held.status_code == 429
        assert 100 <= int(held.headers["Retry-After"]) <= 120
        assert "1 min 5" in markup(held) or "2 min 00 s" in markup(held)
    AccessAttempt.objects.update(attempt_time=F("attempt_time") - timedelta(minutes=3))
    assert client.post("/login", {"username": "alice", "password": factories.PASSWORD}).status_code == 302


def test_an_unknown_name_is_held_back_like_a_known_one(settings: LazySettings) -> None:
    settings.AXES_ENABLED = True
    settings.AXES_FAILURE_LIMIT = 2
    client = Client()
    statuses = [client.post("/login", {"username": "nobody", "password": "x"}).status_code for _ in range(3)]
    assert statuses == [200, 429, 429]
