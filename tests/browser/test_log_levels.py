"""Levels, address, colors and staleness of the log tab in a real Chromium."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Page, Request, expect

from tests.browser.conftest import spec
from tests.platform import Client, Platform

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]
Open = Callable[..., Page]

FAILS = r"""
import sys, time, warnings
for n in range(1, 60_001):
    print(f"step {n} loss 0.5")
    if n == 100:
        print("WARNING: the loader is slow")
        print("\x1b[38;5;208morange\x1b[39m \x1b[41mred back\x1b[49m", end=" ")
        print("\x1b[7mreversed\x1b[27m plain \x1b[1mbold\x1b[22m thin")
    if n == 30_000:
        print("ERROR: shard 3 is damaged")
sys.stdout.flush()
def train():
    raise ValueError("no such batch")
train()
"""


def log_of(job: str, more: str = "") -> str:
    return f"/t/vision-lab/jobs/{job}/logs{more}"


@pytest.fixture(scope="module")
def jobs() -> dict[str, str]:
    return {}


@pytest.fixture
def failed(alice: Client, jobs: dict[str, str]) -> str:
    """A job with 60,000 lines, one warning and two errors, the second a traceback."""
    if "failed" not in jobs:
        jobs["failed"] = str(alice.submit(spec("levels", FAILS, command="python main.py"))["id"])
        alice.wait_state(jobs["failed"], "FAILED", within_s=120)
    return jobs["failed"]


def count(level: str) -> str:
    return f'x-log [data-level="{level}"] .count'


def test_levels_are_counted_and_filtered_in_a_few_requests(open_as: Open, failed: str) -> None:
    page = open_as("alice", "/healthz")
    asked: list[str] = []

    def note(request: Request) -> None:
        if f"/jobs/{failed}/logs" in request.url and "/api/" in request.url:
            asked.append(request.url)

    page.on("request", note)
    page.goto(page.url.replace("/healthz", log_of(failed)))
    expect(page.locator(count("warn"))).to_have_text("1")
    expect(page.locator(count("error"))).to_have_text("2")  # a traceback is one error
    page.get_by_role("button", name="Error", exact=True).click()
    expect(page.locator("x-log .log-row", has_text="ERROR: shard 3 is damaged")).to_be_visible()
    expect(page.locator("x-log .log-row", has_text="ValueError: no such batch")).to_be_visible()
    expect(page.locator("x-log .log-row", has_text="loss")).to_have_count(0)
    assert len(asked) <= 6, asked
    page.get_by_role("button", name="Warn", exact=True).click()
    expect(page.locator("x-log .log-row")).to_have_count(1)
    expect(page.locator("x-log .log-row.warning-line")).to_contain_text("the loader is slow")


def test_the_address_holds_level_search_and_line_and_is_followed(open_as: Open, failed: str) -> None:
    page = open_as("alice", log_of(failed))
    page.get_by_role("button", name="Error", exact=True).click()
    page.get_by_label("Search the log").fill("shard")
    expect(page).to_have_url(re.compile(r"level=error.*q=shard"))
    expect(page.locator("x-log .match-count")).to_have_text("1 of 1")
    page.reload()
    expect(page.get_by_role("button", name="Error", exact=True)).to_have_attribute("aria-pressed", "true")
    expect(page.get_by_label("Search the log")).to_have_value("shard")
    expect(page.locator("x-log .log-row", has_text="ERROR: shard 3 is damaged")).to_be_visible()
    expect(page.locator("x-log .log-row", has_text="loss")).to_have_count(0)
    page.evaluate("location.hash = '#L45000'")  # a line of no level: all lines are shown
    expect(page.locator('x-log .log-row[data-n="45000"].picked')).to_be_in_viewport()
    expect(page).not_to_have_url(re.compile("level="))
    page.evaluate("location.hash = '#L20-21'")
    expect(page.locator('x-log .log-row[data-n="20"].picked')).to_be_in_viewport()
    expect(page.locator("x-log .log-row.picked")).to_have_count(2)
    page.reload()  # the line of the address stays in sight while the search goes on
    expect(page.locator("x-log .match-count")).to_have_text("1 of 1")
    expect(page.locator('x-log .log-row[data-n="20"].picked')).to_be_in_viewport()
    page.go_back()
    expect(page.locator('x-log .log-row[data-n="45000"].picked')).to_be_in_viewport()


CONTRAST = """(span) => {
    const parse = (text) => { const canvas = document.createElement("canvas").getContext("2d"); canvas.fillStyle = text;
        canvas.fillRect(0, 0, 1, 1); return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3); };
    const light = (rgb) => { const [r, g, b] = rgb.map((p) => p / 255)
        .map((p) => p <= 0.03928 ? p / 12.92 : ((p + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
    let under = span;
    while (getComputedStyle(under).backgroundColor === "rgba(0, 0, 0, 0)") under = under.parentElement;
    const [a, b] = [parse(getComputedStyle(span).color), parse(getComputedStyle(under).backgroundColor)].map(light);
    return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
}"""


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_colors_backgrounds_and_resets_are_drawn_and_readable(open_as: Open, failed: str, theme: str) -> None:
    page = open_as("alice", log_of(failed, "#L102"))
    page.evaluate("(theme) => { document.documentElement.dataset.theme = theme }", theme)
    row = page.locator('x-log .log-row[data-n="102"] .message')
    expect(row).to_have_text("orange red back reversed plain bold thin")
    expect(row.locator("span")).to_have_text(["orange", "red back", "reversed", "bold"])
    expect(row.locator("span").nth(1)).to_have_css("background-color", "rgb(205, 0, 0)")
    expect(row.locator("span.ansi-bold")).to_have_css("font-weight", "650")
    if shots := os.environ.get("SHOTS"):
        page.screenshot(path=f"{shots}/log-{theme}.png")
    for span in row.locator("span").all():
        assert span.evaluate(CONTRAST) >= 4.5, span.inner_text()


@pytest.fixture
def frozen(platform: Platform) -> Iterator[Callable[[], None]]:
    web = platform.pids()["web"]
    yield lambda: os.kill(web, signal.SIGSTOP)
    os.kill(web, signal.SIGCONT)


def test_the_whole_tab_is_dimmed_while_it_is_stale(
    open_as: Open, failed: str, frozen: Callable[[], None]
) -> None:
    page = open_as("alice", log_of(failed, "#L102"))
    expect(page.locator("x-connection")).to_have_text("Live")
    row = page.locator('x-log .log-row[data-n="101"] .message')
    expect(row).to_be_visible()
    before = row.evaluate("(row) => getComputedStyle(row).color")
    frozen()
    tab = page.locator(".log-tab[data-stale]")
    expect(tab).to_be_visible(timeout=60_000)
    expect(tab.locator(".as-of")).to_contain_text("as of")
    expect(page.locator("x-log")).to_have_css("filter", "grayscale(1)")
    assert row.evaluate("(row) => getComputedStyle(row).color") != before
    if shots := os.environ.get("SHOTS"):
        page.screenshot(path=f"{shots}/log-stale.png")
    for span in page.locator('x-log .log-row[data-n="102"] .message span').all():
        assert span.evaluate(CONTRAST) >= 4.5, span.inner_text()
