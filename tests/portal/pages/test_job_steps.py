"""The job page on steps: receipts of halts, checkpoints, repeated steps; it claims no more than is known."""

from __future__ import annotations

import json
import re
from html import unescape

import pytest
from django.utils import timezone

from jobs.models import Learner, Progress
from jobs.states import Intent, State
from tenants.models import User
from tests import factories
from tests.jobs.selectors.test_metric_series import add
from tests.portal.pages.conftest import OpenPage
from tests.portal.pages.job_page import moved

pytestmark = pytest.mark.django_db


def test_a_halted_job_shows_its_receipt(alice: User, open_page: OpenPage) -> None:
    job = factories.job(
        owner=alice,
        state=State.HALTED,
        intent=Intent.HALT,
        last_halt={
            "step": 41_250,
            "steps_lost": 0,
            "seconds": 3.4,
            "checkpoint": 9,
            "parts": {"seen": 0.2, "saved": 1.7, "verified": 1.2, "released": 0.3},
            "learners": 4,
            "batch": 1024,
        },
    )
    page = open_page(alice, job)
    for words in ("Halted, no steps lost", "step 41,250", "3.4 s", "saved 1.7", "verified"):
        assert words in page
    assert "ran with 4 learners, batch 1,024" in page
    assert f"/jobs/{job.pk}/resume" in page


def test_a_receipt_of_a_checkpoint_without_a_step_says_that_it_is_unknown(
    alice: User, open_page: OpenPage
) -> None:
    """A program that does not use the platform's API left files; their step is unknown."""
    left = {"step": None, "steps_lost": None, "seconds": 3.4, "checkpoint": 1, "parts": {"released": 0.3}}
    job = factories.job(owner=alice, state=State.HALTED, intent=Intent.HALT, attempt=1, last_halt=left)
    page = open_page(alice, job)
    assert "<dd>step unknown<span" in page
    assert '<dd id="steps-lost">unknown' in page


def test_a_halted_job_says_of_a_checkpoint_without_a_step_what_is_known(
    alice: User, open_page: OpenPage
) -> None:
    left = {"step": None, "steps_lost": None, "seconds": 3.4, "checkpoint": 1, "parts": {}}
    job = factories.job(owner=alice, state=State.HALTED, intent=Intent.HALT, attempt=1, last_halt=left)
    Progress.objects.filter(job=job).update(step=344, total=1_000)
    factories.checkpoint(job, step=None, implicit=True)
    page = open_page(alice, job)
    assert "checkpoint 1: saved by the program, step unknown, last reported 344" in page
    assert "last reported 344" in page.split('id="steps-lost"')[1].split("</dd>")[0]
    assert "Would run for" not in page, "how many steps are left is unknown"


def test_no_steps_are_counted_from_a_checkpoint_of_unknown_step(alice: User, open_page: OpenPage) -> None:
    job = factories.job(owner=alice, state=State.PROCESSING)
    Progress.objects.filter(job=job).update(step=344)
    factories.checkpoint(job, step=None, implicit=True)
    page = " ".join(open_page(alice, job, "/cancel").split())
    assert "Its checkpoints stay" in page
    assert "since the newest one" not in page


def _started_from(page: str) -> list[str]:
    """What the attempts table says of where each attempt began, on a wide screen."""
    cells = re.findall(r'<td class="phone-start whole-text">(.*?)</td>', page, flags=re.S)
    plain = [re.sub(r'<span class="phone-only">.*?</span>', "", cell) for cell in cells]
    return [" ".join(re.sub(r"<[^>]*>", "", cell).split()) for cell in plain]


def test_the_attempts_say_how_many_steps_they_repeated(alice: User, open_page: OpenPage) -> None:
    job = factories.job(owner=alice, state=State.PROCESSING, attempt=2)
    saved = factories.checkpoint(job, step=None, implicit=True, attempt=1)
    job.attempts.filter(n=2).update(resume_from=saved)
    runs = Learner.objects.filter(job=job)
    runs.filter(attempt=1).update(first_step=1, last_step=344, processing_at=timezone.now())
    runs.filter(attempt=2).update(first_step=301, last_step=310, processing_at=timezone.now())
    page = open_page(alice, job)
    assert _started_from(page) == [f"step unknown checkpoint {saved.n}, repeated 44 steps", "scratch"]
    assert "step numbers begin again" not in page
    assert "step numbers continue" in page


def test_an_attempt_that_counts_again_after_a_checkpoint_of_unknown_step_is_not_said_to_have_repeated_steps(
    alice: User, open_page: OpenPage
) -> None:
    """makemore loads its weights and counts from 0."""
    job = factories.job(owner=alice, state=State.PROCESSING, attempt=2)
    saved = factories.checkpoint(job, step=None, implicit=True, attempt=1)
    runs, resumed = Learner.objects.filter(job=job), job.attempts.filter(n=2)
    runs.filter(attempt=1).update(first_step=0, last_step=1460, processing_at=timezone.now())
    runs.filter(attempt=2).update(first_step=0, last_step=200, processing_at=timezone.now())
    Progress.objects.filter(job=job).update(step=200)
    resumed.update(resume_from=saved)
    page = open_page(alice, job)
    assert _started_from(page)[0] == f"step unknown checkpoint {saved.n}, step numbers begin again"
    assert "step numbers continue" not in page
    assert not re.search(r"repeated [\d,]+ step", page)
    resumed.update(resume_from=None)
    page = open_page(alice, job)
    assert _started_from(page)[0] == "scratch, repeated 1,461 steps"
    assert "step numbers begin again" not in page
    assert "step numbers continue" not in page


def test_a_metric_that_only_has_an_order_is_at_no_step(alice: User, open_page: OpenPage) -> None:
    job = factories.job(owner=alice, state=State.PROCESSING)
    newest = {"last": 0.25, "step": 60, "rank": 0, "axis": "order"}
    Progress.objects.filter(job=job).update(metrics={"loss": newest})
    strip = open_page(alice, job).split('<dl class="kpis"')[1].split("</dl>")[0]
    assert "position 60" in strip
    assert "step 60" not in strip


def test_a_job_halted_in_the_queue_held_nothing(alice: User, open_page: OpenPage) -> None:
    none = {"step": None, "steps_lost": 0, "seconds": 0.2, "checkpoint": None, "parts": {"released": 0.2}}
    job = factories.job(owner=alice, state=State.HALTED, intent=Intent.HALT, attempt=0, last_halt=none)
    moved(job, State.QUEUED)
    moved(job, State.HALTED)
    page = open_page(alice, job)
    for words in ("Removed from the queue", "it never ran", "none<small>it held no devices"):
        assert words in page
    assert "released 0.2" not in page


def test_step_numbers_are_said_to_continue_only_where_there_are_steps(
    alice: User, open_page: OpenPage
) -> None:
    job = factories.job(owner=alice, state=State.PROCESSING, attempt=2)
    said = "step numbers continue across attempts"
    page = open_page(alice, job)
    assert "Attempts table" in page
    assert said not in page
    runs = Learner.objects.filter(job=job)
    runs.filter(attempt=1).update(first_step=1, last_step=40, processing_at=timezone.now())
    runs.filter(attempt=2).update(first_step=41, last_step=41, processing_at=timezone.now())
    Progress.objects.filter(job=job).update(step=41)
    assert said in open_page(alice, job)


def test_step_numbers_are_not_said_to_continue_before_a_start_from_scratch_has_reported(
    alice: User, open_page: OpenPage
) -> None:
    """The newest step is the halted attempt's."""
    job = factories.job(owner=alice, state=State.PROCESSING, attempt=2)
    runs = Learner.objects.filter(job=job)
    runs.filter(attempt=1).update(first_step=10, last_step=40, processing_at=timezone.now())
    runs.filter(attempt=2).update(processing_at=timezone.now())
    Progress.objects.filter(job=job).update(step=40)
    page = open_page(alice, job)
    assert "Attempts table" in page
    assert "step numbers continue" not in page


def _marks(page: str) -> list[list[object]]:
    return list(json.loads(unescape(page.split('data-marks="', 1)[1].split('"', 1)[0])))


def test_charts_of_points_that_only_have_an_order_mark_where_attempts_began(
    alice: User, open_page: OpenPage
) -> None:
    job = factories.job(owner=alice, state=State.PROCESSING, attempt=2)
    newest = {"last": 0.2, "step": 6, "rank": 0, "axis": "order"}
    Progress.objects.filter(job=job).update(metrics={"loss": newest})
    add(job, {step: 1 / step for step in range(1, 7)})
    assert [7, "attempt 2", "loss"] in _marks(open_page(alice, job)), "where its first point will be"
    add(job, {9: 0.5, 10: 0.4}, attempt=2)
    add(job, {11: 0.5}, attempt=2, rank=1)
    assert [one for one in _marks(open_page(alice, job)) if one[2:]] == [[9, "attempt 2", "loss"]]


def test_of_attempts_that_began_at_one_step_the_newest_is_marked_first(
    alice: User, open_page: OpenPage
) -> None:
    """A chart has room for one label there, and gives it to the first."""
    job = factories.job(owner=alice, state=State.PROCESSING, attempt=3)
    saved = factories.checkpoint(job, step=40, attempt=1)
    assert _marks(open_page(alice, job)) == [[saved.step, ""], [0, "attempt 3"], [0, "attempt 2"]]


@pytest.mark.parametrize(
    ("fell_ms", "saved", "said"),
    [
        (None, 500, "Its checkpoints stay; 100 steps since the newest one are lost."),
        (2_000_000, 500, "Its checkpoints stay."),
        (None, None, "It has no checkpoint: all 600 steps are lost."),
        (2_000_000, None, "It has no checkpoint: all that it did is lost."),
    ],
)
def test_a_cancel_counts_the_steps_that_it_loses_only_where_they_never_fell_back(
    alice: User, open_page: OpenPage, fell_ms: int | None, saved: int | None, said: str
) -> None:
    job = factories.job(owner=alice, state=State.PROCESSING)
    learner = {"first_step": 1, "last_step": 600, "fell_ms": fell_ms, "processing_at": timezone.now()}
    Learner.objects.filter(job=job).update(**learner)
    Progress.objects.filter(job=job).update(step=600)
    if saved:
        factories.checkpoint(job, step=saved, saved_ns=2_000_000 * 10**6 - 1)
    page = unescape(re.sub(r"<[^>]*>", "", open_page(alice, job, "/cancel").split("data-stakes")[1]))
    assert said in " ".join(page.split())
