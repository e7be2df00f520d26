"""A year of use in the database: copies of one job that really ran, spread over the last 365 days.

Every row that the job left is copied with its times moved: its events, attempt, learner, progress and all of its log,
which is stored as the platform stores any log. Checkpoints and results are copied for one job in five, points for one
in twenty. Copies are written by SQL, without triggers and foreign-key checks.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import psycopg2

JOBS = 1_000_000
"""Jobs of a whole year, with ten events and 10 kB of log each; a scale makes all numbers smaller alike."""
TENANTS, PEOPLE = 20, 2_000
POINTS_EVERY = 20

SEEDED = "bench_job"

COPIES = """
CREATE UNLOGGED TABLE bench_job AS
SELECT n, lpad(to_hex(4096 + n), 12, '0')::varchar(12) AS id,
  (n - %(count)s - 1) * (make_interval(days => %(days)s) / %(count)s) AS shift,
  CASE WHEN n %% 10 < 4 THEN (SELECT id FROM tenants_tenant WHERE slug = 'vision-lab')
    WHEN n %% 10 < 6 THEN (SELECT id FROM tenants_tenant WHERE slug = 'nlp-research')
    ELSE (SELECT id FROM tenants_tenant WHERE slug = 'team-' || (n / 10 %% %(tenants)s)) END AS tenant_id,
  CASE WHEN n %% 4 = 0 THEN (SELECT id FROM tenants_user WHERE username = 'alice')
    ELSE (SELECT id FROM tenants_user WHERE username = 'person-' || n %% %(people)s) END AS owner_id,
  (ARRAY['COMPLETED', 'COMPLETED', 'FAILED', 'CANCELED'])[1 + n %% 4] AS state
FROM generate_series(1, %(count)s) AS n;
ALTER TABLE bench_job ADD PRIMARY KEY (id);
ANALYZE bench_job;
"""
PEOPLE_SQL = """
INSERT INTO tenants_tenant (slug, name, state, priorities, jobs_used, created_at)
SELECT 'team-' || n, 'Team ' || n, 'active', ARRAY['low', 'normal'], 0, now() - interval '1 year'
FROM generate_series(0, %(tenants)s - 1) AS n;
INSERT INTO tenants_user ({columns})
SELECT {values} FROM tenants_user AS p, generate_series(0, %(people)s - 1) AS n WHERE p.username = 'carol';
INSERT INTO tenants_membership (user_id, tenant_id, role, created_at)
SELECT u.id, t.id, 'researcher', now() FROM generate_series(0, %(people)s - 1) AS n
JOIN tenants_user u ON u.username = 'person-' || n
JOIN tenants_tenant t ON t.slug = CASE n %% 10 WHEN 0 THEN 'vision-lab' ELSE 'team-' || n %% %(tenants)s END;
"""
OFFICE_SQL = """
INSERT INTO tenants_auditentry (tenant_id, actor_id, action, target, reason, details, request_id, at)
SELECT b.tenant_id, b.owner_id, (ARRAY['member.add', 'job.read', 'token.create', 'secret.set'])[1 + n % 4], b.id, '',
  '{}', '', now() + b.shift FROM bench_job b WHERE n % 2 = 0 ORDER BY n;
INSERT INTO tenants_quotachange (tenant_id, gpu_type, old_limit, new_limit, used_then, reason, actor_id, change_set, at)
SELECT b.tenant_id, 'cpu', n % 7, n % 5, 0, 'as agreed', (SELECT id FROM tenants_user WHERE username = 'admin'),
  gen_random_uuid(), now() + b.shift FROM bench_job b WHERE n % 100 = 0 ORDER BY n;
"""


@dataclass(frozen=True)
class Copied:
    """A table of the pattern job's rows. own: expressions of single columns, in place of the copied value (p.column);
    where: which jobs have copies."""

    table: str
    own: dict[str, str]
    job: str = "job_id"
    where: str = "TRUE"


ENDED = "CASE WHEN p.{0} = 'COMPLETED' THEN b.state ELSE p.{0} END"
TABLES = (
    Copied(
        "jobs_job",
        {
            "id": "b.id",
            "name": "CASE WHEN b.n = 7 THEN 'needle' ELSE 'run-' || b.n % 977 END",
            "tags": "CASE WHEN b.n % 50 = 0 THEN ARRAY['baseline'] ELSE ARRAY[]::varchar[] END",
            "priority_rank": "b.n % 4",
            "state": "b.state",
        },
        job="id",
    ),
    Copied("jobs_progress", {}),
    Copied("jobs_estimate", {}),
    Copied("jobs_attempt", {"outcome": ENDED.format("outcome"), "resume_from_id": "NULL"}),
    Copied("jobs_learner", {"secret_sha256": "md5(b.id || p.rank) || md5(p.rank || b.id)"}),
    Copied("jobs_jobevent", {"to_state": ENDED.format("to_state"), "actor_id": "b.owner_id"}),
    Copied("jobs_checkpoint", {}, where="b.n % 5 = 0"),
    Copied("jobs_resultfile", {}, where="b.n % 5 = 0"),
    Copied("jobs_logchunk", {}),
    Copied("jobs_metricpoint", {}, where=f"b.n % {POINTS_EVERY} = 0"),
)
FILES = """
INSERT INTO jobs_checkpointfile (checkpoint_id, tenant_id, part, path, blob_id)
SELECT c.id, c.tenant_id, p.part, p.path, p.blob_id FROM jobs_checkpoint c JOIN bench_job b ON b.id = c.job_id,
  jobs_checkpointfile p JOIN jobs_checkpoint pc ON pc.id = p.checkpoint_id AND pc.job_id = %(like)s
WHERE pc.n = c.n
"""
USAGE = """
INSERT INTO jobs_usagedue (tenant_id, job_id, holds, n, at)
SELECT a.tenant_id, a.job_id, true, a.n, a.closed_at FROM jobs_attempt a JOIN bench_job b ON b.id = a.job_id
UNION ALL SELECT e.tenant_id, e.job_id, false, e.n, e.at FROM jobs_jobevent e JOIN bench_job b ON b.id = e.job_id
WHERE e.from_state = 'QUEUED' AND e.to_state <> ''
"""
"""What the triggers would have written; the platform rolls it up, as it does after an upgrade."""
INDEXES = """
SELECT indexname, indexdef FROM pg_indexes WHERE tablename = %s
  AND indexname NOT IN (SELECT conname FROM pg_constraint) ORDER BY indexname
"""
SIZES = """
SELECT (SELECT count(*) FROM jobs_job), (SELECT count(*) FROM jobs_jobevent), (SELECT sum(len) FROM jobs_logchunk),
  pg_database_size(current_database())
"""


def is_seeded(database_url: str) -> bool:
    with psycopg2.connect(database_url) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT to_regclass(%s) IS NOT NULL", [SEEDED])
        return bool(cursor.fetchone()[0])


def is_merged(database_url: str, job: str) -> bool:
    """Whether the sweep that merges logs is done with the job's."""
    with psycopg2.connect(database_url) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT bool_and(log_merged IS NULL) FROM jobs_learner WHERE job_id = %s", [job])
        return bool(cursor.fetchone()[0])


def seed(database_url: str, like: str, jobs: int, days: int = 365) -> None:
    """Write this many jobs of the last days, copies of the job with the id `like`."""
    connection = psycopg2.connect(database_url)
    connection.autocommit = True
    with connection.cursor() as cursor:
        cursor.execute("SET session_replication_role = replica; SET synchronous_commit = off")
        cursor.execute("SET work_mem = '256MB'; SET maintenance_work_mem = '512MB'")
        size = {"tenants": TENANTS, "people": PEOPLE}
        cursor.execute(_people(cursor), size)
        cursor.execute(COPIES, size | {"count": jobs, "days": days})
        for each in TABLES:
            began = time.monotonic()
            with _indexes_afterwards(cursor, each.table):
                cursor.execute(_copy(cursor, each), {"like": like})
                rows = cursor.rowcount
            print(f"  {each.table}: {rows:,} rows in {time.monotonic() - began:.0f} s", flush=True)
        cursor.execute(FILES, {"like": like})
        cursor.execute(USAGE)
        with _indexes_afterwards(cursor, "tenants_auditentry"):
            cursor.execute(OFFICE_SQL)
        began = time.monotonic()
        cursor.execute("VACUUM (ANALYZE)")  # what autovacuum has done where it all came one by one
        print(f"  vacuumed in {time.monotonic() - began:.0f} s", flush=True)
        began = time.monotonic()
        while _to_roll_up(cursor):
            time.sleep(1)
        cursor.execute("VACUUM (ANALYZE) jobs_usagedue, jobs_usageday")
        print(f"  usage rolled up after {time.monotonic() - began:.0f} s", flush=True)
    connection.close()


@contextlib.contextmanager
def _indexes_afterwards(cursor: Any, table: str) -> Iterator[None]:
    """Build the table's indexes once all rows are there: row by row, the search of jobs alone takes most of the time.

    The platform reads without them meanwhile. Those of constraints stay."""
    cursor.execute(INDEXES, [table])
    found = cursor.fetchall()
    for name, _ in found:
        cursor.execute(f'DROP INDEX "{name}"')
    yield
    for _, definition in found:
        cursor.execute(definition)


def _to_roll_up(cursor: Any) -> bool:
    cursor.execute("SELECT EXISTS (SELECT FROM jobs_usagedue WHERE at < now() - interval '1 hour')")
    return bool(cursor.fetchone()[0])


def sizes(database_url: str) -> dict[str, float]:
    with psycopg2.connect(database_url) as connection, connection.cursor() as cursor:
        cursor.execute(SIZES)
        jobs, events, log_bytes, size = cursor.fetchone()
    return {"jobs": jobs, "events": events, "log_bytes": float(log_bytes), "database_gb": size / 1e9}


def _people(cursor: Any) -> str:
    types = _columns(cursor, "tenants_user")
    own = {"username": "'person-' || n", "email": "'person-' || n || '@example.org'"}
    values = ", ".join(own.get(column, f"p.{column}") for column in types)
    return PEOPLE_SQL.format(columns=", ".join(types), values=values)


def _copy(cursor: Any, each: Copied) -> str:
    """Times move with the job; the tenant and the owner are the copy's. What a sequence gives is left out."""
    types = _columns(cursor, each.table)
    values = {
        column: f'p."{column}" + b.shift' if kind == "timestamp with time zone" else f'p."{column}"'
        for column, kind in types.items()
    }
    theirs = {each.job: "b.id", "tenant_id": "b.tenant_id", "owner_id": "b.owner_id"} | each.own
    values |= {column: value for column, value in theirs.items() if column in types}
    columns = ", ".join(f'"{column}"' for column in values)
    return (
        f"INSERT INTO {each.table} ({columns}) SELECT {', '.join(values.values())}"
        f" FROM bench_job AS b, {each.table} AS p WHERE p.{each.job} = %(like)s AND {each.where} ORDER BY b.n"
    ).replace(" % ", " %% ")


def _columns(cursor: Any, table: str) -> dict[str, str]:
    """Its columns with their types, without those whose values a sequence gives."""
    cursor.execute(
        "SELECT column_name, data_type FROM information_schema.columns WHERE table_name = %s"
        " AND is_identity = 'NO' AND is_generated = 'NEVER' ORDER BY ordinal_position",
        [table],
    )
    return dict(cursor.fetchall())
