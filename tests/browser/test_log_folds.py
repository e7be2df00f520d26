"""Tracebacks fold, errors are found wherever they are, the job's single keys, and one number in tile and chart."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.browser import programs
from tests.browser.conftest import confirm_halt, scripts_run, spec
from tests.browser.test_log_viewer import ROWS, first_visible, log_of, submitted
from tests.platform import Client, wait_for

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]
Open = Callable[..., Page]

TRACEBACKS = """\
import sys, traceback

def deep(n):
    if n:
        return eval("deep(n - 1)")
    raise ValueError("bottom reached")

before, after = int(sys.argv[1]), int(sys.argv[2])
print("".join(f"line {n}\\n" for n in range(1, before + 1)), end="", flush=True)
try:
    deep(6)
except ValueError:
    traceback.print_exc()
sys.stderr.flush()
print("".join(f"after {n}\\n" for n in range(1, after + 1)), end="", flush=True)
"""


def numbers(page: Page) -> list[int]:
    return [row[0] for row in page.evaluate(ROWS)]


def test_a_traceback_folds_and_unfolds_without_moving_what_is_above(alice: Client, open_as: Open) -> None:
    job = submitted(alice, "folded", TRACEBACKS, "5 60")
    alice.wait_state(job, "COMPLETED")
    page = open_as("alice", log_of(job))
    page.locator("x-log .log-scroller").focus()
    page.keyboard.press("Home")
    fold = page.locator("x-log .fold")
    expect(fold).to_have_attribute("aria-expanded", "false")
    head = page.locator('x-log .log-row[data-n="6"]')
    expect(head).to_contain_text("Traceback (most recent call last): …")
    hidden = int(head.inner_text().split("…")[1].split(" lines")[0])
    assert hidden >= 8
    assert [n for n in numbers(page) if 6 < n <= 6 + hidden] == []
    expect(page.locator(f'x-log .log-row[data-n="{7 + hidden}"]')).to_contain_text(
        "ValueError: bottom reached"
    )
    place = first_visible(page)
    fold.press("Enter")
    expect(page.locator('x-log .log-row[data-n="7"]')).to_contain_text('File "')
    expect(fold).to_be_focused()
    assert first_visible(page) == place
    fold.click()
    expect(page.locator('x-log .log-row[data-n="7"]')).to_have_count(0)
    page.get_by_label("Search the log").fill("in deep")
    expect(page.locator("x-log mark.highlight.current").first).to_be_visible()  # a match in a fold opens it
    expect(fold).to_have_attribute("aria-expanded", "true")
    page.goto(page.url.split("?")[0] + "#L9")
    page.reload()
    expect(page.locator('x-log .log-row[data-n="9"].picked')).to_be_visible()


@pytest.mark.parametrize("before", [3_000, 25_000])
def test_the_first_error_is_found_where_nothing_is_loaded(alice: Client, open_as: Open, before: int) -> None:
    """In a log that is read through, and in one so long that the server is asked."""
    job = submitted(alice, "far-error", TRACEBACKS, f"{before} 4000")
    alice.wait_state(job, "COMPLETED")
    page = open_as("alice", log_of(job))
    expect(page.locator("x-log .log-status")).to_contain_text("End of log", timeout=60_000)
    page.get_by_label("Jump to the first error").click()
    expect(page.locator(f'x-log .log-row[data-n="{before + 1}"].picked')).to_be_visible(timeout=60_000)
    expect(page.locator(f'x-log .log-row[data-n="{before + 2}"]')).to_contain_text('File "')


def test_single_keys_of_the_job_page(alice: Client, open_as: Open) -> None:
    job = str(alice.submit(spec("by-keys", programs.TRAINER, command="python -u main.py 4000 0.1"))["id"])
    alice.wait_state(job, "PROCESSING")
    page = open_as("alice", f"/t/vision-lab/jobs/{job}")
    page.keyboard.press("5")
    page.wait_for_url(f"**/{job}/events")
    page.keyboard.press("3")
    page.wait_for_url(f"**/{job}/logs")
    scripts_run(page)
    search = page.get_by_label("Search the log")
    search.press_sequentially("1h")
    assert page.url.endswith("/logs")
    assert alice.job(job)["intent"] == "RUN"  # keys are text in a field
    search.press("Escape")
    search.press("Escape")  # the first one stops the search where it still runs
    expect(search).not_to_be_focused()
    page.locator("body").press("h")
    confirm_halt(page)
    alice.wait_state(job, "HALTED", within_s=60)
    page.keyboard.press("1")
    page.wait_for_url(f"**/jobs/{job}")
    expect(page.locator("#job-actions").get_by_role("button", name="Resume")).to_be_visible()
    page.keyboard.press("r")
    alice.wait_state(job, "PROCESSING", within_s=60)
    page.keyboard.press("d")
    page.wait_for_url(f"**/jobs/new?from={job}")
    alice.post(f"/jobs/{job}/cancel")


def test_tile_and_chart_say_the_same_number_while_it_moves(alice: Client, open_as: Open) -> None:
    job = str(alice.submit(spec("one-truth", programs.TRAINER, command="python -u main.py 4000 0.1"))["id"])
    alice.wait_state(job, "PROCESSING")
    page = open_as("alice", f"/t/vision-lab/jobs/{job}")
    expect(page.locator("x-chart").first).to_be_visible(timeout=60_000)
    both = """() => ['#job-kpis [data-value="metric:loss"]', 'x-chart[data-name=loss] [data-value]']
        .map((one) => document.querySelector(one)?.textContent)"""
    seen: set[str] = set()
    wait_for(lambda: _same(page.evaluate(both), seen) and len(seen) > 4, within_s=60, every_s=0.05)
    alice.post(f"/jobs/{job}/cancel")


def _same(pair: list[str], seen: set[str]) -> bool:
    assert pair[0] == pair[1]
    seen.add(pair[0])
    return True
