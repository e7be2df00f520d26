"""The login page: what it says, what it hides, how long it refuses, and what it sets."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from axes.models import AccessAttempt, AccessFailureLog, AccessLog
from django.apps import apps
from django.conf import LazySettings
from django.db.models import F
from django.test import Client

from portal.pages import auth
from tenants.models import AuditEntry, User
from tests import factories
from tests.markup import markup

pytestmark = pytest.mark.django_db


def sign_in(client: Client, name: str, password: str, **more: str) -> Any:
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


@pytest.fixture
def guarded(settings: LazySettings) -> LazySettings:
    settings.AXES_ENABLED = True
    settings.AXES_FAILURE_LIMIT = 5
    return settings


def test_an_address_has_one_budget_for_all_names_and_forwarded_addresses(
    alice: User, guarded: LazySettings
) -> None:
    statuses = [
        Client(headers={"X-Forwarded-For": f"6.6.6.{n}", "User-Agent": f"browser {n}"})
        .post("/login", {"username": f"user{n}", "password": "guess"})
        .status_code
        for n in range(40)
    ]
    assert statuses.count(200) < guarded.AXES_FAILURE_LIMIT
    assert set(statuses[guarded.AXES_FAILURE_LIMIT :]) == {429}
    assert sign_in(Client(), "alice", factories.PASSWORD).status_code == 429
    assert sign_in(Client(REMOTE_ADDR="10.0.0.8"), "alice", factories.PASSWORD).status_code == 302


def test_a_login_of_ones_own_does_not_renew_the_budget(alice: User, guarded: LazySettings) -> None:
    for n in range(4):
        sign_in(Client(), f"victim{n}", "guess")
        sign_in(Client(), "alice", factories.PASSWORD)
    sign_in(Client(), "victim", "guess")
    assert sign_in(Client(), "victim", "guess").status_code == 429


def test_guesses_from_many_addresses_slow_a_name_down_and_never_lock_it_out(
    alice: User, guarded: LazySettings
) -> None:
    delays = []
    for n in range(30):
        answer = sign_in(Client(REMOTE_ADDR=f"10.0.0.{n}"), "alice", "guess")
        delays.append(answer.delay_s)
    assert delays[: auth.MISTYPED + 1] == [0.0] * (auth.MISTYPED + 1)
    assert delays == sorted(delays)
    assert delays[-1] == auth.DELAY_MAX_S
    own = sign_in(Client(REMOTE_ADDR="10.0.1.1"), "alice", factories.PASSWORD)
    assert (own.status_code, own.delay_s) == (302, auth.DELAY_MAX_S)
    assert sign_in(Client(REMOTE_ADDR="10.0.1.1"), "bob", "guess").delay_s == 0.0


@pytest.mark.parametrize("written", [" alice", "alice\u3000", "\uff41\uff4c\uff49\uff43\uff45"])
def test_a_name_is_slowed_down_and_recorded_however_it_is_written(
    alice: User, guarded: LazySettings, written: str
) -> None:
    for n in range(auth.MISTYPED + 2):
        answer = sign_in(Client(REMOTE_ADDR=f"10.0.0.{n}"), written, "guess")
    assert answer.delay_s > 0
    assert sign_in(Client(REMOTE_ADDR="10.0.1.1"), "alice", "guess").delay_s > answer.delay_s
    assert {entry.target for entry in AuditEntry.objects.filter(action="login.failure")} == {"alice"}
    own = sign_in(Client(REMOTE_ADDR="10.0.1.2"), written, factories.PASSWORD)
    assert own.status_code == 302, "it is the name of this user"


def test_passwords_of_one_address_are_checked_a_few_at_a_time(
    alice: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(auth._under_way, "127.0.0.1", auth.CHECKS_AT_ONCE)
    held = sign_in(Client(), "alice", factories.PASSWORD)
    assert (held.status_code, held.headers["Retry-After"]) == (429, "1")
    assert sign_in(Client(REMOTE_ADDR="10.0.0.8"), "alice", factories.PASSWORD).status_code == 302
    assert auth._under_way == {"127.0.0.1": auth.CHECKS_AT_ONCE}


def test_a_password_in_the_field_of_the_name_is_stored_and_logged_nowhere(
    alice: User, guarded: LazySettings, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    typed, client = "Tr0ub4dor-and-3", Client()
    for name, password in ((typed, ""), (typed, "x"), (f" {typed} ", "y"), ("alice", "wrong")):
        sign_in(client, name, password)
    assert AccessAttempt.objects.count() == 2, "of a name in its two forms, and of alice"
    sign_in(client, "alice", factories.PASSWORD)
    assert client.get("/me").status_code == 200
    sent = client.post("/login", {"username": typed, "password": "x", "next": typed, "code": typed})
    assert sent.status_code in (200, 302)
    stored = [
        value
        for model in apps.get_models()
        for row in model._default_manager.values_list()
        for value in map(str, row)
    ]
    assert [value for value in stored if typed in value] == []
    assert typed not in caplog.text


def test_sign_ins_are_kept_in_the_audit_log_alone(alice: User, guarded: LazySettings) -> None:
    client = Client()
    sign_in(client, "alice", factories.PASSWORD)
    client.post("/logout")
    assert AuditEntry.objects.filter(action__in=("login.success", "logout.success")).count() == 2
    assert not AccessLog.objects.exists()
    assert not AccessFailureLog.objects.exists()
