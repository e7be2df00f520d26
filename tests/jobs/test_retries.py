"""A transaction that the database rolled back is retried as a whole; locks are taken in one order all the same."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from django.db import (
    DatabaseError,
    DataError,
    Error,
    InterfaceError,
    InternalError,
    OperationalError,
    connection,
    transaction,
)
from psycopg2 import Error as DriverError

from gpu_scheduler.model import Placement, Start
from jobs import failpoints, invariants
from jobs.lifecycle import cycle, cycle_lease, transitions
from jobs.models import Job
from jobs.retries import TRIES, database_away, retry_on_serialization_failure
from jobs.states import State
from tenants.models import Quota
from tests.jobs.lifecycle.lives import LIVES
from tests.jobs.lifecycle.world import World, two_nodes, used
from tests.jobs.lock_order import one_lock_order


@pytest.fixture
def world(transactional_db: None) -> Iterator[World]:
    with two_nodes() as made:
        yield made


class RolledBack(DriverError):
    """As the driver raises it: with the database's own code."""

    def __init__(self, pgcode: str | None) -> None:
        self.__setstate__({"pgcode": pgcode})


def caused(error: Exception, cause: Exception | None) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "away"),
    [
        (OperationalError("the database system is starting up"), True),
        (InterfaceError("connection already closed"), True),
        (
            caused(DatabaseError("no message from the libpq"), RolledBack(None)),
            True,
        ),  # it broke amid an answer
        (caused(DatabaseError("raised in a function"), RolledBack("P0001")), False),
        (DatabaseError("Save with update_fields did not affect any rows."), False),  # Django's own finding
        (
            caused(InternalError("cannot execute UPDATE in a read-only transaction"), RolledBack("25006")),
            True,
        ),
        (DataError("a NUL in a text"), False),
        (LookupError("ours"), False),
        (None, False),
    ],
)
def test_only_a_database_that_did_not_answer_counts_as_away(error: Exception | None, away: bool) -> None:
    assert database_away(error) is away


@pytest.mark.django_db(transaction=True)
def test_a_connection_that_the_server_ends_amid_an_answer_counts_as_away() -> None:
    with pytest.raises(Error) as caught, connection.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(pg_backend_pid()), pg_sleep(1)")
    assert database_away(caught.value)
    connection.close()


class Flaky:
    """Fails so many times, then works."""

    def __init__(self, fails: int, pgcode: str) -> None:
        self.fails, self.pgcode, self.calls = fails, pgcode, 0

    def __call__(self) -> str:
        self.calls += 1
        if self.calls <= self.fails:
            raise OperationalError("rolled back") from RolledBack(self.pgcode)
        return "done"


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("pgcode", ["40P01", "40001"])
def test_what_was_rolled_back_is_retried_but_not_for_ever(pgcode: str) -> None:
    work = Flaky(TRIES - 1, pgcode)
    assert retry_on_serialization_failure(work)() == "done"
    assert work.calls == TRIES
    hopeless = Flaky(TRIES, pgcode)
    with pytest.raises(OperationalError):
        retry_on_serialization_failure(hopeless)()
    assert hopeless.calls == TRIES


@pytest.mark.django_db(transaction=True)
def test_any_other_failure_and_a_part_of_a_transaction_are_tried_once() -> None:
    for work in (Flaky(1, "55P03"), Flaky(1, "57P01")):
        with pytest.raises(OperationalError):
            retry_on_serialization_failure(work)()
        assert work.calls == 1
    inner = Flaky(1, "40P01")
    with pytest.raises(OperationalError), transaction.atomic():
        retry_on_serialization_failure(inner)()
    assert inner.calls == 1


def test_an_admission_that_the_database_broke_off_is_made_after_all(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another transaction locks the quota first and the job after it. The admission locks them the other way round, and
    yields."""
    monkeypatch.setattr(transitions, "LOCK_WAIT_MS", 60_000)  # longer than until a deadlock is noticed
    job = world.submit(learners=2)
    quota_held, job_held = threading.Event(), threading.Event()
    failures: list[BaseException] = []

    def other() -> None:
        try:
            with transaction.atomic(), connection.cursor() as cursor:
                cursor.execute("SET LOCAL deadlock_timeout = '1min'")  # so that the other one is rolled back
                cursor.execute("UPDATE tenants_quota SET used = used WHERE tenant_id = %s", [world.tenant.pk])
                quota_held.set()
                assert job_held.wait(20)
                cursor.execute("UPDATE jobs_job SET name = 'theirs' WHERE id = %s", [job.pk])
        except BaseException as failure:
            failures.append(failure)
        finally:
            connection.close()

    tries = 0

    def pass_by(point: str) -> None:
        nonlocal tries
        if point == "admit.after_move":
            tries += 1
            job_held.set()

    thread = threading.Thread(target=other)
    thread.start()
    assert quota_held.wait(20)
    failpoints.arm(pass_by)
    with cycle_lease.held() as token:
        assert token is not None
        assert cycle._admit(Start(job.pk, Placement("cpu", ("node-a", "node-a"))), "memory", token, None)
    failpoints.arm(None)
    thread.join()
    assert failures == []
    assert tries == 2, "nothing was rolled back"
    job.refresh_from_db()
    assert (job.name, job.state, job.attempt) == ("theirs", State.DEPLOYING, 1)
    assert used(world.tenant) == 2
    assert invariants.violations() == []


def test_every_transaction_of_the_lifecycle_locks_rows_in_one_order(world: World) -> None:
    def look() -> None:
        for _ in range(3):
            world.tick()

    with one_lock_order() as seen:
        for life in LIVES:
            for _ in life(world, look):
                pass
    assert seen >= {"jobs_job", "jobs_attempt", "tenants_quota", "tenants_tenant"}


def test_a_transaction_that_goes_back_in_the_order_is_found(world: World) -> None:
    @transaction.atomic
    def backwards() -> None:
        Quota.objects.update(used=0)
        Job.objects.update(name="x")

    with pytest.raises(AssertionError, match="jobs_job after"), one_lock_order():
        backwards()
