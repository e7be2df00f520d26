"""What is seen first stays where it is; meters need neither color nor the page's own colors."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import yaml
from playwright.sync_api import Page, expect

from tests.browser import programs
from tests.browser.conftest import spec
from tests.browser.new_job import NEW
from tests.platform import Client

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]
Open = Callable[..., Page]
SHIFTS = """() => {
    window.shifts = [];
    new PerformanceObserver(list => window.shifts.push(...list.getEntries().filter(e => !e.hadRecentInput).map(e => ({
        value: e.value, by: e.sources.map(s => s.node?.outerHTML?.slice(0, 80)).join(' ')
    })))).observe({type: 'layout-shift', buffered: true});
}"""
COLORS = """() => Object.fromEntries(['others', 'mine', 'free', 'waiting-mark'].map(kind => {
    const holder = document.createElement('div');
    holder.className = 'cells';
    holder.innerHTML = `<i class="${kind === 'free' ? '' : kind}"></i>`;
    document.querySelector('main').append(holder);
    const style = getComputedStyle(holder.firstChild);
    return [kind, [style.backgroundColor, style.backgroundImage, style.boxShadow].join(' | ')];
}))"""


@pytest.mark.parametrize("width", [1440, 390])
def test_nothing_on_the_new_job_page_moves_while_it_loads(width: int, open_as: Open) -> None:
    page = open_as("alice", "/me", width=width)
    page.add_init_script(f"({SHIFTS})()")
    page.goto(page.url.replace("/me", NEW))
    expect(page.locator("[data-verdict]")).to_have_text(re.compile("Can start|Valid"))
    expect(page.locator(".cm-content")).to_be_visible()
    shifts = page.evaluate("window.shifts")
    assert sum(shift["value"] for shift in shifts) <= 0.05, shifts


def test_a_meter_is_read_in_forced_colors_and_in_gray(open_as: Open) -> None:
    page = open_as("alice", "/t/vision-lab/")
    kinds = page.evaluate(COLORS)
    assert "gradient" in kinds["mine"], "mine has a pattern, not a hue alone"
    assert "gradient" not in kinds["others"]
    page.emulate_media(forced_colors="active")
    forced = page.evaluate(COLORS)
    assert len(set(forced.values())) == 4, forced
    assert all("none | none" not in look or "rgba(0, 0, 0, 0)" not in look for look in forced.values()), (
        forced
    )


LOOKS = """() => {
    const look = (selector, ...names) => [...document.querySelectorAll(selector)].filter(e => e.checkVisibility())
        .map(e => names.map(name => getComputedStyle(e)[name]).join(' '));
    const canvas = getComputedStyle(document.body).backgroundColor;
    return {canvas,
        bars: look('.timeline .bar', 'backgroundColor'),
        badges: look('.badge', 'outlineStyle'),
        current: look('.tabs a[aria-current]', 'borderBottomColor'),
        others: look('.tabs a:not([aria-current])', 'borderBottomColor'),
        page: look('.side li a[aria-current]', 'outlineStyle'),
        live: look('x-connection i', 'backgroundColor'),
        keys: look('.legend-row i', 'backgroundColor'),
    };
}"""


def test_states_tabs_and_legends_differ_in_forced_colors(
    alice: Client, open_as: Open, picture: Callable[..., None]
) -> None:
    job = alice.submit(spec("forced-colors", programs.COUNTER, command="python -u main.py 5 5 0"))["id"]
    alice.wait_state(str(job), "COMPLETED")
    page = open_as("alice", f"/t/vision-lab/jobs/{job}/learners")
    page.emulate_media(forced_colors="active")
    for path in ("/learners", ""):
        page.goto(page.url.split("/learners")[0] + path)
        seen = page.evaluate(LOOKS)
        assert set(seen["badges"]) == {"solid"}
        assert set(seen["page"]) == {"solid"}
        assert set(seen["others"]) == {seen["canvas"]}
        assert seen["canvas"] not in [*seen["current"], *seen["live"], *seen["bars"], *seen["keys"]]
        picture(page, f"forced-colors{path.replace('/', '-')}")
        if path:
            assert len(set(seen["keys"])) == len(seen["keys"]) > 1
        else:
            assert len(set(seen["bars"])) > 3


def test_the_form_has_packages_results_and_the_step_of_checkpoints(open_as: Open) -> None:
    page = open_as("alice", f"{NEW}?template=plain")
    field = page.locator("textarea[name=spec]")
    expect(page.locator(".cm-content")).to_be_visible()
    page.get_by_label("Requirements (one per line)").fill("einops==0.8.0\nrich")
    page.get_by_label("Setup commands").fill("echo one\necho two")
    page.get_by_label("Keep files of the code folder").fill("out/**/*.png")
    page.get_by_label("Step in the names").fill(r"ckpt-(?P<step>\d+)")
    page.get_by_label("Distributed variables").select_option("true")
    page.get_by_label("Plain Python instead").select_option("3.10")
    typed = yaml.safe_load(field.input_value())
    assert typed["requirements"] == ["einops==0.8.0", "rich"]
    assert typed["setup"] == ["echo one", "echo two"]
    assert (typed["keep"], typed["distributed"], typed["python"]) == (["out/**/*.png"], True, "3.10")
    assert typed["checkpoint"]["step"] == r"ckpt-(?P<step>\d+)"
    assert "framework" not in typed, "a plain Python takes its place"

    page.get_by_role("radio", name="plain").check()
    assert "python" not in yaml.safe_load(field.input_value())
    expect(page.get_by_label("Plain Python instead")).to_have_value("")
    page.locator(".cm-content").click()
    page.keyboard.press("ControlOrMeta+A")
    page.keyboard.insert_text(
        yaml.safe_dump(typed | {"requirements": ["from-yaml", "rich"], "keep": ["a", "b"]})
    )
    expect(page.get_by_label("Requirements (one per line)")).to_have_value("from-yaml\nrich")
    expect(page.get_by_label("Keep files of the code folder")).to_have_value("a\nb")


def test_a_quota_from_before_an_error_says_so(open_as: Open) -> None:
    page = open_as("alice", f"{NEW}?template=plain")
    quota = page.locator("[data-quota] small")
    expect(quota).to_have_text(re.compile(r"^\d+ in use"))
    page.get_by_label("Memory each").fill("lots")
    expect(quota).to_have_text("From before the errors")
    page.get_by_label("Memory each").fill("1Gi")
    expect(quota).to_have_text(re.compile(r"^\d+ in use"))


def test_the_new_job_page_transfers_compressed_files_within_its_budget_but_for_the_editor(
    open_as: Open,
) -> None:
    page = open_as("alice", NEW)
    sizes = page.evaluate(
        "performance.getEntriesByType('resource').filter(e => /\\.(js|css)$/.test(e.name))"
        ".map(e => [e.name.split('/').pop(), e.encodedBodySize, e.decodedBodySize])"
    )
    assert sizes
    assert all(sent < whole for _, sent, whole in sizes if whole > 1000), sizes
    first = [sent for name, sent, _ in sizes if not name.startswith(("editor", "chunk-ed"))]
    assert sum(first) <= 77_000, sizes
