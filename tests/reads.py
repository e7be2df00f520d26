"""How much of the database a piece of code reads, and a history long enough to show what grows with it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from django.db import connection
from django.test.utils import CaptureQueriesContext

from jobs import usage_days
from jobs.models import Job
from jobs.states import State
from tenants.models import Tenant
from tests import factories

HISTORY = """
SET LOCAL statement_timeout = 0;
SET LOCAL session_replication_role = replica;  -- copies of a sound row need no check each
INSERT INTO jobs_job SELECT copy.* FROM jobs_job job, generate_series(1, %(count)s) n,
  LATERAL jsonb_populate_record(job, jsonb_build_object('id', lpad(to_hex(n), 12, '0'),
    'name', 'run-' || n %% 977, 'created_at', job.created_at - n * %(apart)s::interval,
    'finished_at', job.created_at - n * %(apart)s::interval + interval '70 s')) copy WHERE job.id = %(like)s;
INSERT INTO jobs_progress SELECT copy.* FROM jobs_progress progress, generate_series(1, %(count)s) n,
  LATERAL jsonb_populate_record(progress, jsonb_build_object('job_id', lpad(to_hex(n), 12, '0'))) copy
  WHERE progress.job_id = %(like)s;
INSERT INTO jobs_attempt (job_id, tenant_id, n, cluster, slot_type, slots, learners, nodes, held, opened_at, closed_at,
  outcome, message)
SELECT job.id, job.tenant_id, 1, 'memory', 'cpu', 1, 1, '["node-a"]', false, job.created_at + interval '10 s',
  job.created_at + interval '70 s', 'COMPLETED', '' FROM jobs_job job WHERE job.id <> %(like)s;
INSERT INTO jobs_jobevent (job_id, tenant_id, n, at, code, from_state, to_state, attempt, reason, message, numbers,
  source)
SELECT job.id, job.tenant_id, move.n, job.created_at + move.after * interval '1 s', move.code, move.origin, move.target,
  0, '', '', '{}', 'lifecycle'
FROM jobs_job job, (VALUES (1, 0, 'SUBMITTED', '', 'QUEUED'), (2, 10, 'PLACED', 'QUEUED', 'DEPLOYING'),
  (3, 70, 'MOVED', 'DEPLOYING', 'COMPLETED')) AS move(n, after, code, origin, target) WHERE job.id <> %(like)s;
SET LOCAL session_replication_role = origin;
"""
WRITTEN = ("jobs_job", "jobs_progress", "jobs_attempt", "jobs_jobevent")


def history(of: Tenant, count: int, *, apart: str = "1 hour") -> Job:
    """That many completed jobs of one owner, each created this long before the next; each waited 10 s and ran 60 s.
    Returns the newest, which is a row of its own."""
    like = factories.job(of=of, owner=factories.member(of), state=State.COMPLETED, attempt=0)
    with connection.cursor() as cursor:
        cursor.execute(HISTORY, {"count": count, "like": like.pk, "apart": apart})
        for table in WRITTEN:  # or a scan also visits the dead rows of tests before this one
            cursor.execute(f"REINDEX TABLE {table}")
        cursor.execute(f"ANALYZE {', '.join(WRITTEN)}")
    return like


def vacuum() -> None:
    """Outside of a transaction: remove what is left of a history that was rolled back, or each later scan reads it."""
    with connection.cursor() as cursor:
        cursor.execute(f"VACUUM {', '.join(WRITTEN)}")


NOTE_USAGE = """
INSERT INTO jobs_usagedue (tenant_id, job_id, holds, n, at)
SELECT tenant_id, job_id, true, n, now() - interval '1 h' FROM jobs_attempt WHERE closed_at IS NOT NULL
UNION ALL SELECT tenant_id, job_id, false, n, now() - interval '1 h' FROM jobs_jobevent
WHERE from_state = 'QUEUED' AND to_state <> '';
"""


def roll_up_usage() -> None:
    """Roll up all of a history, which was written past the triggers, into a table that is new until the rollback: a
    scan would visit the dead rows of tests before this one, and those after it would visit these."""
    with connection.cursor() as cursor:
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
        cursor.execute("TRUNCATE jobs_usageday")
        cursor.execute(NOTE_USAGE)
        while usage_days.roll_up({})["more"]:
            pass
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
        cursor.execute("TRUNCATE jobs_usagedue")  # what a vacuum leaves of it
        cursor.execute("ANALYZE jobs_usageday")


def pages_read(work: Callable[[], Any]) -> int:
    """Pages of 8 KiB that the SELECTs of this work read, from cache or disk: each is run again and counted."""
    with CaptureQueriesContext(connection) as queries:
        work()
    total = 0
    with connection.cursor() as cursor:
        for query in queries.captured_queries:
            sql = query["sql"].lstrip()
            if sql.startswith(("SELECT", "WITH")):
                cursor.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {sql}")
                plan = cursor.fetchone()[0]
                plan = (json.loads(plan) if isinstance(plan, str) else plan)[0]["Plan"]
                total += plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
    return total
