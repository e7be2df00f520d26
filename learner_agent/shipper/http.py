"""Bulk bytes over HTTP: one request at a time, in a thread, with the learner's secret in the header.

Temporary errors (no response, 5xx, 408, 429) are ``Unreachable``; a permanent refusal is ``Refused``.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

TIMEOUT_S = 30.0
PIECE_BYTES = 4 * 1024 * 1024


class Unreachable(Exception):
    """The server did not respond, or asked to wait: try again later."""


class Refused(Exception):
    """The server refused; status, code and message are its own."""

    def __init__(self, status: int, code: str, message: str, body: Mapping[str, Any]) -> None:
        super().__init__(message or code)
        self.status = status
        self.code = code
        self.body = body


@dataclass(frozen=True, slots=True)
class Client:
    """Requests to one server with one learner's secret."""

    base: str
    secret: str

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
        content = await asyncio.to_thread(self._request, path, "GET", None, headers)
        if len(content) != size:
            raise Unreachable(f"{path}: {len(content)} bytes instead of {size}")
        return content

    def _request(self, path: str, method: str, body: bytes | None, headers: dict[str, str]) -> bytes:
        headers["Authorization"] = f"Bearer {self.secret}"
        if body is not None:
            headers.setdefault("Content-Type", "application/octet-stream")
        request = urllib.request.Request(self.base + path, data=body, headers=headers, method=method)  # noqa: S310
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:  # noqa: S310 - settings allow http(s) only
                content: bytes = response.read()
                return content
        except urllib.error.HTTPError as error:
            raise _as_refusal(error) from error
        except (OSError, http.client.HTTPException) as error:
            raise Unreachable(f"{path}: {error}") from error


def _as_refusal(error: urllib.error.HTTPError) -> Exception:
    try:
        body = json.loads(error.read(64 * 1024))
    except (OSError, ValueError, http.client.HTTPException):
        body = None
    body = body if isinstance(body, dict) else {}
    if error.code >= 500 or error.code in (408, 429):
        return Unreachable(f"HTTP {error.code}")
    message = str(body.get("detail") or body.get("title") or f"HTTP {error.code}")
    return Refused(error.code, str(body.get("code", "")), message, body)
