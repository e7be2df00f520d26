"""Pages in a state that loading them does not show: with a dialog open.

Each in both themes, on a desk and on a phone: nothing for axe to find, and no sideways scroll.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Page, expect

from tests.browser import programs
from tests.browser.axe import violations
from tests.browser.conftest import spec
from tests.platform import Client, Platform

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]
Open = Callable[..., Page]
Picture = Callable[..., None]
LOOKS = [(theme, width) for width in (1440, 390) for theme in ("light", "dark")]


def faults(page: Page, picture: Picture, name: str) -> list[str]:
    """What is wrong with the page as it stands, in every look."""
    found = []
    for theme, width in LOOKS:
        page.set_viewport_size({"width": width, "height": 900 if width > 760 else 844})
        page.emulate_media(color_scheme="dark" if theme == "dark" else "light", reduced_motion="reduce")
        expect(page.locator("html")).to_have_attribute("data-theme", theme)
        picture(page, f"{name}-{width}-{theme}")
        found += [f"{theme} {width}: {line}" for line in violations(page)]
        if page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth"):
            found.append(f"{theme} {width}: scrolls sideways")
    page.set_viewport_size({"width": 1440, "height": 900})
    return found


@pytest.fixture(scope="module")
def running(platform: Platform) -> Iterator[str]:
    """A job that goes on for as long as anybody looks."""
    client: Client = platform.client("alice")
    job = client.submit(spec("goes-on", programs.TRAINER, command="python -u main.py 4000 0.1"))["id"]
    client.wait_state(job, "PROCESSING")
    yield str(job)
    client.post(f"/jobs/{job}/cancel")


def opened(page: Page, opener: str, *, link: bool = False) -> None:
    page.get_by_role("link" if link else "button", name=opener, exact=True).first.click()
    expect(page.locator("dialog:popover-open, dialog[open]").first).to_be_visible()


def test_canceling_a_job(running: str, open_as: Open, picture: Picture) -> None:
    page = open_as("alice", f"/t/vision-lab/jobs/{running}")
    opened(page, "Cancel", link=True)
    expect(page.get_by_role("link", name="Keep it")).to_be_focused()
    assert not faults(page, picture, "dialog-cancel")


@pytest.mark.parametrize(
    ("who", "path", "opener"),
    [
        ("dave", "/t/vision-lab/members", "Remove alice"),
        ("dave", "/t/vision-lab/tokens", "New token"),
        ("dave", "/t/vision-lab/tokens", "New account"),
    ],
)
def test_a_dialog_of_a_form(open_as: Open, picture: Picture, who: str, path: str, opener: str) -> None:
    page = open_as(who, path)
    opened(page, opener)
    assert not faults(page, picture, "dialog-" + opener.lower().replace(" ", "-"))
