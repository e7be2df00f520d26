"""What a submit asks of the database: each statement is a trip, and ten thousand submits make ten thousand of it."""

from __future__ import annotations

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from portal.api.examples import SPEC
from tenants.models import Membership, Quota
from tests.jobs.conftest import People
from tests.portal.api.conftest import JOBS, Api

pytestmark = pytest.mark.usefixtures("installation")
WHAT_FOR = [
    "their token",
    "their tenant",
    "the same code",
    "the key",
    "their tenant again",
    "what there is",
    "the same code, held",
    "the job",
    "the answer",
]


def of_a_submit(caller: Api, key: str) -> list[str]:
    with CaptureQueriesContext(connection) as asked:
        answer = caller.post(JOBS, SPEC, Idempotency_Key=key)
    assert answer.status_code == 201, answer.content
    return [query["sql"] for query in asked]


def test_a_submit_of_known_code_is_nine_statements(alice: Api) -> None:
    of_a_submit(alice, "first")  # keeps the code, and notes that the token was used
    statements = [sql for sql in of_a_submit(alice, "second") if "SAVEPOINT" not in sql]  # this test's own
    assert len(statements) == len(WHAT_FOR), statements


def test_a_submit_alone_makes_no_savepoint_within_the_transaction_of_its_key(alice: Api) -> None:
    of_a_submit(alice, "first")
    savepoints = [sql for sql in of_a_submit(alice, "second") if sql.startswith("SAVEPOINT")]
    assert len(savepoints) == 1  # the key's transaction, which is one of this test's transaction here


def test_a_role_that_is_lost_between_two_requests_counts_no_more(alice: Api, people: People) -> None:
    of_a_submit(alice, "first")
    Membership.objects.filter(user=people.alice).update(role="viewer")
    assert alice.post(JOBS, SPEC, Idempotency_Key="second").status_code == 403
    Membership.objects.filter(user=people.alice).delete()
    assert alice.post(JOBS, SPEC, Idempotency_Key="third").status_code == 404


def test_a_submit_of_known_code_is_checked_as_one_of_new_code_is(alice: Api) -> None:
    of_a_submit(alice, "first")
    wrong = SPEC | {"framework": "none-such", "resources": {"cpus": 17}}
    new = wrong | {"code": {"files": {"train.py": "print('new')\n"}}}
    refused = alice.post(JOBS, wrong, Idempotency_Key="second")
    assert refused.status_code == 400
    fields = [error["path"] for error in refused.json()["errors"]]
    assert fields == [error["path"] for error in alice.post(JOBS, new).json()["errors"]]
    assert "framework" in fields
    Quota.objects.all().delete()  # which is no reason to refuse a job
    warned = [alice.post(JOBS, SPEC, Idempotency_Key=key).json()["warnings"] for key in ("third", "fourth")]
    again = alice.post(JOBS, SPEC | {"code": new["code"]}, Idempotency_Key="fifth").json()["warnings"]
    assert warned == [again, again] != [[], []]
