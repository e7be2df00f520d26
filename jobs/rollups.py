"""Roll up metric points while they arrive, so that a chart reads one row in place of many points.

Every MetricRollup.SEGMENT points of a job are read once more and become roll-ups of at most POINTS points of one series
each: the work per point is bounded, whatever the number of series. The newest points, less than a segment, have no
roll-ups yet: readers take those one by one (jobs/selectors/metric_sql.py).

What an earlier version stored is rolled up by a periodic task, a few segments of a job per transaction, so that neither
a start of the platform nor a commit waits for a year of points. Ingest rolls up all that it stores, so once every job
has been visited there is nothing left to do.
"""

from __future__ import annotations

import time
from typing import Any

from django.db import connection, transaction

from jobs.models import MetricRollup

POINTS = 32
"""At most, of one series in a roll-up. A chart of 400 buckets reads roll-ups from 6,400 points of a series on
(metrics.COARSER)."""

SEGMENTS = 16
"""At most, in one transaction: of what an earlier version stored, there may be thousands."""
RUN_S = 5.0
"""One run of the periodic task takes little longer than this; the next continues behind it."""
JOBS_PER_RUN = 500

ROLL_UP = """
INSERT INTO jobs_metricrollup (job_id, tenant_id, attempt, rank, name, first_seq, last_seq, points, not_finite,
    in_order, low_step, high_step, low_at, high_at, low, high, last)
SELECT job_id, tenant_id, attempt, rank, name, min(seq), max(seq), count(*), count(*) FILTER (WHERE NOT finite),
    bool_and(rises), min(step), max(step), min(at), max(at), min(value) FILTER (WHERE finite),
    max(value) FILTER (WHERE finite), (array_agg(value ORDER BY seq DESC))[1]
FROM (
    SELECT p.*, (seq - 1) / %(segment)s AS segment, (row_number() OVER run - 1) / %(points)s AS block,
        value <> ALL ('{NaN,Infinity,-Infinity}'::float8[]) AS finite,
        coalesce(step > lag(step) OVER run AND at >= lag(at) OVER run, true) AS rises
    FROM jobs_metricpoint p
    WHERE job_id = %(job)s AND seq > %(after)s AND seq <= %(upto)s
    WINDOW run AS (PARTITION BY attempt, rank, name, (seq - 1) / %(segment)s ORDER BY seq)
) AS numbered
GROUP BY job_id, tenant_id, attempt, rank, name, segment, block
"""


def roll_up(cursor: Any, job_id: str, rolled: int, newest: int) -> int:
    """Roll up complete segments of a job's points after `rolled`; returns the number of the last point in them.

    The caller holds the job's progress row and has stored every point up to `newest`.
    """
    segment = MetricRollup.SEGMENT
    upto = min(newest // segment, rolled // segment + SEGMENTS) * segment
    cursor.execute(
        ROLL_UP, {"job": job_id, "after": rolled, "upto": upto, "segment": segment, "points": POINTS}
    )
    return upto


BEHIND = """
SELECT job_id FROM jobs_progress WHERE metric_seq - metric_rolled >= %s AND job_id >= %s ORDER BY job_id LIMIT %s
"""
LOCK = """
SELECT metric_rolled, metric_seq FROM jobs_progress
WHERE job_id = %s AND metric_seq - metric_rolled >= %s FOR NO KEY UPDATE
"""


def roll_up_stored(before: dict[str, Any]) -> dict[str, Any]:
    """The periodic task: visit jobs in order of their ids, from where the last run stopped. done: none are left."""
    if before.get("done"):
        return before
    deadline = time.monotonic() + RUN_S
    jobs = _behind(str(before.get("job", "")))
    for job_id in jobs:
        while _roll_up_once(job_id):
            if time.monotonic() > deadline:
                return {"job": job_id, "done": False}
    return {"job": jobs[-1] if jobs else "", "done": len(jobs) < JOBS_PER_RUN}


def _behind(first: str) -> list[str]:
    with connection.cursor() as cursor:
        cursor.execute(BEHIND, [MetricRollup.SEGMENT, first, JOBS_PER_RUN])
        return [job_id for (job_id,) in cursor.fetchall()]


@transaction.atomic
def _roll_up_once(job_id: str) -> bool:
    """Roll up some segments; False if there are none."""
    with connection.cursor() as cursor:
        cursor.execute(LOCK, [job_id, MetricRollup.SEGMENT])
        found = cursor.fetchone()
        if found is None:
            return False
        rolled = roll_up(cursor, job_id, *found)
        cursor.execute("UPDATE jobs_progress SET metric_rolled = %s WHERE job_id = %s", [rolled, job_id])
    return True
