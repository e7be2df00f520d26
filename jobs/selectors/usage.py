"""What tenants use, wait for and have used, in slots and slot-seconds, from jobs, attempts and events."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from django.db import connection
from django.db.models import Count, F, Q, Sum

from gpu_scheduler.model import CPU_TYPE as CPU_TYPE
from jobs.accounting import COUNTS_UNTIL
from jobs.models import Attempt, Job
from jobs.states import ACTIVE, HOLDS_GPUS, Intent, State, StopReason
from tenants.models import Quota, Tenant, User

LOSSES = (
    State.FAILED, StopReason.LEARNER_FAILED, StopReason.LEARNER_LOST, StopReason.NODE_LOST, StopReason.DEPLOY_FAILED,
    StopReason.DEPLOY_TIMEOUT, StopReason.IMAGE_ERROR, StopReason.DATA_ERROR, StopReason.SECRET_MISSING,
)  # fmt: skip
"""Outcomes of attempts whose work after the newest checkpoint is repeated or lost."""


class By(StrEnum):
    """What usage is summed by, always separately for each slot type."""

    USER = "user"
    GPU_TYPE = "gpu_type"
    DAY = "day"


@dataclass(frozen=True, slots=True)
class QuotaStatus:
    """One quota beside its use, and the slots that queued jobs of this tenant ask for.

    A job that takes any GPU type counts as waiting for each.
    """

    gpu_type: str
    limit: int
    used: int
    waiting: int


@dataclass(frozen=True, slots=True)
class Usage:
    """Slot-seconds. key: a username, a day (ISO) or the slot type itself.

    used: held by attempts, as accounted (jobs.accounting). waited: requested while QUEUED. lost: held after the
    newest checkpoint by attempts that failed or were lost (LOSSES); part of used. A cancel or a halt
    loses nothing.
    """

    key: str
    gpu_type: str
    used: float
    waited: float
    lost: float


def gpus_first(kind: str) -> tuple[bool, str]:
    """Sort key for slot types: by name, CPUs last."""
    return kind == CPU_TYPE, kind


def quotas_of(tenant: Tenant) -> list[QuotaStatus]:
    """The tenant's quotas by type."""
    waiting = _waiting_by_tenant(tenant=tenant).get(tenant.pk, {})
    found = [_use(row, waiting) for row in Quota.objects.filter(tenant=tenant)]
    return sorted(found, key=lambda use: gpus_first(use.gpu_type))


def all_quotas() -> dict[int, list[QuotaStatus]]:
    """Every tenant's quotas by type, by tenant id; for callers that have checked for a platform admin."""
    waiting = _waiting_by_tenant()
    found: dict[int, list[QuotaStatus]] = {}
    for row in Quota.objects.order_by("tenant_id", "gpu_type"):
        found.setdefault(row.tenant_id, []).append(_use(row, waiting.get(row.tenant_id, {})))
    return found


def _use(row: Quota, waiting: Mapping[str, int]) -> QuotaStatus:
    anything = waiting.get("", 0) if row.gpu_type != CPU_TYPE else 0
    return QuotaStatus(row.gpu_type, row.limit, row.used, waiting.get(row.gpu_type, 0) + anything)


def _waiting_by_tenant(**narrowed: Any) -> dict[int, dict[str, int]]:
    """Slots asked for by queued jobs, by tenant id and requested type; "" is any GPU type."""
    rows = Job.objects.filter(state=State.QUEUED, intent=Intent.RUN, deleted_at=None, **narrowed)
    sums: dict[int, dict[str, int]] = {}
    for row in (
        rows.values("tenant_id", "gpu_type", cpu=Q(gpus=0))
        .annotate(total=Sum(F("slots") * F("learners")))
        .order_by()
    ):
        kind = CPU_TYPE if row["cpu"] else row["gpu_type"]
        of_tenant = sums.setdefault(row["tenant_id"], {})
        of_tenant[kind] = of_tenant.get(kind, 0) + row["total"]
    return sums


@dataclass(frozen=True, slots=True)
class Wait:
    """How long jobs of one slot type waited for their first start: median and 90th percentile in seconds."""

    slot_type: str
    median: float
    p90: float


def waits_of(tenant: Tenant, *, since: datetime) -> list[Wait]:
    """Waiting times of the jobs that started since then, by slot type."""
    with connection.cursor() as cursor:
        cursor.execute(WAITS, {"tenant": tenant.pk, "since": since})
        return [Wait(*row) for row in cursor.fetchall()]


@dataclass(frozen=True, slots=True)
class FirstStart:
    """A job's first start: its owner, the slot type, and how long the job had waited."""

    owner: str
    gpu_type: str
    waited_s: float


def starts_of(tenant: Tenant, *, start: datetime, end: datetime) -> list[FirstStart]:
    """The first starts between two times."""
    rows = Attempt.objects.filter(tenant=tenant, n=1, opened_at__gte=start, opened_at__lt=end)
    return [
        FirstStart(owner, kind, max(0.0, (opened - made).total_seconds()))
        for owner, kind, opened, made in rows.values_list(
            "job__owner__username", "slot_type", "opened_at", "job__created_at"
        )
    ]


def held_by(user: User, tenant: Tenant) -> dict[str, int]:
    """Slots in use by this user's jobs in the tenant, by slot type."""
    rows = Attempt.objects.filter(held=True, tenant=tenant, job__owner=user).values("slot_type")
    return {row["slot_type"]: row["sum"] for row in rows.annotate(sum=Sum(F("slots") * F("learners")))}


def live_jobs(tenant: Tenant) -> int:
    """The number of jobs that are not final."""
    return Job.objects.filter(tenant=tenant, deleted_at=None, state__in=ACTIVE).count()


@dataclass(frozen=True, slots=True)
class Live:
    """Jobs of one tenant that hold devices, and those that wait."""

    running: int
    queued: int


def live_by_tenant() -> dict[int, Live]:
    """Running and queued jobs by tenant id; a tenant without any is left out."""
    rows = Job.objects.filter(deleted_at=None, state__in=[State.QUEUED, *HOLDS_GPUS])
    counts: dict[int, list[int]] = {}
    for tenant_id, state, n in rows.values_list("tenant_id", "state").annotate(n=Count("pk")).order_by():
        counts.setdefault(tenant_id, [0, 0])[state == State.QUEUED] += n
    return {tenant_id: Live(*pair) for tenant_id, pair in counts.items()}


def usage_of(tenant: Tenant, *, start: datetime, end: datetime, by: By) -> list[Usage]:
    """Slot-seconds between start and end, by key and slot type; both times must be aware, start < end."""
    return _usage(tenant, start, end, key=KEYS[by], by_day=by is By.DAY)


def usage_by_day_and_user(tenant: Tenant, *, start: datetime, end: datetime) -> list[Usage]:
    """As usage_of, keyed by "2026-11-21 alice", for charts that stack users on days."""
    return _usage(tenant, start, end, key=f"{KEYS[By.DAY]} || ' ' || {KEYS[By.USER]}", by_day=True)


def by_user(rows: Iterable[Usage]) -> list[Usage]:
    """Rows of usage_by_day_and_user summed over their days, keyed by username."""
    sums: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        total = sums.setdefault((row.key.split(" ", 1)[1], row.gpu_type), [0.0, 0.0, 0.0])
        total[:] = [old + new for old, new in zip(total, (row.used, row.waited, row.lost), strict=True)]
    return [Usage(*key, *total) for key, total in sorted(sums.items())]


def usage_by_job(tenant: Tenant, *, start: datetime, end: datetime) -> list[Usage]:
    """As usage_of, keyed by job id."""
    return _usage(tenant, start, end, key="part.job_id", by_day=False)


def _usage(tenant: Tenant, start: datetime, end: datetime, *, key: str, by_day: bool) -> list[Usage]:
    spans = SPANS_BY_DAY if by_day else SPAN_WHOLE
    with connection.cursor() as cursor:
        losses = [str(outcome) for outcome in LOSSES]
        values: dict[str, Any] = {"tenant": tenant.pk, "start": start, "end": end, "losses": losses}
        cursor.execute(USAGE.format(key=key, spans=spans, counts_until=COUNTS_UNTIL), values)
        return [Usage(*row) for row in cursor.fetchall()]


KEYS = {
    By.USER: "owner.username",
    By.GPU_TYPE: "part.slot_type",
    By.DAY: "to_char(span.day, 'YYYY-MM-DD')",
}


WAITS = """
SELECT attempt.slot_type, waits[1], waits[2]
FROM (
  SELECT attempt.slot_type, percentile_cont(ARRAY[0.5, 0.9])
    WITHIN GROUP (ORDER BY greatest(0, extract(epoch FROM attempt.opened_at - job.created_at))) AS waits
  FROM jobs_attempt AS attempt JOIN jobs_job AS job ON job.id = attempt.job_id
  WHERE attempt.tenant_id = %(tenant)s AND attempt.n = 1 AND attempt.opened_at > %(since)s
  GROUP BY attempt.slot_type
) AS attempt ORDER BY 1
"""

SPAN_WHOLE = "SELECT %(start)s::timestamptz AS day, %(start)s::timestamptz AS a, %(end)s::timestamptz AS b"
SPANS_BY_DAY = """
  SELECT day AT TIME ZONE 'UTC' AS day,
         greatest(day AT TIME ZONE 'UTC', %(start)s::timestamptz) AS a,
         least((day + interval '1 day') AT TIME ZONE 'UTC', %(end)s::timestamptz) AS b
  FROM generate_series(date_trunc('day', greatest(part.a, %(start)s::timestamptz) AT TIME ZONE 'UTC'),
                       least(part.b, %(end)s::timestamptz) AT TIME ZONE 'UTC', interval '1 day') AS day"""
"""The days of one part: joined with all days of a year, each part would be compared with each of them."""

USAGE = """
WITH ended AS (
  SELECT * FROM jobs_attempt WHERE tenant_id = %(tenant)s AND closed_at > %(start)s AND opened_at < %(end)s
  UNION ALL SELECT * FROM jobs_attempt WHERE tenant_id = %(tenant)s AND held AND opened_at < %(end)s
),
held AS (
  SELECT attempt.job_id, attempt.slot_type, attempt.slots * attempt.learners AS size, attempt.opened_at AS a,
         {counts_until} AS b,
         CASE WHEN attempt.closed_at IS NULL OR attempt.outcome <> ALL (%(losses)s) THEN NULL
              ELSE coalesce((SELECT max(committed_at) FROM jobs_checkpoint AS saved
                             WHERE saved.job_id = attempt.job_id AND saved.attempt = attempt.n
                               AND saved.committed_at <= attempt.closed_at), attempt.opened_at)
         END AS lost_from
  FROM ended AS attempt
),
waits AS (
  SELECT move.job_id, entry.at AS a, move.at AS b
  FROM jobs_jobevent AS move CROSS JOIN LATERAL (
    SELECT at FROM jobs_jobevent WHERE job_id = move.job_id AND n < move.n AND to_state = 'QUEUED'
    ORDER BY n DESC LIMIT 1) AS entry
  WHERE move.tenant_id = %(tenant)s AND move.from_state = 'QUEUED' AND move.to_state <> '' AND move.at > %(start)s
  UNION ALL
  SELECT job.id, entry.at, now()
  FROM jobs_job AS job CROSS JOIN LATERAL (
    SELECT at FROM jobs_jobevent WHERE job_id = job.id AND to_state = 'QUEUED' ORDER BY n DESC LIMIT 1) AS entry
  WHERE job.tenant_id = %(tenant)s AND job.state = 'QUEUED' AND job.deleted_at IS NULL
),
queued AS (
  SELECT wait.job_id,
         CASE WHEN job.gpus = 0 THEN 'cpu' WHEN job.gpu_type = '' THEN 'any' ELSE job.gpu_type END AS slot_type,
         job.slots * job.learners AS size, wait.a, wait.b
  FROM waits AS wait JOIN jobs_job AS job ON job.id = wait.job_id
  WHERE wait.a < %(end)s
),
part AS (
  SELECT job_id, slot_type, size, a, b, lost_from, TRUE AS holds FROM held
  UNION ALL SELECT job_id, slot_type, size, a, b, NULL, FALSE FROM queued
)
SELECT {key} AS key, part.slot_type,
  round(coalesce(sum(size * seconds) FILTER (WHERE holds), 0)::numeric, 3)::float8 AS used,
  round(coalesce(sum(size * seconds) FILTER (WHERE NOT holds), 0)::numeric, 3)::float8 AS waited,
  round(coalesce(sum(size * greatest(0, extract(epoch FROM
    least(part.b, span.b) - greatest(part.lost_from, span.a)))) FILTER (WHERE lost_from IS NOT NULL), 0)::numeric, 3
  )::float8 AS lost
FROM part
JOIN LATERAL ({spans}) AS span ON part.a < span.b AND part.b > span.a
JOIN jobs_job AS job ON job.id = part.job_id
JOIN tenants_user AS owner ON owner.id = job.owner_id
CROSS JOIN LATERAL (SELECT extract(epoch FROM least(part.b, span.b) - greatest(part.a, span.a)) AS seconds) AS overlap
GROUP BY 1, 2 ORDER BY 1, 2
"""


def quota_etag(limit: int) -> str:
    return f'"limit-{limit}"'
