"""Every page in both themes, on a desk and on a phone: readable by axe, no sideways scroll, nothing blocked.

The job page and its log and charts have tests of their own. LUTHIER_PICTURES=folder keeps a picture of each.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, WebSocketRoute, expect

from tests.browser import programs
from tests.browser.axe import in_both_themes, violations
from tests.browser.conftest import sign_in, spec
from tests.browser.layout import misfits
from tests.platform import ROOT, Platform, running, wait_for

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]

PAGES: dict[str, tuple[str, str]] = {
    "overview": ("alice", "/t/vision-lab/"),
    "overview-empty": ("bob", "/t/nlp-research/"),
    "jobs": ("alice", "/t/vision-lab/jobs"),
    "jobs-none-match": ("alice", "/t/vision-lab/jobs?q=nothing-like-this"),
    "jobs-none-yet": ("bob", "/t/nlp-research/jobs"),
    "new-job": ("alice", "/t/vision-lab/jobs/new"),
    "members": ("dave", "/t/vision-lab/members"),
    "members-read-only": ("carol", "/t/vision-lab/members"),
    "usage": ("alice", "/t/vision-lab/usage"),
    "usage-types": ("alice", "/t/vision-lab/usage?by=type&of=gpu"),
    "usage-empty": ("bob", "/t/nlp-research/usage?month=2026-01"),
    "audit": ("dave", "/t/vision-lab/audit"),
    "tokens": ("dave", "/t/vision-lab/tokens"),
    "secrets": ("dave", "/t/vision-lab/secrets"),
    "secrets-read-only": ("alice", "/t/vision-lab/secrets"),
    "secrets-own": ("alice", "/me/secrets"),
    "cluster": ("alice", "/cluster"),
    "timeline": ("alice", "/cluster/timeline"),
    "profile": ("alice", "/me"),
    "help": ("alice", "/help"),
    "help-job-spec": ("alice", "/help/job-spec"),
    "help-api": ("alice", "/help/api"),
    "queue": ("alice", "/t/vision-lab/queue"),
    "api-reference": ("alice", "/docs/api"),
    "job": ("alice", "/t/vision-lab/jobs/{resnet50-run}"),
    "job-learners": ("alice", "/t/vision-lab/jobs/{resnet50-run}/learners"),
    "job-edit": ("alice", "/t/vision-lab/jobs/{resnet50-run}/edit"),
    "job-waiting": ("alice", "/t/vision-lab/jobs/{waits-for-gpus}"),
    "job-checkpoints": ("alice", "/t/vision-lab/jobs/{resnet50-halted}/checkpoints?files=1"),
    "job-failed": ("alice", "/t/vision-lab/jobs/{broken-loader}"),
    "clone": ("alice", "/t/vision-lab/jobs/new?from={resnet50-halted}"),
    "missing": ("alice", "/t/no-such-team/"),
    "admin-overview": ("admin", "/admin-console/"),
    "admin-tenants": ("admin", "/admin-console/tenants"),
    "admin-tenant": ("admin", "/admin-console/tenants/vision-lab"),
    "admin-tenant-new": ("admin", "/admin-console/tenants/new"),
    "admin-quotas": ("admin", "/admin-console/quotas"),
    "admin-fairness": ("admin", "/admin-console/fairness"),
    "admin-quota-history": ("admin", "/admin-console/quota-history"),
    "admin-runtimes": ("admin", "/admin-console/runtimes"),
    "admin-users": ("admin", "/admin-console/users"),
    "admin-user": ("admin", "/admin-console/users/alice"),
    "admin-user-new": ("admin", "/admin-console/new-user"),
    "admin-audit": ("admin", "/admin-console/audit"),
}
WIDTHS = (320, 390, 768, 1180, 1440)


def opened(page: Page, showcase: Platform, name: str, path: str) -> bool:
    """Go there, {a job's name} being its id; whether it is that page and not one that says what broke."""
    listed = showcase.client("alice").get("/jobs", page_size=100) if "{" in path else {"items": []}
    jobs = {row["name"]: row["id"] for row in listed["items"]}
    answer = page.goto(showcase.url + path.format_map(jobs))
    return answer is not None and answer.status == (404 if name == "missing" else 200)


@pytest.fixture(scope="module")
def showcase(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    """A platform with something of everything: jobs in every state, a month of use, more tenants."""
    nodes = "node-a:cpu:8,node-b:cpu:8,gpu-1:a100:8"
    with running(tmp_path_factory.mktemp("show"), nodes=nodes) as started:
        subprocess.run(
            [sys.executable, "-m", "tests.browser.seed"],
            cwd=ROOT,
            env=started.environment(),
            check=True,
            timeout=120,
        )
        alice, dave = started.client("alice"), started.client("dave")
        for name in ("wandb", "huggingface"):
            assert (
                dave.call("PUT", f"/tenants/vision-lab/secrets/{name}", {"value": "shown-nowhere"}).status
                == 200
            )
        runs = alice.submit(spec("resnet50-run", programs.TRAINER, command="python -u main.py 40000 0.2"))
        halts = alice.submit(spec("resnet50-halted", programs.TRAINER, command="python -u main.py 4000 0.1"))
        fails = alice.submit(spec("broken-loader", programs.BROKEN))
        gpus = {"learners": 1, "gpus": 8, "gpu_type": "a100", "cpus": 1, "memory": "512Mi"}
        takes = alice.submit(spec("takes-all-gpus", programs.WAITER, resources=gpus))
        alice.wait_state(takes["id"], "PROCESSING")
        alice.submit(spec("waits-for-gpus", programs.WAITER, resources=gpus))
        for job in (runs, halts):
            alice.wait_state(job["id"], "PROCESSING")
        alice.post(f"/jobs/{halts['id']}/halt")
        alice.wait_state(halts["id"], "HALTED", within_s=90)
        alice.wait_state(fails["id"], "FAILED", within_s=90)
        yield started


@pytest.fixture(scope="module")
def contexts(browser: Browser, showcase: Platform) -> Iterator[Callable[[str, str, int], BrowserContext]]:
    """A signed-in context per person, theme and width, made once."""
    made: dict[tuple[str, str, int], BrowserContext] = {}

    def context(name: str, theme: str, width: int) -> BrowserContext:
        if (name, theme, width) not in made:
            fresh = browser.new_context(
                viewport={"width": width, "height": 900 if width > 768 else 844},
                color_scheme="dark" if theme == "dark" else "light",
                reduced_motion="reduce",
                locale="en-US",
                timezone_id="UTC",
            )
            if any(key[0] == name for key in made):
                other = next(value for key, value in made.items() if key[0] == name)
                fresh.add_cookies(other.cookies())
            else:
                sign_in(fresh.new_page(), showcase, name)
            made[name, theme, width] = fresh
        return made[name, theme, width]

    yield context
    for each in made.values():
        each.close()


@pytest.mark.parametrize("width", [1440, 390])
@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_readable_by_everybody(
    contexts: Callable[[str, str, int], BrowserContext],
    showcase: Platform,
    picture: Callable[..., None],
    name: str,
    width: int,
) -> None:
    who, path = PAGES[name]
    page = contexts(who, "light", width).new_page()
    errors: list[str] = []
    page.on("console", lambda message: errors.append(_text(message)) if message.type == "error" else None)
    assert opened(page, showcase, name, path)
    page.wait_for_load_state("load")
    wait_for(lambda: page.evaluate("document.documentElement.dataset.theme"), within_s=60, what="the theme")
    found = in_both_themes(page, picture, f"{name}-{width}", full_page=True)
    found += too_wide(page) if width == 1440 else []
    page.close()
    assert not found, "\n".join(found)
    blocked = [line for line in errors if "Content Security Policy" in line or "Refused" in line]
    assert not blocked, blocked


def _text(message: ConsoleMessage) -> str:
    return message.text


def too_wide(page: Page) -> list[str]:
    """What does not fit at each width."""
    found = []
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        found += [f"{width} px: {line}" for line in misfits(page)]
    return found


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_login_page_is_readable_and_does_not_reveal_which_names_exist(
    browser: Browser, showcase: Platform, picture: Callable[..., None], theme: str
) -> None:
    context = browser.new_context(
        color_scheme="dark" if theme == "dark" else "light", reduced_motion="reduce"
    )
    page = context.new_page()
    page.goto(f"{showcase.url}/login?next=/t/vision-lab/jobs")
    picture(page, f"login-{theme}")
    assert not violations(page)
    page.get_by_label("Username").fill("no-such-user")
    page.get_by_role("textbox", name="Password").fill("wrong")
    page.get_by_role("button", name="Sign in").click()
    page.get_by_role("alert").wait_for()
    expect(page.get_by_role("textbox", name="Password")).to_be_focused()
    picture(page, f"login-error-{theme}")
    assert not violations(page)
    context.close()


def test_a_role_changes_by_choosing_it(
    contexts: Callable[[str, str, int], BrowserContext], showcase: Platform
) -> None:
    page = contexts("dave", "light", 1440).new_page()
    page.goto(f"{showcase.url}/t/vision-lab/members")
    page.get_by_label("Role of erin", exact=True).select_option("viewer")
    page.get_by_text("erin is now a viewer of vision-lab.").wait_for()
    page.close()


def test_removing_a_member_asks_first_with_the_focus_on_keeping(
    contexts: Callable[[str, str, int], BrowserContext], showcase: Platform, picture: Callable[..., None]
) -> None:
    page = contexts("dave", "light", 1440).new_page()
    page.goto(f"{showcase.url}/t/vision-lab/members")
    page.get_by_role("button", name="Remove frank").click()
    dialog = page.get_by_role("dialog")
    dialog.wait_for()
    assert dialog.get_by_role("button", name="Keep").evaluate("e => e === document.activeElement")
    picture(page, "members-remove")
    assert not violations(page)
    dialog.get_by_role("button", name="Keep").click()
    assert page.get_by_role("button", name="Remove frank").is_visible()
    page.close()


def test_a_token_is_made_copied_and_revoked(
    contexts: Callable[[str, str, int], BrowserContext], showcase: Platform, picture: Callable[..., None]
) -> None:
    page = contexts("alice", "dark", 1440).new_page()
    page.goto(f"{showcase.url}/t/vision-lab/tokens")
    page.get_by_role("button", name="New token").click()
    picture(page, "tokens-new")
    assert not violations(page)
    page.locator("#new-name").fill("laptop")
    page.locator("#new-password").fill(showcase.users["alice"]["password"])
    page.get_by_role("button", name="Create token").click()
    secret = page.locator("#secret-text").inner_text()
    assert secret.startswith("lut_")
    picture(page, "tokens-created", full_page=True)
    assert not violations(page)
    page.get_by_role("link", name="I saved it").click()
    page.get_by_role("button", name="Revoke laptop").click()
    page.get_by_role("dialog").get_by_role("button", name="Revoke").click()
    page.get_by_text("Token revoked.").wait_for()
    page.close()


def test_a_quota_draft_shows_its_effect_before_it_counts(
    contexts: Callable[[str, str, int], BrowserContext], showcase: Platform, picture: Callable[..., None]
) -> None:
    page = contexts("admin", "light", 1440).new_page()
    page.goto(f"{showcase.url}/admin-console/quotas")
    field = page.get_by_label("Limit of robotics for cpu")
    before = int(field.input_value())
    field.focus()
    page.keyboard.press("-")
    page.get_by_text("1 change, not applied").wait_for()
    assert page.locator("#cell-robotics-cpu s").inner_text() == str(before)
    picture(page, "admin-quotas-draft", full_page=True)
    assert not violations(page)
    page.get_by_label("Reason").fill("Deadline of the others")
    page.get_by_role("button", name="Apply changes").click()
    page.wait_for_url("**/quota-history")
    assert page.get_by_text("Deadline of the others").is_visible()
    page.get_by_role("link", name="Revert the change").first.click()
    page.get_by_text("1 change, not applied").wait_for()
    assert page.get_by_label("Limit of robotics for cpu").input_value() == str(before)
    page.close()


def test_a_cohort_is_drafted_below_the_tenants_names_applied_and_undone(
    contexts: Callable[[str, str, int], BrowserContext], showcase: Platform, picture: Callable[..., None]
) -> None:
    page = contexts("admin", "light", 1440).new_page()
    page.goto(f"{showcase.url}/admin-console/quotas")
    for tenant in ("robotics", "vision-lab"):
        field = page.locator(f"#cohort-{tenant}")
        field.locator("xpath=ancestor::details/summary").click()
        field.fill("No such name")
        field.press("Tab")
    page.locator("#about-cohort-robotics .bad").wait_for()
    expect(page.locator("#cohort-robotics")).to_have_attribute("aria-invalid", "true")
    picture(page, "admin-quotas-terms-wrong", full_page=True)
    for tenant in ("robotics", "vision-lab"):
        page.locator(f"#cohort-{tenant}").fill("research")
        page.locator(f"#cohort-{tenant}").press("Tab")
    page.get_by_text("2 changes, not applied").wait_for()
    page.get_by_label("Reason").fill("One grant")
    page.get_by_role("button", name="Apply changes").click()
    page.wait_for_url("**/quota-history")
    page.goto(f"{showcase.url}/admin-console/quotas")
    page.locator("#cohort-robotics").locator("xpath=ancestor::details/summary").click()
    page.locator("#weight-vision-lab-a100").locator("xpath=ancestor::details/summary").click()
    assert in_both_themes(page, picture, "admin-quotas-terms-1440", full_page=True) == []
    page.emulate_media(color_scheme="light")
    page.set_viewport_size({"width": 390, "height": 844})
    assert in_both_themes(page, picture, "admin-quotas-terms-390", full_page=True) == []
    assert too_wide(page) == []
    page.goto(f"{showcase.url}/admin-console/quota-history")
    page.get_by_role("link", name="Revert the change").first.click()
    page.get_by_text("2 changes, not applied").wait_for()
    page.get_by_role("button", name="Apply changes").click()
    page.wait_for_url("**/quota-history")
    page.close()


def test_finding_a_tenant_keeps_the_draft_and_the_address(
    contexts: Callable[[str, str, int], BrowserContext], showcase: Platform
) -> None:
    page = contexts("admin", "light", 1440).new_page()
    page.goto(f"{showcase.url}/admin-console/quotas")
    robotics, speech = (page.get_by_label(f"Limit of {name} for cpu") for name in ("robotics", "speech"))
    robotics.fill("3")
    page.get_by_label("Search tenants").fill("pee")
    expect(speech).to_be_visible()
    expect(robotics).to_be_hidden()
    expect(page.locator("#found")).to_have_text(re.compile(r"^1 of \d+$"))
    page.get_by_label("Search tenants").press("Enter")  # nothing is sent: the draft would be lost
    speech.press("ArrowUp")  # no other tenant is shown
    expect(speech).to_be_focused()
    page.get_by_label("Search tenants").fill("")
    expect(robotics).to_have_value("3")
    page.get_by_label("Search tenants").fill("robot")
    page.reload()
    expect(page.get_by_label("Search tenants")).to_have_value("robot")
    expect(robotics).to_be_visible()
    expect(speech).to_be_hidden()
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(f"{showcase.url}/admin-console/tenants")
    page.get_by_label("Search tenants").fill("no such name")
    expect(page.locator("#found")).to_have_text("No matches")
    box = page.locator("#found").bounding_box()
    assert box
    assert box["x"] + box["width"] <= 390 - 16, "it stays inside its card"
    page.close()


def test_a_part_that_is_fetched_never_turns_into_the_login_page(browser: Browser, showcase: Platform) -> None:
    context = browser.new_context()
    page = context.new_page()
    sign_in(page, showcase, "admin")
    page.goto(f"{showcase.url}/admin-console/")
    card = page.locator("section[aria-labelledby=system]")
    expect(card).to_contain_text("PostgreSQL", timeout=60_000)
    context.clear_cookies()
    with page.expect_response(re.compile("/admin-console/system$|/login")):
        page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")  # it is fetched again
    expect(card).to_contain_text("PostgreSQL")
    expect(card.locator("input")).to_have_count(0)
    context.close()


def test_the_list_and_the_overview_follow_jobs_without_a_reload(
    contexts: Callable[[str, str, int], BrowserContext], showcase: Platform
) -> None:
    alice = showcase.client("alice")
    first = alice.submit(spec("follow-me", programs.WAITER))
    context = contexts("alice", "light", 1440)
    jobs, overview = context.new_page(), context.new_page()
    jobs.goto(f"{showcase.url}/t/vision-lab/jobs?q=follow")
    overview.goto(f"{showcase.url}/t/vision-lab/")
    row = jobs.locator(f"#job-{first['id']}")
    row.get_by_text("Processing").wait_for(timeout=60_000)
    box = row.get_by_role("checkbox")
    box.check()
    mine = jobs.locator(".tabs [data-view=mine]")
    count = int(mine.inner_text())
    second = alice.submit(spec("follow-me-too", programs.WAITER))
    jobs.locator("#new-jobs").get_by_text("1 new job").wait_for(timeout=60_000)
    assert jobs.locator(f"#job-{second['id']}").count() == 0, "a new row moved the others"
    expect(mine).to_have_text(str(count + 1), timeout=60_000)
    alice.post(f"/jobs/{first['id']}/cancel")
    row.get_by_text("Canceled", exact=True).wait_for(timeout=60_000)
    overview.get_by_role("link", name="follow-me-too").first.wait_for(timeout=60_000)
    jobs.locator("#new-jobs").click()
    jobs.locator(f"#job-{second['id']}").wait_for()
    alice.post(f"/jobs/{second['id']}/cancel")
    jobs.close()
    overview.close()


def test_what_happens_before_a_page_is_connected_is_shown_by_it(
    contexts: Callable[[str, str, int], BrowserContext], showcase: Platform
) -> None:
    alice = showcase.client("alice")
    context = contexts("alice", "light", 1440)
    jobs, overview = context.new_page(), context.new_page()
    asked: list[tuple[WebSocketRoute, str | bytes]] = []
    released = False

    def hold(route: WebSocketRoute) -> None:
        server = route.connect_to_server()
        route.on_message(
            lambda message: server.send(message) if released else asked.append((server, message))
        )

    for page, path in ((jobs, "jobs?owner=me"), (overview, "")):
        page.route_web_socket("**/ws/v1/live", hold)
        page.goto(f"{showcase.url}/t/vision-lab/{path}")
    submitted = alice.submit(spec("before-it-connects", programs.WAITER))
    alice.wait_state(submitted["id"], "PROCESSING")  # then no later frame mentions it
    wait_for(lambda: jobs.title() and len(asked) >= 2, within_s=60, what="both pages' subscriptions")
    released = True
    for server, message in asked:
        server.send(message)
    jobs.locator("#new-jobs").get_by_text("1 new job").wait_for(timeout=60_000)
    overview.get_by_role("link", name="before-it-connects").first.wait_for(timeout=60_000)
    alice.post(f"/jobs/{submitted['id']}/cancel")
    jobs.close()
    overview.close()


def test_shortcuts_lead_and_stay_out_of_text_fields(
    contexts: Callable[[str, str, int], BrowserContext], showcase: Platform
) -> None:
    page = contexts("alice", "light", 1440).new_page()
    page.goto(f"{showcase.url}/t/vision-lab/")
    page.keyboard.press("g")
    page.keyboard.press("j")
    page.wait_for_url("**/t/vision-lab/jobs")
    page.keyboard.press("/")
    page.keyboard.type("gj?")
    assert page.locator("#q").input_value() == "gj?"
    assert page.url.endswith("/jobs")
    page.close()


@pytest.mark.parametrize("path", ["/t/vision-lab/", "/t/vision-lab/jobs", "/t/vision-lab/members", "/me"])
def test_a_page_works_without_scripts(browser: Browser, showcase: Platform, path: str) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    sign_in(page, showcase, "dave")
    answer = page.goto(showcase.url + path)
    assert answer is not None
    assert answer.status == 200
    assert page.get_by_role("heading", level=1).is_visible()
    context.close()
