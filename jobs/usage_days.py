"""Roll up usage by day, so that a month or a year of it reads days in place of jobs, and stays when jobs are purged.

Each attempt and each wait is counted once, after its end, by adding it to the days that it belongs to: to all of them
if it lasted for weeks. What has ended and is not counted yet is in UsageDue, where readers find it
(selectors.usage_sql). Counting and leaving UsageDue is one statement, so a kill changes nothing and several workers
count nothing twice. No time is compared with a mark: a late commit or a clock that was set back leaves nothing out.
"""

from __future__ import annotations

import time
from typing import Any

from django.db import connection

from jobs.retries import retry_on_serialization_failure
from jobs.selectors.usage_sql import FIRST_START, FIRST_WAIT, PIECES, SETTLE

PARTS = 5_000
"""At most, in one transaction."""
RUN_S = 5.0
"""One run of the periodic task takes little longer than this; the next continues behind it."""

ROLL_UP = f"""
WITH taken AS (
  DELETE FROM jobs_usagedue WHERE id = ANY (ARRAY(SELECT id FROM jobs_usagedue WHERE {{which}}))
  RETURNING job_id, holds, n
),
attempts AS (
  SELECT attempt.*, '-infinity'::timestamptz AS lo, 'infinity'::timestamptz AS hi
  FROM taken JOIN jobs_attempt AS attempt ON attempt.job_id = taken.job_id AND attempt.n = taken.n WHERE taken.holds
),
left_queue AS (
  SELECT move.job_id, move.n, move.at, '-infinity'::timestamptz AS lo, 'infinity'::timestamptz AS hi
  FROM taken JOIN jobs_jobevent AS move ON move.job_id = taken.job_id AND move.n = taken.n WHERE NOT taken.holds
),
waiting AS (
  SELECT NULL::varchar AS job_id, now() AS a, now() AS b, now() AS lo, now() AS hi WHERE FALSE
),
{PIECES},
added AS (
  INSERT INTO jobs_usageday AS known (tenant_id, day, owner_id, slot_type, used, waited, lost, opportunistic,
    first_waits)
  SELECT tenant_id, day, owner_id, slot_type, sum(used), sum(waited), sum(lost), sum(opportunistic),
    coalesce(array_agg(first_wait) FILTER (WHERE first_wait IS NOT NULL), '{{{{}}}}')
  FROM (
    SELECT tenant_id, day, owner_id, slot_type, used, waited, lost,
      CASE WHEN opportunistic THEN used ELSE 0 END AS opportunistic, NULL AS first_wait FROM piece
    UNION ALL
    SELECT job.tenant_id, (attempt.opened_at AT TIME ZONE 'UTC')::date, job.owner_id, attempt.slot_type, 0, 0, 0, 0,
      {FIRST_WAIT}
    FROM attempts AS attempt JOIN jobs_job AS job ON job.id = attempt.job_id WHERE {FIRST_START}
  ) AS one
  GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4  -- one order for all workers, so that they cannot deadlock
  ON CONFLICT (tenant_id, day, owner_id, slot_type) DO UPDATE SET used = known.used + EXCLUDED.used,
    waited = known.waited + EXCLUDED.waited, lost = known.lost + EXCLUDED.lost,
    opportunistic = known.opportunistic + EXCLUDED.opportunistic,
    first_waits = known.first_waits || EXCLUDED.first_waits
)
SELECT count(*) FROM taken
"""
SETTLED = "at < now() - %(settle)s ORDER BY id LIMIT %(parts)s FOR UPDATE SKIP LOCKED"
OF_JOB = "job_id = %(job)s ORDER BY id FOR UPDATE"


def roll_up(_: dict[str, Any]) -> dict[str, Any]:
    """The periodic task: count what has ended a while ago. more: there is more to do now."""
    deadline, counted = time.monotonic() + RUN_S, 0
    while True:
        count = _roll_up(SETTLED, settle=SETTLE, parts=PARTS)
        counted += count
        if count < PARTS or time.monotonic() > deadline:
            return {"parts": counted, "more": count == PARTS}


def roll_up_job(job_id: str) -> None:
    """Count all that has ended of a job. Call it before rows of the job that usage is counted from are removed, within
    the same transaction or before it."""
    _roll_up(OF_JOB, job=job_id)


@retry_on_serialization_failure
def _roll_up(which: str, **values: Any) -> int:
    with connection.cursor() as cursor:
        cursor.execute(ROLL_UP.format(which=which), values)
        (count,) = cursor.fetchone()
    return int(count)
