"""Why elastic jobs that run get no more learners, as the last plan found, kept on their rows for pages and REST."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.db.models import Value

from gpu_scheduler.model import Growth
from jobs.models import Job
from jobs.states import State

MOST = 500
"""Rows that one pass writes at most; the next one writes the others."""


def keep(growths: Sequence[Growth]) -> None:
    """Write those that have changed: one query where none has. A row that another transaction has is left for the next
    pass, as the reasons of waiting jobs are."""
    if not growths:
        return
    rows = Job.objects.filter(pk__in=[each.job for each in growths], state=State.PROCESSING)
    kept = dict(rows.values_list("pk", "growth"))
    changed = [each for each in growths if each.job in kept and kept[each.job] != _stored(each)][:MOST]
    for each in changed:
        free = Job.objects.filter(pk=each.job, state=State.PROCESSING)
        free = free.filter(pk__in=free.select_for_update(no_key=True, skip_locked=True).values("pk"))
        free.update(growth=Value(_stored(each), Job._meta.get_field("growth")))


def _stored(growth: Growth) -> dict[str, Any]:
    return {"code": growth.code.value, "message": growth.message, "numbers": dict(growth.numbers)}
