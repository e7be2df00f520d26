"""Every key of the sheet does what the sheet says; the focus is never lost, and never under a bar."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Page, expect

from tests.browser import programs
from tests.browser.axe import violations
from tests.browser.conftest import confirm_halt, spec
from tests.browser.new_job import NEW
from tests.platform import Client, Platform

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]
Open = Callable[..., Page]
JOBS = "/t/vision-lab/jobs"
WITHOUT_FOCUS = "() => document.activeElement === document.body || document.activeElement === null"
LEFT_EDITOR = (
    "() => !document.activeElement.closest('.cm-editor') && document.activeElement !== document.body"
)


@pytest.fixture(scope="module")
def job(platform: Platform) -> Iterator[str]:
    client = platform.client("alice")
    made = str(client.submit(spec("keys", programs.TRAINER, command="python -u main.py 40000 0.1"))["id"])
    client.wait_state(made, "PROCESSING")
    yield made
    client.post(f"/jobs/{made}/cancel")
    client.wait_state(made, "CANCELED")


def sheet(page: Page) -> dict[str, list[str]]:
    """The keys of each part of the sheet, as it shows them."""
    page.keyboard.press("?")
    expect(page.locator("#keys")).to_be_visible()
    parts: dict[str, list[str]] = {}
    title = ""
    for row in page.locator("#keys dl > div").all():
        keys = row.locator("kbd").all_inner_texts()
        if keys:
            parts[title] += keys
        else:
            title = row.locator("dt").inner_text()
            parts[title] = []
    page.keyboard.press("?")
    expect(page.locator("#keys")).to_be_hidden()
    return parts


def watch_keys(page: Page) -> None:
    """Count the keys that did something."""
    page.evaluate(
        "window.handled = []; addEventListener('keydown', e => e.defaultPrevented && window.handled.push(e.key))"
    )


def did_something(page: Page, key: str) -> bool:
    page.evaluate("window.handled = []")
    page.keyboard.press(key)
    return bool(page.evaluate("window.handled.length"))


def test_each_key_of_every_page_does_what_the_sheet_says(open_as: Open, picture: Callable[..., None]) -> None:
    page = open_as("alice", JOBS)
    keys = sheet(page)["On every page"]
    assert keys == ["g", "o", "j", "c", "u", "m", "k", "n", "/", "t", "?", "Ctrl+k"]
    page.keyboard.press("?")
    picture(page, "keys")
    assert not violations(page)
    for key, path in {"o": "/t/vision-lab/", "j": JOBS, "c": "/cluster", "u": "/t/vision-lab/usage",
                      "m": "/t/vision-lab/members", "k": "/t/vision-lab/tokens"}.items():  # fmt: skip
        page.goto(page.url.split("/t/")[0].split("/cluster")[0] + (JOBS if key != "j" else "/t/vision-lab/"))
        page.keyboard.press("g")
        page.keyboard.press(key)
        page.wait_for_url(re.compile(f"{path}$"))
    page.keyboard.press("g")
    page.keyboard.press("j")
    page.wait_for_url(re.compile(f"{JOBS}$"))
    page.keyboard.press("t")
    expect(page.locator("html")).to_have_attribute("data-theme", "light")
    page.keyboard.press("/")
    expect(page.locator("#q")).to_be_focused()
    page.locator("#q").blur()
    page.keyboard.press("n")
    page.wait_for_url(re.compile("/jobs/new$"))


def test_each_key_of_a_list_does_what_the_sheet_says(job: str, alice: Client, open_as: Open) -> None:
    page = open_as("alice", JOBS)
    assert sheet(page)["In a list of jobs"] == ["j", "k", "x", "c", "."]
    page.keyboard.press("j")
    first = page.locator("tr[data-job] a.name").first
    expect(first).to_be_focused()
    page.keyboard.press("j")
    page.keyboard.press("k")
    expect(first).to_be_focused()
    box = page.locator("tr[data-job]").first.get_by_role("checkbox")
    before = box.is_checked()
    page.keyboard.press("x")
    assert box.is_checked() != before
    page.keyboard.press("c")
    page.wait_for_url(re.compile(r"/compare\?ids="))
    page.go_back()
    expect(page.locator("x-connection")).to_have_attribute("data-status", "live")
    fresh = alice.submit(spec("new-in-the-list", programs.COUNTER, command="python -u main.py 5 5 0"))["id"]
    expect(page.locator("#new-jobs")).to_be_visible()
    page.keyboard.press(".")
    expect(page.locator(f"#job-{fresh}")).to_be_visible()


def test_each_key_of_a_job_does_what_the_sheet_says(job: str, alice: Client, open_as: Open) -> None:
    path = f"{JOBS}/{job}"
    page = open_as("alice", path)
    keys = sheet(page)["On a job's page"]
    assert keys == ["1", "2", "3", "4", "5", "6", "7", "h", "r", "s", "d", "e", "y"]
    titles = [re.sub(r"\d+$", "", text) for text in page.locator("x-job .tabs a").all_inner_texts()]
    for key in keys[:7]:
        expect(page.locator("x-connection")).to_have_attribute("data-status", "live")  # the page takes keys
        page.keyboard.press(key)
        expect(page.locator("x-job .tabs [aria-current]")).to_contain_text(titles[int(key) - 1])
    page.keyboard.press("e")
    page.wait_for_url(re.compile("/logs"))
    page.goto(page.url.split("/logs")[0])
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.keyboard.press("y")
    expect(page.locator("#toasts")).to_contain_text("Copied")
    badge = page.locator("#job-badge")
    page.keyboard.press("h")
    confirm_halt(page)
    expect(badge).to_have_text("Halted")
    page.keyboard.press("r")
    expect(badge).to_have_text("Processing")
    expect(page.get_by_role("button", name="Checkpoint now")).to_be_visible()
    page.keyboard.press("s")
    expect(page.locator("#toasts")).to_contain_text("Checkpoint requested")
    page.keyboard.press("d")
    page.wait_for_url(re.compile(f"from={job}"))


def test_each_key_of_the_log_does_something_there(job: str, open_as: Open) -> None:
    page = open_as("alice", f"{JOBS}/{job}/logs")
    keys = sheet(page)["In the log"]
    expect(page.locator("x-log .log-row").first).to_be_visible()
    watch_keys(page)
    names = {"↑": "ArrowUp", "↓": "ArrowDown", "Ctrl+f": "Control+f"}
    rows = page.locator("x-log [tabindex='0'][role]").last
    for key in keys:
        rows.focus()
        assert did_something(page, names.get(key, key)), key
        if page.locator("x-log [data-tool=full][aria-pressed=true]").count():
            page.keyboard.press("Escape")


def test_each_key_of_a_chart_and_of_the_log_s_search_does_what_the_sheet_says(
    job: str, open_as: Open, picture: Callable[..., None]
) -> None:
    page = open_as("alice", f"{JOBS}/{job}/metrics")
    keys = sheet(page)["In a chart"]
    assert keys == ["←", "→", "Shift+←", "Shift+→", "+", "-", "0", "a", "v", "Esc"]
    chart = page.locator("x-chart").first
    plot = chart.locator("[data-plot]")
    expect(plot.locator("canvas")).to_be_visible()
    watch_keys(page)
    names = {"←": "ArrowLeft", "→": "ArrowRight", "Shift+←": "Shift+ArrowLeft", "Shift+→": "Shift+ArrowRight"}
    plot.focus()
    for key in keys[:-1]:
        assert did_something(page, names.get(key, key)), key
        if key == "a":
            expect(chart.locator("table")).to_be_visible()
            page.keyboard.press("a")
            expect(plot.locator("canvas")).to_be_visible()
    expect(chart).to_have_attribute("data-big", "")
    page.keyboard.press("Escape")
    expect(chart).not_to_have_attribute("data-big", "")
    page.keyboard.press("?")
    picture(page, "keys-sheet")

    page.goto(page.url.split("/metrics")[0] + "/logs")
    assert sheet(page)["In the search field of the log"] == ["Enter", "Shift+Enter", "Esc"]
    field = page.get_by_label("Search the log")
    field.fill("step")
    expect(page.locator("x-log .match-count")).to_have_text(re.compile(r"\d+ of \d+"))
    before = page.locator("x-log .match-count").inner_text().split()[0]
    page.keyboard.press("Enter")  # not back over the first one: the log grows at its end
    expect(page.locator("x-log .match-count")).not_to_have_text(re.compile(rf"^{before} of"))
    page.keyboard.press("Shift+Enter")
    expect(page.locator("x-log .match-count")).to_have_text(re.compile(rf"^{before} of"))
    page.keyboard.press("Escape")
    expect(page.locator("x-log .log-scroller")).to_be_focused()


def test_each_key_of_the_quota_table_does_what_the_sheet_says(open_as: Open) -> None:
    page = open_as("admin", "/admin-console/quotas")
    assert sheet(page)["In the quota table"] == ["↑", "↓", "+", "-", "Enter", "Esc"]
    fields = page.locator("#matrix input[data-before]")
    field = fields.first
    before = int(field.input_value())
    field.focus()
    page.keyboard.press("+")
    page.keyboard.press("+")
    page.keyboard.press("-")
    expect(field).to_have_value(str(before + 1))
    page.keyboard.press("Enter")
    expect(page.get_by_text("1 change, not applied")).to_be_visible()
    page.keyboard.press("Escape")
    expect(field).to_have_value(str(before))
    page.keyboard.press("ArrowDown")
    expect(field).not_to_be_focused()
    page.keyboard.press("ArrowUp")
    expect(field).to_be_focused()


def test_tab_leaves_the_editor_as_its_hint_says_however_slowly(open_as: Open) -> None:
    page = open_as("alice", f"{NEW}?template=plain")
    assert sheet(page)["In an editor of a new job"] == ["Ctrl+Enter", "Tab", "Esc"]
    editor = page.get_by_role("textbox", name="Job spec in YAML").last
    expect(page.locator(".cm-content")).to_be_visible()
    expect(page.locator("#editor-keys")).to_contain_text("Esc, then Tab, leaves the editor")
    assert page.locator(".cm-content").get_attribute("aria-describedby") == "editor-keys"
    page.clock.install()
    editor.focus()
    text = page.locator("textarea[name=spec]").input_value()
    page.keyboard.press("Tab")
    assert page.locator("textarea[name=spec]").input_value() != text, "Tab indents"
    page.keyboard.press("Escape")
    page.clock.fast_forward(60_000)
    page.keyboard.press("Tab")
    assert page.evaluate(LEFT_EDITOR)
    editor.focus()
    page.keyboard.press("Escape")
    page.keyboard.press("Shift+Tab")
    assert page.evaluate(LEFT_EDITOR)


@pytest.mark.parametrize("place", ["Job spec in YAML", "Command", "Name"])
def test_ctrl_enter_submits_the_job_and_types_nothing(place: str, open_as: Open, alice: Client) -> None:
    page = open_as("alice", f"{NEW}?template=plain")
    expect(page.locator(".cm-content")).to_be_visible()
    expect(page.locator("[data-verdict]")).to_have_text(re.compile("Can start|Valid"))
    text = page.locator("textarea[name=spec]").input_value()
    page.get_by_role("textbox", name=place, exact=True).last.focus()
    with page.expect_request(lambda request: "/jobs/new" in request.url and request.method == "POST") as sent:
        page.keyboard.press("ControlOrMeta+Enter")
    assert text.strip() in (sent.value.post_data or "").replace("\r\n", "\n")
    page.wait_for_url(re.compile(r"/jobs/[0-9a-z]{12}$"))
    alice.post(f"/jobs/{page.url.rsplit('/', 1)[1]}/cancel")


def test_the_focus_stays_near_what_it_pressed(alice: Client, open_as: Open) -> None:
    made = alice.submit(spec("focus-stays", programs.TRAINER, command="python -u main.py 40000 0.1"))["id"]
    alice.wait_state(made, "PROCESSING")
    page = open_as("alice", f"{JOBS}/{made}")
    badge = page.locator("#job-badge")

    def press(button: str, state: str) -> None:
        page.get_by_role("button", name=button, exact=True).focus()
        page.keyboard.press("Enter")
        if page.locator("#halt-dialog[open]").count():
            page.locator("#halt-dialog").get_by_role("button", name="Halt job").focus()
            page.keyboard.press("Enter")
        expect(badge).to_have_text(state)
        page.wait_for_function("() => document.activeElement !== document.body")
        assert page.evaluate("!!document.activeElement.closest('x-job')"), "it stays in the job's page"

    press("Halt", "Halted")
    press("Resume", "Processing")
    page.get_by_role("link", name="Cancel", exact=True).focus()
    page.keyboard.press("Enter")
    page.get_by_role("dialog").get_by_role("button", name="Cancel job").focus()
    page.keyboard.press("Enter")
    expect(badge).to_have_text("Canceled")
    expect(page.get_by_role("link", name="Cancel", exact=True)).to_have_count(0)
    page.wait_for_function("() => document.activeElement !== document.body")


def test_the_focus_survives_menus_dialogs_and_removed_rows(open_as: Open) -> None:
    page = open_as("alice", f"{NEW}?template=plain")
    expect(page.locator(".cm-content")).to_be_visible()
    page.get_by_role("button", name="Add a file").click()
    expect(page.get_by_role("textbox", name="Text of new.py")).to_be_focused()
    page.get_by_role("button", name="Remove new.py").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Remove new.py")).to_have_count(0)
    page.wait_for_function("() => document.activeElement.closest('.form-section') !== null")
    page.locator(".menu summary").focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Escape")
    expect(page.locator(".menu summary")).to_be_focused()
    page.locator(".menu summary").blur()
    page.mouse.click(5, 5)
    assert page.evaluate(WITHOUT_FOCUS), "who clicks beside everything takes the focus away"


@pytest.mark.parametrize(("path", "height"), [(NEW, 620), (f"{JOBS}/{{job}}", 520)])
def test_the_focus_is_never_under_a_bar_that_stays(job: str, path: str, height: int, open_as: Open) -> None:
    page = open_as("alice", path.format(job=job), height=height)
    if path == NEW:
        expect(page.locator(".cm-content")).to_be_visible()
    covered = """() => {
        const e = document.activeElement, b = e.getBoundingClientRect();
        const bars = [...document.querySelectorAll('.top, .submit-bar')].filter(bar => !bar.contains(e));
        const tall = b.height > innerHeight / 3;  // of what does not fit between the bars a part is enough
        return !tall && !e.matches('.skip') && bars.some(bar => {
            const r = bar.getBoundingClientRect();
            return getComputedStyle(bar).position === 'sticky' && b.left < r.right && b.right > r.left
                && b.top < r.bottom - 1 && b.bottom > r.top + 1;
        }) && e.outerHTML.slice(0, 160);
    }"""
    for key in ("Tab", "Shift+Tab"):
        for _ in range(70):
            if page.evaluate("!!document.activeElement.closest('.cm-editor')"):
                page.keyboard.press("Escape")
            page.keyboard.press(key)
            assert not page.evaluate(covered), key
