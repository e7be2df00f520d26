"""An administrator adds a runtime on its page, and the next person who submits a job can choose it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.browser.axe import violations

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]


def test_a_runtime_added_on_the_page_is_offered_to_new_jobs_and_a_refusal_loses_nothing(
    open_as: Callable[..., Page], picture: Callable[..., None]
) -> None:
    page = open_as("admin", "/admin-console/runtimes")
    page.get_by_label("Name in job specs").fill("own-vision")
    page.get_by_label("Requirements").fill("timm>=1\n./local\n")
    page.get_by_role("button", name="Add runtime").click()
    expect(page.get_by_role("alert")).to_contain_text("is a path or an address")
    expect(page.get_by_label("Requirements")).to_have_value("timm>=1\n./local\n")
    picture(page, "runtimes-refused", full_page=True)
    page.get_by_label("Requirements").fill("timm>=1")
    page.get_by_role("button", name="Add runtime").click()
    row = page.get_by_role("row").filter(has_text="own-vision")
    expect(row).to_contain_text("timm>=1")
    assert violations(page) == []
    picture(page, "runtimes", full_page=True)

    new_job = open_as("alice", "/t/vision-lab/jobs/new")
    expect(new_job.locator("input[name=framework][value=own-vision]")).to_have_count(1)

    phone = open_as("admin", "/admin-console/runtimes", width=390)
    assert phone.evaluate("document.documentElement.scrollWidth <= innerWidth")
    picture(phone, "runtimes-phone", full_page=True)
    page.get_by_role("button", name="Remove own-vision").click()
    expect(page.get_by_role("row").filter(has_text="own-vision")).to_have_count(0)
