"""One answer per Idempotency-Key: the key, the work and the answer are one transaction.

So a crash leaves neither work nor key, and a repeat after a lost answer gets the same answer and no second job.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from django.db import OperationalError, connection, transaction

from jobs.errors import IdempotencyInProgress, IdempotencyKeyInvalid, IdempotencyKeyReused
from jobs.failpoints import fp
from jobs.models import IdempotentResponse
from jobs.retries import retry_on_serialization_failure
from tenants import two_factor
from tenants.errors import FieldsInvalid, ServiceError, problem
from tenants.models import User

KEY = re.compile(r"[\x21-\x7e]{1,128}")
LOCK_NOT_AVAILABLE = "55P03"

Answer = tuple[int, dict[str, Any]]


def answer_once(
    *,
    user: User,
    key: str,
    request_sha256: str,
    work: Callable[[], Answer],
    prepare: Callable[[], object] | None = None,
    proof: Callable[[], object] | None = None,
    look_first: bool = False,
) -> Answer:
    """Do the work and keep its (status, body), or give the answer that this key's first request got.

    request_sha256 covers method, path and body. prepare: what takes long and may be done again, before the transaction;
    its error is raised unless there is a first answer, and with look_first it is left out if there is one. proof: in
    place of it, what counts each time, such as a password that is checked: once per key, also of requests at the same
    time. An error of the work is raised and not kept. work may be called again after its transaction was interrupted.
    Raises IdempotencyKeyInvalid, IdempotencyKeyReused (for another request) or IdempotencyInProgress (its first request
    is still being answered).
    """
    if not KEY.fullmatch(key):
        raise IdempotencyKeyInvalid
    if proof:
        assert prepare is None, "what may be done again is no proof"
        return _prove_and_work_once(user, key, request_sha256, proof, work)
    if look_first and (first := _first_answer(user, key, request_sha256)) is not None:
        return first
    try:
        if prepare:
            prepare()
    except ServiceError:
        if (first := _first_answer(user, key, request_sha256)) is not None:
            return first
        raise
    return _work_once(user, key, request_sha256, work)


@retry_on_serialization_failure
def _work_once(user: User, key: str, request_sha256: str, work: Callable[[], Answer]) -> Answer:
    with transaction.atomic():
        if (first := _first_answer_or_take(user, key, request_sha256)) is not None:
            return first
        fp("answer.after_key")
        status, body = work()
        fp("answer.after_work")
        _keep(user, key, status, body)
    return status, body


@retry_on_serialization_failure
def _prove_and_work_once(
    user: User, key: str, request_sha256: str, proof: Callable[[], object], work: Callable[[], Answer]
) -> Answer:
    """The proof is looked at under the key, so that a repeat at the same time waits and spends nothing.

    What it wrote, such as a failure in the audit log or a code that is used up, stays after a refusal.
    """
    with transaction.atomic():
        if (first := _first_answer_or_take(user, key, request_sha256)) is not None:
            return first
        two_factor.locked(user)  # before the rows of their factors, as every change of these takes them
        try:
            _require_same_password(user)
            proof()
            with transaction.atomic():
                status, body = work()
        except ServiceError as error:
            refused = error
            _free(user, key)
        else:
            _keep(user, key, status, body)
            return status, body
    raise refused


def _require_same_password(user: User) -> None:
    """A request that waited while another one changed the password does not pass with the one before it."""
    if not User.objects.filter(pk=user.pk, password=user.password).exists():
        raise FieldsInvalid(errors=[problem("password", "wrong_password", "was changed a moment ago")])


def _first_answer_or_take(user: User, key: str, request_sha256: str) -> Answer | None:
    while not _take(user, key, request_sha256):
        if (first := _first_answer(user, key, request_sha256)) is not None:
            return first
    return None


def _take(user: User, key: str, request_sha256: str) -> bool:
    """Claim the key; waits for a first request that is still being answered, as long as lock_timeout allows."""
    try:
        with connection.cursor() as cursor:
            cursor.execute(
                "INSERT INTO jobs_idempotentanswer (user_id, key, request_sha256) VALUES (%s, %s, %s) "
                "ON CONFLICT (user_id, key) DO NOTHING",
                [user.pk, key, request_sha256],
            )
            return cursor.rowcount == 1
    except OperationalError as error:
        if getattr(error.__cause__, "pgcode", None) == LOCK_NOT_AVAILABLE:
            raise IdempotencyInProgress from error
        raise


def _keep(user: User, key: str, status: int, body: dict[str, Any]) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE jobs_idempotentanswer SET status = %s, body = %s WHERE user_id = %s AND key = %s",
            [status, json.dumps(body), user.pk, key],
        )


def _free(user: User, key: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM jobs_idempotentanswer WHERE user_id = %s AND key = %s", [user.pk, key])


def _first_answer(user: User, key: str, request_sha256: str) -> Answer | None:
    """None: it expired just now, and the key is free again."""
    first = IdempotentResponse.objects.filter(user=user, key=key).first()
    if first is None:
        return None
    if first.request_sha256 != request_sha256:
        raise IdempotencyKeyReused
    assert first.status is not None, "key, work and answer are one transaction"
    assert first.body is not None
    return first.status, first.body
