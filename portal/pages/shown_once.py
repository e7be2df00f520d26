"""A secret that the page after a form shows once: a cookie of the browser that sent the form takes it there.

So a reload neither shows it again nor makes a second one. The server keeps nothing.
"""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core import signing
from django.http import HttpRequest, HttpResponse

KEPT_S = 300


def packed(values: dict[str, Any]) -> str:
    """What is to be shown, as one text."""
    return signing.dumps(values, compress=True)


def give(request: HttpRequest, response: HttpResponse, name: str, text: str, *, path: str) -> None:
    """Let the response take it to the page at this path."""
    response.set_signed_cookie(
        name,
        text,
        salt=_salt(request, name),
        max_age=KEPT_S,
        path=path,
        httponly=True,
        secure=settings.SESSION_COOKIE_SECURE,
        samesite="Strict",
    )


def taken(request: HttpRequest, name: str) -> dict[str, Any] | None:
    """What this browser has just got; None if there is nothing, it is too old, or it is another user's.

    The page deletes the cookie in its response.
    """
    try:
        text = request.get_signed_cookie(name, salt=_salt(request, name), max_age=KEPT_S)
        values: dict[str, Any] = signing.loads(text or "")
    except (KeyError, signing.BadSignature):
        return None
    return values


def _salt(request: HttpRequest, name: str) -> str:
    """Only the user who sent the form sees it, also if another one signs in with the same browser."""
    return f"{name}:{request.user.pk}"
