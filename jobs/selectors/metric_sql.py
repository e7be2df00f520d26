"""The statements behind metric series: roll-ups up to %(rolled)s, then points, up to %(upto)s (null: all)."""

AXES = {
    "step": {"x": "p.step::float8", "x_low": "r.low_step::float8", "x_high": "r.high_step::float8"},
    "time": {
        "x": "extract(epoch FROM p.at)::float8 * 1000",
        "x_low": "extract(epoch FROM r.low_at)::float8 * 1000",
        "x_high": "extract(epoch FROM r.high_at)::float8 * 1000",
    },
}
"""x of a point p, and the lowest and highest one of a roll-up r: the step itself, or milliseconds since the epoch."""

TAIL = "p.job_id = %(job)s AND p.seq > %(rolled)s AND (%(upto)s::bigint IS NULL OR p.seq <= %(upto)s)"
"""Points that are not in a roll-up that is read."""
OF_ROLLUP = """p.job_id = %(job)s AND p.name = r.name AND p.rank = r.rank AND p.attempt = r.attempt
        AND p.step BETWEEN r.low_step AND r.high_step AND p.seq BETWEEN r.first_seq AND r.last_seq"""
"""Points p of a roll-up r: found by the index on steps, then chosen among others between them by their numbers."""
FINITE = "value <> ALL ('{{NaN,Infinity,-Infinity}}'::float8[])"

NAMED = """(%(names)s::text[] IS NULL OR name = ANY(%(names)s))
      AND (%(q)s = '' OR strpos(lower(name), lower(%(q)s)) > 0)"""
SPANS_SQL = f"""
SELECT name, rank, attempt, min(first), max(last), min(low), max(high), sum(points)::bigint
FROM (
    SELECT name, rank, attempt, low_step AS first, high_step AS last, {{x_low}} AS low, {{x_high}} AS high, points
    FROM jobs_metricrollup r WHERE job_id = %(job)s AND last_seq <= %(rolled)s AND {NAMED}
    UNION ALL
    SELECT name, rank, attempt, step, step, {{x}}, {{x}}, 1 FROM jobs_metricpoint p WHERE {TAIL} AND {NAMED}
) AS parts
GROUP BY name, rank, attempt ORDER BY name, rank, attempt
"""

BUCKETS_SQL = f"""
WITH wanted AS (
    SELECT * FROM unnest(%(w_name)s::text[], %(w_rank)s::int[], %(w_attempt)s::int[], %(w_low)s::float8[],
        %(w_high)s::float8[], %(w_width)s::float8[]) AS w (name, rank, attempt, low, high, width)
), newer AS (
    SELECT * FROM unnest(%(n_name)s::text[], %(n_rank)s::int[], %(n_attempt)s::int[], %(n_first)s::bigint[],
        %(n_last)s::bigint[]) AS n (name, rank, attempt, first, last)
), rollups AS MATERIALIZED (
    SELECT r.name, r.rank, r.attempt, r.first_seq, r.last_seq, r.low_step, r.high_step, r.low AS least,
        r.high AS greatest, r.last AS value, r.points, w.low, w.high, w.width, {{x_high}} AS x, {{all}} AS superseded,
        r.in_order AND {{x_low}} >= w.low AND {{x_high}} <= w.high AND {{x_high}} - {{x_low}} <= %(coarser)s * w.width
            AND ({{all}} OR NOT {{some}}) AS whole
    FROM wanted w JOIN jobs_metricrollup r USING (name, rank, attempt)
    WHERE r.job_id = %(job)s AND r.last_seq <= %(rolled)s AND {{x_high}} >= w.low AND {{x_low}} <= w.high
), points AS (
    SELECT r.low, r.high, r.width, p.* FROM rollups r CROSS JOIN LATERAL (
        SELECT p.* FROM jobs_metricpoint p WHERE {OF_ROLLUP} OFFSET 0
    ) AS p WHERE NOT r.whole
    UNION ALL
    SELECT w.low, w.high, w.width, p.* FROM wanted w JOIN jobs_metricpoint p USING (name, rank, attempt) WHERE {TAIL}
), parts AS (
    SELECT name, rank, superseded, x, last_seq AS seq, value, least, greatest, points, low, width
    FROM rollups WHERE whole
    UNION ALL
    SELECT name, rank, {{one}}, {{x}}, seq, value, CASE WHEN {FINITE} THEN value END, CASE WHEN {FINITE} THEN value END,
        1, low, width
    FROM points p WHERE {{x}} BETWEEN low AND high
)
SELECT name, rank, superseded, max(x), min(least), max(greatest), (array_agg(value ORDER BY x DESC, seq DESC))[1],
    sum(points)::bigint
FROM parts
GROUP BY name, rank, superseded, CASE WHEN width > 0 THEN floor((x - low) / width) ELSE x END
ORDER BY name, rank, superseded, max(x)
"""
_NEWER = "EXISTS (SELECT FROM newer n WHERE n.name = {of}.name AND n.rank = {of}.rank AND n.attempt > {of}.attempt AND "
SUPERSEDING_SQL = {
    False: dict.fromkeys(("one", "all", "some"), "false"),
    True: {
        "one": _NEWER.format(of="p") + "p.step BETWEEN n.first AND n.last)",
        "all": _NEWER.format(of="r") + "n.first <= r.low_step AND n.last >= r.high_step)",
        "some": _NEWER.format(of="r") + "n.first <= r.high_step AND n.last >= r.low_step)",
    },
}
"""By whether there are several attempts: is a point superseded, are all of a roll-up's, are some."""

NOT_FINITE_SQL = f"""
SELECT name, rank, x, value FROM (
    SELECT p.name, p.rank, p.step, {{x}} AS x, p.value FROM jobs_metricrollup r CROSS JOIN LATERAL (
        SELECT p.* FROM jobs_metricpoint p WHERE {OF_ROLLUP} AND NOT p.{FINITE} OFFSET 0
    ) AS p
    WHERE r.job_id = %(job)s AND r.name = ANY(%(names)s) AND r.last_seq <= %(rolled)s AND r.not_finite > 0
    UNION ALL
    SELECT p.name, p.rank, p.step, {{x}}, p.value FROM jobs_metricpoint p
    WHERE {TAIL} AND p.name = ANY(%(names)s) AND NOT p.{FINITE}
) AS found
WHERE (%(low)s::float8 IS NULL OR x >= %(low)s) AND (%(high)s::float8 IS NULL OR x <= %(high)s)
ORDER BY step DESC LIMIT %(limit)s
"""
