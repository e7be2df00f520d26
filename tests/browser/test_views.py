"""Saved views of the list of jobs: saved, shared, chosen and deleted by the dialogs, and counted while it is open."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, WebSocketRoute, expect

from tests.browser import programs
from tests.browser.axe import violations
from tests.browser.conftest import spec
from tests.browser.layout import misfits
from tests.platform import Client, Platform

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]
Open = Callable[..., Page]
Picture = Callable[..., None]
LIST = "/t/vision-lab/jobs"


def test_a_view_is_saved_counted_made_the_default_and_deleted_by_keys(
    alice: Client, open_as: Open, picture: Picture
) -> None:
    page = open_as("alice", f"{LIST}?tag=viewed")
    nav = page.get_by_role("navigation", name="Views")
    page.get_by_role("button", name="Save view").press("Enter")
    dialog = page.get_by_role("dialog", name="Save these filters as a view")
    expect(dialog.get_by_label("Name")).to_be_focused()
    assert not violations(page)
    picture(page, "views-save-1440-light")
    page.keyboard.type("Viewed")
    page.keyboard.press("Enter")
    tab = nav.get_by_role("link", name="Viewed")
    expect(tab).to_have_attribute("aria-current", "page")
    expect(tab.locator(".count")).to_have_text("0")
    expect(page.get_by_role("button", name="Save view")).to_have_count(0)

    job = alice.submit(spec("viewed", programs.BROKEN, tags=["viewed"]))["id"]
    expect(tab.locator(".count")).to_have_text("1")
    alice.wait_state(job, "FAILED", within_s=90)

    page.get_by_role("button", name="Options of the view Viewed").press("Enter")
    page.get_by_role("button", name="Make the default").press("Enter")
    expect(page.get_by_text("now opens with this view")).to_be_visible()
    page.goto(page.url.split("?")[0])
    expect(page).to_have_url(re.compile(r"\?view=v\d+&tag=viewed$"))
    nav.get_by_role("link", name="All").click()
    expect(page).to_have_url(re.compile(r"\?view=all$"))

    nav.get_by_role("link", name="Viewed").click()
    page.get_by_role("button", name="Options of the view Viewed").click()
    picture(page, "views-edit-1440-light")
    page.get_by_label("Name", exact=True).fill("Seen")
    page.get_by_role("button", name="Rename").click()
    expect(nav.get_by_role("link", name="Seen")).to_have_attribute("aria-current", "page")
    page.get_by_role("button", name="Options of the view Seen").click()
    page.get_by_role("button", name="Delete view").click()
    expect(nav.get_by_role("link", name="Seen")).to_have_count(0)


def test_saved_views_are_counted_again_when_jobs_have_changed_and_not_before(open_as: Open) -> None:
    page = open_as("alice", f"{LIST}?tag=quiet")
    sockets: list[WebSocketRoute] = []
    page.route_web_socket("**/ws/v1/live", lambda socket: sockets.append(socket))  # says nothing
    # What is looked at every 15 s is looked at all the time.
    page.add_init_script(
        "const every = setInterval; setInterval = (work, ms, ...more) => every(work, ms === 15000 ? 100 : ms, ...more)"
    )
    page.reload()
    with page.expect_response(lambda answer: "rows=" in answer.url) as first:
        pass
    asked = [first.value.url]
    while len(asked) < 8:  # a second apart, which is longer than saved views keep their counts
        with page.expect_response(lambda answer: "rows=" in answer.url) as one:
            pass
        asked.append(one.value.url)
    assert not [url for url in asked if "saved" in url]
    change = {"ch": "tenant:vision-lab:jobs", "from": 0, "to": 10**9, "items": [{"id": "zzzzzzzzzzzz"}]}
    with page.expect_response(lambda answer: "rows=" in answer.url and "saved" in answer.url):
        sockets[-1].send(json.dumps(change))


def test_a_manager_s_shared_view_is_everyone_s_tab_and_fits_a_phone(
    platform: Platform, open_as: Open, picture: Picture
) -> None:
    dave = open_as("dave", f"{LIST}?state=FAILED&owner=me")
    dave.get_by_role("button", name="Save view").click()
    dialog = dave.get_by_role("dialog", name="Save these filters as a view")
    dialog.get_by_label("Name").fill("What failed of mine")
    dialog.get_by_label("Share with everyone").check()
    picture(dave, "views-share-1440-light")
    dialog.get_by_role("button", name="Save view").click()
    expect(dave.get_by_role("link", name="What failed of mine")).to_be_visible()

    alice = open_as("alice", LIST, width=390, height=844, theme="dark")
    tab = alice.get_by_role("link", name="What failed of mine")
    tab.click()
    expect(alice).to_have_url(re.compile("owner=me"))
    expect(tab).to_have_attribute("aria-current", "page")
    assert not violations(alice)
    assert not misfits(alice)
    picture(alice, "views-390-dark")
    alice.get_by_role("button", name="Options of the view").click()
    expect(alice.get_by_role("dialog")).to_contain_text("Shared with everyone in Vision Lab by dave")
    expect(alice.get_by_role("button", name="Rename")).to_have_count(0)
    assert not violations(alice)
    picture(alice, "views-edit-390-dark")

    shared = platform.client("dave").get("/tenants/vision-lab/views")["items"]
    for one in shared:
        platform.client("dave").call("DELETE", f"/tenants/vision-lab/views/{one['id']}")
