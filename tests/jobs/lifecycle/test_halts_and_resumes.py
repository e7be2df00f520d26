"""A halt with its receipt, and the checkpoint from which the next attempt begins, over a cluster in memory."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import pytest

from gpu_scheduler.clusters.base import Observation
from jobs.models import Checkpoint, Job, Learner, Progress
from jobs.services import job_resume
from jobs.states import Intent, Phase, State
from tests import factories
from tests.jobs.lifecycle.world import World, gang, job_of, last_move, moves, state, used

pytestmark = pytest.mark.django_db


def halt(world: World, job: Job) -> None:
    """Ask for a halt that the program obeys without a save of its own."""
    world.request(job, Intent.HALT)
    world.settle()
    world.exit(job, halted=True)
    world.done(job)
    world.settle()
    assert state(job) == State.HALTED


def test_a_halt_keeps_the_checkpoint_and_leaves_a_receipt(world: World) -> None:
    job = world.running()
    world.step(job, 52)
    world.request(job, Intent.HALT)
    world.settle()
    assert state(job) == State.STOPPING
    assert used(world.tenant) == 1
    world.report(job, gen_seen=2)
    world.exit(job, halted=True)
    world.save(job, 50)
    world.settle()
    assert state(job) == State.STOPPING, "its shipper is still sending"
    world.done(job)
    world.settle()
    halted = job_of(job)
    assert (halted.state, halted.settled) == (State.HALTED, True)
    assert used(world.tenant) == 0
    receipt = halted.last_halt
    assert (receipt["step"], receipt["steps_lost"], receipt["checkpoint"]) == (50, 2, 1)
    assert set(receipt["parts"]) == {"seen", "saved", "verified", "released"}
    assert receipt["seconds"] >= 0
    assert receipt.items() <= last_move(job).numbers.items()
    assert "has step 50; 2 steps lost" in halted.reason_message


@pytest.mark.parametrize(
    ("step", "reported", "lost", "words"),
    [
        (None, 344, None, "Checkpoint 1: saved by the program, step unknown, last reported 344."),
        (None, None, None, "Checkpoint 1: saved by the program, step unknown."),
        (300, None, None, "Checkpoint 1 has step 300; how many steps are lost is unknown."),
        (300, 344, 44, "Checkpoint 1 has step 300; 44 steps lost."),
    ],
)
def test_a_receipt_never_claims_more_than_is_known(
    world: World, step: int | None, reported: int | None, lost: int | None, words: str
) -> None:
    job = world.running()
    Progress.objects.filter(job=job).update(step=reported)
    factories.checkpoint(job_of(job), step=step, implicit=True)
    halt(world, job)
    halted = job_of(job)
    assert (halted.last_halt["step"], halted.last_halt["steps_lost"]) == (step, lost)
    assert halted.reason_message.endswith(words)
    assert last_move(job).message.endswith(words)


FELL = 2_000_000
"""When steps fell back, in milliseconds; saves are in nanoseconds."""


@pytest.mark.parametrize(
    ("step", "saved_ns", "reported", "lost", "words"),
    [
        (600, FELL * 10**6 + 1, 600, 0, "Checkpoint 1 has step 600; no steps lost."),
        (500, FELL * 10**6 + 1, 600, 100, "Checkpoint 1 has step 500; 100 steps lost."),
        (
            3000,
            FELL * 10**6 - 1,
            600,
            None,
            "Checkpoint 1 has step 3,000; how many steps are lost is unknown.",
        ),
        (500, FELL * 10**6 - 1, 600, None, "Checkpoint 1 has step 500; how many steps are lost is unknown."),
        (3000, None, 600, None, "Checkpoint 1 has step 3,000; how many steps are lost is unknown."),
        (
            None,
            FELL * 10**6 - 1,
            600,
            None,
            "Checkpoint 1: saved by the program, step unknown, last reported 600.",
        ),
    ],
)
def test_the_steps_lost_are_unknown_once_steps_fell_back_after_the_save(
    world: World, step: int | None, saved_ns: int | None, reported: int, lost: int | None, words: str
) -> None:
    job = world.running()
    world.report(job, first_step=1, last_step=reported, fell_ms=FELL)
    world.step(job, reported)
    factories.checkpoint(job_of(job), step=step, saved_ns=saved_ns)
    halt(world, job)
    halted = job_of(job)
    assert halted.last_halt["steps_lost"] == lost
    assert halted.reason_message.endswith(words)


def test_without_a_checkpoint_steps_that_fell_back_are_not_counted(world: World) -> None:
    job = world.running()
    world.report(job, first_step=1, last_step=600, fell_ms=FELL)
    world.step(job, 600)
    halt(world, job)
    assert job_of(job).last_halt["steps_lost"] is None
    assert job_of(job).reason_message.endswith("No checkpoint was saved, so a resume starts from scratch.")


def test_the_receipt_has_what_was_saved_last_not_what_has_the_highest_step(world: World) -> None:
    job = world.running()
    world.report(job, first_step=1, last_step=620, fell_ms=FELL)
    world.step(job, 620)
    for saved_ns, step in ((1, 3000), (FELL * 10**6 + 5, 600)):
        factories.checkpoint(job_of(job), step=step, saved_ns=saved_ns)
    halt(world, job)
    receipt = job_of(job).last_halt
    assert (receipt["checkpoint"], receipt["step"], receipt["steps_lost"]) == (2, 600, 20)


def test_the_legs_of_a_receipt_add_up_when_the_word_of_a_halt_came_after_its_checkpoint(world: World) -> None:
    job = world.running()
    world.request(job, Intent.HALT)
    world.settle()
    saved = world.save(job, 50)
    asked = job_of(job).intent_at
    world.exit(job, halted=True)
    world.report(job, gen_seen=2, halt_seen_at=asked + timedelta(seconds=3))
    Checkpoint.objects.filter(pk=saved.pk).update(
        created_at=asked + timedelta(seconds=1), committed_at=asked + timedelta(seconds=4)
    )
    world.elapse(5)
    world.done(job)
    world.settle()
    legs = job_of(job).last_halt["parts"]
    assert (legs["seen"], legs["saved"], legs["verified"]) == (3, 0, 1)
    assert sum(legs.values()) == pytest.approx(job_of(job).last_halt["seconds"])


@pytest.mark.parametrize(("saves", "said"), [(True, "; its checkpoints remain."), (False, "halted.")])
def test_a_canceled_job_is_promised_its_checkpoints_only_when_it_has_some(
    world: World, *, saves: bool, said: str
) -> None:
    job = world.running()
    world.request(job, Intent.HALT)
    if saves:
        world.save(job, 10)
    world.settle()
    world.exit(job, halted=True)
    world.done(job)
    world.settle()
    world.request(job, Intent.CANCEL)
    world.settle()
    assert state(job) == State.CANCELED
    assert job_of(job).reason_message.endswith(said)


def test_a_job_that_is_canceled_in_the_queue_is_promised_the_checkpoints_it_has(world: World) -> None:
    job = world.running()
    world.save(job, 10)
    Job.objects.filter(pk=job.pk).update(early_ends=3, max_restarts=1)
    world.exit(job, code=1)
    world.done(job)
    world.settle()
    assert state(job) == State.QUEUED, "it backs off"
    world.request(job, Intent.CANCEL)
    world.settle()
    assert job_of(job).reason_message == "Canceled while waiting in the queue; its checkpoints remain."


def test_a_program_that_leaves_between_two_looks_is_halted_if_a_halt_had_reached_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows are read, then the learner reports and is gone, then the cluster is asked."""
    job = world.running()
    observe = world.cluster.observe

    def late(names: Sequence[str]) -> Observation:
        monkeypatch.undo()
        world.exit(job, halted=True)
        world.done(job)
        return observe(names)

    monkeypatch.setattr(world.cluster, "observe", late)
    world.request(job, Intent.HALT)
    world.settle()

    assert state(job) == State.HALTED
    assert moves(job)[-2:] == [State.STOPPING, State.HALTED]


def test_a_program_that_counts_from_zero_loses_one_step_more_than_its_last_one_says(world: World) -> None:
    job = world.running()
    Progress.objects.filter(job=job).update(step=3)
    Learner.objects.filter(job=job).update(first_step=0, last_step=3)
    halt(world, job)
    halted = job_of(job)
    assert halted.last_halt["steps_lost"] == 4
    assert halted.reason_message == "Halted. No checkpoint was saved; 4 steps lost."


def test_a_halt_of_a_program_that_said_and_saved_nothing_does_not_claim_that_nothing_is_lost(
    world: World,
) -> None:
    job = world.running()
    Progress.objects.filter(job=job).update(step=None)
    halt(world, job)
    halted = job_of(job)
    assert (halted.last_halt["steps_lost"], halted.last_halt["checkpoint"]) == (None, None)
    assert "a resume starts from scratch" in halted.reason_message


def test_a_resume_opens_the_next_attempt_from_the_newest_valid_checkpoint(world: World) -> None:
    job = world.running()
    world.request(job, Intent.HALT)
    world.save(job, 10)
    world.settle()
    world.exit(job, halted=True)
    world.done(job)
    world.settle()
    world.request(job, Intent.RUN)
    world.settle()
    resumed = job_of(job)
    assert (resumed.state, resumed.attempt) == (State.DEPLOYING, 2)
    assert resumed.attempts.get(n=2).resume_from.step == 10
    assert set(world.cluster.listing()) == {f"job-{job.pk}-2"}


def test_a_requested_older_checkpoint_is_used_until_its_attempt_saved_one_of_its_own(world: World) -> None:
    job = world.running(max_restarts=5)
    first, _ = world.save(job, 10), world.save(job, 50)
    world.request(job, Intent.HALT)
    world.settle()
    world.exit(job, halted=True)
    world.done(job)
    world.settle()
    Job.objects.filter(pk=job.pk).update(resume_from=first)
    world.request(job, Intent.RUN)
    world.settle()
    assert job.attempts.get(n=2).resume_from == first
    world.report(job, phase=Phase.PROCESSING)
    world.exit(job, 1)
    world.done(job)
    world.settle()
    assert job.attempts.get(n=3).resume_from == first, "not step 50, which its people turned away from"
    third = world.save(job, 20)
    world.report(job, phase=Phase.PROCESSING)
    world.exit(job, 1)
    world.done(job)
    world.settle()
    world.elapse(6)  # the wait after a second early end
    world.settle()
    assert job.attempts.get(n=4).resume_from == third


def test_going_back_to_a_checkpoint_that_an_attempt_had_begun_from_begins_there_again(world: World) -> None:
    def begun_from(attempt: int) -> Checkpoint | None:
        return job.attempts.get(n=attempt).resume_from

    job = world.running(max_restarts=5)
    first = world.save(job, 10)
    halt(world, job)
    job_resume(user=world.alice, job_id=job.pk)
    world.settle()
    assert begun_from(2) == first
    world.report(job, phase=Phase.PROCESSING)
    world.settle()
    world.save(job, 50)
    halt(world, job)
    job_resume(user=world.alice, job_id=job.pk, checkpoint=first.n)
    world.settle()
    assert begun_from(3) == first, (
        "not step 50, which an attempt from the same checkpoint had saved before the request"
    )
    world.report(job, phase=Phase.PROCESSING)
    world.exit(job, 1)
    world.done(job)
    world.settle()
    assert begun_from(4) == first, "nothing was saved since"
    world.report(job, phase=Phase.PROCESSING)
    own = world.save(job, 20)
    world.exit(job, 1)
    world.done(job)
    world.settle()
    world.elapse(6)  # the wait after a second early end
    world.settle()
    assert begun_from(5) == own


def test_a_halt_after_going_back_and_before_a_save_says_so_and_resumes_from_there(world: World) -> None:
    job = world.running()
    first, last = world.save(job, 10), world.save(job, 50)
    world.step(job, 50)
    halt(world, job)
    assert job_of(job).last_halt["checkpoint"] == last.n
    job_resume(user=world.alice, job_id=job.pk, checkpoint=first.n)
    world.settle()
    halt(world, job)
    receipt = job_of(job).last_halt
    assert (receipt["checkpoint"], receipt["step"], receipt["steps_lost"]) == (first.n, 10, 0), (
        "it had done nothing yet"
    )
    job_resume(user=world.alice, job_id=job.pk)
    world.settle()
    assert job.attempts.get(n=3).resume_from == first, "not step 50, from which its people went back"
    world.report(job, phase=Phase.PROCESSING, last_step=17)
    world.step(job, 17)
    halt(world, job)
    receipt = job_of(job).last_halt
    assert (receipt["checkpoint"], receipt["step"], receipt["steps_lost"]) == (first.n, 10, 7)
    job_resume(user=world.alice, job_id=job.pk)
    world.settle()
    world.report(job, phase=Phase.PROCESSING)
    own = world.save(job, 20)
    halt(world, job)
    assert job_of(job).last_halt["checkpoint"] == own.n
    job_resume(user=world.alice, job_id=job.pk)
    assert job_of(job).resume_from is None, "the way back has led to a save of its own"
    world.settle()
    assert job.attempts.get(n=5).resume_from == own


def test_halting_a_queued_job_starts_nothing(world: World) -> None:
    job = world.submit()
    world.request(job, Intent.HALT)
    world.settle()
    assert state(job) == State.HALTED
    assert job_of(job).attempt == 0
    assert not world.cluster.created
    world.request(job, Intent.RUN)
    world.settle()
    assert state(job) == State.DEPLOYING


def test_finishing_wins_over_halting(world: World) -> None:
    job = world.running()
    world.request(job, Intent.HALT)
    world.settle()
    world.report(
        job, phase=Phase.EXITED, exited_at=job.created_at, exit_code=0, halted=True, finished_mark=True
    )
    world.settle()
    assert state(job) == State.STORING
    world.done(job)
    world.settle()
    assert state(job) == State.COMPLETED


def test_a_resume_that_comes_while_halting_follows_the_halt(world: World) -> None:
    job = world.running()
    world.request(job, Intent.HALT)
    world.settle()
    world.request(job, Intent.RUN)
    world.settle()
    assert state(job) == State.STOPPING
    world.exit(job, halted=True)
    world.done(job)
    world.settle()
    assert "HALTED" in moves(job)
    assert (state(job), job_of(job).attempt) == (State.DEPLOYING, 2)


def test_a_learner_that_does_not_acknowledge_is_stopped_through_the_cluster(world: World) -> None:
    job = world.running(grace_s=60)
    world.cluster.stops_in_s = 5
    world.request(job, Intent.HALT)
    world.settle()
    assert ("stop", gang(job)) not in world.cluster.calls, "it is asked first"
    world.elapse(11)
    world.settle()
    assert ("stop", gang(job)) in world.cluster.calls
    world.elapse(6)
    world.settle()
    assert state(job) == State.HALTED


def test_a_program_that_will_not_end_is_killed_in_the_end(world: World) -> None:
    job = world.running(grace_s=10)
    world.cluster.stops_in_s = 10_000
    world.request(job, Intent.HALT)
    world.report(job, gen_seen=2)
    world.settle()
    for _ in range(5):
        world.elapse(10)
        world.report(job)
        world.settle()
    assert state(job) == State.HALTED
    assert not world.cluster.listing()
