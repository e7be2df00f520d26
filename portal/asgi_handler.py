"""Django under ASGI as Luthier needs it: a request goes to one thread once, and so many are at work at a time.

Django's own handler makes a thread for each request and goes there and back for each hook of each middleware, which
cost more than the request's own work (docs/adr/0014). Here a request is walked from the first middleware to its
connection's return in one go, by a thread that serves one after the other.

Each request at work holds a connection to PostgreSQL, which has only so many. So a crowd waits here for its turn, in
order, instead of being refused there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import IO, Any

from django.core import signals
from django.core.exceptions import RequestAborted
from django.core.handlers.asgi import ASGIHandler, get_script_prefix
from django.db import close_old_connections
from django.http import FileResponse, HttpRequest, HttpResponseBase
from django.urls import set_script_prefix

from portal.database.threads import DatabaseThreads
from portal.error_responses import crowded
from portal.streaming import STREAMS

AT_ONCE = 48
"""Requests at work; PostgreSQL takes 200 connections, and streams, live readers and workers need theirs."""
WAIT_S = 30.0
"""After this a caller has gone, or had better come again later."""
PROBES = frozenset({"/healthz", "/readyz"})
"""Asked by whoever would restart us for not answering: they wait behind nobody."""
PROBES_AT_ONCE = 2

Respond = Callable[[HttpRequest], HttpResponseBase]


class ThreadedHandler(ASGIHandler):
    """The HTTP application."""

    def __init__(self) -> None:
        super().__init__()
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._requests = DatabaseThreads(AT_ONCE, "request")
        self._probes = DatabaseThreads(PROBES_AT_ONCE, "probe")

    def load_middleware(self, is_async: bool = False) -> None:
        """Build the chain for one thread, whatever Django's handler asks for."""
        super().load_middleware(is_async=False)

    async def handle(self, scope: Any, receive: Any, send: Any) -> None:
        """Take a request in, have it answered by a thread, send the answer."""
        try:
            body = await self.read_body(receive)
        except RequestAborted:
            return
        response = await self._answered(scope, body)
        if response.streaming:
            await self._stream(response, receive, send)
        else:
            await self.send_response(response, send)
        body.close()

    async def _answered(self, scope: Any, body: IO[bytes]) -> HttpResponseBase:
        """The answer of a thread, when it is this request's turn."""
        if scope["path"] in PROBES:
            return await self._probes.run(self._answer, scope, body, self.get_response)
        try:
            async with asyncio.timeout(WAIT_S):
                await self._turns.acquire()
        except TimeoutError:
            return await self._probes.run(self._answer, scope, body, crowded)
        try:
            return await self._requests.run(self._answer, scope, body, self.get_response)
        finally:
            self._turns.release()

    def _answer(self, scope: Any, body: IO[bytes], respond: Respond) -> HttpResponseBase:
        """In a thread: all that Django does for a request. What is not streamed is over when this returns."""
        set_script_prefix(get_script_prefix(scope))
        signals.request_started.send(sender=self.__class__, scope=scope)
        request, refusal = self.create_request(scope, body)
        response: Any = refusal if request is None else respond(request)
        response._handler_class = self.__class__
        if not response.streaming:
            response.close()  # tells Django that the request is over, which gives the connection back
        else:
            close_old_connections()  # the stream reads in a thread of its own
        if isinstance(response, FileResponse):
            response.block_size = self.chunk_size
        return response

    async def _stream(self, response: Any, receive: Any, send: Any) -> None:
        """Send until the end, or until nobody listens any more."""
        sending = asyncio.create_task(self.send_response(response, send))
        leaving = asyncio.create_task(self.listen_for_disconnect(receive))
        await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
        for task in (sending, leaving):
            task.cancel()
        found = await asyncio.gather(sending, leaving, return_exceptions=True)
        await STREAMS.run(response.close)
        if isinstance(found[0], Exception):
            raise found[0]
