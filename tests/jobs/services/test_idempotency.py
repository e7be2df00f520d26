"""A repeated POST gets the first one's answer and does nothing."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from django.db import connection, connections

from jobs.errors import IdempotencyInProgress, IdempotencyKeyInvalid, IdempotencyKeyReused, JobError
from jobs.models import IdempotentResponse
from jobs.services.idempotency import answer_once
from tenants import audit
from tenants.errors import FieldsInvalid
from tenants.models import AuditEntry, User
from tests import factories

A, B = "a" * 64, "b" * 64


class Work:
    def __init__(self) -> None:
        self.done = 0

    def __call__(self) -> tuple[int, dict[str, int]]:
        self.done += 1
        return 201, {"n": self.done}


@pytest.mark.django_db
def test_the_same_request_is_done_once_and_answered_twice() -> None:
    user, work = factories.user(), Work()
    answers = [answer_once(user=user, key="k1", request_sha256=A, work=work) for _ in range(2)]
    assert answers == [(201, {"n": 1})] * 2
    assert work.done == 1


@pytest.mark.django_db
def test_a_key_whose_day_ends_while_it_is_looked_up_is_free_again() -> None:
    user, work = factories.user(), Work()
    answer_once(user=user, key="k1", request_sha256=A, work=work)

    def tidy(execute: Any, sql: str, *more: Any) -> Any:
        if sql.startswith("SELECT") and "jobs_idempotentanswer" in sql:
            IdempotentResponse.objects.all().delete()
        return execute(sql, *more)

    with connection.execute_wrapper(tidy):
        assert answer_once(user=user, key="k1", request_sha256=A, work=work) == (201, {"n": 2})
    assert work.done == 2


@pytest.mark.django_db
def test_a_key_belongs_to_one_request_and_one_user() -> None:
    alice, bob, work = factories.user("alice"), factories.user("bob"), Work()
    answer_once(user=alice, key="k1", request_sha256=A, work=work)
    with pytest.raises(IdempotencyKeyReused):
        answer_once(user=alice, key="k1", request_sha256=B, work=work)
    assert answer_once(user=bob, key="k1", request_sha256=B, work=work) == (201, {"n": 2})


@pytest.mark.django_db
@pytest.mark.parametrize("key", ["", "x" * 129, "two words", "naïve", "line\n"])
def test_a_key_without_shape_is_refused(key: str) -> None:
    with pytest.raises(IdempotencyKeyInvalid):
        answer_once(user=factories.user(), key=key, request_sha256=A, work=Work())


@pytest.mark.django_db
def test_an_error_is_not_kept_so_the_repeat_tries_again() -> None:
    user = factories.user()

    def fail() -> tuple[int, dict[str, int]]:
        raise JobError("not now")

    with pytest.raises(JobError):
        answer_once(user=user, key="k1", request_sha256=A, work=fail)
    assert not IdempotentResponse.objects.exists()
    assert answer_once(user=user, key="k1", request_sha256=A, work=Work()) == (201, {"n": 1})


class Proof:
    """Writes an entry each time, as a checked password may."""

    def __init__(self, user: User, *, refuses: bool = False) -> None:
        self.user, self.refuses = user, refuses

    def __call__(self) -> None:
        audit.record(actor=self.user, action="password.failure")
        if self.refuses:
            raise JobError("wrong")

    @property
    def looked_at(self) -> int:
        return AuditEntry.objects.filter(actor=self.user, action="password.failure").count()


@pytest.mark.django_db
def test_a_repeat_is_answered_before_its_proof_is_looked_at() -> None:
    user, work = factories.user(), Work()
    first = answer_once(user=user, key="k1", request_sha256=A, work=work, proof=Proof(user))
    used_up = Proof(user, refuses=True)
    assert (
        answer_once(user=user, key="k1", request_sha256=A, work=work, proof=used_up)
        == first
        == (201, {"n": 1})
    )
    assert used_up.looked_at == work.done == 1
    with pytest.raises(IdempotencyKeyReused):
        answer_once(user=user, key="k1", request_sha256=B, work=work, proof=used_up)
    assert used_up.looked_at == 1


@pytest.mark.django_db
def test_a_request_that_waited_for_a_change_of_the_password_does_not_pass_with_the_old_one() -> None:
    user, work = factories.user(), Work()
    User.objects.filter(pk=user.pk).update(password="another")
    with pytest.raises(FieldsInvalid):
        answer_once(user=user, key="k1", request_sha256=A, work=work, proof=Proof(user))
    assert (work.done, Proof(user).looked_at) == (0, 0)
    assert not IdempotentResponse.objects.exists()


@pytest.mark.django_db
def test_what_a_refused_proof_wrote_stays_and_the_key_is_free() -> None:
    user, work = factories.user(), Work()
    for n in (1, 2):
        with pytest.raises(JobError):
            answer_once(user=user, key="k1", request_sha256=A, work=work, proof=Proof(user, refuses=True))
        assert (Proof(user).looked_at, work.done) == (n, 0)
    assert answer_once(user=user, key="k1", request_sha256=A, work=work, proof=Proof(user)) == (201, {"n": 1})


@pytest.mark.django_db
def test_work_that_is_refused_takes_its_own_writes_back_and_not_its_proofs() -> None:
    user = factories.user()

    def fail() -> tuple[int, dict[str, int]]:
        audit.record(actor=user, action="token.create")
        raise JobError("not now")

    with pytest.raises(JobError):
        answer_once(user=user, key="k1", request_sha256=A, work=fail, proof=Proof(user))
    assert list(AuditEntry.objects.values_list("action", flat=True)) == ["password.failure"]
    assert not IdempotentResponse.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_of_two_requests_at_the_same_time_one_is_looked_at_and_acts() -> None:
    user, work, proof = factories.user(), Work(), Proof(factories.user("other"))
    both, answers = threading.Barrier(2), []

    def send() -> None:
        both.wait(60)
        answers.append(answer_once(user=user, key="k1", request_sha256=A, work=work, proof=proof))
        connections.close_all()

    threads = [threading.Thread(target=send) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [(201, {"n": 1})] * 2
    assert proof.looked_at == work.done == 1


@pytest.mark.django_db(transaction=True)
def test_a_repeat_that_comes_before_the_answer_waits_for_it_or_is_refused() -> None:
    user, work = factories.user(), Work()
    entered, go_on = threading.Event(), threading.Event()

    def slow() -> tuple[int, dict[str, int]]:
        entered.set()
        assert go_on.wait(60)
        return work()

    def first(person: User) -> None:
        answer_once(user=person, key="k1", request_sha256=A, work=slow)
        connections.close_all()

    thread = threading.Thread(target=first, args=(user,))
    thread.start()
    assert entered.wait(60)
    with connection.cursor() as cursor:
        cursor.execute("SET lock_timeout = '50ms'")
    with pytest.raises(IdempotencyInProgress):
        answer_once(user=user, key="k1", request_sha256=A, work=work)
    with connection.cursor() as cursor:
        cursor.execute("SET lock_timeout = '60s'")
    go_on.set()
    assert answer_once(user=user, key="k1", request_sha256=A, work=work) == (201, {"n": 1})
    thread.join()
    assert work.done == 1
