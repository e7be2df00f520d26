"""Who may sign in: people with their password or, once, with a one-time password; service accounts in no way."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.contrib.auth.backends import ModelBackend
from django.http import HttpRequest

from tenants import one_time
from tenants.models import User


class PeopleBackend(ModelBackend):
    """Django's, for people only: a service account's session would not even be read. LUTHIER_PASSWORD_SIGN_IN turns
    passwords off."""

    def authenticate(
        self,
        request: HttpRequest | None,
        username: str | None = None,
        password: str | None = None,
        **more: Any,
    ) -> Any:
        if not settings.LUTHIER_PASSWORD_SIGN_IN:
            return None
        return super().authenticate(request, username=username, password=password, **more)

    def user_can_authenticate(self, user: Any) -> bool:
        return super().user_can_authenticate(user) and not getattr(user, "is_service_account", False)


class OneTimeBackend(PeopleBackend):
    """A one-time password, which this uses up. It opens no session, only the page on which a password is set."""

    def authenticate(
        self,
        request: HttpRequest | None,
        username: str | None = None,
        password: str | None = None,
        **more: Any,
    ) -> User | None:
        found = one_time.redeem(username, password) if username and password else None
        if found is None:
            return None
        found.user.one_time_id = found.pk
        return found.user
