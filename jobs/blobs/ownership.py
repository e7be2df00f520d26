"""Whose bytes lie in the store: one place belongs to one installation, and only its own database may judge them.

A mark in the place and in the database says so. A wrong DATABASE_URL, a new database next to used bytes, or a restored
one next to those of the installation that was dumped (`portal.backup.restoring`), then removes nothing: every byte
would be without a row there, or is another row's, too.
"""

from __future__ import annotations

import uuid

from jobs.blobs.store import store
from jobs.models import PeriodicTask

TASK = "tidy"
"""The periodic task whose result has the database's mark, as `store`."""


def own_mark(known: str) -> str:
    """The mark of this database's place; known: what it was. Marks a place that has none. Empty if it is another's."""
    there = store().mark()
    if there:
        return known if there == known else ""
    return store().mark(new=known or uuid.uuid4().hex)


def is_own() -> bool:
    """Whether the place is known to be this database's. Raises StoreUnavailable or OSError."""
    known = PeriodicTask.objects.filter(name=TASK).values_list("result__store", flat=True).first()
    return bool(known) and store().mark() == known
