"""Roll up metric points while they arrive, so that a chart reads one row in place of many points.

Every MetricRollup.SEGMENT points of a job are read once more and become roll-ups of at most POINTS points of one series
each: the work per point is bounded, whatever the number of series. The newest points, less than a segment, have no
roll-ups yet: readers take those one by one (jobs/selectors/metric_sql.py).
"""

from __future__ import annotations

from typing import Any

from jobs.models import MetricRollup

POINTS = 32
"""At most, of one series in a roll-up. A chart of 600 buckets reads roll-ups from 19,200 points of a series on."""

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
    """Roll up the complete segments of a job's points after `rolled`; returns the number of the last point in them.

    The caller holds the job's progress row and has stored every point up to `newest`.
    """
    segment = MetricRollup.SEGMENT
    upto = newest // segment * segment
    cursor.execute(
        ROLL_UP, {"job": job_id, "after": rolled, "upto": upto, "segment": segment, "points": POINTS}
    )
    return upto
