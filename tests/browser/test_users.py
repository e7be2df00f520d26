"""The journeys of users: invited by an admin, signed out by themselves or by an admin, asked for the password again."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import pytest
from playwright.sync_api import Page, expect

from tests.browser.people import Open, Picture, accept, arrived, invite, set_password, shown, sign_in
from tests.platform import Platform

pytestmark = pytest.mark.browser
_numbers = count(1)


@pytest.mark.parametrize(("width", "theme"), [(1440, "light"), (390, "dark")])
def test_an_invited_user_opens_the_link_sets_a_password_and_signs_in(
    open_as: Open,
    fresh: Callable[..., Page],
    platform: Platform,
    picture: Picture,
    width: int,
    theme: str,
) -> None:
    name = f"erin{next(_numbers)}"
    link = invite(open_as("admin", "/admin-console/new-user", width=width, theme=theme), name, picture)
    page = fresh(width=width, theme=theme)
    page.goto(link)
    expect(page.get_by_label("Username")).to_have_value(name)
    assert page.url == f"{platform.url}/welcome", "the secret stays in the address"
    shown(page, picture, f"welcome-{width}-{theme}")
    page.get_by_role("button", name="Continue").click()
    page.wait_for_url("**/welcome/password")
    page.get_by_label("New password", exact=True).fill("short but 12")
    page.get_by_label("Confirm new password").fill("something else")
    page.get_by_role("button", name="Set password").click()
    expect(page.get_by_role("alert").first).to_contain_text("not set")
    shown(page, picture, f"welcome-password-{width}-{theme}")
    set_password(page)
    expect(page.get_by_text("Password set. Sign in with it.")).to_be_visible()
    sign_in(page, name)
    expect(page.get_by_role("heading", level=1)).to_be_visible()

    again = fresh()
    again.goto(link)
    again.get_by_role("button", name="Continue").click()
    expect(again.get_by_role("alert")).to_contain_text("works once and expires")


def test_sessions_of_a_user_end_in_the_other_browser(
    open_as: Open, fresh: Callable[..., Page], platform: Platform, picture: Picture
) -> None:
    name = f"frank{next(_numbers)}"
    console = open_as("admin", "/admin-console/new-user")
    link = invite(console, name, picture)
    laptop, phone = fresh(), fresh(width=390)
    accept(laptop, link)
    for page in (laptop, phone):
        page.goto(f"{platform.url}/login")
        sign_in(page, name)
        arrived(page)
        page.goto(f"{platform.url}/me")

    laptop.goto(f"{platform.url}/me")
    expect(laptop.get_by_text("revokes all of your API tokens (0)")).to_be_visible()
    shown(laptop, picture, "profile-sessions", full_page=True)
    laptop.get_by_role("button", name="Sign out everywhere else").click()
    dialog = laptop.get_by_role("dialog")
    expect(dialog).to_contain_text("all of your API tokens are revoked")
    shown(laptop, picture, "profile-everywhere")
    dialog.get_by_role("button", name="Sign out everywhere else").click()
    expect(laptop.get_by_text("1 other session ended, 0 API tokens revoked.")).to_be_visible()
    phone.reload()
    phone.wait_for_url("**/login?next=/me")

    console.goto(f"{platform.url}/admin-console/users/{name}")
    shown(console, picture, "admin-user", full_page=True)
    console.get_by_role("button", name="Disable").first.click()
    console.get_by_role("dialog").get_by_role("button", name="Disable").click()
    expect(console.get_by_text("is disabled: sessions ended")).to_be_visible()
    laptop.reload()
    laptop.wait_for_url("**/login?next=/me")
    sign_in(laptop, name)
    expect(laptop.get_by_role("alert")).to_contain_text("Incorrect username or password.")
