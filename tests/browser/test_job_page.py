"""The job page in all its states: nothing for axe to find, fits every screen, charts that keep their place."""

from __future__ import annotations

import contextlib
import re
import zipfile
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser import programs
from tests.browser.axe import in_both_themes, violations
from tests.browser.conftest import spec
from tests.browser.layout import misfits
from tests.platform import Client, wait_for

pytestmark = [pytest.mark.browser, pytest.mark.timeout(420)]
TABS = ["", "/metrics", "/logs", "/learners", "/events", "/checkpoints", "/spec"]


@pytest.fixture(scope="module")
def jobs(platform: Any) -> Iterator[dict[str, str]]:
    """One job in each state that lasts, and one that runs."""
    client: Client = platform.client("alice")

    def submit(name: str, program: str, arguments: str = "", **changes: Any) -> str:
        return str(
            client.submit(spec(name, program, command=f"python -u main.py {arguments}", **changes))["id"]
        )

    made = {"running": submit("digits-sgd", programs.TRAINER, "40000 0.1")}
    made["halted"] = submit("vit-tiny", programs.TRAINER, "4000 0.05")
    made["failed"] = submit("broken-data", programs.BROKEN)
    made["completed"] = submit("colors", programs.COLORS)
    client.wait_state(made["halted"], "PROCESSING")
    wait_for(lambda: (client.job(made["halted"])["progress"]["step"] or 0) > 20, within_s=60)
    client.post(f"/jobs/{made['halted']}/halt")
    client.wait_state(made["halted"], "HALTED")
    client.wait_state(made["failed"], "FAILED")
    client.wait_state(made["completed"], "COMPLETED")
    size = {"learners": 2, "gpus": 0, "cpus": 4, "memory": "256Mi"}
    made["queued"] = submit("too-big", programs.WAITER, resources=size)
    yield made
    for name in ("running", "halted", "queued"):
        client.post(f"/jobs/{made[name]}/cancel")
    client.wait_state(made["running"], "CANCELED")


@pytest.mark.parametrize("state", ["running", "halted", "failed", "completed", "queued"])
@pytest.mark.parametrize("width", [1440, 390])
def test_the_page_in_every_state_has_no_violation_and_fits_the_screen(
    jobs: dict[str, str],
    open_as: Callable[..., Page],
    picture: Callable[..., None],
    state: str,
    width: int,
) -> None:
    page = open_as("alice", f"/t/vision-lab/jobs/{jobs[state]}", width=width)
    expect(page.locator("x-connection")).to_contain_text("Live")
    page.wait_for_timeout(800)
    assert in_both_themes(page, picture, f"job-{state}-{width}", full_page=width == 390) == []
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")


@pytest.mark.parametrize("tab", TABS[1:])
@pytest.mark.parametrize("width", [1440, 390])
def test_every_tab_has_no_violation_and_fits_the_screen(
    jobs: dict[str, str],
    open_as: Callable[..., Page],
    picture: Callable[..., None],
    tab: str,
    width: int,
) -> None:
    page = open_as("alice", f"/t/vision-lab/jobs/{jobs['running']}{tab}", width=width)
    expect(page.locator("x-connection")).to_contain_text("Live")
    page.wait_for_timeout(800)
    assert in_both_themes(page, picture, f"job-tab-{tab[1:]}-{width}") == []
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")


def test_a_chart_s_zoom_survives_new_points_and_is_in_the_address(
    jobs: dict[str, str], open_as: Callable[..., Page]
) -> None:
    page = open_as("alice", f"/t/vision-lab/jobs/{jobs['running']}/metrics")
    plot = page.locator('x-chart[data-name="loss"] .u-over')
    plot.hover()
    box = plot.bounding_box()
    assert box
    page.mouse.move(box["x"] + box["width"] * 0.3, box["y"] + 40)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + 40, steps=5)
    page.mouse.up()
    reset = page.locator('x-chart[data-name="loss"] .zoom-pill')
    expect(reset).to_be_visible()
    before, points = (
        reset.inner_text(),
        page.locator('x-chart[data-name="loss"] [data-plot]').get_attribute("aria-label"),
    )
    assert "zoom=" in page.url
    expect(page.locator('x-chart[data-name="loss"] [data-plot]')).not_to_have_attribute(
        "aria-label", points or ""
    )
    assert reset.inner_text() == before
    # The axis is the dragged range and nothing else: a quarter of the width is a quarter of its steps, too.
    zoom = re.search(r"zoom=([\d.]+)-([\d.]+)", page.url)
    assert zoom
    first, last = float(zoom[1]), float(zoom[2])
    page.locator('x-chart[data-name="lr"] .u-over').hover()  # moves the cursor off and back on
    for share in (0.02, 0.25, 0.75, 0.98):
        page.mouse.move(box["x"] + box["width"] * share, box["y"] + 40)
        shown = re.search(r"step ([\d,]+)", page.locator('x-chart[data-name="loss"] .tip').inner_text())
        assert shown
        step = float(shown[1].replace(",", ""))
        assert abs(step - (first + share * (last - first))) <= max(1.5, 0.06 * (last - first)), (share, step)
    reset.click()
    expect(reset).to_be_hidden()


def test_a_chart_can_be_read_as_a_table(jobs: dict[str, str], open_as: Callable[..., Page]) -> None:
    page = open_as("alice", f"/t/vision-lab/jobs/{jobs['running']}/metrics")
    page.get_by_role("button", name="Values as a table: loss").click()
    values = page.get_by_role("region", name="Values of loss")
    expect(values.locator("tbody tr").first).to_be_visible()
    said = re.compile(r"^(All|[\d,]+ of) [\d,]+ points, newest first")
    expect(values.locator("caption")).to_have_text(said)
    both = "table => [table.querySelectorAll('tbody tr').length, table.querySelector('caption').textContent]"
    rows, words = values.evaluate(both)  # at one moment: it runs meanwhile
    shown, *_ = (int(number.replace(",", "")) for number in re.findall(r"[\d,]*\d", words))
    assert abs(shown - rows) <= 3, words


def test_escape_makes_an_enlarged_chart_small_again(
    jobs: dict[str, str], open_as: Callable[..., Page]
) -> None:
    page = open_as("alice", f"/t/vision-lab/jobs/{jobs['halted']}/metrics")
    enlarge = page.get_by_role("button", name="Enlarge: loss")
    enlarge.click()
    expect(page.locator("x-chart[data-big]")).to_have_count(1)
    page.keyboard.press("Escape")
    expect(page.locator("x-chart[data-big]")).to_have_count(0)
    expect(enlarge).to_be_focused()


def test_a_chart_whose_first_values_are_on_their_way_offers_nothing_to_try_again(
    jobs: dict[str, str], open_as: Callable[..., Page]
) -> None:
    page = open_as("alice", "/healthz")
    page.route(
        re.compile(r"/jobs/[^/]+/metrics\?"), lambda route: route.fulfill(json={"series": [], "seq": 10**9})
    )
    page.goto(page.url.replace("/healthz", f"/t/vision-lab/jobs/{jobs['running']}"))
    chart = page.locator('x-chart[data-name="loss"]')
    expect(chart).to_contain_text("Waiting for the first values.")
    expect(chart.get_by_role("button", name="Try again")).to_have_count(0)


def test_a_log_scale_that_can_show_no_value_says_so_and_leads_back(
    jobs: dict[str, str], open_as: Callable[..., Page]
) -> None:
    def answer(*values: float) -> dict[str, Any]:
        buckets = [[step, value, value, value] for step, value in enumerate(values, 1)]
        series = {"name": "loss", "rank": 0, "buckets": buckets, "superseded": [], "not_finite": []}
        return {"series": [series | {"complete": True, "points": len(values)}], "seq": 10**9}

    page = open_as("alice", "/healthz")
    url, answers = re.compile(r"/api/v1/jobs/[^/]+/metrics\?"), [answer(-1, 0, -2)]
    page.route(url, lambda route: route.fulfill(json=answers[0]))
    address = page.url.replace("/healthz", f"/t/vision-lab/jobs/{jobs['halted']}/metrics?log=1")
    page.goto(address)
    chart = page.locator('x-chart[data-name="loss"]')
    expect(chart).to_contain_text("No value above 0 to show on a log scale.")
    expect(chart.locator("canvas")).to_have_count(0)
    chart.get_by_role("button", name="Linear scale").click()
    expect(chart.locator("canvas")).to_be_visible()
    expect(page.get_by_role("button", name="Log y")).to_have_attribute("aria-pressed", "false")
    assert "log=1" not in page.url
    # Of values on both sides of 0 those above are drawn, and the others are counted.
    answers[0] = answer(-1, 1, 0, 2)
    page.goto(address)
    expect(chart.locator("canvas")).to_be_visible()
    expect(chart.locator("[data-legend]")).to_contain_text("2 values ≤ 0 not shown")
    chart.get_by_role("button", name="Values as a table: loss").click()
    expect(chart.locator("tbody tr")).to_have_count(4)
    expect(chart.locator("tbody")).to_contain_text("-1")


WRITTEN = """() => {
    const plain = CanvasRenderingContext2D.prototype.fillText;
    CanvasRenderingContext2D.prototype.fillText = function (text, x, ...rest) {
        if (/^attempt/.test(text)) {
            const from = x - (this.textAlign === 'right' ? this.measureText(text).width : 0);
            (this.canvas.said ??= {})[text] = [from, from + this.measureText(text).width];
        }
        return plain.call(this, text, x, ...rest);
    };
}"""


def test_names_of_attempts_that_began_close_together_do_not_overlap(
    jobs: dict[str, str], open_as: Callable[..., Page]
) -> None:
    page = open_as("alice", "/healthz")
    page.add_init_script(f"({WRITTEN})()")
    page.goto(page.url.replace("/healthz", f"/t/vision-lab/jobs/{jobs['halted']}"))
    expect(page.locator("x-chart canvas").first).to_be_visible()
    page.evaluate(
        "document.querySelector('x-job').dataset.marks ="
        " JSON.stringify([[18.5, 'attempt 5'], [18, 'attempt 4'], [5, 'attempt 3'], [4, 'attempt 2']])"
    )
    page.set_viewport_size({"width": 1300, "height": 900})  # redraws the chart
    said = "() => document.querySelector('x-chart canvas').said"
    places = wait_for(lambda: page.evaluate(said), within_s=60, what="the names of the attempts")
    assert set(places) == {"attempt 3", "attempt 5"}, "the newest of those that touch keeps its name"
    legend = page.locator("x-chart [data-legend]").first
    page.get_by_role("button", name="Enlarge: loss").click()  # redraws the legend
    expect(legend).to_contain_text("╎ attempt")
    expect(legend).not_to_contain_text("checkpoint")  # none among the marks set above
    (_, end), (begin, _) = sorted(places.values())
    assert end < begin


AXIS = """() => {
    const plain = CanvasRenderingContext2D.prototype.fillText;
    CanvasRenderingContext2D.prototype.fillText = function (text, x, y, ...rest) {
        if (this.textAlign === 'center') {
            const half = this.measureText(text).width / 2;
            (this.canvas.axis ??= {})[text] = [x - half, x + half];
        }
        return plain.call(this, text, x, y, ...rest);
    };
    const clear = CanvasRenderingContext2D.prototype.clearRect;
    CanvasRenderingContext2D.prototype.clearRect = function (...area) {
        this.canvas.axis = {};  // a chart is drawn again when its width is known, and then with other words
        return clear.apply(this, area);
    };
}"""


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        ([10**14 * n for n in range(40)], {"0", "1P", "2P", "3P"}),
        ([12_000_000 + 10 * n for n in range(40)], {"12M", "12.0001M", "12.0002M", "12.0003M"}),
        ([0, 1, 2], {"0", "1", "2"}),
    ],
)
def test_the_words_of_the_step_axis_are_short_and_differ(
    jobs: dict[str, str], open_as: Callable[..., Page], steps: list[int], said: set[str]
) -> None:
    buckets = [[step, 1.0, 1.0, 1.0] for step in steps]
    series = {"name": "loss", "rank": 0, "buckets": buckets, "superseded": [], "not_finite": []}
    page = open_as("alice", "/healthz")
    page.add_init_script(f"({AXIS})()")
    page.route(
        re.compile(r"/api/v1/jobs/[^/]+/metrics\?"),
        lambda route: route.fulfill(
            json={"series": [series | {"complete": True, "points": 3}], "seq": 10**9}
        ),
    )
    page.goto(page.url.replace("/healthz", f"/t/vision-lab/jobs/{jobs['halted']}/metrics"))
    drawn = "() => document.querySelector('x-chart[data-name=loss] canvas')?.axis"
    # Not wait_for_function: the page's policy forbids the eval with which that looks again.
    with contextlib.suppress(TimeoutError):  # the assertion below names what was drawn instead
        wait_for(lambda: set(page.evaluate(drawn) or {}) == said, within_s=60)
    places: dict[str, list[float]] = page.evaluate(drawn)
    assert set(places) == said
    in_order = sorted(places.values())
    assert all(end < begin for (_, end), (begin, _) in pairwise(in_order))


def test_a_long_name_breaks_or_is_cut_and_leaves_the_way_back_readable(
    platform: Any, open_as: Callable[..., Page]
) -> None:
    client: Client = platform.client("alice")
    job = client.submit(spec("x" * 100, programs.WAITER))["id"]
    page = open_as("alice", f"/t/vision-lab/jobs/{job}")
    for width in (1440, 390):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
        for box in page.locator("h1, .crumb, .crumb > span").all():
            assert box.evaluate("e => e.getBoundingClientRect().right <= innerWidth"), (width, box)
        for link in page.locator(".crumb a").all():
            assert link.evaluate("e => e.scrollWidth <= e.clientWidth"), (width, link.inner_text())
    client.post(f"/jobs/{job}/cancel")


def test_a_single_metric_takes_the_whole_row(platform: Any, open_as: Callable[..., Page]) -> None:
    client: Client = platform.client("alice")
    program = "from learner_agent import training\nfor n in range(3): training.report(n, loss=1 / (n + 1))\n"
    job = client.submit(spec("one-metric", program))["id"]
    client.wait_state(job, "COMPLETED")
    for tab, row in (("", ".charts"), ("/metrics", ".chart-grid")):
        page = open_as("alice", f"/t/vision-lab/jobs/{job}{tab}")
        boxes = [page.locator(one).bounding_box() for one in (row, f"{row} .chart")]
        assert boxes[0]
        assert boxes[1]
        assert boxes[1]["width"] == pytest.approx(boxes[0]["width"], abs=1)


def test_canceling_asks_first_and_escape_keeps_the_job(
    jobs: dict[str, str], alice: Client, open_as: Callable[..., Page]
) -> None:
    page = open_as("alice", f"/t/vision-lab/jobs/{jobs['queued']}")
    page.get_by_role("link", name="Cancel").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("cannot be resumed")
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    assert alice.job(jobs["queued"])["intent"] == "RUN"


def test_on_a_phone_nothing_covers_the_caption_of_the_log(
    jobs: dict[str, str], open_as: Callable[..., Page]
) -> None:
    page = open_as("alice", f"/t/vision-lab/jobs/{jobs['running']}", width=390, height=844)
    viewer = page.locator("x-log.tail")
    expect(viewer.locator(".log-row").last).to_be_visible()
    pill = viewer.locator(".newest")
    expect(pill).to_have_text("Following")
    expect(pill).to_be_hidden()
    viewer.locator(".log-scroller").focus()
    page.keyboard.press("PageUp")
    expect(pill).to_be_visible()
    shown, frame = pill.bounding_box(), viewer.bounding_box()
    assert shown
    assert frame
    assert frame["y"] < shown["y"]
    assert shown["y"] + shown["height"] < frame["y"] + frame["height"]


def test_a_phone_names_every_button_and_shows_the_newest_attempt_alone(
    platform: Any, open_as: Callable[..., Page]
) -> None:
    client: Client = platform.client("alice")
    job = client.submit(spec("twice", programs.TRAINER, command="python -u main.py 3000 0.1"))["id"]
    client.wait_state(job, "PROCESSING")
    wait_for(lambda: (client.job(job)["progress"]["step"] or 0) > 3, within_s=60)
    client.post(f"/jobs/{job}/halt")
    client.wait_state(job, "HALTED")
    client.post(f"/jobs/{job}/resume")
    client.wait_state(job, "PROCESSING")
    page = open_as("alice", f"/t/vision-lab/jobs/{job}", width=390)
    for name in ("Halt", "Clone", "Cancel"):
        shown = page.locator(".actions .label", has_text=name).bounding_box()
        assert shown
        assert shown["width"] > 20, name
    attempts = page.locator(".timeline-area > section")
    expect(attempts).to_have_count(2)
    expect(attempts.first).to_contain_text("Attempt 1")
    expect(attempts.first.locator(".timeline")).to_be_hidden()
    expect(attempts.last.locator(".timeline")).to_be_visible()
    words = page.locator("x-chart .tools .icon-name")
    expect(words.first).to_have_text("Table")
    expect(words.first).to_be_visible()
    page.goto(f"{page.url}/logs")
    for word in ("Error", "Wrap", "Times", "Raw"):
        expect(page.locator(".log-toolbar .icon-name", has_text=word)).to_be_visible()
    expect(page.get_by_role("button", name="Wrap lines")).to_be_visible()
    assert violations(page) == []
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    page.goto(f"{platform.url}/t/vision-lab/jobs/{job}/events")
    current = page.locator(".tabs [aria-current]").bounding_box()
    assert current
    assert current["x"] + current["width"] <= 390
    message = page.locator(".event-table td.event-message").first.bounding_box()
    assert message
    assert message["x"] + message["width"] <= 390
    wide = open_as("alice", f"/t/vision-lab/jobs/{job}")
    expect(wide.locator(".timeline-area > section").first.locator(".timeline")).to_be_visible()
    expect(wide.locator("x-chart .tools .icon-name").first).to_be_hidden()
    client.post(f"/jobs/{job}/cancel")


LEAVES_A_RESULT = """\
import os, pathlib
(pathlib.Path(os.environ["RESULT_DIR"]) / "loss.txt").write_text("falling")
"""


def test_a_halt_that_may_lose_something_asks_first_and_can_be_answered_by_keys(
    platform: Any, open_as: Callable[..., Page], picture: Callable[..., None]
) -> None:
    client: Client = platform.client("alice")
    job = client.submit(spec("asks-first", LEAVES_A_RESULT + programs.WAITER))["id"]
    page = open_as("alice", f"/t/vision-lab/jobs/{job}")
    expect(page.locator("#job-badge")).to_have_text("Processing", timeout=60_000)
    expect(page.locator("#halt-dialog")).to_be_attached(timeout=60_000)

    page.locator("body").press("h")

    dialog = page.get_by_role("dialog", name="Halt asks-first?")
    expect(dialog).to_contain_text("No checkpoint has been stored so far")
    expect(dialog).to_contain_text("of running is repeated.")
    expect(dialog.get_by_role("link", name="Keep running")).to_be_focused()
    assert violations(page) == []
    picture(page, "halt-asks-first")
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    assert client.job(job)["intent"] == "RUN"
    page.get_by_role("button", name="Halt").click()
    page.keyboard.press("Tab")
    expect(dialog.get_by_role("button", name="Halt job")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#job-badge")).to_have_text("Halted", timeout=60_000)
    expect(dialog).to_be_hidden()
    results = page.get_by_role("region", name="Results")
    expect(results).to_contain_text("As of the end of attempt 1; restored when the job continues.")
    picture(page, "halted-with-results", full_page=True)
    with page.expect_download() as download:
        results.get_by_role("link", name="Download all (.zip)").click()
    with zipfile.ZipFile(download.value.path()) as archive:
        assert archive.read("loss.txt") == b"falling"


def test_what_a_halt_may_lose_is_said_as_it_is_when_the_dialog_is_opened(
    platform: Any, open_as: Callable[..., Page]
) -> None:
    client: Client = platform.client("alice")
    rule = {"pattern": r"step=(?P<step>\d+) loss=(?P<loss>\S+)"}
    job = client.submit(spec("at-stake", COUNTS, metrics=[rule]))["id"]
    page = open_as("alice", f"/t/vision-lab/jobs/{job}")
    question = page.locator("#halt-dialog p").first
    expect(question).to_contain_text("No checkpoint has been stored", timeout=60_000)
    rendered = client.job(job)["progress"]["step"] or 0
    wait_for(lambda: (client.job(job)["progress"]["step"] or 0) > rendered + 30, within_s=60)
    page.get_by_role("button", name="Halt").click()
    opened_at = client.job(job)["progress"]["step"]

    expect(page.get_by_role("dialog", name="Halt at-stake?")).to_be_visible()

    wait_for(
        lambda: _step_said(question) >= opened_at - 20, within_s=10
    )  # a reported step is stored a little later
    client.post(f"/jobs/{job}/cancel")


COUNTS = """\
import time
for step in range(100_000):
    print(f"step={step} loss=1", flush=True)
    time.sleep(0.1)
"""


def _step_said(question: Locator) -> int:
    found = re.search(r"up to step ([\d,]+)", question.inner_text())
    return int(found[1].replace(",", "")) if found else -1


def test_a_program_of_its_own_way_is_shown_without_steps_that_it_never_stated(
    platform: Any, open_as: Callable[..., Page], picture: Callable[..., None]
) -> None:
    client: Client = platform.client("alice")
    rule = {"pattern": r"batch (?P<step>\d+)/\d+ loss=(?P<loss>\S+)"}
    job = client.submit(spec("own-way", programs.OWN_WAY, metrics=[rule]))["id"]
    page = open_as("alice", f"/t/vision-lab/jobs/{job}")
    tile = page.locator("[data-value='metric:loss:small']")
    expect(tile).to_have_text(re.compile("position 60"), timeout=60_000)
    expect(page.locator("[data-value='metric:loss']").first).to_have_text("1.4")
    chart = page.locator("x-chart [role=img]").first
    expect(chart).to_have_attribute(
        "aria-label", re.compile(r"1\.4 at position 60, .*60 points"), timeout=60_000
    )
    expect(page.locator("[data-value=progress]")).to_have_text("—")
    client.post(f"/jobs/{job}/halt")
    expect(page.locator("#job-badge")).to_have_text("Halted", timeout=60_000)
    receipt = page.locator(".receipt")
    expect(receipt).to_contain_text("Checkpoint 1: saved by the program, step unknown.")
    expect(receipt.locator("#steps-lost")).to_have_text(re.compile(r"^\s*unknown"))
    expect(page.locator("#job-resume")).to_contain_text("checkpoint 1: saved by the program, step unknown")
    assert not violations(page)
    picture(page, "own-way", full_page=True)
    client.post(f"/jobs/{job}/cancel")


SAVES_ITSELF = """\
import os, pathlib, time
saved = pathlib.Path(os.environ["CHECKPOINT_DIR"]) / "state"
first = int(saved.read_text()) if saved.exists() else 0
for step in range(first + 1, 2_601 if not first else first + 40):
    print(f"step={step} loss={1 / step}", flush=True)
    if step % 1000 == 0:
        saved.write_text(str(step))
    time.sleep(0.002)
if not first:
    time.sleep(100)
"""


def test_the_attempts_of_a_program_that_saves_itself_fit_at_1440(
    platform: Any, open_as: Callable[..., Page], picture: Callable[..., None]
) -> None:
    client: Client = platform.client("alice")
    rule = {"pattern": r"step=(?P<step>\d+) loss=(?P<loss>\S+)"}
    job = client.submit(spec("saves-itself", SAVES_ITSELF, metrics=[rule]))["id"]
    wait_for(lambda: client.job(job)["progress"]["step"] == 2600, within_s=60)
    client.post(f"/jobs/{job}/halt")
    client.wait_state(job, "HALTED")
    client.post(f"/jobs/{job}/resume")
    client.wait_state(job, "COMPLETED")
    page = open_as("alice", f"/t/vision-lab/jobs/{job}", width=1440)
    attempts = page.get_by_role("region", name="Attempts table")
    expect(attempts).to_contain_text(re.compile(r"checkpoint 1,\s+repeated 600 steps"))
    picture(page, "saves-itself", full_page=True)
    assert misfits(page) == []
