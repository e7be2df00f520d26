"""Submit from the form: all errors at once, nothing typed is lost, an archive, a clone's changes, no scripts."""

from __future__ import annotations

import io
import os
import re
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from playwright.sync_api import Browser, Locator, Page, Request, Route, expect

from tests.browser import programs
from tests.browser.axe import violations
from tests.browser.conftest import sign_in, spec
from tests.platform import Client, Platform, wait_for

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]
Open = Callable[..., Page]
NEW = "/t/vision-lab/jobs/new"
JOB_PAGE = re.compile(r"/jobs/[0-9a-z]{12}$")


def paths(page: Page) -> set[str]:
    """Where the errors are, as the list beside the editor says."""
    return set(page.locator("[data-findings] li.no a").all_inner_texts())


def yaml_of(page: Page) -> str:
    return page.locator("textarea[name=spec]").input_value()


def focused(page: Page) -> str:
    return str(page.evaluate("document.activeElement.id || document.activeElement.className"))


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


def test_an_archive_is_taken_as_the_code(alice: Client, open_as: Open) -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("main.py", "from pack.words import WORDS\nprint(WORDS)\n")
        archive.writestr("pack/words.py", "WORDS = 'out of the archive'\n")
    page = open_as("alice", f"{NEW}?template=plain")
    page.get_by_label("Upload a .zip or .tar.gz instead").set_input_files(
        {"name": "code.zip", "mimeType": "application/zip", "buffer": packed.getvalue()}
    )
    expect(page.locator("#toasts")).to_contain_text("code.zip: 2 files uploaded")
    expect(page.locator("[data-files]")).to_contain_text("archive")
    page.get_by_label("Command", exact=True).fill("python main.py")
    expect(page.locator("[data-verdict]")).to_have_text(re.compile("Can start|Valid"), timeout=60_000)
    page.get_by_role("button", name="Submit job").click()
    page.wait_for_url(JOB_PAGE)
    expect(page.locator("#job-badge")).to_have_text("Completed", timeout=60_000)
    expect(page.locator("x-log .log-row .message").first).to_have_text("out of the archive")


def choose_archive(page: Page, name: str, content: bytes = b"") -> None:
    page.get_by_label("Upload a .zip or .tar.gz instead").set_input_files(
        {"name": name, "mimeType": "application/zip", "buffer": content}
    )


def choose_folder(page: Page, folder: Path) -> None:
    with page.expect_file_chooser() as chooser:
        page.get_by_role("button", name="Choose a folder").click()
    chooser.value.set_files(folder)


def test_a_folder_is_packed_and_taken_as_the_code(alice: Client, open_as: Open, tmp_path: Path) -> None:
    """Paths that a header has no room for, a script that is run by its name, and what no program needs."""
    deep = "/".join(["a-folder-with-a-long-name"] * 5) + "/größe.txt"
    files = {
        "run.sh": "#!/bin/sh\nfind . -type f | sort\n",
        deep: "42",
        "empty.txt": "",
        "pack/__pycache__/a.pyc": "0",
        ".git/HEAD": "0",
        ".env": "KEY=1",
    }
    for name, text in files.items():
        path = tmp_path / "my-program" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    os.utime(
        tmp_path / "my-program" / "empty.txt", (-86_400, -86_400)
    )  # no tar header has a time before 1970
    page = open_as("alice", f"{NEW}?template=plain")
    choose_folder(page, tmp_path / "my-program")
    said = page.locator("#toasts")
    expect(said).to_contain_text(
        "my-program: 3 files uploaded, kept for 24 h. Left out: .env, .git, __pycache__."
    )
    expect(page.locator("[data-files]")).to_contain_text("archive")
    page.get_by_label("Command", exact=True).fill("./run.sh")
    expect(page.locator("[data-verdict]")).to_have_text(re.compile("Can start|Valid"))
    page.get_by_role("button", name="Submit job").click()
    page.wait_for_url(JOB_PAGE)
    expect(page.locator("#job-badge")).to_have_text("Completed")
    lines = page.locator("x-log .log-row .message")
    expect(lines).to_have_text([f"./{name}" for name in (deep, "empty.txt", "run.sh")])


def test_files_are_dropped_as_the_code(open_as: Open) -> None:
    page = open_as("alice", f"{NEW}?template=plain")
    page.locator("[data-drop]").evaluate(
        """place => {
          const data = new DataTransfer();
          data.items.add(new File(["print(1)"], "main.py"));
          data.items.add(new File(["x: 1"], "config.yaml"));
          place.dispatchEvent(new DragEvent("drop", { dataTransfer: data, bubbles: true, cancelable: true }));
        }"""
    )
    expect(page.locator("#toasts")).to_contain_text("code: 2 files uploaded")
    expect(page.locator("textarea[name=spec]")).to_have_value(re.compile(r"code:\n  upload: \w{12}\n"))


OVER = """place => {
  const data = new DataTransfer();
  data.items.add(new File(["print(1)"], "main.py"));
  let effect = "copy";
  Object.defineProperty(data, "dropEffect", { get: () => effect, set: (chosen) => { effect = chosen; } });
  const over = new DragEvent("dragover", { dataTransfer: data, bubbles: true, cancelable: true });
  const taken = !place.dispatchEvent(over);
  return taken ? over.dataTransfer.dropEffect : "none";
}"""
DROP = """place => {
  const data = new DataTransfer();
  data.items.add(new File(["print(1)"], "main.py"));
  place.dispatchEvent(new DragEvent("drop", { dataTransfer: data, bubbles: true, cancelable: true }));
}"""


def test_the_code_chosen_last_is_used_and_no_job_is_submitted_before(open_as: Open) -> None:
    page = open_as("alice", f"{NEW}?template=plain")
    on_its_way: list[Route] = []
    page.route("**/uploads", lambda route: on_its_way.append(route))
    status = page.locator("[data-uploading]")
    choose_archive(page, "older.zip")
    expect(status).to_have_text("Uploading older.zip…")
    assert not violations(page)
    errors = page.locator(".toast.error")
    page.get_by_role("button", name="Submit job").click()
    expect(errors).to_have_text(["The code is still being uploaded. Submit the job after that."])
    page.keyboard.press("Control+Enter")
    expect(errors).to_have_count(2)
    with page.expect_event("requestfailed", lambda request: request.url.endswith("/uploads")):
        page.locator("[data-drop]").evaluate(DROP)
    expect(status).to_have_text("Uploading main.py…")
    expect(page.get_by_label("Upload a .zip or .tar.gz instead")).to_have_value("")
    assert not JOB_PAGE.search(page.url)
    wait_for(lambda: (page.wait_for_timeout(50), len(on_its_way) == 2)[1], within_s=60)
    on_its_way[1].fulfill(status=201, json={"id": "newer1newer1", "files": 1})
    expect(page.locator(".toast.success")).to_have_text(["main.py: 1 file uploaded, kept for 24 h."])
    expect(page.locator("textarea[name=spec]")).to_have_value(re.compile("code:\n  upload: newer1newer1\n"))
    expect(status).to_have_text("")


def test_a_folder_is_taken_for_one_whatever_its_name_and_whatever_the_browser_says_of_it(
    open_as: Open,
) -> None:
    page = open_as("alice", f"{NEW}?template=plain")
    page.locator("[data-drop]").evaluate(
        """place => {
          const reader = (some) => ({ readEntries: (done) => done(some.splice(0)) });
          const main = { name: "main.py", file: (done) => done(new File(["print(1)"], "main.py")) };
          const folder = { name: "v1.zip", isDirectory: true, createReader: () => reader([main]) };
          const event = new Event("drop", { bubbles: true, cancelable: true });
          const items = [{ webkitGetAsEntry: () => folder }];
          event.dataTransfer = { files: [new File([], "v1.zip")], items, types: ["Files"] };
          place.dispatchEvent(event);
        }"""
    )
    said = page.locator(".toast.success")
    expect(said.filter(has_text="v1.zip: 1 file uploaded")).to_be_visible()
    folder = page.locator("[data-folder]")
    folder.evaluate("input => input.removeAttribute('webkitdirectory')")  # as a browser that knows no folders
    folder.set_input_files({"name": "main.py", "mimeType": "text/x-python", "buffer": b"print(1)"})
    expect(said.filter(has_text="code: 1 file uploaded")).to_be_visible()


def test_an_upload_that_nothing_uses_is_no_success(open_as: Open) -> None:
    page = open_as("alice", f"{NEW}?template=plain")
    on_its_way: list[Route] = []
    page.route("**/uploads", lambda route: on_its_way.append(route))
    choose_archive(page, "code.zip")
    expect(page.locator("[data-uploading]")).to_have_text("Uploading code.zip…")
    page.locator(".cm-content").click()
    page.keyboard.press("ControlOrMeta+Home")
    page.keyboard.insert_text("name: a: b\n")
    expect(page.get_by_label("Name", exact=True)).to_be_disabled()
    errors = page.locator(".toast.error")
    place = page.locator("[data-drop]")
    assert place.evaluate(OVER) == "copy", "else a browser drops nothing, and nothing is said"
    place.evaluate(DROP)
    expect(errors).to_have_text(["The YAML cannot be read. Fix it, then drop the code again."])
    before = yaml_of(page)
    on_its_way[0].fulfill(status=201, json={"id": "unused1unuse", "files": 1})
    expect(errors.filter(has_text="code.zip was uploaded, but not used")).to_be_visible()
    assert yaml_of(page) == before
    assert len(on_its_way) == 1, "what was dropped on the locked form"
    assert not page.locator(".toast.success").count()


def test_an_upload_is_canceled_and_the_same_file_can_be_chosen_again(open_as: Open, tmp_path: Path) -> None:
    page = open_as("alice", f"{NEW}?template=plain")
    on_its_way: list[Route] = []
    page.route("**/uploads", lambda route: on_its_way.append(route))
    archive = tmp_path / "code.zip"
    archive.write_bytes(b"")
    cancel = page.get_by_role("button", name="Cancel upload")
    for times in (1, 2):
        expect(cancel).to_be_hidden()
        with page.expect_file_chooser() as chooser:
            page.get_by_label("Upload a .zip or .tar.gz instead").click()
        chooser.value.set_files(archive)
        expect(page.locator("[data-uploading]")).to_have_text("Uploading code.zip…")
        with page.expect_event("requestfailed", lambda request: request.url.endswith("/uploads")):
            cancel.click()
        assert len(on_its_way) == times
        expect(page.locator("[data-uploading]")).to_have_text("")
    page.get_by_role("button", name="Submit job").click()
    page.wait_for_url(JOB_PAGE)


def test_a_folder_that_is_too_large_is_refused_before_it_is_packed(open_as: Open, tmp_path: Path) -> None:
    (tmp_path / "program" / "data").mkdir(parents=True)
    (tmp_path / "program" / "main.py").write_text("print(1)")
    with (tmp_path / "program" / "data" / "train.bin").open("wb") as file:
        file.truncate(1024**3)  # as large as code may be, and no byte of it on the disk
    (tmp_path / "bare" / ".git").mkdir(parents=True)
    (tmp_path / "bare" / ".git" / "HEAD").touch()
    page = open_as("alice", f"{NEW}?template=plain")
    sent: list[Route] = []
    page.route("**/uploads", lambda route: sent.append(route))
    refused = page.locator("[data-refused]")
    choose_folder(page, tmp_path / "program")
    expect(refused).to_have_text(
        "program was not sent. It has 1.0 GiB, and code can have 1.0 GiB. "
        "The largest part is data/. Data belongs below the data root."
    )
    choose_folder(page, tmp_path / "bare")
    expect(refused).to_have_text("bare was not sent. There is no file in it.")
    expect(page.locator("[data-uploading]")).to_have_text("")
    assert not sent


def test_names_that_the_server_refuses_are_all_listed_before_anything_is_sent(
    open_as: Open, tmp_path: Path, picture: Callable[..., None]
) -> None:
    wrong = [
        "a\\b.py",
        "notes.txt ",
        "what?.",
        "data /1.csv",
        "data /2.csv",
        "Icon\u200b",
        "READ.md",
        "read.md",
    ]
    program = tmp_path / "program"
    for name in ["main.py", *wrong, *(f"{n}." for n in range(9))]:
        (program / name).parent.mkdir(parents=True, exist_ok=True)
        (program / name).write_text("print(1)")
    page = open_as("alice", f"{NEW}?template=plain")
    sent: list[Route] = []
    page.route("**/uploads", lambda route: sent.append(route))
    before = yaml_of(page)
    choose_folder(page, program)
    refused = page.locator("[data-refused]")
    expect(refused.locator("p")).to_have_text(
        [
            "program was not sent.",
            "15 names in it cannot be used. Rename these files and folders, then choose the code again.",
        ]
    )
    expect(refused.locator("li")).to_have_count(11)
    expect(refused.locator("li").last).to_have_text("and 5 more")
    assert not violations(page)
    for name in range(9):
        (program / f"{name}.").unlink()
    choose_folder(page, program)
    ending = "has a part that ends with a dot or begins or ends with a space"
    expect(refused.locator("li")).to_have_count(6)
    said = sorted(refused.locator("li").all_inner_texts())
    picture(page, "refused-names")
    clash = {"read.md": "READ.md", "READ.md": "read.md"}
    clashes = [one for one in said if "clashes" in one]
    assert [one for one in said if one not in clashes] == [
        '"Icon\\u{200b}" contains a control or invisible character',
        '"a\\b.py" contains a backslash; separate folders with /',
        f'"data /" {ending} (2 files)',
        f'"notes.txt " {ending}',
        f'"what?." {ending}',
    ]
    assert clashes[0] in {
        f'"{one}" clashes with {other}: some systems take both names for one' for one, other in clash.items()
    }
    assert not sent
    assert yaml_of(page) == before
    page.unroute("**/uploads")
    for name in wrong:
        if name != "READ.md":
            (program / name).unlink()
    choose_folder(page, program)
    expect(page.locator(".toast.success")).to_contain_text("program: 2 files uploaded")
    expect(refused).to_be_empty()


def test_all_problems_of_an_archive_are_listed_next_to_its_field(open_as: Open) -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name in ("main.py", "a\\b.py", "../c.py"):
            archive.writestr(name, "print(1)")
    page = open_as("alice", f"{NEW}?template=plain")
    choose_archive(page, "code.zip", packed.getvalue())
    refused = page.locator("[data-refused]")
    expect(refused.locator("p")).to_have_text("code.zip was rejected.")
    expect(refused.locator("li")).to_have_text(
        [
            '"a\\b.py" the name contains a backslash; separate folders with /',
            '"../c.py" the name leaves its folder with ..',
        ]
    )
    assert not violations(page)
    choose_archive(page, "code.zip", b"")
    expect(refused).to_have_text("The archive was rejected: this is neither a zip nor a tar.gz archive.")
    page.locator("[data-drop]").evaluate(DROP)
    expect(page.locator(".toast.success")).to_contain_text("main.py: 1 file uploaded")
    expect(refused).to_be_empty()


def drop_from_disk(page: Page, place: Locator, *paths: Path) -> None:
    """Drop real files and folders, as from a file manager: the browser itself makes the event and reads them."""
    box = place.bounding_box()
    assert box
    devtools = page.context.new_cdp_session(page)
    data = {"items": [], "files": [str(path) for path in paths], "dragOperationsMask": 1}
    at = {"x": box["x"] + box["width"] / 2, "y": box["y"] + box["height"] / 2, "data": data}
    for kind in ("dragEnter", "dragOver", "drop"):
        devtools.send("Input.dispatchDragEvent", {"type": kind, **at})
    devtools.detach()


def test_a_real_folder_is_dropped_and_its_program_runs(open_as: Open, alice: Client, tmp_path: Path) -> None:
    """Nested, with hidden files, an empty folder, what is left out, and links, of which Chromium gives none."""
    secret = tmp_path / "outside.txt"
    secret.write_text("not of the program")
    program = tmp_path / "my program"
    files = {
        "main.py": "from pathlib import Path\nfor path in sorted(Path().rglob('*')): print(path)\n",
        "pack/deep/words.py": "WORDS = 1",
        "pack/.hidden": "1",
        ".config/settings.toml": "a = 1",
        ".git/HEAD": "ref: refs/heads/main",
        ".git/objects/ab/cd": "0",
        "pack/__pycache__/words.pyc": "0",
        ".env": "KEY=1",
    }
    for name, text in files.items():
        (program / name).parent.mkdir(parents=True, exist_ok=True)
        (program / name).write_text(text)
    (program / "empty").mkdir()
    (program / "leaves.txt").symlink_to(secret)
    (program / "stays.py").symlink_to("pack/deep/words.py")
    (program / "folder").symlink_to("pack/deep")
    (program / "broken").symlink_to("nowhere")
    page = open_as("alice", f"{NEW}?template=plain")
    place = page.locator("[data-drop]")
    place.scroll_into_view_if_needed()
    drop_from_disk(page, place, program)
    said = page.locator(".toast.success")
    expect(said).to_have_text(
        "my program: 4 files uploaded, kept for 24 h. Left out: .env, .git, __pycache__."
    )
    page.get_by_label("Command", exact=True).fill("python main.py")
    expect(page.locator("[data-verdict]")).to_have_text(re.compile("Can start|Valid"))
    page.get_by_role("button", name="Submit job").click()
    page.wait_for_url(JOB_PAGE)
    expect(page.locator("#job-badge")).to_have_text("Completed")
    arrived = [
        ".config",
        ".config/settings.toml",
        "main.py",
        "pack",
        "pack/.hidden",
        "pack/deep",
        "pack/deep/words.py",
    ]
    expect(page.locator("x-log .log-row .message")).to_have_text(arrived)
    job = page.url.rsplit("/", 1)[1]
    assert alice.call("GET", f"/jobs/{job}/code/pack/deep/words.py").body == b"WORDS = 1"


def test_a_browser_that_cannot_pack_offers_no_folder(open_as: Open) -> None:
    page = open_as("alice", f"{NEW}?template=plain")
    button, hint = page.get_by_role("button", name="Choose a folder"), page.locator(".drop-hint")
    expect(button).to_be_visible()
    expect(hint).to_be_visible()
    page.add_init_script("delete window.CompressionStream")
    page.reload()
    expect(page.locator("[data-new-job][data-ready]")).to_be_visible()
    expect(button).to_be_hidden()
    expect(hint).to_be_hidden()
    page.locator("[data-drop]").evaluate(DROP)
    expect(page.locator(".toast.error")).to_have_text(
        "This browser cannot pack a folder. Upload a .zip or .tar.gz."
    )


def test_a_command_of_several_lines_stays_one_in_form_and_text(open_as: Open) -> None:
    page = open_as("alice", f"{NEW}?template=plain")
    command = page.get_by_label("Command", exact=True)
    command.fill("python train.py")
    one_line = command.bounding_box()
    command.fill("python -V\npython train.py")
    expect(page.locator("textarea[name=spec]")).to_have_value(
        re.compile(r"command: \|-?\n  python -V\n  python train.py\n")
    )
    grown = command.bounding_box()
    assert one_line
    assert grown
    assert grown["height"] > one_line["height"], (one_line, grown)
    expect(page.locator("[data-verdict]")).to_have_text(re.compile("Can start|Valid"), timeout=60_000)


def test_a_range_of_learners_makes_the_job_elastic(open_as: Open, picture: Callable[..., None]) -> None:
    page = open_as("alice", f"{NEW}?template=plain")
    learners = page.get_by_label("Learners", exact=True)

    def written() -> object:
        return yaml.safe_load(yaml_of(page))["resources"]["learners"]

    learners.fill("3-1")
    expect(learners).to_have_attribute("aria-invalid", "true", timeout=60_000)
    expect(page.locator("[data-findings]")).to_contain_text("must be above min, which is 3")
    learners.fill("1 - 3")
    assert written() == {"min": 1, "max": 3}
    page.get_by_role("button", name="Learners: one more").click()
    expect(learners).to_have_value("1–4")
    for _ in range(3):
        page.get_by_role("button", name="Learners: one less").click()
    assert (learners.input_value(), written()) == ("1", 1)
    learners.fill("1-2")
    expect(page.locator("[data-verdict]")).to_have_text(re.compile("Can start|Valid"), timeout=60_000)
    assert not violations(page)
    page.get_by_role("button", name="Submit job").click()
    page.wait_for_url(JOB_PAGE)
    expect(page.locator(".meta")).to_contain_text("1 of 1–2 learners")
    picture(page, "elastic-job")
    page.get_by_role("link", name="Clone").click()
    expect(page.get_by_label("Learners", exact=True)).to_have_value("1–2")
    expect(page.locator("[data-changes]")).to_contain_text("No changes")


def test_a_project_is_chosen_in_the_form_and_kept_by_a_clone(platform: Platform, open_as: Open) -> None:
    admin = platform.client("admin")

    def weigh(weight: int | None) -> None:
        changes = [{"project": "vision", "gpu_type": "", "weight": weight}]
        admin.post("/tenants/vision-lab/project-changes", {"changes": changes, "reason": "A test"})

    weigh(1)
    page = open_as("alice", f"{NEW}?template=plain")
    project = page.get_by_label("Project", exact=True)
    expect(project).to_have_value("")
    project.select_option("vision")
    assert yaml.safe_load(yaml_of(page))["project"] == "vision"
    project.select_option("none")
    assert "project" not in yaml.safe_load(yaml_of(page))
    page.locator(".cm-content").click()
    page.keyboard.press("ControlOrMeta+End")
    page.keyboard.insert_text("project: visio\n")
    expect(project).to_have_attribute("aria-invalid", "true", timeout=60_000)
    expect(project).to_have_accessible_description(re.compile("Did you mean vision?"))
    assert not violations(page)
    project.select_option("vision")
    expect(page.locator("[data-verdict]")).to_have_text(re.compile("Can start|Valid"), timeout=60_000)
    page.get_by_role("button", name="Submit job").click()
    page.wait_for_url(JOB_PAGE)
    page.get_by_role("link", name="Clone").click()
    expect(page.get_by_label("Project", exact=True)).to_have_value("vision")
    expect(page.locator("[data-changes]")).to_contain_text("No changes")
    weigh(None)


def test_a_file_that_is_no_archive_is_refused_in_words(open_as: Open) -> None:
    page = open_as("alice", NEW)
    before = yaml_of(page)
    page.get_by_label("Upload a .zip or .tar.gz instead").set_input_files(
        {"name": "code.zip", "mimeType": "application/zip", "buffer": b"not an archive"}
    )
    expect(page.locator("[data-refused]")).to_have_text(
        "The archive was rejected: this is neither a zip nor a tar.gz archive."
    )
    assert yaml_of(page) == before


def test_a_clone_shows_what_it_changes(alice: Client, open_as: Open) -> None:
    job = alice.submit(spec("first", programs.COUNTER, command="python -u main.py 10 10 0"))["id"]
    alice.wait_state(job, "COMPLETED")
    page = open_as("alice", f"/t/vision-lab/jobs/{job}")
    page.get_by_role("link", name="Clone").click()
    changes = page.locator("[data-changes]")
    expect(changes).to_contain_text("No changes")
    page.get_by_label("Command", exact=True).fill("python -u main.py 20 10 0")
    page.get_by_label("Tags (comma-separated)").fill("again")
    expect(changes.locator("li")).to_have_count(2)
    line = changes.locator("li", has_text="command")
    expect(line.locator("del")).to_have_text("python -u main.py 10 10 0")
    expect(line.locator("ins")).to_have_text("python -u main.py 20 10 0")
    expect(changes.locator("li", has_text="tags").locator("ins")).to_have_text("again")
    assert not violations(page)
    page.get_by_role("button", name="Submit job").click()
    page.wait_for_url(JOB_PAGE)
    expect(page.locator(".meta")).to_contain_text(f"cloned from {job}")
    expect(page.locator("#job-badge")).to_have_text("Completed", timeout=60_000)
    assert alice.job(page.url.rsplit("/", 1)[1])["cloned_from"] == job


def test_without_scripts_a_job_is_submitted_halted_and_resumed(
    platform: Platform, alice: Client, browser: Browser
) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    sign_in(page, platform, "alice")
    page.goto(platform.url + NEW)
    page.locator("textarea[name=spec]").fill("apiVersion: luthier/v1\nname: plain-form\n")
    page.get_by_role("button", name="Submit job").click()
    expect(page.locator("#findings li")).not_to_have_count(0)
    assert yaml_of(page) == "apiVersion: luthier/v1\nname: plain-form\n"
    expect(page.locator("textarea[name=spec]")).to_be_focused()
    text = (
        "apiVersion: luthier/v1\nname: plain-form\nframework: plain\ncommand: python -u main.py 4000 0.1\n"
        "resources: {learners: 1, gpus: 0, cpus: 1, memory: 512Mi}\ncode:\n  files:\n    main.py: |\n"
    ) + "".join(f"      {line}\n" for line in programs.TRAINER.splitlines())
    page.locator("textarea[name=spec]").fill(text)
    page.get_by_role("button", name="Submit job").click()
    page.wait_for_url(JOB_PAGE)
    job = page.url.rsplit("/", 1)[1]

    def shows(state: str) -> None:
        wait_for(lambda: (page.reload(), page.locator("#job-badge").inner_text() == state)[1], within_s=60)

    def press(button: Locator) -> None:
        with page.expect_navigation():  # the answer to the form; a reload in its midst has no page
            button.click()

    shows("Processing")
    wait_for(lambda: (alice.job(job)["progress"]["step"] or 0) > 10, within_s=60)
    press(page.get_by_role("button", name="Halt"))
    if page.get_by_role("button", name="Halt job").count():  # asked, because it has no checkpoint yet
        press(page.get_by_role("button", name="Halt job"))
    shows("Halted")
    expect(page.locator(".receipt")).to_contain_text("Halted, no steps lost")
    press(page.get_by_role("button", name="Resume"))
    shows("Processing")
    press(page.get_by_role("link", name="Cancel"))
    press(page.get_by_role("button", name="Cancel job"))
    shows("Canceled")
    assert alice.job(job)["attempt"] == 2
    context.close()


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


def test_a_secret_is_granted_by_the_form_and_a_literal_key_is_a_warning(open_as: Open, alice: Client) -> None:
    value = "browser-secret-value"
    page = open_as("alice", "/me/secrets")
    page.get_by_label("Name").fill("wandb-mine")
    page.get_by_label("Value").fill(value)
    page.get_by_role("button", name="Set secret").click()
    expect(page.get_by_role("cell", name="wandb-mine", exact=True)).to_be_visible()
    assert value not in page.content()

    page.goto(page.url.replace("/me/secrets", f"{NEW}?template=digits-sklearn"))
    page.get_by_role("button", name="Add a variable").click()
    page.get_by_label("Environment: Name").last.fill("HF_TOKEN")
    page.get_by_label("Environment: Value").last.fill("hf_abcdefghijklmnop")
    page.get_by_role("button", name="Add a secret").click()
    page.get_by_label("Secrets: Variable").fill("WANDB_API_KEY")
    page.get_by_label("Secrets: Name of the secret").fill("wandb-min")
    findings = page.locator("[data-findings]")
    expect(findings).to_contain_text("Did you mean wandb-mine?")
    page.get_by_label("Secrets: Name of the secret").fill("wandb-mine")
    expect(findings).to_contain_text("looks like a key")
    expect(findings).not_to_contain_text("Did you mean wandb-mine?")
    assert yaml.safe_load(yaml_of(page))["secrets"] == {"WANDB_API_KEY": "wandb-mine"}
    assert alice.call("DELETE", "/me/secrets/wandb-mine").status == 204
