"""The cookie with the theme of a browser, light or dark; static/src/ts/theme.ts sets it as well.

Over https its name begins as that of the other cookies: browsers then take it from no other host of the domain.
"""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse

THEMES = ("", "light", "dark")
YEAR_S = 365 * 24 * 3600


def chosen(request: HttpRequest) -> str:
    """The theme; "": that of the device."""
    theme = request.COOKIES.get(cookie_name(request), "")
    return theme if theme in THEMES else ""


def choose(request: HttpRequest, response: HttpResponse, theme: str) -> None:
    name, secure = cookie_name(request), request.is_secure()
    age_s = YEAR_S if theme else 0
    response.set_cookie(name, theme, max_age=age_s, path="/", samesite="Lax", secure=secure)


def cookie_name(request: HttpRequest) -> str:
    return "__Host-theme" if request.is_secure() else "theme"
