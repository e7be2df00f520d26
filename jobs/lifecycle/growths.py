"""Why elastic jobs that run get no more learners, as the last plan found, kept on their rows for pages and REST."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from django.db import connection

from gpu_scheduler.model import Growth, Running
from jobs.models import Job
from jobs.states import State

KEEP = """
UPDATE jobs_job j SET growth = v.growth FROM unnest(%s, %s::jsonb[]) AS v(id, growth)
WHERE j.id = v.id AND j.id IN (
  SELECT id FROM jobs_job WHERE id = ANY(%s) AND state = %s ORDER BY id FOR NO KEY UPDATE SKIP LOCKED
)
"""


def keep(growths: Sequence[Growth], running: Iterable[Running]) -> None:
    """Write those that have changed: one query where none has, and none without elastic runs. Of those of running for
    which the plan found none, such as by a policy that resizes nothing, an earlier one is removed. A row that another
    transaction has is left for the next pass, as the reasons of waiting jobs are."""
    found = {each.job: _stored(each) for each in growths}
    elastic = [run.job for run in running if run.gang.elastic is not None]
    if not elastic:
        return
    runs = Job.objects.filter(pk__in=elastic, state=State.PROCESSING)
    changed = [job for job, kept in runs.values_list("pk", "growth") if kept != found.get(job)]
    if changed:
        values = [json.dumps(found[job]) if job in found else None for job in changed]
        with connection.cursor() as cursor:
            cursor.execute(KEEP, [changed, values, changed, State.PROCESSING.value])


def _stored(growth: Growth) -> dict[str, Any]:
    return {"code": growth.code.value, "message": growth.message, "numbers": dict(growth.numbers)}
