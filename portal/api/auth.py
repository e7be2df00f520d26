"""The two doors: an API token in the Authorization header, or the portal's session cookie with its CSRF token."""

from __future__ import annotations

from rest_framework import exceptions
from rest_framework.authentication import BaseAuthentication, SessionAuthentication
from rest_framework.request import Request

from portal.api import throttle
from tenants import tokens
from tenants.models import User

REALM = 'Bearer realm="luthier"'
WRONG_TOKENS_A_MINUTE = 60
"""From one address; a token has 256 bits, so this only keeps guessers from costing anything."""


class TokenAuthentication(BaseAuthentication):
    """`Authorization: Bearer lut_…`. A wrong token is refused even beside a valid cookie."""

    def authenticate(self, request: Request) -> tuple[User, object] | None:
        scheme, _, secret = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            return None
        address = request.META.get("REMOTE_ADDR", "")
        throttle.refuse_above(f"token:{address}", WRONG_TOKENS_A_MINUTE)
        user = tokens.identify(secret.strip())
        if user is None:
            throttle.count(f"token:{address}")
            raise exceptions.AuthenticationFailed
        user.roles = {}  # he lives as long as this request
        return user, user.token

    def authenticate_header(self, request: Request) -> str:
        return REALM


class CookieAuthentication(SessionAuthentication):
    """The portal's session; Django's CSRF check guards everything that changes something."""

    def enforce_csrf(self, request: Request) -> None:
        """Check Django's own request: its form is empty for other kinds of body, where DRF's would refuse YAML."""
        super().enforce_csrf(request._request)  # type: ignore[arg-type]  # reads no more than Django's has
