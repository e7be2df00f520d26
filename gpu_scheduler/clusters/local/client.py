"""Requests to the node daemon: one line out, one line back; or a stream of changes."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_scheduler.clusters.base import STALE_S, ClusterBusy, ClusterError, LaunchRefused, RefusalCode
from gpu_scheduler.clusters.local import protocol

CONNECT_S = 2.0
RESPONSE_S = 30.0


@dataclass(frozen=True, slots=True)
class Address:
    """Where the node daemon listens, and the file of the key that it asks for."""

    socket: Path
    key: Path

    def request(self, op: str, **values: Any) -> bytes:
        """One line. The file is read each time, so that a new key counts at once. Raises OSError, ValueError."""
        return json.dumps({"key": protocol.read_key(self.key), "op": op, **values}).encode() + b"\n"


def request(address: Address, op: str, *, timeout_s: float = RESPONSE_S, **values: Any) -> Any:
    """Send a request and return the result. Raises ClusterBusy if the daemon does not answer, and its own errors."""
    try:
        line = _exchange(address, op, values, timeout_s)
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


def ping(address: Address, *, timeout_s: float = CONNECT_S) -> dict[str, Any]:
    """{"pid", "nodes", "gangs", "isolation"} of a daemon that is ready. Raises ClusterBusy if it is not."""
    result: dict[str, Any] = request(address, "ping", timeout_s=timeout_s)
    return result


def connect(address: Address, timeout_s: float = CONNECT_S) -> socket.socket:
    """A connection to the daemon. Raises OSError."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(min(CONNECT_S, timeout_s))
        connection.connect(str(address.socket))
        connection.settimeout(timeout_s)
    except OSError:
        connection.close()
        raise
    return connection


def changes(address: Address, connection: socket.socket) -> Iterator[dict[str, Any]]:
    """The daemon's changes, all gangs first; at least one message per second.

    Raises OSError, ValueError, and the daemon's own errors.
    """
    connection.settimeout(STALE_S)
    connection.sendall(address.request("watch"))
    with connection.makefile("rb") as lines:
        for line in lines:
            change = json.loads(line)
            if not change.get("ok", True):
                raise _error_of(change)
            yield change
    raise ConnectionError("the connection was closed")


def _exchange(address: Address, op: str, values: dict[str, Any], timeout_s: float) -> bytes:
    with connect(address, timeout_s) as connection:
        connection.sendall(address.request(op, **values))
        with connection.makefile("rb") as response:
            line = response.readline()
    if not line.endswith(b"\n"):
        raise ConnectionError("the connection was closed")
    return line
