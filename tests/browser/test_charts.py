"""What a chart must not hide: one point among a hundred thousand, tiny numbers, and which chart is which."""

from __future__ import annotations

import json
from collections.abc import Callable
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Page, Route, expect

from tests.browser.conftest import spec
from tests.platform import Client, Platform, wait_for

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]
Open = Callable[..., Page]

REPORTER = """\
from learner_agent import training

for step in range(1, 4):
    training.report(step, loss=1.0, **{"train/loss": 1e-7 * step, "val/loss": 123456.789 * step})
training.finish()
"""
WHERE, HEIGHT = 0.54, 900.0
"""Of the spike: its place among the points, and its value; all others are 1."""

INK = """(where) => {
  const canvas = document.querySelector('x-chart[data-name="loss"] canvas');
  const over = canvas.parentElement.querySelector('.u-over').getBoundingClientRect();
  const at = canvas.getBoundingClientRect();
  const scale = canvas.width / at.width;
  const x = Math.round((over.left - at.left + over.width * where) * scale);
  const top = Math.round((over.top - at.top) * scale), height = Math.round(over.height * scale * 0.5);
  const { data } = canvas.getContext('2d').getImageData(x - 6, top, 12, height);
  let dark = 0;
  for (let i = 0; i < data.length; i += 4) {
    const spread = Math.max(data[i], data[i + 1], data[i + 2]) - Math.min(data[i], data[i + 1], data[i + 2]);
    if (data[i + 3] > 100 && spread > 60) dark += 1;
  }
  return dark;
}"""


@pytest.fixture(scope="module")
def job(platform: Platform) -> str:
    client: Client = platform.client("alice")
    made: str = client.submit(spec("charts", REPORTER))["id"]
    client.wait_state(made, "COMPLETED")
    return made


GRID = """() => {
  const canvas = document.querySelector('x-chart[data-name="loss"] canvas');
  const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
  let brightest = 0;
  for (let i = 0; i < data.length; i += 4) {
    const gray = Math.max(data[i], data[i + 1], data[i + 2]) - Math.min(data[i], data[i + 1], data[i + 2]) < 24;
    if (data[i + 3] > 200 && gray) brightest = Math.max(brightest, data[i]);
  }
  return brightest;
}"""
"""The brightest gray of a chart: of its grid and of the labels of its axes."""


def with_a_spike(route: Route) -> None:
    """The server's answer, with one series thinned as it thins a hundred thousand points."""
    answer = route.fetch()
    body = json.loads(answer.text())
    for series in body["series"]:
        if series["name"] == "loss":
            series["buckets"] = [
                [166 * n, 1.0, HEIGHT if n == round(600 * WHERE) else 1.0, 1.0] for n in range(601)
            ]
            series |= {"complete": False, "points": 100_000}
    route.fulfill(response=answer, json=body)


def test_a_spike_of_one_point_among_a_hundred_thousand_is_drawn_and_in_the_table(
    job: str, open_as: Open, picture: Callable[..., None]
) -> None:
    """Its band was a faint sliver, and the table had the last value of each row only."""
    page = open_as("alice", "/healthz")
    page.route("**/api/v1/jobs/*/metrics?*", with_a_spike)
    page.goto(page.url.replace("/healthz", f"/t/vision-lab/jobs/{job}/metrics"))
    chart = page.locator('x-chart[data-name="loss"]')
    expect(chart.locator("canvas")).to_be_visible()
    page.wait_for_function(f"({INK})({WHERE}) > 40")
    assert page.evaluate(INK, WHERE - 0.2) == 0
    clip = page.get_by_role("button", name="Clip outliers")
    clip.focus()
    page.keyboard.press("Enter")
    expect(clip).to_have_attribute("aria-pressed", "true")
    expect(chart.get_by_text("▲ 1 outlier outside the scale")).to_be_visible()
    assert "clip=1" in page.url
    picture(page, "charts-clipped")
    chart.get_by_role("button", name="Values as a table").click()
    table = chart.locator("table")
    expect(table.locator("th")).to_have_text(["step", "loss", "loss, lowest", "loss, highest"])
    expect(table.get_by_role("cell", name="900", exact=True)).to_have_count(1)


def test_a_zoom_asks_once_for_all_charts_and_for_about_a_bucket_a_pixel(job: str, open_as: Open) -> None:
    """Each chart sent a request of its own, for 600 buckets at any width."""
    page = open_as("alice", f"/t/vision-lab/jobs/{job}/metrics")
    charts = page.locator("x-chart")
    expect(charts.locator("canvas")).to_have_count(3)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    charts.first.locator(".plot").focus()
    with page.expect_response(lambda response: "from=" in response.url):
        page.keyboard.press("+")
    expect(charts.locator(".zoom-pill:not([hidden])")).to_have_count(3)
    (zoom,) = (parse_qs(urlsplit(url).query) for url in asked if "/metrics?" in url)
    assert sorted(zoom["names"][0].split(",")) == ["loss", "train/loss", "val/loss"]
    width = charts.first.locator(".plot").evaluate("(plot) => plot.clientWidth")
    assert width <= int(zoom["buckets"][0]) <= max(200, width + 100)


AT_THE_EDGE = """() => [...document.querySelectorAll('x-chart canvas')].map((canvas) => {
  const { data } = canvas.getContext('2d').getImageData(0, 0, 2, canvas.height);
  return data.some((value, at) => at % 4 === 3 && value > 60);
})"""


def test_every_chart_has_an_id_and_a_name_of_its_own_and_labels_that_fit(
    job: str, open_as: Open, picture: Callable[..., None]
) -> None:
    page = open_as("alice", f"/t/vision-lab/jobs/{job}/metrics")
    expect(page.locator("x-chart canvas")).to_have_count(3)
    ids = page.eval_on_selector_all("[id]", "all => all.map((one) => one.id)")
    assert len(ids) == len(set(ids))
    names = page.locator("section.chart h3").all_inner_texts()
    assert sorted(names) == ["loss", "train/loss", "val/loss"]
    assert page.evaluate(AT_THE_EDGE) == [False] * 3, "labels that are cut off touch the edge"
    for theme, width in (("light", 1440), ("dark", 390)):
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(color_scheme=theme)  # type: ignore[arg-type]
        picture(page, f"charts-{width}-{theme}", full_page=True)
    for name in names:
        assert page.get_by_role("region", name=name, exact=True).count() == 1


def test_charts_are_drawn_again_when_the_system_turns_dark(job: str, open_as: Open) -> None:
    """Their grid stayed that of the light theme: almost white on black."""
    page = open_as("alice", f"/t/vision-lab/jobs/{job}/metrics")
    expect(page.locator('x-chart[data-name="loss"] canvas')).to_be_visible()
    wait_for(lambda: page.evaluate(GRID) > 200, within_s=60)
    page.emulate_media(color_scheme="dark")
    wait_for(lambda: page.evaluate(GRID) < 200, within_s=60)
