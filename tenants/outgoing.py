"""Connections to other servers, made within a bounded time: in it their names are asked for and addresses tried.

What follows on the connection is bounded by tenants.cut_off.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any, TypeVar

T = TypeVar("T")

STEP_S = 5.0
"""How long a question to the resolver, and the try of one address, may take."""


def connected(host: str, port: int, until: float) -> socket.socket:
    """A connection to one of the host's addresses, tried in their order until this time of time.monotonic.

    Its timeout is what its step had. Raises OSError, also for what no name of a host could be.
    """
    fault: Exception = TimeoutError(f"{host} could not be reached")
    for family, kind, protocol, _, where in _addresses(host, port, until):
        left_s = until - time.monotonic()
        if left_s <= 0:
            break
        try:
            plain = socket.socket(family, kind, protocol)  # fails for a kind that this machine does not have
        except OSError as error:
            fault = error
            continue
        plain.settimeout(min(STEP_S, left_s))
        try:
            plain.connect(where)
        except OSError as error:
            plain.close()
            fault = error
        else:
            return plain
    raise fault


def ask_resolver(ask: Callable[[], T], what: str, within_s: float) -> T:
    """What the system's resolver answers, which knows no timeout: so a thread asks, and is left to itself when it takes
    long. Raises what it raised; TimeoutError: it did not answer."""
    found: Future[T] = Future()

    def run() -> None:
        try:
            found.set_result(ask())
        except Exception as error:
            found.set_exception(error)

    threading.Thread(target=run, name="resolver", daemon=True).start()
    if not wait([found], timeout=max(0.0, within_s)).done:
        raise TimeoutError(f"{what} was not resolved in time")
    return found.result()


def _addresses(host: str, port: int, until: float) -> list[Any]:
    def ask() -> list[Any]:
        try:
            return list(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except UnicodeError as error:
            raise OSError(f"{host} is no name of a host: {error}") from error

    return ask_resolver(ask, f"the name {host}", min(STEP_S, until - time.monotonic()))
