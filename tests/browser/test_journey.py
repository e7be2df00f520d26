"""The main job, as a researcher does it: submit from the form, watch, halt, read the receipt, resume, complete.

Real programs on real data. A twin of the same seed runs straight through beside it; both end in the same bits.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from examples import catalog
from examples.data.fetch import fetch
from tests.browser.conftest import confirm_halt
from tests.examples.programs import BUILT, runtime
from tests.platform import Client

pytestmark = [pytest.mark.browser, pytest.mark.timeout(420)]


@dataclass(frozen=True)
class Study:
    """An example, shortened. It is halted from the step halt_at on; what it prints last holds its exact figure.

    Many seconds of work stay after that step: a halt that a slow machine delays must still find it running.
    """

    example: str
    command: str
    halt_at: int
    result: str
    last_words: str


DIGITS = Study("digits-sklearn", "python train.py --steps 500 --step-s 0.05", 200, "score.json", "exact loss")
JAX = Study("mnist-jax", "python train.py --epochs 4", 100, "score.txt", "exact sum of the weights")


@pytest.mark.parametrize("study", [DIGITS, JAX], ids=lambda study: study.example)
def test_a_job_halted_and_resumed_in_the_browser_ends_in_the_same_bits(
    study: Study, alice: Client, open_as: Callable[..., Page], picture: Callable[..., None]
) -> None:
    spec = catalog.load(study.example) | {"name": "straight", "command": study.command}
    runtime(spec["framework"])  # as an installation has it after its first job
    if spec.get("data"):
        fetch("mnist", BUILT / "datasets")
    straight = alice.submit(spec)["id"]
    page = open_as("alice", f"/t/vision-lab/jobs/new?template={study.example}")
    job = submit(page, study)
    watch(page)
    if study is DIGITS:
        progressed(alice, job, 180)  # a curve to look at
        picture(page, "job")
    progressed(alice, job, study.halt_at)
    resume(page, halt(page, alice, job))
    expect(page.locator("#job-badge")).to_have_text("Completed", timeout=120_000)
    assert page.evaluate("window.stayed"), "the page was loaded again on its way"
    expect(page.locator('#job-kpis [data-value="progress"]')).to_have_text("100%")

    curve = page.locator('x-chart[data-name="loss"] [data-plot]')
    expect(curve).to_have_attribute("aria-label", re.compile(f" {points(alice, straight, job):,} points$"))

    ended, twin = alice.job(job), alice.wait_state(straight, "COMPLETED", within_s=120)
    assert (ended["attempt"], twin["attempt"]) == (2, 1)
    assert ended["progress"] == twin["progress"]
    assert exact(alice, job, study) == exact(alice, straight, study)
    figure = last_line(alice, straight, attempt=1)
    assert study.last_words in figure
    shown = page.locator("x-log .log-row .message", has_text=study.last_words)
    expect(shown).to_have_text(figure)
    tiles = page.locator('#job-kpis [data-value^="metric:"]').all_inner_texts()
    page.goto(page.url.replace(job, straight))
    expect(shown).to_have_text(figure)
    assert page.locator('#job-kpis [data-value^="metric:"]').all_inner_texts() == tiles


def submit(page: Page, study: Study) -> str:
    """Fill the form as a person does; the YAML beside it follows. Return the new job's id."""
    page.get_by_label("Name", exact=True).fill("digits" if study is DIGITS else study.example)
    page.get_by_label("Command", exact=True).fill(study.command)
    expect(page.locator("textarea[name=spec]")).to_have_value(re.compile(re.escape(study.command)))
    expect(page.locator("[data-verdict]")).to_have_text(re.compile("Can start|Valid"), timeout=60_000)
    page.get_by_role("button", name="Submit job").click()
    page.wait_for_url(re.compile(r"/jobs/[0-9a-z]{12}$"), timeout=60_000)
    page.evaluate("window.stayed = true")
    return page.url.rsplit("/", 1)[1]


def progressed(client: Client, job: str, step: int) -> None:
    client.wait_step(job, step)


def watch(page: Page) -> None:
    """State, numbers, charts and log move by themselves."""
    expect(page.locator("#job-badge")).to_have_text("Processing", timeout=60_000)
    loss = page.locator('#job-kpis [data-value="metric:loss"]')
    expect(loss).to_be_visible(timeout=60_000)
    first = loss.inner_text()
    expect(loss).not_to_have_text(first, timeout=60_000)
    expect(page.locator("x-chart canvas").first).to_be_visible(timeout=60_000)
    expect(page).to_have_title(re.compile(r"^\d+% Processing · "))
    expect(page.locator("x-log .log-row").last).to_contain_text("step", timeout=60_000)


def halt(page: Page, client: Client, job: str) -> int:
    """Halt by the button, and read the receipt. Return the step that was kept."""
    page.get_by_role("button", name="Halt").click()
    confirm_halt(page)
    expect(page.locator("#job-badge")).to_have_text("Halted", timeout=60_000)
    receipt = page.locator(".receipt")
    expect(receipt).to_contain_text("Halted, no steps lost")
    expect(receipt.locator("#steps-lost")).to_have_text(re.compile(r"^\s*0"))
    expect(receipt).to_contain_text(re.compile(r"\d+\.\d s"))
    kept = client.job(job)["last_halt"]
    assert kept["steps_lost"] == 0
    assert f"step {kept['step']}" in receipt.inner_text().replace(",", "")
    return int(kept["step"])


def resume(page: Page, kept: int) -> None:
    """Resume by the button; the viewer goes over to the new attempt by itself."""
    page.get_by_role("button", name="Resume", exact=True).click()
    expect(page.locator("x-log .log-row", has_text=f"resumed at step {kept}")).to_be_attached(timeout=60_000)


def exact(client: Client, job: str, study: Study) -> tuple[dict[str, Any], Any]:
    """Every metric's last value to the last bit, and the file of the result."""
    last = {name: (float(one["last"]).hex(), one["step"]) for name, one in client.job(job)["metrics"].items()}
    assert last
    score = client.call("GET", f"/jobs/{job}/results/{study.result}")
    assert score.status == 200, score
    return last, score.body


def points(client: Client, *jobs: str) -> int:
    """How many losses were stored; of each of the jobs the same."""
    found = [client.get(f"/jobs/{job}/metrics", names="loss")["series"][0]["points"] for job in jobs]
    assert len(set(found)) == 1, found
    return int(found[0])


def last_line(client: Client, job: str, *, attempt: int) -> str:
    return client.raw_log(job, attempt=attempt).decode().splitlines()[-1]
