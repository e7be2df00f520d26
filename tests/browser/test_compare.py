"""Jobs side by side: chosen in the list, drawn in one chart, with what differs between them."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.browser.axe import in_both_themes
from tests.browser.conftest import spec
from tests.browser.layout import misfits
from tests.platform import Client, Platform

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]
Open = Callable[..., Page]

REPORTER = """\
import sys
from learner_agent import training

for step in range(1, 6):
    training.report(step, loss=float(sys.argv[1]) / step)
training.finish()
"""


@pytest.fixture(scope="module")
def jobs(platform: Platform) -> list[str]:
    client: Client = platform.client("alice")
    made = [
        str(client.submit(spec(f"rate-{rate}", REPORTER, command=f"python main.py {rate}"))["id"])
        for rate in (1, 2, 4)
    ]
    for job in made:
        client.wait_state(job, "COMPLETED")
    return made


def legend(page: Page, name: str) -> list[str]:
    """What a chart's legend names."""
    return page.locator(f'x-chart[data-name="{name}"] [data-legend] span').all_inner_texts()


def test_jobs_selected_in_the_list_share_a_chart(jobs: list[str], open_as: Open) -> None:
    page = open_as("alice", "/t/vision-lab/jobs?q=rate-")
    expect(page.locator("#compare-many")).to_be_disabled()
    for job in jobs[:2]:
        page.locator(f"#job-{job} input").check()
    page.locator("body").press("c")
    page.wait_for_url(lambda url: "/compare?ids=" in url)
    chart = page.locator('x-chart[data-name="loss"]')
    expect(chart.locator("canvas")).to_be_visible()
    assert legend(page, "loss") == ["rate-1", "rate-2"]
    expect(chart.locator("[data-plot]")).to_have_attribute("aria-label", "loss: rate-1 0.2, rate-2 0.4")
    chart.get_by_role("button", name="Values as a table").click()
    expect(chart.locator("thead th")).to_have_text(["step", "rate-1", "rate-2"])
    expect(chart.locator("tbody tr").first.locator("td")).to_have_text(["5", "0.2", "0.4"])


def test_a_chart_shows_the_differences_from_the_baseline(
    jobs: list[str], open_as: Open, picture: Callable[..., None]
) -> None:
    page = open_as("alice", f"/t/vision-lab/compare?ids={','.join(jobs)}&base={jobs[1]}&log=1")
    chart = page.locator('x-chart[data-name="loss"]')
    plot = chart.locator("[data-plot]")
    expect(chart.locator("canvas")).to_be_visible()
    differs, log = (page.get_by_role("button", name=name) for name in ("Difference from baseline", "Log y"))
    expect(log).to_have_attribute("aria-pressed", "true")
    differs.click()
    expect(plot).to_have_attribute(
        "aria-label", "loss, difference from rate-2: rate-1 -0.2, rate-2 0, rate-4 0.4"
    )
    expect(log).to_have_attribute("aria-pressed", "false")
    assert legend(page, "loss") == ["rate-1", "rate-2", "rate-4", "difference from rate-2"]
    picture(page, "compare-differences")
    page.reload()
    expect(plot).to_have_attribute("aria-label", re.compile("difference from rate-2"))
    chart.get_by_role("button", name="Values as a table").click()
    expect(chart.locator("tbody tr").first.locator("td")).to_have_text(["5", "0.2", "0.4", "0.8"])
    assert legend(page, "loss") == ["rate-1", "rate-2", "rate-4"]


def test_a_job_is_added_made_the_baseline_and_left_out(jobs: list[str], open_as: Open) -> None:
    page = open_as("alice", f"/t/vision-lab/jobs/{jobs[0]}")
    page.get_by_role("link", name="Compare").click()
    for job in jobs[1:]:
        page.locator(f"input[value='{job}']").check()
    page.get_by_role("button", name="Compare").click()
    compared = page.locator("#compared")
    expect(compared.locator("li")).to_have_count(3)
    compared.get_by_role("link", name="Make baseline: rate-4").click()
    page.get_by_role("link", name="Values").click()
    row = page.get_by_role("row", name="loss")
    expect(row).to_contain_text("−0.6 (−75%)")
    page.get_by_role("link", name="Leave out rate-2").click()
    expect(compared.locator("li")).to_have_count(2)
    expect(page.locator("#compared-title + .sub")).to_contain_text("rate-4")
    page.get_by_role("link", name="Specs").click()
    expect(page.locator(".diff .added")).to_have_text(["+command: python main.py 1"])


def test_a_job_whose_values_cannot_be_loaded_leaves_the_others(jobs: list[str], open_as: Open) -> None:
    page = open_as("alice", "/t/vision-lab/jobs")
    page.route(f"**/api/v1/jobs/{jobs[1]}/metrics?*", lambda route: route.abort())
    page.goto(page.url.replace("/jobs", f"/compare?ids={','.join(jobs)}"))
    expect(page.locator('x-chart[data-name="loss"] canvas')).to_be_visible()
    assert legend(page, "loss") == ["rate-1", "rate-4", "rate-2: not loaded"]


def test_a_running_job_is_drawn_on(platform: Platform, jobs: list[str], open_as: Open) -> None:
    client: Client = platform.client("alice")
    slow = REPORTER.replace("range(1, 6):", "range(1, 100_000):\n    __import__('time').sleep(0.2)")
    running = str(client.submit(spec("rate-live", slow, command="python main.py 8"))["id"])
    try:
        client.wait_state(running, "PROCESSING")
        page = open_as("alice", f"/t/vision-lab/compare?ids={jobs[0]},{running}")
        plot = page.locator('x-chart[data-name="loss"] [data-plot]')
        expect(plot).to_have_attribute("aria-label", re.compile("rate-1 0.2, rate-live [0-9.]+"))
        before = plot.get_attribute("aria-label") or ""
        expect(plot).not_to_have_attribute("aria-label", before)
        assert legend(page, "loss") == ["rate-1", "rate-live"]
    finally:
        client.post(f"/jobs/{running}/cancel")


@pytest.mark.parametrize("width", [1440, 390])
@pytest.mark.parametrize("view", ["", "&tab=values&all=1", "&tab=spec", "&choose=1"])
def test_every_view_has_no_violation_and_fits_the_screen(
    jobs: list[str], open_as: Open, picture: Callable[..., None], view: str, width: int
) -> None:
    page = open_as("alice", f"/t/vision-lab/compare?ids={','.join(jobs)}{view}", width=width)
    expect(page.locator("x-connection")).to_contain_text("Live")
    if not view:
        expect(page.locator("x-chart canvas").first).to_be_visible()
    name = view.split("=")[1].split("&")[0] if view else "charts"
    assert in_both_themes(page, picture, f"compare-{name}-{width}", full_page=True) == []
    assert misfits(page) == []
