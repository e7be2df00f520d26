"""STORING always ends, with a reason: an upload that hangs while its agent sends heartbeats has a deadline."""

from __future__ import annotations

import re

import pytest
from django.conf import settings
from django.db.models import QuerySet
from django.db.models.functions import Now

from jobs.blobs import health
from jobs.models import Job, JobEvent, PeriodicTask
from jobs.selectors.snapshot import database_now
from jobs.states import FINAL, EventCode, Intent, Phase, State
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


def store(**found: object) -> None:
    """What the workers found of the store of files."""
    result = {"problem": "", "away": False, "since": None, "back_at": None} | found
    row = {"result": result, "done_at": Now()}
    PeriodicTask.objects.update_or_create(name=health.TASK, defaults=row)


def test_results_wait_for_a_store_that_is_away_and_say_so(world: World) -> None:
    """The time of its outage is none in which the upload made no progress."""
    job = world.running()
    store(problem="Could not connect", away=True, since="2026-11-25T13:05:00+00:00")
    world.exit(job)
    world.settle()
    reason = job_of(job)
    assert (reason.state, reason.reason_code) == (State.STORING, "store_unavailable")
    assert reason.reason_message == (
        "Finished successfully; its output waits. The store of files has not responded since 2026-11-25 13:05:00 UTC:"
        " Could not connect."
    )
    assert reason.reason_numbers == {"since": "2026-11-25T13:05:00.000Z"}

    world.elapse(settings.LUTHIER_STORING_STALL_S + 60)
    world.report(job, phase=Phase.STORING)
    world.settle()
    assert state(job) == State.STORING
    store(back_at=database_now().isoformat())
    world.elapse(60)
    world.report(job, phase=Phase.STORING)
    world.settle()
    assert (state(job), job_of(job).reason_code) == (State.STORING, "storing")
    world.done(job)
    world.settle()
    assert state(job) == State.COMPLETED


def test_a_halt_says_that_its_checkpoint_waits_for_the_store(world: World) -> None:
    job = world.running()
    world.request(job, Intent.HALT)
    world.settle()
    store(problem="a request took 4.0 s", since="2026-11-25T13:05:00+00:00")
    world.report(job)
    world.settle()
    assert job_of(job).reason_code == "halt_requested", "its program has not ended yet"
    world.exit(job, halted=True)
    world.settle()
    reason = job_of(job)
    assert (reason.state, reason.reason_code) == (State.STOPPING, "store_unavailable")
    assert reason.reason_message == (
        "Halting: its program has ended; what it saved waits. The store of files is slow since 2026-11-25 13:05:00 UTC:"
        " a request took 4.0 s."
    )
    store()
    world.report(job, phase=Phase.STORING)
    world.settle()
    assert job_of(job).reason_code == "halt_requested"
    world.save(job, 10)
    world.done(job)
    world.settle()
    assert state(job) == State.HALTED
    assert job_of(job).reason_message.startswith("Halted. Checkpoint 1 has step 10;")


def test_a_cancel_of_a_halt_that_waits_for_the_store_says_so(world: World) -> None:
    job = world.running()
    world.request(job, Intent.HALT)
    world.settle()
    store(problem="Could not connect", away=True, since="2026-11-25T13:05:00+00:00")
    world.exit(job, halted=True)
    world.settle()
    assert job_of(job).reason_code == "store_unavailable"
    world.request(job, Intent.CANCEL)
    world.settle()
    assert job_of(job).reason_code == "cancel_requested"


def test_an_upload_that_hangs_although_the_store_is_back_still_ends(world: World) -> None:
    job = world.running()
    store(back_at=database_now().isoformat())
    world.exit(job)
    world.settle()
    world.elapse(settings.LUTHIER_STORING_STALL_S + 60)
    store(back_at="2026-01-01T00:00:00+00:00")
    world.report(job, phase=Phase.STORING)
    world.settle()
    assert state(job) == State.FAILED


@pytest.mark.parametrize(
    ("canceled", "after"), [(True, "2 min 1. s"), (False, "1 h 0. min")], ids=["cancel", "failure"]
)
def test_what_a_bound_cuts_off_is_an_event(world: World, canceled: bool, after: str) -> None:
    """Its upload advances all the time."""
    job = world.running()
    if canceled:
        world.request(job, Intent.CANCEL)
    world.exit(job, 143 if canceled else 1)
    world.report(job, phase=Phase.STORING)
    world.settle()
    for _ in range(400):
        if state(job) in FINAL:
            break
        assert not cut_off(job).exists()
        world.elapse(10)
        world.report(job, stored_at=Now())
        world.settle()
    assert state(job) == (State.CANCELED if canceled else State.FAILED)
    event = cut_off(job).get()
    assert re.fullmatch(
        rf"Learner 0 was removed {after} after the stop began, before everything was stored\. What had not arrived of"
        r" checkpoints, results and log is lost; results of an earlier end remain\.",
        event.message,
    )
    assert event.numbers["learners"] == 1


def test_what_was_delivered_is_not_said_to_be_cut_off(world: World) -> None:
    job = world.running()
    world.request(job, Intent.CANCEL)
    world.settle()
    world.exit(job, 143)
    world.done(job)
    world.settle()
    assert state(job) == State.CANCELED
    assert not cut_off(job).exists()


def cut_off(job: Job) -> QuerySet[JobEvent]:
    return JobEvent.objects.filter(job=job.pk, code=EventCode.CONDITION, reason="results_cut_off")
