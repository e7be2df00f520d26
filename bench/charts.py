"""How long a page of charts takes to open in a browser: 12 series of 100,000 steps each, and the API's answers.

One job really ran and reported; its series are then filled up in the database with as many points as ingest would have
stored, rolled up as ingest does it. "before" is the API on the same data while every point is read, as without
roll-ups: where that takes longer than the server lets a statement run, the answer is 503 ("refused") and the page
shows an error, so no page is timed. A page is open when each chart that is in the window is drawn. Every opening is a
browser context of its own: nothing is cached, and the answers are counted in bytes on the wire.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import django
import psycopg2
from playwright.sync_api import Browser, sync_playwright

from bench.record import percentile, record
from portal.settings.embedded import layout
from tests.browser.conftest import CHROMIUM, sign_in, spec
from tests.platform import Client, Platform, running

PROGRAM = """\
from learner_agent import training

training.report(1, **{f"m{n:02}": 1.0 for n in range(SERIES)})
training.finish()
"""
BUCKETS, ZOOM = 400, {"from": 30_000, "to": 42_000}
"""What a page asks for at this width; a zoom in which a bucket is just narrower than a roll-up."""
FILL = """
INSERT INTO jobs_metricpoint (job_id, tenant_id, attempt, rank, name, step, value, at, seq)
SELECT p.job_id, p.tenant_id, p.attempt, p.rank, p.name, n, exp(-n / 30000.0) + random() / 10,
    p.at + n * interval '50 ms', %(series)s * (n - 1) + row_number() OVER (PARTITION BY n ORDER BY p.name)
FROM jobs_metricpoint p, generate_series(2, %(steps)s) AS n WHERE p.job_id = %(job)s AND p.step = 1
ORDER BY n, p.name
"""
PROGRESS = """UPDATE jobs_progress SET metric_seq = %(newest)s, step = %(steps)s, metric_rolled = %(rolled)s
WHERE job_id = %(job)s"""
DRAWN = """() => {
  const seen = [...document.querySelectorAll('x-chart')].filter((one) => one.getBoundingClientRect().top < innerHeight);
  return seen.length > 0 && seen.every((one) => one.querySelector('canvas'));
}"""


def ingest() -> Any:
    """The module that rolls up points, as ingest uses it."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "portal.settings.test")
    django.setup()
    return import_module("jobs.rollups")


def fill(data: Path, job: str, series: int, steps: int) -> Callable[[bool], None]:
    """Store the points and their roll-ups; returns the switch between reading these and reading every point."""
    roll_up = ingest().roll_up
    connection = psycopg2.connect(layout(data).database_url)
    newest = series * steps
    values = {"job": job, "series": series, "steps": steps, "newest": newest, "rolled": 0}
    with connection, connection.cursor() as cursor:
        cursor.execute(FILL, values)
        rolled, before = 0, -1
        while rolled != before:
            rolled, before = roll_up(cursor, job, rolled, newest), rolled
        cursor.execute(PROGRESS, values)
    connection.autocommit = True
    with connection.cursor() as cursor:
        cursor.execute("VACUUM (ANALYZE) jobs_metricpoint, jobs_metricrollup")

    def use(rollups: bool) -> None:
        with connection.cursor() as cursor:
            cursor.execute(PROGRESS, values | {"rolled": rolled if rollups else 0})

    return use


def opened(browser: Browser, cookies: Any, address: str) -> tuple[float, float, float]:
    """Seconds until every visible chart is drawn, KiB of the metrics' answers, and seconds from a zoom's key until the
    finer values are there."""
    context = browser.new_context(viewport={"width": 1440, "height": 1400}, reduced_motion="reduce")
    context.add_cookies(cookies)
    page, answers = context.new_page(), []
    page.on("response", lambda response: answers.append(response) if "/metrics?" in response.url else None)
    began = time.monotonic()
    page.goto(address, wait_until="commit")
    page.wait_for_function(DRAWN, timeout=30_000)
    taken = time.monotonic() - began
    size = sum(answer.request.sizes()["responseBodySize"] for answer in answers)
    page.locator("x-chart .plot").first.focus()
    began = time.monotonic()
    with page.expect_response(
        lambda response: "/metrics?" in response.url and "from=" in response.url
    ) as zoom:
        page.keyboard.press("+")
    zoom.value.finished()
    zoomed = time.monotonic() - began
    context.close()
    return taken, size / 1024, zoomed


def answered(client: Client, job: str, **within: int) -> tuple[float, bool]:
    """Seconds until the API answered, and whether it refused because the database took too long."""
    began = time.monotonic()
    answer = client.call("GET", f"/jobs/{job}/metrics", buckets=BUCKETS, timeout_s=120, **within)
    assert answer.status in (200, 503), answer
    return time.monotonic() - began, answer.status == 503


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--series", type=int, default=12)
    arguments.add_argument("--steps", type=int, default=100_000)
    arguments.add_argument("--runs", type=int, default=5)
    chosen = arguments.parse_args()
    figures: dict[str, float] = {"series": chosen.series, "steps": chosen.steps}
    with (
        tempfile.TemporaryDirectory() as folder,
        running(Path(folder) / "data") as platform,
        sync_playwright() as playwright,
    ):
        client, job = platform.client(), ran(platform, chosen.series)
        use = fill(Path(folder) / "data", job, chosen.series, chosen.steps)
        for name, rollups in (("before", False), ("after", True)):
            use(rollups)
            answered(client, job)  # the first one of a new server does not count
            for what, within in (("api", {}), ("wide_zoom_api", ZOOM)):
                answers = [answered(client, job, **within) for _ in range(chosen.runs)]
                figures[f"{name}_{what}_p50_s"] = percentile([taken for taken, _ in answers], 0.5)
                figures[f"{name}_{what}_refused"] = sum(refused for _, refused in answers)
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        first = browser.new_context()
        sign_in(first.new_page(), platform, "alice")
        cookies: Any = first.cookies()
        address = f"{platform.url}/t/{client.tenant}/jobs/{job}/metrics"
        opened(browser, cookies, address)
        opens = [opened(browser, cookies, address) for _ in range(chosen.runs)]
        figures["after_open_p50_s"] = percentile([taken for taken, _, _ in opens], 0.5)
        figures["after_open_max_s"] = max(taken for taken, _, _ in opens)
        figures["after_metrics_kib"] = percentile([size for _, size, _ in opens], 0.5)
        figures["after_zoom_p50_s"] = percentile([zoomed for _, _, zoomed in opens], 0.5)
        browser.close()
    figures["load_average"] = os.getloadavg()[0]
    record(
        "charts",
        figures,
        command=f"python -m bench.charts --series {chosen.series} --steps {chosen.steps} --runs {chosen.runs}",
        baseline="the same data while the server reads every point; refused: not answered within its limit of 10 s",
        targets={"after_open_p50_s": "≤ 1"},
    )


def ran(platform: Platform, series: int) -> str:
    client = platform.client()
    job: str = client.submit(spec("charts", PROGRAM.replace("SERIES", str(series))))["id"]
    client.wait_state(job, "COMPLETED", within_s=180)
    return job


if __name__ == "__main__":
    main()
