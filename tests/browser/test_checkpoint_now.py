"""Checkpoint now: offered once the program asks, by key and button, and the program runs on."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from examples import catalog
from tests.browser.axe import in_both_themes
from tests.browser.layout import misfits
from tests.platform import Client, wait_for

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]
Open = Callable[..., Page]


def test_a_running_program_saves_when_it_is_asked_and_goes_on(
    alice: Client, open_as: Open, picture: Callable[..., None]
) -> None:
    spec = catalog.load("digits-sklearn") | {
        "name": "saves",
        "command": "python train.py --steps 20000 --step-s 0.1 --checkpoint-s 86400",
    }
    job = alice.submit(spec)["id"]
    page = open_as("alice", f"/t/vision-lab/jobs/{job}")
    page.evaluate("window.stayed = true")
    button = page.get_by_role("button", name="Checkpoint now")
    expect(button).to_be_visible(timeout=120_000)
    assert saved(alice, job) == []
    assert not in_both_themes(page, picture, "checkpoint-now")
    for width in (390, 1440):
        page.set_viewport_size({"width": width, "height": 900})
        assert not misfits(page)

    page.keyboard.press("s")

    expect(page.locator("#toasts")).to_contain_text("Checkpoint requested")
    expect(page.locator("#job-events")).to_contain_text("Checkpoint requested by alice")
    (first,) = wait_for(lambda: saved(alice, job), within_s=60, what="the checkpoint is stored")
    expect(button).to_be_visible()
    button.click()
    wait_for(lambda: len(saved(alice, job)) == 2, within_s=60, what="the second one, too")
    assert page.evaluate("window.stayed")
    expect(page.locator("#job-badge")).to_have_text("Processing")
    step = alice.job(job)["progress"]["step"]
    wait_for(lambda: alice.job(job)["progress"]["step"] > step, within_s=30, what="it goes on")
    assert first["step"] < saved(alice, job)[0]["step"]
    alice.post(f"/jobs/{job}/cancel")
    expect(button).to_be_hidden()


def saved(client: Client, job: str) -> list[dict[str, int]]:
    """The job's committed checkpoints, the newest first."""
    items = client.get(f"/jobs/{job}/checkpoints")["items"]
    return [one for one in items if one["state"] == "COMMITTED"]
