"""What single fields of the form make of a job: its command, size, project and secrets; a clone; no scripts."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import yaml
from playwright.sync_api import Browser, Locator, Page, expect

from tests.browser import programs
from tests.browser.axe import violations
from tests.browser.conftest import sign_in, spec
from tests.browser.new_job import JOB_PAGE, NEW, yaml_of
from tests.platform import Client, Platform, wait_for

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]
Open = Callable[..., Page]


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
