"""Failed and waiting jobs in a real browser: one sentence everywhere, and links to the place that it names."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Page, expect

from tests.browser import programs
from tests.browser.axe import violations
from tests.browser.conftest import spec
from tests.browser.layout import misfits
from tests.platform import Client, Platform, wait_for

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]
Open = Callable[..., Page]
Picture = Callable[..., None]
LOOKS = [("light", 1440), ("dark", 1440), ("light", 390), ("dark", 390)]

SECOND_FAILS = """\
import os, sys, time
print("loading", flush=True)
if os.environ["LUTHIER_RANK"] == "1":
    time.sleep(1)
    import torchvision_of_another_world
time.sleep(3600)
"""


@pytest.fixture(scope="module")
def jobs(platform: Platform) -> Iterator[dict[str, str]]:
    """A gang of which learner 1 cannot import a module, a job in a restart loop, and one that waits."""
    client = platform.client("alice")
    two = {"learners": 2, "gpus": 0, "cpus": 1, "memory": "256Mi"}
    whole = {"learners": 2, "gpus": 0, "cpus": 4, "memory": "256Mi"}
    made = {
        "failed": client.submit(spec("imports", SECOND_FAILS, resources=two))["id"],
        "loops": client.submit(spec("loops", "raise KeyError('lr')\n", max_restarts=19))["id"],
    }
    client.wait_state(made["failed"], "FAILED")
    made["runs"] = client.submit(spec("holds", programs.WAITER))["id"]
    client.wait_state(made["runs"], "PROCESSING")
    made["waits"] = client.submit(spec("waits-for-all", programs.WAITER, resources=whole))["id"]
    yield made
    for name in ("loops", "runs", "waits"):
        client.post(f"/jobs/{made[name]}/cancel")


def look(page: Page, picture: Picture, name: str) -> list[str]:
    """What axe finds, and whether the page scrolls sideways, in each look."""
    found = []
    for theme, width in LOOKS:
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(color_scheme=theme, reduced_motion="reduce")  # type: ignore[arg-type]
        expect(page.locator("html")).to_have_attribute("data-theme", theme)
        picture(page, f"{name}-{width}-{theme}", full_page=True)
        found += [f"{theme} {width}: {line}" for line in violations(page)]
        if page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth"):
            found.append(f"{theme} {width}: scrolls sideways")
    page.set_viewport_size({"width": 1440, "height": 900})
    return found


def test_a_failure_reads_the_same_everywhere_and_its_link_opens_the_line(
    jobs: dict[str, str], alice: Client, open_as: Open, picture: Picture
) -> None:
    """The link opened learner 0, which had no error; learner 1 was a green "Done"."""
    job = alice.job(jobs["failed"])
    why = job["reason"]["message"]
    assert why.startswith("Learner 1 could not import the module torchvision_of_another_world (log line ")
    base = f"/t/vision-lab/jobs/{job['id']}"
    page = open_as("alice", "/t/vision-lab/")
    expect(page.locator(".attention-list li", has_text="imports")).to_contain_text(why)
    assert not look(page, picture, "attention")
    page.goto(page.url.rstrip("/") + "/jobs")
    expect(page.locator(f"#job-{job['id']} .detail")).to_have_text(why)
    page.goto(page.url.split("/t/")[0] + base + "/events")
    expect(page.locator("main")).to_contain_text(why)
    page.goto(page.url.split("/t/")[0] + base)
    expect(page.locator("#failure-title")).to_have_text(why)
    expect(page.locator(".fail .error-line").last).to_contain_text(
        "No module named 'torchvision_of_another_world'"
    )
    assert not look(page, picture, "job-failed")
    page.get_by_role("link", name="View error").click()
    expect(page.locator("x-log .log-row.picked")).to_contain_text("ModuleNotFoundError")
    assert f"learner=1&attempt=1#L{job['reason']['numbers']['line']}" in page.url
    page.goto(page.url.split("/t/")[0] + base + "/learners")
    phases = page.locator('[aria-label="Learners table"] tbody tr td:nth-child(2)')
    expect(phases.nth(1)).to_have_text(re.compile("Failed"))
    expect(phases.nth(0)).to_have_text(re.compile("Stopped"))
    picture(page, "job-learners-failed-1440-light")


def test_the_error_of_a_package_build_opens_its_log(alice: Client, open_as: Open, picture: Picture) -> None:
    impossible = spec("cannot-build", "print('never')", requirements=["nosuch>2,<1"])
    job = alice.submit(impossible)["id"]
    failed = alice.wait_state(job, "FAILED", within_s=120)
    assert failed["reason"]["code"] == "deploy_failed"
    page = open_as("alice", f"/t/vision-lab/jobs/{job}")
    expect(page.locator(".fail .error-line").last).to_contain_text("No solution found")
    assert not look(page, picture, "job-build-failed")
    page.get_by_role("link", name="View error").click()
    expect(page.locator("x-log .log-row.picked")).to_contain_text("No solution found")
    assert f"#L{failed['reason']['numbers']['line']}" in page.url
    expect(page.locator("x-log .log-status")).to_contain_text("End of log")
    assert b"uv pip compile" in alice.raw_log(job, attempt=1)
    assert not look(page, picture, "job-build-log")


def test_a_job_that_fails_again_and_again_is_red_and_needs_attention(
    jobs: dict[str, str], alice: Client, open_as: Open, picture: Picture
) -> None:
    wait_for(lambda: alice.job(jobs["loops"])["phase"] == "Restart loop", within_s=90)
    page = open_as("alice", "/t/vision-lab/")
    notice = page.locator(".attention-list li", has_text="attempts in a row ended early")
    expect(notice).to_contain_text("failed with KeyError: 'lr'")
    count = int(page.locator("#attention + .count-badge").inner_text())
    assert count >= page.locator(".attention-list li").count() >= 2
    page.goto(page.url.split("/t/")[0] + f"/t/vision-lab/jobs/{jobs['loops']}")
    expect(page.locator("main")).to_contain_text("attempts ended early")
    assert not look(page, picture, "job-restart-loop")


def test_a_waiting_job_leads_to_its_queue_and_has_one_position(
    jobs: dict[str, str], alice: Client, open_as: Open, picture: Picture
) -> None:
    wait_for(lambda: alice.job(jobs["waits"])["reason"]["numbers"].get("position"), within_s=60)
    place = alice.job(jobs["waits"])["reason"]["numbers"]["position"]
    page = open_as("alice", f"/t/vision-lab/jobs/{jobs['waits']}")
    expect(page.locator(".estimate")).to_contain_text(f"#{place}")
    expect(page.locator("tr.current td").first).to_have_text(str(place))
    assert not look(page, picture, "job-waiting")
    page.get_by_role("link", name="Whole cpu queue").click()
    row = page.locator("tbody tr", has_text="waits-for-all")
    expect(row.locator("td").first).to_have_text(str(place))
    items = alice.get("/tenants/vision-lab/queue", gpu_type="cpu")["items"]
    assert {one["id"]: one["position"] for one in items}[jobs["waits"]] == place
    assert not look(page, picture, "queue")
    long = "Larger than the tenant's quota: this job needs 8 a100 GPUs, the quota is 6. Request fewer. "
    row.locator(".queue-reason").evaluate("(cell, text) => { cell.textContent = text; }", long * 2)
    assert not misfits(page), "the start is beside the longest reason"


def test_a_job_is_renamed_on_its_page_and_selected_jobs_are_tagged_and_deleted(
    jobs: dict[str, str], alice: Client, open_as: Open, picture: Picture
) -> None:
    """The page offered none of this, and the list only a halt without a result for each job."""
    page = open_as("alice", f"/t/vision-lab/jobs/{jobs['failed']}")
    page.get_by_role("link", name="Edit", exact=True).click()
    assert not look(page, picture, "job-edit")
    page.get_by_label("Name", exact=True).fill("imports-nothing")
    page.get_by_role("button", name="Save").click()
    expect(page.locator("h1")).to_have_text("imports-nothing")
    page.goto(page.url.split("/jobs/")[0] + "/jobs")
    for name in ("failed", "runs"):
        page.locator(f"#job-{jobs[name]} input").check()
    page.get_by_role("button", name="Tag", exact=True).click()
    page.get_by_label("Tags (comma-separated)").fill("sweep")
    assert not look(page, picture, "bulk-tag")
    page.get_by_role("button", name="Add tags").click()
    expect(page.locator("#results-title")).to_have_text("Tagged 2 of 2 jobs.")
    expect(page.locator("#results-title")).to_be_focused()
    assert alice.job(jobs["runs"])["tags"] == ["sweep"]
    for name in ("failed", "runs"):
        page.locator(f"#job-{jobs[name]} input").check()
    page.get_by_role("button", name="Delete", exact=True).click()
    page.get_by_role("button", name="Delete jobs").click()
    expect(page.locator("#results-title")).to_have_text("Deleted 1 of 2 jobs.")
    expect(page.locator("#bulk-results li", has_text="holds")).to_contain_text("cannot be deleted")
    expect(page.locator(f"#job-{jobs['failed']}")).to_have_count(0)
    assert not look(page, picture, "bulk-results")
