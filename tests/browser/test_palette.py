"""The palette: any page, job or action of this page by a few keys, wherever the focus is."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Locator, Page, Route, expect

from tests.browser import programs
from tests.browser.axe import violations
from tests.browser.conftest import confirm_halt, spec
from tests.platform import Platform

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]
Open = Callable[..., Page]
HOME = "/t/vision-lab/"
JOBS = "/t/vision-lab/jobs"


@pytest.fixture(scope="module")
def job(platform: Platform) -> Iterator[str]:
    client = platform.client("alice")
    made = str(
        client.submit(spec("palette-sweep", programs.TRAINER, command="python -u main.py 40000 0.1"))["id"]
    )
    client.wait_state(made, "PROCESSING")
    yield made
    client.post(f"/jobs/{made}/cancel")
    client.wait_state(made, "CANCELED")


def opened(page: Page, typed: str = "") -> Locator:
    """The palette of a page that takes keys, with this in its field."""
    expect(page.locator("x-connection")).to_have_attribute("data-status", "live")
    page.keyboard.press("Control+k")
    palette = page.get_by_role("dialog", name="Search pages, jobs and actions")
    expect(palette.get_by_role("combobox")).to_be_focused()
    palette.get_by_role("combobox").fill(typed)
    return palette


def chosen(palette: Locator) -> Locator:
    return palette.locator("[role=option][aria-selected=true]")


def searched(palette: Locator) -> None:
    expect(palette.get_by_role("status")).not_to_contain_text("Searching")


def test_a_job_is_found_by_name_and_by_id(job: str, open_as: Open, picture: Callable[..., None]) -> None:
    page = open_as("alice", HOME)
    palette = opened(page, "palette-sw")
    expect(chosen(palette)).to_contain_text("palette-sweep")
    expect(chosen(palette)).to_contain_text("Processing")
    searched(palette)
    picture(page, "palette-job")
    assert not violations(page)
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile(f"{JOBS}/{job}$"))
    page.goto(page.url.split("/t/")[0] + "/t/vision-lab/usage")
    palette = opened(page, job)
    expect(chosen(palette)).to_contain_text("palette-sweep")
    palette.get_by_role("option", name=re.compile("palette-sweep")).click()
    page.wait_for_url(re.compile(f"{JOBS}/{job}$"))


def test_pages_are_chosen_with_the_arrows_and_escape_goes_back(open_as: Open) -> None:
    page = open_as("alice", JOBS)
    page.locator("#q").focus()  # it opens from a field
    palette = opened(page)
    searched(palette)
    options = palette.get_by_role("option")
    expect(options.first).to_have_attribute("aria-selected", "true")
    page.keyboard.press("ArrowUp")
    expect(options.last).to_have_attribute("aria-selected", "true")
    page.keyboard.press("ArrowDown")
    expect(options.first).to_have_attribute("aria-selected", "true")
    active = palette.get_by_role("combobox").get_attribute("aria-activedescendant")
    assert chosen(palette).get_attribute("id") == active
    page.keyboard.press("Escape")
    expect(palette).to_be_hidden()
    expect(page.locator("#q")).to_be_focused()
    palette = opened(page, "palette-sw")
    searched(palette)
    page.keyboard.press("Control+a")
    page.keyboard.type("usage quota")
    page.keyboard.press("Enter")  # jobs that were found before are not what is typed now
    page.wait_for_url(re.compile("/usage$"))


def test_what_can_be_done_on_a_page_is_done_from_the_palette(job: str, open_as: Open) -> None:
    page = open_as("alice", f"{JOBS}/{job}")
    palette = opened(page, "theme")
    page.keyboard.press("Enter")
    expect(palette).to_be_hidden()
    expect(page.locator("html")).to_have_attribute("data-theme", "light")
    palette = opened(page, "halt")
    expect(chosen(palette)).to_have_text("Halt")
    searched(palette)
    page.keyboard.press("Enter")
    confirm_halt(page)
    expect(page.locator("#job-badge")).to_have_text("Halted")
    palette = opened(page, "resu")
    expect(chosen(palette)).to_have_text("Resume")
    searched(palette)
    page.keyboard.press("Enter")
    expect(page.locator("#job-badge")).to_have_text("Processing")
    palette = opened(page, "no such thing anywhere")
    expect(palette.get_by_role("status")).to_contain_text("No matches")
    expect(palette.get_by_role("option")).to_have_count(0)


def test_it_is_there_without_single_keys_and_on_a_phone(open_as: Open, picture: Callable[..., None]) -> None:
    page = open_as("alice", HOME)
    page.evaluate("document.documentElement.dataset.shortcuts = 'off'")
    page.locator(".side [data-palette]").click()
    palette = page.get_by_role("dialog", name="Search pages, jobs and actions")
    expect(palette.get_by_role("option", name="Jobs", exact=True)).to_be_visible()
    page.keyboard.press("Control+k")
    expect(palette).to_be_hidden()
    page.set_viewport_size({"width": 390, "height": 844})
    page.locator(".bottom-bar summary").click()
    page.locator(".bottom-bar [data-palette]").click()
    palette.get_by_role("combobox").fill("clu")
    expect(chosen(palette)).to_have_text("Cluster")
    searched(palette)
    picture(page, "palette-phone")
    chosen(palette).click()
    page.wait_for_url(re.compile("/cluster$"))


def test_pages_are_there_while_the_server_is_not(open_as: Open) -> None:
    page = open_as("alice", HOME)
    page.route(re.compile(r"/jobs\?find="), lambda route: route.abort())
    palette = opened(page, "memb")
    expect(palette.get_by_role("status")).to_contain_text("Jobs could not be searched")
    expect(chosen(palette)).to_have_text("Members")


def test_keys_are_meant_for_the_palette_while_it_is_loaded(open_as: Open) -> None:
    page = open_as("alice", JOBS)
    expect(page.locator("x-connection")).to_have_attribute("data-status", "live")
    held: list[Route] = []
    page.route(re.compile(r"chunks/palette"), lambda route: held.append(route))
    with page.expect_request(re.compile(r"chunks/palette")):
        page.keyboard.press("Control+k")
    page.keyboard.press("Control+k")  # nothing has appeared yet, so people press again
    page.keyboard.press("n")
    held[0].abort()
    expect(page.locator("#toasts")).to_contain_text("The search could not be loaded")
    assert page.url.endswith(JOBS), "no new job was begun"
    page.unroute_all()
    page.reload()
    opened(page)


def test_an_admin_does_not_read_a_tenant_of_others_by_the_way(open_as: Open) -> None:
    page = open_as("admin", JOBS)  # the tenant that the admin read last
    page.goto(page.url.replace(JOBS, "/cluster"))
    palette = opened(page, "theme")
    expect(palette.get_by_role("status")).to_have_text("1 match")  # and searches for nothing
    page.keyboard.press("Escape")
    page.goto(page.url.replace("/cluster", JOBS))
    palette = opened(page, "palette-sw")
    expect(palette.get_by_role("status")).to_contain_text("match", ignore_case=True)
    searched(palette)


def test_an_admin_finds_the_pages_of_the_console(open_as: Open) -> None:
    page = open_as("admin", "/admin-console/")
    palette = opened(page, "audit")
    expect(palette.get_by_role("status")).to_contain_text("1 match")
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile("/admin-console/audit$"))
