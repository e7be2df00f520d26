"""The log of all attempts in one stream: a border between two of them, one search, and places that stay."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.browser.test_log_viewer import log_of, submitted
from tests.platform import Client, wait_for

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]
Open = Callable[..., Page]
LINES = 300

PRINTS_AND_WAITS = f"""\
import sys, time
from pathlib import Path
from learner_agent import training

saved = training.resume_from()
n = int((saved / "n").read_text()) + 1 if saved else 1
print("".join(f"try {{n}} line {{at}}\\n" for at in range(1, {LINES})) + f"UserWarning: try {{n}}", flush=True)
while not training.halt_requested():
    if Path(sys.argv[1]).exists():
        sys.exit(0)
    time.sleep(0.05)
with training.checkpoint(n * 40) as folder:
    (folder / "n").write_text(str(n))
"""

SHOWN = """() => { const { top } = document.querySelector('x-log .log-scroller').getBoundingClientRect();
    return [...document.querySelectorAll('x-log .log-row')]
        .map((row) => [row.dataset.key, row.getBoundingClientRect().top - top])
        .filter(([, offset]) => offset >= -1) }"""


def printed(client: Client, job: str, attempt: int) -> None:
    wait_for(lambda: client.raw_log(job, attempt=attempt).count(b"\n") == LINES, within_s=60)


def again(client: Client, job: str, attempt: int) -> None:
    """Halt the job and let it go on, until its next attempt has printed."""
    client.post(f"/jobs/{job}/halt")
    client.wait_state(job, "HALTED")
    client.post(f"/jobs/{job}/resume")
    client.wait_state(job, "PROCESSING")
    printed(client, job, attempt)


def test_all_attempts_are_one_log(alice: Client, open_as: Open, meeting: Path) -> None:
    enough = meeting / "enough"
    job = submitted(alice, "attempts", PRINTS_AND_WAITS, str(enough))
    alice.wait_state(job, "PROCESSING")
    printed(alice, job, 1)
    again(alice, job, 2)
    page = open_as("alice", log_of(job))
    status = page.locator("x-log .log-status")
    expect(status).to_contain_text(f"{LINES} lines")  # the newest attempt alone, until more are asked for
    page.get_by_label("Attempt", exact=True).select_option(label="All attempts")
    expect(status).to_contain_text(f"{2 * LINES} lines")

    page.get_by_label("Search the log").fill(f"try 1 line {LINES - 1}")
    expect(page.locator("x-log .match-count")).to_have_text("1 of 1")
    expect(page.locator("x-log mark.highlight.current")).to_be_visible()
    border = page.locator("x-log .log-row.border")
    expect(border).to_have_text(
        re.compile(
            r"^Attempt 1 ended \d\d:\d\d:\d\d: halted → Attempt 2 began \d\d:\d\d:\d\d, resumed from step 40$"
        )
    )
    keys = page.locator("x-log .log-row").evaluate_all("rows => rows.map((row) => row.dataset.key)")
    at = keys.index("2:0:0")
    assert keys[at - 2 : at + 3] == [f"1:0:{LINES - 1}", f"1:0:{LINES}", "2:0:0", "2:0:1", "2:0:2"]

    page.locator(f'x-log .log-row[data-key="1:0:{LINES - 1}"] .number').click()
    page.get_by_label("Clear search").click()
    assert page.url.endswith(f"attempt=all#a1-L{LINES - 1}")
    page.reload()
    picked = page.locator("x-log .log-row.picked")
    expect(picked).to_have_attribute("data-key", f"1:0:{LINES - 1}")
    expect(picked).to_be_in_viewport()
    expect(border).to_be_in_viewport()

    before = page.evaluate(SHOWN)[0]
    again(alice, job, 3)
    expect(status).to_contain_text(f"{3 * LINES} lines", timeout=60_000)
    assert page.evaluate(SHOWN)[0] == before  # a new attempt moves nothing that is read
    expect(page.get_by_label("Attempt", exact=True).locator("option")).to_have_text(
        ["All attempts", "Attempt 3", "Attempt 2", "Attempt 1"]
    )
    page.locator("x-log .log-scroller").press("End")
    expect(page.locator(f'x-log .log-row[data-key="3:0:{LINES}"]')).to_be_in_viewport()
    enough.touch()
    alice.wait_state(job, "COMPLETED")
    expect(status).to_contain_text("End of log", timeout=60_000)

    page.get_by_role("button", name="Warn").click()
    expect(page.locator("x-log .log-row .message")).to_have_text([f"UserWarning: try {n}" for n in (1, 2, 3)])
    expect(border).to_have_count(2)


def test_a_link_to_a_line_of_an_earlier_attempt_opens_it(alice: Client, open_as: Open, meeting: Path) -> None:
    enough = meeting / "enough"
    job = submitted(alice, "linked", PRINTS_AND_WAITS, str(enough))
    alice.wait_state(job, "PROCESSING")
    printed(alice, job, 1)
    again(alice, job, 2)
    enough.touch()
    alice.wait_state(job, "COMPLETED")
    page = open_as("alice", log_of(job, "#a1-L20-22"))
    picked = page.locator("x-log .log-row.picked")
    expect(picked.locator(".message")).to_have_text([f"try 1 line {n}" for n in (20, 21, 22)])
    expect(page.get_by_label("Attempt", exact=True)).to_have_value("1")
