"""The API fuzzed from its own document: whatever comes in, nothing answers with 5xx or outside its promise.

Each case goes through the whole ASGI application, as a platform admin, a researcher or a stranger. A few cases per
operation every day; LUTHIER_LONG makes it CASES of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import math
import os
from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import Any
from urllib.parse import unquote_to_bytes, urlsplit

import pytest
import requests
import schemathesis
from django.core.cache import cache
from django.db import connection, connections, transaction
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.failures import FailureGroup
from schemathesis.core.transport import Response
from schemathesis.specs.openapi import checks

from portal import asgi_handler
from portal.api.schema import document
from portal.asgi_handler import ThreadedHandler
from portal.database.base import DatabaseWrapper
from portal.streaming import FILES, PLAIN, STREAMS
from tenants.audit import REASON_HEADER
from tenants.models import Token
from tests.architecture.world import Who, World, build
from tests.shortcuts import delete_rows

pytestmark = [pytest.mark.django_db, pytest.mark.timeout(600)]

LONG = bool(os.environ.get("LUTHIER_LONG"))
CASES = 50_000
OPERATIONS = {
    found.ok().definition.raw["operationId"]: found.ok()
    for found in schemathesis.openapi.from_dict(document()).get_all_operations()
}
EXAMPLES = math.ceil(CASES / len(OPERATIONS)) if LONG else 5
NAMES = {
    "t": ["vision-lab", "nlp-research"],
    "job_id": ["{running}", "{halted}", "{done}"],
    "username": ["carol", "gina", "admin"],
    "name": ["ci", "wandb", "mine"],
    "gpu_type": ["cpu"],
    "path": ["model.pt"],
    "token_id": ["{token_id}", "{account_token}"],
    "session_id": ["{session_id}"],
    "slug": ["own", "sklearn"],
    "n": ["1"],
}
"""Parts of paths that lead somewhere; {thing}: of the world's things."""
CALLERS = (Who.ADMIN, Who.OWNER, Who.STRANGER)
CHECKS = [
    not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
]
HOST = "http://testserver"
GIVE_UP_S = 60.0


class Application(ThreadedHandler):
    """The application with one thread for requests, and one event loop for as long as it is used."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.world: World
        self.tokens: dict[Who, str] = {}
        self.answers: Counter[tuple[str, int]] = Counter()

    def in_thread(self, work: Any, *arguments: Any) -> Any:
        """Run work in the thread whose connection the requests use."""
        return self.loop.run_until_complete(self._requests.run(work, *arguments))

    def open(self) -> None:
        self.world = self.in_thread(build)
        for who in CALLERS:
            user = self.world.users[who]
            _, self.tokens[who] = self.in_thread(
                lambda user=user: Token.objects.create(user=user, name="fuzz")
            )

    def close(self) -> None:
        for threads in (self._requests, self._probes, STREAMS, FILES, PLAIN):
            threads.close()
        self.loop.close()

    def send(self, prepared: requests.PreparedRequest) -> Response:
        """One request; what it changed is undone, after what it would have done once committed."""
        cache.clear()
        undo = contextlib.ExitStack()
        self.in_thread(undo.enter_context, _undone())
        try:
            return self.loop.run_until_complete(asyncio.wait_for(self._exchange(prepared), GIVE_UP_S))
        finally:
            self.in_thread(undo.close)

    async def _exchange(self, prepared: requests.PreparedRequest) -> Response:
        url = urlsplit(str(prepared.url))
        body = prepared.body or b""
        sent = body.encode() if isinstance(body, str) else body
        headers = [(b"host", b"testserver")]
        for name, value in prepared.headers.items():
            headers.append((
                name.lower().encode("latin-1"),
                value if isinstance(value, bytes) else value.encode("latin-1", "replace"),
            ))  # fmt: skip
        scope = {
            "type": "http",
            "http_version": "1.1",
            "method": prepared.method,
            "scheme": "http",
            "path": unquote_to_bytes(url.path).decode("utf-8", "replace"),
            "raw_path": url.path.encode(),
            "query_string": url.query.encode(),
            "root_path": "",
            "headers": headers,
            "client": ("127.0.0.1", 1),
            "server": ("testserver", 80),
        }
        incoming: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        incoming.put_nowait({"type": "http.request", "body": sent, "more_body": False})
        received: list[dict[str, Any]] = []

        async def take(message: dict[str, Any]) -> None:
            received.append(message)

        await self(scope, incoming.get, take)
        return _response(prepared, received)


@contextlib.contextmanager
def _undone() -> Iterator[None]:
    with transaction.atomic():
        yield
        for _, work, _ in connection.run_on_commit:
            work()
        transaction.set_rollback(True)


def _response(prepared: requests.PreparedRequest, received: list[dict[str, Any]]) -> Response:
    start, *parts = received
    headers: dict[str, list[str]] = {}
    for name, value in start["headers"]:
        headers.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))
    return Response(
        status_code=start["status"],
        headers=headers,
        content=b"".join(part.get("body", b"") for part in parts),
        request=prepared,
        elapsed=0.0,
        verify=False,
    )


@pytest.fixture(scope="module")
def application(django_db_setup: None, django_db_blocker: Any) -> Iterator[Application]:
    """One world for all requests. It is committed, since downloads are read in threads of their own."""
    with pytest.MonkeyPatch.context() as patch, django_db_blocker.unblock():
        patch.setattr(asgi_handler, "AT_ONCE", 1)
        patch.setattr(
            DatabaseWrapper, "close_if_unusable_or_obsolete", lambda self: None
        )  # it is in a transaction
        made = Application()
        made.open()
        yield made
        made.close()
        print("\n", made.answers.total(), "cases:", sorted(made.answers.items()))
        delete_rows()
        connections.close_all()


@st.composite
def cases_of(draw: st.DrawFn, name: str) -> Case:
    """What the document allows, a quarter of the time what it does not; mostly about things that are there."""
    chance = draw(st.randoms(use_true_random=False))
    right, wrong = _strategies(name)
    case: Case = draw(wrong if chance.random() < 0.25 else right)
    if chance.random() < 0.75:
        for part, value in (case.path_parameters or {}).items():
            case.path_parameters[part] = _there(part, value, chance)
    if chance.random() < 0.5:
        case.query = {}
    examples = [
        each["value"]
        for content in OPERATIONS[name].definition.raw.get("requestBody", {}).get("content", {}).values()
        for each in content.get("examples", {}).values()
    ]
    if examples and chance.random() < 0.25:
        case.body = chance.choice(examples)
    return case


@functools.cache
def _strategies(name: str) -> tuple[st.SearchStrategy[Case], st.SearchStrategy[Case]]:
    """What an operation allows, and what it does not: the same where nothing can be given."""
    right = OPERATIONS[name].as_strategy()
    try:
        wrong = OPERATIONS[name].as_strategy(generation_mode=GenerationMode.NEGATIVE)
        wrong.validate()
    except Exception:
        return right, right
    return right, wrong


def _there(part: str, value: Any, chance: Random) -> Any:
    return chance.choice(NAMES.get(part, [value]))


@pytest.mark.parametrize("name", sorted(OPERATIONS))
def test_no_request_makes_an_operation_break_its_promise(application: Application, name: str) -> None:
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize=True,
        phases=[Phase.generate],
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(case=cases_of(name))
    def fuzz(case: Case) -> None:
        who = CALLERS[application.answers.total() % len(CALLERS)]
        answer = application.send(prepared(application, case, who))
        application.answers[who.value, answer.status_code] += 1
        try:
            case.validate_response(answer, checks=CHECKS)
        except FailureGroup as group:
            raise AssertionError(
                f"{who}: {case.method} {answer.request.url} {answer.request.body!r} -> {answer.status_code}"
                f" {answer.content[:2000]!r}: {[str(each) for each in group.exceptions]}"
            ) from None
        if answer.status_code >= 400:
            assert answer.headers["content-type"] == ["application/problem+json"]
            assert answer.json()["code"] != "internal_error"

    fuzz()


def prepared(application: Application, case: Case, who: Who) -> requests.PreparedRequest:
    """The request as it is sent. {thing} in its path is one of the world's; an admin often says why."""
    for part, value in (case.path_parameters or {}).items():
        if isinstance(value, str) and value.startswith("{"):
            case.path_parameters[part] = application.world.things.get(value[1:-1], value)
    headers = {"Authorization": f"Bearer {application.tokens[who]}"}
    if who == Who.ADMIN and len(str(case.body)) % 4:
        headers[REASON_HEADER] = "looking for defects"
    sent = case.as_transport_kwargs(base_url=HOST, headers=headers)
    return requests.Request(**sent).prepare()
