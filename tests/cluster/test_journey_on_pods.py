"""The main job in the browser, with pods instead of processes: submit, watch, halt, resume, complete."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import yaml
from playwright.sync_api import Page, expect

from tests.browser.conftest import CHROMIUM, browser, confirm_halt, open_as, picture, sessions
from tests.browser.programs import TRAINER
from tests.cluster.pods import spec
from tests.platform import Client, Platform
from tools.kube.client import Object
from tools.kube.cluster import Cluster

__all__ = ["browser", "open_as", "picture", "sessions"]

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(420),
    pytest.mark.skipif(not CHROMIUM, reason="needs Chromium: install it, or name one with CHROMIUM=..."),
]
COMMAND = 'python3 main.py 400 "$([ $LUTHIER_ATTEMPT = 1 ] && echo 0.1 || echo 0.005)"'
"""Slow until it is halted, then quick."""

CUT_TILES = """() => [...document.querySelectorAll('.kpis > div')].flatMap(tile =>
    [...tile.querySelectorAll('*')].filter(e => e.getBoundingClientRect().right > tile.getBoundingClientRect().right)
        .map(e => e.textContent.trim()))"""


@pytest.fixture
def alice(platform: Platform) -> Client:
    return platform.client("alice")


def test_a_job_in_pods_is_halted_and_resumed_in_the_browser(
    alice: Client, real_cluster: Cluster, open_as: Callable[..., Page], picture: Callable[..., None]
) -> None:
    page = open_as("alice", "/t/vision-lab/jobs/new")
    job = submit(page)
    badge = page.locator("#job-badge")
    expect(badge).to_have_text("Processing", timeout=120_000)
    [pod] = pods_of(real_cluster, job)
    expect(page.locator("body")).to_contain_text(pod["spec"]["nodeName"])
    loss = page.locator('#job-kpis [data-value="metric:loss"]')
    expect(loss).to_be_visible()
    first = loss.inner_text()
    expect(loss).not_to_have_text(first)
    expect(page.locator("x-chart canvas").first).to_be_visible()
    alice.wait_step(job, 20)
    expect(page.locator("x-log .log-row").last).to_contain_text("step")
    assert page.evaluate(CUT_TILES) == [], "a GPU's long name stays in its tile"
    picture(page, "pods-running", full_page=True)

    page.get_by_role("button", name="Halt").click()
    confirm_halt(page)
    expect(badge).to_have_text("Halted", timeout=120_000)
    expect(page.locator(".receipt")).to_contain_text("Halted, no steps lost")
    kept = alice.job(job)["last_halt"]["step"]
    assert pods_of(real_cluster, job) == []
    picture(page, "pods-halted", full_page=True)

    page.get_by_role("button", name="Resume", exact=True).click()
    expect(badge).to_have_text("Completed", timeout=120_000)
    assert page.evaluate("window.stayed"), "the page was loaded again on its way"
    expect(page.locator('#job-kpis [data-value="progress"]')).to_have_text("100%")
    expect(page.locator("x-log .log-row .message").last).to_have_text("done")
    assert alice.raw_log(job, attempt=2).decode().startswith(f"starting at step {kept}\n")
    assert pods_of(real_cluster, job) == []
    picture(page, "pods-completed", full_page=True)


def submit(page: Page) -> str:
    """Type the spec, and wait for the verdict as a person does. Return the new job's id."""
    wanted = yaml.safe_dump(spec("on-pods", TRAINER, command=COMMAND), sort_keys=False)
    page.locator(".cm-content").click()
    page.keyboard.press("ControlOrMeta+a")
    page.keyboard.insert_text(wanted)
    expect(page.get_by_label("Name", exact=True)).to_have_value("on-pods")
    expect(page.locator("[data-verdict]")).to_have_text(re.compile("Can start"))
    page.get_by_role("button", name="Submit job").click()
    page.wait_for_url(re.compile(r"/jobs/[0-9a-z]{12}$"))
    page.evaluate("window.stayed = true")
    return page.url.rsplit("/", 1)[1]


def pods_of(cluster: Cluster, job: str) -> list[Object]:
    found: list[Object] = cluster.admin.get("/api/v1/pods", labelSelector=f"luthier.dev/job={job}")["items"]
    return found
