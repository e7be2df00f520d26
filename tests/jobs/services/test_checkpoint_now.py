"""A checkpoint while the program runs: who may request one, when, and what a request that waits for its save means."""

from __future__ import annotations

import pytest

from jobs.errors import IllegalTransition, JobForbidden, SaveNotSupported
from jobs.ingest.intents import session_states
from jobs.models import Attempt, Job, Learner
from jobs.selectors.checkpoints import SaveRequest, save_request
from jobs.services import job_checkpoint
from jobs.states import EventCode, Intent, State
from tenants.models import AuditEntry
from tests import factories
from tests.jobs.conftest import People

pytestmark = pytest.mark.django_db


@pytest.fixture
def running(people: People) -> Job:
    """Of two learners, of which one asks whether to save."""
    job = factories.job(owner=people.alice, state=State.PROCESSING, learners=2)
    Learner.objects.filter(job=job, rank=0).update(checks_save=True)
    return job


def requests(job: Job) -> list[str]:
    return list(job.events.filter(code=EventCode.CHECKPOINT_REQUESTED).values_list("message", flat=True))


def test_a_request_reaches_every_learner_and_changes_nothing_else(people: People, running: Job) -> None:
    before = session_states(learners(running))
    answer = job_checkpoint(user=people.alice, job_id=running.pk)
    assert (answer.state, answer.intent, answer.intent_gen) == (
        State.PROCESSING,
        Intent.RUN,
        running.intent_gen,
    )
    assert requests(running) == ["Checkpoint requested by alice"]
    after = session_states(learners(running))
    assert {state.intent.save for state in before.values()} == {0}
    assert {(state.intent.intent, state.intent.save) for state in after.values()} == {("RUN", 1)}


def learners(job: Job, attempt: int = 1) -> list[int]:
    return list(Learner.objects.filter(job=job, attempt=attempt).values_list("pk", flat=True))


def test_a_request_that_waits_for_its_save_is_not_repeated(people: People, running: Job) -> None:
    job_checkpoint(user=people.alice, job_id=running.pk)
    assert save_request(running).waits_since is not None
    job_checkpoint(user=people.dave, job_id=running.pk)
    assert len(requests(running)) == 1

    factories.checkpoint(running)
    assert save_request(running).waits_since is not None, "it may have begun before the request"
    Learner.objects.filter(job=running, rank=0).update(saved_for=1)
    assert save_request(running) == SaveRequest(supported=True, waits_since=None)
    job_checkpoint(user=people.dave, job_id=running.pk)
    assert requests(running) == ["Checkpoint requested by alice", "Checkpoint requested by dave"]
    assert Attempt.objects.get(job=running).saves_requested == 2


def test_a_program_that_does_not_ask_is_not_asked(people: People, running: Job) -> None:
    Learner.objects.filter(job=running).update(checks_save=False)
    with pytest.raises(SaveNotSupported) as caught:
        job_checkpoint(user=people.alice, job_id=running.pk)
    assert "training.checkpoint_due()" in caught.value.message
    assert caught.value.details["allowed_actions"] == ["halt", "checkpoint", "cancel", "clone", "edit"]
    assert requests(running) == []


@pytest.mark.parametrize(
    ("state", "intent"),
    [(state, Intent.RUN) for state in State if state != State.PROCESSING]
    + [(State.PROCESSING, Intent.HALT), (State.PROCESSING, Intent.CANCEL)],
)
def test_a_job_that_does_not_run_or_is_to_end_is_refused(
    people: People, state: State, intent: Intent
) -> None:
    fields = {"stop_reason": "preempted"} if state == State.STOPPING else {}
    job = factories.job(owner=people.alice, state=state, intent=intent, **fields)
    Learner.objects.filter(job=job).update(checks_save=True)
    with pytest.raises(IllegalTransition, match="cannot be asked to save"):
        job_checkpoint(user=people.alice, job_id=job.pk)
    assert requests(job) == []


def test_an_attempt_does_not_inherit_the_request_of_the_one_before(people: People, running: Job) -> None:
    job_checkpoint(user=people.alice, job_id=running.pk)
    Attempt.objects.filter(job=running).update(held=False, closed_at="2026-01-01T00:00:00Z")
    Job.objects.filter(pk=running.pk).update(attempt=2)
    running.refresh_from_db()
    factories.add_attempt(running, 2, held=True)
    assert save_request(running) == SaveRequest(supported=False, waits_since=None)
    assert {state.intent.save for state in session_states(learners(running, attempt=2)).values()} == {0}


def test_others_may_not_and_an_admin_is_recorded(people: People, running: Job) -> None:
    with pytest.raises(JobForbidden):
        job_checkpoint(user=people.carol, job_id=running.pk)
    job_checkpoint(user=people.admin, job_id=running.pk)
    assert AuditEntry.objects.filter(action="job.checkpoint", target=running.pk).count() == 1
