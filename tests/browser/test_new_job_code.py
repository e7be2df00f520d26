"""The code of a new job: an archive, a folder or files, chosen or dropped, and what is refused."""

from __future__ import annotations

import io
import os
import re
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, Route, expect

from tests.browser.axe import violations
from tests.browser.new_job import JOB_PAGE, NEW, yaml_of
from tests.platform import Client, wait_for

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]
Open = Callable[..., Page]


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
