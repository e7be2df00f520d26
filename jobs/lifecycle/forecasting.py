"""Estimate the start of every waiting job. A periodic task, so that neither a cycle nor a request waits for it.

Only what changed is written and published. The first estimate since a job queued stays, to be judged by.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

from django.db import connection, transaction
from django.db.models import Q
from django.db.models.functions import Greatest, Now

from gpu_scheduler.forecast import FORECAST_JOBS, StartForecast, WhyNone, forecast
from jobs import events
from jobs.models import Estimate, PeriodicTask
from jobs.selectors.nodes import scheduler_nodes
from jobs.selectors.snapshot import database_now, queued_rows, snapshot
from jobs.selectors.throughput import run_times

TASK = "forecast"
EVERY_S = 10.0
FAR_AT_ONCE = 5_000
RESTS = 9.0
REQUEST = """
UPDATE jobs_periodictask task SET next_at = v.at FROM (
  SELECT name, GREATEST(clock_timestamp(),
    done_at + make_interval(secs => %(rests)s * coalesce((result->>'took_s')::float, 0))) AS at
  FROM jobs_periodictask WHERE name = %(task)s
) v WHERE task.name = v.name AND task.next_at > v.at
"""
SAME = timedelta(seconds=5)
SAME_FRACTION = 0.05
"""An estimate that moved by less than SAME, or by less than this fraction of the time to it, has not changed."""

Row = dict[str, Any]


def lacks_estimates() -> bool:
    """A job waits that has no estimate since it queued."""
    return queued_rows().filter(Q(estimate=None) | Q(estimate__started_at__isnull=False)).exists()


def update_estimates(_: Row) -> Row:
    """Forecast the queue once and store what changed."""
    if not queued_rows().exists():
        return {}
    began = time.monotonic()
    now = database_now()
    seen = snapshot(nodes=scheduler_nodes(), now=now, at_most=FORECAST_JOBS)
    found = forecast(seen, run_times(seen))
    changed = _changed(found, now)
    if len(seen.waiting) >= FORECAST_JOBS:
        changed += _too_far(found)
    with transaction.atomic():
        _write(changed)
    took_s = round(time.monotonic() - began, 3)
    rested = Now() + timedelta(seconds=RESTS * took_s)  # it may have been requested while it was made
    PeriodicTask.objects.filter(name=TASK).update(next_at=Greatest("next_at", rested))
    return {"estimated": len(found), "changed": len(changed), "took_s": took_s}


def request() -> None:
    """Have the queue forecast now, but no sooner after the last time than RESTS times as long as that took: passes that
    follow each other at once each ask for it, and a forecast of a long queue takes more CPU time than they do."""
    with connection.cursor() as cursor:
        cursor.execute(REQUEST, {"task": TASK, "rests": RESTS})


def _changed(found: Mapping[str, StartForecast], now: datetime) -> list[Row]:
    kept = Estimate.objects.filter(started_at=None).in_bulk(list(found))
    return [
        {
            "job": job,
            "soonest": new.p50,
            "latest": new.p90,
            "basis": new.basis,
            "why_none": new.why_none or "",
        }
        for job, new in found.items()
        if (old := kept.get(job)) is None
        or old.why_none != (new.why_none or "")
        or old.basis != [each.value for each in new.basis]
        or _moved(old.soonest, new.p50, now)
        or _moved(old.latest, new.p90, now)
    ]


def _moved(old: datetime | None, new: datetime | None, now: datetime) -> bool:
    if old is None or new is None:
        return old != new
    return abs(new - old) > max(SAME, (new - now) * SAME_FRACTION)


# A job that is just being started is locked and left out. One that queues again gets a new first estimate.
WRITE = """
INSERT INTO jobs_estimate AS e (job_id, tenant_id, soonest, latest, basis, why_none, made_at,
  first_soonest, first_latest, first_at)
SELECT j.id, j.tenant_id, v.soonest, v.latest, v.basis, v.why_none, clock_timestamp(),
  v.soonest, v.latest, CASE WHEN v.soonest IS NOT NULL THEN clock_timestamp() END
FROM jsonb_to_recordset(%s)
  AS v(job text, soonest timestamptz, latest timestamptz, basis jsonb, why_none text)
JOIN jobs_job j ON j.id = v.job AND j.state = 'QUEUED' FOR SHARE OF j SKIP LOCKED
ON CONFLICT (job_id) DO UPDATE SET soonest = excluded.soonest, latest = excluded.latest, basis = excluded.basis,
  why_none = excluded.why_none, made_at = excluded.made_at, started_at = NULL,
  first_soonest = CASE WHEN e.started_at IS NULL AND e.first_at IS NOT NULL THEN e.first_soonest
    ELSE excluded.first_soonest END,
  first_latest = CASE WHEN e.started_at IS NULL AND e.first_at IS NOT NULL THEN e.first_latest
    ELSE excluded.first_latest END,
  first_at = CASE WHEN e.started_at IS NULL AND e.first_at IS NOT NULL THEN e.first_at ELSE excluded.first_at END
RETURNING e.job_id, e.tenant_id, (SELECT event_seq FROM jobs_job WHERE id = e.job_id)
"""


def _write(rows: list[Row]) -> None:
    if not rows:
        return
    with connection.cursor() as cursor:
        cursor.execute(WRITE, [json.dumps(rows, default=str)])
        for job, tenant, n in cursor.fetchall():
            events.publish_later(job, tenant, n)


def _too_far(near: Iterable[str]) -> list[Row]:
    """Queued jobs beyond the forecast that do not say so yet; at most FAR_AT_ONCE, the rest in the next forecast."""
    waiting = set(queued_rows().values_list("pk", flat=True))
    marked = Estimate.objects.filter(why_none=WhyNone.TOO_FAR, started_at=None).values_list("pk", flat=True)
    fresh = sorted(waiting - set(near) - set(marked))[:FAR_AT_ONCE]
    return [
        {"job": job, "soonest": None, "latest": None, "basis": [], "why_none": WhyNone.TOO_FAR}
        for job in fresh
    ]
