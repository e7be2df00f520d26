"""The live socket in a real Chromium: two tabs, an ended session, a killed server, and frames that no server sent."""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, Route, WebSocketRoute, expect

from tests.browser import programs
from tests.browser.axe import violations
from tests.browser.conftest import confirm_halt, sign_in, spec
from tests.browser.test_log_viewer import all_lines
from tests.platform import Client, Platform, wait_for

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]
Open = Callable[..., Page]


def trains(client: Client, name: str, steps: int, step_s: float, gate: str = "") -> str:
    command = f"python -u main.py {steps} {step_s} {gate}"
    job = client.submit(spec(name, programs.TRAINER, command=command))["id"]
    client.wait_state(job, "PROCESSING")
    return str(job)


# --- the server's own socket


def test_two_tabs_show_what_one_of_them_did(alice: Client, open_as: Open) -> None:
    job = trains(alice, "two-tabs", 4000, 0.1)
    first = open_as("alice", f"/t/vision-lab/jobs/{job}")
    second = first.context.new_page()
    second.goto(first.url)
    listed = first.context.new_page()
    listed.goto(first.url.rsplit("/", 1)[0] + "?q=two-tabs")
    for page in (first, second):
        expect(page.locator("#job-badge")).to_have_text("Processing", timeout=60_000)
    first.get_by_role("button", name="Halt").click()
    confirm_halt(first)
    for page in (first, second):
        expect(page.locator("#job-badge")).to_have_text("Halted", timeout=60_000)
        expect(page.locator(".receipt")).to_contain_text("Halted, no steps lost")
    expect(listed.locator(f"#job-{job}")).to_contain_text("Halted")
    second.get_by_role("link", name="Cancel").click()
    second.get_by_role("dialog").get_by_role("button", name="Cancel job").click()
    expect(first.locator("#job-badge")).to_have_text("Canceled", timeout=60_000)


def test_an_ended_session_is_renewed_in_a_dialog_and_the_page_is_kept(
    platform: Platform, alice: Client, open_as: Open
) -> None:
    job = trains(alice, "long-session", 4000, 0.1)
    page = open_as("alice", f"/t/vision-lab/jobs/{job}/logs")
    page.get_by_label("Search the log").fill("step 1")
    expect(page.locator("x-connection")).to_have_text("Live")
    page.evaluate("window.stayed = true")
    other = open_as("alice", "/me")
    other.context.clear_cookies()  # another session than the page's
    sign_in(other, platform, "alice")
    other.goto(f"{platform.url}/me")
    other.get_by_role("button", name="Sign out all others").click()

    dialog = page.get_by_role("dialog", name="Your session has ended")
    expect(dialog).to_be_visible(timeout=60_000)
    expect(page.locator(".banner.lost")).to_contain_text("Your session has ended")
    expect(dialog.get_by_label("Username")).to_have_value("alice")
    expect(dialog.get_by_role("textbox", name="Password")).to_be_focused()
    assert not violations(page)
    page.keyboard.type("not the password")
    page.keyboard.press("Enter")
    expect(dialog.get_by_role("alert")).to_be_visible(timeout=60_000)  # a hash takes its time
    expect(dialog.get_by_role("textbox", name="Password")).to_be_focused()
    page.keyboard.type(platform.users["alice"]["password"])
    page.keyboard.press("Enter")
    expect(dialog).to_be_hidden(timeout=60_000)
    expect(page.locator("x-connection")).to_have_text("Live", timeout=60_000)
    expect(page.locator(".banner.lost")).to_have_count(0)
    assert page.get_by_label("Search the log").input_value() == "step 1"
    page.get_by_role("button", name="Halt").click()
    confirm_halt(page)
    expect(page.locator("#job-badge")).to_have_text("Halted", timeout=60_000)
    assert page.evaluate("window.stayed")
    alice.post(f"/jobs/{job}/cancel")


def test_a_dialog_that_was_closed_opens_again_and_another_person_sees_no_old_page(
    platform: Platform, open_as: Open
) -> None:
    page = open_as("alice", "/t/vision-lab/jobs")
    expect(page.locator("x-connection")).to_have_text("Live")
    page.evaluate("window.stayed = true")
    page.context.clear_cookies()
    platform.kill("web", signal.SIGKILL)  # the next socket comes without a session
    dialog = page.get_by_role("dialog", name="Your session has ended")
    expect(dialog).to_be_visible(timeout=60_000)
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    page.get_by_role("button", name="Sign in").click()
    dialog.get_by_label("Username").fill("bob")
    dialog.get_by_role("textbox", name="Password").fill(platform.users["bob"]["password"])
    dialog.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Page not found", timeout=60_000)


def test_a_page_is_not_handed_over_to_whom_another_tab_signed_in(platform: Platform, open_as: Open) -> None:
    bob = open_as("bob", "/me").context.cookies()
    page = open_as("alice", "/t/vision-lab/jobs")
    expect(page.locator("x-connection")).to_have_text("Live")
    page.context.clear_cookies()
    platform.kill("web", signal.SIGKILL)
    dialog = page.get_by_role("dialog", name="Your session has ended")
    expect(dialog).to_be_visible(timeout=60_000)
    page.keyboard.press("Escape")
    page.context.add_cookies(bob)  # type: ignore[arg-type]
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Page not found", timeout=60_000)


def test_numbers_and_curve_are_whole_after_the_web_server_was_killed(
    platform: Platform, alice: Client, open_as: Open, meeting: Path
) -> None:
    gate = meeting / "gate"
    job = trains(alice, "killed-web", 200, 0.05, str(gate))
    page = open_as("alice", f"/t/vision-lab/jobs/{job}")
    expect(page.locator("x-chart canvas").first).to_be_visible(timeout=60_000)
    page.evaluate("window.stayed = true")
    platform.kill("web", signal.SIGKILL)
    wait_for(platform.is_ready, within_s=60)
    gate.touch()  # not before: it must still run when the server dies
    expect(page.locator("#job-badge")).to_have_text("Completed", timeout=60_000)
    expect(page.locator("x-connection")).to_have_text("Live")
    expect(page.locator('x-chart[data-name="loss"] [data-plot]')).to_have_attribute(
        "aria-label", re.compile("at step 200, .* 200 points$"), timeout=60_000
    )
    assert page.evaluate("window.stayed")


# --- frames by script: what a page must bear whatever the server does


@dataclass
class Script:
    """Plays the server of one job's log: a store to read from, and frames that the test chooses."""

    job: str
    lines: int = 0
    requests: list[str] = field(default_factory=list)
    subscribed: list[dict[str, Any]] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    sockets: list[WebSocketRoute] = field(default_factory=list)
    sealed: bool = False
    failures: int = 0  # so many requests are refused
    gap: range = range(0)  # lines that were not kept

    def install(self, page: Page) -> None:
        page.route(re.compile(rf"/api/v1/jobs/{self.job}/logs\?"), self.answer)
        page.route_web_socket(re.compile("/ws/v1/live$"), self.accept)

    @property
    def channel(self) -> str:
        return f"job:{self.job}:logs:1:0"

    def answer(self, route: Route) -> None:
        query = dict(part.split("=") for part in route.request.url.split("?")[1].split("&"))
        self.requests.append(route.request.url)
        if self.failures:
            self.failures -= 1
            return route.fulfill(status=503, json={"title": "Not ready", "code": "not_ready"})
        first = int(query["after"]) + 1 if "after" in query else max(1, self.lines - int(query["tail"]) + 1)
        last = min(self.lines, first + int(query.get("limit", 1000)) - 1)
        gaps = []
        if first in self.gap:
            gaps = [{"from": first, "to": self.gap[-1]}]
            last = max(last, self.gap[-1])
        lines = [item for item in items(first, last) if item["n"] not in self.gap]
        page = {"lines": lines, "gaps": gaps, "next": last, "more": last < self.lines, "total": self.lines}
        return route.fulfill(json={"attempt": 1, "learner": 0, "sealed": self.sealed, **page})

    def accept(self, socket: WebSocketRoute) -> None:
        self.sockets.append(socket)
        socket.on_message(lambda text: self.receive(socket, json.loads(text)))

    def receive(self, socket: WebSocketRoute, frame: dict[str, Any]) -> None:
        if frame["op"] == "ping":
            socket.send('{"op":"pong"}')
        elif frame["op"] == "sub" and frame["ch"] == self.channel:
            self.subscribed.append(frame)
        elif frame["op"] == "unsub":
            self.left.append(frame["ch"])

    def send(self, first: int, last: int) -> None:
        """Lines first to last in one frame, and into the store."""
        self.lines = max(self.lines, last)
        frame = {"ch": self.channel, "from": first, "to": last, "items": items(first, last)}
        self.sockets[-1].send(json.dumps(frame | {"sealed": self.sealed, "tail": None}))

    def skip(self, first: int, last: int, *, lost: bool = False) -> None:
        """A gap frame; what was not lost can be fetched."""
        self.lines = max(self.lines, last)
        gap = {"from": first, "to": last} | ({"lost": True} if lost else {})
        self.sockets[-1].send(json.dumps({"ch": self.channel, "gap": gap}))


def items(first: int, last: int) -> list[dict[str, Any]]:
    return [{"n": n, "t": "2026-11-21T12:00:00.000Z", "text": f"line {n}"} for n in range(first, last + 1)]


@pytest.fixture(scope="module")
def quiet(platform: Platform) -> str:
    """A job that ran; what its log says is up to the script."""
    client = platform.client("alice")
    job = client.submit(spec("scripted", "print('hello')"))["id"]
    client.wait_state(job, "COMPLETED")
    return str(job)


@pytest.fixture
def script(quiet: str, open_as: Open) -> tuple[Script, Page]:
    script = Script(quiet)
    page = open_as("alice", "/healthz")
    script.install(page)
    page.goto(page.url.replace("/healthz", f"/t/vision-lab/jobs/{quiet}/logs"))
    wait_for(lambda: (page.wait_for_timeout(20), script.subscribed)[1], within_s=60)
    return script, page


def test_what_comes_twice_is_shown_once(script: tuple[Script, Page]) -> None:
    server, page = script
    for first, last in ((1, 30), (20, 30), (1, 30), (31, 40), (25, 45)):
        server.send(first, last)
    expect(page.locator("x-log .log-status")).to_contain_text("45 lines")
    assert all_lines(page, 45) == [(n, f"line {n}") for n in range(1, 46)]


def test_what_was_skipped_is_fetched_and_what_was_lost_is_named(script: tuple[Script, Page]) -> None:
    server, page = script
    server.send(1, 100)
    server.skip(101, 1500)
    server.send(1501, 1600)
    expect(page.locator("x-log .log-status")).to_contain_text("1,600 lines")
    assert all_lines(page, 1600) == [(n, f"line {n}") for n in range(1, 1601)]
    page.locator("x-log .log-scroller").focus()
    page.keyboard.press("End")
    server.skip(1601, 1603, lost=True)
    server.send(1604, 1604)
    expect(page.locator('x-log .log-row[data-n="1602"]')).to_contain_text("not stored")
    expect(page.locator('x-log .log-row[data-n="1604"]')).to_contain_text("line 1604")


def test_a_server_that_restarts_is_reached_again_from_the_cursor_and_in_silence(
    script: tuple[Script, Page],
) -> None:
    server, page = script
    server.send(1, 50)
    expect(page.locator("x-log .log-status")).to_contain_text("50 lines")
    page.evaluate(
        "new MutationObserver(() => { window.alarmed ||= document.querySelector('.banner.lost') !== null })"
        ".observe(document.body, {childList: true, subtree: true})"
    )
    server.sockets[-1].close(code=1012)
    wait_for(lambda: (page.wait_for_timeout(20), len(server.subscribed) == 2)[1], within_s=60)
    assert server.subscribed[-1]["after"] == 50
    server.send(51, 60)
    expect(page.locator("x-log .log-status")).to_contain_text("60 lines")
    expect(page.locator("x-connection")).to_have_text("Live")
    assert not page.evaluate("window.alarmed")


def until(page: Page, is_so: Callable[[], object]) -> None:
    wait_for(lambda: (page.wait_for_timeout(20), is_so())[1], within_s=60)


def test_a_list_shows_an_ended_job_as_ended_after_a_reconnect_that_says_nothing_of_it(
    alice: Client, open_as: Open
) -> None:
    job = trains(alice, "unseen-end", 4000, 0.1)
    sockets: list[WebSocketRoute] = []

    def accept(socket: WebSocketRoute) -> None:
        sockets.append(socket)
        socket.on_message(lambda text: answer(socket, json.loads(text)))

    def answer(socket: WebSocketRoute, frame: dict[str, Any]) -> None:
        if frame["op"] == "sub":
            socket.send(json.dumps({"ch": frame["ch"], "from": 1, "to": 0, "items": []}))
        elif frame["op"] == "ping":
            socket.send('{"op":"pong"}')

    page = open_as("alice", "/healthz")
    page.route_web_socket(re.compile("/ws/v1/live$"), accept)
    page.goto(page.url.replace("/healthz", "/t/vision-lab/jobs"))
    row = page.locator(f"#job-{job}")
    expect(row).to_contain_text("Processing")
    until(page, lambda: sockets)
    alice.post(f"/jobs/{job}/cancel")
    alice.wait_state(job, "CANCELED")
    sockets[-1].close(code=1012)
    expect(row).to_contain_text("Canceled", timeout=60_000)


def test_a_log_that_could_not_be_loaded_is_asked_for_again(script: tuple[Script, Page]) -> None:
    server, page = script
    server.send(1, 50)
    server.failures = 1
    server.subscribed.clear()
    page.reload()
    expect(page.locator("x-log .log-status")).to_contain_text("50 lines", timeout=60_000)
    until(page, lambda: server.subscribed)
    server.send(51, 60)
    expect(page.locator("x-log .log-status")).to_contain_text("60 lines")


def test_a_log_that_has_ended_leaves_its_channel_and_misses_no_gap_at_its_end(
    script: tuple[Script, Page],
) -> None:
    server, page = script
    server.send(1, 5)
    expect(page.locator("x-log .log-status")).to_contain_text("5 lines")
    server.sealed = True
    server.lines, server.gap = 9, range(7, 10)
    server.send(6, 6)  # as the server has it: the last lines with the state, then the gap behind them
    server.skip(7, 9, lost=True)
    until(page, lambda: server.channel in server.left)
    expect(page.locator("x-log .log-status")).to_contain_text("9 lines")
    expect(page.locator("x-log .log-status")).to_contain_text("End of log")
    assert len(server.subscribed) == 1


def test_a_search_that_is_stopped_and_cleared_while_it_runs_is_over(script: tuple[Script, Page]) -> None:
    server, page = script
    server.send(1, 5)
    expect(page.locator("x-log .log-status")).to_contain_text("5 lines")
    found = page.locator("x-log .match-count")
    found.evaluate(
        "cell => new MutationObserver(() => { window.texts = (window.texts ?? '') + cell.textContent + ';' })"
        ".observe(cell, {childList: true, characterData: true, subtree: true})"
    )
    held: list[Route] = []
    page.route(re.compile(r"/logs\?.*&q=first"), lambda route: held.append(route))
    page.get_by_label("Search the log").fill("first")
    until(page, lambda: held)
    page.get_by_label("Stop search").click()
    expect(page.locator("x-log .log-status")).to_contain_text("Search stopped at line 1")
    page.get_by_label("Clear search").click()
    server.answer(held[0])  # too late: the browser has given the request up
    expect(page.get_by_label("Search the log")).to_have_value("")
    expect(found).to_have_text("")
    page.get_by_label("Search the log").fill("second")
    expect(found).to_have_text(re.compile("^1 of"))
    assert "failed" not in page.evaluate("window.texts")
    expect(page.locator("x-log .log-status")).not_to_contain_text("Search")


def test_lines_that_were_not_kept_are_passed_over_in_one_step(script: tuple[Script, Page]) -> None:
    server, page = script
    server.lines, server.gap = 15_002, range(4, 15_001)
    page.reload()
    expect(page.locator("x-log .log-status")).to_contain_text("15,002 lines")
    server.requests.clear()
    page.get_by_role("button", name="Jump to the first error").click()
    expect(page.get_by_text("No errors in this log.")).to_be_visible()
    assert len(server.requests) <= 3, server.requests


def test_a_link_to_an_attempt_that_is_not_shown_opens_that_attempt(script: tuple[Script, Page]) -> None:
    server, page = script
    server.lines = 50

    def with_many_attempts(route: Route) -> None:
        answer = route.fetch()
        text = answer.text().replace('data-attempts="1"', 'data-attempts="45"')
        route.fulfill(response=answer, body=text.replace('data-learners="1"', 'data-learners="25"'))

    page.route(re.compile(r"/t/vision-lab/jobs/[^/]+/logs\?"), with_many_attempts)
    page.goto(page.url + "?learner=0&attempt=all#a1-L20")
    attempt = page.get_by_label("Attempt", exact=True)
    expect(attempt).to_have_value("1")
    expect(page.locator("x-log .log-row.picked .message")).to_have_text("line 20")
    expect(attempt.locator("option").first).to_have_text("Newest 40 attempts")
    page.get_by_label("Learner", exact=True).select_option(label="All 25 learners")
    expect(attempt.locator("option").first).to_have_text("Newest attempt")


@pytest.mark.parametrize("code", [4403, 4404])
def test_a_server_that_refuses_the_page_is_not_asked_again(script: tuple[Script, Page], code: int) -> None:
    server, page = script
    server.send(1, 5)
    expect(page.locator("x-log .log-status")).to_contain_text("5 lines")
    server.sockets[-1].close(code=code)
    expect(page.locator(".banner.lost")).to_contain_text("The server refuses live updates")
    expect(page.locator("x-connection")).to_have_text("Not live")
    page.wait_for_timeout(1_500)  # the first two pauses of a reconnect
    assert len(server.sockets) == 1
    assert not violations(page)


def test_fifty_thousand_lines_at_once_are_all_there_and_the_page_stays_small(
    script: tuple[Script, Page],
) -> None:
    server, page = script
    for first in range(1, 50_001, 500):
        server.send(first, first + 499)
    began = time.monotonic()
    expect(page.locator("x-log .log-status")).to_contain_text("50,000 lines", timeout=60_000)
    expect(page.locator('x-log .log-row[data-n="50000"] .message')).to_have_text("line 50000")
    print(f"50,000 lines in {time.monotonic() - began:.1f} s")
    assert page.locator("x-log .log-row").count() <= 200
    page.locator("x-log .log-scroller").focus()
    page.keyboard.press("Home")
    expect(page.locator('x-log .log-row[data-n="1"] .message')).to_have_text("line 1")
    assert not server.requests[1:], "everything came by the socket"


# --- text from outside

HOSTILE = "<img src=x onerror=alert(1)>\"'><b>name</b>"


def test_a_name_with_markup_is_shown_as_text_everywhere(alice: Client, open_as: Open) -> None:
    job = alice.submit(spec(HOSTILE, programs.WAITER))["id"]
    alice.wait_state(job, "PROCESSING")
    page = open_as("alice", f"/t/vision-lab/jobs/{job}")
    dialogs: list[str] = []
    page.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
    for path in ("", "/logs", "/spec", "/events", "/cancel"):
        page.goto(page.url.split(job)[0] + job + path)
        expect(page.get_by_role("heading", level=1)).to_have_text(HOSTILE)
    page.goto(page.url.split(job)[0] + job)
    expect(page.locator("#job-badge")).to_have_text("Processing")
    assert HOSTILE in page.title()
    alice.post(f"/jobs/{job}/cancel")
    expect(page.locator("#job-badge")).to_have_text("Canceled", timeout=60_000)
    expect(page.locator("#toasts")).to_contain_text(HOSTILE)
    for path in ("", "?q=img"):
        page.goto(page.url.split("/jobs")[0] + "/jobs" + path)
        expect(page.locator(f"#job-{job}")).to_contain_text(HOSTILE)
    page.goto(page.url.split("/jobs")[0] + f"/jobs/new?from={job}")
    expect(page.get_by_label("Name", exact=True)).to_have_value(HOSTILE)
    page.goto(page.url.split("/jobs")[0] + "/")
    expect(page.locator("main")).to_contain_text(HOSTILE)
    assert page.locator("main img, main b b").count() == 0
    assert dialogs == []


def test_a_line_of_a_megabyte_neither_stops_the_page_nor_is_lost(alice: Client, open_as: Open) -> None:
    job = alice.submit(spec("one-line", "print('x' * 1_000_000)\nprint('after it')"))["id"]
    alice.wait_state(job, "COMPLETED")
    page = open_as("alice", f"/t/vision-lab/jobs/{job}/logs")
    expect(page.locator('x-log .log-row[data-n="2"] .message')).to_have_text("after it")
    more = page.get_by_role("button", name=re.compile(r"show [\d,]+ more characters"))
    expect(more).to_be_visible()
    shown = page.locator('x-log .log-row[data-n="1"] .message').inner_text().count("x")
    left = int(re.sub(r"\D", "", more.inner_text()))
    assert shown + left == 1_000_000
    assert shown <= 20_000
    assert alice.raw_log(job, attempt=1) == b"x" * 1_000_000 + b"\nafter it\n"


def test_another_s_job_is_not_there_neither_as_page_nor_as_channel(
    platform: Platform, alice: Client, open_as: Open
) -> None:
    job = alice.submit(spec("mine-alone", "print('hello')"))["id"]
    page = open_as("bob", f"/t/vision-lab/jobs/{job}")
    expect(page.get_by_role("heading", level=1)).to_have_text("Page not found")
    page.goto(f"{platform.url}/t/nlp-research/jobs")
    answers = page.evaluate(
        """(channels) => new Promise((resolve) => {
            const socket = new WebSocket(`ws://${location.host}/ws/v1/live`), frames = [];
            socket.onopen = () => channels.forEach((ch) => socket.send(JSON.stringify({op: 'sub', ch})));
            socket.onmessage = ({data}) => {
                const frame = JSON.parse(data);
                if (frame.ch && frames.push(frame) === channels.length) { socket.close(); resolve(frames); }
            };
        })""",
        [
            f"job:{job}",
            f"job:{job}:logs:1:0",
            f"job:{job}:metrics",
            "job:000000000000",
            "tenant:vision-lab:jobs",
        ],
    )
    assert {frame["error"]["code"] for frame in answers} == {"not_found"}
    assert len({frame["error"]["message"] for frame in answers}) == 1
