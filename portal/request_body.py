"""Request bodies: at most as large as the path needs, at least so fast, and large ones only from known callers.

All of it is decided before a byte reaches the disk. Views have their own, stricter limits.
"""

from __future__ import annotations

import asyncio
import re
import tempfile
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import IO, Any

from django.conf import settings
from django.core.exceptions import RequestAborted
from django.http import HttpRequest, HttpResponse

from jobs import blobs
from jobs.archives import DEFAULT_LIMITS
from jobs.disk import DISK_FULL
from jobs.humanize import filesize
from portal import arrivals
from portal.pages.errors import error_page
from portal.problem_details import PROGRAMS, RETRY_AFTER_S, problem

IDLE_S = 20.0
"""Without a byte for this long, the rest is not awaited."""
START_S = 30.0
MIN_BYTES_PER_S = 16 * 1024
"""A body may take START_S, and a second more for each of these."""
ANONYMOUS_BYTES = 64 * 1024
"""From callers who are not signed in: enough for a login, and kept in memory."""
FORM_BYTES = 64 * 1024
"""What a form adds to its file."""
CAPS = (
    (re.compile(r"/agent/v1/uploads/\d+\Z"), blobs.MAX_PIECE),
    (arrivals.UPLOADS, DEFAULT_LIMITS.packed_bytes + FORM_BYTES),
    (re.compile(r"/(healthz|readyz|metrics)\Z"), 0),
)
OTHER_BYTES = 1024 * 1024

LINGER_S, LINGER_BYTES = 1.0, 256 * 1024
"""What a refused client sends meanwhile is discarded, so that the response can reach it before the connection ends."""

Receive = Callable[[], Awaitable[Any]]


class BodyRefused(Exception):
    """The body is not read any further."""

    def __init__(self, status: HTTPStatus, code: str, text: str) -> None:
        super().__init__(text)
        self.status, self.code, self.text = status, code, text

    def respond(self, request: HttpRequest) -> HttpResponse:
        """The response, which closes the connection: the rest of the body would be taken for the next request."""
        if request.path.startswith(PROGRAMS):
            response = problem(self.status, self.code, self.text)
        else:
            response = error_page(request, self.status, texts=(self.status.phrase, self.text))
        if self.status == HTTPStatus.UNAUTHORIZED:
            response["WWW-Authenticate"] = 'Bearer realm="luthier"'
        if self.status in (HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.TOO_MANY_REQUESTS):
            response["Retry-After"] = str(RETRY_AFTER_S)
        return _closing(response)


class BodyNotWanted(BodyRefused):
    """The view responds without the body: to who may not do this at all, whatever the body is."""

    def __init__(self, view: Callable[[HttpRequest], Any]) -> None:
        super().__init__(HTTPStatus.FORBIDDEN, "body_not_wanted", "")
        self._view = view

    def respond(self, request: HttpRequest) -> HttpResponse:
        return _closing(self._view(request))


def _closing(response: HttpResponse) -> HttpResponse:
    response["Connection"] = "close"
    response["Content-Length"] = str(len(response.content))
    return response


def cap_of(path: str) -> int:
    """The bytes that a body at this path may have."""
    return next((cap for pattern, cap in CAPS if pattern.match(path)), OTHER_BYTES)


async def read_body(scope: Any, receive: Receive, is_known: Callable[[int], Awaitable[bool]]) -> IO[bytes]:
    """The body, at its beginning. Raises BodyRefused (also where the disk is full), or RequestAborted if the client
    left.

    is_known: whether the caller is signed in and may send so many bytes; asked once, and only for a body above
    ANONYMOUS_BYTES. It may raise BodyRefused, too.
    """
    cap = cap_of(scope["path"])
    declared = _declared(scope)
    if declared > cap:
        raise _too_large(cap)
    known = False
    if declared > ANONYMOUS_BYTES:
        known = await _only_known(is_known, declared)
    is_large = cap > settings.FILE_UPLOAD_MAX_MEMORY_SIZE  # others never leave the memory
    place = str(arrivals.folder()) if is_large else None
    body = tempfile.SpooledTemporaryFile(settings.FILE_UPLOAD_MAX_MEMORY_SIZE, dir=place)  # noqa: SIM115 (the request's)
    try:
        received, clock = 0, asyncio.get_running_loop()
        started = clock.time()
        while True:
            ends = started + START_S + received / MIN_BYTES_PER_S
            message = await _next(receive, min(IDLE_S, ends - clock.time()))
            received += len(message.get("body", b""))
            if received > cap:
                raise _too_large(cap)
            if received > ANONYMOUS_BYTES and not known:
                asked = clock.time()
                known = await _only_known(is_known, cap)
                started += clock.time() - asked
            _write(body, message.get("body", b""))
            if not message.get("more_body", False):
                body.seek(0)
                return body
    except BaseException:
        body.close()
        raise


async def discard_rest(receive: Receive) -> None:
    """Take a little more of a body that was refused."""
    received = 0
    try:
        async with asyncio.timeout(LINGER_S):
            while received < LINGER_BYTES:
                message = await receive()
                received += len(message.get("body", b""))
                if message["type"] == "http.disconnect" or not message.get("more_body", False):
                    return
    except TimeoutError:
        return


def _write(body: IO[bytes], part: bytes) -> None:
    try:
        body.write(part)
    except OSError as error:
        if error.errno not in DISK_FULL:
            raise
        raise no_room() from error


def no_room() -> BodyRefused:
    text = "The platform's disk has no room for this now. Ask an operator of this installation to make room."
    return BodyRefused(HTTPStatus.SERVICE_UNAVAILABLE, "disk_full", text)


def _declared(scope: Any) -> int:
    """Content-Length; 0 if there is none, as of a chunked body. The server has checked that it is a number."""
    return int(dict(scope["headers"]).get(b"content-length", 0))


async def _next(receive: Receive, within_s: float) -> Any:
    try:
        async with asyncio.timeout(within_s):
            message = await receive()
    except TimeoutError:
        text = "The request's body did not arrive in time. Send it again over a faster connection."
        raise BodyRefused(HTTPStatus.REQUEST_TIMEOUT, "body_too_slow", text) from None
    if message["type"] == "http.disconnect":
        raise RequestAborted
    return message


async def _only_known(is_known: Callable[[int], Awaitable[bool]], size: int) -> bool:
    if not await is_known(size):
        text = f"A body above {filesize(ANONYMOUS_BYTES)} needs a valid session or token. Sign in first."
        raise BodyRefused(HTTPStatus.UNAUTHORIZED, "not_authenticated", text)
    return True


def _too_large(cap: int) -> BodyRefused:
    text = f"A body here can have at most {filesize(cap)}."
    return BodyRefused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "body_too_large", text)
