"""A real OpenID provider, a person whom it knows, and what their browser is shown."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.conf import LazySettings
from django.contrib.messages import get_messages
from django.core.cache import cache
from django.http import HttpResponse
from django.test import Client

from tenants.models import User
from tenants.services.identities import identity_link
from tests import factories
from tests.identity_provider.process import ERIN, IdentityProvider


@pytest.fixture(scope="package")
def process() -> Iterator[IdentityProvider]:
    with IdentityProvider("http://testserver") as started:
        yield started


@pytest.fixture
def provider(process: IdentityProvider, settings: LazySettings) -> IdentityProvider:
    process.set(account="erin", claims=ERIN, skew_s=0)
    for name, value in process.settings().items():
        setattr(settings, name, value)
    cache.clear()  # budgets
    return process


@pytest.fixture
def erin(provider: IdentityProvider, admin: User) -> User:
    """A user whom an admin has linked to the provider's erin."""
    user = factories.user("erin")
    return identity_link(user=admin, username=user.get_username(), subject="erin")


def said(response: HttpResponse) -> str:
    """The message on the page to which a refusal leads."""
    assert response.status_code == 302, response.content
    assert response["Location"].startswith("/login")
    return " ".join(map(str, get_messages(response.wsgi_request)))


def signed_in(client: Client) -> str | None:
    user_id = client.session.get("_auth_user_id")
    return User.objects.get(pk=user_id).get_username() if user_id else None
