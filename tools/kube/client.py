"""A small client of the Kubernetes API: requests with a kubeconfig's certificates, and waiting by watches.

For tests and for starting the cluster. The platform's own driver uses the official client.
"""

from __future__ import annotations

import json
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPResponse, HTTPSConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

Object = dict[str, Any]
MERGE_PATCH = "application/merge-patch+json"


class ApiError(Exception):
    """The API server refused a request."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"{status} {reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message


class Api:
    """The API server that a kubeconfig names, as the user whose certificate or token it names.

    port: of another server beside it, with a certificate of the same authority.
    """

    def __init__(self, kubeconfig: Path, port: int | None = None) -> None:
        content = json.loads(kubeconfig.read_text())
        cluster = content["clusters"][0]["cluster"]
        user = content["users"][0]["user"]
        address = urlsplit(cluster["server"])
        assert address.hostname
        self._host, self._port = address.hostname, port or address.port
        self._tls = ssl.create_default_context(cafile=cluster["certificate-authority"])
        self._headers = {}
        if token := user.get("token"):
            self._headers["Authorization"] = f"Bearer {token}"
        else:
            self._tls.load_cert_chain(user["client-certificate"], user["client-key"])

    def get(self, path: str, **query: str) -> Object:
        return self.request("GET", path, query=query)

    def create(self, path: str, body: Object) -> Object:
        return self.request("POST", path, body)

    def patch(self, path: str, body: Object) -> Object:
        return self.request("PATCH", path, body, content_type=MERGE_PATCH)

    def delete(self, path: str) -> Object:
        return self.request("DELETE", path)

    def request(
        self,
        method: str,
        path: str,
        body: Object | None = None,
        *,
        query: dict[str, str] | None = None,
        content_type: str = "application/json",
    ) -> Object:
        with self._send(method, path, body, query or {}, content_type, timeout_s=30) as response:
            found = json.loads(response.read())
        assert isinstance(found, dict)
        return found

    def text(self, path: str) -> str:
        """What a path that does not answer with JSON says, like /readyz."""
        with self._send("GET", path, None, {}, "text/plain", timeout_s=5) as response:
            return response.read().decode()

    def wait_for(
        self, path: str, name: str, condition: Callable[[Object | None], object], timeout_s: float = 60
    ) -> Object | None:
        """The object once the condition holds; the condition gets None while there is no such object.

        path: of the collection. Watches, so that nothing is missed and nothing is polled; a watch that ends is
        followed by a new list. Raises TimeoutError with the last state.
        """
        deadline = time.monotonic() + timeout_s
        selector = {"fieldSelector": f"metadata.name={name}"}
        found: Object | None = None
        while time.monotonic() < deadline:
            listed = self.get(path, **selector)
            found = next(iter(listed["items"]), None)
            if condition(found):
                return found
            version = listed["metadata"]["resourceVersion"]
            for event in self._watch(path, {**selector, "resourceVersion": version}, deadline):
                if event["type"] == "ERROR":  # the version is too old
                    break
                found = None if event["type"] == "DELETED" else event["object"]
                if condition(found):
                    return found
        raise TimeoutError(
            f"{path}/{name} after {timeout_s:g} s: {json.dumps(found and found.get('status'))}"
        )

    def _watch(self, path: str, query: dict[str, str], deadline: float) -> Iterator[Object]:
        left = max(1, round(deadline - time.monotonic()))
        query = {**query, "watch": "1", "timeoutSeconds": str(left)}
        with self._send("GET", path, None, query, "application/json", timeout_s=left + 5) as response:
            for line in response:
                yield json.loads(line)

    @contextmanager
    def _send(
        self,
        method: str,
        path: str,
        body: Object | None,
        query: dict[str, str],
        content_type: str,
        *,
        timeout_s: float,
    ) -> Iterator[HTTPResponse]:
        connection = HTTPSConnection(self._host, self._port, timeout=timeout_s, context=self._tls)
        try:
            target = f"{path}?{urlencode(query)}" if query else path
            content = json.dumps(body) if body is not None else None
            connection.request(method, target, content, {"Content-Type": content_type, **self._headers})
            response = connection.getresponse()
            if response.status >= 400:
                raise _error(response)
            yield response
        finally:
            connection.close()


def _error(response: HTTPResponse) -> ApiError:
    content = response.read().decode(errors="replace")
    try:
        status = json.loads(content)
        return ApiError(response.status, status.get("reason", ""), status.get("message", ""))
    except ValueError:
        return ApiError(response.status, response.reason, content.strip())
