"""Bulk bytes over HTTP: each request in a thread, with the learner's secret in the header.

The secret is for the server only: a redirect to the store is followed without it. Temporary errors (no response, 5xx,
408, 429) are ``Unreachable``; a permanent refusal is ``Refused``. An unknown secret (401) counts as temporary: the
learner's connection decides for how long. So does a server that sees no TLS: the settings of its proxies are wrong.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import random
import re
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import IO, Any, TypeVar
from urllib.parse import urlsplit

from learner_agent.shipper import tls
from learner_agent.wire_fields import BEING_FINISHED

TIMEOUT_S = 30.0
IDLE_S = 10.0
"""A connection that is idle for longer is used no more: the store may have closed it, or what is between may have
forgotten it without a word, which only a timeout would show."""
GIVE_UP_S = 24 * 3600.0
"""A server or store that takes nothing for so long (it is full, say) will not: the job must end."""
NO_TLS = "https_required"
FINISHING_S = 2.0
"""The store makes one object of a file's parts: a job may hold its GPUs until it is there."""
STORE_CODE = re.compile(rb"<Code>([A-Za-z]{1,60})</Code>")
"""An S3-compatible store answers in XML."""
T = TypeVar("T")
BLOCK = 1024 * 1024
PIECE_BYTES = 4 * 1024 * 1024


class Unreachable(Exception):
    """The server did not respond, or asked to wait: try again later, after most_s seconds at most."""

    def __init__(self, message: str, most_s: float = 30.0) -> None:
        super().__init__(message)
        self.most_s = most_s


class Refused(Exception):
    """The server refused; status, code and message are its own."""

    def __init__(self, status: int, code: str, message: str, body: Mapping[str, Any]) -> None:
        super().__init__(message or code)
        self.status = status
        self.code = code
        self.body = body


async def patiently(request: Callable[[], Awaitable[T]]) -> T:
    """The request's result, however long the other side is unavailable, up to a day. Raises Unreachable after it."""
    began, tries = time.monotonic(), 0
    while True:
        try:
            return await request()
        except Unreachable as error:
            if time.monotonic() - began > GIVE_UP_S:
                raise
            tries += 1
            await asyncio.sleep(random.uniform(0, min(error.most_s, 0.5 * 2 ** min(tries, 10))))


class Connections:
    """Connections to a store that are used again: with one for each piece, a large file has hundreds of handshakes.
    Through a proxy there is one for each piece.

    Only for reading, as a request may be sent twice. Callable from several threads.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[_Idle] = []
        self._is_closed = False

    def get(self, url: str, headers: dict[str, str], most: int) -> bytes:
        """The first bytes of the response, at most so many. Raises Unreachable or Refused."""
        if _is_behind_proxy(url):
            return _get_by_proxy(url, headers, most)
        place, target = _split(url)
        used = self._take(place)
        while True:
            connection = used or _connection(place)
            may_be_kept = False
            try:
                connection.request("GET", target, headers=headers)
                response = connection.getresponse()
                if response.status >= 300:
                    raise _as_refusal(response.status, response)
                content: bytes = response.read(most)  # a store that knows no ranges sends the whole file
                may_be_kept = response.isclosed() and not response.will_close
                return content
            except (OSError, http.client.HTTPException) as error:
                if used is None or isinstance(error, TimeoutError) or not isinstance(error, OSError):
                    raise _unreachable(target, error) from error
            finally:
                if not may_be_kept or not self._keep(_Idle(place, connection, time.monotonic())):
                    connection.close()
            used = None  # the store has closed it since: once more, by another one

    def close(self) -> None:
        """None is kept from now on, nor those that are in use."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
        for each in idle:
            each.connection.close()

    def _keep(self, idle: _Idle) -> bool:
        with self._lock:
            if not self._is_closed:
                self._idle.append(idle)
            return not self._is_closed

    def _take(self, place: str) -> http.client.HTTPConnection | None:
        """One that was used before, if any can be; those that cannot are closed."""
        with self._lock:
            idle, now = self._idle, time.monotonic()
            usable = [each for each in idle if each.place == place and now - each.since < IDLE_S]
            self._idle = usable[:-1]
        for each in idle:
            if each not in usable:
                each.connection.close()
        return usable[-1].connection if usable else None


@dataclass(frozen=True, slots=True, eq=False)
class _Idle:
    place: str
    connection: http.client.HTTPConnection
    since: float


@dataclass(frozen=True, slots=True)
class Client:
    """Requests to one server with one learner's secret."""

    base: str
    secret: str
    _links: dict[str, str] = field(default_factory=dict)
    """Path -> where the store has its bytes, until that link expires."""
    _store: Connections = field(default_factory=Connections)

    async def json(self, path: str, *, method: str = "GET", body: bytes | None = None,
                   headers: Mapping[str, str] | None = None) -> dict[str, Any]:  # fmt: skip
        """Send one request and read its JSON object. Raises Unreachable or Refused."""
        content = await asyncio.to_thread(self._request, path, method, body, dict(headers or {}))
        try:
            body = json.loads(content)
        except ValueError as error:
            raise Unreachable(f"{path}: the response is not JSON") from error
        return body if isinstance(body, dict) else {}

    async def piece(self, path: str, start: int, size: int) -> bytes:
        """Read bytes start … start+size-1 of the resource at path. Raises Unreachable or Refused."""
        headers = {"Range": f"bytes={start}-{start + size - 1}"}
        content = await asyncio.to_thread(self._piece, path, headers, size + 1)
        if len(content) != size:
            raise Unreachable(f"{path}: {len(content)} bytes instead of {size}")
        return content

    async def put_file(
        self, url: str, headers: dict[str, str], source: IO[bytes], start: int, size: int
    ) -> None:
        """Send bytes start … start+size-1 of an open file to a link. Raises Unreachable, Refused or Unreadable."""
        await asyncio.to_thread(_put_file, url, headers, _Section(source.fileno(), start, size))

    def link_of(self, path: str) -> str | None:
        """Where the store has the bytes of this path, None if they come from the server or are not known yet."""
        return self._links.get(path)

    def leave_store(self) -> None:
        """Close the connections on which the store gave pieces."""
        self._store.close()

    def _piece(self, path: str, headers: dict[str, str], most: int) -> bytes:
        link = self._links.get(path)
        if link is None:
            try:
                return self._request(path, "GET", None, headers)
            except Moved as moved:
                link = self._links[path] = moved.location
        try:
            return self._store.get(link, headers, most)
        except Refused as refusal:  # of the store, which knows nothing of attempts: never the learner's end
            self._links.pop(path, None)
            if refusal.status == 404:
                raise Refused(410, "blob_gone", f"{path} is not in the store.", {}) from refusal
            raise Unreachable(f"{path}: the store answered {refusal.status} {refusal.code}") from refusal

    def _request(self, path: str, method: str, body: bytes | None, headers: dict[str, str]) -> bytes:
        if body is not None:
            headers.setdefault("Content-Type", "application/octet-stream")
        return _send(self.base + path, method, body, {**headers, "Authorization": f"Bearer {self.secret}"})


class Moved(Exception):
    """The bytes are elsewhere."""

    def __init__(self, location: str) -> None:
        super().__init__("moved")
        self.location = location


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Python's own would send the secret along."""

    def redirect_request(self, *_: Any) -> None:
        return None


class _Tls(urllib.request.HTTPSHandler):
    """Python's own makes a context when it is made, from Python 3.12 on."""

    def __init__(self) -> None:
        super(urllib.request.HTTPSHandler, self).__init__()

    def https_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(http.client.HTTPSConnection, request, context=tls.context())


_opener = urllib.request.build_opener(_NoRedirects, _Tls)


def _is_behind_proxy(url: str) -> bool:
    """Whether the settings of this machine (https_proxy, no_proxy …) name a proxy for it."""
    parts = urlsplit(url)
    return parts.scheme in urllib.request.getproxies() and not urllib.request.proxy_bypass(parts.netloc)


def _get_by_proxy(url: str, headers: Mapping[str, str], most: int) -> bytes:
    try:
        return _send(url, "GET", None, headers, most)
    except Moved as moved:
        raise _unreachable(url, moved) from moved


def _send(
    url: str, method: str, body: bytes | None, headers: Mapping[str, str], most: int | None = None
) -> bytes:
    """The response, or its first bytes."""
    request = urllib.request.Request(url, data=body, headers=dict(headers), method=method)  # noqa: S310
    try:
        with _opener.open(request, timeout=TIMEOUT_S) as response:  # settings allow http(s) only
            content: bytes = response.read(most)
            return content
    except urllib.error.HTTPError as error:
        if error.code == 307 and method == "GET" and (location := error.headers.get("Location")):
            error.close()
            raise Moved(location) from error
        raise _as_refusal(error.code, error) from error
    except (OSError, http.client.HTTPException) as error:
        raise _unreachable(url, error) from error


def _split(url: str) -> tuple[str, str]:
    """Scheme and host of a URL, and what is requested there."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}", f"{parts.path}?{parts.query}"


def _connection(place: str) -> http.client.HTTPConnection:
    scheme, _, host = place.partition("://")
    if scheme == "https":
        return http.client.HTTPSConnection(host, timeout=TIMEOUT_S, blocksize=BLOCK, context=tls.context())
    return http.client.HTTPConnection(host, timeout=TIMEOUT_S, blocksize=BLOCK)


def _unreachable(url: str, error: Exception) -> Unreachable:
    """Without the query of a URL: of a link it is the permission."""
    return Unreachable(f"{urlsplit(url).path}: {error}")


def _put_file(url: str, headers: Mapping[str, str], section: _Section) -> None:
    place, target = _split(url)
    connection = _connection(place)
    try:
        connection.request("PUT", target, section, {**headers, "Content-Length": str(section.left)})
        response = connection.getresponse()
        if response.status >= 300:
            raise _as_refusal(response.status, response)
        response.read()
    except (OSError, http.client.HTTPException) as error:
        raise _unreachable(target, error) from error
    finally:
        connection.close()


class Unreadable(Exception):
    """The file that is being sent ended early or cannot be read."""


class _Section:
    """size bytes of an open file, for http.client to read while other parts of it are read, too.

    Raises Unreadable, which no error of the connection hides.
    """

    def __init__(self, handle: int, start: int, size: int) -> None:
        self._handle, self._at, self.left = handle, start, size

    def read(self, most: int = -1) -> bytes:
        wanted = self.left if most < 0 else min(most, self.left)
        try:
            block = os.pread(self._handle, wanted, self._at)
        except OSError as error:
            raise Unreadable(str(error)) from error
        if wanted and not block:
            raise Unreadable("it became shorter")
        self._at += len(block)
        self.left -= len(block)
        return block


def _as_refusal(status: int, response: Any) -> Exception:
    try:
        content = response.read(64 * 1024)
        body = json.loads(content)
    except (OSError, http.client.HTTPException):
        content, body = b"", None
    except ValueError:
        body = None
    body = body if isinstance(body, dict) else {}
    of_store = STORE_CODE.search(content)
    code = str(body.get("code", "")) or (of_store[1].decode() if of_store else "")
    if code == BEING_FINISHED:
        return Unreachable(f"HTTP {status} {code}", FINISHING_S)
    if status >= 500 or status in (401, 408, 429):
        return Unreachable(f"HTTP {status}")
    if code == NO_TLS:
        return Unreachable(f"HTTP {status} {code}")
    message = str(body.get("detail") or body.get("title") or f"HTTP {status} {code}".strip())
    return Refused(status, code, message, body)
