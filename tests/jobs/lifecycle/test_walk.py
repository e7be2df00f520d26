"""One job from its submission to each of its ends, over a cluster in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import pytest
from django.db.models.functions import Now
from django.utils import timezone

from gpu_scheduler.clusters.base import ClusterBusy, EndReason, LaunchRefused, Observation, RefusalCode
from gpu_scheduler.model import WaitReason
from jobs.lifecycle import cycle, observation, preparation_log, stopping
from jobs.models import Checkpoint, ClusterNode, Job, Learner, Progress
from jobs.selectors import logs
from jobs.selectors.queue import estimate_view
from jobs.services import job_resume
from jobs.states import EventCode, Intent, Phase, State
from portal.pages import job_failure
from tests import factories
from tests.jobs.lifecycle.world import LOOK_S, World, gang, job_of, last_move, state, used

pytestmark = pytest.mark.django_db


def moves(job: Job) -> list[str]:
    return [event.to_state for event in job.events.exclude(to_state="").order_by("n")]


def test_a_job_walks_from_the_queue_to_completed_and_returns_its_slots(world: World) -> None:
    job = world.submit(learners=2, slots=2)
    world.settle()
    assert state(job) == State.DEPLOYING
    assert used(world.tenant) == 4
    assert set(world.cluster.listing()) == {gang(job)}
    world.report(job, rank=0, phase=Phase.DOWNLOADING)
    world.settle()
    assert state(job) == State.DEPLOYING, "a gang moves on only when all its learners did"
    world.report(job, rank=1, phase=Phase.PROCESSING)
    world.settle()
    assert state(job) == State.DOWNLOADING
    world.report(job, rank=0, phase=Phase.PROCESSING)
    world.settle()
    assert state(job) == State.PROCESSING
    world.exit(job, rank=0)
    world.settle()
    assert state(job) == State.PROCESSING
    world.exit(job, rank=1)
    world.settle()
    assert state(job) == State.STORING
    assert used(world.tenant) == 4, "slots are held until the gang is gone"
    world.done(job)
    world.settle()
    done = job_of(job)
    assert (done.state, done.settled, done.lease_token) == (State.COMPLETED, True, None)
    assert used(world.tenant) == 0
    assert not world.cluster.listing()
    assert moves(job) == ["QUEUED", "DEPLOYING", "DOWNLOADING", "PROCESSING", "STORING", "COMPLETED"]
    assert done.started_at
    assert done.finished_at
    attempt = job.attempts.get()
    assert (attempt.held, attempt.outcome) == (False, "COMPLETED")


@pytest.mark.parametrize(
    ("learners", "said", "is_distributed"), [(1, None, False), (1, True, True), (2, False, False)]
)
def test_a_gang_is_launched_as_distributed_as_its_spec_says(
    world: World, learners: int, said: bool | None, is_distributed: bool
) -> None:
    spec = factories.spec(resources={"learners": learners}, **({} if said is None else {"distributed": said}))
    job = world.submit(learners=learners, spec=spec)
    world.settle()
    assert world.cluster.launched(gang(job)).is_distributed is is_distributed


def test_what_a_node_prepares_is_shown_as_it_goes_on_and_is_one_event_of_the_attempt(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = world.submit()
    world.settle()
    observe, said = world.cluster.observe, ""

    def preparing(names: Sequence[str]) -> Observation:
        found = observe(names)
        return replace(found, gangs={name: replace(one, message=said) for name, one in found.gangs.items()})

    monkeypatch.setattr(world.cluster, "observe", preparing)
    for said in ("", "Preparing runtime x", "Preparing runtime x, 2 of 9 MB fetched"):
        world.elapse(LOOK_S)
        world.settle()
        assert job_of(job).reason_message == said or (not said and job_of(job).reason_code == "deploying")
    monkeypatch.setattr(world.cluster, "observe", observe)  # ready
    world.elapse(LOOK_S)
    world.settle()
    assert job_of(job).reason_message == "Its learners are being started."
    conditions = job.events.filter(code=EventCode.CONDITION)
    assert [(event.attempt, event.reason, event.message) for event in conditions] == [
        (1, "preparing", "Preparing runtime x.")
    ]


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
    world.request(job, Intent.HALT)
    world.settle()
    world.exit(job, halted=True)
    world.done(job)
    world.settle()
    halted = job_of(job)
    assert (halted.state, halted.last_halt["steps_lost"], halted.last_halt["checkpoint"]) == (
        State.HALTED,
        None,
        None,
    )
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


def halt(world: World, job: Job) -> None:
    """Ask for a halt that the program obeys without a save of its own."""
    world.request(job, Intent.HALT)
    world.settle()
    world.exit(job, halted=True)
    world.done(job)
    world.settle()
    assert state(job) == State.HALTED


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


def test_a_failing_program_restarts_within_its_budget_and_then_fails(world: World) -> None:
    job = world.running(max_restarts=1, learners=2)
    world.exit(job, 3, rank=1)
    world.settle()
    assert state(job) == State.STOPPING
    assert ("stop", gang(job)) in world.cluster.calls
    world.elapse(40)  # the other learner's grace is over
    world.settle()
    again = job_of(job)
    assert (again.state, again.attempt, again.restarts_used) == (State.DEPLOYING, 2, 1)
    world.report(job, phase=Phase.PROCESSING)
    world.exit(job, 3, rank=0)
    world.settle()
    world.elapse(40)
    world.settle()
    failed = job_of(job)
    assert (failed.state, failed.reason_code, failed.restarts_used) == (State.FAILED, "learner_failed", 1)
    assert "Learner 0" in failed.reason_message
    assert "exited with code 3" in failed.reason_message
    assert used(world.tenant) == 0


def test_learners_that_run_again_after_a_failure_are_an_event_and_those_of_a_resume_are_not(
    world: World,
) -> None:
    job = world.running(max_restarts=3)
    assert not job.events.filter(code=EventCode.LEARNER_RESTARTED).exists()
    world.exit(job, 3)
    world.done(job)
    world.settle()
    assert job_of(job).attempt == 2
    world.report(job, phase=Phase.PROCESSING)
    world.settle()
    event = job.events.get(code=EventCode.LEARNER_RESTARTED)
    assert (event.attempt, event.reason) == (2, "learner_failed")
    assert event.message == "The learners run again after attempt 1 ended early; 1 of 3 restarts used."
    assert event.numbers == {"after_attempt": 1, "restarts_used": 1, "max_restarts": 3}
    world.request(job, Intent.HALT)
    world.settle()
    world.exit(job, 0, halted=True)
    world.done(job)
    world.settle()
    assert state(job) == State.HALTED
    job_resume(user=world.alice, job_id=job.pk)
    world.settle()
    world.report(job, phase=Phase.PROCESSING)
    world.settle()
    assert (state(job), job_of(job).attempt) == (State.PROCESSING, 3)
    assert job.events.filter(code=EventCode.LEARNER_RESTARTED).count() == 1


def test_a_restart_names_the_attempt_before_it_even_if_that_ended_before_it_was_seen_running(
    world: World,
) -> None:
    job = world.running(max_restarts=3)
    for _ in range(2):
        world.exit(job, 3)
        world.done(job)
        world.settle()
        world.elapse(10)
        world.settle()
    assert job_of(job).attempt == 3
    assert job.attempts.get(n=2).processing_at is None
    world.report(job, phase=Phase.PROCESSING)
    world.settle()
    event = job.events.get(code=EventCode.LEARNER_RESTARTED)
    assert event.message == "The learners run again after attempt 2 ended early; 2 of 3 restarts used."


def test_out_of_memory_is_named_with_its_peak(world: World) -> None:
    job = world.running()
    world.cluster.out_of_memory(gang(job), 0, peak_mib=4321)
    world.elapse(10)
    world.settle()
    assert "4321 MiB" in job_of(job).reason_message
    assert job_of(job).reason_code == "out_of_memory"


def test_out_of_memory_is_named_if_the_gang_is_removed_before_its_end_is_shown(world: World) -> None:
    """The local cluster's daemon knows why before the processes are gone, and the agent's exit code ends the job."""
    job = world.running(max_restarts=0)
    world.cluster.kill_for_memory(gang(job), 0, peak_mib=4321)
    world.exit(job, 137)
    world.report(job, phase=Phase.DONE, done_at=Now(), log_sealed=True)
    world.elapse(10)
    world.settle()
    assert state(job) == State.FAILED
    assert job_of(job).reason_code == "out_of_memory"
    assert "4321 MiB" in job_of(job).reason_message
    assert Learner.objects.get(job=job, rank=0).cluster_phase == "", "the cluster never showed its end"


def test_an_end_that_was_shown_is_not_taken_back_by_a_later_report(world: World) -> None:
    job = world.running(max_restarts=0)
    world.cluster.kill_for_memory(gang(job), 0, peak_mib=4321)
    (report,) = world.cluster.observe([gang(job)]).gangs[gang(job)].learners
    Learner.objects.filter(job=job).update(
        cluster_phase="FAILED", cluster_uid=report.uid, cluster_exit_code=137
    )
    world.exit(job, 137)
    world.report(job, phase=Phase.DONE, done_at=Now(), log_sealed=True)
    world.elapse(10)
    world.settle()
    learner = Learner.objects.get(job=job)
    assert (learner.cluster_phase, learner.cluster_exit_code) == ("FAILED", 137)


def test_the_memory_that_a_node_reports_is_kept_for_the_check_of_specs(world: World) -> None:
    a, b = world.cluster.nodes()
    world.cluster.set_node(replace(a, allocatable=replace(a.allocatable, memory_mib=16_384)))
    cycle.run()
    kept = ClusterNode.objects.order_by("name").values_list("name", "memory_mib")
    assert list(kept) == [(a.name, 16_384), (b.name, None)]
    world.cluster.set_node(replace(a, allocatable=replace(a.allocatable, memory_mib=8_192)))
    cycle.run()
    assert list(kept.all()) == [(a.name, 8_192), (b.name, None)]


def test_a_lost_node_costs_nothing_of_the_users_budget(world: World) -> None:
    job = world.running(max_restarts=0)
    node = job.attempts.get().nodes[0]
    world.report(job)
    world.cluster.node_down(node)
    world.elapse(30)
    world.settle()
    assert state(job) == State.PROCESSING, "silence of the node alone does not end a job"
    world.elapse(60)
    world.settle()
    assert state(job) == State.STOPPING
    world.elapse(70)
    world.settle()
    again = job_of(job)
    assert (again.restarts_used, again.early_ends) == (0, 1)
    assert again.state in (State.QUEUED, State.DEPLOYING)
    assert again.attempts.get(n=1).outcome == "node_lost"


@pytest.mark.parametrize(
    ("code", "halted"), [(143, False), (143, True), (0, True)], ids=["killed", "asked to leave", "saved"]
)
def test_an_evicted_program_whose_own_word_comes_first_costs_no_restart_and_keeps_its_reason(
    world: World, code: int, halted: bool
) -> None:
    job = world.running(max_restarts=0, learners=2)
    world.exit(job, code, halted=halted, rank=0)
    world.exit(job, 1, rank=1)  # it lost its peer
    world.settle()
    assert state(job) == State.PROCESSING, "the cluster has not said yet what ended it"
    world.cluster.exit(gang(job), 0, code, reason=EndReason.EVICTED, message="Evicted by a drain.")
    world.elapse(1)
    world.settle()
    assert (state(job), last_move(job).reason) == (State.STOPPING, "evicted")
    world.done(job)
    world.elapse(60)
    world.settle()
    again = job_of(job)
    assert again.state in (State.QUEUED, State.DEPLOYING)
    assert again.restarts_used == 0
    assert again.attempts.get(n=1).outcome == "learner_lost"


def test_a_killed_program_that_the_cluster_never_explains_fails_after_a_moment(world: World) -> None:
    job = world.running(max_restarts=0)
    world.exit(job, 137)
    world.settle()
    assert state(job) == State.PROCESSING
    assert job_of(job).next_reconcile_at is not None, "it is looked at again"
    world.elapse(11)
    world.settle()
    assert (state(job), last_move(job).reason) == (State.STOPPING, "learner_failed")


def test_infrastructure_failures_in_a_row_back_off(world: World) -> None:
    job = world.running()
    for _ in range(2):
        world.cluster.die(gang(job), 0, reason=EndReason.NODE_LOST)
        world.elapse(10)
        world.settle()
    queued = job_of(job)
    assert queued.state == State.QUEUED
    assert queued.early_ends >= 2
    assert queued.start_after is not None
    world.elapse(400)
    world.settle()
    assert state(job) == State.DEPLOYING


def test_a_program_that_fails_again_soon_waits_without_slots_and_in_nobodys_way(world: World) -> None:
    def fail() -> None:
        world.report(job, phase=Phase.PROCESSING)
        world.settle()
        world.exit(job, 1)
        world.done(job)
        world.settle()

    job = world.running(max_restarts=9, learners=2, slots=4)
    fail()
    assert state(job) == State.DEPLOYING, "the first restart comes at once"
    fail()
    waits = job_of(job)
    assert (waits.state, waits.restarts_used, used(world.tenant)) == (State.QUEUED, 2, 0)
    assert waits.reason_message.endswith("Restart 2 of 9 after 5 s.")
    assert waits.events.filter(to_state=State.QUEUED).last().message == waits.reason_message
    world.cluster.fail_next("nodes", ClusterBusy("restarting"))
    cycle.run()
    assert job_of(job).reason_message == waits.reason_message, "it waits for its restart, not for the cluster"
    estimate = estimate_view(waits, timezone.now())
    assert estimate is not None
    assert estimate["message"] == "Estimated after its retry time."
    other = world.submit(learners=2, slots=4)
    world.settle()
    assert (state(job), state(other)) == (State.QUEUED, State.DEPLOYING)
    world.request(other, Intent.CANCEL)
    world.elapse(10)
    world.settle()
    world.elapse(30)
    world.settle()
    assert state(job) == State.DEPLOYING
    fail()
    assert job_of(job).reason_message.endswith("Restart 3 of 9 after 10 s.")


def test_only_attempts_that_could_not_be_prepared_count_as_tries_to_prepare(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def back_off() -> None:
        world.settle()
        world.elapse(60)
        world.settle()

    for module in (stopping, observation):
        monkeypatch.setattr(module, "PREPARE_TRIES", 2)
    job = world.running(max_restarts=9)
    for _ in range(2):
        world.exit(job, 1)
        world.done(job)
        back_off()
    assert job_of(job).early_ends == 2
    for ends in (State.DEPLOYING, State.FAILED):
        world.cluster.die(gang(job), 0, reason=EndReason.NOT_PREPARED)
        world.elapse(LOOK_S)
        back_off()
        assert state(job) == ends
    assert job_of(job).reason_code == "not_prepared"
    assert job_of(job).reason_message.endswith("Tried 2 times in a row.")


def test_a_resume_grants_new_tries_to_prepare(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def not_prepared() -> None:
        world.cluster.die(gang(job), 0, reason=EndReason.NOT_PREPARED)
        world.elapse(LOOK_S)
        world.settle()

    for module in (stopping, observation):
        monkeypatch.setattr(module, "PREPARE_TRIES", 2)
    job = world.running(max_restarts=9)
    world.exit(job, 1)
    world.done(job)
    world.settle()
    not_prepared()
    assert state(job) == State.QUEUED, "it backs off"
    world.request(job, Intent.HALT)
    world.settle()
    assert state(job) == State.HALTED
    world.request(job, Intent.RUN)
    world.settle()
    not_prepared()
    assert state(job) == State.DEPLOYING, "the first try of a new row"


def test_a_cancel_ends_a_job_in_any_state(world: World) -> None:
    queued, running = world.submit(slots=8), world.submit(slots=2)
    world.settle()
    for job in (queued, running):
        world.request(job, Intent.CANCEL)
    world.settle()
    world.elapse(15)
    world.settle()
    assert {state(queued), state(running)} == {State.CANCELED}
    assert used(world.tenant) == 0
    assert not world.cluster.listing()


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


def test_time_is_up_at_the_limit_over_all_attempts(world: World) -> None:
    job = world.running(time_limit_s=200)
    world.elapse(120)
    world.settle()
    assert state(job) == State.PROCESSING
    world.elapse(81)
    world.settle()
    assert state(job) == State.STOPPING
    world.exit(job, halted=True)
    world.done(job)
    world.settle()
    assert (state(job), job_of(job).reason_code) == (State.FAILED, "time_limit")


def test_a_refused_launch_fails_with_the_clusters_sentence(world: World) -> None:
    world.cluster.fail_next(
        "launch", LaunchRefused("There is no runtime pytorch.", code=RefusalCode.IMAGE_ERROR)
    )
    job = world.submit()
    world.settle()
    failed = job_of(job)
    assert (failed.state, failed.reason_code) == (State.FAILED, "image_error")
    assert "There is no runtime pytorch." in failed.reason_message
    assert used(world.tenant) == 0


def test_what_a_failed_package_build_printed_is_the_log_of_its_job(world: World) -> None:
    """It was in the log of the node daemon alone; the link "View error" led to the job's own sentence."""
    job = world.submit(learners=2)
    world.settle()
    printed = "$ uv pip compile requirements.txt\n  × No solution found\n  ╰─▶ Because nosuch was not found\n"
    world.cluster.fail_preparation(gang(job), "Because nosuch was not found.", output=printed, line=2)
    world.elapse(LOOK_S)
    world.settle()
    failed = job_of(job)
    assert (failed.state, failed.reason_code) == (State.FAILED, "deploy_failed")
    assert (failed.reason_numbers["learner"], failed.reason_numbers["line"]) == (0, 2)
    read = logs.read_lines((job.pk, 1, 0), tail=10)
    assert [line.text for line in read.lines] == printed.splitlines()
    assert read.head is not None
    assert read.head.sealed
    assert not logs.read_lines((job.pk, 1, 1), tail=10).lines
    assert (
        job_failure.error_path(failed.reason_code, failed.reason_numbers, 1) == "/logs?learner=0&attempt=1#L2"
    )
    assert Progress.objects.get(job=job).log_bytes == len(printed.encode())
    for row in Learner.objects.filter(job=job):
        preparation_log.store(row, printed)
    assert Progress.objects.get(job=job).log_seq == 2, "of each learner once, however often it is reported"


def test_a_busy_cluster_fails_no_job(world: World) -> None:
    job = world.submit()
    for verb in ("nodes", "launch", "observe"):
        world.cluster.fail_next(verb, ClusterBusy("try later"), times=3)
        for _ in range(8):
            world.tick()
            world.elapse(6)
    world.settle()
    assert state(job) == State.DEPLOYING
    assert world.cluster.created[gang(job), 0] == 1
    world.cluster.fail_after("remove", ClusterBusy("the answer was lost"), times=2)
    world.request(job, Intent.CANCEL)
    for _ in range(6):
        world.settle()
        world.elapse(6)
    assert state(job) == State.CANCELED


def test_a_cluster_that_is_away_while_a_failed_job_stops_does_not_become_the_reason_of_its_end(
    world: World,
) -> None:
    job = world.running()
    world.exit(job, 3)
    world.settle()
    assert (state(job), job_of(job).stop_reason) == (State.STOPPING, "learner_failed")
    world.cluster.fail_next("observe", ClusterBusy("try later"), times=1)
    world.elapse(2)
    world.tick()
    assert job_of(job).reason_code == "learner_failed"
    world.elapse(10)
    world.done(job)
    world.settle()
    failed = job_of(job)
    assert (failed.state, failed.reason_code) == (State.FAILED, "learner_failed")
    assert "exited with code 3" in failed.reason_message


def test_a_lost_response_launches_nothing_twice(world: World) -> None:
    world.cluster.fail_after("launch", ClusterBusy("the answer was lost"))
    job = world.submit()
    world.settle()
    world.elapse(5)
    world.settle()
    assert world.cluster.created[gang(job), 0] == 1
    assert job.attempts.get().launched_at is not None


def test_a_waiting_job_says_why_with_numbers(world: World) -> None:
    world.submit(slots=4, learners=2)
    world.settle()
    job = world.submit(slots=2)
    world.settle()
    waiting = job_of(job)
    assert (waiting.state, waiting.reason_code) == (State.QUEUED, WaitReason.QUOTA_GPUS)
    assert {"limit", "used", "asked"} <= set(waiting.reason_numbers)
    before = job.events.filter(code=EventCode.WAITING).count()
    world.elapse(6)
    world.settle()
    assert job.events.filter(code=EventCode.WAITING).count() == before, "no event without a change"


def test_results_that_cannot_be_stored_fail_the_job(world: World) -> None:
    job = world.running()
    world.exit(job)
    world.settle()
    assert state(job) == State.STORING
    world.cluster.exit(gang(job), 0, 0)
    world.elapse(5)
    world.settle()
    assert (state(job), job_of(job).reason_code) == (State.FAILED, "results_not_stored")


def test_a_shipper_that_was_given_up_leaves_its_last_words_as_the_reason(world: World) -> None:
    job = world.running()
    world.exit(job)
    world.settle()
    why = "The shipper keeps dying: no memory left."
    world.cluster.exit(gang(job), 0, 0, reason=EndReason.SHIPPER_FAILED, message=why)
    world.elapse(5)
    world.settle()
    failed = job_of(job)
    assert (failed.state, failed.reason_code) == (State.FAILED, "results_not_stored")
    assert failed.reason_message.endswith("could not be stored: The shipper keeps dying: no memory left.")
    learner = Learner.objects.get(job=job)
    assert (learner.cluster_phase, learner.cluster_exit_code) == ("SUCCEEDED", 0)


def test_lost_nodes_do_not_make_one_early_death_of_the_agents_the_programs_doing(world: World) -> None:
    job = world.running(max_restarts=0)

    def again(reason: EndReason) -> tuple[State, int, int]:
        world.cluster.die(gang(job), 0, reason=reason)
        world.elapse(10)
        world.settle()
        world.elapse(400)
        world.settle()
        if state(job) == State.DEPLOYING:
            world.report(job, phase=Phase.PROCESSING)
            world.settle()
        return state(job), job_of(job).early_ends, job_of(job).agent_losses

    for lost in range(1, 5):
        assert again(EndReason.NODE_LOST) == (State.PROCESSING, lost, 0)
    for lost in range(1, 4):
        assert again(EndReason.LAUNCHER_LOST) == (State.PROCESSING, 4 + lost, lost)
    assert again(EndReason.NODE_LOST) == (State.PROCESSING, 8, 0)
    for _ in range(3):
        again(EndReason.LAUNCHER_LOST)
    assert again(EndReason.LAUNCHER_LOST)[0] == State.FAILED


def test_a_gang_that_was_removed_from_outside_is_started_again(world: World) -> None:
    job = world.running()
    world.cluster.vanish(gang(job))
    world.elapse(6)
    world.settle()
    assert (state(job), job_of(job).attempt, job_of(job).restarts_used) == (State.DEPLOYING, 2, 0)


def test_a_suspended_tenants_jobs_wait_and_say_so(world: World) -> None:
    world.tenant.__class__.objects.filter(pk=world.tenant.pk).update(state="suspended")
    job = world.submit()
    world.settle()
    assert (state(job), job_of(job).reason_code) == (State.QUEUED, WaitReason.TENANT_SUSPENDED)
