"""Who calls, and how often: an API token or the portal's session cookie, and limits per minute."""

from __future__ import annotations

from rest_framework import exceptions
from rest_framework.authentication import BaseAuthentication, SessionAuthentication
from rest_framework.request import Request

from portal import budgets
from tenants import tokens
from tenants.models import User

REALM = 'Bearer realm="luthier"'
WRONG_TOKENS_A_MINUTE = 60
"""Per client address. A token has 256 bits and cannot be guessed; this stops programs with an old one. Valid tokens are
looked up first, so that invalid ones of others do not hold them up."""


class TokenAuthentication(BaseAuthentication):
    """`Authorization: Bearer lut_…`. An invalid token is refused even if the cookie is valid."""

    def authenticate(self, request: Request) -> tuple[User, object] | None:
        scheme, _, secret = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            return None
        user = tokens.identify(secret.strip())
        if user is None:
            spend(f"token:{budgets.budget_address(request._request)}", WRONG_TOKENS_A_MINUTE)
            raise exceptions.AuthenticationFailed
        user.roles = {}  # this user object lives as long as the request
        return user, user.token

    def authenticate_header(self, request: Request) -> str:
        return REALM


class CookieAuthentication(SessionAuthentication):
    """The portal's session; every request that changes something passes Django's CSRF check."""

    def authenticate(self, request: Request) -> tuple[User, object] | None:
        found = super().authenticate(request)
        if found is not None:
            found[0].roles = {}  # as above
        return found

    def enforce_csrf(self, request: Request) -> None:
        """Check Django's request instead of DRF's, whose form parser would refuse a YAML body."""
        super().enforce_csrf(request._request)  # type: ignore[arg-type]  # it reads only what Django's request has


def spend(key: str, limit: int) -> None:
    """Count one more of this; raise Throttled above the limit per minute."""
    if not budgets.within(key, limit):
        raise exceptions.Throttled(wait=budgets.WINDOW_S)
