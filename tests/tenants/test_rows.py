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
from tenants.rows import Rows, insert, insert_all
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


def test_a_field_that_is_left_out_is_read_when_it_is_asked_for() -> None:
    job = factories.job(tags=["vision"], reason_numbers={"position": 1})
    known = Rows(Job, "j", without={"spec_text"})
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {known.columns} FROM jobs_job j WHERE j.id = %s", [job.pk])
        read = known.made(cursor.fetchone())
    assert "spec_text" not in known.columns
    assert read.get_deferred_fields() == {"spec_text"}
    assert values(read) == values(Job.objects.get(pk=job.pk))


def test_rows_inserted_together_equal_those_of_the_orm() -> None:
    job = factories.job()
    first = job.events.latest("n").n
    said = [
        {"code": EventCode.MOVED, "from_state": "QUEUED", "numbers": {"a": [1.5, "ü"], "b": None}},
        {"code": EventCode.CONDITION, "message": "it's \\ 100 %s", "actor_id": job.owner_id},
    ]
    ours = [JobEvent(job=job, tenant=job.tenant, n=first + n, **one) for n, one in enumerate(said, 1)]
    insert_all(ours)
    JobEvent.objects.bulk_create(
        JobEvent(job=job, tenant=job.tenant, n=first + n, **one) for n, one in enumerate(said, 3)
    )

    *written, third, fourth = job.events.filter(n__gt=first).order_by("n")
    for mine, orm in zip(written, (third, fourth), strict=True):
        differ = {name for name, value in values(mine).items() if value != values(orm)[name]}
        assert differ <= {"id", "n", "at"}
    assert all(one.at is not None for one in written)


def test_no_rows_are_inserted_without_a_statement(django_assert_num_queries: Any) -> None:
    with django_assert_num_queries(0):
        insert_all([])
