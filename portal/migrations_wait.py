"""A process waits for the migrations of its version: `prepare` runs once per version, and new processes may be started
before it has ended (docs/adr/0063-mixed-versions.md). `manage.py up` has a gate of its own for that."""

from __future__ import annotations

import logging
import os
import time

from django.db import DatabaseError, connection

from portal.health import checks
from portal.migrations_gate import GATE

logger = logging.getLogger(__name__)

POLL_S = 1.0


def wait_for_migrations() -> None:
    """Return when all migrations of this version have been applied; at once if the database does not respond, which
    this process then says itself, and where LUTHIER_WAIT_FOR names a file."""
    said = False
    while not os.environ.get(GATE) and (waiting := _pending()):
        if not said:
            logger.warning("waiting for `manage.py prepare`", extra={"migrations": waiting})
            said = True
        time.sleep(POLL_S)


def _pending() -> int:
    try:
        return checks.pending_migrations()
    except DatabaseError:
        return 0
    finally:
        connection.close()
