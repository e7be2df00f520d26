"""Long names and paths widen no page, and the job page's files stay within their budget."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import spec
from tests.browser.layout import misfits
from tests.platform import Client, wait_for

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]
Open = Callable[..., Page]
BUDGET = 77_000
"""Bytes of all scripts and styles of the job page as sent."""
METRIC = "validation_" + "name_without_any_break_" * 5
PROGRAM = f"""
import os, pathlib
from learner_agent import training
for step in range(30):
    training.report(step, total=30, **{{"{METRIC}": 1.0 / (step + 1)}})
with training.checkpoint(30) as folder:
    path = folder / ("folder-with-a-long-name/" * 4 + "x" * 120 + ".pt")
    path.parent.mkdir(parents=True)
    path.write_text("weights")
path = pathlib.Path(os.environ["RESULT_DIR"], "deep-folder-name" * 5, "y" * 150 + ".bin")
path.parent.mkdir(parents=True)
path.write_text("result")
"""
CUT_CHOICES = """() => [...document.querySelectorAll('select')].filter(s => s.checkVisibility()).map(select => {
    const style = getComputedStyle(select), pen = document.createElement('canvas').getContext('2d');
    pen.font = style.font;
    const text = select.selectedOptions[0]?.text ?? '';
    const needed = pen.measureText(text).width + parseFloat(style.paddingLeft) + parseFloat(style.paddingRight);
    return [text, select.clientWidth, Math.floor(needed)];
}).filter(([, width, needed]) => needed > width)"""


def test_long_names_and_paths_widen_no_page(
    alice: Client, open_as: Open, picture: Callable[..., None]
) -> None:
    job = str(alice.submit(spec("n" * 100, PROGRAM))["id"])
    alice.wait_state(job, "COMPLETED")
    page = open_as("alice", f"/t/vision-lab/jobs/{job}", width=320)
    found = []
    for tab in ("", "/metrics", "/checkpoints", "/edit"):
        page.goto(page.url.split("/jobs/")[0] + f"/jobs/{job}{tab}")
        if tab == "/metrics":
            expect(page.locator("x-chart canvas").first).to_be_visible()
        for width in (320, 390, 768, 1024, 1440):
            page.set_viewport_size({"width": width, "height": 800})
            with suppress(TimeoutError):  # a chart follows the width of its page; what stays is found below
                wait_for(lambda: not misfits(page), within_s=10)
            found += [f"{tab or '/'} at {width} px: {line}" for line in misfits(page)]
            if width in (390, 1440):
                picture(page, f"long-names{tab.replace('/', '-')}-{width}", full_page=True)
    assert not found, found


def test_no_choice_of_the_new_job_page_is_cut(open_as: Open) -> None:
    page = open_as("alice", "/t/vision-lab/jobs/new", width=320)
    expect(page.locator(".cm-content")).to_be_attached()
    for width in (320, 390, 768, 1024, 1440):
        page.set_viewport_size({"width": width, "height": 800})
        assert page.evaluate(CUT_CHOICES) == [], width


def test_the_job_page_transfers_compressed_files_within_its_budget(alice: Client, open_as: Open) -> None:
    job = str(alice.submit(spec("budget", PROGRAM))["id"])
    alice.wait_state(job, "COMPLETED")
    page = open_as("alice", f"/t/vision-lab/jobs/{job}")
    expect(page.locator("x-chart canvas").first).to_be_visible()
    sizes = page.evaluate(
        "performance.getEntriesByType('resource').filter(e => /\\.(js|css)$/.test(e.name))"
        ".map(e => [e.name.split('/').pop(), e.encodedBodySize, e.decodedBodySize])"
    )
    assert all(sent < whole for _, sent, whole in sizes if whole > 1000), sizes
    assert 0 < sum(sent for _, sent, _ in sizes) <= BUDGET, sizes
