"""The form of a new job: all errors at once, nothing typed is lost, a draft, and what would happen."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import yaml
from playwright.sync_api import Locator, Page, Request, Route, expect

from tests.browser.axe import violations
from tests.browser.new_job import JOB_PAGE, NEW, yaml_of
from tests.platform import wait_for

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]
Open = Callable[..., Page]


def paths(page: Page) -> set[str]:
    """Where the errors are, as the list beside the editor says."""
    return set(page.locator("[data-findings] li.no a").all_inner_texts())


def test_all_errors_are_listed_and_linked_at_once_and_no_input_is_lost(open_as: Open) -> None:
    page = open_as("alice", f"{NEW}?template=digits-sklearn")
    page.get_by_label("Memory each").fill("plenty")
    page.get_by_label("Save every").fill("soon")
    page.get_by_label("Learners", exact=True).fill("0")
    editor = page.locator(".cm-content")
    editor.click()
    page.keyboard.press("ControlOrMeta+End")
    page.keyboard.insert_text("plasement: spread\nmax_restart: 3\n")
    wrong = {"resources.memory", "checkpoint.every", "resources.learners", "plasement", "max_restart"}
    wait_for(
        lambda: (page.wait_for_timeout(50), wrong <= paths(page))[1], within_s=60, what="all five errors"
    )
    expect(page.locator("[data-findings]")).to_contain_text("Did you mean")
    expect(page.get_by_label("Memory each")).to_have_attribute("aria-invalid", "true")
    bar = page.locator("[data-verdict]")
    expect(bar).to_have_text(re.compile(r"^5 errors: .+ and 2 more$"))
    expect(bar.get_by_role("link")).to_have_count(3)
    assert not violations(page)
    before = yaml_of(page)

    page.get_by_role("button", name="Submit job").click()
    first = page.locator("[data-findings] li.no a").first
    control = page.locator(f'[data-path="{first.inner_text()}"]')
    expect(control).to_be_focused()
    assert page.url.endswith("?template=digits-sklearn")
    assert yaml_of(page) == before
    page.locator('[data-findings] [data-go-path="max_restart"]').click()
    expect(page.locator(".cm-activeLine")).to_have_text("max_restart: 3")

    checks = page.locator("[data-checks]")
    expect(checks).to_contain_text("5 errors")
    page.get_by_role("button", name="Replace plasement with placement").click()
    expect(page.get_by_label("Placement", exact=True)).to_have_value("spread")
    page.locator('[data-findings] [data-go-path="max_restart"]').click()
    page.keyboard.press("End")
    page.keyboard.press("Shift+Home")
    page.keyboard.press("Delete")
    page.get_by_label("Memory each").fill("1Gi")
    page.get_by_label("Save every").fill("5s")
    page.get_by_label("Learners", exact=True).fill("1")
    page.get_by_label("Topology").select_option("preferred rack")
    assert "topology:\n  preferred: rack" in yaml_of(page)
    page.get_by_label("Name", exact=True).fill("fixed")
    expect(page.locator("[data-verdict]")).to_have_text(re.compile("Can start|Valid"), timeout=60_000)
    expect(page.locator("[data-fits]")).to_contain_text("1 for this job")
    expect(checks).to_contain_text("no errors")
    page.get_by_role("button", name="Submit job").click()
    page.wait_for_url(JOB_PAGE)
    expect(page.get_by_role("heading", level=1)).to_have_text("fixed")
    page.get_by_role("link", name="Cancel").click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel job").click()


def test_a_submit_with_errors_says_how_many_and_shows_the_first(open_as: Open) -> None:
    page = open_as("alice", f"{NEW}?template=digits-sklearn", height=500)
    page.get_by_label("Time limit").fill("soon")
    page.get_by_label("Restarts after failures", exact=True).fill("many")
    submit = page.get_by_role("button", name="Submit job")
    expect(submit.locator("[data-count]")).to_have_text("2", timeout=60_000)
    expect(page.locator("[data-verdict]")).to_contain_text("2 errors: ")
    page.evaluate("scrollTo(0, 0)")
    submit.click()
    expect(page.locator(".toast.error")).to_have_text("Fix 2 errors to submit.")
    first = page.locator("[data-findings] li.no a").first.inner_text()
    control = page.locator(f'[data-path="{first}"]')
    expect(control).to_be_focused()
    expect(control).to_be_in_viewport(ratio=1)
    page.evaluate("scrollTo(0, 0)")
    page.locator("[data-verdict] a").first.click()
    expect(control).to_be_in_viewport(ratio=1)


def test_an_error_is_shown_below_its_row_and_moves_no_field(open_as: Open) -> None:
    page = open_as(
        "alice", f"{NEW}?template=digits-sklearn", height=1400
    )  # so that no focus scrolls the page
    row = [page.get_by_label(name, exact=True) for name in ("Learners", "CPUs each", "Memory each")]
    before = [field.bounding_box() for field in row]
    row[0].fill("0")
    row[2].fill("plenty")
    errors = page.locator(".card-body", has=row[2]).locator("[data-errors]")
    expect(errors).to_contain_text("Learners must be 1 to 1024", timeout=60_000)
    expect(errors).to_contain_text("Memory each is not an amount of memory")
    expect(row[2]).to_have_accessible_description(re.compile("^Memory each is not an amount"))
    assert [field.bounding_box() for field in row] == before
    page.get_by_label("Save every").fill("soon")
    expect(page.locator("[data-findings] li")).to_have_count(3, timeout=60_000)
    edges = page.locator("[data-findings] li span").evaluate_all(
        "all => all.map(it => it.getBoundingClientRect().x)"
    )
    assert len(set(edges)) == 1, edges


def test_a_draft_says_that_it_is_one_and_can_be_thrown_away(open_as: Open) -> None:
    page = open_as("alice", NEW)
    name, note = page.get_by_label("Name", exact=True), page.locator("[data-draft]")
    expect(name).to_have_value("digits")
    expect(note).to_be_hidden()
    name.fill("half-done")
    page.goto(page.url)
    expect(note).to_have_text(re.compile(r"^\s*Your draft of\s+\d\d:\d\d\s+·\s+Start over\s*$"))
    expect(name).to_have_value("half-done")
    assert not violations(page)
    note.get_by_role("button", name="Start over").click()
    expect(note).to_be_hidden()
    expect(name).to_have_value("digits")
    expect(name).to_be_focused()
    page.reload()
    expect(name).to_have_value("digits")
    expect(note).to_be_hidden()


def test_a_draft_keeps_values_of_env_in_its_tab_alone(open_as: Open) -> None:
    page = open_as("alice", NEW)
    expect(page.get_by_label("Name", exact=True)).to_have_value("digits")
    page.locator(".cm-content").click()
    page.keyboard.press("ControlOrMeta+a")
    page.keyboard.insert_text("name: digits\nenv: {API_KEY: hush-hush-42}\n")
    expect(page.locator(".cm-content")).to_contain_text("hush-hush-42")
    assert "API_KEY" in page.evaluate("localStorage.getItem('luthier.draft.vision-lab')")
    assert "hush-hush" not in str(page.evaluate("JSON.stringify({...localStorage})"))
    page.reload()
    expect(page.locator(".cm-content")).to_contain_text("hush-hush-42")
    later = page.context.new_page()
    later.goto(page.url)
    expect(later.locator("[data-findings]")).to_contain_text("env.API_KEY", timeout=60_000)
    expect(later.locator(".cm-content")).to_contain_text("API_KEY")
    expect(later.locator(".cm-content")).not_to_contain_text("hush-hush")


def test_yaml_that_cannot_be_read_locks_the_form_and_says_where(open_as: Open) -> None:
    page = open_as("alice", f"{NEW}?template=digits-sklearn")
    name, note = page.get_by_label("Name", exact=True), page.locator("[data-unreadable]")
    expect(name).to_have_value("digits")
    expect(note).to_be_hidden()
    page.locator(".cm-content").click()
    page.keyboard.press("ControlOrMeta+Home")
    page.keyboard.insert_text("name: a: b\n")
    expect(note).to_contain_text(
        re.compile(r"Line 1, column \d+:\s+.+ The form shows the last valid version")
    )
    expect(name).to_be_disabled()
    expect(name).to_have_value("digits")
    findings = page.locator("[data-findings]")
    expect(findings).to_contain_text(re.compile(r"Line 1, column \d+"), timeout=60_000)
    assert not violations(page)
    page.get_by_label("Job spec in YAML").last.blur()
    note.get_by_role("link").click()
    expect(page.locator(".cm-activeLine")).to_have_text("name: a: b")
    page.keyboard.press("Home")
    page.keyboard.press("Shift+End")
    page.keyboard.press("Delete")
    page.keyboard.press("Delete")
    expect(note).to_be_hidden()
    expect(name).to_be_enabled()


def test_environment_data_metrics_and_files_are_written_by_the_form(open_as: Open) -> None:
    page = open_as("alice", f"{NEW}?template=digits-sklearn")
    page.get_by_role("button", name="Add a variable").click()
    page.get_by_label("Environment: Name").last.fill("LR")
    page.get_by_label("Environment: Value").last.fill("0.1")
    page.get_by_label("Environment: Name").last.fill("RATE")
    page.get_by_role("button", name="Add a folder").click()
    page.get_by_label("Data: Folder under the data root").fill("shared/mnist")
    page.get_by_label("Data: Name").fill("mnist")
    page.get_by_role("button", name="Add a rule").click()
    page.get_by_label("Metrics: Pattern").fill(r"loss=(?P<loss>\S+)")
    spec = yaml.safe_load(yaml_of(page))
    assert spec["env"]["RATE"] == "0.1"
    assert "LR" not in spec["env"]
    assert spec["data"] == [{"path": "shared/mnist", "name": "mnist"}]
    assert spec["metrics"] == [{"pattern": r"loss=(?P<loss>\S+)"}]

    expect(page.locator("[data-findings]")).to_contain_text("data[0].path", timeout=60_000)
    page.locator('[data-go-path="data[0].path"]').first.click()
    expect(page.get_by_label("Data: Folder under the data root")).to_be_focused()
    page.get_by_role("button", name="Remove this folder").click()
    assert not yaml.safe_load(yaml_of(page)).get("data")

    before = spec["code"]["files"]["train.py"]
    page.get_by_role("button", name="Edit train.py").click()
    expect(page.get_by_role("textbox", name="Text of train.py")).to_be_focused()
    page.keyboard.press("ControlOrMeta+Home")
    page.keyboard.insert_text("# mine\n")
    page.get_by_role("button", name="Add a file").click()
    page.keyboard.insert_text("WORD = 'new'\n")
    page.get_by_label("Name of new.py").fill("words.py")
    page.get_by_label("Name of new.py").press("Enter")
    files = yaml.safe_load(yaml_of(page))["code"]["files"]
    assert files == {"train.py": "# mine\n" + before, "words.py": "WORD = 'new'\n"}
    assert not violations(page)
    page.get_by_role("button", name="Remove words.py").click()
    assert set(yaml.safe_load(yaml_of(page))["code"]["files"]) == {"train.py"}


def test_what_only_the_submit_finds_comes_back_whole_with_the_focus_on_it(open_as: Open) -> None:
    page = open_as("alice", NEW)
    text = yaml_of(page).replace("memory: 1Gi", "memory: lots") + "# a remark that must stay\n"
    submitted: list[Request] = []
    page.on(
        "request",
        lambda request: (
            submitted.append(request) if "/jobs/new" in request.url and request.method == "POST" else None
        ),
    )
    # No check answers before the submit.
    page.route(re.compile("jobs:validate"), lambda route: route.continue_() if submitted else route.abort())
    page.locator(".cm-content").click()
    page.keyboard.press("ControlOrMeta+A")
    page.keyboard.insert_text(text)
    page.get_by_role("button", name="Submit job").click()
    expect(page).to_have_title(re.compile("^1 error · New job"))
    assert yaml_of(page) == text
    expect(page.get_by_label("Memory each")).to_be_focused()
    expect(page.get_by_label("Memory each")).to_have_value("lots")


def test_the_verdict_is_green_only_for_what_starts_now(open_as: Open) -> None:
    page = open_as("alice", f"{NEW}?template=digits-sklearn")
    verdict = page.locator("[data-verdict]")
    expect(verdict).to_have_attribute("data-kind", "good", timeout=60_000)
    colors = {"good": color(verdict)}
    memory = page.get_by_label("Memory each")
    for kind, actor in (("wait", "wait"), ("bad", "fix")):
        page.route("**/jobs:validate", judging(actor))
        memory.fill("2Gi" if kind == "wait" else "3Gi")
        expect(verdict).to_have_attribute("data-kind", kind, timeout=60_000)
        expect(verdict).to_contain_text(f"who acts: {actor}")
        colors[kind] = color(verdict)
    assert len(set(colors.values())) == 3, colors


def color(of: Locator) -> str:
    return str(of.evaluate("it => getComputedStyle(it).color"))


def judging(actor: str) -> Callable[[Route], None]:
    now = {
        "starts": False, "nodes": [], "code": "X", "actor": actor, "message": f"who acts: {actor}", "numbers": {},
        "estimate": {},
    }  # fmt: skip
    return lambda route: route.fulfill(json={"valid": True, "errors": [], "warnings": [], "now": now})
