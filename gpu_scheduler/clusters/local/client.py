"""Requests to the node daemon: one line out, one line back; or a stream of changes."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpu_scheduler.clusters.base import STALE_S, ClusterBusy, ClusterError, LaunchRefused, RefusalCode

CONNECT_S = 2.0
RESPONSE_S = 30.0


def request(path: str | Path, op: str, *, timeout_s: float = RESPONSE_S, **values: Any) -> Any:
    """Send a request and return the result. Raises ClusterBusy if the daemon does not answer, and its own errors."""
    try:
        line = _exchange(path, {"op": op, **values}, timeout_s)
        response = json.loads(line)
    except (OSError, ValueError) as error:
        raise ClusterBusy(f"The node daemon is not responding: {error or type(error).__name__}.") from error
    if response["ok"]:
        return response["result"]
    raise _error_of(response)


def _error_of(response: dict[str, Any]) -> ClusterError:
    match response["error"]:
        case "refused":
            return LaunchRefused(response["message"], code=RefusalCode(response["code"]))
        case "busy":
            return ClusterBusy(response["message"])
        case _:
            return ClusterError(response["message"])


def ping(path: str | Path, *, timeout_s: float = CONNECT_S) -> dict[str, Any]:
    """{"pid", "nodes", "gangs"} of a daemon that is ready. Raises ClusterBusy if it is not."""
    result: dict[str, Any] = request(path, "ping", timeout_s=timeout_s)
    return result


def connect(path: str | Path, timeout_s: float = CONNECT_S) -> socket.socket:
    """A connection to the daemon. Raises OSError."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(min(CONNECT_S, timeout_s))
        connection.connect(str(path))
        connection.settimeout(timeout_s)
    except OSError:
        connection.close()
        raise
    return connection


def changes(connection: socket.socket) -> Iterator[dict[str, Any]]:
    """The daemon's changes, all gangs first; at least one message per second.

    Raises OSError, ValueError, and the daemon's own errors.
    """
    connection.settimeout(STALE_S)
    connection.sendall(b'{"op": "watch"}\n')
    with connection.makefile("rb") as lines:
        for line in lines:
            change = json.loads(line)
            if not change.get("ok", True):
                raise _error_of(change)
            yield change
    raise ConnectionError("the connection was closed")


def _exchange(path: str | Path, message: dict[str, Any], timeout_s: float) -> bytes:
    with connect(path, timeout_s) as connection:
        connection.sendall(json.dumps(message).encode() + b"\n")
        with connection.makefile("rb") as response:
            line = response.readline()
    if not line.endswith(b"\n"):
        raise ConnectionError("the connection was closed")
    return line
