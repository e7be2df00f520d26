"""What /metrics shows of the installation as a whole, read from the database.

Each fact is one statement whose cost depends on what lives, waits or happened recently, never on the number of jobs
that were ever submitted: it reads by a partial index or the newest events only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from django.db import connection, transaction

from jobs.blobs import health
from jobs.models import SCHEDULER, WORKER_SILENT_S, PeriodicTask
from jobs.selectors.budgets import THIS_MONTH, used_sql
from jobs.selectors.platform_stops import waited_s_sql
from jobs.states import FINAL, HOLDS_GPUS, EventCode, State
from tenants import audit_forward

MAX_SERIES = 1000
"""Series of one fact. Those with the smallest values beyond it are one series, whose labels are OTHERS."""
OTHERS = "(others)"
WINDOW_S = 900
"""How far latencies and ends look back, in seconds."""
NEWEST_EVENTS = 20_000
"""The most events they look at; on an installation with more of them in WINDOW_S, they look back less far."""
STATEMENT_MS = 1500

Row = tuple[Any, ...]


@dataclass(frozen=True)
class Fact:
    """One gauge. sql: rows of a text per label, then the value. combine: what OTHERS is of the values in it."""

    name: str
    help: str
    labels: tuple[str, ...]
    sql: str
    combine: Callable[[Sequence[float]], float] = sum


def read_facts() -> dict[Fact, list[Row]]:
    """Every fact's rows, all as of one moment. Raises Django's database errors."""
    found = {}
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        cursor.execute("SELECT set_config('statement_timeout', %s, true)", [f"{STATEMENT_MS}ms"])
        for fact in FACTS:
            cursor.execute(fact.sql, VALUES)
            found[fact] = bounded(fact, cursor.fetchall())
    return found


def bounded(fact: Fact, rows: list[Row]) -> list[Row]:
    """At most MAX_SERIES rows; those beyond it as one."""
    if len(rows) <= MAX_SERIES:
        return rows
    ordered = sorted(rows, key=lambda row: row[-1], reverse=True)
    kept, others = ordered[: MAX_SERIES - 1], ordered[MAX_SERIES - 1 :]
    return [*kept, (*(OTHERS for _ in fact.labels), fact.combine([float(row[-1]) for row in others]))]


LIVE = tuple(sorted({State.QUEUED.value, *(state.value for state in HOLDS_GPUS)}))
VALUES: dict[str, Any] = {
    "live": list(LIVE),
    "final": sorted(state.value for state in FINAL),
    "cycle": PeriodicTask.CYCLE,
    "silent_s": WORKER_SILENT_S,
    "store": health.TASK,
    "store_overdue_s": health.OVERDUE_S,
    "window_s": WINDOW_S,
    "newest": NEWEST_EVENTS,
    "moved": EventCode.MOVED.value,
    "stored": EventCode.CHECKPOINT_STORED.value,
}
WAITING = f"""
waiting AS (
  SELECT tenant.slug AS tenant, job.slots * job.learners AS slots, job.reason_code AS reason, job.opportunistic,
         CASE WHEN job.gpus = 0 THEN 'cpu' WHEN job.gpu_type = '' THEN 'any' ELSE job.gpu_type END AS pool,
         ({waited_s_sql("job.queued_at", "clock_timestamp()")})::float8 AS waited
  FROM jobs_job AS job JOIN tenants_tenant AS tenant ON tenant.id = job.tenant_id
  WHERE job.state = 'QUEUED' AND job.intent = 'RUN' AND job.deleted_at IS NULL
)"""
RECENT = """
recent AS (
  SELECT event.* FROM jobs_jobevent AS event
  WHERE event.id > (SELECT max(id) FROM jobs_jobevent) - %(newest)s
    AND event.at > clock_timestamp() - make_interval(secs => %(window_s)s)
)"""
LATENCIES = f"""{RECENT},
latency AS (
  SELECT 'start' AS step, greatest(0, extract(epoch FROM recent.at - job.created_at))::float8 AS seconds
  FROM recent JOIN jobs_job AS job ON job.id = recent.job_id
  WHERE recent.code = %(moved)s AND recent.to_state = 'PROCESSING' AND recent.attempt = 1
    AND NOT job.opportunistic
  UNION ALL
  SELECT 'resume', greatest(0, extract(epoch FROM recent.at - queued.at))::float8
  FROM recent JOIN jobs_jobevent AS queued ON queued.job_id = recent.job_id AND queued.n < recent.n
    AND queued.code = %(moved)s AND queued.from_state = 'HALTED' AND queued.to_state = 'QUEUED'
    AND queued.attempt = recent.attempt - 1
  WHERE recent.code = %(moved)s AND recent.to_state = 'PROCESSING' AND recent.attempt > 1
  UNION ALL
  SELECT 'halt', (recent.numbers->>'seconds')::float8
  FROM recent WHERE recent.code = %(moved)s AND recent.to_state = 'HALTED' AND recent.from_state = 'STOPPING'
  UNION ALL
  SELECT 'save', greatest(0, extract(epoch FROM saved.committed_at - saved.created_at))::float8
  FROM recent JOIN jobs_checkpoint AS saved
    ON saved.job_id = recent.job_id AND saved.n = (recent.numbers->>'checkpoint')::bigint
  WHERE recent.code = %(stored)s AND saved.committed_at IS NOT NULL
)"""
POOLS = """
nodes AS (
  SELECT slot_type AS pool, coalesce(sum(slots) FILTER (WHERE ready AND NOT cordoned), 0) AS usable,
         coalesce(sum(slots) FILTER (WHERE NOT ready OR cordoned), 0) AS unusable,
         sum(others_slots) AS outside, sum(unhealthy) AS unhealthy
  FROM jobs_clusternode GROUP BY 1
),
used AS (SELECT slot_type AS pool, sum(slots * learners) AS used FROM jobs_attempt WHERE held GROUP BY 1)"""

REGISTERED = f"""
SELECT kind, count(w.id) FROM unnest(ARRAY['alive', 'silent']) AS kind
LEFT JOIN jobs_worker AS w ON {{which}} starts_with(w.name, '{SCHEDULER}') AND kind =
  CASE WHEN w.seen_at > clock_timestamp() - make_interval(secs => %(silent_s)s) THEN 'alive' ELSE 'silent' END
GROUP BY 1
"""
USED_THIS_MONTH = used_sql(
    start=THIS_MONTH[0],
    end=THIS_MONTH[1],
    of="tenant.budget_gpu_hours IS NOT NULL",
)
FORWARDED = f"""
forwarded AS (
  SELECT (task.result->'places'->>named.mark)::bigint AS place, (task.result->>'failures')::int AS failures
  FROM jobs_periodictask AS task
  CROSS JOIN LATERAL jsonb_each_text(coalesce(task.result->'named', '{{}}')) AS named(mark, at)
  WHERE task.name = 'forward'
    AND named.at::float8 > extract(epoch FROM clock_timestamp()) - {audit_forward.NAMED_S}
  ORDER BY named.at::float8 DESC LIMIT 1
)"""
"""The address that the audit log is sent to; no row: none."""
FACTS = (
    Fact(
        "luthier_jobs",
        "Jobs that wait or hold slots, by state.",
        ("tenant", "state"),
        "SELECT tenant.slug, state.name, live.n FROM tenants_tenant AS tenant"
        " CROSS JOIN unnest(%(live)s::text[]) AS state(name)"
        " CROSS JOIN LATERAL (SELECT count(*) AS n FROM jobs_job AS job WHERE job.tenant_id = tenant.id"
        "  AND job.state = state.name AND job.deleted_at IS NULL) AS live WHERE live.n > 0",
    ),
    Fact(
        "luthier_queue_jobs",
        "Jobs that wait for slots.",
        ("tenant", "pool"),
        f"WITH {WAITING} SELECT tenant, pool, count(*) FROM waiting GROUP BY 1, 2",
    ),
    Fact(
        "luthier_queue_slots",
        "Slots that waiting jobs request.",
        ("tenant", "pool"),
        f"WITH {WAITING} SELECT tenant, pool, sum(slots) FROM waiting GROUP BY 1, 2",
    ),
    Fact(
        "luthier_queue_length",
        "Jobs that wait for slots, in all; 0 if none does.",
        (),
        f"WITH {WAITING} SELECT count(*) FROM waiting",
    ),
    Fact(
        "luthier_queue_wait_seconds",
        "How long the jobs that wait have waited, without time in which the platform was stopped and without"
        " opportunistic jobs, which may wait for as long as others take everything; quantile 1 is the longest.",
        ("pool", "quantile"),
        f"WITH {WAITING} SELECT pool, q::text, percentile_cont(q) WITHIN GROUP (ORDER BY waited)"
        " FROM waiting CROSS JOIN unnest(ARRAY[0.5, 0.9, 1.0]) AS q WHERE NOT opportunistic GROUP BY pool, q",
        max,
    ),
    Fact(
        "luthier_queue_reasons",
        "Waiting jobs by the reason for which they wait.",
        ("reason",),
        f"WITH {WAITING} SELECT reason, count(*) FROM waiting GROUP BY 1",
    ),
    Fact(
        "luthier_slots_used",
        "Slots that a tenant's jobs hold of its quota.",
        ("tenant", "pool"),
        "SELECT slug, gpu_type, used FROM tenants_quota JOIN tenants_tenant AS t ON t.id = tenant_id",
    ),
    Fact(
        "luthier_slots_opportunistic",
        "Slots that a tenant's opportunistic jobs hold beside its quota.",
        ("tenant", "pool"),
        "SELECT slug, gpu_type, coalesce(sum(slots * learners), 0) FROM tenants_quota AS q"
        " JOIN tenants_tenant AS t ON t.id = q.tenant_id LEFT JOIN jobs_attempt AS a"
        " ON a.tenant_id = t.id AND a.slot_type = gpu_type AND a.held AND a.opportunistic GROUP BY 1, 2",
    ),
    Fact(
        "luthier_slots_quota",
        "Slots that a tenant may hold.",
        ("tenant", "pool"),
        'SELECT slug, gpu_type, "limit" FROM tenants_quota JOIN tenants_tenant AS t ON t.id = tenant_id',
    ),
    Fact(
        "luthier_budget_gpu_hours",
        "GPU-hours that a tenant with a budget can use in a calendar month (UTC).",
        ("tenant",),
        "SELECT slug, budget_gpu_hours FROM tenants_tenant WHERE budget_gpu_hours IS NOT NULL",
    ),
    Fact(
        "luthier_budget_used_gpu_hours",
        "GPU-hours that it has used in the present one, without CPU jobs and opportunistic ones.",
        ("tenant",),
        f"SELECT slug, gpu_s / 3600 FROM ({USED_THIS_MONTH}) AS used(slug, gpu_s)",
    ),
    Fact(
        "luthier_pool_slots",
        "Slots of a pool. usable: on nodes that take learners; unusable: on others; outside: held by programs that"
        " are not Luthier's; used: held by jobs, opportunistic ones included; free: usable less outside and used.",
        ("pool", "kind"),
        f"WITH {POOLS} SELECT nodes.pool, kind, value FROM nodes LEFT JOIN used ON used.pool = nodes.pool"
        " CROSS JOIN LATERAL (VALUES ('usable', usable), ('unusable', unusable), ('outside', outside),"
        "  ('used', coalesce(used, 0)), ('free', greatest(0, usable - outside - coalesce(used, 0))))"
        " AS slots(kind, value)",
    ),
    Fact(
        "luthier_pool_unhealthy_devices",
        "Devices of a pool's nodes that they report and cannot use.",
        ("pool",),
        f"WITH {POOLS} SELECT pool, unhealthy FROM nodes",
    ),
    Fact(
        "luthier_nodes",
        "Nodes, by whether they take learners.",
        ("pool", "state"),
        "SELECT slot_type, CASE WHEN NOT ready THEN 'not_ready' WHEN cordoned THEN 'cordoned' ELSE 'ready' END,"
        " count(*) FROM jobs_clusternode GROUP BY 1, 2",
    ),
    Fact(
        "luthier_latency_seconds",
        "Of the last 15 minutes. start: from submission to the program's first start, without opportunistic jobs;"
        " resume: from the resume to the program's start; halt: from the request to the release;"
        " save: a checkpoint's way into the store.",
        ("step", "quantile"),
        f"WITH {LATENCIES} SELECT step, q::text, percentile_cont(q) WITHIN GROUP (ORDER BY seconds) FROM latency"
        " CROSS JOIN unnest(ARRAY[0.5, 0.9, 1.0]) AS q WHERE seconds IS NOT NULL GROUP BY step, q",
        max,
    ),
    Fact(
        "luthier_latency_samples",
        "How many of each step there were in the last 15 minutes.",
        ("step",),
        f"WITH {LATENCIES} SELECT name, count(seconds) FROM"
        " unnest(ARRAY['start', 'resume', 'halt', 'save']) AS name LEFT JOIN latency ON step = name GROUP BY 1",
    ),
    Fact(
        "luthier_recent_ends",
        "Jobs that ended in the last 15 minutes, by final state and reason.",
        ("state", "reason"),
        f"WITH {RECENT} SELECT to_state, reason, count(*) FROM recent"
        " WHERE to_state = ANY(%(final)s) GROUP BY 1, 2",
    ),
    Fact(
        "luthier_scheduler_pass_age_seconds",
        "Seconds since a pass of the scheduler completed; missing if none has.",
        (),
        "SELECT extract(epoch FROM clock_timestamp() - done_at)::float8 FROM jobs_periodictask"
        " WHERE name = %(cycle)s AND done_at IS NOT NULL",
    ),
    Fact(
        "luthier_scheduler_failing",
        "1 if the scheduler's newest pass did not complete, else 0.",
        (),
        "SELECT coalesce(max((problem <> '')::int), 0) FROM jobs_schedulinglease WHERE name = %(cycle)s",
    ),
    Fact(
        "luthier_periodic_task_age_seconds",
        "Seconds since a periodic task was completed.",
        ("task",),
        "SELECT name, extract(epoch FROM clock_timestamp() - done_at)::float8 FROM jobs_periodictask"
        " WHERE done_at IS NOT NULL",
        max,
    ),
    Fact(
        "luthier_blob_store_problem",
        "1 if a worker's newest check found the store of files away, or slow, else 0; missing if no worker checks it.",
        ("kind",),
        "SELECT kind, (result->>'problem' <> '' AND (result->>'away')::bool = (kind = 'away'))::int"
        " FROM jobs_periodictask CROSS JOIN unnest(ARRAY['away', 'slow']) AS kind WHERE name = %(store)s"
        " AND done_at > clock_timestamp() - make_interval(secs => %(store_overdue_s)s)",
        max,
    ),
    Fact(
        "luthier_workers",
        "Registered worker processes that bring jobs on. silent: without a heartbeat for 5 s, dead or frozen.",
        ("state",),
        REGISTERED.format(which="NOT"),
    ),
    Fact(
        "luthier_schedulers",
        "Registered processes that only make scheduling passes. Where none is alive, workers without --queues make"
        " them, or the others do, 2 to 3 s late.",
        ("state",),
        REGISTERED.format(which=""),
    ),
    Fact(
        "luthier_reconcile_failing_jobs",
        "Unsettled jobs on which the platform fails again and again.",
        (),
        "SELECT count(*) FROM jobs_job WHERE NOT settled AND fail_streak > 0",
    ),
    Fact(
        "luthier_reconcile_overdue_seconds",
        "How late the job is that has been due for reconciliation longest.",
        (),
        "SELECT greatest(0, coalesce(extract(epoch FROM clock_timestamp() - min(next_reconcile_at)), 0))::float8"
        " FROM jobs_job WHERE NOT settled",
    ),
    Fact(
        "luthier_audit_unsent_entries",
        "Entries of the audit log that the address to which workers send it has not taken, 100,000 and the newest at"
        " most; missing if it is sent nowhere.",
        (),
        f"WITH {FORWARDED} SELECT {audit_forward.WAITING.format(place='place')} FROM forwarded",
    ),
    Fact(
        "luthier_audit_unsent_age_seconds",
        "Age of the first of them; 0 if there is none.",
        (),
        f"WITH {FORWARDED} SELECT {audit_forward.OLDEST_S.format(place='place')} FROM forwarded",
    ),
    Fact(
        "luthier_audit_send_failures",
        "Tries in a row that sent nothing of the audit log; 0 after one that did.",
        (),
        f"WITH {FORWARDED} SELECT failures FROM forwarded",
    ),
    Fact(
        "luthier_database_connections",
        "Connections to this database, of all its clients that the platform's user may see.",
        ("state",),
        "SELECT coalesce(state, 'unknown'), count(*) FROM pg_stat_activity"
        " WHERE datname = current_database() GROUP BY 1",
    ),
    Fact(
        "luthier_database_connections_limit",
        "Connections that PostgreSQL allows, to all its databases.",
        (),
        "SELECT current_setting('max_connections')::int",
    ),
)
