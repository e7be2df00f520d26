"""A page left open over every fault, one after the other, while a job prints: each line once, no reload."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.browser import programs
from tests.browser.test_log_viewer import all_lines, log_of, submitted
from tests.fault.faults import FAULTS, freeze, frozen, lines_so_far
from tests.platform import Client, Platform, wait_for

pytestmark = [pytest.mark.browser, pytest.mark.timeout(400)]

IN_TURN = [name for name in FAULTS if not name.endswith("-s")]
BACK_WITHIN_S = 60


def shown(page: Page) -> int:
    """How many lines the viewer says that it has."""
    found = re.search(r"([\d,]+) lines", page.locator("x-log .log-status").inner_text())
    return int(found[1].replace(",", "")) if found else 0


def catches_up(page: Page, client: Client, job: str, after: str) -> None:
    """Wait until the page has all that the store has by now, once that grows again."""
    before = max(lines_so_far(client, job), shown(page))  # once: a live page may always be ahead of an answer
    wait_for(lambda: lines_so_far(client, job) > before, within_s=60, what=f"lines after {after}")
    stored = lines_so_far(client, job)
    wait_for(
        lambda: shown(page) >= stored, within_s=BACK_WITHIN_S, what=f"{stored} lines shown after {after}"
    )


def test_a_page_left_open_over_all_faults_shows_each_line_once(
    platform: Platform, alice: Client, open_as: Callable[..., Page], meeting: Path
) -> None:
    enough = meeting / "enough"
    job = submitted(alice, "over-all-faults", programs.COUNTS_UNTIL, f"{enough} 5 0.1")
    alice.wait_state(job, "PROCESSING")
    page = open_as("alice", log_of(job))
    expect(page.locator("x-log .log-row").first).to_be_visible()
    page.evaluate("window.stayed = true")
    for name in IN_TURN:
        FAULTS[name](platform, job)
        catches_up(page, alice, job, name)
    with frozen(platform.pids()["valkey"]):
        for _ in range(3):  # live all the time: without hints the store is looked at
            page.wait_for_timeout(10_000)
            catches_up(page, alice, job, "the loss of hints")
    freeze("web", 20)(platform, job)
    catches_up(page, alice, job, "a web server that was frozen")
    expect(page.locator("x-connection")).to_have_text("Live")
    enough.touch()
    ended = alice.wait_state(job, "COMPLETED", within_s=60)
    count = lines_so_far(alice, job)
    expect(page.locator("x-log .log-status")).to_contain_text(f"{count:,} lines", timeout=60_000)
    assert all_lines(page, count) == [(n, f"line {n}") for n in range(1, count + 1)]
    assert page.evaluate("window.stayed"), "the page was reloaded"
    assert (ended["attempt"], ended["restarts_used"]) == (1, 0)
    wait_for(platform.is_ready, within_s=60, what="ready again")
