"""A pool of PostgreSQL connections.

A new connection is a new process of PostgreSQL with cold caches, which costs more than all statements of a request
(docs/adr/0013). So a connection that Django closes waits here for its next use. The pool is empty until `set_size` is
called, as web processes do when they start, and workers, for Celery closes a connection before and after each task.
"""

from __future__ import annotations

import select
import threading
import time
from collections import deque
from typing import Any

import psycopg2.extensions as psycopg

IDLE_S = 3.0
"""Seconds until an unused connection is closed, which frees its process and memory."""

Connection = Any  # psycopg2's, whose stubs know no generic one

_lock = threading.Lock()
_free: deque[tuple[float, str, Connection]] = deque()  # most recently used last
_most = 0
_closer: threading.Thread | None = None


def set_size(most: int) -> None:
    """Keep up to `most` unused connections in this process; close those in excess."""
    global _most
    with _lock:
        _most = most
        over = [_free.popleft()[2] for _ in range(len(_free) - most)]
    for connection in over:
        connection.close()


def acquire(dsn: str) -> Connection | None:
    """An unused, working connection to this database, most recently used first; None if there is none."""
    while True:
        with _lock:
            place = next((n for n in reversed(range(len(_free))) if _free[n][1] == dsn), None)
            if place is None:
                return None
            connection = _free[place][2]
            del _free[place]
        if _is_usable(connection):
            return connection
        connection.close()


def release(dsn: str, connection: Connection) -> bool:
    """Keep this connection for its next use; False if it must be closed instead."""
    global _closer
    if not _most or connection.closed:
        return False
    if connection.info.transaction_status != psycopg.TRANSACTION_STATUS_IDLE:
        return False
    with _lock:
        if len(_free) >= _most:
            return False
        _free.append((time.monotonic(), dsn, connection))
        if _closer is None:
            _closer = threading.Thread(target=_close_unused, name="unused-connections", daemon=True)
            _closer.start()
    return True


def _is_usable(connection: Connection) -> bool:
    """An idle connection that has something to read was closed by the server."""
    if connection.closed:
        return False
    look = select.poll()
    look.register(connection.fileno(), select.POLLIN)
    return not look.poll(0)


def _close_unused() -> None:
    """Close connections unused for IDLE_S; end when the pool is empty."""
    global _closer
    while True:
        time.sleep(IDLE_S / 3)
        over: list[Connection] = []
        with _lock:
            while _free and time.monotonic() - _free[0][0] > IDLE_S:
                over.append(_free.popleft()[2])
            ended = not _free
            if ended:
                _closer = None
        for connection in over:
            connection.close()
        if ended:
            return
