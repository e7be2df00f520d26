"""What the next attempt of a job goes on from."""

from __future__ import annotations

import pytest

from jobs.lifecycle.admission import checkpoint_for
from jobs.models import Checkpoint, Job
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
        ([(1, 10), (2, 20), (1, 90)], (2, 20)),  # somebody went back on purpose
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


def test_without_a_valid_one_a_job_begins_anew() -> None:
    assert checkpoint_for(factories.job(state=State.HALTED)) is None
