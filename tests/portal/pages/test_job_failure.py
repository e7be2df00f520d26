"""The page of a job that failed: the cause in words, the line of the log, what is linked."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from jobs.diagnosis import FailureCause
from jobs.models import Learner
from jobs.states import State
from portal.pages.job_failure import CAUSES
from tenants.models import User
from tests import factories
from tests.jobs.test_log_lines import store
from tests.portal.pages.conftest import OpenPage
from tests.portal.pages.job_page import TABS, moved

pytestmark = pytest.mark.django_db


def test_a_failed_job_shows_who_failed_first_and_the_end_of_its_log(alice: User, open_page: OpenPage) -> None:
    job = factories.job(
        owner=alice, state=State.FAILED, learners=2, reason_message="Learner 1 exited with 3."
    )
    store(job, [b"fine\nTraceback (most recent call last):\nValueError: <b>no</b>\n"], rank=1, sealed=True)
    Learner.objects.filter(job=job, rank=1).update(exit_code=3, exited_at=timezone.now())
    page = open_page(alice, job)
    for words in ("Learner 1 exited with 3.", "learner 1", "ValueError: &lt;b&gt;no&lt;/b&gt;"):
        assert words in page


def test_a_failure_is_headed_by_its_diagnosis_and_shows_the_log_around_the_line_that_says_so(
    alice: User, open_page: OpenPage
) -> None:
    why = "Learner 1 ran out of memory: MemoryError (log line 42). Request more memory."
    numbers = {"learner": 1, "attempt": 1, "line": 42, "cause": "out_of_memory", "exit_code": 1}
    job = factories.job(
        owner=alice, state=State.FAILED, learners=2, reason_message=why, reason_numbers=numbers,
        reason_code="out_of_memory",
    )  # fmt: skip
    body = b"".join(b'  File "x.py", line %d\n' % n for n in range(40))
    said = b"Traceback (most recent call last):\n" + body + b"MemoryError\n" + b"a warning at exit\n" * 30
    store(job, [said], rank=1, sealed=True)
    ended = timezone.now()
    Learner.objects.filter(job=job, rank=1).update(exit_code=1, exited_at=ended)
    Learner.objects.filter(job=job, rank=0).update(exit_code=143, exited_at=ended - timedelta(seconds=1))
    page = open_page(alice, job)
    assert f'<h2 id="failure-title" title="out_of_memory">{why}</h2>' in page
    assert page.count('class="log-line error-line"') == 11  # its traceback began above what is shown
    assert page.count("a warning at exit") == 2
    assert "learner 1, attempt 1, line 42" in page
    assert (
        page.count(f'href="/t/vision-lab/jobs/{job.pk}/logs?learner=1&amp;attempt=1#L42"') == 2
    )  # header and card
    assert "<x-log" not in page  # the same lines once


@pytest.mark.parametrize("cause", FailureCause)
def test_every_cause_of_a_failure_has_words(alice: User, open_page: OpenPage, cause: FailureCause) -> None:
    numbers = {"learner": 0, "attempt": 1, "line": 1, "cause": cause.value, "exit_code": 1}
    job = factories.job(owner=alice, state=State.FAILED, reason_code=cause.value, reason_numbers=numbers)
    assert CAUSES[cause] in open_page(alice, job)


def test_a_failure_without_a_diagnosis_does_not_invent_one(alice: User, open_page: OpenPage) -> None:
    job = factories.job(owner=alice, state=State.FAILED)
    page = open_page(alice, job)
    assert "The job failed, and its cause was not recorded." in page


def test_the_error_of_a_failed_package_build_is_the_builders_own_words(
    alice: User, open_page: OpenPage
) -> None:
    said = "The job's packages cannot be installed. Because nosuch was not found, the requirements cannot be met."
    why = {"reason_code": "deploy_failed", "reason_message": said, "reason_numbers": {"learner": 0}}
    job = factories.job(owner=alice, state=State.FAILED, attempt=1, **why)
    job.learner_rows.update(cluster_phase="FAILED", failure_details={"reason": "deploy_failed"})
    for state in (State.STOPPING, State.FAILED):
        moved(job, state, reason="deploy_failed", message=said)
    page = open_page(alice, job)
    assert f'href="/t/vision-lab/jobs/{job.pk}#failure-title" data-first-error' in page
    assert said.replace("'", "&#x27;") in page
    learners = open_page(alice, job, "/learners")
    assert "Not started" in learners
    assert ">Lost" not in learners
    assert "Failed: The job&#x27;s packages cannot be installed." in open_page(alice, job, "/events")


def test_a_job_that_failed_while_it_waited_says_why_and_links_nothing_that_is_not_there(
    alice: User, open_page: OpenPage
) -> None:
    said = "The job's packages cannot be installed. Because nosuch was not found, the requirements cannot be met."
    why = {"reason_code": "deploy_failed", "reason_message": said}
    job = factories.job(
        owner=alice, state=State.FAILED, attempt=0, packages={"requirements": ["nosuch"]}, **why
    )
    job.attempts.all().delete()
    job.learner_rows.all().delete()
    moved(job, State.FAILED, from_state=State.QUEUED, reason="deploy_failed", message=said)
    page = open_page(alice, job)
    assert f'href="/t/vision-lab/jobs/{job.pk}#failure-title" data-first-error' in page
    assert said.replace("'", "&#x27;") in page
    assert "1 package required; the versions are not chosen yet" not in page
    for tab in TABS:
        open_page(alice, job, tab)
