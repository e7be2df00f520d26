"""What retention rules would remove, counted before anything is; and what they have removed.

One query judges every job that has data of a kind: the preview adds up its rows, the removal takes some of them. It
joins sets and asks nothing for each job, so that it takes about a page of the database per job, and for logs some more
for its learners.
Only jobs that ended are touched: one that runs, waits or is halted keeps everything, so also what it would resume from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import connection, transaction
from django.db.models import Exists, Max, Min, OuterRef, QuerySet
from django.db.models.functions import Now

from jobs.errors import RemovedByRetention
from jobs.models import POINT_BYTES, UNIT, Removal, counted
from jobs.selectors.installation import audit_taken
from jobs.states import BY_ORDER, FINAL, EventCode, State
from tenants.audit_chain import REMOVAL
from tenants.models import AuditEntry, AuditSeal, Tenant
from tenants.retention import OF_JOBS, Kind, Rule

DELIVERY_H = 24
"""Hours after an end for which its learners may still deliver output (jobs.tokens): nothing is removed before."""
EVENT_BYTES, ENTRY_BYTES = 400, 400
"""About what a row takes with its entries in the indexes; sizes of points and events follow from their number."""
JUDGE_MS = 120_000
"""A tenant with ten million events takes longer than other statements may."""
EXEMPT = {
    "not_ended": "running, waiting and halted jobs keep everything",
    "just_ended": f"jobs that ended less than {DELIVERY_H} hours ago may still receive output",
    "in_use": "an unfinished job resumes from one of these checkpoints",
}
"""Why data that a rule could remove stays, by code."""

_REMOVED, _ENDS = f"'{EventCode.DATA_REMOVED}'", ", ".join(f"'{state}'" for state in sorted(FINAL))
_ORDERED = ", ".join(f"'{reason}'" for reason in sorted(BY_ORDER))
_STAYS = f"""(e.code = {_REMOVED} OR e.to_state IN ({_ENDS})
  OR e.to_state = '{State.STOPPING}' AND e.reason IN ({_ORDERED}))"""
KEPT_EVENT = f"""({_STAYS} OR e.n =
  (SELECT max(n) FROM jobs_jobevent WHERE job_id = j.id AND code <> {_REMOVED}))"""
"""SQL: events e of a job j that stay: its end, its last one, what says what was removed, and when the
scheduler stopped it, by which usage says what was lost."""
_OF_FILES = """(SELECT {job} AS job_id, count(DISTINCT {counted}) AS rows, sum(b.size) AS bytes FROM {files}
  JOIN jobs_blob b ON b.id = f.blob_id WHERE f.tenant_id = %(tenant)s GROUP BY 1) d ON d.job_id = j.id"""
_PROGRESS = "jobs_progress d ON d.job_id = j.id"
_LINES = """LEFT JOIN (SELECT job_id, sum(log_lines) AS lines FROM jobs_learner
  WHERE job_id IN (SELECT id FROM jobs_job WHERE tenant_id = %(tenant)s) GROUP BY 1) l ON l.job_id = j.id"""
"""No index of learners begins with their tenant; the one by job finds them."""
_EVENTS = f"""(SELECT job_id, others - CASE WHEN last > last_end THEN 1 ELSE 0 END AS rows FROM (
    SELECT e.job_id, count(*) FILTER (WHERE NOT {_STAYS}) AS others, max(e.n) FILTER (WHERE NOT {_STAYS}) AS last,
      coalesce(max(e.n) FILTER (WHERE e.to_state IN ({_ENDS})), 0) AS last_end
    FROM jobs_jobevent e WHERE e.tenant_id = %(tenant)s GROUP BY 1) of_job) d ON d.job_id = j.id"""
"""The events that are not kept, in one pass over a tenant's: one that comes last is not among them."""


@dataclass(frozen=True, slots=True)
class _Data:
    """SQL: what to join to jobs j as d, which of them have data of the kind, its bytes, and its rows; in_use: which
    other jobs still need it."""

    joined: str
    has: str
    bytes: str
    rows: str
    in_use: str = "false"


DATA: Mapping[Kind, _Data] = {
    Kind.LOGS: _Data(
        f"{_PROGRESS} {_LINES}",
        "d.log_bytes > 0",
        "d.log_bytes",
        "coalesce(l.lines, 0)",
    ),
    Kind.METRICS: _Data(_PROGRESS, "d.metric_seq > 0", f"d.metric_seq * {POINT_BYTES}", "d.metric_seq"),
    Kind.CHECKPOINTS: _Data(
        _OF_FILES.format(
            job="c.job_id",
            counted="c.id",
            files="jobs_checkpointfile f JOIN jobs_checkpoint c ON c.id = f.checkpoint_id",
        ),
        "true",
        "d.bytes",
        "d.rows",
        in_use="""j.id IN (SELECT c.job_id FROM jobs_checkpoint c WHERE c.id IN (
            SELECT resume_from_id FROM jobs_attempt WHERE resume_from_id IS NOT NULL AND closed_at IS NULL
            UNION SELECT resume_from_id FROM jobs_job WHERE resume_from_id IS NOT NULL AND deleted_at IS NULL
              AND state NOT IN %(final)s))""",
    ),
    Kind.RESULTS: _Data(
        _OF_FILES.format(job="f.job_id", counted="f.id", files="jobs_resultfile f"),
        "true",
        "d.bytes",
        "d.rows",
    ),
    Kind.EVENTS: _Data(_EVENTS, "d.rows > 0", f"d.rows * {EVENT_BYTES}", "d.rows"),
}

JUDGED = """
WITH data AS (
  SELECT j.id, j.finished_at, {rows} AS rows, {bytes} AS bytes, CASE
    WHEN j.state NOT IN %(final)s THEN 'not_ended'
    WHEN j.finished_at > now() - make_interval(hours => %(delivery_h)s) THEN 'just_ended'
    WHEN {in_use} THEN 'in_use' ELSE '' END AS exempt
  FROM jobs_job j JOIN {joined}
  WHERE j.tenant_id = %(tenant)s AND j.deleted_at IS NULL AND {has}
    AND NOT EXISTS (SELECT 1 FROM jobs_removal r WHERE r.job_id = j.id AND r.kind = %(kind)s)
), ranked AS (
  SELECT *, sum(bytes) OVER () AS total,
    sum(bytes) OVER (PARTITION BY exempt ORDER BY finished_at, id) - bytes AS older FROM data
), judged AS (
  SELECT *, CASE
    WHEN exempt <> '' THEN ''
    WHEN finished_at < now() - make_interval(days => %(days)s::int) THEN 'days'
    WHEN total - older > %(bytes)s::bigint THEN 'bytes' ELSE '' END AS why FROM ranked
)
"""
"""Jobs with data of a kind: exempt is a code of EXEMPT or empty, why the limit that removes it or empty. older: bytes
of the jobs that ended earlier, so that the oldest ended go until the rest fits. A limit of null removes nothing."""
ADDED_UP = """SELECT why, exempt, count(*), coalesce(sum(rows), 0), coalesce(sum(bytes), 0),
  min(finished_at), max(finished_at) FROM judged GROUP BY why, exempt"""
CHOSEN = "SELECT id, why, rows, bytes FROM judged WHERE why <> '' ORDER BY finished_at, id LIMIT %(most)s"


@dataclass(frozen=True, slots=True)
class Exempt:
    """Data that no rule removes now, and why: a code of EXEMPT."""

    code: str
    jobs: int
    bytes: int

    @property
    def message(self) -> str:
        return EXEMPT[self.code]


@dataclass(frozen=True, slots=True)
class Effect:
    """What a rule would remove of one kind now. oldest, newest: when the affected jobs ended, or entries were made.

    jobs is 0 for what belongs to no job. left_bytes: what stays of jobs that ended, and of the others.
    """

    kind: Kind
    rule: Rule
    jobs: int
    rows: int
    bytes: int
    oldest: datetime | None
    newest: datetime | None
    left_bytes: int
    exempt: tuple[Exempt, ...]

    @property
    def unit(self) -> str:
        return UNIT[self.kind]

    @property
    def amount(self) -> str:
        return counted(self.kind, self.rows)


@dataclass(frozen=True, slots=True)
class Chosen:
    """One job whose data of a kind is to be removed, by which of the rule's limits."""

    job_id: str
    by_age: bool
    rows: int
    bytes: int


def effects(tenant: Tenant, rules: Mapping[Kind, Rule]) -> list[Effect]:
    """What these rules would remove now, of each kind; a kind without a rule loses nothing."""
    of_jobs = [_effect_on_jobs(tenant, kind, rules[kind]) for kind in OF_JOBS if kind in rules]
    of_audit = [_effect_on_audit(tenant, rules[Kind.AUDIT])] if Kind.AUDIT in rules else []
    return of_jobs + of_audit


def chosen(tenant_id: int, kind: Kind, rule: Rule, most: int) -> list[Chosen]:
    """Jobs whose data of this kind the rule removes now: those that ended first, at most this many."""
    if rule.keeps_all:
        return []
    found = _judge(CHOSEN, tenant_id, kind, rule, most=most)
    return [Chosen(job_id, why == "days", int(rows), int(size)) for job_id, why, rows, size in found]


def removals_of(job_id: str) -> dict[Kind, Removal]:
    """What retention removed from a job, by kind."""
    return {Kind(each.kind): each for each in Removal.objects.filter(job=job_id)}


def refuse_removed(job_id: str, kind: Kind) -> None:
    """Raise RemovedByRetention if this kind of the job's data was removed, or is being removed."""
    found = Removal.objects.filter(job=job_id, kind=kind).first()
    if found is not None:
        raise RemovedByRetention(
            found.words, kind=kind.value, removed_at=found.begun_at.isoformat(), rule=found.rule
        )


def old_entries(tenant_id: int | None, days: int) -> QuerySet[AuditEntry]:
    """Entries of a tenant's audit log that are older than this; None: those of the installation. Where the log is sent
    to another system, what that has not taken stays; and always what says how many were removed."""
    old = AuditEntry.objects.filter(tenant=tenant_id, at__lt=Now() - timedelta(days=days)).exclude(
        action=REMOVAL
    )
    place = audit_taken()
    if place is None:
        return old
    return old.filter(Exists(AuditSeal.objects.filter(entry_id=OuterRef("pk"), n__lte=place)))


def _effect_on_jobs(tenant: Tenant, kind: Kind, rule: Rule) -> Effect:
    jobs = rows = size = left = 0
    oldest: datetime | None = None
    newest: datetime | None = None
    exempt = []
    for why, reason, count, some_rows, some_bytes, first, last in _judge(ADDED_UP, tenant.pk, kind, rule):
        if not why:
            left += int(some_bytes)
            exempt += [Exempt(reason, count, int(some_bytes))] if reason else []
            continue
        jobs, rows, size = jobs + count, rows + int(some_rows), size + int(some_bytes)
        oldest = first if oldest is None else min(oldest, first)
        newest = last if newest is None else max(newest, last)
    return Effect(
        kind, rule, jobs, rows, size, oldest, newest, left, tuple(sorted(exempt, key=lambda one: one.code))
    )


def _judge(query: str, tenant_id: int, kind: Kind, rule: Rule, **more: Any) -> list[tuple[Any, ...]]:
    data = DATA[kind]
    statement = JUDGED.format(
        joined=data.joined, has=data.has, bytes=data.bytes, rows=data.rows, in_use=data.in_use
    )
    values = {
        "tenant": tenant_id,
        "kind": kind.value,
        "final": tuple(state.value for state in sorted(FINAL)),
        "delivery_h": DELIVERY_H,
        "days": rule.days,
        "bytes": rule.bytes,
    }
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL statement_timeout = %s", [JUDGE_MS])
        cursor.execute(statement + query, values | more)
        return cursor.fetchall()


def _effect_on_audit(tenant: Tenant, rule: Rule) -> Effect:
    entries = AuditEntry.objects.filter(tenant=tenant)
    total = entries.count()
    if rule.days is None:
        return Effect(Kind.AUDIT, rule, 0, 0, 0, None, None, total * ENTRY_BYTES, ())
    old = old_entries(tenant.pk, rule.days)
    span = old.aggregate(oldest=Min("at"), newest=Max("at"))
    rows = old.count()
    return Effect(
        Kind.AUDIT, rule, 0, rows, rows * ENTRY_BYTES, span["oldest"], span["newest"],
        (total - rows) * ENTRY_BYTES, (),
    )  # fmt: skip
