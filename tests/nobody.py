"""Run as a user whom a file's mode keeps out."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

UNPRIVILEGED_UID = 65_534  # the user `nobody`


@contextmanager
def no_superuser() -> Iterator[None]:
    """The superuser may read everything; in this block this process is another user."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(UNPRIVILEGED_UID)
    try:
        yield
    finally:
        os.seteuid(user)
