"""Two-factor authentication, as a person sets it up, signs in with it, and has it reset."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Page, Route, expect

from tests import factories
from tests.browser.test_users import NEW, Picture, fresh, invite, shown, sign_in  # noqa: F401  # fresh is a fixture
from tests.platform import Platform

pytestmark = pytest.mark.browser
Open = Callable[..., Page]


@pytest.mark.parametrize(("width", "theme"), [(1440, "light"), (390, "dark")])
def test_a_person_sets_up_an_app_signs_in_with_its_codes_and_has_it_reset(
    open_as: Open,
    fresh: Callable[..., Page],  # noqa: F811 # the fixture above
    platform: Platform,
    picture: Picture,
    width: int,
    theme: str,
) -> None:
    name, look = f"two-factor-{theme}", f"{width}-{theme}"
    admin = open_as("admin", "/admin-console/new-user", width=width, theme=theme)
    page = fresh(width=width, theme=theme)
    page.goto(invite(admin, name, picture))
    page.get_by_role("button", name="Continue").click()
    page.get_by_label("New password", exact=True).fill(NEW)
    page.get_by_label("Confirm new password").fill(NEW)
    page.get_by_role("button", name="Set password").click()
    page.wait_for_url("**/login")
    sign_in(page, name, NEW)
    page.wait_for_url(lambda url: "/login" not in url)
    page.goto(f"{platform.url}/me")
    shown(page, picture, f"two-factor-profile-{look}", full_page=True)
    page.get_by_role("link", name="Set up").click()
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
    codes = page.get_by_label("the recovery codes", exact=True).inner_text().split()
    assert len(codes) == 10
    shown(page, picture, f"two-factor-codes-{look}", full_page=True)
    with page.expect_download() as download:
        page.get_by_role("link", name="Download").click()
    assert download.value.path().read_text().split() == codes
    page.get_by_role("link", name="I saved them").click()
    expect(page.get_by_text("10 of 10 left")).to_be_visible()
    shown(page, picture, f"two-factor-on-{look}", full_page=True)

    other = fresh(width=width, theme=theme)
    other.goto(f"{platform.url}/help")
    sign_in(other, name, NEW)
    other.get_by_label("Code", exact=True).fill("wrong")
    other.get_by_role("button", name="Continue").click()
    expect(other.get_by_role("alert")).to_contain_text("Incorrect code.")
    shown(other, picture, f"two-factor-login-{look}")
    other.get_by_label("Code", exact=True).fill(factories.app_code(secret, steps=1))
    other.get_by_role("button", name="Continue").click()
    other.wait_for_url("**/help")

    admin.goto(f"{platform.url}/admin-console/users/{name}")
    admin.get_by_role("button", name="Sign out everywhere").first.click()
    admin.get_by_role("dialog").get_by_role("button", name="Sign out everywhere").click()
    dialog = other.get_by_role("dialog", name="Your session has ended")
    dialog.get_by_label("Password", exact=True).fill(NEW)
    dialog.get_by_role("button", name="Sign in").click()
    dialog.get_by_label("Code", exact=True).fill(codes[0])
    dialog.get_by_role("button", name="Continue").click()
    expect(dialog).to_be_hidden()

    admin.get_by_role("button", name="Reset", exact=True).click()
    shown(admin, picture, f"two-factor-reset-{look}")
    admin.get_by_role("dialog").get_by_role("button", name="Reset", exact=True).click()
    expect(admin.get_by_text("signs in without a second factor")).to_be_visible()
    expect(other.get_by_role("dialog", name="Your session has ended")).to_be_visible()
    again = fresh(width=width, theme=theme)
    again.goto(f"{platform.url}/me")
    sign_in(again, name, NEW)
    expect(again.get_by_text("A platform admin removed your two-factor authentication")).to_be_visible()

    # What an installation answers that requires a second factor, to who has none: the dialog leads to its setup.
    def to_set_up(route: Route) -> None:
        route.fulfill(status=302, headers={"Location": "/login/two-factor"})

    other.route("**/login", to_set_up)
    other.route("**/login/code", to_set_up)
    other.route("**/login/two-factor", lambda route: route.fulfill(body="Set up", content_type="text/html"))
    dialog.get_by_label("Password", exact=True).fill(NEW)
    dialog.get_by_role("button", name="Sign in").click()
    other.wait_for_url("**/login/two-factor")
