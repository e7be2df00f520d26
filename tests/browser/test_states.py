"""Pages in states that loading them does not show: nothing live, a dialog open, a form refused, an error, nothing yet.

Each light on a desk and dark on a phone: nothing for axe to find, and no sideways scroll.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest
from django.conf import settings
from django.test import RequestFactory
from playwright.sync_api import Page, expect

from portal.pages.auth import WARNED
from portal.pages.errors import OLD_FORM, TEXTS, error_page
from tests.browser import programs
from tests.browser.axe import violations
from tests.browser.conftest import spec
from tests.platform import Client, Platform

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]
Open = Callable[..., Page]
Picture = Callable[..., None]
LOOKS = [("light", 1440), ("dark", 390)]


def faults(page: Page, picture: Picture, name: str) -> list[str]:
    """What is wrong with the page in its current state, in both looks."""
    found = []
    for theme, width in LOOKS:
        page.set_viewport_size({"width": width, "height": 900 if width > 768 else 844})
        page.emulate_media(color_scheme="dark" if theme == "dark" else "light", reduced_motion="reduce")
        expect(page.locator("html")).to_have_attribute("data-theme", theme)
        picture(page, f"{name}-{width}-{theme}")
        found += [f"{theme} {width}: {line}" for line in violations(page)]
        if page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth"):
            found.append(f"{theme} {width}: scrolls sideways")
    page.set_viewport_size({"width": 1440, "height": 900})
    return found


@pytest.fixture(scope="module")
def jobs(platform: Platform) -> Iterator[dict[str, str]]:
    """One job that runs and one that waits."""
    client: Client = platform.client("alice")
    big = {"learners": 2, "gpus": 0, "cpus": 4, "memory": "256Mi"}
    made = {
        "running": client.submit(spec("goes-on", programs.TRAINER, command="python -u main.py 40000 0.1"))[
            "id"
        ],
        "waiting": client.submit(spec("waits", programs.WAITER, resources=big))["id"],
    }
    client.wait_state(made["running"], "PROCESSING")
    yield made
    for job in made.values():
        client.post(f"/jobs/{job}/cancel")


# --- menus and the reference


def test_on_a_phone_more_leads_to_every_page_of_the_sidebar(open_as: Open, picture: Picture) -> None:
    """From the profile an administrator finds the way back to the console, and a manager to the members."""
    for who, path, links in (
        ("admin", "/me", {"Admin console", "Profile"}),
        ("admin", "/admin-console/audit", {"Quota history", "Audit log"}),
        ("dave", "/cluster", {"Members", "Quota & usage", "API tokens", "Vision Lab manager"}),
    ):
        page = open_as(who, path, width=390, height=844, theme="dark")
        page.get_by_text("More", exact=True).click()
        sheet = page.locator(".more > div")
        assert links <= {" ".join(link.inner_text().split()) for link in sheet.get_by_role("link").all()}
        assert sheet.get_by_role("button", name="Sign out").is_visible()
        assert not violations(page)
        picture(page, f"more-{who}-390-dark")
        page.keyboard.press("Escape")
        expect(sheet).to_be_hidden()
        expect(page.locator(".more > summary")).to_be_focused()


def test_a_toast_is_shown_above_the_phone_s_bar_and_above_submit(
    jobs: dict[str, str], open_as: Open, picture: Picture
) -> None:
    page = open_as("alice", f"/t/vision-lab/jobs/{jobs['running']}", width=390, height=844)
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.locator("button[data-copy]").click()
    below = page.locator("nav.bottom-bar").bounding_box()
    said = page.locator(".toast").bounding_box()
    assert below
    assert said
    assert said["y"] + said["height"] <= below["y"]
    picture(page, "toast-390-light")
    page = open_as("alice", "/t/vision-lab/jobs/new", width=390, height=844)
    page.get_by_label("Memory each").fill("much")
    expect(page.locator("[data-verdict]")).to_contain_text("1 error")
    page.get_by_role("button", name="Submit job").click()
    below, said = page.locator(".submit-bar").bounding_box(), page.locator(".toast").bounding_box()
    assert below
    assert said
    assert said["y"] + said["height"] <= below["y"]
    picture(page, "toast-submit-390-light")


def test_halting_what_is_chosen_waits_for_a_choice(jobs: dict[str, str], open_as: Open) -> None:
    page = open_as("alice", "/t/vision-lab/jobs")
    halt, box = (
        page.get_by_role("button", name="Halt selected"),
        page.locator(f"#job-{jobs['running']} input"),
    )
    expect(halt).to_be_disabled()
    box.check()
    expect(halt).to_be_enabled()
    expect(page.locator("#selected-count")).to_have_text("1 job selected:")
    box.uncheck()
    expect(halt).to_be_disabled()
    page.keyboard.press("?")
    expect(page.locator("#keys").get_by_role("button", name="Close")).to_be_focused()


def test_the_reference_of_the_rest_api(open_as: Open, picture: Picture) -> None:
    page = open_as("alice", "/docs/api")
    for operation in page.locator("details > summary").all()[:12]:
        operation.click()
    assert not faults(page, picture, "api-docs")
    assert page.locator("main").bounding_box()["width"] <= 1080


# --- not live any more


@pytest.mark.parametrize(
    ("who", "path"),
    [
        ("alice", "/t/vision-lab/"),
        ("alice", "/t/vision-lab/jobs/{running}"),
        ("alice", "/cluster"),
        ("admin", "/admin-console/"),
    ],
)
def test_a_page_that_is_no_longer_live_says_so(
    jobs: dict[str, str], open_as: Open, picture: Picture, who: str, path: str
) -> None:
    page = open_as(who, "/healthz")
    page.route_web_socket(re.compile("/ws/v1/live$"), lambda socket: socket.close(code=1012))
    page.clock.install()
    page.goto(page.url.replace("/healthz", path.format(**jobs)))
    page.clock.run_for(6_000)
    expect(page.locator(".banner.lost")).to_contain_text("Live updates paused since")
    expect(page.locator(".banner.lost").get_by_role("button", name="Retry now")).to_be_visible()
    assert page.locator("[data-live-region]:not([data-stale])").count() == 0
    assert not faults(page, picture, "stale-" + (path.strip("/").split("/")[-1].strip("{}") or "overview"))


def test_nothing_is_counted_on_while_nothing_is_received(jobs: dict[str, str], open_as: Open) -> None:
    page = open_as("alice", "/healthz")
    page.route_web_socket(re.compile("/ws/v1/live$"), lambda socket: socket.close(code=1012))
    page.clock.install()
    page.goto(page.url.replace("/healthz", f"/t/vision-lab/jobs/{jobs['running']}"))
    page.clock.run_for(6_000)
    expect(page.locator(".banner.lost")).to_be_visible()
    lasted, submitted = page.locator(".timeline time[data-since]"), page.locator(".meta time[data-ago]")
    shown = lasted.inner_text(), submitted.inner_text()
    page.clock.run_for(3_600_000)
    assert lasted.inner_text() == shown[0]
    assert submitted.inner_text() != shown[1], "that is as long ago whatever has become of the job"


# --- a dialog over the page


def opened(page: Page, opener: str, *, link: bool = False) -> None:
    page.get_by_role("link" if link else "button", name=opener, exact=True).first.click()
    expect(page.locator("dialog:popover-open, dialog[open]").first).to_be_visible()


def test_canceling_a_job(jobs: dict[str, str], open_as: Open, picture: Picture) -> None:
    page = open_as("alice", f"/t/vision-lab/jobs/{jobs['running']}")
    opened(page, "Cancel", link=True)
    expect(page.get_by_role("link", name="Keep job")).to_be_focused()
    assert not faults(page, picture, "dialog-cancel")


@pytest.mark.parametrize(
    ("who", "path", "opener"),
    [
        ("dave", "/t/vision-lab/members", "Remove alice"),
        ("dave", "/t/vision-lab/tokens", "New token"),
        ("admin", "/admin-console/tenants/vision-lab", "Suspend submission"),
        ("alice", "/t/vision-lab/", "Keyboard shortcuts"),
    ],
)
def test_a_dialog_of_a_form(open_as: Open, picture: Picture, who: str, path: str, opener: str) -> None:
    page = open_as(who, path)
    opened(page, opener)
    assert not faults(page, picture, "dialog-" + opener.lower().replace(" ", "-"))


def test_the_templates_of_a_new_job(open_as: Open, picture: Picture) -> None:
    page = open_as("alice", "/t/vision-lab/jobs/new")
    page.locator("summary", has_text="Templates").click()
    assert not faults(page, picture, "menu-templates")


# --- a form that was refused


def test_a_new_job_with_errors(open_as: Open, picture: Picture) -> None:
    page = open_as("alice", "/t/vision-lab/jobs/new?template=plain")
    page.get_by_label("Memory each").fill("plenty")
    page.get_by_label("Save every").fill("soon")
    expect(page.locator("[data-verdict]")).to_have_text(re.compile("^2 errors: "), timeout=60_000)
    assert not faults(page, picture, "refused-new-job")


def test_a_quota_above_the_policy(open_as: Open, picture: Picture) -> None:
    page = open_as("admin", "/admin-console/quotas")
    field = page.get_by_label(re.compile("^Limit of .* for cpu$")).first
    field.fill("900000")
    page.get_by_label("Reason").fill("too much")
    page.get_by_role("button", name="Apply changes").click()
    expect(page.get_by_role("alert")).to_be_visible(timeout=60_000)
    expect(field).to_have_value("900000")
    assert not faults(page, picture, "refused-quota")


def test_a_draft_that_the_server_does_not_review_says_so_until_one_is(
    open_as: Open, picture: Picture
) -> None:
    page = open_as("admin", "/admin-console/quotas")
    page.route("**/admin-console/quotas", lambda route: route.fulfill(status=400))
    field = page.get_by_label(re.compile("^Limit of .* for cpu$")).first
    field.fill("3")
    field.press("Tab")
    expect(page.locator("#review [role=alert]")).to_contain_text("could not be reviewed")
    assert not faults(page, picture, "quota-not-reviewed")
    page.unroute("**/admin-console/quotas")
    field.fill("2")
    with page.expect_request("**/admin-console/quotas") as posted:
        field.press("Tab")
    names = set(re.findall(r'name="((?:limit|if|term|was):[^"]*)"', posted.value.post_data or ""))
    assert {name.partition(":")[0] for name in names} == {"limit", "if"}
    assert len(names) == 2, "what was not changed is not posted"
    expect(page.get_by_text("1 change, not applied")).to_be_visible()
    expect(page.locator("#review [role=alert]")).to_have_count(0)


def test_what_was_said_of_a_field_goes_as_soon_as_one_types(open_as: Open) -> None:
    page = open_as("admin", "/admin-console/quotas")
    page.get_by_label(re.compile("^Limit of .* for cpu$")).first.fill("3")
    page.get_by_role("button", name="Apply changes").click()
    reason = page.get_by_label("Reason")
    expect(reason).to_have_attribute("aria-invalid", "true")
    reason.press_sequentially("w")
    expect(reason).not_to_have_attribute("aria-invalid", "true")
    expect(page.locator("#problem-reason")).to_have_count(0)


def test_adding_a_member_who_does_not_exist(open_as: Open, picture: Picture) -> None:
    page = open_as("dave", "/t/vision-lab/members")
    page.get_by_label("Username").fill("no-such-user")
    page.get_by_role("button", name="Add member").click()
    expect(page.get_by_role("alert")).to_contain_text("no such user")
    expect(page.get_by_label("Username")).to_have_value("no-such-user")
    expect(page.get_by_label("Username")).to_be_focused()
    assert not faults(page, picture, "refused-member")


def test_a_token_without_a_name(open_as: Open, picture: Picture) -> None:
    page = open_as("dave", "/t/vision-lab/tokens")
    opened(page, "New token")
    page.locator("#new-name").evaluate("field => { field.required = false; field.value = ' ' }")
    page.locator("#new-password").fill("not checked before the name")
    page.get_by_role("button", name="Create token").first.click()
    expect(page.locator("[aria-invalid=true]").first).to_be_focused()
    assert not faults(page, picture, "refused-token")


def test_a_tenant_that_is_there_already(open_as: Open, picture: Picture) -> None:
    page = open_as("admin", "/admin-console/tenants/new")
    page.get_by_label("Name", exact=True).fill("Vision Lab")
    page.get_by_label("cpu", exact=True).fill("900000")
    page.get_by_label(re.compile("^Reason")).fill("once more")
    page.get_by_role("button", name="Create tenant").click()
    expect(page.get_by_role("alert")).to_be_visible()
    expect(page.locator("[aria-invalid=true]").first).to_be_focused()
    expect(page.get_by_label("Name", exact=True)).to_have_value("Vision Lab")
    width = "element => element.getBoundingClientRect().width"
    error, row = (page.locator(each).evaluate(width) for each in ("#problem-limit-cpu", ".initial-limits"))
    assert error > row / 2, "the error has the row, not a column of it"
    assert not faults(page, picture, "refused-tenant")


def test_a_password_that_is_too_common(open_as: Open, picture: Picture) -> None:
    page = open_as("carol", "/me")
    page.get_by_label("Current password").fill("not mine")
    page.get_by_label("New password", exact=True).fill("password1234")
    page.get_by_label("Confirm new password").fill("password1234")
    page.get_by_role("button", name="Change password").click()
    expect(page.get_by_role("alert")).to_be_visible(timeout=60_000)
    expect(page.locator("[aria-invalid=true]").first).to_be_focused()
    assert not faults(page, picture, "refused-password")


# --- nothing yet, and nothing at all


@pytest.mark.parametrize("tab", ["", "/logs", "/checkpoints"])
def test_a_job_that_has_nothing_to_show_yet(
    jobs: dict[str, str], open_as: Open, picture: Picture, tab: str
) -> None:
    page = open_as("alice", f"/t/vision-lab/jobs/{jobs['waiting']}{tab}")
    expect(page.locator("#job-badge")).to_have_text("Queued")
    assert not faults(page, picture, f"waiting-{tab.strip('/') or 'overview'}")


def test_a_fault_of_ours(platform: Platform, open_as: Open, picture: Picture) -> None:
    """It cannot be had by asking: as the view draws it, with the style sheet of the real server."""
    body = error_page(RequestFactory().get("/"), 500, number="4f1c2d").content
    page = open_as("alice", "/healthz")
    page.route("**/error", lambda route: route.fulfill(body=body, status=500, content_type="text/html"))
    page.goto(f"{platform.url}/error")
    expect(page.get_by_role("link").first).to_be_visible()
    assert not faults(page, picture, "error-500")


SEND = """([path, token]) => {
    const form = Object.assign(document.createElement('form'), {method: 'post', action: path});
    const fields = {csrfmiddlewaretoken: token, username: 'bob', role: 'viewer'};
    for (const [name, value] of Object.entries(fields))
        form.append(Object.assign(document.createElement('input'), {name, value}));
    document.body.append(form);
    form.submit();
}"""
ADD = "/t/vision-lab/members/add"


@pytest.mark.parametrize(
    ("title", "path", "token"),
    [
        (TEXTS[403][0], ADD, "own"),
        (OLD_FORM[0], ADD, "x" * 64),
        (TEXTS[404][0], "/t/vision-lab/jobs/000000000000", ""),
        (TEXTS[405][0], ADD, ""),
    ],
    ids=["forbidden", "old-form", "not-found", "wrong-method"],
)
def test_what_a_viewer_may_not_do_and_what_is_not_there(
    platform: Platform, open_as: Open, picture: Picture, title: str, path: str, token: str
) -> None:
    """A manager's form, a form of an earlier session, a job that does not exist, a form's address opened as a page."""
    page = open_as("carol", "/me")
    own = page.locator("[name=csrfmiddlewaretoken]").first.input_value()
    if token:
        page.evaluate(SEND, [path, own if token == "own" else token])
    else:
        page.goto(platform.url + path)
    expect(page.get_by_role("heading", level=1)).to_have_text(title)
    assert not faults(page, picture, f"error-{title.lower().replace(' ', '-')}")


@pytest.fixture
def forgiven(platform: Platform) -> Iterator[None]:
    """Failed logins are counted per address: those of other tests do not count here, nor these there."""
    platform.manage("axes_reset")
    yield
    platform.manage("axes_reset")


@pytest.mark.usefixtures("forgiven")
def test_twenty_wrong_passwords(platform: Platform, open_as: Open, picture: Picture) -> None:
    """Whichever names they are for: the address waits, also for a right password, and a typed name is kept."""
    page = open_as("carol", "/healthz")
    page.context.clear_cookies()
    page.goto(f"{platform.url}/login")
    heading, alert = page.get_by_role("heading", level=1), page.get_by_role("alert")
    for n in range(1, settings.AXES_FAILURE_LIMIT + 1):
        expect(heading).not_to_have_text(TEXTS[429][0])
        page.get_by_label("Username").fill(f"guess-{n}")
        page.locator("input[type=password]").fill("wrong")
        with page.expect_navigation():  # as without scripts
            page.locator("form:has(input[type=password])").evaluate("form => form.submit()")
        if (left := settings.AXES_FAILURE_LIMIT - n) == 1:
            expect(alert).to_contain_text("1 attempt left, then a wait of 5 min")
        elif left > WARNED:
            expect(alert).not_to_contain_text("left")
    expect(heading).to_have_text(TEXTS[429][0])
    expect(page.get_by_role("main")).to_contain_text("All sign-ins from your network address have to wait")
    assert not faults(page, picture, "error-429")
    page.goto(f"{platform.url}/login")
    page.get_by_label("Username").fill("carol")
    page.locator("input[type=password]").fill(platform.users["carol"]["password"])
    page.get_by_role("button", name="Sign in").click()
    expect(alert).to_contain_text(TEXTS[429][0])
    expect(page.get_by_label("Username")).to_have_value("carol")
