"""The main job, as a researcher does it: submit from the form, watch, halt, read the receipt, resume, complete."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import yaml
from playwright.sync_api import Page, expect

from tests.browser import programs
from tests.browser.conftest import spec
from tests.platform import Client, wait_for

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

STEPS = 400


def test_submit_watch_halt_resume_and_complete_without_a_reload(
    alice: Client, open_as: Callable[..., Page], picture: Callable[..., None]
) -> None:
    page = open_as("alice", "/t/vision-lab/jobs/new", height=1000)
    text = yaml.safe_dump(
        spec("journey", programs.TRAINER, command=f"python -u main.py {STEPS} 0.05"), sort_keys=False
    )
    editor = page.locator(".cm-content")
    editor.click()
    page.keyboard.press("ControlOrMeta+A")
    page.keyboard.insert_text(text)
    page.get_by_role("button", name="Submit job").click()
    page.wait_for_url(re.compile(r"/jobs/[0-9a-z]{12}$"), timeout=30_000)
    job = page.url.rsplit("/", 1)[1]
    page.evaluate("window.stayed = true")

    badge = page.locator("#job-badge")
    expect(badge).to_have_text("Processing", timeout=60_000)
    loss = page.locator('#job-kpis [data-hot="metric:loss"]')
    expect(loss).to_be_visible(timeout=20_000)
    first = loss.inner_text()
    expect(loss).not_to_have_text(first, timeout=10_000)
    expect(page.locator("x-chart canvas").first).to_be_visible(timeout=20_000)
    expect(page.locator("x-log .lr").last).to_contain_text("step")
    expect(page).to_have_title(re.compile(r"^\d+% Processing · journey"))
    page.wait_for_timeout(2_000)  # a curve worth a picture
    picture(page, "job-page")

    page.get_by_role("button", name="Halt").click()
    expect(badge).to_have_text("Halted", timeout=60_000)
    receipt = page.locator(".rcp")
    expect(receipt).to_contain_text("Halted with nothing lost")
    expect(receipt.locator("#steps-lost")).to_have_text(re.compile(r"^0"))
    expect(receipt).to_contain_text(re.compile(r"\d+\.\d s"))
    halted = alice.job(job)
    kept = halted["last_halt"]
    assert kept["steps_lost"] == 0
    assert f"step {kept['step']}" in receipt.inner_text().replace(",", "")
    picture(page, "job-page-halted")

    page.get_by_role("button", name="Resume", exact=True).click()
    expect(badge).to_have_text("Processing", timeout=60_000)
    # The viewer goes over to the new attempt by itself.
    expect(page.locator("x-log .lr", has_text=f"starting at step {kept['step']}")).to_be_attached(
        timeout=20_000
    )
    expect(badge).to_have_text("Completed", timeout=90_000)
    wait_for(lambda: page.evaluate("window.stayed === true"), within_s=5, what="the page was never reloaded")
    expect(page.locator("x-log .lr", has_text="done")).to_be_visible(timeout=10_000)
    expect(page.locator('#job-kpis [data-hot="progress"]')).to_have_text("100%")
    ended = alice.job(job)
    assert (ended["state"], ended["attempt"], ended["progress"]["step"]) == ("COMPLETED", 2, STEPS)
    picture(page, "job-page-completed")
