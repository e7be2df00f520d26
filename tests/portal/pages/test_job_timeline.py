"""The states and attempts of a job in the header of its page: what came after what, and for how long."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from django.utils import timezone

from jobs.models import Attempt, Job, JobEvent, PlatformStop
from jobs.selectors.platform_stops import stops_between
from jobs.states import EventCode, State
from portal.pages.job_timeline import timeline
from tenants.models import User
from tests import factories
from tests.portal.pages.conftest import OpenPage
from tests.portal.pages.job_page import moved

pytestmark = pytest.mark.django_db


def test_the_last_state_shows_when_it_was_reached_not_how_long(alice: User, open_page: OpenPage) -> None:
    job = factories.job(owner=alice, state=State.COMPLETED)
    moved(job, State.PROCESSING)
    moved(job, State.COMPLETED)
    at = JobEvent.objects.filter(job=job).latest("n").at
    last = open_page(alice, job).rpartition('<b>Completed</b><span class="num">')[2]
    assert f">{at:%H:%M}</time>" in last.partition("</li>")[0]


def test_an_attempt_after_a_halt_is_its_own_stretch_of_the_timeline(alice: User, open_page: OpenPage) -> None:
    job = factories.job(owner=alice, state=State.PROCESSING, attempt=2)
    for to, attempt in [("DEPLOYING", 1), ("PROCESSING", 1), ("STOPPING", 1), ("HALTED", 1), ("QUEUED", 1),
                        ("DEPLOYING", 2), ("PROCESSING", 2)]:  # fmt: skip
        job.attempt = attempt
        moved(job, State(to), reason="halt_requested" if to == "STOPPING" else "")
    page = open_page(alice, job)
    for words in ("Attempt 1", "Attempt 2", "Halting", "Halted"):
        assert words in page


def test_an_attempt_that_failed_says_its_exit_code_in_the_header_and_the_sentence_in_its_table(
    alice: User, open_page: OpenPage
) -> None:
    job = factories.job(owner=alice, state=State.PROCESSING, attempt=2)
    why = "Learner 0 on node-a exited with code 3. Its log says more."
    for to, attempt in [("PROCESSING", 1), ("STOPPING", 1), ("QUEUED", 1), ("PROCESSING", 2)]:
        job.attempt = attempt
        failed = {"reason": "learner_failed", "message": why, "numbers": {"exit_code": 3}}
        moved(job, State(to), **(failed if to == "STOPPING" else {}))
    Attempt.objects.filter(job=job, n=1).delete()
    Attempt.objects.create(
        job=job, tenant=job.tenant, n=1, cluster="local", slot_type="cpu", slots=1, learners=1, nodes=["node-a"],
        held=False, closed_at=timezone.now(), outcome="learner_failed", message=why,
    )  # fmt: skip
    page = open_page(alice, job)
    assert f'<b>Attempt 1</b><span title="{why}">exit 3</span>' in page
    assert f'A learner failed</span><br><span class="secondary fine-print">{why}</span>' in page


def test_the_attempts_say_where_they_began_and_why_they_failed(alice: User, open_page: OpenPage) -> None:
    job = factories.job(owner=alice, state=State.PROCESSING, attempt=3)
    kept = factories.checkpoint(job, step=1500, n=7)
    Attempt.objects.filter(job=job, n=3).update(resume_from=kept)
    Attempt.objects.filter(job=job, n__lt=3).delete()
    for n in (1, 2):
        Attempt.objects.create(
            job=job, tenant=job.tenant, n=n, cluster="local", slot_type="cpu", slots=1, learners=1, nodes=["node-a"],
            held=False, closed_at=timezone.now(), outcome="learner_failed", message=f"Learner 0, attempt {n}.",
        )  # fmt: skip
    page = open_page(alice, job)
    rows = page.split("Attempts table", 1)[1].split("</table>", 1)[0].split("<tr>")[2:]
    newest, second, first = (re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", row)) for row in rows)
    assert f'<a href="/t/vision-lab/jobs/{job.pk}/checkpoints?files=7#checkpoint-files"' in rows[0]
    assert "step 1,500 checkpoint 7" in newest
    assert "A learner failed Learner 0, attempt 2. from scratch" in second
    assert "A learner failed Learner 0, attempt 1. from scratch" in first


def test_the_page_says_which_image_the_attempts_ran_as_far_as_that_is_known(
    alice: User, open_page: OpenPage
) -> None:
    job = factories.job(owner=alice, state=State.PROCESSING, attempt=2)
    assert "<dt>Image</dt>" not in open_page(alice, job)
    Job.objects.filter(pk=job.pk).update(spec=job.spec | {"image": "team/<b>:1"})
    page = open_page(alice, job)
    assert ("team/&lt;b&gt;:1" in page, "digest unknown" in page) == (True, True)
    digest = f"sha256:{'a' * 64}"
    Attempt.objects.filter(job=job, n=2).update(image="docker.io/team/train:1", image_digests=[digest])
    page = open_page(alice, job)
    assert page.count(f'title="docker.io/team/train:1 {digest}"') == 1
    assert f'<span class="sub">{digest}</span>' in page
    assert "digest unknown" not in page
    Job.objects.filter(pk=job.pk).update(spec=job.spec)
    assert f'<span class="sub">{digest}</span>' in open_page(alice, job), "the image of a framework"


def test_the_header_has_room_for_three_attempts(alice: User, open_page: OpenPage) -> None:
    job = factories.job(owner=alice, state=State.PROCESSING, attempt=5)
    for n in range(1, 6):
        job.attempt = n
        moved(job, State.PROCESSING)
    page = open_page(alice, job)
    assert re.findall(r"<b>(Attempt \d)</b>", page) == ["Attempt 3", "Attempt 4", "Attempt 5"]
    assert f'<a href="/t/vision-lab/jobs/{job.pk}#job-attempts">2 earlier</a>' in page


def test_a_segment_is_a_stored_state_with_its_own_time(alice: User) -> None:
    """A later request does not rename the past: halted time is Halted, a second start is Deploying."""
    job, at = factories.job(owner=alice, state=State.PROCESSING, attempt=2), timezone.now()
    for to, attempt, seconds in [("QUEUED", 0, 5), ("DEPLOYING", 1, 3), ("DOWNLOADING", 1, 9), ("PROCESSING", 1, 255),
                                 ("STOPPING", 1, 4), ("HALTED", 1, 384), ("QUEUED", 1, 2), ("DEPLOYING", 2, 3),
                                 ("DOWNLOADING", 2, 8), ("PROCESSING", 2, 62)]:  # fmt: skip
        job.attempt = attempt
        moved(job, State(to), at=at, reason="halt_requested" if to == "STOPPING" else "")
        at += timedelta(seconds=seconds)
    moves = JobEvent.objects.filter(job=job, code=EventCode.MOVED).order_by("n")
    first, second = timeline(list(moves), at)
    assert [(one.phase, one.seconds) for one in first.segments] == [
        ("Queued", 5), ("Deploying", 3), ("Downloading", 9), ("Processing", 255), ("Halting", 4), ("Halted", 384),
    ]  # fmt: skip
    assert [(one.phase, one.seconds) for one in second.segments if not one.ahead] == [
        ("Queued", 2), ("Deploying", 3), ("Downloading", 8), ("Processing", 62),
    ]  # fmt: skip
    assert [one.phase for one in second.segments if one.ahead] == ["Storing", "Completed"]


def test_time_of_a_stopped_platform_is_not_queued(alice: User, open_page: OpenPage) -> None:
    """A job waited for 10 minutes in the whole, 6 of them with the platform stopped."""
    job, minute = factories.job(owner=alice, state=State.DEPLOYING, attempt=1), timedelta(minutes=1)
    at = timezone.now() - 20 * minute
    job.created_at = at
    for to, when in (("QUEUED", at), ("DEPLOYING", at + 10 * minute)):
        job.attempt = int(to != "QUEUED")
        moved(job, State(to), at=when)
    moves = list(JobEvent.objects.filter(job=job, code=EventCode.MOVED).order_by("n"))
    stop = PlatformStop.objects.create(began_at=at + 2 * minute, ended_at=at + 8 * minute)
    later = PlatformStop.objects.create(began_at=at + 12 * minute, ended_at=at + 13 * minute)
    found = stops_between(at, timezone.now())
    assert found == [(stop.began_at, stop.ended_at), (later.began_at, later.ended_at)]
    (stretch,) = timeline(moves, timezone.now(), stops=found)
    assert [(one.phase, one.seconds) for one in stretch.segments[:3]] == [
        ("Queued", 120),
        ("Platform stopped", 360),
        ("Queued", 120),
    ]
    page = open_page(alice, job)
    assert "Platform stopped 6 min" in page
    assert stretch.segments[1].icon == "power-off", "no mark of a state that is over"
    assert "#power-off" in page
    within = timeline(moves[:1], at + 5 * minute, stops=[(at - minute, at + 5 * minute)])[0].segments
    assert [(one.phase, one.seconds) for one in within if not one.ahead] == [
        ("Platform stopped", 300),
        ("Queued", 0),
    ]


def test_time_without_contact_is_no_time_of_a_state(alice: User) -> None:
    """The platform was stopped for an hour: the strip says what "Ran for" says, and why it is less than the clock's."""
    job, at = factories.job(owner=alice, state=State.QUEUED, attempt=0), timezone.now()
    began, back = at + timedelta(seconds=2), at + timedelta(hours=1)
    for to, when in (("DEPLOYING", at), ("PROCESSING", began), ("STOPPING", back), ("QUEUED", back)):
        job.attempt = 1
        moved(job, State(to), at=when)
    moves = list(JobEvent.objects.filter(job=job, code=EventCode.MOVED).order_by("n"))
    first, _ = timeline(moves, back, {1: began + timedelta(seconds=33)})
    assert [(one.phase, one.seconds) for one in first.segments] == [
        ("Deploying", 2),
        ("Processing", 33),
        ("Stopping", 0),
    ]
    assert first.segments[1].why.endswith("59 min without contact do not count.")
