"""What counts of an attempt, against its time limit and as use: never time without contact."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from django.db.models.functions import Now
from django.utils import timezone

from gpu_scheduler.clusters.base import ClusterBusy, EndReason
from jobs.accounting import PAUSE_S
from jobs.models import Attempt, Job, Learner
from jobs.selectors.jobs import with_details
from jobs.selectors.serializers import JobSerializer
from jobs.selectors.usage import By, usage_of
from jobs.states import EventCode, Intent, Phase, State
from tests.jobs.lifecycle.world import World, gang, job_of, state

pytestmark = pytest.mark.django_db

NIGHT_S = 8 * 3600.0


ROUGHLY_S = 90.0
"""How much real time may pass on a busy machine while the tests' own time is turned by hand."""


def run(world: World, job: Job, seconds: int) -> None:
    """It runs for so long, in contact all the while."""
    for _ in range(seconds // 25):
        world.elapse(25)
        world.report(job)
        world.settle()


def end_lost(world: World, job: Job) -> None:
    """Its node went down: nothing of it is left."""
    for learner in Learner.objects.filter(job=job, attempt=job_of(job).attempt):
        world.cluster.die(gang(job), learner.rank, reason=EndReason.NODE_LOST)
    world.settle()


def used(world: World) -> float:
    now = timezone.now()
    found = usage_of(world.tenant, start=now - timedelta(days=3), end=now + timedelta(days=1), by=By.GPU_TYPE)
    return sum(row.used for row in found)


def shown(job: Job) -> float:
    seconds: float = JobSerializer.render(with_details(Job.objects.filter(pk=job.pk)).get())["slot_seconds"]
    return seconds


def test_a_night_in_which_the_platform_was_off_neither_counts_nor_is_charged(world: World) -> None:
    job = world.running(slots=2, time_limit_s=1000)
    run(world, job, 200)
    world.elapse(NIGHT_S)
    end_lost(world, job)
    again = job_of(job)
    assert (again.state, again.attempt) == (State.DEPLOYING, 2), again.reason_message
    assert again.running_s == pytest.approx(200, abs=ROUGHLY_S)
    assert again.slot_seconds == pytest.approx(2 * 200, abs=2 * ROUGHLY_S)
    assert used(world) == pytest.approx(again.slot_seconds, abs=2 * PAUSE_S)
    assert shown(job) == pytest.approx(again.slot_seconds, abs=2 * PAUSE_S)
    returned = job.events.get(code=EventCode.GPUS_RETURNED)
    assert returned.message.startswith("Released 2 CPUs after 8 h")
    assert returned.message.endswith(" is charged; contact was lost after that.")
    assert returned.numbers["counted_seconds"] == pytest.approx(again.slot_seconds / 2, abs=0.1)
    left_s = 1000 - again.running_s
    world.report(job, phase=Phase.PROCESSING)
    world.settle()
    world.elapse(left_s + 1)
    world.settle()
    assert (state(job), job_of(job).stop_reason) == (State.STOPPING, "time_limit"), "what ran before counts"


def test_a_short_time_off_does_not_count_either(world: World) -> None:
    job = world.running()
    run(world, job, 50)
    world.elapse(PAUSE_S - 5)
    end_lost(world, job)
    lost = job.attempts.get(n=1)
    assert lost.closed_at is not None
    assert lost.known_at is not None
    assert (lost.closed_at - lost.known_at).total_seconds() >= PAUSE_S - 5
    assert job_of(job).running_s == pytest.approx((lost.known_at - lost.processing_at).total_seconds())


def test_a_lost_learner_counts_until_the_last_heartbeat_of_its_agent(world: World) -> None:
    """The cluster was not observed meanwhile, but the agents were in contact."""
    job = world.running()
    for _ in range(10):
        world.elapse(60)
        world.report(job)
    world.elapse(NIGHT_S)
    end_lost(world, job)
    assert job_of(job).running_s == pytest.approx(600, abs=ROUGHLY_S)


def test_a_program_that_ran_through_the_servers_outage_has_run_all_the_time(world: World) -> None:
    job = world.running(time_limit_s=2000)
    world.elapse(1500)
    assert shown(job) < ROUGHLY_S, "not known yet"
    world.settle()
    assert state(job) == State.PROCESSING
    assert shown(job) == pytest.approx(1500, abs=ROUGHLY_S)
    assert used(world) == pytest.approx(1500, abs=ROUGHLY_S)
    world.elapse(600)
    world.settle()
    assert (state(job), job_of(job).stop_reason) == (State.STOPPING, "time_limit"), "no free time"


def test_a_silent_agent_gives_its_program_no_free_time(world: World) -> None:
    """The node's word is enough: a program may well keep its shipper from speaking."""
    job = world.running(time_limit_s=300)
    for _ in range(13):
        world.elapse(25)
        world.settle()
    assert job_of(job).stop_reason == "time_limit"


def test_a_program_that_ended_in_an_outage_counts_until_its_end(world: World) -> None:
    """Its agent reports the exit afterwards, with its age, and uploads the rest for a while."""
    job = world.running(time_limit_s=1200, max_restarts=1)
    world.elapse(NIGHT_S)
    world.exit(job, 1)
    Learner.objects.filter(job=job).update(exited_at=Now() - timedelta(seconds=NIGHT_S - 600))
    world.cluster.end_programs(gang(job))
    world.settle()
    assert (state(job), job_of(job).stop_reason) == (State.STOPPING, "learner_failed")
    world.elapse(100)
    world.report(job)
    world.settle()
    world.done(job)
    world.settle()
    again = job_of(job)
    assert (again.state, again.running_s) == (State.DEPLOYING, pytest.approx(600, abs=ROUGHLY_S))


def test_an_exit_that_no_agent_saw_says_nothing_of_when_it_was(world: World) -> None:
    """A shipper that is started again in the morning finds its launcher dead."""
    job = world.running(time_limit_s=600)
    world.elapse(NIGHT_S)
    world.cluster.end_programs(gang(job))
    world.report(job)
    world.settle()
    assert state(job) == State.PROCESSING, "not ended by its time limit while its agent finds out"
    world.report(job, phase=Phase.EXITED, exited_at=Now(), exit_code=None)
    world.cluster.die(gang(job), 0)
    world.settle()
    again = job_of(job)
    assert (again.state, again.attempt) == (State.DEPLOYING, 2), again.reason_message
    assert again.running_s < ROUGHLY_S


def test_what_is_stored_after_the_program_counts_as_use(world: World) -> None:
    job = world.running()
    world.exit(job, 0)
    world.cluster.end_programs(gang(job))
    for _ in range(12):
        world.settle()
        world.elapse(25)
    assert state(job) == State.STORING
    world.settle()
    world.done(job)
    world.settle()
    assert state(job) == State.COMPLETED
    assert job_of(job).slot_seconds == pytest.approx(300, abs=ROUGHLY_S)


def test_a_node_that_does_not_answer_keeps_the_clock_at_its_last_sign(world: World) -> None:
    job = world.running(time_limit_s=300)
    world.cluster.fail_next("observe", ClusterBusy("away"), times=100)
    for _ in range(4):
        world.elapse(100)
        world.settle()
    assert state(job) == State.PROCESSING
    assert shown(job) < ROUGHLY_S


def test_many_looks_write_few_signs(world: World) -> None:
    job = world.running()
    signs: set[datetime | None] = set()
    for _ in range(12):
        world.elapse(2)
        Job.objects.filter(pk=job.pk).update(next_reconcile_at=Now())
        before = Attempt.objects.get(job=job).known_at
        world.settle()
        if Attempt.objects.get(job=job).known_at != before:
            signs.add(before)
    assert 1 <= len(signs) < 12


def over(world: World, job: Job) -> None:
    """The cluster shows the programs ended, their shippers at work."""
    world.cluster.end_programs(gang(job))


def test_a_lost_job_without_time_left_ends_without_a_new_place(world: World) -> None:
    job = world.running(time_limit_s=100)
    for _ in range(3):
        world.elapse(50)
        world.report(job)
    world.cluster.die(gang(job), 0, reason=EndReason.NODE_LOST)
    world.settle()
    ended = job_of(job)
    assert (ended.state, ended.reason_code, ended.attempt) == (State.FAILED, "time_limit", 1)
    assert ended.reason_message.endswith("Its time limit is used up. Clone it with a larger time_limit.")


def test_a_requested_halt_keeps_a_lost_job_whose_time_is_up(world: World) -> None:
    job = world.running(time_limit_s=100)
    world.elapse(150)
    world.report(job)
    world.request(job, Intent.HALT)
    world.cluster.die(gang(job), 0, reason=EndReason.NODE_LOST)
    world.settle()
    assert state(job) == State.HALTED


def test_a_resume_that_came_while_a_long_halt_used_up_the_time_ends_without_a_new_place(world: World) -> None:
    job = world.running(time_limit_s=1000, grace_s=600)
    world.request(job, Intent.HALT)
    world.report(job, gen_seen=2)
    world.settle()
    world.request(job, Intent.RUN)
    world.elapse(500)
    world.report(job)
    world.settle()
    world.elapse(600)
    world.exit(job, halted=True)
    world.done(job)
    world.settle()
    ended = job_of(job)
    assert (ended.state, ended.reason_code, ended.attempt) == (State.FAILED, "time_limit", 1)
