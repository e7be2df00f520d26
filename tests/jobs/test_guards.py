"""The database refuses by itself what no program may write."""

from __future__ import annotations

import pytest
from django.db import DatabaseError, IntegrityError, connection, transaction

from jobs.models import Attempt, Job, JobEvent
from jobs.states import TRANSITIONS, State, StopReason
from tenants.models import Quota, Tenant
from tests import factories

pytestmark = pytest.mark.django_db


def test_database_knows_the_same_moves_as_the_program() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT from_state, to_state FROM jobs_transition")
        stored = set(cursor.fetchall())
    assert stored == {
        (source.value, target.value) for source, targets in TRANSITIONS.items() for target in targets
    }


@pytest.mark.parametrize("source", list(State))
@pytest.mark.parametrize("target", list(State))
def test_only_legal_moves_pass(source: State, target: State) -> None:
    job = factories.job(state=source)
    stop_reason = StopReason.NODE_LOST if target == State.STOPPING else ""
    move = Job.objects.filter(pk=job.pk)
    if source == target or target in TRANSITIONS[source]:
        assert move.update(state=target, stop_reason=stop_reason) == 1
    else:
        with pytest.raises(IntegrityError, match=f"from {source} to {target}"), transaction.atomic():
            move.update(state=target, stop_reason=stop_reason)


@pytest.mark.parametrize("reason", list(StopReason))
def test_a_storing_job_stops_only_for_a_cancel_or_a_lost_node(reason: StopReason) -> None:
    job = factories.job(state=State.STORING)
    move = Job.objects.filter(pk=job.pk)
    if reason in (StopReason.CANCEL_REQUESTED, StopReason.NODE_LOST):
        assert move.update(state=State.STOPPING, stop_reason=reason) == 1
    else:
        with pytest.raises(IntegrityError, match="is storing its results"), transaction.atomic():
            move.update(state=State.STOPPING, stop_reason=reason)


def test_use_of_a_quota_may_not_grow_above_its_limit() -> None:
    share = factories.quota(factories.tenant(quotas={}), "a100", limit=4, used=4)
    with pytest.raises(IntegrityError, match="would exceed the limit of 4"), transaction.atomic():
        Quota.objects.filter(pk=share.pk).update(used=5)


def test_a_limit_may_be_lowered_below_use_and_use_may_then_shrink() -> None:
    share = factories.quota(factories.tenant(quotas={}), "a100", limit=4, used=4)
    assert Quota.objects.filter(pk=share.pk).update(limit=1) == 1
    assert Quota.objects.filter(pk=share.pk).update(used=3) == 1
    with pytest.raises(IntegrityError), transaction.atomic():
        Quota.objects.filter(pk=share.pk).update(used=4)


def test_live_jobs_may_not_grow_above_the_tenants_limit() -> None:
    tenant = factories.tenant(jobs_limit=1)
    assert Tenant.objects.filter(pk=tenant.pk).update(jobs_used=1) == 1
    with pytest.raises(IntegrityError, match="2 live jobs would exceed the limit of 1"), transaction.atomic():
        Tenant.objects.filter(pk=tenant.pk).update(jobs_used=2)


def test_history_cannot_be_rewritten() -> None:
    job = factories.job()
    with pytest.raises(IntegrityError, match="append-only"), transaction.atomic():
        JobEvent.objects.filter(job=job).update(message="it never happened")
    with pytest.raises(IntegrityError, match="append-only"), transaction.atomic():
        JobEvent.objects.filter(job=job).delete()


def test_history_survives_the_removal_of_its_actor() -> None:
    job = factories.job()
    JobEvent.objects.filter(job=job).update(actor=None)
    assert JobEvent.objects.get(job=job).actor is None


def test_a_closed_attempt_never_changes() -> None:
    attempt = factories.job(state=State.COMPLETED).attempts.get()
    with pytest.raises(IntegrityError, match="closed and never changes"), transaction.atomic():
        Attempt.objects.filter(pk=attempt.pk).update(outcome="other")


def test_a_job_has_at_most_one_live_attempt() -> None:
    job = factories.job(state=State.PROCESSING)
    with pytest.raises(IntegrityError, match="attempt_one_live"), transaction.atomic():
        factories.add_attempt(job, 2, held=True)


def test_an_unsettled_job_cannot_be_forgotten() -> None:
    job = factories.job()
    with pytest.raises(DatabaseError, match="job_not_forgotten"), transaction.atomic():
        Job.objects.filter(pk=job.pk).update(next_reconcile_at=None)
