"""Django under ASGI: each request runs in one thread, and the number of concurrent requests is limited.

Django's own handler creates a thread for each request and changes threads for each hook of each middleware, which
cost more than the request's own work (docs/adr/0014). Here one thread runs everything from the first middleware to the
return of the connection.

Each running request holds a connection to PostgreSQL, whose number is limited. Further requests wait here in order.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import logging
from collections.abc import Callable
from http import HTTPStatus
from typing import IO, Any, TypeVar

from django.core import signals
from django.core.exceptions import RequestAborted
from django.core.handlers.asgi import ASGIHandler, get_script_prefix
from django.db import close_old_connections
from django.http import FileResponse, HttpRequest, HttpResponseBase
from django.urls import set_script_prefix

from jobs import blobs
from jobs.counters import count_response
from jobs.retries import database_away
from portal import strangers
from portal.arrivals import AT_ONCE as UPLOADS_AT_ONCE
from portal.arrivals import Arrivals, Sender, sender_of
from portal.database import shares
from portal.database.threads import DatabaseThreads
from portal.error_responses import CROWD, OUTAGE, crowded
from portal.health.views import alive
from portal.middleware import with_security_headers
from portal.request_body import BodyNotWanted, BodyRefused, discard_rest, no_room, read_body
from portal.streaming import PLAIN

logger = logging.getLogger(__name__)

AT_ONCE = shares.REQUESTS
"""Concurrent requests."""
AT_ONCE_TO_STORE = AT_ONCE // 2
"""Those that may wait for a store of blobs on other machines: one that hangs leaves the others to everything else."""
WAIT_S = 30.0
"""A request that has waited this long gets 503 with Retry-After."""
ALIVE = "/healthz"
"""Answered in the event loop: a supervisor restarts a server that does not respond, whatever its threads wait for."""
PROBES = frozenset({"/readyz", "/metrics"})
"""Have threads of their own."""
TWO_AT_ONCE = (
    f"You have {UPLOADS_AT_ONCE} uploads under way, the most allowed. Send this one when one has ended."
)

Respond = Callable[[HttpRequest], HttpResponseBase]
T = TypeVar("T")


class NoTurn(Exception):
    """No thread became free within WAIT_S."""


class ThreadedHandler(ASGIHandler):
    """The HTTP application."""

    def __init__(self) -> None:
        super().__init__()
        self._turns = asyncio.Semaphore(AT_ONCE)
        blobs.places.resize(AT_ONCE_TO_STORE)
        self._requests = DatabaseThreads(AT_ONCE, "request")
        self._probes = DatabaseThreads(shares.PROBES, "probe")
        self._arrivals = Arrivals()

    def load_middleware(self, is_async: bool = False) -> None:
        """Build the synchronous middleware chain, although Django's handler asks for the asynchronous one."""
        super().load_middleware(is_async=False)

    async def handle(self, scope: Any, receive: Any, send: Any) -> None:
        """Read a request, run it in a thread, send the response."""
        if scope["path"] == ALIVE:
            await self.send_response(self._answer(scope, io.BytesIO(), alive), send)
            return
        held = contextlib.ExitStack()
        with held:
            await self._handle(scope, receive, send, held)

    async def _handle(self, scope: Any, receive: Any, send: Any, held: contextlib.ExitStack) -> None:
        """held: what the request's body holds until the response is sent."""
        try:
            body = await read_body(scope, receive, lambda size: self._admit(scope, size, held))
        except RequestAborted:
            return
        except BodyRefused as refusal:
            await self._refuse(scope, refusal, receive, send)
            return
        held.callback(body.close)
        response = await self._answered(scope, body, self.get_response)
        if delay_s := getattr(response, "delay_s", 0.0):
            await asyncio.sleep(delay_s)
        if response.streaming:
            await self._stream(response, receive, send)
        else:
            await self.send_response(response, send)

    async def _admit(self, scope: Any, size: int, held: contextlib.ExitStack) -> bool:
        """Whether the request comes from a user or a learner, before its body is read. Raises BodyRefused."""
        sender = await self._sender(scope)
        if sender is None:
            return False
        if not sender.is_wanted:
            raise BodyNotWanted(self.get_response)
        if sender.user is not None:
            if not self._arrivals.has_place(sender.user):
                raise BodyRefused(HTTPStatus.TOO_MANY_REQUESTS, "too_many_requests", TWO_AT_ONCE)
            if not self._arrivals.has_room(sender.room, size):
                raise no_room()
            self._arrivals.begin(sender.user, size)
            held.callback(self._arrivals.end, sender.user, size)
        return True

    async def _sender(self, scope: Any) -> Sender | None:
        try:
            return await self._in_turn(_sender, scope)
        except NoTurn:
            raise BodyRefused(HTTPStatus.SERVICE_UNAVAILABLE, "overloaded", CROWD) from None
        except Exception as error:
            if not database_away(error):
                raise
            raise BodyRefused(HTTPStatus.SERVICE_UNAVAILABLE, "database_unavailable", OUTAGE) from error

    async def _answered(self, scope: Any, body: IO[bytes], respond: Respond) -> HttpResponseBase:
        """Wait for a free slot, then run the request in a thread."""
        if scope["path"] in PROBES:
            found: HttpResponseBase = await self._probes.run(self._answer, scope, body, respond)
            return found
        try:
            return await self._in_turn(self._answer, scope, body, respond)
        except NoTurn:
            return await self._probes.run(self._answer, scope, body, crowded)

    async def _in_turn(self, work: Callable[..., T], *arguments: Any) -> T:
        """Run in one of the threads for requests. Raises NoTurn."""
        try:
            async with asyncio.timeout(WAIT_S):
                await self._turns.acquire()
        except TimeoutError:
            raise NoTurn from None
        try:
            return await self._requests.run(work, *arguments)
        finally:
            self._turns.release()

    async def _refuse(self, scope: Any, refusal: BodyRefused, receive: Any, send: Any) -> None:
        """Respond before the body has arrived, then end the connection."""
        client = scope.get("client")
        what = {"path": scope["path"], "status": int(refusal.status), "code": refusal.code}
        strangers.warn(logger, "body refused", client[0] if client else "", **what)

        async def send_then_discard(message: Any) -> None:
            if message["type"] == "http.response.body" and not message.get("more_body", False):
                await send(message | {"more_body": True})
                await discard_rest(receive)
                message = {"type": "http.response.body", "body": b""}
            await send(message)

        response = await self._answered(scope, io.BytesIO(), refusal.respond)
        await self.send_response(response, send_then_discard)

    def _answer(self, scope: Any, body: IO[bytes], respond: Respond) -> HttpResponseBase:
        """In a thread: everything that Django does for a request. Only streamed responses continue afterward."""
        set_script_prefix(get_script_prefix(scope))
        signals.request_started.send(sender=self.__class__, scope=scope)
        request, refusal = self.create_request(scope, body)
        response: Any = refusal if request is None else respond(request)
        if request is not None and respond != self.get_response:
            response = with_security_headers(request, response)
        response._handler_class = self.__class__
        count_response(response.status_code)
        if not response.streaming:
            response.close()  # sends request_finished, which returns the connection
        else:
            close_old_connections()  # the stream reads in other threads
        if isinstance(response, FileResponse):
            response.block_size = self.chunk_size
        return response

    async def _stream(self, response: Any, receive: Any, send: Any) -> None:
        """Send until the end, or until the client disconnects."""
        sending = asyncio.create_task(self.send_response(response, send))
        leaving = asyncio.create_task(self.listen_for_disconnect(receive))
        await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
        for task in (sending, leaving):
            task.cancel()
        found = await asyncio.gather(sending, leaving, return_exceptions=True)
        await PLAIN.run(response.close)
        if isinstance(found[0], Exception):
            raise found[0]


def _sender(scope: Any) -> Sender | None:
    """In a thread."""
    try:
        return sender_of(scope["path"], scope["headers"])
    finally:
        close_old_connections()
