"""STORING always ends, with a reason: an upload that hangs while its agent sends heartbeats has a deadline."""

from __future__ import annotations

import pytest
from django.conf import settings
from django.db.models.functions import Now

from jobs.states import Phase, State
from tests.jobs.lifecycle.world import World, job_of, state

pytestmark = pytest.mark.django_db


def test_an_upload_that_hangs_ends_the_job_with_what_is_missing(world: World) -> None:
    job = world.running(learners=2)
    world.exit(job)
    world.settle()
    assert state(job) == State.STORING
    world.done(job, rank=0)
    world.elapse(settings.LUTHIER_STORING_STALL_S + 60)
    world.report(job, rank=1, phase=Phase.STORING)
    world.settle()
    assert state(job) == State.FAILED
    ended = job_of(job)
    assert ended.reason_code == "results_not_stored"
    assert ended.reason_message.startswith(
        "The results of learner 1 could not be stored: nothing of them arrived for 31 min"
    )


def test_a_slow_upload_that_advances_is_left_alone_for_as_long_as_it_takes(world: World) -> None:
    job = world.running()
    world.exit(job)
    world.settle()
    for _ in range(4):
        world.elapse(settings.LUTHIER_STORING_STALL_S - 60)
        world.report(job, phase=Phase.STORING)
        world.settle()
        assert state(job) == State.STORING
        world.report(job, stored_at=Now())  # another piece of 12 GB
    world.done(job)
    world.settle()
    assert state(job) == State.COMPLETED
