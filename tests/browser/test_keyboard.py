"""The main job without a mouse: every step by keys alone, and the focus can always be seen."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from tests.browser import programs
from tests.browser.conftest import spec
from tests.platform import Client, Platform, wait_for

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

SEEN = """() => {
    const e = document.activeElement, s = getComputedStyle(e), b = e.getBoundingClientRect();
    // A radio of a tile shows its focus on the box around it, the editor on its card, the log above its rows.
    const ringed = (one) => {
        const style = one && getComputedStyle(one);
        return one && style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) > 0;
    };
    const shadowed = (one) => one && getComputedStyle(one).boxShadow !== 'none';
    const over = (one) => {
        const style = one && getComputedStyle(one, '::after');
        return one && style.content !== 'none' && style.position === 'absolute' && parseFloat(style.borderTopWidth) > 0;
    };
    const marked = [e, e.parentElement, e.closest('.cm-editor') && e.closest('.card')].some(ringed)
        || [e, e.parentElement].some(shadowed) || over(e.parentElement);
    const inside = b.bottom > 0 && b.top < innerHeight && b.right > 0 && b.left < innerWidth;
    return {name: e.outerHTML.slice(0, 120), body: e === document.body, marked, inside};
}"""


def tab_to(page: Page, target: Locator, *, most: int = 80) -> None:
    """Press Tab until the target has the focus; whatever is passed on the way must show that it has it."""
    for _ in range(most):
        if target.count() and target.first.evaluate("e => e === document.activeElement"):
            return
        if page.evaluate("!!document.activeElement.closest('.cm-editor')"):
            page.keyboard.press("Escape")  # the editor takes Tab for itself until then
        page.keyboard.press("Tab")
        seen = page.evaluate(SEEN)
        assert seen["body"] or (seen["marked"] and seen["inside"]), seen
    raise AssertionError(f"not reached by {most} tabs: {target}")


def test_from_login_to_a_resubmitted_job_without_a_mouse(
    platform: Platform, alice: Client, browser: Browser
) -> None:
    job = alice.submit(spec("by-keys", programs.TRAINER, command="python -u main.py 4000 0.1"))["id"]
    alice.wait_state(job, "PROCESSING")
    context = browser.new_context(viewport={"width": 1440, "height": 900}, reduced_motion="reduce")
    page = context.new_page()
    page.set_default_timeout(60_000)
    page.goto(f"{platform.url}/login")
    tab_to(page, page.get_by_label("Username"))
    page.keyboard.type("alice")
    tab_to(page, page.get_by_role("textbox", name="Password"))
    page.keyboard.type(platform.users["alice"]["password"])
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile("/t/"))

    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
    tab_to(page, page.get_by_role("navigation", name="Main").get_by_role("link", name="Jobs"))
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile("/jobs$"))
    page.keyboard.press("/")
    expect(page.locator("#q")).to_be_focused()
    page.keyboard.type("by-keys")
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile("q=by-keys"))
    page.locator(f"#job-{job}").wait_for()
    page.keyboard.press("j")
    expect(page.locator(f"#job-{job} a.name")).to_be_focused()
    assert page.evaluate(SEEN)["marked"]
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile(f"/jobs/{job}$"))

    wait_for(lambda: (alice.job(job)["progress"]["step"] or 0) > 10, within_s=60)
    badge = page.locator("#job-badge")
    expect(badge).to_have_text("Processing", timeout=60_000)
    tab_to(page, page.get_by_role("button", name="Halt"))
    page.keyboard.press("Enter")
    if page.locator("#halt-dialog[open]").count():  # it has no checkpoint yet
        tab_to(page, page.get_by_role("button", name="Halt job"), most=3)
        page.keyboard.press("Enter")
    expect(badge).to_have_text("Halted", timeout=60_000)
    tab_to(page, page.get_by_role("button", name="Resume", exact=True))
    page.keyboard.press("Enter")
    expect(badge).to_have_text("Processing", timeout=60_000)

    tab_to(page, page.get_by_role("link", name="Clone"))
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile(f"from={job}"))
    tab_to(page, page.get_by_label("Name", exact=True))
    page.keyboard.press("ControlOrMeta+A")
    page.keyboard.type("by-keys-again")
    tab_to(page, page.get_by_role("button", name="Submit job"))
    page.keyboard.press("Enter")
    page.wait_for_url(lambda url: re.search(r"/jobs/[0-9a-z]{12}$", url) is not None and job not in url)
    expect(page.get_by_role("heading", level=1)).to_have_text("by-keys-again")
    tab_to(page, page.get_by_role("link", name="Cancel"))
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog").get_by_role("link", name="Keep job")).to_be_focused()
    tab_to(page, page.get_by_role("dialog").get_by_role("button", name="Cancel job"), most=3)
    page.keyboard.press("Enter")
    expect(badge).to_have_text("Canceled", timeout=60_000)
    alice.post(f"/jobs/{job}/cancel")
    context.close()
