"""A failed sign-in does the same work for every name, so that no clock can find out which names exist."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from django.conf import LazySettings
from django.contrib.auth.hashers import ScryptPasswordHasher
from django.core.cache import cache
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from portal.pages import auth
from tenants import one_time
from tenants.models import User
from tests import factories

pytestmark = pytest.mark.django_db

TRIES = 8
"""More than are noted for the user, and more than are answered at once."""
VALUE = re.compile(r"'(?:[^']|'')*'(?:::\w+)?|\b\d+(?:\.\d+)?\b|(?<=SAVEPOINT ).*")


def usual() -> str:
    factories.user("usual", password=factories.PASSWORD)
    return "usual"


def disabled() -> str:
    factories.user("disabled", password=factories.PASSWORD, is_active=False)
    return "disabled"


def service_account() -> str:
    factories.user("robot", is_service_account=True)
    User.objects.filter(username="robot").update(password="!")
    return "robot"


def two_factors() -> str:
    user = factories.user("careful", password=factories.PASSWORD)
    factories.authenticator_app(user)
    factories.passkey(user, name="laptop")
    return "careful"


def invited() -> str:
    one_time.issue(factories.user("invited"))
    return "invited"


def admin() -> str:
    factories.user("root", is_superuser=True, password=factories.PASSWORD)
    return "root"


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The cost of each password that was hashed."""
    done: list[int] = []
    real = ScryptPasswordHasher.encode

    def encode(self: Any, password: str, salt: str, n: Any = None, *more: Any, **named: Any) -> str:
        done.append(n or self.work_factor)
        return real(self, password, salt, n, *more, **named)

    monkeypatch.setattr(ScryptPasswordHasher, "encode", encode)
    monkeypatch.setattr(ScryptPasswordHasher, "work_factor", 16)
    return done


def work_of(name: str, hashed: list[int], *, password: str = "a wrong password") -> list[Any]:
    """The statements of each of TRIES failed sign-ins without their values, the passwords hashed, and the delay."""
    client, found = Client(REMOTE_ADDR=f"192.0.2.{User.objects.filter(username=name).count()}"), []
    for _ in range(TRIES):
        cache.clear()
        hashed.clear()
        with CaptureQueriesContext(connection) as asked:
            answer = client.post("/login", {"username": name, "password": password})
        assert answer.status_code == 200
        delay_s = auth.delay_of(name)
        found.append(([VALUE.sub("?", each["sql"]) for each in asked], list(hashed), delay_s))
    return found


@pytest.mark.parametrize("password", ["a wrong password", "once-abcd-efgh"])
@pytest.mark.parametrize("person", [usual, disabled, service_account, two_factors, invited, admin])
def test_a_name_that_exists_costs_what_one_that_does_not_costs(
    person: Callable[[], str], password: str, settings: LazySettings, hashed: list[int]
) -> None:
    settings.AXES_ENABLED = True
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.ScryptPasswordHasher"]
    settings.LUTHIER_SENDS_MAIL = True
    name = person()
    known, unknown = (work_of(each, hashed, password=password) for each in (name, "x" * len(name)))
    assert unknown[0][1], "a password is hashed for a name that does not exist"
    for number, (one, other) in enumerate(zip(known, unknown, strict=True), 1):
        assert one == other, f"try {number}"
