"""A confirmation and the end of its session at the same time, by two connections: none waits for the other for good,
and what was ended stays so."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.sessions.backends.db import SessionStore as DatabaseStore
from django.core.cache import cache
from django.test import Client

from tenants import two_factor
from tenants.models import AuditEntry, Session, User
from tenants.services import users
from tenants.services.sessions import public_id, session_end, sessions_end
from tenants.sessions import SessionStore, row_key
from tests import factories
from tests.meanwhile import Meanwhile
from tests.stale_session import grow_stale

pytestmark = pytest.mark.django_db(transaction=True)
PAGE, PASSWORD = "/me/confirm", {"password": factories.PASSWORD}


@pytest.fixture
def here(alice: User) -> Client:
    cache.clear()  # budgets
    factories.user("admin", is_superuser=True, password=factories.PASSWORD)
    client = Client()
    client.force_login(alice)
    grow_stale(client)
    return client


def confirmed() -> bool:
    return AuditEntry.objects.filter(action="session.confirm").exists()


ENDINGS = {
    "all": (two_factor, "locked"),
    "one": (two_factor, "locked"),
    "reset": (users, "locked_user"),
    "disable": (users, "locked_user"),
}
"""The ways in which sessions end, with what holds the user's row for each."""


def end(how: str, alice: User, key: str) -> object:
    if how == "all":
        return sessions_end(user=alice, owner=alice)
    if how == "one":
        return session_end(user=alice, owner=alice, session_id=public_id(key))
    change = users.user_reset if how == "reset" else users.user_disable
    return change(user=User.objects.get(username="admin"), username="alice")


@pytest.mark.parametrize("how", [each for each in ENDINGS if each != "one"])  # which names the key of before
def test_an_end_that_comes_in_its_middle_ends_the_session_with_the_new_key(
    here: Client, alice: User, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    key, cycle_key = row_key(here.session), SessionStore.cycle_key
    other = Meanwhile(lambda: end(how, alice, key))

    def while_it_waits(self: SessionStore) -> None:
        other.begin()
        assert not other.is_over, "the confirmation holds the user's row"
        cycle_key(self)

    monkeypatch.setattr(SessionStore, "cycle_key", while_it_waits)
    assert here.post(PAGE, PASSWORD).status_code in (302, 400), "the answer is before the end, or after it"
    other.result()
    assert confirmed()
    assert not Session.objects.filter(user=alice).exists()
    assert here.get("/me")["Location"] == "/login?next=/me"


@pytest.mark.parametrize("how", ENDINGS)
def test_one_that_comes_in_the_middle_of_an_end_proves_nothing(
    here: Client, alice: User, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    key, (module, name) = row_key(here.session), ENDINGS[how]
    other, hold = Meanwhile(lambda: here.post(PAGE, PASSWORD)), getattr(module, name)

    def while_it_waits(*given: Any) -> Any:
        held = hold(*given)
        monkeypatch.setattr(module, name, hold)
        other.begin()
        assert not other.is_over, "the end holds the user's row"
        return held

    monkeypatch.setattr(module, name, while_it_waits)
    end(how, alice, key)
    assert other.result().status_code == 302
    assert not confirmed()
    assert not Session.objects.filter(user=alice).exists()
    assert here.get("/me")["Location"] == "/login?next=/me"


def test_a_request_that_saves_its_session_in_the_middle_does_not_bring_it_back(
    here: Client, alice: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = DatabaseStore.save
    other = Meanwhile(lambda: sessions_end(user=alice, owner=alice))

    def while_it_waits(self: DatabaseStore, must_create: bool = False) -> Any:
        monkeypatch.setattr(DatabaseStore, "save", save)
        other.begin()
        assert not other.is_over, "the request holds the session's row"
        return save(self, must_create)

    session = here.session
    session["kept"] = "yes"
    monkeypatch.setattr(DatabaseStore, "save", while_it_waits)
    session.save()
    assert other.result().sessions == 1
    assert not Session.objects.exists()
