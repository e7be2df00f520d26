"""Signing in by an OpenID provider, as a person does: sent away, linked by an admin, and in."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.browser.people import Open, Picture, invite, shown
from tests.identity_provider.process import ERIN, IdentityProvider
from tests.platform import Platform

pytestmark = pytest.mark.browser


@pytest.mark.parametrize(("width", "theme"), [(1440, "light"), (390, "dark")])
def test_a_person_is_linked_by_an_admin_and_signs_in(
    open_as: Open,
    fresh: Callable[..., Page],
    platform: Platform,
    identity_provider: IdentityProvider,
    picture: Picture,
    width: int,
    theme: str,
) -> None:
    name = f"sso-{theme}"
    identity_provider.set(account=f"subject-{theme}", claims=ERIN | {"groups": [f"group-{theme}"]})
    page = fresh(width=width, theme=theme)
    page.goto(f"{platform.url}/help")
    shown(page, picture, f"sso-login-{width}-{theme}")
    page.get_by_role("link", name="Sign in with Example ID").click()
    expect(page.get_by_role("alert")).to_contain_text(f"It is known there as subject-{theme}.")
    shown(page, picture, f"sso-unknown-{width}-{theme}")

    admin = open_as("admin", "/admin-console/new-user", width=width, theme=theme)
    invite(admin, name, picture)
    admin.goto(f"{platform.url}/admin-console/users/{name}")
    admin.get_by_label("Subject at Example ID").fill(f"subject-{theme}")
    admin.get_by_role("button", name="Link", exact=True).click()
    expect(admin.get_by_text(f"Linked to subject-{theme}")).to_be_visible()
    shown(admin, picture, f"sso-linked-{width}-{theme}", full_page=True)

    page.goto(f"{platform.url}/help")
    page.get_by_role("link", name="Sign in with Example ID").click()
    page.wait_for_url("**/help")

    admin.goto(f"{platform.url}/admin-console/users")
    admin.get_by_role("link", name="Groups").click()
    tenant = platform.users["alice"]["tenant"]
    admin.get_by_label("Tenant, role and group").fill(f"{tenant} boss group-{theme}")
    admin.get_by_role("button", name="Preview").click()
    expect(admin.get_by_text("line 1: the role must be one of")).to_be_visible()
    admin.get_by_label("Tenant, role and group").fill(f"{tenant} viewer group-{theme}")
    admin.get_by_role("button", name="Preview").click()
    expect(admin.get_by_text(f"becomes viewer in {tenant}")).to_be_visible()
    shown(admin, picture, f"sso-groups-{width}-{theme}", full_page=True)
    page.goto(f"{platform.url}/me")
    expect(page.get_by_role("main").get_by_text(name, exact=True)).to_be_visible()

    admin.goto(f"{platform.url}/admin-console/users/{name}")
    admin.get_by_role("button", name="Sign out everywhere").first.click()
    admin.get_by_role("dialog").get_by_role("button", name="Sign out everywhere").click()
    dialog = page.get_by_role("dialog", name="Your session has ended")
    expect(dialog).to_be_visible()
    with page.context.expect_page() as opened:
        dialog.get_by_role("link", name="Sign in with Example ID").click()
    opened.value.wait_for_url(f"{platform.url}/")
    page.evaluate("window.dispatchEvent(new Event('focus'))")  # a browser without a window sends none
    expect(dialog).to_be_hidden()
