"""How passwords are kept."""

import pytest
from django.conf import settings
from django.contrib.auth import authenticate
from django.contrib.auth.hashers import make_password
from django.test import Client, override_settings

from portal.settings import base
from tests import factories


@pytest.mark.django_db
def test_a_password_with_an_old_hash_logs_in_and_is_hashed_again() -> None:
    with override_settings(PASSWORD_HASHERS=base.PASSWORD_HASHERS):
        assert settings.PASSWORD_HASHERS[0].endswith("ScryptPasswordHasher")
        user = factories.user()
        user.password = make_password("correct horse", hasher="pbkdf2_sha256")
        user.save()
        assert authenticate(request=None, username=user.username, password="wrong") is None
        assert authenticate(request=None, username=user.username, password="correct horse") == user
        user.refresh_from_db()
        assert user.password.startswith("scrypt$")


@pytest.mark.django_db
@pytest.mark.parametrize(
    "password", ["  Two spaces on both sides  ", "x" * 127 + "Y", "pässwörter 🙂 ohne Ende"]
)
def test_a_password_counts_exactly_as_it_was_typed(password: str) -> None:
    factories.user("erin", password=password)

    def signs_in(typed: str) -> bool:
        return Client().post("/login", {"username": "erin", "password": typed}).status_code == 302

    assert signs_in(password)
    assert not any(
        map(signs_in, {password.strip(), password[:72], password.lower(), password.swapcase()} - {password})
    )
