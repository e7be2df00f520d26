"""SQL of our own writes and reads rows just as the ORM does."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import IntegrityError, connection, models, transaction
from django.db.models.functions import Now

from jobs.models import Job, JobEvent, Progress
from jobs.states import EventCode
from tenants.models import User
from tenants.rows import Rows, insert
from tests import factories

pytestmark = pytest.mark.django_db


def values(row: models.Model) -> dict[str, Any]:
    return {field.attname: getattr(row, field.attname) for field in row._meta.concrete_fields}


def waiting() -> Job:
    """A job that was not saved, with a value of every kind: text, number, list, object, null, expression, default."""
    saved = factories.job(tags=["vision"], time_limit_s=60, reason_numbers={"position": 1, "of": None})
    job = Job(**{**values(saved), "id": "0" * 12, "next_reconcile_at": Now() + timedelta(seconds=30)})
    job.lease_owner, job.last_halt = "it's \\ 100 %s", {"step": 7}
    return job


def test_inserted_rows_equal_their_instances() -> None:
    job = waiting()
    event = JobEvent(job=job, tenant=job.tenant, n=1, code=EventCode.SUBMITTED, numbers={"a": [1.5, "ü"]})
    insert(job, Progress(job=job), event)
    assert event.pk
    for row in (job, job.progress, event):
        assert values(row) == values(type(row)._default_manager.get(pk=row.pk))
        assert not row._state.adding
    assert job.next_reconcile_at is not None
    assert job.next_reconcile_at - event.at == timedelta(seconds=30)
    job.save()  # an update, not a second row


def test_a_row_that_breaks_a_rule_takes_the_others_with_it() -> None:
    job = waiting()
    job.learners = 0
    with pytest.raises(IntegrityError), transaction.atomic():
        insert(job, Progress(job=job))
    assert not Job.objects.filter(pk=job.pk).exists()


def test_rows_read_are_those_that_the_orm_reads() -> None:
    user = factories.user("alice")
    user.preferences = {"theme": "dark", "saved": [1, None]}
    user.save()
    known = Rows(User, "u")
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {known.columns} FROM tenants_user u WHERE u.id = %s", [user.pk])
        read = known.made(cursor.fetchone())
    assert values(read) == values(User.objects.get(pk=user.pk))
    assert read == user
