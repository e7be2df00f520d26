"""What fails is tried again, or not: by its program or by a machine, at whose cost, after what wait."""

from __future__ import annotations

from dataclasses import replace

import pytest
from django.db.models.functions import Now
from django.utils import timezone

from gpu_scheduler.clusters.base import ClusterBusy, EndReason
from jobs.lifecycle import cycle, observation, stopping
from jobs.models import ClusterNode, Learner
from jobs.selectors.queue import estimate_view
from jobs.services import job_resume
from jobs.states import EventCode, Intent, Phase, State
from tests.jobs.lifecycle.world import LOOK_S, World, gang, job_of, last_move, state, used

pytestmark = pytest.mark.django_db


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
