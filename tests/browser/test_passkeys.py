"""Passkeys, with Chromium's own virtual device: added, signed in with, refused when copied, removed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from playwright.sync_api import CDPSession, Locator, Page, expect

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
    sign_out,
)
from tests.platform import Platform

pytestmark = pytest.mark.browser


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


@dataclass(frozen=True)
class Owner:
    """A person with a device, at the page of the second factor or on the way there."""

    page: Page
    device: VirtualDevice
    name: str
    url: str
    picture: Picture
    look: str

    @property
    def card(self) -> Locator:
        return self.page.locator("#passkeys")

    @property
    def form(self) -> Locator:
        return self.page.locator("form[data-passkey]")

    @property
    def use(self) -> Locator:
        return self.page.get_by_role("button", name="Use a passkey")

    def shown(self, name: str, **more: object) -> None:
        shown(self.page, self.picture, f"passkeys-{name}-{self.look}", **more)

    def to_profile(self) -> None:
        self.page.goto(f"{self.url}/me/two-factor")

    def sign_in_again(self) -> None:
        sign_out(self.page)
        sign_in(self.page, self.name)

    def send(self, password: str) -> None:
        """The form of a new passkey."""
        self.form.get_by_label("Your password").fill(password)
        self.form.get_by_role("button", name="Add a passkey").click()


@pytest.mark.parametrize(("width", "theme"), [(1440, "light"), (390, "dark")])
def test_a_passkey_is_added_signs_in_and_is_removed(
    open_as: Open,
    fresh: Callable[..., Page],
    platform: Platform,
    picture: Picture,
    width: int,
    theme: str,
) -> None:
    name, url = f"passkey-{theme}", f"http://localhost:{platform.port}"
    page = fresh(width=width, theme=theme)
    blocked = blocked_by_the_policy(page)
    admin = open_as("admin", "/admin-console/new-user", width=width, theme=theme)
    accept(page, invite(admin, name, picture).replace(platform.url, url))
    sign_in(page, name)
    arrived(page)
    owner = Owner(page, VirtualDevice(page), name, url, picture, f"{width}-{theme}")
    codes, key = adds_one(owner)
    adds_no_second_of_the_same_device_and_renames_it(owner)
    signs_in_with_it_after_canceling_once(owner)
    end_sessions(admin, f"{platform.url}/admin-console/users/{name}")
    signs_in_with_it_in_the_dialog(owner)
    is_refused_with_a_copy_and_enters_a_code(owner, key, codes[0])
    removes_it(owner)
    assert not blocked, blocked


def blocked_by_the_policy(page: Page) -> list[str]:
    """What the browser says that it blocked, as the page goes on."""
    found: list[str] = []
    page.context.on(
        "console", lambda said: found.append(said.text) if "Content Security" in said.text else None
    )
    return found


def adds_one(owner: Owner) -> tuple[list[str], dict[str, Any]]:
    """With the password only: the recovery codes, and the key on the device."""
    owner.to_profile()
    owner.form.get_by_label("Name").fill("My laptop")
    owner.send("not this one")
    expect(owner.form.get_by_role("alert")).to_contain_text("This is not your password.")
    owner.shown("wrong-password", full_page=True)
    owner.send(NEW)
    codes = saved_codes(owner.page)
    (key,) = owner.device.keys()
    owner.page.get_by_role("link", name="I saved them").click()
    expect(owner.card.get_by_text("not used yet")).to_be_visible()
    return codes, key


def adds_no_second_of_the_same_device_and_renames_it(owner: Owner) -> None:
    owner.send(NEW)
    expect(owner.form.get_by_role("alert")).to_contain_text("has a passkey of yours for this address already")
    owner.card.locator("summary").click()
    owner.card.get_by_label("Name", exact=True).first.fill("Work laptop")
    owner.shown("change", full_page=True)
    owner.card.get_by_role("button", name="Rename").click()
    expect(owner.page.get_by_text("Passkey renamed.")).to_be_visible()
    owner.shown("on", full_page=True)


def signs_in_with_it_after_canceling_once(owner: Owner) -> None:
    owner.sign_in_again()
    expect(owner.use).to_be_visible()
    owner.shown("login")
    owner.device.refuse(True)
    owner.use.click()
    expect(owner.page.get_by_role("alert")).to_contain_text("it was canceled, or took too long")
    owner.shown("login-canceled")
    owner.device.refuse(False)
    owner.use.click()
    arrived(owner.page)
    owner.to_profile()
    expect(owner.card.get_by_text("last used")).to_be_visible()


def signs_in_with_it_in_the_dialog(owner: Owner) -> None:
    dialog = password_again(owner.page)
    use = dialog.get_by_role("button", name="Use a passkey")
    expect(use).to_be_visible()
    owner.shown("dialog")
    use.click()
    expect(dialog).to_be_hidden()


def is_refused_with_a_copy_and_enters_a_code(owner: Owner, key: dict[str, Any], code: str) -> None:
    """key: as it was before it signed in."""
    sign_out(owner.page)
    owner.device.take(key)
    sign_in(owner.page, owner.name)
    owner.use.click()
    expect(owner.page.get_by_role("alert")).to_contain_text("as if it was copied")
    owner.shown("login-copied")
    enter_code(owner.page, code)
    arrived(owner.page)


def removes_it(owner: Owner) -> None:
    """From then on the password alone signs in."""
    owner.to_profile()
    owner.card.locator("summary").click()
    owner.card.get_by_label("Your password").first.fill(NEW)
    owner.card.get_by_role("button", name="Remove").click()
    expect(owner.page.get_by_text("Passkey removed.")).to_be_visible()
    expect(owner.page.get_by_text("Off", exact=True)).to_be_visible()
    owner.sign_in_again()
    arrived(owner.page)


def test_at_an_ip_address_the_page_says_where_passkeys_work(open_as: Open, platform: Platform) -> None:
    page = open_as("alice", "/me/two-factor")
    said = page.get_by_text("Passkeys don't work at an IP address.")
    expect(said).to_contain_text(f"http://localhost:{platform.port}")
    expect(page.get_by_role("button", name="Add a passkey")).to_have_count(0)
