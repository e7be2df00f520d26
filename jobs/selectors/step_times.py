"""How long a step takes each learner of an attempt, by the moments at which it reported its newest steps."""

from __future__ import annotations

from statistics import median_low

from django.db import connection

NEWEST = 50
"""Reports of one metric that count, per learner: a pace is about now, not about the whole run."""
SLOW = 1.3
"""A learner whose step takes so many times the gang's median is flagged."""

STEP_TIMES = """
SELECT l.rank, extract(epoch FROM max(p.at) - min(p.at)) / (max(p.step) - min(p.step))
FROM jobs_learner l
CROSS JOIN LATERAL (
    SELECT coalesce(
        (SELECT m.name FROM jobs_metricpoint m
         WHERE m.job_id = l.job_id AND m.attempt = l.attempt AND m.rank = l.rank AND m.name = %(name)s LIMIT 1),
        (SELECT m.name FROM jobs_metricpoint m
         WHERE m.job_id = l.job_id AND m.attempt = l.attempt AND m.rank = l.rank ORDER BY m.name LIMIT 1)
    ) AS name
) first
CROSS JOIN LATERAL (
    SELECT m.step, m.at FROM jobs_metricpoint m
    WHERE m.job_id = l.job_id AND m.attempt = l.attempt AND m.rank = l.rank AND m.name = first.name
    ORDER BY m.step DESC LIMIT %(newest)s
) p
WHERE l.job_id = %(job)s AND l.attempt = %(attempt)s
GROUP BY l.rank
HAVING max(p.step) > min(p.step) AND max(p.at) > min(p.at)
"""


def step_times(job: str, attempt: int, name: str) -> dict[int, float]:
    """Seconds per step by rank, of those that reported two steps. name: the metric to go by where a learner has it;
    else its first. Each learner's own clock is compared with itself only. One query."""
    with connection.cursor() as cursor:
        cursor.execute(STEP_TIMES, {"job": job, "attempt": attempt, "name": name, "newest": NEWEST})
        return {rank: float(seconds) for rank, seconds in cursor.fetchall()}


def times_median(seconds: dict[int, float]) -> dict[int, float]:
    """How many times the gang's median each learner takes, of those that are slow enough to be flagged."""
    if len(seconds) < 2:
        return {}
    usual = median_low(seconds.values())
    return {rank: own / usual for rank, own in seconds.items() if own > usual * SLOW}
