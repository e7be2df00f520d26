"""The guides as pages: every one opens, every link leads somewhere, and nothing of a file is taken for markup."""

from __future__ import annotations

import re
from itertools import combinations
from pathlib import Path

import pytest
from django.conf import settings
from django.test import Client

from gpu_scheduler.clusters.environment import Rendezvous, of_program
from gpu_scheduler.clusters.local.environment import Folders
from jobs.spec.rules import RESERVED_ENV
from jobs.states import TRANSITIONS
from learner_agent import training
from portal.pages import help as guides
from portal.pages import state_diagram
from tenants.models import User
from tests.gpu_scheduler.clusters.harness import launch
from tests.markup import markup
from tests.portal.pages.conftest import SignIn


@pytest.mark.django_db
@pytest.mark.parametrize("name", guides.GUIDES)
def test_every_guide_is_a_page(alice: User, signed_in: SignIn, name: str) -> None:
    page = markup(signed_in(alice).get(f"/help/{name}"))
    assert page.count("<h1") == 1
    assert "style=" not in page
    assert "<!--" not in page, "a comment of the file is shown"


@pytest.mark.django_db
def test_help_begins_with_writing_a_program_and_leads_to_it_from_every_page(
    alice: User, signed_in: SignIn, client: Client
) -> None:
    browser = signed_in(alice)
    assert "A program is a folder." in markup(browser.get("/help"))
    assert browser.get("/help/architecture").status_code == 404
    overview = markup(browser.get("/t/vision-lab/"))
    assert overview.count('href="/help"') == 2, "once in the sidebar, once in the phone's menu"
    assert 'href="/help/job-spec"' in markup(browser.get("/t/vision-lab/jobs/new"))
    assert client.get("/help")["Location"].startswith("/login")


@pytest.mark.parametrize("name", guides.GUIDES)
def test_every_link_of_a_guide_leads_to_a_page_and_its_section(name: str) -> None:
    for address in re.findall(r'href="([^"]+)"', guides.guide(name).body):
        path, _, anchor = address.partition("#")
        target = path.removeprefix("/help/") or name
        assert target in guides.GUIDES, address
        if anchor:
            assert f'id="{anchor}"' in guides.guide(target).body, address


def test_a_file_cannot_bring_markup_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "docs").mkdir()
    text = "# A `<b>` title\n\n## Part\n\n<script>alert(1)</script>\n\n"
    text += "a <i onclick=x>b</i> `<u>` [c](javascript:x) [d](adr/1.md) [e](api.md#x)\n"
    (tmp_path / "docs" / "evil.md").write_text(text)
    monkeypatch.setattr(settings, "BASE_DIR", tmp_path)
    guide = guides.guide.__wrapped__("evil")
    assert guide.title == "A <b> title", "plain text, which the template escapes"
    assert guide.sections == (("part", "Part"),)
    assert guide.body == (
        '<h2 id="part">Part</h2>\n<p>a b <code>&lt;u&gt;</code> [c](javascript:x) d <a href="/help/api#x">e</a></p>\n'
    )


def test_the_guide_to_programs_names_every_variable_and_every_call() -> None:
    guide = (settings.BASE_DIR / "docs" / "programs.md").read_text()
    set_by_the_platform = {
        *of_program(
            launch("job-x-1", "runs", "runs"),
            0,
            rendezvous=Rendezvous(["a:1", "b:1"], "a:2", "/h"),
            folders=Folders(Path("/")).named(),
        ),
        *(name for name in RESERVED_ENV if "*" not in name),
        "LUTHIER_CHECKPOINT_EVERY_S",
        "LUTHIER_GRACE_S",
        "LUTHIER_ATTEMPT",
        "LUTHIER_RANK",
    }
    reserved_only = {"PATH", "NVIDIA_VISIBLE_DEVICES"}
    set_by_the_platform.discard("BEHAVIOR")  # of the test's own launch
    assert {name for name in set_by_the_platform if f"`{name}`" not in guide} == reserved_only
    calls = {
        name for name in vars(training) if not name.startswith("_") and callable(getattr(training, name))
    }
    ours = {name for name in calls if getattr(training, name).__module__ == training.__name__}
    assert {name for name in ours if f"training.{name}" not in guide} == set()


def test_the_job_states_are_drawn_with_every_move_that_there_is() -> None:
    body = guides.guide("job_states").body
    assert "stateDiagram" not in body, "a drawing, not its source"
    moves = [(start.value, end.value) for start, ends in TRANSITIONS.items() for end in ends]
    assert set(state_diagram.ROUTES) == set(moves)
    assert body.count('class="change"') == len(moves) + 1, "one line each, and the one into QUEUED"
    shown = re.findall(r"<li>([A-Z]+) → ([A-Z]+)", body)
    assert sorted(shown) == sorted(moves)
    assert set(state_diagram.BOXES) == {state.value for state in TRANSITIONS}


def test_no_two_boxes_overlap_and_every_move_begins_and_ends_at_its_own() -> None:
    boxes = state_diagram.BOXES
    for one, other in combinations(boxes.values(), 2):
        assert (
            one.right < other.left
            or other.right < one.left
            or one.bottom < other.top
            or other.bottom < one.top
        )
    for (start, end), route in state_diagram.ROUTES.items():
        for name, (x, y) in ((start, route.points[0]), (end, route.points[-1])):
            box = boxes[name]
            on_side = x in (box.left, box.right) and box.top <= y <= box.bottom
            on_edge = y in (box.top, box.bottom) and box.left <= x <= box.right
            assert on_side or on_edge, (start, end)


def test_a_diagram_with_a_move_that_has_no_route_is_shown_as_it_is_written() -> None:
    source = (
        (settings.BASE_DIR / "docs" / "job_states.md").read_text().split("```mermaid\n")[1].split("```")[0]
    )
    assert state_diagram.drawing(source)
    assert state_diagram.drawing(source + "    FAILED --> QUEUED: again\n") is None
    assert state_diagram.drawing("flowchart TD") is None
