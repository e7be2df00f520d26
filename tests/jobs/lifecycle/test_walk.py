"""One job from its submission to each of its ends, over a cluster in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from gpu_scheduler.clusters.base import ClusterBusy, EndReason, LaunchRefused, Observation, RefusalCode
from gpu_scheduler.model import WaitReason
from jobs.lifecycle import preparation_log
from jobs.models import Learner, Progress
from jobs.selectors import logs
from jobs.states import EventCode, Intent, Phase, State
from portal.pages import job_failure
from tests import factories
from tests.jobs.lifecycle.world import LOOK_S, World, gang, job_of, moves, state, used

pytestmark = pytest.mark.django_db


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


def test_a_suspended_tenants_jobs_wait_and_say_so(world: World) -> None:
    world.tenant.__class__.objects.filter(pk=world.tenant.pk).update(state="suspended")
    job = world.submit()
    world.settle()
    assert (state(job), job_of(job).reason_code) == (State.QUEUED, WaitReason.TENANT_SUSPENDED)
