"""Halt, resume and cancel: what is written, what is answered again, what is refused."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest
from django.db import connection, transaction
from django.utils import timezone

from jobs import failpoints
from jobs.drops import after_commit
from jobs.errors import (
    CheckpointNotFound,
    IllegalTransition,
    JobForbidden,
    JobNotFound,
    TenantSuspended,
    TimeLimitUsedUp,
)
from jobs.models import Attempt, Checkpoint, Job, JobEvent, Learner, Progress
from jobs.selectors.jobs import job_get
from jobs.selectors.serializers import JobSerializer
from jobs.services.intents import job_cancel, job_halt, job_resume
from jobs.states import FINAL, EventCode, Intent, State
from tenants.models import Tenant
from tests import factories
from tests.jobs.conftest import People
from tests.jobs.lock_order import one_lock_order

pytestmark = pytest.mark.django_db
LIVE = [state for state in State if state not in FINAL]


def requests(job: Job) -> list[JobEvent]:
    return list(job.events.filter(code=EventCode.REQUESTED).order_by("n"))


@pytest.mark.parametrize("state", [s for s in LIVE if s not in (State.STORING, State.HALTED)])
def test_halt_writes_the_intent_and_leaves_the_state_alone(people: People, state: State) -> None:
    fields = {"stop_reason": "preempted"} if state == State.STOPPING else {}
    job = factories.job(owner=people.alice, state=state, settled=state == State.HALTED, **fields)
    answer = job_halt(user=people.alice, job_id=job.pk)
    assert (answer.state, answer.intent, answer.intent_gen) == (state, Intent.HALT, 2)
    assert answer.settled is False
    assert answer.next_reconcile_at is not None
    (event,) = requests(job)
    assert event.numbers == {"intent": "HALT", "generation": 2}
    assert event.actor == people.alice


def test_a_second_halt_is_answered_again_and_changes_nothing(people: People) -> None:
    job = factories.job(owner=people.alice, state=State.PROCESSING)
    first = job_halt(user=people.alice, job_id=job.pk)
    second = job_halt(user=people.dave, job_id=job.pk)
    assert (second.intent_gen, second.event_seq) == (first.intent_gen, first.event_seq)
    assert len(requests(job)) == 1


def test_halting_a_halted_job_is_answered_again(people: People) -> None:
    job = factories.job(owner=people.alice, state=State.HALTED, intent=Intent.HALT)
    assert job_halt(user=people.alice, job_id=job.pk).event_seq == 1


@pytest.mark.parametrize("state", sorted([*FINAL, State.STORING]))
def test_halt_of_an_ending_or_ended_job_names_what_is_possible(people: People, state: State) -> None:
    job = factories.job(owner=people.alice, state=state)
    with pytest.raises(IllegalTransition) as caught:
        job_halt(user=people.alice, job_id=job.pk)
    assert caught.value.details["state"] == state
    assert "clone" in caught.value.details["allowed_actions"]
    assert "halt" not in caught.value.details["allowed_actions"]
    assert not requests(job)


def test_cancel_outranks_a_halt_and_cannot_be_taken_back(people: People) -> None:
    job = factories.job(
        owner=people.alice, state=State.STOPPING, intent=Intent.HALT, stop_reason="halt_requested"
    )
    assert job_cancel(user=people.alice, job_id=job.pk).intent == Intent.CANCEL
    for verb in (job_halt, job_resume):
        with pytest.raises(IllegalTransition):
            verb(user=people.alice, job_id=job.pk)


def test_canceling_twice_is_answered_again_even_when_it_is_done(people: People) -> None:
    job = factories.job(owner=people.alice, state=State.CANCELED, intent=Intent.CANCEL)
    assert job_cancel(user=people.alice, job_id=job.pk).state == State.CANCELED


@pytest.mark.parametrize("state", [State.COMPLETED, State.FAILED])
def test_an_ended_job_cannot_be_canceled_or_resumed(people: People, state: State) -> None:
    job = factories.job(owner=people.alice, state=state)
    for verb in (job_cancel, job_resume):
        with pytest.raises(IllegalTransition):
            verb(user=people.alice, job_id=job.pk)


def test_resume_of_a_halted_job_requests_to_run_from_the_chosen_checkpoint(people: People) -> None:
    job = factories.job(owner=people.alice, state=State.HALTED, intent=Intent.HALT, settled=True)
    first, _ = factories.checkpoint(job, step=10), factories.checkpoint(job, step=20)
    answer = job_resume(user=people.alice, job_id=job.pk, checkpoint=1)
    assert (answer.intent, answer.resume_from, answer.settled) == (Intent.RUN, first, False)


@pytest.mark.parametrize(
    ("first", "last", "words"),
    [(1, 42, "42 steps are"), (0, 42, "43 steps are"), (0, 0, "1 step is"), (None, 42, "42 steps are")],
)
def test_a_resume_without_a_checkpoint_says_how_many_steps_are_repeated(
    people: People, first: int | None, last: int, words: str
) -> None:
    """Of a program that counts from 0, one more than its last step says."""
    job = factories.job(owner=people.alice, state=State.HALTED, intent=Intent.HALT, attempt=1)
    Progress.objects.filter(job=job).update(step=last)
    Learner.objects.filter(job=job).update(first_step=first, last_step=last)
    job_resume(user=people.alice, job_id=job.pk)
    assert f"({words} repeated:" in requests(job)[0].message


def test_resume_while_halting_lets_the_halt_complete_first(people: People) -> None:
    job = factories.job(
        owner=people.alice, state=State.STOPPING, intent=Intent.HALT, stop_reason="halt_requested"
    )
    Progress.objects.filter(job=job).update(step=42)
    answer = job_resume(user=people.alice, job_id=job.pk)
    assert (answer.state, answer.intent) == (State.STOPPING, Intent.RUN)
    said = requests(job)[0].message
    assert said.startswith("Resume, as soon as the halt is complete"), "its checkpoint may be on its way"


@pytest.mark.parametrize("state", [State.QUEUED, State.PROCESSING])
def test_resume_of_a_job_that_runs_anyway_changes_nothing(people: People, state: State) -> None:
    job = factories.job(owner=people.alice, state=state)
    assert job_resume(user=people.alice, job_id=job.pk).event_seq == 1


def test_a_job_that_waits_to_go_on_takes_another_checkpoint(people: People) -> None:
    job = factories.job(owner=people.alice, state=State.HALTED, intent=Intent.HALT, settled=True)
    first, second = factories.checkpoint(job, step=10), factories.checkpoint(job, step=20)
    assert job_resume(user=people.alice, job_id=job.pk, checkpoint=1).resume_from == first
    assert job_resume(user=people.alice, job_id=job.pk, checkpoint=2).resume_from == second
    assert job_resume(user=people.alice, job_id=job.pk, checkpoint=2).event_seq == 3
    assert job_resume(user=people.alice, job_id=job.pk).resume_from == second
    assert [event.message.split(" requested")[0] for event in requests(job)] == [
        "Resume from checkpoint 1",
        "Resume from checkpoint 2",
    ]


def test_going_back_again_counts_for_a_job_that_waits_after_it_had_begun_there(people: People) -> None:
    job = factories.job(owner=people.alice, state=State.HALTED, intent=Intent.HALT, settled=True)
    first = factories.checkpoint(job, step=10)
    job_resume(user=people.alice, job_id=job.pk, checkpoint=1)
    Attempt.objects.create(
        job=job, tenant=people.vision, n=2, cluster="local", slot_type="cpu", slots=1, learners=1, nodes=["a"],
        resume_from=first, held=False, closed_at=timezone.now(),
    )  # fmt: skip
    Job.objects.filter(pk=job.pk).update(state=State.QUEUED, attempt=2)
    assert job_resume(user=people.alice, job_id=job.pk, checkpoint=1).resume_after == 2
    assert len(requests(job)) == 2
    job_resume(user=people.alice, job_id=job.pk, checkpoint=1)
    assert len(requests(job)) == 2, "requested twice, it is one request"


def test_a_job_that_runs_is_not_resumed_from_another_checkpoint(people: People) -> None:
    job = factories.job(owner=people.alice, state=State.PROCESSING)
    first, _ = factories.checkpoint(job, step=10), factories.checkpoint(job, step=20)
    job.attempts.update(resume_from=first)
    assert job_resume(user=people.alice, job_id=job.pk, checkpoint=1).event_seq == 1
    with pytest.raises(IllegalTransition):
        job_resume(user=people.alice, job_id=job.pk, checkpoint=2)
    with pytest.raises(CheckpointNotFound):
        job_resume(user=people.alice, job_id=job.pk, checkpoint=99)
    assert requests(job) == []


def test_resume_from_a_missing_or_corrupt_checkpoint_names_the_valid_ones(people: People) -> None:
    job = factories.job(owner=people.alice, state=State.HALTED, intent=Intent.HALT)
    factories.checkpoint(job, step=10)
    factories.checkpoint(job, step=20, state="CORRUPT")
    for n in (2, 7):
        with pytest.raises(CheckpointNotFound) as caught:
            job_resume(user=people.alice, job_id=job.pk, checkpoint=n)
        assert caught.value.details["checkpoints"] == [1]
    assert not requests(job)


def test_a_suspended_tenant_may_halt_but_not_resume(people: People) -> None:
    Tenant.objects.filter(pk=people.vision.pk).update(state="suspended")
    running = factories.job(owner=people.alice, state=State.PROCESSING)
    halted = factories.job(owner=people.alice, state=State.HALTED, intent=Intent.HALT)
    assert job_halt(user=people.alice, job_id=running.pk).intent == Intent.HALT
    with pytest.raises(TenantSuspended):
        job_resume(user=people.alice, job_id=halted.pk)


@pytest.mark.parametrize("verb", [job_halt, job_resume, job_cancel])
def test_a_stranger_gets_the_error_of_a_missing_job_and_a_viewer_may_not(
    people: People, verb: object
) -> None:
    job = factories.job(owner=people.alice, state=State.PROCESSING)
    with pytest.raises(JobNotFound) as foreign:
        verb(user=people.bob, job_id=job.pk)  # type: ignore[operator]
    with pytest.raises(JobNotFound) as missing:
        verb(user=people.bob, job_id="0" * 12)  # type: ignore[operator]
    assert foreign.value.message == missing.value.message
    with pytest.raises(JobForbidden, match="alice"):
        verb(user=people.carol, job_id=job.pk)  # type: ignore[operator]


def test_a_manager_and_a_platform_admin_may_halt_what_is_not_theirs(people: People) -> None:
    for person in (people.dave, people.admin):
        job = factories.job(owner=people.alice, state=State.PROCESSING)
        assert job_halt(user=person, job_id=job.pk).intent_by == person


@pytest.mark.django_db(transaction=True)
def test_the_checkpoint_to_resume_from_is_not_dropped_by_one_that_comes_during_the_halt(
    people: People,
) -> None:
    spec = factories.spec(checkpoint={"keep": 1})
    job = factories.job(
        owner=people.alice, state=State.STOPPING, intent=Intent.HALT, stop_reason="halt_requested", spec=spec
    )
    for step in (10, 20):
        factories.checkpoint(job, step=step)

    def newer_comes() -> None:
        with transaction.atomic():
            after_commit(job.checkpoints.get(step=20))
        connection.close()

    dropping = threading.Thread(target=newer_comes)

    def meanwhile(point: str) -> None:
        if point == "intent.after_row":
            dropping.start()
            dropping.join(1)

    failpoints.arm(meanwhile)
    try:
        with one_lock_order() as locked:
            job_resume(user=people.alice, job_id=job.pk, checkpoint=1)
    finally:
        failpoints.arm(None)
    dropping.join()
    assert locked >= {"jobs_checkpoint", "jobs_job"}
    job.refresh_from_db()
    assert job.resume_from is not None
    assert (job.resume_from.n, job.resume_from.state) == (1, Checkpoint.State.COMMITTED)


@pytest.mark.parametrize("intent", [Intent.RUN, Intent.HALT])
@pytest.mark.parametrize(
    "reason", ["time_limit", "image_error", "data_error", "deploy_failed", "learner_failed"]
)
def test_no_request_is_accepted_that_the_coming_failure_would_drop(
    people: People, reason: str, intent: Intent
) -> None:
    job = factories.job(owner=people.alice, state=State.STOPPING, stop_reason=reason, intent=intent)
    verbs = [job_resume, job_halt] if intent == Intent.RUN else [job_resume]
    for verb in verbs:
        with pytest.raises(
            IllegalTransition,
            match=r"it will end as failed\. Actions possible in this state: cancel, clone, edit",
        ) as caught:
            verb(user=people.alice, job_id=job.pk)
        assert caught.value.code == "illegal_transition"
        assert caught.value.details["allowed_actions"] == ["cancel", "clone", "edit"]
    if intent == Intent.HALT:
        assert job_halt(user=people.alice, job_id=job.pk).event_seq == 1, (
            "a repeated request gets the same response"
        )
    assert not requests(job)
    assert JobSerializer.render(job_get(user=people.alice, job_id=job.pk))["allowed_actions"] == [
        "cancel",
        "clone",
        "edit",
    ]
    assert job_cancel(user=people.alice, job_id=job.pk).intent == Intent.CANCEL


def test_a_failure_with_a_restart_left_can_still_be_halted(people: People) -> None:
    job = factories.job(
        owner=people.alice, state=State.STOPPING, stop_reason="learner_failed", max_restarts=1
    )
    assert job_halt(user=people.alice, job_id=job.pk).intent == Intent.HALT


def test_a_resume_without_time_left_says_what_to_do_and_changes_nothing(people: People) -> None:
    job = factories.job(
        owner=people.alice, state=State.HALTED, intent=Intent.HALT, time_limit_s=5, running_s=9.2
    )
    saved = factories.checkpoint(job)
    with pytest.raises(TimeLimitUsedUp) as caught:
        job_resume(user=people.alice, job_id=job.pk)
    assert caught.value.message == (
        "It has run for 9.2 s; its time limit is 5 s. A resume would have no time left. "
        f"Clone it with a larger time_limit; the clone can start from checkpoint {saved.n}."
    )
    assert caught.value.details["allowed_actions"] == ["cancel", "clone", "edit"]
    assert not requests(job)
    assert "resume" not in JobSerializer.render(job_get(user=people.alice, job_id=job.pk))["allowed_actions"]
    Job.objects.filter(pk=job.pk).update(running_s=4)
    assert "resume" in JobSerializer.render(job_get(user=people.alice, job_id=job.pk))["allowed_actions"]
    assert job_resume(user=people.alice, job_id=job.pk).intent == Intent.RUN


def test_a_resume_while_halting_counts_what_the_attempt_has_run(people: People) -> None:
    job = factories.job(
        owner=people.alice, state=State.STOPPING, intent=Intent.HALT, stop_reason="halt_requested",
        time_limit_s=60, running_s=50,
    )  # fmt: skip
    Attempt.objects.filter(job=job).update(processing_at=timezone.now() - timedelta(seconds=30))
    with pytest.raises(TimeLimitUsedUp):
        job_resume(user=people.alice, job_id=job.pk)
    Attempt.objects.filter(job=job).update(processing_at=timezone.now())
    assert job_resume(user=people.alice, job_id=job.pk).intent == Intent.RUN
