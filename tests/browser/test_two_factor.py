"""Two-factor authentication, as a person sets it up, signs in with it, and has it reset."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Page, Route, expect

from tests import factories
from tests.browser.people import (
    NEW,
    Open,
    Picture,
    accept,
    arrived,
    end_sessions,
    enter_code,
    invite,
    password_again,
    saved_codes,
    shown,
    sign_in,
)
from tests.platform import Platform

pytestmark = pytest.mark.browser


@pytest.mark.parametrize(("width", "theme"), [(1440, "light"), (390, "dark")])
def test_a_person_sets_up_an_app_signs_in_with_its_codes_and_has_it_reset(
    open_as: Open,
    fresh: Callable[..., Page],
    platform: Platform,
    picture: Picture,
    width: int,
    theme: str,
) -> None:
    name, look = f"two-factor-{theme}", f"{width}-{theme}"
    console = f"{platform.url}/admin-console/users/{name}"
    admin = open_as("admin", "/admin-console/new-user", width=width, theme=theme)
    page, other, again = (fresh(width=width, theme=theme) for _ in range(3))
    accept(page, invite(admin, name, picture))
    sign_in(page, name)
    arrived(page)

    page.goto(f"{platform.url}/me")
    shown(page, picture, f"two-factor-profile-{look}", full_page=True)
    page.get_by_role("link", name="Set up").click()
    secret, codes = set_up_an_app(page, picture, look)

    other.goto(f"{platform.url}/help")
    sign_in(other, name)
    enter_code(other, "wrong")
    expect(other.get_by_role("alert")).to_contain_text("Incorrect code.")
    shown(other, picture, f"two-factor-login-{look}")
    enter_code(other, factories.app_code(secret, steps=1))
    other.wait_for_url("**/help")

    end_sessions(admin, console)
    dialog = password_again(other)
    enter_code(dialog, codes[0])
    expect(dialog).to_be_hidden()

    reset(admin, picture, look)
    expect(other.get_by_role("dialog", name="Your session has ended")).to_be_visible()
    again.goto(f"{platform.url}/me")
    sign_in(again, name)
    expect(again.get_by_text("A platform admin removed your two-factor authentication on ")).to_be_visible()
    the_dialog_leads_to_the_setup_where_one_is_required(other)


def set_up_an_app(page: Page, picture: Picture, look: str) -> tuple[str, list[str]]:
    """On the page of two-factor authentication: its secret and the recovery codes."""
    page.get_by_label("Your password").fill(NEW)
    shown(page, picture, f"two-factor-off-{look}", full_page=True)
    page.get_by_role("button", name="Set up an authenticator app").click()
    expect(page.get_by_role("img", name="QR code with the secret")).to_be_visible()
    secret = page.get_by_label("the secret", exact=True).inner_text()
    page.get_by_label("Code from the app").fill("12345")
    page.get_by_role("button", name="Turn on").click()
    expect(page.get_by_text("is not the app's current code")).to_be_visible()
    shown(page, picture, f"two-factor-set-up-{look}", full_page=True)
    page.get_by_label("Code from the app").fill(factories.app_code(secret))
    page.get_by_role("button", name="Turn on").click()
    codes = saved_codes(page)
    shown(page, picture, f"two-factor-codes-{look}", full_page=True)
    with page.expect_download() as download:
        page.get_by_role("link", name="Download").click()
    assert download.value.path().read_text().split() == codes
    page.get_by_role("link", name="I saved them").click()
    expect(page.get_by_text("10 of 10 left")).to_be_visible()
    shown(page, picture, f"two-factor-on-{look}", full_page=True)
    return secret, codes


def reset(admin: Page, picture: Picture, look: str) -> None:
    """On the page of the user in the console."""
    admin.get_by_role("button", name="Reset", exact=True).click()
    shown(admin, picture, f"two-factor-reset-{look}")
    admin.get_by_role("dialog").get_by_role("button", name="Reset", exact=True).click()
    expect(admin.get_by_text("signs in without a second factor")).to_be_visible()


def the_dialog_leads_to_the_setup_where_one_is_required(page: Page) -> None:
    """By what such an installation answers to who has none."""

    def to_set_up(route: Route) -> None:
        route.fulfill(status=302, headers={"Location": "/login/two-factor"})

    page.route("**/login", to_set_up)
    page.route("**/login/code", to_set_up)
    page.route("**/login/two-factor", lambda route: route.fulfill(body="Set up", content_type="text/html"))
    password_again(page)
    page.wait_for_url("**/login/two-factor")
