"""Every route, method and kind of caller: let in, or refused exactly as at a route that does not exist."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.auth.hashers import make_password
from django.core.cache import cache
from django.db import transaction
from django.http import HttpResponse
from django.test import Client, override_settings

from tenants.models import AuditEntry, Token, User
from tests.architecture import rows
from tests.architecture.routes import api_routes
from tests.architecture.rows import Row
from tests.architecture.world import ISSUER, LEARNERS, MISSING, Who, World, build
from tests.factories import PASSWORD

PREFIX = "api/v1/"
OPERATIONS = {
    f"{method.upper()} {route.text.removeprefix(PREFIX)}": (route, operation)
    for route in api_routes()
    for method, operation in route.view.view_class.operations.items()
}


pytestmark = pytest.mark.django_db


@pytest.fixture(scope="module")
def world(django_db_setup: None, django_db_blocker: Any) -> Iterator[World]:
    """One world for all cells: every knock undoes what it changed."""
    single_sign_on = override_settings(LUTHIER_OIDC_ISSUER=ISSUER)
    with django_db_blocker.unblock(), transaction.atomic(), single_sign_on:
        made = build()
        people = User.objects.filter(is_service_account=False)
        people.update(password=make_password(PASSWORD))  # what a token does to a sign-in takes it
        yield made
        transaction.set_rollback(True)


@pytest.fixture(autouse=True)
def _fresh_throttles() -> None:
    cache.clear()


def test_every_operation_has_a_row_and_every_row_an_operation() -> None:
    assert set(OPERATIONS) - set(rows.API) == set(), "operations without a row in tests/architecture/rows.py"
    assert set(rows.API) - set(OPERATIONS) == set(), "rows without an operation"


@pytest.mark.parametrize("name", sorted(OPERATIONS))
def test_an_operation_lets_in_whom_its_row_names(world: World, name: str) -> None:
    route, operation = OPERATIONS[name]
    row = rows.API[name]
    method = name.partition(" ")[0]
    address = route.path(_values(world, row))
    nowhere = route.path(_values(world, row) | _missing(row, route.variables))
    faults = []
    for who in Who:
        answer = _knock(world, who, method, address, row)
        wanted = row.rule[who] or operation.status
        if answer.status_code != wanted:
            faults.append(
                f"{who}: {answer.status_code} instead of {wanted}: {answer.content[:300]!r}"
                if not answer.streaming
                else f"{who}: {answer.status_code} instead of {wanted}"
            )
        elif wanted == 404 and nowhere != address:
            missing = _knock(world, who, method, nowhere, row)
            if _bare(answer) != _bare(missing):
                faults.append(
                    f"{who} can distinguish a foreign thing from a missing one: {_bare(answer)} {_bare(missing)}"
                )
    assert not faults, "\n".join([name, *faults])


@pytest.mark.parametrize("name", sorted(name for name, row in rows.API.items() if row.rule is rows.JOB_READ))
def test_what_an_admin_reads_of_a_foreign_job_is_recorded_with_the_reason(world: World, name: str) -> None:
    route, _ = OPERATIONS[name]
    row, method = rows.API[name], name.partition(" ")[0]
    values = _values(world, row)
    with transaction.atomic():
        _knock(world, Who.ADMIN, method, route.path(values), row, reason="asked by alice")
        entry = AuditEntry.objects.get(actor=world.users[Who.ADMIN])
        transaction.set_rollback(True)
    assert (entry.tenant, entry.target) == (world.tenant, values["job_id"])
    assert entry.reason == "asked by alice"


def test_what_a_member_reads_leaves_no_entry(world: World) -> None:
    before = AuditEntry.objects.count()
    _knock(world, Who.VIEWER, "GET", f"/api/v1/jobs/{world.things['job_id']}", Row(rows.JOB_READ))
    assert AuditEntry.objects.count() == before


@pytest.mark.parametrize(
    "query", ["", "?tenant=vision-lab", "?owner=alice", "?q=secret", "?state=PROCESSING"]
)
def test_lists_of_a_stranger_do_not_contain_foreign_jobs(world: World, query: str) -> None:
    answer = _knock(world, Who.STRANGER, "GET", f"/api/v1/jobs{query}", Row(rows.ANY_USER))
    assert answer.status_code == 200
    assert "secret" not in answer.content.decode()
    assert {job["tenant"] for job in answer.json()["items"]} <= {"nlp-research"}


def test_the_cluster_shows_a_stranger_no_name_of_a_foreign_job(world: World) -> None:
    text = _knock(world, Who.STRANGER, "GET", "/api/v1/cluster/nodes", Row(rows.ANY_USER)).content.decode()
    assert "secret-project" not in text
    assert world.things["running"] not in text
    assert "vision-lab" not in text


def test_a_guest_sees_the_one_job_and_nothing_else_of_its_tenant(world: World) -> None:
    items = _knock(world, Who.GUEST, "GET", "/api/v1/jobs", Row(rows.ANY_USER)).json()["items"]
    assert {job["id"] for job in items} == {
        world.things[key] for key in ("running", "halted", "done", "failed")
    }
    assert _knock(world, Who.GUEST, "GET", "/api/v1/tenants", Row(rows.ANY_USER)).json()["items"] == []


def test_swapped_ids_in_a_nested_path_find_nothing(world: World) -> None:
    foreign = world.users[Who.STRANGER].jobs.get().pk
    for path in ("checkpoints/1", "checkpoints/1/files/model.pt", "results/model.pt"):
        answer = _knock(world, Who.STRANGER, "GET", f"/api/v1/jobs/{foreign}/{path}", Row(rows.JOB_READ))
        assert answer.status_code == 404


def _values(world: World, row: Row) -> dict[str, Any]:
    return world.things | {name: world.things[thing] for name, thing in row.things.items()}


def _missing(row: Row, variables: list[str]) -> dict[str, Any]:
    """Missing in place of the first variable that can be: the tenant or job that all below hangs from."""
    for name in variables:
        if (key := row.things.get(name, name)) in MISSING:
            return {name: MISSING[key]}
    return {}


def _knock(world: World, who: Who, method: str, address: str, row: Row, reason: str = "") -> HttpResponse:
    """One request of this person; what it changes is undone."""
    headers = {**row.headers} | ({"X-Access-Reason": reason} if reason else {})
    with transaction.atomic():
        if who in LEARNERS:
            headers["Authorization"] = f"Bearer {world.secrets[who]}"
        elif who is not Who.ANONYMOUS:
            _, secret = Token.objects.create(user=world.users[who], name="knock")
            headers["Authorization"] = f"Bearer {secret}"
        answer = Client().generic(method, address, row.payload(), row.content_type, headers=headers)
        if answer.streaming:
            b"".join(answer.streaming_content)
        if not reason:
            transaction.set_rollback(True)
    return answer


def _bare(answer: HttpResponse) -> tuple[int, str]:
    """Status and body without what differs from one request to the next."""
    return answer.status_code, re.sub(r'"request_id":"[^"]*"', "", answer.content.decode())
