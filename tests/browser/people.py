"""Steps of the journeys of users, as a person takes them: invited, in, out, and asked for the password again."""

from __future__ import annotations

from collections.abc import Callable

from playwright.sync_api import Locator, Page, expect

from tests.browser.axe import violations

Open = Callable[..., Page]
Picture = Callable[..., None]
NEW = "a brand new passphrase"


def invite(page: Page, name: str, picture: Picture) -> str:
    """Create the user in the console; the link that the next page shows."""
    page.get_by_label("Username").fill(name)
    page.get_by_label("E-mail address").fill(f"{name}@example.org")
    shown(page, picture, f"admin-user-new-{page.viewport_size['width']}")  # type: ignore[index]
    page.get_by_role("button", name="Create user").click()
    expect(page.get_by_text("Shown once.")).to_be_visible()
    shown(page, picture, f"admin-user-invited-{page.viewport_size['width']}", full_page=True)  # type: ignore[index]
    return page.get_by_label("the link", exact=True).inner_text()


def set_password(page: Page) -> None:
    """Choose NEW, on the page to which the link of an invitation leads; then the page is that of the login."""
    page.get_by_label("New password", exact=True).fill(NEW)
    page.get_by_label("Confirm new password").fill(NEW)
    page.get_by_role("button", name="Set password").click()
    page.wait_for_url("**/login")


def accept(page: Page, link: str) -> None:
    """Open the link of an invitation and set the password NEW."""
    page.goto(link)
    page.get_by_role("button", name="Continue").click()
    set_password(page)


def sign_in(page: Page, name: str, password: str = NEW) -> None:
    """Send the form of the login page. Callers await the answer that they expect."""
    page.get_by_label("Username").fill(name)
    page.get_by_label("Password", exact=True).fill(password)
    page.get_by_role("button", name="Sign in").click()


def arrived(page: Page) -> None:
    """Wait until the sign-in is over."""
    page.wait_for_url(lambda address: "/login" not in address)


def enter_code(at: Page | Locator, code: str) -> None:
    """A code of an app or a recovery code, where it is asked: on the page, or in the dialog."""
    at.get_by_label("Code", exact=True).fill(code)
    at.get_by_role("button", name="Continue").click()


def saved_codes(page: Page) -> list[str]:
    """The recovery codes that the page shows once."""
    codes = page.get_by_label("the recovery codes", exact=True).inner_text().split()
    assert len(codes) == 10
    return codes


def end_sessions(admin: Page, console: str) -> None:
    """As an admin, on the page of the user."""
    admin.goto(console)
    admin.get_by_role("button", name="Sign out everywhere").first.click()
    admin.get_by_role("dialog").get_by_role("button", name="Sign out everywhere").click()


def password_again(page: Page) -> Locator:
    """Give the password in the dialog of a page whose session has ended; the dialog."""
    dialog = page.get_by_role("dialog", name="Your session has ended")
    dialog.get_by_label("Password", exact=True).fill(NEW)
    dialog.get_by_role("button", name="Sign in").click()
    return dialog


def sign_out(page: Page) -> None:
    """As a person who deletes the cookie: the menu differs between widths."""
    page.context.clear_cookies(name="luthier")
    page.goto(f"{page.url.split('/me')[0].split('/login')[0].rstrip('/')}/login")


def shown(page: Page, picture: Picture, name: str, **more: object) -> None:
    """Keep a picture, and find no fault of accessibility or width."""
    picture(page, name, **more)
    assert not violations(page)
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
