"""Browser sessions as pages show them: one's own on the profile, those of a user in the console."""

from __future__ import annotations

import re
from typing import Any

from django.http import HttpRequest

from tenants.models import User
from tenants.services.sessions import Ended, sessions_of
from tenants.sessions import row_key

BROWSERS = (("Edg/", "Edge"), ("Firefox/", "Firefox"), ("Chrome/", "Chrome"), ("Safari/", "Safari"))
SYSTEMS = (
    ("iPhone", "iPhone"),
    ("iPad", "iPad"),
    ("Android", "Android"),
    ("Windows", "Windows"),
    ("Mac OS X", "macOS"),
    ("Linux", "Linux"),
)


def rows(request: HttpRequest, owner: User) -> list[dict[str, Any]]:
    found = sessions_of(user=request.user, owner=owner, current=row_key(request.session))
    return [{"session": each, "browser": browser_of(each.agent)} for each in found]


def browser_of(agent: str) -> str:
    """ "Firefox on Linux" from a User-Agent; of one that is not known its first product, or "Unknown browser"."""
    browser = next((name for mark, name in BROWSERS if mark in agent), "")
    system = next((name for mark, name in SYSTEMS if mark in agent), "")
    if browser:
        return f"{browser} on {system}" if system else browser
    first = re.match(r"[\w.-]{1,40}", agent, re.ASCII)
    return first[0] if first else "Unknown browser"


def said(ended: Ended, *, others: bool = False, tokens: bool) -> str:
    """ "3 other sessions ended, 2 API tokens revoked." """
    text = f"{ended.sessions} {'other ' if others else ''}session{'s' * (ended.sessions != 1)} ended"
    return f"{text}, {ended.tokens} API token{'s' * (ended.tokens != 1)} revoked." if tokens else f"{text}."
