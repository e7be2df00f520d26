"""The log viewer in a real Chromium: each line once, nothing moves under the reader, old data looks old."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, Route, expect

from tests.browser import programs
from tests.browser.conftest import spec
from tests.platform import Client, Platform, wait_for

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]
Open = Callable[..., Page]

ROWS = """() => [...document.querySelectorAll('x-log .log-row')]
    .map((row) => [Number(row.dataset.n), row.querySelector('.message').textContent, row.getBoundingClientRect().top])
    .sort((a, b) => a[2] - b[2])"""


DRAWN = "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
"""The frame after a key was pressed is over."""


def submitted(client: Client, name: str, program: str, arguments: str = "", **changes: Any) -> str:
    job = client.submit(spec(name, program, command=f"python -u main.py {arguments}", **changes))
    return str(job["id"])


def log_of(job: str, more: str = "") -> str:
    return f"/t/vision-lab/jobs/{job}/logs{more}"


def counted(page: Page) -> int:
    """How many lines the viewer says that it has."""
    return int(page.locator("x-log .log-status").inner_text().split(" lines")[0].split()[-1].replace(",", ""))


def first_visible(page: Page) -> tuple[int, float]:
    top = page.locator("x-log .log-scroller").bounding_box()
    assert top
    n, _, y = next(row for row in page.evaluate(ROWS) if row[2] >= top["y"] - 1)
    return n, y


def all_lines(page: Page, count: int) -> list[tuple[int, str]]:
    """Every line that the viewer shows, by scrolling from the first to the last."""
    seen: dict[int, str] = {}
    page.locator("x-log .log-scroller").focus()
    page.keyboard.press("Home")
    wait_for(lambda: page.evaluate(ROWS)[0][0] == 1, within_s=60)
    deadline = time.monotonic() + 90
    while len(seen) < count and time.monotonic() < deadline:
        wait_for(lambda: all(text != "…" for _, text, _ in page.evaluate(ROWS)), within_s=60)
        for n, text, _ in page.evaluate(ROWS):
            assert seen.setdefault(n, text) == text
        page.keyboard.press("PageDown")
        page.evaluate(DRAWN)
    return sorted(seen.items())


def test_lines_come_by_themselves_and_each_once_over_a_killed_web_server(
    platform: Platform, alice: Client, open_as: Open, meeting: Path
) -> None:
    enough = meeting / "enough"
    job = submitted(
        alice, "counted", programs.COUNTS_UNTIL, f"{enough} 50 0.5"
    )  # 100 lines a second bound what is to be read in the end
    alice.wait_state(job, "PROCESSING")
    page = open_as("alice", log_of(job))
    expect(page.locator("x-log .log-row").first).to_be_visible()
    for _ in range(2):
        platform.kill("web", signal.SIGKILL)
        wait_for(platform.is_ready, within_s=60)
        page.wait_for_timeout(1500)
    enough.touch()  # it has printed all the while, however long the web server took
    alice.wait_state(job, "COMPLETED", within_s=90)
    count = alice.raw_log(job, attempt=1).count(b"\n")
    expect(page.locator("x-log .log-status")).to_contain_text(f"{count:,} lines", timeout=60_000)
    assert all_lines(page, count) == [(n, f"line {n}") for n in range(1, count + 1)]


def test_what_is_read_stays_where_it_is_while_ten_thousand_lines_come(
    alice: Client, open_as: Open, meeting: Path
) -> None:
    enough = meeting / "enough"
    job = submitted(alice, "flood", programs.COUNTS_UNTIL, f"{enough} 500 0.7")
    page = open_as("alice", log_of(job))
    expect(page.locator("x-log .log-status")).to_contain_text(",", timeout=60_000)
    page.locator("x-log .log-scroller").hover()
    page.mouse.wheel(0, -600)
    expect(page.locator("x-log .log-status")).to_contain_text("Paused")
    page.wait_for_timeout(300)
    before = first_visible(page)
    count = counted(page)
    wait_for(lambda: counted(page) >= count + 10_000, within_s=90, every_s=0.3)
    assert first_visible(page) == before
    expect(page.locator("x-log .newest")).to_contain_text("new lines")
    page.locator("x-log .newest").click()
    expect(page.locator("x-log .log-status")).to_contain_text("Following")
    enough.touch()
    alice.wait_state(job, "COMPLETED", within_s=60)
    last = alice.raw_log(job, attempt=1).decode().splitlines()[-1]
    wait_for(lambda: page.evaluate(ROWS)[-1][1] == last, within_s=60)


def test_the_first_pixel_of_a_scroll_back_stops_following(
    alice: Client, open_as: Open, meeting: Path
) -> None:
    enough = meeting / "enough"
    job = submitted(alice, "quiet", programs.COUNTS_UNTIL, f"{enough} 500 0.7")
    page = open_as("alice", log_of(job))
    expect(page.locator("x-log .log-status")).to_contain_text("Following", timeout=60_000)
    page.locator("x-log .log-row").last.hover()
    page.mouse.wheel(0, -1)
    expect(page.locator("x-log .log-status")).to_contain_text("Paused")
    page.locator("x-log .log-scroller").press("End")
    expect(page.locator("x-log .log-status")).to_contain_text("Following")
    enough.touch()
    alice.wait_state(job, "COMPLETED", within_s=60)


def test_a_reader_who_goes_to_the_start_while_the_lines_load_is_left_there(
    alice: Client, open_as: Open
) -> None:
    job = submitted(alice, "slow-to-load", programs.COUNTER, "200 200 0")
    alice.wait_state(job, "COMPLETED")
    page = open_as("alice", "/healthz")
    held: list[Route] = []
    logs = re.compile(rf"/api/v1/jobs/{job}/logs\?")
    page.route(logs, lambda route: held.append(route) if not held else route.continue_())
    page.goto(page.url.replace("/healthz", log_of(job)))
    wait_for(lambda: (page.wait_for_timeout(20), held)[1], within_s=60)
    page.locator("x-log .log-scroller").press("Home")
    held[0].continue_()
    expect(page.locator("x-log .log-status")).to_contain_text("200 lines")
    expect(page.locator('x-log .log-row[data-n="1"] .message')).to_have_text("line 1")


def test_rows_are_in_reading_order_in_the_document(alice: Client, open_as: Open) -> None:
    job = submitted(alice, "order", programs.COUNTER, "2000 500 0")
    alice.wait_state(job, "COMPLETED")
    page = open_as("alice", log_of(job))
    expect(page.locator("x-log .log-row").last).to_be_visible()
    scroller = page.locator("x-log .log-scroller")
    for key in ("PageUp", "PageUp", "PageUp", "PageDown", "ArrowUp", "Home", "PageDown"):
        scroller.press(key)
        page.wait_for_timeout(60)
        numbers = [int(number) for number in page.locator("x-log .log-row .number").all_inner_texts()]
        assert numbers == sorted(numbers), key


def test_a_log_that_has_ended_is_neither_followed_nor_paused(alice: Client, open_as: Open) -> None:
    job = submitted(alice, "over", programs.COUNTER, "2000 500 0")
    alice.wait_state(job, "COMPLETED")
    page = open_as("alice", log_of(job))
    status = page.locator("x-log .log-status")
    expect(status).to_contain_text("End of log")
    expect(status).not_to_contain_text("Following")
    page.locator("x-log .log-scroller").press("Home")
    expect(status).to_contain_text("line 1")
    expect(status).not_to_contain_text("Paused")
    end = page.get_by_role("button", name="Go to the end")
    assert end.get_attribute("aria-pressed") is None
    end.click()
    expect(page.locator("x-log .log-row .message", has_text="line 2000")).to_be_visible()
    end.click()  # it leads to the end however often
    expect(page.locator("x-log .log-row .message", has_text="line 2000")).to_be_visible()


def test_the_focus_ring_of_the_log_is_drawn_above_its_rows(alice: Client, open_as: Open) -> None:
    job = submitted(alice, "focus", programs.BROKEN, "")
    alice.wait_state(job, "FAILED")
    page = open_as("alice", log_of(job))
    expect(page.locator("x-log .log-row").first).to_be_visible()
    page.locator("x-log .log-scroller").press("Home")
    outline = page.evaluate(
        "() => { const style = getComputedStyle(document.querySelector('.log-pane'), '::after');"
        " return [style.content, style.borderTopWidth, style.position, style.pointerEvents] }"
    )
    assert outline == ['""', "2px", "absolute", "none"]


def test_the_log_keeps_the_focus_when_its_script_comes(alice: Client, open_as: Open) -> None:
    """Until then the lines are those that the server rendered, in a scroller of their own."""
    job = submitted(alice, "early-focus", programs.COUNTER, "200 200 0")
    alice.wait_state(job, "COMPLETED")
    page = open_as("alice", "/healthz")
    held: list[Route] = []
    page.route("**/x-log-*.js", lambda route: held.append(route))
    page.goto(page.url.replace("/healthz", log_of(job)))
    scroller = page.locator("x-log .log-scroller")
    scroller.focus()
    expect(scroller).to_be_focused()
    wait_for(lambda: (page.wait_for_timeout(20), held)[1], within_s=60)
    held.pop().continue_()
    expect(page.locator("x-log .log-toolbar")).to_be_visible()
    expect(scroller).to_be_focused()
    page.keyboard.press("Home")
    expect(page.locator('x-log .log-row[data-n="1"]')).to_be_visible()


def test_search_finds_lines_that_are_not_loaded_and_a_link_opens_at_its_line(
    alice: Client, open_as: Open
) -> None:
    job = submitted(alice, "searched", programs.COUNTER, "5000 1000 0")
    alice.wait_state(job, "COMPLETED")
    page = open_as("alice", log_of(job))
    expect(page.locator("x-log .log-status")).to_contain_text("End of log")  # from where the search begins
    page.get_by_label("Search the log").fill("line 123")
    expect(page.locator("x-log .match-count")).to_have_text("11 of 11")
    page.get_by_label("Next match").click()
    expect(page.locator("x-log mark.highlight.current")).to_have_text("line 123")
    page.get_by_label("Next match").click()
    expect(page.locator('x-log .log-row[data-n="1230"]')).to_be_visible()
    page.goto(page.url.split("?")[0] + "#L2500-2502")
    page.reload()
    expect(page.locator('x-log .log-row[data-n="2500"].picked')).to_be_visible()
    assert page.locator("x-log .log-row.picked").count() == 3


def test_output_is_text_whatever_it_says(alice: Client, open_as: Open) -> None:
    job = submitted(alice, "colors", programs.COLORS)
    alice.wait_state(job, "COMPLETED")
    page = open_as("alice", log_of(job))
    dialogs: list[str] = []
    page.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
    expect(page.locator('x-log .log-row[data-n="1"] .ansi-1')).to_have_text("red")
    expect(page.locator('x-log .log-row[data-n="2"]')).to_contain_text(
        "<img src=x onerror=alert(1)> & <b>not bold</b>"
    )
    assert page.locator("x-log img").count() == 0
    hrefs = page.eval_on_selector_all("x-log .log-row a", "links => links.map((link) => link.href)")
    assert hrefs == ["https://example.org/page?x=1"]
    expect(page.locator('x-log .log-row[data-n="6"] .message')).to_have_text("done   ")
    expect(page.locator('x-log .log-row[data-n="7"] .message')).to_have_text("no newline at the end")
    page.get_by_role("button", name="show 20,000 more characters").click()
    wait_for(
        lambda: len(page.locator('x-log .log-row[data-n="5"] .message').inner_text()) == 30_000, within_s=60
    )
    assert dialogs == []


def test_the_first_error_is_one_key_away(alice: Client, open_as: Open) -> None:
    job = submitted(alice, "broken", programs.BROKEN)
    alice.wait_state(job, "FAILED")
    page = open_as("alice", f"/t/vision-lab/jobs/{job}")
    expect(page.locator(".fail")).to_contain_text("Learner 0 failed with ValueError: cannot read shard <3>")
    expect(page.locator(".fail .log-line.error-line").last).to_contain_text(
        "ValueError: cannot read shard <3>"
    )
    page.get_by_role("link", name="View error").click()
    expect(page.locator("x-log .log-row.picked")).to_contain_text("ValueError: cannot read shard <3>")
    expect(page.locator("x-log .log-row.error-line", has_text="ValueError")).to_be_in_viewport()
    expect(page.locator("x-log .newest")).to_be_hidden()  # the end is in sight: nothing leads to it
    expect(page.locator('x-log [data-level="error"] .count')).to_have_text(re.compile(r"^[1-9]\d*$"))
    expect(page.locator("x-log .ticks .error-ticks")).to_have_attribute("d", re.compile("^M0 "))
    page.get_by_role("button", name="Error", exact=True).click()
    expect(page.locator("x-log .log-row.error-line", has_text="ValueError")).to_be_visible()


def test_all_learners_are_shown_in_order_of_time(alice: Client, open_as: Open) -> None:
    job = submitted(
        alice,
        "gang",
        programs.TRAINER,
        "20 0.05",
        resources={"learners": 2, "gpus": 0, "cpus": 1, "memory": "256Mi"},
    )
    alice.wait_state(job, "COMPLETED")
    page = open_as("alice", log_of(job))
    page.get_by_label("Learner", exact=True).select_option("all")
    expect(page.locator("x-log .rank").first).to_be_visible()
    page.reload()  # the address holds the choice
    expect(page.get_by_label("Learner", exact=True)).to_have_value("all")
    expect(page.get_by_role("log")).to_have_accessible_name(re.compile("^Log of all learners, "))
    for rank in ("L0", "L1"):
        expect(page.locator("x-log .rank", has_text=rank).first).to_be_attached()
    assert set(page.locator("x-log .rank").all_inner_texts()) == {"L0", "L1"}
    times = page.evaluate(
        """() => [...document.querySelectorAll('x-log .log-row')]
            .sort((a, b) => a.getBoundingClientRect().top - b.getBoundingClientRect().top)
            .map((row) => row.querySelector('.timestamp').textContent)"""
    )
    assert times == sorted(times)


def test_a_page_that_is_no_longer_live_looks_old_and_recovers_by_itself(
    platform: Platform, alice: Client, open_as: Open
) -> None:
    job = submitted(alice, "long", programs.TRAINER, "4000 0.1")
    alice.wait_state(job, "PROCESSING")
    page = open_as("alice", f"/t/vision-lab/jobs/{job}")
    expect(page.locator("x-connection")).to_have_text("Live")
    web = platform.pids()["web"]
    os.kill(web, signal.SIGSTOP)
    try:
        expect(page.locator(".banner.lost")).to_contain_text("Live updates paused since", timeout=60_000)
        assert (
            page.locator("[data-live-region][data-stale]").count()
            == page.locator("[data-live-region]").count()
        )
        expect(page.locator("#job-kpis .as-of")).to_contain_text("as of")
    finally:
        os.kill(web, signal.SIGCONT)
    expect(page.locator(".banner.lost")).to_have_count(0, timeout=60_000)
    assert page.locator("[data-stale]").count() == 0
    alice.post(f"/jobs/{job}/cancel")
    expect(page.locator("#job-badge")).to_have_text("Canceled", timeout=60_000)
    wait_for(lambda: page.title().startswith("Canceled"), within_s=60)
