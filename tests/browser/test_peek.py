"""The drawer beside the list of jobs: by keys, by mouse and on a phone, and current for as long as it is open."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import APIResponse, Page, Route, expect

from tests.browser import programs
from tests.browser.axe import violations
from tests.browser.conftest import spec
from tests.browser.layout import misfits
from tests.platform import Client, Platform, wait_for

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]
Open = Callable[..., Page]
Picture = Callable[..., None]
LIST = "/t/vision-lab/jobs?q=peeked"


@pytest.fixture(scope="module")
def jobs(platform: Platform) -> Iterator[dict[str, str]]:
    """Three rows of the list, the newest first: one that waits, one that runs, one that has failed."""
    client: Client = platform.client("alice")
    big = {"learners": 2, "gpus": 0, "cpus": 4, "memory": "256Mi"}
    trains = spec("peeked-runs", programs.TRAINER, command="python -u main.py 40000 0.1")
    made = {"failed": client.submit(spec("peeked-failed", programs.BROKEN))["id"]}
    client.wait_state(made["failed"], "FAILED", within_s=90)
    made["runs"] = client.submit(trains)["id"]
    client.wait_state(made["runs"], "PROCESSING")
    made["waits"] = client.submit(spec("peeked-waits", programs.WAITER, resources=big))["id"]
    yield made
    for job in ("runs", "waits"):
        client.post(f"/jobs/{made[job]}/cancel")


def row(page: Page, job: str) -> str:
    return f"#job-{job} a.name"


def test_by_keys_the_drawer_opens_moves_along_and_gives_the_focus_back(
    jobs: dict[str, str], open_as: Open, picture: Picture
) -> None:
    page = open_as("alice", LIST)
    drawer = page.get_by_role("dialog", name="peeked-")
    page.keyboard.press("j")
    expect(page.locator(row(page, jobs["waits"]))).to_be_focused()
    page.keyboard.press("Space")
    expect(page.get_by_role("heading", name="peeked-waits")).to_be_focused()
    expect(drawer.locator(".peek-line")).to_contain_text("Queued")
    assert drawer.evaluate("it => it.getBoundingClientRect().width") == 480

    page.keyboard.press("ArrowDown")
    expect(page.get_by_role("heading", name="peeked-runs")).to_be_focused()
    expect(drawer.locator(".peek-line")).to_contain_text("Processing")
    expect(drawer.locator("x-chart canvas")).to_be_visible()
    expect(drawer.locator(".log-row").last).to_contain_text("loss=")
    expect(page.locator(f"#job-{jobs['runs']}")).to_have_attribute("data-peeked", "")
    assert not violations(page)
    picture(page, "peek-1440-light")
    page.emulate_media(color_scheme="dark")
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    assert not violations(page)
    picture(page, "peek-1440-dark")

    page.keyboard.press("j")
    expect(page.get_by_role("heading", name="peeked-failed")).to_be_focused()
    page.keyboard.press("j")  # it is the last one
    page.keyboard.press("k")
    expect(page.get_by_role("heading", name="peeked-runs")).to_be_focused()
    page.keyboard.press("Escape")
    expect(drawer).to_be_hidden()
    expect(page.locator(row(page, jobs["runs"]))).to_be_focused()
    expect(page.locator("[data-peeked]")).to_have_count(0)


def test_what_runs_is_followed_and_what_is_stale_says_so(
    platform: Platform, jobs: dict[str, str], open_as: Open
) -> None:
    page = open_as("alice", LIST)
    page.locator(f"#job-{jobs['runs']} [data-peek]").click()
    drawer = page.locator("#peek")
    value = drawer.locator("[data-value='metric:loss']")
    expect(value).not_to_have_text("")
    before = [value.inner_text(), drawer.locator(".log-row").last.inner_text()]
    expect(value).not_to_have_text(before[0])
    expect(drawer.locator(".log-row").last).not_to_have_text(before[1])

    halted = platform.client("alice").submit(spec("peeked-ends", programs.WAITER))["id"]
    page.goto(f"{platform.url}/t/vision-lab/jobs?q=peeked-ends")
    page.locator(f"#job-{halted} [data-peek]").click()
    expect(drawer.locator("#peek-badge")).to_have_text("Processing")
    platform.client("alice").post(f"/jobs/{halted}/cancel")
    expect(drawer.locator("#peek-badge")).to_have_text("Canceled")
    expect(drawer.locator(".peek-line")).to_contain_text("Canceled")

    page.route_web_socket("**/ws/v1/live", lambda socket: socket.close())
    page.reload()
    page.locator(f"#job-{halted} [data-peek]").click()
    expect(drawer.locator("#peek-states")).to_have_attribute("data-stale", "")
    expect(drawer.locator("#peek-states .as-of")).to_be_visible()


def test_a_mouse_opens_it_by_the_row_s_button_and_closes_it(jobs: dict[str, str], open_as: Open) -> None:
    page = open_as("alice", LIST)
    page.get_by_role("button", name="Peek at peeked-failed").click()
    drawer = page.get_by_role("dialog", name="peeked-failed")
    expect(drawer).to_be_visible()
    drawer.get_by_role("button", name="Previous job").click()
    expect(page.get_by_role("heading", name="peeked-runs")).to_be_focused()
    page.get_by_role("dialog", name="peeked-runs").get_by_role("button", name="Close").click()
    expect(page.locator("#peek")).to_be_hidden()
    expect(page.locator(row(page, jobs["runs"]))).to_be_focused()


def test_on_a_phone_it_covers_the_screen(jobs: dict[str, str], open_as: Open, picture: Picture) -> None:
    page = open_as("alice", LIST, width=390, height=844, theme="dark")
    picture(page, "peek-list-390-dark")
    assert not violations(page)
    assert not misfits(page)
    page.locator(f"#job-{jobs['runs']} [data-peek]").click()
    drawer = page.get_by_role("dialog", name="peeked-runs")
    expect(drawer.locator("x-chart canvas")).to_be_visible()
    assert drawer.bounding_box() == {"x": 0, "y": 0, "width": 390, "height": 844}
    assert page.evaluate("document.getElementById('peek').matches(':modal')")
    assert not violations(page)
    picture(page, "peek-390-dark")
    page.emulate_media(color_scheme="light")
    expect(page.locator("html")).to_have_attribute("data-theme", "light")
    picture(page, "peek-390-light")
    page.keyboard.press("ArrowUp")
    expect(page.get_by_role("heading", name="peeked-waits")).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.locator("#peek")).to_be_hidden()


def test_a_job_that_is_gone_is_said_to_be(alice: Client, open_as: Open) -> None:
    job = alice.submit(spec("peeked-gone", programs.BROKEN))["id"]
    alice.wait_state(job, "FAILED", within_s=90)
    page = open_as("alice", "/t/vision-lab/jobs?q=peeked-gone")
    page.locator(row(page, job)).focus()
    page.route(f"**/{job}/peek", lambda route: route.fulfill(status=404, body=""))
    page.keyboard.press("Space")
    expect(page.locator("#peek")).to_contain_text("could not be loaded")
    page.unroute(f"**/{job}/peek")
    page.get_by_role("button", name="Try again").click()
    expect(page.locator("#peek .peek-line")).to_contain_text("Failed")


@pytest.fixture
def rows(alice: Client) -> Iterator[list[str]]:
    """Three jobs of which each takes the whole cluster, the oldest first."""
    big = {"learners": 2, "gpus": 0, "cpus": 4, "memory": "256Mi"}
    made = [alice.submit(spec(f"peeked-row-{n}", programs.WAITER, resources=big))["id"] for n in range(3)]
    yield made
    for job in (made[0], made[2]):
        alice.post(f"/jobs/{job}/cancel")


def test_a_deleted_job_is_said_to_be_gone_and_the_next_row_is_its_neighbor(
    rows: list[str], alice: Client, open_as: Open
) -> None:
    middle = rows[1]
    page = open_as("alice", "/t/vision-lab/jobs?q=peeked-row&zoom=1-2")
    page.locator(f"#job-{middle} [data-peek]").click()
    drawer = page.locator("#peek")
    expect(drawer.locator("#peek-badge")).to_have_text("Queued")
    expect(page).to_have_url(re.compile(r"\?q=peeked-row$"))  # a zoom is of the chart that was shown then

    page.route(f"**/{middle}/peek", lambda route: route.fulfill(status=503, body=""))
    with page.expect_response(lambda answer: answer.status == 503):
        alice.post(f"/jobs/{middle}/cancel")
    page.unroute(f"**/{middle}/peek")
    expect(drawer.locator("#peek-badge")).to_have_text("Canceled")  # it was tried again

    alice.call("DELETE", f"/jobs/{middle}")
    expect(drawer).to_contain_text("The job was deleted")
    expect(page.locator(f"#job-{middle}")).to_have_attribute("aria-disabled", "true")
    page.keyboard.press("ArrowDown")
    expect(page.get_by_role("heading", name="peeked-row-0")).to_be_focused()
    page.keyboard.press("ArrowUp")  # over the row whose job is gone
    expect(page.get_by_role("heading", name="peeked-row-2")).to_be_focused()


def test_another_primary_metric_takes_the_place_of_the_first(jobs: dict[str, str], open_as: Open) -> None:
    page = open_as("alice", LIST)
    page.locator(f"#job-{jobs['runs']} [data-peek]").click()
    charts = page.locator("#peek x-chart")
    expect(charts).to_have_attribute("data-name", "loss")

    def renamed(route: Route) -> None:
        answer = route.fetch()
        route.fulfill(response=answer, body=answer.text().replace('data-name="loss"', 'data-name="accuracy"'))

    page.route(f"**/{jobs['runs']}/peek", renamed)
    expect(page.locator("#peek x-chart[data-name=accuracy]")).to_be_visible()
    expect(charts).to_have_count(1)
    page.unroute_all(behavior="ignoreErrors")


def test_the_keys_are_on_the_sheet_and_letters_can_be_turned_off(jobs: dict[str, str], open_as: Open) -> None:
    page = open_as("alice", LIST)
    page.keyboard.press("?")
    expect(page.locator("#keys")).to_contain_text("Open beside the list, close")
    page.keyboard.press("Escape")
    page.evaluate("document.documentElement.dataset.shortcuts = 'off'")
    page.locator(row(page, jobs["waits"])).focus()
    page.keyboard.press("Space")
    expect(page.locator("#peek")).to_be_hidden()
    page.locator(f"#job-{jobs['waits']} [data-peek]").press("Enter")
    expect(page.get_by_role("heading", name="peeked-waits")).to_be_focused()
    page.keyboard.press("j")
    page.keyboard.press("ArrowDown")
    expect(page.get_by_role("heading", name="peeked-runs")).to_be_focused()


def test_refreshes_follow_each_other_and_the_newest_state_stays(alice: Client, open_as: Open) -> None:
    """One that answers late is not drawn over by an older one: the next is fetched when it is there."""
    job = alice.submit(spec("peeked-slow", programs.WAITER))["id"]
    alice.wait_state(job, "PROCESSING")
    page = open_as("alice", "/t/vision-lab/jobs?q=peeked-slow")
    page.locator(f"#job-{job} [data-peek]").click()
    badge = page.locator("#peek-badge")
    expect(badge).to_have_text("Processing")
    held: list[tuple[Route, APIResponse]] = []

    def first_late(route: Route) -> None:
        if held:
            route.continue_()
        else:
            held.append((route, route.fetch()))

    page.route(f"**/{job}/peek", first_late)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url) if request.url.endswith("/peek") else None)
    alice.call("PATCH", f"/jobs/{job}", {"tags": ["seen"]})  # a change: the drawer is refreshed
    wait_for(lambda: page.wait_for_timeout(50) or held, within_s=30)
    alice.post(f"/jobs/{job}/cancel")
    expect(page.locator(f"#job-{job}")).to_contain_text("Canceled")  # in the list, while the drawer waits
    page.wait_for_timeout(1_500)  # longer than changes are gathered for
    assert len(asked) == 1
    route, older = held[0]
    assert "Processing" in older.text()
    route.fulfill(response=older)
    expect(badge).to_have_text("Canceled")


def test_a_live_job_is_looked_at_again_although_no_event_comes(jobs: dict[str, str], open_as: Open) -> None:
    """That the cluster no longer responds is no event."""
    page = open_as("alice", LIST)
    page.clock.install()
    page.route_web_socket("**/ws/v1/live", lambda socket: None)  # opens, and says nothing
    page.reload()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url) if request.url.endswith("/peek") else None)
    page.locator(f"#job-{jobs['waits']} [data-peek]").click()
    expect(page.get_by_role("heading", name="peeked-waits")).to_be_visible()
    page.clock.run_for(14_000)
    assert len(asked) == 1
    with page.expect_request(f"**/{jobs['waits']}/peek"):
        page.clock.run_for(3_000)
    page.get_by_role("button", name="Next job").click()
    expect(page.get_by_role("heading", name="peeked-runs")).to_be_visible()
    page.get_by_role("button", name="Next job").click()
    expect(page.get_by_role("heading", name="peeked-failed")).to_be_visible()
    asked.clear()
    page.clock.run_for(40_000)
    assert asked == [], "what has ended stays as it is"


def test_a_log_that_is_over_says_so_once_the_job_has_ended(alice: Client, open_as: Open) -> None:
    job = alice.submit(spec("peeked-over", programs.WAITER))["id"]
    alice.wait_state(job, "PROCESSING")
    page = open_as("alice", "/t/vision-lab/jobs?q=peeked-over")
    page.locator(f"#job-{job} [data-peek]").click()
    log = page.locator("#peek x-log")
    expect(log).to_have_count(1)
    expect(page.locator("#peek x-log[data-over]")).to_have_count(0)
    log.evaluate("log => log.dataset.first = ''")
    alice.post(f"/jobs/{job}/cancel")
    expect(page.locator("#peek x-log[data-over]")).to_have_count(1)
    expect(page.locator("#peek x-log[data-first]")).to_have_count(
        0
    )  # a new element: it is read when that is made
