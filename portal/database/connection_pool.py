"""Connections that outlive their request.

Under ASGI each request has a thread of its own, so Django's connection would end with it; and a fresh one is a new
process of PostgreSQL with cold caches, which cost more than all the statements of a request (docs/adr/0013). So a
closed connection waits here for the next request. Nothing is kept until `keep` says how many, which only the web
process does: workers hold locks of whole sessions, and closing a connection must free those.
"""

from __future__ import annotations

import select
import threading
import time
from collections import deque
from typing import Any

import psycopg2.extensions as psycopg

IDLE_S = 3.0
"""So long an unused connection waits; then its process and its memory go back."""

Connection = Any  # psycopg2's, whose stubs know no generic one

_lock = threading.Lock()
_free: deque[tuple[float, str, Connection]] = deque()  # the one used last at the right
_most = 0
_keeper: threading.Thread | None = None


def keep(most: int) -> None:
    """From now on keep up to so many unused connections in this process; what is too many is closed."""
    global _most
    with _lock:
        _most = most
        over = [_free.popleft()[2] for _ in range(len(_free) - most)]
    for connection in over:
        connection.close()


def take(dsn: str) -> Connection | None:
    """An unused connection to this database that is still sound, the most recently used first."""
    while True:
        with _lock:
            place = next((n for n in reversed(range(len(_free))) if _free[n][1] == dsn), None)
            if place is None:
                return None
            connection = _free[place][2]
            del _free[place]
        if _is_sound(connection):
            return connection
        connection.close()


def give(dsn: str, connection: Connection) -> bool:
    """Keep this connection for the next one who needs it; False if it must be closed instead."""
    global _keeper
    if not _most or connection.closed:
        return False
    if connection.info.transaction_status != psycopg.TRANSACTION_STATUS_IDLE:
        return False
    with _lock:
        if len(_free) >= _most:
            return False
        _free.append((time.monotonic(), dsn, connection))
        if _keeper is None:
            _keeper = threading.Thread(target=_close_unused, name="unused-connections", daemon=True)
            _keeper.start()
    return True


def _is_sound(connection: Connection) -> bool:
    """An idle connection has nothing to read: if it has, the server said goodbye or is gone."""
    if connection.closed:
        return False
    look = select.poll()
    look.register(connection.fileno(), select.POLLIN)
    return not look.poll(0)


def _close_unused() -> None:
    """Close what nobody wanted for IDLE_S, until nothing is left."""
    global _keeper
    while True:
        time.sleep(IDLE_S / 3)
        over: list[Connection] = []
        with _lock:
            while _free and time.monotonic() - _free[0][0] > IDLE_S:
                over.append(_free.popleft()[2])
            ended = not _free
            if ended:
                _keeper = None
        for connection in over:
            connection.close()
        if ended:
            return
