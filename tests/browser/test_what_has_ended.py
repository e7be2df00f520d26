"""Jobs that ended, in numbers and long ago: chosen over several pages of a list, and removed by a rule of retention."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise

import psycopg2
import pytest
from playwright.sync_api import Page, expect

from bench.jobs_list import fill
from portal.settings.embedded import layout
from tests.browser.axe import violations
from tests.browser.conftest import spec
from tests.platform import Client, Platform

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]
Open = Callable[..., Page]
Picture = Callable[..., None]
PRINTS = "from learner_agent import training\nprint('kept for a while')\ntraining.report(1, loss=0.5)\n"
OLD = "UPDATE jobs_job SET finished_at = now() - interval '100 days' WHERE id = %s"
ENFORCE = "UPDATE jobs_periodictask SET next_at = now() WHERE name = 'retention'"


@pytest.fixture
def bob(platform: Platform) -> Client:
    return platform.client("bob")


def execute(platform: Platform, statement: str, *values: object) -> None:
    with (
        psycopg2.connect(layout(platform.data).database_url) as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute(statement, values)


def test_a_rule_of_retention_is_previewed_applied_and_seen_on_the_job(
    platform: Platform, bob: Client, open_as: Open, picture: Picture
) -> None:
    """An admin's way from the rule to what a researcher reads of it."""
    old, new = (bob.submit(spec(name, PRINTS))["id"] for name in ("long-ago", "today"))
    for job in (old, new):
        bob.wait_state(job, "COMPLETED")
    execute(platform, OLD, old)

    page = open_as("admin", f"/admin-console/tenants/{bob.tenant}/retention")
    logs = page.locator("tbody tr", has=page.get_by_label("Own rule for logs"))
    expect(logs).to_contain_text("preview to see")
    page.get_by_label("Own rule for logs").check()
    page.get_by_label("Days to keep logs").fill("90")
    page.get_by_role("button", name="Preview").click()
    expect(logs).to_contain_text("of 1 job,")
    expect(logs).to_contain_text("1 exempt: jobs that ended less than 24 hours ago may still receive output")
    assert not violations(page)
    picture(page, "retention-preview-1440-light")
    said = [logs.locator(each).bounding_box() for each in ("b >> nth=1", ".sub >> nth=1", ".sub >> nth=2")]
    assert all(above and below and above["y"] < below["y"] for above, below in pairwise(said)), "on one line"
    assert b"kept for a while" in bob.raw_log(old, attempt=1), "a preview removes nothing"

    page.get_by_role("button", name="Apply rules").click()
    expect(page.locator("#problem-reason")).to_contain_text("A reason is required")
    expect(page.get_by_label("Days to keep logs")).to_have_value("90")
    page.get_by_label("Reason").fill("disk is full")
    page.get_by_role("button", name="Apply rules").click()
    expect(page.get_by_text("Retention rules updated.")).to_be_visible()
    execute(platform, ENFORCE)

    page = open_as("bob", f"/t/{bob.tenant}/jobs/{old}/logs")
    removed = page.get_by_text(re.compile("Logs older than 90 days were removed"))
    while not removed.count():  # no channel says so: what is removed is old
        page.wait_for_timeout(500)
        page.reload()
    picture(page, "retention-removed-1440-light")
    answer = bob.call("GET", f"/jobs/{old}/logs", learner=0, attempt=1)
    assert (answer.status, answer.body["code"]) == (410, "removed_by_retention")
    assert b"kept for a while" in bob.raw_log(new, attempt=1)


def test_jobs_are_selected_over_several_pages_of_a_list(
    platform: Platform, bob: Client, open_as: Open, picture: Picture
) -> None:
    """Loading older jobs keeps what was selected before, and the action is for all of them."""
    like = bob.submit(spec("pattern", "print('done')"))["id"]
    bob.wait_state(like, "COMPLETED")
    fill(platform.data, like, 121)  # one of them has another name
    page = open_as("bob", f"/t/{bob.tenant}/jobs?q=run-")
    rows = page.locator("#rows tr[id^=job-]")
    chosen = []
    for pages in (1, 2, 3):
        expect(rows).to_have_count(min(50 * pages, 120))
        row = rows.nth(50 * pages - 40)
        chosen.append(str(row.get_attribute("id")).removeprefix("job-"))
        row.locator("input").check()
        expect(page.locator("#selected-count")).to_have_text(
            f"{pages} job{'s' if pages > 1 else ''} selected:"
        )
        if pages < 3:
            page.locator("a[data-load-more]").click()
    expect(page.locator("a[data-load-more]")).to_have_count(0)
    page.get_by_role("button", name="Tag", exact=True).click()
    page.get_by_label("Tags (comma-separated)").fill("chosen")
    page.get_by_role("button", name="Add tags").click()
    expect(page.locator("#results-title")).to_have_text("Tagged 3 of 3 jobs.")
    assert not violations(page)
    picture(page, "bulk-pages-1440-light")
    tagged = bob.get("/jobs", tag="chosen")["items"]
    assert {one["id"] for one in tagged} == set(chosen)
