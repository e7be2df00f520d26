"""Who calls, and how often: an API token or the portal's session cookie, and limits per minute.

The limits count per web process: they stop loops and guessing, and account for nothing.
"""

from __future__ import annotations

from django.core.cache import cache
from rest_framework import exceptions
from rest_framework.authentication import BaseAuthentication, SessionAuthentication
from rest_framework.request import Request

from tenants import tokens
from tenants.models import User

WINDOW_S = 60
REALM = 'Bearer realm="luthier"'
WRONG_TOKENS_A_MINUTE = 60
"""Per client address. A token has 256 bits and cannot be guessed; this limits what attempts cost."""


class TokenAuthentication(BaseAuthentication):
    """`Authorization: Bearer lut_…`. An invalid token is refused even if the cookie is valid."""

    def authenticate(self, request: Request) -> tuple[User, object] | None:
        scheme, _, secret = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            return None
        address = request.META.get("REMOTE_ADDR", "")
        refuse_above(f"token:{address}", WRONG_TOKENS_A_MINUTE)
        user = tokens.identify(secret.strip())
        if user is None:
            count(f"token:{address}")
            raise exceptions.AuthenticationFailed
        user.roles = {}  # this user object lives as long as the request
        return user, user.token

    def authenticate_header(self, request: Request) -> str:
        return REALM


class CookieAuthentication(SessionAuthentication):
    """The portal's session; every request that changes something passes Django's CSRF check."""

    def enforce_csrf(self, request: Request) -> None:
        """Check Django's request instead of DRF's, whose form parser would refuse a YAML body."""
        super().enforce_csrf(request._request)  # type: ignore[arg-type]  # it reads only what Django's request has


def refuse_above(key: str, limit: int) -> None:
    """Raise Throttled if this key was counted limit times within the last minute."""
    if cache.get(_name(key), 0) >= limit:
        raise exceptions.Throttled(wait=WINDOW_S)


def count(key: str) -> None:
    cache.add(_name(key), 0, timeout=WINDOW_S)
    try:
        cache.incr(_name(key))
    except ValueError:  # it expired in between
        cache.set(_name(key), 1, timeout=WINDOW_S)


def _name(key: str) -> str:
    return f"api-throttle:{key}"
