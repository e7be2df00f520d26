"""The API fuzzed from its own document: whatever comes in, nothing answers with 5xx or outside its promise.

A few requests per operation every day; LUTHIER_LONG makes it two hundred.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

import pytest
import schemathesis
from django.core.cache import cache
from django.db import transaction
from django.test import Client
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import Case

from portal.api.schema import document
from tenants.models import Token
from tests.architecture.world import Who, World, build

pytestmark = pytest.mark.django_db

EXAMPLES = 200 if os.environ.get("LUTHIER_LONG") else 4
OPERATIONS = {
    found.ok().definition.raw["operationId"]: found.ok()
    for found in schemathesis.openapi.from_dict(document()).get_all_operations()
}
NAMES = {"t": "vision-lab", "username": "carol", "name": "ci", "gpu_type": "cpu", "path": "model.pt"}


@pytest.fixture(scope="module")
def world(django_db_setup: None, django_db_blocker: Any) -> Iterator[World]:
    """One world for all requests: each undoes what it changed."""
    with django_db_blocker.unblock(), transaction.atomic():
        yield build()
        transaction.set_rollback(True)


@pytest.mark.parametrize("name", sorted(OPERATIONS))
def test_no_request_makes_an_operation_break_its_promise(world: World, name: str) -> None:
    operation = OPERATIONS[name]
    promised = set(operation.definition.raw["responses"])

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize=True,
        phases=[Phase.generate],
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy())
    def fuzz(case: Case) -> None:
        answer = send(world, case)
        assert str(answer.status_code) in promised, (
            case.method,
            answer.request["PATH_INFO"],
            answer.status_code,
        )
        if answer.status_code >= 400:
            assert answer["Content-Type"] == "application/problem+json"
            assert answer.json()["code"] != "internal_error"

    fuzz()


def send(world: World, case: Case) -> Any:
    """One generated request as alice, at things that are there half of the time; what it changes is undone."""
    cache.clear()
    parts = dict(case.path_parameters or {})
    for part, value in parts.items():
        if len(str(case.query)) % 2:
            parts[part] = NAMES.get(part, world.things.get(part, value))
    path = case.path
    for part, value in parts.items():
        path = path.replace(f"{{{part}}}", str(value))
    body = case.body if isinstance(case.body, dict | list | str | int | float | bool | None) else None
    sent = b"" if body is None and case.media_type is None else json.dumps(body).encode("utf-8", "replace")
    query = urlencode(case.query or {}, doseq=True, errors="replace")
    headers = {str(key): str(value) for key, value in (case.headers or {}).items() if str(value).isascii()}
    with transaction.atomic():
        _, secret = Token.objects.create(user=world.users[Who.OWNER], name="fuzz")
        answer = Client().generic(
            case.method,
            path.encode("utf-8", "replace").decode(),
            sent,
            case.media_type or "application/json",
            query_params=None,
            headers=headers | {"Authorization": f"Bearer {secret}"},
            QUERY_STRING=query,
        )
        if answer.streaming:
            b"".join(answer.streaming_content)
        transaction.set_rollback(True)
    return answer
