"""Nothing typed is lost: forms stay while the server is away, the session is over or another user has signed in."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from tests.browser import programs
from tests.browser.axe import violations
from tests.browser.conftest import sign_in, spec
from tests.browser.new_job import JOB_PAGE, NEW
from tests.platform import Client, Platform

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]
Open = Callable[..., Page]


@pytest.fixture
def ended(alice: Client) -> str:
    """A job that has ended, whose name and tags can still be edited."""
    job = str(alice.submit(spec("kept-form", programs.COUNTER, command="python -u main.py 5 5 0"))["id"])
    alice.wait_state(job, "COMPLETED")
    return job


def test_a_form_waits_for_the_server_and_then_goes_through(
    ended: str, alice: Client, open_as: Open, picture: Callable[..., None]
) -> None:
    page = open_as("alice", f"/t/vision-lab/jobs/{ended}/edit")
    page.route("**/edit", lambda route: route.abort() if route.request.method == "POST" else route.fallback())
    page.get_by_label("Name", exact=True).fill("typed-while-away")
    page.get_by_label("Tags (comma-separated)").fill("one, two")
    page.get_by_role("button", name="Save").click()

    alert = page.get_by_role("alert")
    expect(alert).to_contain_text("No response from the server")
    expect(page.get_by_role("button", name="Save")).to_be_focused()
    expect(page.get_by_label("Name", exact=True)).to_have_value("typed-while-away")
    picture(page, "form-unreachable")
    assert not violations(page)

    page.unroute("**/edit")
    alert.get_by_role("button", name="Try again").click()
    page.wait_for_url(JOB_PAGE)
    expect(page.get_by_text("Saved.")).to_be_visible()
    assert (alice.job(ended)["name"], alice.job(ended)["tags"]) == ("typed-while-away", ["one", "two"])


def test_what_was_wrong_is_shown_in_the_form_and_the_rest_of_the_page_stays(
    ended: str, open_as: Open
) -> None:
    page = open_as("alice", f"/t/vision-lab/jobs/{ended}/edit")
    page.get_by_label("Tags (comma-separated)").fill("not-saved-yet")
    page.get_by_label("Username").fill("alice")
    page.get_by_role("button", name="Share", exact=True).click()

    expect(page.get_by_role("alert")).to_be_visible()
    expect(page.get_by_label("Username")).to_have_value("alice")
    expect(page.get_by_label("Tags (comma-separated)")).to_have_value("not-saved-yet")


def test_a_session_that_ended_is_renewed_in_another_tab_and_the_form_is_sent(
    ended: str, alice: Client, platform: Platform, open_as: Open, picture: Callable[..., None]
) -> None:
    page = open_as("alice", f"/t/vision-lab/jobs/{ended}/edit")
    page.get_by_label("Name", exact=True).fill("typed-before-the-end")
    page.context.clear_cookies(name="luthier")
    page.get_by_role("button", name="Save").click()
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text("Your session has ended")
    picture(page, "form-session-ended")

    with page.context.expect_page() as opened:
        alert.get_by_role("link", name="Sign in in another tab").click()
    other = opened.value
    sign_in(other, platform, "carol")
    alert.get_by_role("button", name="Try again").click()
    expect(alert).to_contain_text("You are now signed in as carol. Sign in as alice")
    other.context.clear_cookies(name="luthier")
    sign_in(other, platform, "alice")
    alert.get_by_role("button", name="Try again").click()
    page.wait_for_url(JOB_PAGE)
    assert alice.job(ended)["name"] == "typed-before-the-end"


def test_a_clone_of_a_job_that_was_deleted_meanwhile_keeps_its_text(
    ended: str, alice: Client, open_as: Open, picture: Callable[..., None]
) -> None:
    page = open_as("alice", f"{NEW}?from={ended}")
    expect(page.locator(".cm-content")).to_be_visible()
    page.get_by_label("Command", exact=True).fill("python -u main.py 7 7 0")
    expect(page.locator("[data-verdict]")).to_have_text(re.compile("Can start|Valid"))
    assert alice.call("DELETE", f"/jobs/{ended}").status in (200, 204)
    page.get_by_role("button", name="Submit job").click()

    alert = page.locator(".submit-bar").get_by_role("alert")
    expect(alert).to_contain_text("Page not found")
    expect(page.locator("textarea[name=spec]")).to_have_value(re.compile("python -u main.py 7 7 0"))
    picture(page, "new-job-refused")
    page.reload()
    assert page.evaluate("localStorage.getItem('luthier.draft.vision-lab')"), "the draft is still there"


def test_a_new_job_is_kept_while_the_server_is_away(open_as: Open) -> None:
    page = open_as("alice", f"{NEW}?template=plain")
    expect(page.locator(".cm-content")).to_be_visible()
    page.get_by_label("Name", exact=True).fill("sent-twice")
    expect(page.locator("[data-verdict]")).to_have_text(re.compile("Can start|Valid"))
    page.route(re.compile("/jobs/new"), lambda route: route.abort())
    page.get_by_role("button", name="Submit job").click()

    alert = page.locator(".submit-bar").get_by_role("alert")
    expect(alert).to_contain_text("No response from the server")
    expect(page.get_by_label("Name", exact=True)).to_have_value("sent-twice")
    page.unroute(re.compile("/jobs/new"))
    alert.get_by_role("button", name="Try again").click()
    page.wait_for_url(JOB_PAGE)
    expect(page.get_by_role("heading", level=1)).to_have_text("sent-twice")


def test_a_reload_after_a_token_was_made_makes_none_and_shows_no_secret(
    open_as: Open, platform: Platform
) -> None:
    page = open_as("dave", "/t/vision-lab/tokens")
    page.get_by_role("button", name="New token").click()
    page.locator("#new-name").fill("made-once")
    page.locator("#new-password").fill(platform.users["dave"]["password"])
    page.get_by_role("button", name="Create token").click()
    expect(page.locator("#secret-text")).to_contain_text("lut_")
    page.reload()

    expect(page.locator(".token-table tbody tr", has_text="made-once")).to_have_count(1)
    expect(page.locator("#secret-text")).to_have_count(0)
    page.get_by_role("button", name="Revoke made-once").click()
    page.get_by_role("dialog").get_by_role("button", name="Revoke").click()
    expect(page.get_by_text("Token revoked.")).to_be_visible()


def test_a_form_with_errors_is_rendered_in_place_with_the_focus_on_the_first(open_as: Open) -> None:
    page = open_as("admin", "/admin-console/tenants/new")
    page.get_by_label("Name", exact=True).fill("Kept Lab")
    page.locator("[data-slug-of]").fill("")
    page.evaluate("window.stays = true")
    page.locator("main form button.primary").click()

    expect(page.locator("[aria-invalid=true]").first).to_be_focused()
    expect(page.get_by_label("Name", exact=True)).to_have_value("Kept Lab")
    assert page.evaluate("window.stays"), "the page was not left"


def count(alice: Client, name: str) -> int:
    """Jobs of this name."""
    return sum(job["name"] == name for job in alice.call("GET", "/jobs?tenant=vision-lab").body["items"])


def name_it(page: Page, name: str) -> None:
    expect(page.locator(".cm-content")).to_be_visible()
    page.get_by_label("Name", exact=True).fill(name)
    expect(page.locator("[data-verdict]")).to_have_text(re.compile("Can start|Valid"))


def test_a_form_whose_response_was_lost_is_sent_again_and_acts_once(alice: Client, open_as: Open) -> None:
    page = open_as("alice", f"{NEW}?template=plain")
    name_it(page, "response-lost")

    def lose(route: Route) -> None:
        route.fetch(max_redirects=0)
        route.abort()

    page.route(re.compile("/jobs/new"), lose)
    page.get_by_role("button", name="Submit job").click()
    alert = page.locator(".submit-bar").get_by_role("alert")
    expect(alert).to_contain_text("You can safely try again")
    assert count(alice, "response-lost") == 1, "the server has acted"
    page.unroute(re.compile("/jobs/new"))
    alert.get_by_role("button", name="Try again").click()
    page.wait_for_url(JOB_PAGE)
    expect(page.get_by_text("This form was already submitted")).to_be_visible()
    assert count(alice, "response-lost") == 1


def test_back_and_another_press_of_the_button_lead_to_the_same_job(
    ended: str, alice: Client, open_as: Open, picture: Callable[..., None]
) -> None:
    page = open_as("alice", f"{NEW}?from={ended}")
    expect(page.locator("[data-verdict]")).to_have_text(re.compile("Can start|Valid"))
    page.get_by_role("button", name="Submit job").click()
    page.wait_for_url(JOB_PAGE)
    made, before = page.url, count(alice, "kept-form")
    page.go_back()
    expect(page.locator("[data-verdict]")).to_have_text(re.compile("Can start|Valid"))
    page.get_by_role("button", name="Submit job").click()
    page.wait_for_url(JOB_PAGE)
    assert page.url == made
    assert count(alice, "kept-form") == before
    expect(page.get_by_text("This form was already submitted")).to_be_visible()
    picture(page, "form-repeated")


def test_two_clicks_without_scripts_submit_one_job(
    alice: Client, browser: Browser, platform: Platform, open_as: Open
) -> None:
    cookies = open_as("alice", "/").context.cookies()
    context = browser.new_context(java_script_enabled=False)
    context.add_cookies(cookies)
    page = context.new_page()
    page.goto(f"{platform.url}{NEW}?template=plain")
    field = page.locator("textarea[name=spec]")
    field.fill(re.sub(r"(?m)^name: .*$", "name: two-clicks", field.input_value()))
    page.get_by_role("button", name="Submit job").dblclick()
    page.wait_for_url(JOB_PAGE)
    assert count(alice, "two-clicks") == 1
    context.close()
