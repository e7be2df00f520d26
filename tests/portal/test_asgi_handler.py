"""A request's way through Django: in one thread, in its turn, or refused with 503 when its turn does not come."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextvars import ContextVar
from typing import Any

import pytest
from asgiref.sync import iscoroutinefunction
from asgiref.testing import ApplicationCommunicator
from django.conf import settings
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.test import override_settings
from django.urls import path
from django.utils.deprecation import MiddlewareMixin

from portal import asgi_handler
from portal.asgi_handler import ThreadedHandler
from portal.database import shares
from portal.live import learner_hub
from portal.pages.csv_files import csv_file
from portal.streaming import STREAMS, TABLES_LIMITS
from tenants.models import User

DELAY_S = 5.0
threads: list[int] = []
closed: list[str] = []
marked = ContextVar("marked", default="fresh")
gate = threading.Event()
entered = threading.Semaphore(0)


class First(MiddlewareMixin):
    """Like Django's own: it can do both, so a handler that is not careful changes threads for each of its hooks."""

    def process_request(self, request: HttpRequest) -> None:
        threads.append(threading.get_ident())

    def process_response(self, request: HttpRequest, response: HttpResponse) -> HttpResponse:
        threads.append(threading.get_ident())
        return response


class Second(First):
    pass


def look(request: HttpRequest) -> HttpResponse:
    threads.append(threading.get_ident())
    return HttpResponse("seen")


def block(request: HttpRequest) -> HttpResponse:
    entered.release()
    gate.wait(20)
    return HttpResponse("unblocked")


async def endless() -> AsyncIterator[bytes]:
    try:
        while True:
            yield b"more"
            await asyncio.sleep(0.01)
    finally:
        closed.append("stream")


async def breaking() -> AsyncIterator[bytes]:
    yield b"half"
    raise OSError("the file is gone")


def table(request: HttpRequest) -> HttpResponseBase:
    def rows() -> Iterator[list[str]]:
        yield ["day"]
        raise OSError("the database is gone")

    request.user = User(pk=77)
    return csv_file(request, "table.csv", rows())


def mark(request: HttpRequest) -> HttpResponse:
    before = marked.get()
    marked.set("marked")
    return HttpResponse(before)


async def modern(request: HttpRequest) -> HttpResponse:
    await asyncio.sleep(0)
    return HttpResponse("modern")


def delayed(request: HttpRequest) -> HttpResponse:
    response = HttpResponse("delayed")
    response.delay_s = DELAY_S  # type: ignore[attr-defined]
    return response


urlpatterns = [
    path("delayed", delayed),
    path("stream", lambda request: StreamingHttpResponse(endless())),
    path("break", lambda request: StreamingHttpResponse(breaking())),
    path("table", table),
    path("mark", mark),
    path("look", look), path("block", block), path("modern", modern), path("healthz", look), path("api/v1/look", look)
]  # fmt: skip


@pytest.fixture(autouse=True)
def _site() -> Any:
    threads.clear()
    closed.clear()
    gate.clear()
    while entered.acquire(blocking=False):
        pass
    middleware = [f"{__name__}.First", f"{__name__}.Second"]
    with override_settings(ROOT_URLCONF=__name__, MIDDLEWARE=middleware, ALLOWED_HOSTS=["*"]):
        yield
    gate.set()


async def ask(application: ThreadedHandler, where: str) -> tuple[int, dict[str, str], bytes]:
    caller = await begin(application, where)
    return await finish(caller)


async def begin(application: ThreadedHandler, where: str) -> ApplicationCommunicator:
    scope = {
        "type": "http",
        "method": "GET",
        "path": where,
        "headers": [],
        "query_string": b"",
        "http_version": "1.1",
    }
    caller = ApplicationCommunicator(application, scope)
    await caller.send_input({"type": "http.request", "body": b"", "more_body": False})
    return caller


async def finish(caller: ApplicationCommunicator) -> tuple[int, dict[str, str], bytes]:
    start = await caller.receive_output(20)
    body = b""
    while (part := await caller.receive_output(20)) and body is not None:
        body += part["body"]
        if not part.get("more_body"):
            break
    await caller.wait(20)
    headers = {name.decode().lower(): value.decode() for name, value in start["headers"]}
    return start["status"], headers, body


async def until(claim: Callable[[], bool]) -> None:
    for _ in range(2_000):
        if claim():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it never came true")


async def test_a_request_stays_in_one_thread_of_its_own() -> None:
    application = ThreadedHandler()
    assert not iscoroutinefunction(application._middleware_chain)
    status, _, body = await ask(application, "/look")
    assert (status, body) == (200, b"seen")
    assert len(threads) == 5
    assert set(threads) == {threads[0]} != {threading.get_ident()}


async def test_a_view_of_the_event_loop_is_served_too() -> None:
    assert await ask(ThreadedHandler(), "/modern") == await ask(ThreadedHandler(), "/modern")
    assert (await ask(ThreadedHandler(), "/modern"))[2] == b"modern"


async def test_a_crowd_waits_its_turn_and_all_are_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asgi_handler, "AT_ONCE", 3)
    application = ThreadedHandler()
    callers = [await begin(application, "/block") for _ in range(10)]
    await until(lambda: entered._value == 3)
    await asyncio.sleep(0.1)
    assert entered._value == 3
    assert (await ask(application, "/healthz"))[0] == 200  # who would restart us is answered meanwhile
    gate.set()
    answers = [await finish(caller) for caller in callers]
    assert [(status, body) for status, _, body in answers] == [(200, b"unblocked")] * 10


async def test_a_request_whose_turn_does_not_come_is_refused_with_retry_after(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(asgi_handler, "AT_ONCE", 1)
    monkeypatch.setattr(asgi_handler, "WAIT_S", 0.05)
    application = ThreadedHandler()
    first = await begin(application, "/block")
    await until(lambda: entered._value == 1)
    status, headers, body = await ask(application, "/api/v1/look")
    problem = json.loads(body)
    assert (status, headers["retry-after"], headers["content-type"]) == (503, "2", "application/problem+json")
    assert (problem["status"], problem["code"]) == (503, "overloaded")
    status, headers, body = await ask(application, "/look")
    assert (status, headers["retry-after"]) == (503, "2")
    assert b"Too many requests" in body
    gate.set()
    assert (await finish(first))[0] == 200
    assert (await ask(application, "/look"))[0] == 200


async def test_who_leaves_a_stream_ends_it() -> None:
    application = ThreadedHandler()
    caller = await begin(application, "/stream")
    assert (await caller.receive_output(20))["status"] == 200
    assert (await caller.receive_output(20))["body"] == b"more"
    await caller.send_input({"type": "http.disconnect"})
    await caller.wait(20)
    assert closed == ["stream"]


async def test_a_stream_that_breaks_off_is_not_taken_for_whole() -> None:
    caller = await begin(ThreadedHandler(), "/break")
    assert (await caller.receive_output(20))["status"] == 200
    assert (await caller.receive_output(20))["body"] == b"half"
    with pytest.raises(OSError, match="the file is gone"):
        await caller.wait(20)


async def test_a_table_that_breaks_off_is_not_taken_for_whole_and_counts_no_more() -> None:
    for _ in range(TABLES_LIMITS.per_user + 1):
        caller = await begin(ThreadedHandler(), "/table")
        assert (await caller.receive_output(20))["status"] == 200
        assert (await caller.receive_output(20))["body"] == b"day\r\n"
        with pytest.raises(OSError, match="the database is gone"):
            await caller.wait(20)


async def test_one_request_sets_nothing_for_the_next_in_its_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asgi_handler, "AT_ONCE", 1)
    application = ThreadedHandler()
    assert [(await ask(application, "/mark"))[2] for _ in range(3)] == [b"fresh"] * 3


def test_all_threads_of_a_web_process_together_hold_the_connections_that_its_setting_allows() -> None:
    handler = ThreadedHandler()
    own = (handler._requests, handler._probes, STREAMS, learner_hub.THREADS, learner_hub.OFFERS)
    viewers = shares.LIVE_READERS + shares.LIVE_SIDE_READERS
    assert sum(threads._count for threads in own) + viewers == settings.LUTHIER_WEB_CONNECTIONS


async def test_a_delayed_response_holds_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asgi_handler, "AT_ONCE", 1)
    application = ThreadedHandler()
    started = time.monotonic()
    held = await begin(application, "/delayed")
    assert (await ask(application, "/look"))[0] == 200
    assert time.monotonic() - started < DELAY_S
    assert (await finish(held))[2] == b"delayed"
    assert time.monotonic() - started >= DELAY_S
