"""One question to the node daemon, one answer."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

from gpu_scheduler.clusters.base import ClusterBusy, ClusterError, LaunchRefused, RefusalCode

CONNECT_S = 2.0
ANSWER_S = 30.0


def ask(path: str | Path, op: str, *, timeout_s: float = ANSWER_S, **values: Any) -> Any:
    """Ask and return the answer. Raises ClusterBusy when the daemon is away, and what it answers with."""
    try:
        line = _exchange(str(path), {"op": op, **values}, timeout_s)
        reply = json.loads(line)
    except (OSError, ValueError) as error:
        raise ClusterBusy(f"The node daemon does not answer: {error or type(error).__name__}.") from error
    if reply["ok"]:
        return reply["answer"]
    match reply["error"]:
        case "refused":
            raise LaunchRefused(reply["message"], code=RefusalCode(reply["code"]))
        case "busy":
            raise ClusterBusy(reply["message"])
        case _:
            raise ClusterError(reply["message"])


def ping(path: str | Path, *, timeout_s: float = CONNECT_S) -> dict[str, Any]:
    """Say that the daemon is ready: {"pid", "nodes", "gangs"}. Raises ClusterBusy if it is not."""
    answer: dict[str, Any] = ask(path, "ping", timeout_s=timeout_s)
    return answer


def _exchange(path: str, request: dict[str, Any], timeout_s: float) -> bytes:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
        link.settimeout(min(CONNECT_S, timeout_s))
        link.connect(path)
        link.settimeout(timeout_s)
        link.sendall(json.dumps(request).encode() + b"\n")
        with link.makefile("rb") as answer:
            line = answer.readline()
    if not line.endswith(b"\n"):
        raise OSError("it hung up")
    return line
