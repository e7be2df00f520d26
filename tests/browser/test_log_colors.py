"""Colors that carry over lines, and a search that stops, in a real Chromium."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, Route, expect

from tests.browser import programs
from tests.browser.conftest import spec
from tests.platform import Client

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]
Open = Callable[..., Page]

CARRIED = r"""
for n in range(1, 3001):
    before = {1: "\033[31m", 1950: "\033[32m", 2990: "\033[1;33m"}.get(n, "")
    after = {5: "\033[0m", 2050: "\033[39m"}.get(n, "")
    print(f"{before}line {n}{after}")
"""


def submitted(client: Client, name: str, program: str, arguments: str = "") -> str:
    job = client.submit(spec(name, program, command=f"python -u main.py {arguments}"))
    client.wait_state(str(job["id"]), "COMPLETED")
    return str(job["id"])


def colors(page: Page, n: int) -> str:
    message = page.locator(f'x-log .log-row[data-n="{n}"] .message')
    expect(message).to_have_text(f"line {n}")
    return str(message.evaluate("message => [...message.children].map((part) => part.className).join()"))


def test_a_color_lasts_over_lines_until_its_reset_wherever_the_viewer_opens(
    alice: Client, open_as: Open, picture: Callable[..., None]
) -> None:
    job = submitted(alice, "carried-colors", CARRIED)
    page = open_as("alice", f"/t/vision-lab/jobs/{job}/logs#L3")
    assert [colors(page, n) for n in (1, 3, 5, 6)] == ["ansi-1", "ansi-1", "ansi-1", ""]
    picture(page, "log-colors")
    page.goto(page.url.split("#")[0] + "#L2040")
    page.reload()
    assert [colors(page, n) for n in (2030, 2050, 2051)] == ["ansi-2", "ansi-2", ""]
    page = open_as("alice", f"/t/vision-lab/jobs/{job}")  # its newest 40 lines
    page.locator("x-log").scroll_into_view_if_needed()
    assert colors(page, 3000) == "ansi-3 ansi-bold"


def test_a_search_can_be_stopped_says_where_it_is_and_goes_on(
    alice: Client, open_as: Open, picture: Callable[..., None]
) -> None:
    job = submitted(alice, "stopped-search", programs.COUNTER, "5000 1000 0")
    page = open_as("alice", f"/t/vision-lab/jobs/{job}/logs")
    expect(page.locator("x-log .log-status")).to_contain_text("5,000 lines")
    held: list[Route] = []

    def part(route: Route) -> None:
        """The server's answer as if its time were over at line 1,000; the next request gets none."""
        if "after=0" not in route.request.url:
            return held.append(route)
        answer = route.fetch()
        body = answer.json()
        body |= {"lines": [line for line in body["lines"] if line["n"] <= 1000], "next": 1000, "more": True}
        return route.fulfill(response=answer, json=body)

    asked = re.compile(r"/logs\?.*q=")
    page.route(asked, part)
    page.get_by_label("Search the log").fill("line 123")
    expect(page.locator("x-log .log-status")).to_contain_text("Searching…")
    expect(page.locator("x-log .match-count")).to_have_text("1+")
    with page.expect_event("requestfailed", lambda request: "after=1000" in request.url):
        page.get_by_role("button", name="Stop search").click()
    expect(page.locator("x-log .log-status")).to_contain_text("Search stopped at line 1,000")
    picture(page, "log-search-stopped")
    page.unroute(asked)
    page.get_by_role("button", name="Search on").click()
    expect(page.locator("x-log .match-count")).to_have_text(re.compile(r"^(\d+ of )?11$"))
    expect(page.locator("x-log .log-status")).not_to_contain_text("Search")
    page.get_by_role("button", name="Clear search").click()
    expect(page.get_by_label("Search the log")).to_have_value("")
