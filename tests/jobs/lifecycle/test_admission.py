"""From which checkpoint the next attempt of a job resumes."""

from __future__ import annotations

from importlib import import_module

import pytest
from django.db import connection

from jobs.models import Checkpoint, Job
from jobs.selectors.checkpoints import checkpoint_for
from jobs.states import State
from tests import factories

pytestmark = pytest.mark.django_db
Saved = tuple[int, int | None]  # attempt, step


def saved_at(job: Job, *saved: Saved) -> list[Checkpoint]:
    return [factories.checkpoint(job, attempt=attempt, step=step) for attempt, step in saved]


@pytest.mark.parametrize(
    ("saved", "newest"),
    [
        ([(1, 10), (1, 30), (1, 20)], (1, 30)),
        ([(1, 10), (2, 20), (1, 90)], (2, 20)),  # its owner went back on purpose
        ([(1, None), (1, 5)], (1, 5)),  # as the program left it, at an unknown step
        ([(2, None), (1, 5)], (2, None)),
    ],
)
def test_of_several_valid_checkpoints_the_newest_counts(saved: list[Saved], newest: Saved) -> None:
    job = factories.job(state=State.HALTED, attempt=2)
    saved_at(job, *saved)

    chosen = checkpoint_for(job)

    assert chosen is not None
    assert (chosen.attempt, chosen.step) == newest


@pytest.mark.parametrize(
    "state", [Checkpoint.State.UPLOADING, Checkpoint.State.CORRUPT, Checkpoint.State.DROPPED]
)
def test_a_newer_one_that_is_not_valid_does_not_count(state: Checkpoint.State) -> None:
    job = factories.job(state=State.HALTED)
    valid, _ = saved_at(job, (1, 10), (1, 20))
    job.checkpoints.filter(step=20).update(state=state)

    assert checkpoint_for(job) == valid


def test_without_a_valid_one_a_job_starts_from_scratch() -> None:
    assert checkpoint_for(factories.job(state=State.HALTED)) is None


@pytest.mark.parametrize(
    ("began", "after", "next_from"),
    [
        ((2, 4), 3, (4, 40)),  # gone back to twice: what attempt 2 saved was left on purpose
        ((2,), 1, (4, 40)),
        ((), 4, (1, 10)),  # not obeyed yet
    ],
)
def test_a_request_from_before_it_had_a_number_is_kept_as_it_was(
    began: tuple[int, ...], after: int, next_from: Saved
) -> None:
    job = factories.job(state=State.HALTED, attempt=4)
    requested, *_ = saved_at(job, (1, 10), (2, 90), (4, 40))
    for n in set(range(1, 5)) - set(job.attempts.values_list("n", flat=True)):
        factories.add_attempt(job, n, held=False)
    job.attempts.filter(n__in=began).update(resume_from=requested)
    other = factories.job(state=State.HALTED, attempt=3)
    Job.objects.filter(pk=job.pk).update(resume_from=requested)

    with connection.cursor() as cursor:
        cursor.execute(import_module("jobs.migrations.0005_resume_after").SET_RESUME_AFTER)

    job.refresh_from_db()
    other.refresh_from_db()
    assert (job.resume_after, other.resume_after) == (after, 0)
    chosen = checkpoint_for(job)
    assert chosen is not None
    assert (chosen.attempt, chosen.step) == next_from
