"""A form of a session that is not fresh: its user is asked who they are, and then it is sent as it was typed."""

from __future__ import annotations

from itertools import count

import pytest
from playwright.sync_api import Page, expect

from tests.browser.people import Open, Picture, shown
from tests.platform import Platform

pytestmark = pytest.mark.browser
_numbers = count(1)
STALE = """
from django.contrib.auth import get_user_model
from tenants.sessions import FRESH, PROVED_AT, SessionStore
for row in get_user_model().objects.get(username="admin").sessions.all():
    store = SessionStore()  # the row does not have the key
    found = store.decode(row.session_data)
    found[PROVED_AT] -= FRESH.total_seconds() + 1
    row.session_data = store.encode(found)
    row.save(update_fields=["session_data"])
"""


@pytest.mark.parametrize(("width", "theme"), [(1440, "light"), (390, "dark")])
def test_an_admin_confirms_and_loses_nothing_typed(
    open_as: Open, platform: Platform, picture: Picture, sessions: dict[str, object], width: int, theme: str
) -> None:
    page: Page = open_as("admin", "/admin-console/new-user", width=width, theme=theme)
    sessions.pop("admin")  # its key changes here
    platform.manage("shell", "-c", STALE)
    name = f"grace{next(_numbers)}"
    page.get_by_label("Username").fill(name)
    page.get_by_label("E-mail address").fill(f"{name}@example.org")
    page.get_by_role("button", name="Create user").click()
    page.wait_for_url("**/me/confirm")
    expect(page.get_by_text("to continue with: Create the user")).to_be_visible()
    expect(page.get_by_label("Password", exact=True)).to_be_focused()
    shown(page, picture, f"confirm-{width}-{theme}")
    page.get_by_label("Password", exact=True).fill("not this one")
    page.get_by_role("button", name="Continue").click()
    expect(page.get_by_role("alert")).to_contain_text("is not your password")
    shown(page, picture, f"confirm-wrong-{width}-{theme}")
    page.get_by_label("Password", exact=True).fill(platform.users["admin"]["password"])
    page.keyboard.press("Enter")
    send = page.get_by_role("button", name="Create the user")
    expect(send).to_be_focused()
    shown(page, picture, f"confirmed-{width}-{theme}")
    with page.expect_request(lambda sent: sent.url.endswith("/admin-console/new-user")) as form:
        page.keyboard.press("Enter")
    assert form.value.headers["x-luthier-form"] == "admin", "as no other user who signs in meanwhile"
    page.wait_for_url(f"**/admin-console/users/{name}")
    expect(page.get_by_label("E-mail address")).to_have_value(f"{name}@example.org")
