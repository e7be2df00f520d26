"""What passes keep of the queue from one to the next: always what the rows say, and no row is read twice in vain."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from django.db.models import F
from django.db.models.functions import Now

from gpu_scheduler import record
from jobs.models import Job
from jobs.selectors import kept_rows
from jobs.selectors.kept_rows import SHOWN, KeptRows
from jobs.selectors.snapshot import database_now, snapshot
from jobs.states import Intent, State
from tenants.models import Tenant, User
from tests import factories

Change = Callable[[Job], Any]


def written(**fields: Any) -> Change:
    return lambda job: Job.objects.filter(pk=job.pk).update(**fields)


CHANGES: dict[str, Change] = {
    "priority": written(priority_rank=3),
    "size": written(learners=2, slots=2),
    "place in the queue": written(queued_at=Now() + timedelta(hours=1)),
    "measured": written(measured={"init_batch": 8}),
    "project": written(project="vision"),
    "generation": written(intent_gen=F("intent_gen") + 1),
    "reason": written(reason_code="QUOTA_GPUS", reason_message="of 8", reason_numbers={"position": 3}),
    "halted": written(intent=Intent.HALT),
    "backs off": written(start_after=Now() + timedelta(hours=1)),
    "started": written(state=State.DEPLOYING),
    "renamed owner": lambda job: User.objects.filter(pk=job.owner_id).update(username="renamed"),
    "renamed tenant": lambda job: Tenant.objects.filter(pk=job.tenant_id).update(slug="renamed"),
    "deleted": written(deleted_at=Now()),
}


def kept_rows_agree(kept: KeptRows) -> None:
    fresh = snapshot(nodes=[], now=database_now())
    seen = snapshot(nodes=[], now=fresh.now, read=kept.read)
    assert seen == fresh
    assert record.written(seen, kept.texts(seen.waiting)) == record.written(fresh)
    rows = Job.objects.filter(pk__in=[gang.job for gang in fresh.waiting]).values_list("pk", *SHOWN)
    assert kept.shown == {job: tuple(values) for job, *values in rows}


@pytest.fixture
def queue(db: None) -> list[Job]:
    return [factories.job() for _ in range(3)]


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_whatever_changes_is_read_again(queue: list[Job], change: Change) -> None:
    kept = KeptRows()
    kept_rows_agree(kept)
    before = kept.read({})
    change(queue[1])
    kept_rows_agree(kept)
    changed = [gang for gang in kept.read({}) if gang not in before]
    gone = {gang.job for gang in before} - {gang.job for gang in kept.read({})}
    assert {gang.job for gang in changed} | gone <= {queue[1].pk}


def test_each_of_several_versions_by_one_transaction_is_read(queue: list[Job]) -> None:
    kept = KeptRows()
    for rank in (2, 3, 1):
        kept_rows_agree(kept)
        written(priority_rank=rank)(queue[1])
    kept_rows_agree(kept)


def test_only_what_changed_is_read_again(queue: list[Job], monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    original = kept_rows.gang_of_row

    def gang_of_row(job: str, *values: Any) -> Any:
        read.append(job)
        return original(job, *values)

    texts: list[str] = []
    monkeypatch.setattr(kept_rows, "gang_of_row", gang_of_row)
    monkeypatch.setattr(kept_rows, "gang_text", lambda gang: texts.append(gang.job) or gang.job)
    kept = KeptRows()

    def read_again() -> list[str]:
        read.clear()
        texts.clear()
        kept.texts(kept.read({}))
        assert sorted(texts) == sorted(read)
        return sorted(read)

    assert read_again() == sorted(job.pk for job in queue)
    written(priority_rank=3)(queue[1])
    fourth = factories.job()
    assert read_again() == sorted([queue[1].pk, fourth.pk])
    assert read_again() == []


def test_a_row_that_cannot_be_read_costs_only_its_own_job_its_turn_until_it_can(
    queue: list[Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_rows, "TOGETHER", 1)
    resources = Job.objects.values_list("resources", flat=True).get(pk=queue[1].pk)
    written(resources="[]")(queue[1])
    kept = KeptRows()
    for _ in range(2):
        broken: dict[str, Exception] = {}
        assert [gang.job for gang in kept.read(broken)] == [queue[0].pk, queue[2].pk]
        assert set(broken) == {queue[1].pk}
    written(resources=resources)(queue[1])
    assert [gang.job for gang in kept.read({})] == [job.pk for job in queue]


@pytest.mark.django_db(transaction=True)
def test_a_row_at_a_place_that_is_used_again_is_read_again() -> None:
    """What a transaction that was rolled back had written is removed at once, also while others read."""
    vacuum()
    job, kept = factories.job(), KeptRows()
    with transaction.atomic():
        Job.objects.filter(pk=job.pk).update(slots=2)
        kept.read({})
        first = place(job)
        transaction.set_rollback(True)
    vacuum()
    Job.objects.filter(pk=job.pk).update(slots=3)
    assert place(job) == first
    assert [gang.slots for gang in kept.read({})] == [3]


def vacuum() -> None:
    with connection.cursor() as cursor:
        cursor.execute("VACUUM (INDEX_CLEANUP ON) jobs_job")


def place(job: Job) -> str:
    with connection.cursor() as cursor:
        cursor.execute("SELECT ctid::text FROM jobs_job WHERE id = %s", [job.pk])
        return str(cursor.fetchone()[0])


def test_what_is_forgotten_is_read_again(queue: list[Job]) -> None:
    kept = KeptRows()
    (first, *_) = kept.read({})
    assert kept.read({})[0] is first
    kept.forget()
    assert kept.read({})[0] is not first
    assert kept.read({})[0] == first
