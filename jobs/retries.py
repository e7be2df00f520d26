"""Failures of the database that say nothing about the work: it is away, or it interrupted a transaction.

A transaction that the database rolled back in favor of another one is retried as a whole.

Locks are taken in one order (docs/adr/0012-one-lock-order.md), so this is the second line of defense. Nothing of a
rolled-back transaction was written and none of its after-commit calls runs, so the retry starts from fresh rows.
"""

from __future__ import annotations

import functools
import logging
import random
import time
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from django.db import DatabaseError, InterfaceError, OperationalError, connection
from psycopg2 import Error as DriverError

logger = logging.getLogger(__name__)

RETRIED = {"40P01": "deadlock", "40001": "serialization failure"}
LOCKED = {"55P03": "lock_timeout", "57014": "statement_timeout"}
READ_ONLY = "25006"
TRIES = 4
PAUSE_S = 0.05

P = ParamSpec("P")
R = TypeVar("R")


def database_away(error: BaseException | None) -> bool:
    """Whether the database did not answer: away, restarting, too busy, read-only, or the connection to it broke.

    A connection that breaks amid an answer reaches us as the plain DatabaseError, with no code of the database's;
    Django raises that type, too, for what it finds by itself, but with no error of the driver behind it.
    """
    if isinstance(error, OperationalError | InterfaceError):
        return True
    if isinstance(error, DatabaseError) and getattr(error.__cause__, "pgcode", None) == READ_ONLY:
        return True  # a standby before it takes over, or a full disk's emergency
    cause = error.__cause__ if type(error) is DatabaseError else None
    return isinstance(cause, DriverError) and cause.pgcode is None


def rows_locked(error: BaseException) -> bool:
    """Whether the database gave up waiting for another transaction's rows."""
    return getattr(error.__cause__, "pgcode", None) in LOCKED


def retry_on_serialization_failure(work: Callable[P, R]) -> Callable[P, R]:
    """Retry work, which is one whole transaction without other effects, on deadlock or serialization failure.

    At most TRIES times. Inside the caller's transaction it runs once: only the outermost one can be retried.
    """

    @functools.wraps(work)
    def whole(*args: P.args, **kwargs: P.kwargs) -> R:
        if connection.in_atomic_block:
            return work(*args, **kwargs)
        for left in reversed(range(TRIES)):
            try:
                return work(*args, **kwargs)
            except OperationalError as error:
                why = RETRIED.get(getattr(error.__cause__, "pgcode", None) or "")
                if why is None or not left:
                    raise
                logger.warning(
                    "transaction rolled back by the database, retried", extra={"why": why, "tries_left": left}
                )
                time.sleep(random.uniform(0, PAUSE_S))
        raise AssertionError("unreachable")

    return whole
