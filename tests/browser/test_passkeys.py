"""Passkeys, with Chromium's own virtual device: added, signed in with, refused when copied, removed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import CDPSession, Page, expect

from tests.browser.test_users import NEW, Picture, fresh, invite, shown, sign_in  # noqa: F401  # fresh is a fixture
from tests.platform import Platform

pytestmark = pytest.mark.browser
Open = Callable[..., Page]


class VirtualDevice:
    """A device with keys that is plugged into the browser of this page."""

    def __init__(self, page: Page) -> None:
        self.browser: CDPSession = page.context.new_cdp_session(page)
        self.browser.send("WebAuthn.enable")
        options = {
            "protocol": "ctap2",
            "transport": "internal",
            "hasUserVerification": True,
            "isUserVerified": True,
            "automaticPresenceSimulation": True,
        }
        made = self.browser.send("WebAuthn.addVirtualAuthenticator", {"options": options})
        self.own = {"authenticatorId": made["authenticatorId"]}

    def keys(self) -> list[dict[str, Any]]:
        return self.browser.send("WebAuthn.getCredentials", self.own)["credentials"]

    def take(self, key: dict[str, Any]) -> None:
        """Have this key, in place of what it had of the same id."""
        self.browser.send("WebAuthn.removeCredential", {**self.own, "credentialId": key["credentialId"]})
        self.browser.send("WebAuthn.addCredential", {**self.own, "credential": key})

    def refuse(self, refused: bool) -> None:
        """Whether the person declines each request: the finger is the wrong one."""
        self.browser.send("WebAuthn.setUserVerified", {**self.own, "isUserVerified": not refused})


@pytest.mark.parametrize(("width", "theme"), [(1440, "light"), (390, "dark")])
def test_a_passkey_is_added_signs_in_and_is_removed(
    open_as: Open,
    fresh: Callable[..., Page],  # noqa: F811 # the fixture above
    platform: Platform,
    picture: Picture,
    width: int,
    theme: str,
) -> None:
    name, look = f"passkey-{theme}", f"{width}-{theme}"
    url = f"http://localhost:{platform.port}"
    page = fresh(width=width, theme=theme)
    blocked: list[str] = []
    page.context.on(
        "console", lambda said: blocked.append(said.text) if "Content Security" in said.text else None
    )
    admin = open_as("admin", "/admin-console/new-user", width=width, theme=theme)
    page.goto(invite(admin, name, picture).replace(platform.url, url))
    page.get_by_role("button", name="Continue").click()
    page.get_by_label("New password", exact=True).fill(NEW)
    page.get_by_label("Confirm new password").fill(NEW)
    page.get_by_role("button", name="Set password").click()
    page.wait_for_url("**/login")
    sign_in(page, name, NEW)
    page.wait_for_url(lambda address: "/login" not in address)
    device = VirtualDevice(page)

    page.goto(f"{url}/me/two-factor")
    card, form = page.locator("#passkeys"), page.locator("form[data-passkey]")
    add = form.get_by_role("button", name="Add a passkey")
    form.get_by_label("Name").fill("My laptop")
    form.get_by_label("Your password").fill("not this one")
    add.click()
    expect(form.get_by_role("alert")).to_contain_text("This is not your password.")
    shown(page, picture, f"passkeys-wrong-password-{look}", full_page=True)
    form.get_by_label("Your password").fill(NEW)
    add.click()
    codes = page.get_by_label("the recovery codes", exact=True).inner_text().split()
    assert len(codes) == 10
    (key,) = device.keys()
    page.get_by_role("link", name="I saved them").click()
    expect(card.get_by_text("not used yet")).to_be_visible()
    form.get_by_label("Your password").fill(NEW)
    add.click()
    expect(form.get_by_role("alert")).to_contain_text("has a passkey of yours for this address already")
    card.locator("summary").click()
    card.get_by_label("Name", exact=True).first.fill("Work laptop")
    shown(page, picture, f"passkeys-change-{look}", full_page=True)
    card.get_by_role("button", name="Rename").click()
    expect(page.get_by_text("Passkey renamed.")).to_be_visible()
    shown(page, picture, f"passkeys-on-{look}", full_page=True)

    sign_out(page)
    sign_in(page, name, NEW)
    use = page.get_by_role("button", name="Use a passkey")
    expect(use).to_be_visible()
    shown(page, picture, f"passkeys-login-{look}")
    device.refuse(True)
    use.click()
    expect(page.get_by_role("alert")).to_contain_text("it was canceled, or took too long")
    shown(page, picture, f"passkeys-login-canceled-{look}")
    device.refuse(False)
    use.click()
    page.wait_for_url(lambda address: "/login" not in address)
    page.goto(f"{url}/me/two-factor")
    expect(card.get_by_text("last used")).to_be_visible()

    admin.goto(f"{platform.url}/admin-console/users/{name}")
    admin.get_by_role("button", name="Sign out everywhere").first.click()
    admin.get_by_role("dialog").get_by_role("button", name="Sign out everywhere").click()
    dialog = page.get_by_role("dialog", name="Your session has ended")
    dialog.get_by_label("Password", exact=True).fill(NEW)
    dialog.get_by_role("button", name="Sign in").click()
    expect(dialog.get_by_role("button", name="Use a passkey")).to_be_visible()
    shown(page, picture, f"passkeys-dialog-{look}")
    dialog.get_by_role("button", name="Use a passkey").click()
    expect(dialog).to_be_hidden()

    sign_out(page)
    device.take(key)  # as it was before it signed in: a copy
    sign_in(page, name, NEW)
    use.click()
    expect(page.get_by_role("alert")).to_contain_text("as if it was copied")
    shown(page, picture, f"passkeys-login-copied-{look}")
    page.get_by_label("Code", exact=True).fill(codes[0])
    page.get_by_role("button", name="Continue").click()
    page.wait_for_url(lambda address: "/login" not in address)

    page.goto(f"{url}/me/two-factor")
    card.locator("summary").click()
    card.get_by_label("Your password").first.fill(NEW)
    card.get_by_role("button", name="Remove").click()
    expect(page.get_by_text("Passkey removed.")).to_be_visible()
    expect(page.get_by_text("Off", exact=True)).to_be_visible()
    sign_out(page)
    sign_in(page, name, NEW)
    page.wait_for_url(lambda address: "/login" not in address)
    assert not blocked, blocked


def test_at_an_ip_address_the_page_says_where_passkeys_work(open_as: Open, platform: Platform) -> None:
    page = open_as("alice", "/me/two-factor")
    said = page.get_by_text("Passkeys don't work at an IP address.")
    expect(said).to_contain_text(f"http://localhost:{platform.port}")
    expect(page.get_by_role("button", name="Add a passkey")).to_have_count(0)


def sign_out(page: Page) -> None:
    """As a person who deletes the cookie: the menu differs between widths."""
    page.context.clear_cookies(name="luthier")
    page.goto(f"{page.url.split('/me')[0].split('/login')[0].rstrip('/')}/login")
