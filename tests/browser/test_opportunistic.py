"""An opportunistic job by hand: the switch and the YAML are one, the badge and the reasons are read where one looks."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import yaml
from playwright.sync_api import Page, expect

from tests.browser import programs
from tests.browser.axe import in_both_themes, violations
from tests.browser.conftest import spec
from tests.browser.layout import misfits
from tests.browser.new_job import JOB_PAGE, NEW
from tests.platform import Client, wait_for

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]
Open = Callable[..., Page]
STOPPED = "for paper-run, which could start on its devices. It continues from step"


def yaml_of(page: Page) -> dict[str, object]:
    read = yaml.safe_load(page.locator("textarea[name=spec]").input_value())
    assert isinstance(read, dict)
    return read


def append(page: Page, line: str) -> None:
    page.locator(".cm-content").click()
    page.keyboard.press("ControlOrMeta+End")
    page.keyboard.insert_text(line)


def test_submit_one_read_what_it_is_and_why_it_was_stopped(
    open_as: Open, alice: Client, picture: Callable[..., None]
) -> None:
    page = open_as("alice", f"{NEW}?template=counter")
    switch = page.get_by_role("switch", name="Opportunistic")
    expect(switch).not_to_be_checked()
    expect(switch).to_have_accessible_description(re.compile("uses no quota.*saves checkpoints"))
    expect(page.locator("[data-quota]")).to_be_visible()
    switch.check()
    assert yaml_of(page)["opportunistic"] is True
    expect(page.locator("[data-quota]")).to_be_hidden(timeout=60_000)
    expect(page.locator("[data-checks]")).to_contain_text("opportunistic, so it takes nothing")
    switch.uncheck()
    assert "opportunistic" not in yaml_of(page)
    append(page, "opportunistic: true\n")
    expect(switch).to_be_checked()
    page.get_by_label("Priority", exact=True).evaluate("it => it.add(new Option('urgent'))")
    page.get_by_label("Priority", exact=True).select_option("urgent")
    expect(switch).to_have_attribute("aria-invalid", "true", timeout=60_000)
    expect(switch).to_have_accessible_description(re.compile("An urgent job stops others.*uses no quota"))
    assert not violations(page)
    page.get_by_label("Priority", exact=True).select_option("normal")
    page.get_by_label("Name", exact=True).fill("idle-sweep")
    expect(page.locator("[data-verdict]")).to_have_text(re.compile("Can start|Valid"), timeout=60_000)
    expect(switch).to_have_accessible_description(re.compile("^Runs only on"))
    switch.scroll_into_view_if_needed()
    assert in_both_themes(page, picture, "opportunistic-form") == []
    page.set_viewport_size({"width": 390, "height": 844})
    switch.scroll_into_view_if_needed()
    picture(page, "opportunistic-form-phone")
    assert misfits(page) == []
    page.set_viewport_size({"width": 1440, "height": 900})
    page.emulate_media(color_scheme="light")
    page.get_by_role("button", name="Submit job").click()
    page.wait_for_url(JOB_PAGE)
    job = page.url.rsplit("/", 1)[1]
    expect(page.locator(".head-row")).to_contain_text("Opportunistic")
    expect(page.locator("dl.facts", has_text="Opportunistic")).to_contain_text("uses no quota")
    alice.wait_state(job, "PROCESSING")
    wait_for(lambda: alice.job(job)["checkpoint"], within_s=60, what="a checkpoint")

    winner = alice.submit(
        spec("paper-run", programs.WAITER, resources={"learners": 2, "gpus": 0, "cpus": 4, "memory": "512Mi"})
    )["id"]
    alice.wait_state(job, "QUEUED", within_s=120)
    card = page.locator(".card.why")
    expect(card).to_contain_text(STOPPED)
    expect(card.get_by_role("link", name="paper-run")).to_have_attribute("href", re.compile(winner))
    events = open_as("alice", f"/t/vision-lab/jobs/{job}/events")
    expect(events.locator("main")).to_contain_text("Stopped for paper-run.")
    assert in_both_themes(page, picture, "opportunistic-stopped") == []
    phone = open_as("alice", f"/t/vision-lab/jobs/{job}", width=390, theme="dark")
    expect(phone.locator(".card.why")).to_contain_text(STOPPED)
    picture(phone, "opportunistic-stopped-phone", full_page=True)
    alice.wait_state(winner, "PROCESSING")
    listed = open_as("alice", "/t/vision-lab/jobs?opportunistic=true")
    expect(listed.locator("#rows tr")).to_have_count(1)
    expect(listed.locator("#rows")).to_contain_text("Opportunistic")
    picture(listed, "opportunistic-list")
    alice.post(f"/jobs/{winner}/cancel")
    alice.wait_state(job, "PROCESSING", within_s=120)
    assert alice.job(job)["attempt"] == 2
    cluster = open_as("alice", "/cluster")
    expect(cluster.locator("#cluster")).to_contain_text("12% of usable, 1 by opportunistic jobs")
    assert in_both_themes(cluster, picture, "opportunistic-cluster") == []
    alice.post(f"/jobs/{job}/cancel")
