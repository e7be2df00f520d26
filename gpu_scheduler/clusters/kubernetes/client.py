"""Requests to the API server, with objects as plain JSON. The only module that imports the ``kubernetes`` library.

The library finds and refreshes credentials and keeps connections; its typed models would cost a second of CPU per
thousand pods and give nothing here. Every error is translated here, once.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import orjson
import urllib3

from gpu_scheduler.clusters.base import ClusterBusy, ClusterError, GangBlocked

if TYPE_CHECKING:
    from kubernetes.client import Configuration

Object = dict[str, Any]

CONNECT_S, READ_S = 3.0, 10.0
CONNECTIONS = 24
IN_POD = "KUBERNETES_SERVICE_HOST"
"""Kubernetes sets this variable in every container. The library's own search prints to standard output in a pod."""
MERGE_PATCH = "application/merge-patch+json"
WATCH_SLACK_S = 2.0
"""Seconds that a watch may be silent beyond its own end; then its connection is dead."""
RETRY_AFTER_MAX_S = 30.0
EXISTS = "AlreadyExists"
"""The reason of a 409 that says so; without it nothing was created."""
BUSY = frozenset({401, 408, 429})
"""Answers that say nothing about the request: a token that is being renewed, a time limit, too many requests."""


class RequestRejected(ClusterError):
    """The API server understood the request and does not do it; the message is its own."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"Kubernetes: {message}" if message else f"Kubernetes: {status} {reason}")
        self.status = status
        self.reason = reason


class NotFound(RequestRejected):
    """There is no such object."""


class NoPermission(RequestRejected):
    """This identity may not do it. What an admission rule (a quota, Pod Security) forbids is a RequestRejected."""


class Conflict(RequestRejected):
    """The object exists already, or it is another one than the request means (its uid)."""


_BY_STATUS = {404: NotFound, 409: Conflict}
_NO_PERMISSION = re.compile(r'User ".*" cannot \S+ (resource|path) "')
"""In the API server's own words for every authorizer. Admission rules answer 403, too, each in words of its own."""


def _rejection(status: int, reason: str, message: str) -> RequestRejected:
    if status == 403 and _NO_PERMISSION.search(message):
        return NoPermission(status, reason, message)
    return _BY_STATUS.get(status, RequestRejected)(status, reason, message)


class Api:
    """One API server. Safe to share between threads. Makes no connection before its first request."""

    def __init__(self, kubeconfig: str | None, context: str | None = None) -> None:
        """context: of the kubeconfig; None: its current one. Raises ValueError if there is no usable configuration."""
        from kubernetes.client import ApiClient  # a second of imports that no other cluster needs

        self._client = ApiClient(_configuration(kubeconfig, context))
        self._lock = threading.Lock()
        self._not_before = 0.0

    def close(self) -> None:
        self._client.rest_client.close()

    def get(self, path: str, **query: str) -> Object:
        return self.request("GET", path, query=query)

    def create(self, path: str, body: Object) -> Object:
        """Raises Conflict only if the object exists already. The API server answers 409 as well where it created
        nothing, because a quota that counts the object was changed meanwhile, or because of an admission webhook: that
        raises GangBlocked, since it may last."""
        try:
            return self.request("POST", path, body)
        except Conflict as error:
            if error.reason == EXISTS:
                raise
            raise GangBlocked(str(error)) from error

    def patch(self, path: str, body: Object) -> Object:
        """Merge this into the object. With metadata.uid in it, another object of that name raises Conflict."""
        return self.request("PATCH", path, body, content_type=MERGE_PATCH)

    def delete(self, path: str, *, uid: str, grace_s: int | None = None) -> Object:
        """Delete this very object; one of the same name that came later raises Conflict."""
        options: Object = {"preconditions": {"uid": uid}, "propagationPolicy": "Background"}
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        return self.request("DELETE", path, options)

    def request(
        self,
        method: str,
        path: str,
        body: Object | None = None,
        *,
        query: Mapping[str, str] | None = None,
        content_type: str = "application/json",
    ) -> Object:
        """The object in the response. Raises ClusterBusy and RequestRejected."""
        with self._response(method, path, body, query or {}, content_type, READ_S) as response:
            return _object(response.data)

    def watch(self, path: str, version: str, *, timeout_s: int, stream: Stream) -> Iterator[Object]:
        """The changes after this version, until the server ends the watch after timeout_s.

        Raises ClusterBusy if the connection breaks, and RequestRejected, also (410) for changes that it has forgotten.
        """
        query = {
            "watch": "1",
            "resourceVersion": version,
            "timeoutSeconds": str(timeout_s),
            "allowWatchBookmarks": "true",
        }
        silence_s = timeout_s + WATCH_SLACK_S
        with (
            self._response("GET", path, None, query, "", silence_s) as response,
            stream.reading(response),
        ):
            yield from map(_change, _lines(response))

    @contextmanager
    def _response(
        self,
        method: str,
        path: str,
        body: Object | None,
        query: Mapping[str, str],
        content_type: str,
        read_s: float,
    ) -> Iterator[urllib3.BaseHTTPResponse]:
        if time.monotonic() < self._not_before:
            raise ClusterBusy("The Kubernetes API asked to wait.")
        configuration = self._client.configuration
        url = f"{configuration.host}{path}" + (f"?{urlencode(query)}" if query else "")
        headers = {"Accept": "application/json", "User-Agent": "luthier"}
        if body is not None:
            headers["Content-Type"] = content_type
        for credential in configuration.auth_settings().values():
            headers[credential["key"]] = credential["value"]
        response = None
        try:
            answered = self._client.call_api(method, url, headers, body, _request_timeout=(CONNECT_S, read_s))
            response = answered.response
            if response.status >= 400:
                raise self._error(response)
            yield response
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise ClusterBusy(f"The Kubernetes API does not answer: {_first_line(error)}") from error
        finally:
            if response is not None:
                # One that was read to its end goes back to the pool; another cannot be used again.
                response.release_conn() if response.closed else response.close()

    def _error(self, response: urllib3.BaseHTTPResponse) -> ClusterError:
        status, reason, message = response.status, response.reason or "", ""
        try:
            found = orjson.loads(response.data)
            reason, message = str(found.get("reason", "")), str(found.get("message", ""))
        except (ValueError, AttributeError):
            pass  # a proxy's own page
        if status in BUSY or status >= 500:
            self._wait_as_asked(response)
            return ClusterBusy(f"The Kubernetes API is busy: {message or f'{status} {reason}'}")
        return _rejection(status, reason, message)

    def _wait_as_asked(self, response: urllib3.BaseHTTPResponse) -> None:
        """Until then every request of this process fails at once, without one more call to a busy server."""
        seconds = response.headers.get("Retry-After", "")
        if seconds.isdigit():
            with self._lock:
                self._not_before = time.monotonic() + min(RETRY_AFTER_MAX_S, int(seconds))


class Stream:
    """The end of a watch from another thread: it must not wait until the server ends it."""

    def __init__(self) -> None:
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._response: urllib3.BaseHTTPResponse | None = None

    @property
    def is_closed(self) -> bool:
        return self._closed.is_set()

    def wait(self, seconds: float) -> None:
        """Wait, but not beyond the end."""
        self._closed.wait(seconds)

    @contextmanager
    def reading(self, response: urllib3.BaseHTTPResponse) -> Iterator[None]:
        with self._lock:
            self._response = response
        try:
            yield
        finally:
            with self._lock:
                self._response = None

    def close(self) -> None:
        self._closed.set()
        with self._lock:
            if isinstance(self._response, urllib3.HTTPResponse):
                try:
                    self._response.shutdown()
                except (OSError, ValueError, RuntimeError):
                    pass  # it has just ended by itself


def _configuration(kubeconfig: str | None, context: str | None) -> Configuration:
    from kubernetes import config
    from kubernetes.client import Configuration

    configuration = Configuration()
    try:
        if kubeconfig:
            config.load_kube_config(  # type: ignore[no-untyped-call]  # the client has no types
                config_file=kubeconfig,
                context=context,
                client_configuration=configuration,
                persist_config=False,
            )
        elif IN_POD in os.environ:
            config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]  # the client has no types
        else:
            config.load_kube_config(  # type: ignore[no-untyped-call]  # the client has no types
                client_configuration=configuration, persist_config=False
            )
    except (config.ConfigException, OSError) as error:
        where = kubeconfig or "not set, and this process is not in a pod of the cluster"
        raise ValueError(f"KUBECONFIG is {where}: {_first_line(error)}") from error
    configuration.retries = 0  # callers know what may be repeated
    configuration.connection_pool_maxsize = CONNECTIONS
    return configuration


def _lines(response: urllib3.BaseHTTPResponse) -> Iterator[bytes]:
    rest = b""
    for chunk in response.stream(64 * 1024):
        *lines, rest = (rest + chunk).split(b"\n")
        yield from filter(None, lines)
    if rest:
        raise urllib3.exceptions.ProtocolError("the watch ended within a line")


def _change(line: bytes) -> Object:
    change = _object(line)
    if change.get("type") == "ERROR":
        status = change.get("object", {})
        code, reason, message = status.get("code", 500), status.get("reason", ""), status.get("message", "")
        if code >= 500 or code in BUSY:
            raise ClusterBusy(f"The Kubernetes API ended a watch: {message}")
        raise _rejection(code, reason, message)
    return change


def _object(content: bytes) -> Object:
    try:
        found = orjson.loads(content)
    except ValueError as error:
        raise ClusterBusy("The Kubernetes API returned something that is not JSON.") from error
    if not isinstance(found, dict):
        raise ClusterBusy("The Kubernetes API returned something that is not an object.")
    return found


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:300]
