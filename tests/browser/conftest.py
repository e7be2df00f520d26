"""A real Chromium against a real platform: `make up` in a folder of its own, once per run."""

from __future__ import annotations

import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from tests.examples.programs import share
from tests.identity_provider.process import IdentityProvider
from tests.platform import Client, Platform

os.environ.setdefault("DJANGO_ALLOW_ASYNC_UNSAFE", "true")  # Playwright keeps a loop in the test's thread
expect.set_options(
    timeout=60_000
)  # most of what is expected comes from a server; CI's machine is slow at times
KEPT_S = 300
"""For how long tests share a session: forms of the console ask again who it is after ten minutes."""
CHOICES = ("chromium-headless-shell", "chromium", "chromium-browser")
CHROMIUM = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, CHOICES)), "")
PICTURES = Path(os.environ.get("LUTHIER_PICTURES", "")) if os.environ.get("LUTHIER_PICTURES") else None


@pytest.fixture(scope="session")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Platform, IdentityProvider]]:
    data = tmp_path_factory.mktemp("up")
    share(data)
    platform = Platform(data, nodes="node-a:cpu:4,node-b:cpu:4")
    with IdentityProvider(platform.url) as provider:
        platform.env |= provider.environment()
        try:
            yield platform.start(), provider
        finally:
            platform.stop()


@pytest.fixture(scope="session")
def platform(installation: tuple[Platform, IdentityProvider]) -> Platform:
    return installation[0]


@pytest.fixture
def meeting(platform: Platform) -> Path:
    """A folder that programs and this test share; what else is outside their own folders no program reaches."""
    folder = platform.meeting / uuid.uuid4().hex
    folder.mkdir(parents=True)
    return folder


@pytest.fixture(scope="session")
def identity_provider(installation: tuple[Platform, IdentityProvider]) -> IdentityProvider:
    """By which people sign in at the platform, beside their passwords."""
    return installation[1]


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    if not CHROMIUM:
        pytest.fail("No Chromium: install Debian's `chromium`, or name one with CHROMIUM=...")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--force-color-profile=srgb"]
        )
        yield started
        started.close()


@pytest.fixture(scope="session")
def sessions() -> dict[str, Any]:
    """The cookies of who has signed in, and when: a password takes its time, and once in a while is enough."""
    return {}


@pytest.fixture
def open_as(browser: Browser, platform: Platform, sessions: dict[str, Any]) -> Iterator[Callable[..., Page]]:
    """A page of a signed-in person: open_as("alice", "/path", width=390, theme="dark")."""
    opened: list[BrowserContext] = []
    blocked: list[str] = []

    def open_one(
        name: str = "alice", path: str = "/", *, width: int = 1440, height: int = 900, theme: str = "light"
    ) -> Page:
        context = browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme="dark" if theme == "dark" else "light",
            reduced_motion="reduce",
            locale="en-US",
            timezone_id="UTC",
        )
        opened.append(context)
        page = context.new_page()
        page.set_default_timeout(60_000)
        context.on(
            "console",
            lambda said: blocked.append(said.text) if "Content Security Policy" in said.text else None,
        )
        cookies, began = sessions.get(name, ([], float("-inf")))
        if time.monotonic() - began < KEPT_S:
            context.add_cookies(cookies)
        page.goto(platform.url + path)
        if "/login" in page.url or not context.cookies():
            sign_in(page, platform, name)
            sessions[name] = (context.cookies(), time.monotonic())
            page.goto(platform.url + path)
        scripts_run(page)
        return page

    yield open_one
    for context in opened:
        context.close()
    assert not blocked, blocked


def scripts_run(page: Page) -> None:
    """Wait for the scripts of a page's elements: they are loaded after it, and a key pressed before is not for them."""
    expect(page.locator(":not(:defined)")).to_have_count(0)


def sign_in(page: Page, platform: Platform, name: str) -> None:
    """Log in by the form, as a person does."""
    page.goto(f"{platform.url}/login")
    page.locator("input[name=username]").fill(name)
    page.locator("input[type=password]").fill(platform.users[name]["password"])
    page.locator("input[type=password]").press("Enter")
    page.wait_for_url(lambda url: "/login" not in url)


@pytest.fixture
def alice(platform: Platform) -> Client:
    return platform.client("alice")


@pytest.fixture
def picture() -> Callable[[Page, str], None]:
    """Keep a picture of the page where LUTHIER_PICTURES says so."""

    def take(page: Page, name: str, **more: Any) -> None:
        if PICTURES is not None:
            PICTURES.mkdir(parents=True, exist_ok=True)
            page.evaluate("document.fonts.ready")
            page.screenshot(path=PICTURES / f"{name}.png", **more)

    return take


def confirm_halt(page: Page) -> None:
    """Answer the question before a halt where it is asked: the dialog opens with the press."""
    if page.locator("#halt-dialog[open]").count():
        page.locator("#halt-dialog").get_by_role("button", name="Halt job").click()


def spec(name: str, program: str, **changes: Any) -> dict[str, Any]:
    """A one-learner CPU job that runs this Python program on the platform's plain runtime."""
    return {
        "apiVersion": "luthier/v1",
        "name": name,
        "framework": "plain",
        "code": {"files": {"main.py": program}},
        "command": "python -u main.py",
        "resources": {"learners": 1, "gpus": 0, "cpus": 1, "memory": "512Mi"},
    } | changes


@pytest.fixture
def fresh(browser: Browser, platform: Platform) -> Iterator[Callable[..., Page]]:
    """A page of a browser that has never been here."""
    made: list[BrowserContext] = []

    def make(*, width: int = 1440, theme: str = "light") -> Page:
        context = browser.new_context(
            viewport={"width": width, "height": 900},
            color_scheme="dark" if theme == "dark" else "light",
            reduced_motion="reduce",
        )
        made.append(context)
        return context.new_page()

    yield make
    for context in made:
        context.close()
