"""Why elastic jobs that run get no more learners, as the last plan found, kept on their rows for pages and REST."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from django.db import connection

from gpu_scheduler.model import Growth
from jobs.models import Job
from jobs.states import State

KEEP = """
UPDATE jobs_job j SET growth = v.growth FROM unnest(%s, %s::jsonb[]) AS v(id, growth)
WHERE j.id = v.id AND j.id IN (
  SELECT id FROM jobs_job WHERE id = ANY(%s) AND state = %s ORDER BY id FOR NO KEY UPDATE SKIP LOCKED
)
"""


def keep(growths: Sequence[Growth]) -> None:
    """Write those that have changed: one query where none has. A row that another transaction has is left for the next
    pass, as the reasons of waiting jobs are."""
    found = {each.job: _stored(each) for each in growths}
    if not found:
        return
    runs = Job.objects.filter(pk__in=found, state=State.PROCESSING)
    changed = [job for job, kept in runs.values_list("pk", "growth") if kept != found[job]]
    if changed:
        values = [json.dumps(found[job]) for job in changed]
        with connection.cursor() as cursor:
            cursor.execute(KEEP, [changed, values, changed, State.PROCESSING.value])


def _stored(growth: Growth) -> dict[str, Any]:
    return {"code": growth.code.value, "message": growth.message, "numbers": dict(growth.numbers)}
