"""What tenants use, wait for and have used, in slots and slot-seconds, from jobs, attempts and events."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from enum import StrEnum
from typing import Any

from django.db import connection
from django.db.models import Count, F, Q, Sum
from django.utils import timezone

from gpu_scheduler.ledger import Loan as Loan
from gpu_scheduler.ledger import loans
from gpu_scheduler.model import CPU_TYPE as CPU_TYPE
from gpu_scheduler.model import QuotaUse
from jobs.accounting import COUNTS_UNTIL
from jobs.models import Attempt, Job
from jobs.selectors.snapshot import quota_uses
from jobs.selectors.usage_sql import (
    FIRST_START,
    FIRST_WAIT,
    HOURS,
    SECONDS,
    USAGE,
    Span,
    direct,
    first_waits_sql,
)
from jobs.states import ACTIVE, HOLDS_GPUS, Intent, State
from tenants.models import Tenant, User
from tenants.services.quotas import TERMS


class By(StrEnum):
    """What usage is summed by, always separately for each slot type."""

    USER = "user"
    GPU_TYPE = "gpu_type"
    DAY = "day"


@dataclass(frozen=True, slots=True)
class QuotaStatus:
    """One quota beside its use, and the slots that queued jobs of this tenant ask for.

    A job that takes any GPU type counts as waiting for each. borrowed: slots of used that other tenants of the cohort
    lend; lent: slots of the limit that they use. opportunistic: slots that opportunistic jobs hold beside it; they are
    neither used nor waited for.
    """

    gpu_type: str
    limit: int
    used: int
    waiting: int
    borrowed: int = 0
    lent: int = 0
    cohort: str = ""
    borrowing_limit: int | None = None
    lending_limit: int | None = None
    weight: int = 1
    user_limit: int | None = None
    gang_limit: int | None = None
    opportunistic: int = 0

    @property
    def over(self) -> int:
        """Slots of used above the limit that no other tenant lends: the limit was lowered."""
        return max(0, self.used - self.limit - self.borrowed)


@dataclass(frozen=True, slots=True)
class Usage:
    """Slot-seconds. key: a username, a day (ISO) or the slot type itself.

    used: held by attempts, as accounted (jobs.accounting). waited: requested while QUEUED and the platform ran. lost:
    held after the newest checkpoint by attempts that failed, or that the scheduler or the platform stopped, if they did
    not save when they were asked to (usage_sql.LOSSES); part of used. What an owner halts or cancels is not in it.
    opportunistic: the part of used that opportunistic jobs held beside the quota.
    """

    key: str
    gpu_type: str
    used: float
    waited: float
    lost: float
    opportunistic: float


def gpus_first(kind: str) -> tuple[bool, str]:
    """Sort key for slot types: by name, CPUs last."""
    return kind == CPU_TYPE, kind


def quotas_of(tenant: Tenant) -> list[QuotaStatus]:
    """The tenant's quotas by type."""
    waiting = _waiting_by_tenant(tenant=tenant).get(tenant.pk, {})
    uses = quota_uses(tenant__cohort=tenant.cohort) if tenant.cohort else quota_uses(tenant=tenant)
    opportunistic = _opportunistic_by_tenant(tenant=tenant).get(tenant.pk, {})
    found = _statuses([use for use in uses if use.tenant == tenant.slug], waiting, loans(uses), opportunistic)
    return sorted(found, key=lambda use: gpus_first(use.gpu_type))


def all_quotas() -> dict[int, list[QuotaStatus]]:
    """Every tenant's quotas by type, by tenant id; for callers that have checked for a platform admin."""
    waiting, opportunistic = _waiting_by_tenant(), _opportunistic_by_tenant()
    uses = quota_uses()
    made = loans(uses)
    found: dict[int, list[QuotaStatus]] = {}
    by_slug = dict(Tenant.objects.values_list("slug", "pk"))
    for use in sorted(uses, key=lambda use: (by_slug[use.tenant], use.slot_type)):
        tenant = by_slug[use.tenant]
        of_tenant = opportunistic.get(tenant, {})
        found.setdefault(tenant, []).extend(_statuses([use], waiting.get(tenant, {}), made, of_tenant))
    return found


def all_loans() -> list[Loan]:
    """Who lends to whom; for callers that have checked for a platform admin."""
    return loans(quota_uses())


def _statuses(
    uses: Iterable[QuotaUse],
    waiting: Mapping[str, int],
    made: Iterable[Loan],
    opportunistic: Mapping[str, int],
) -> list[QuotaStatus]:
    borrowed: Counter[tuple[str, str]] = Counter()
    lent: Counter[tuple[str, str]] = Counter()
    for loan in made:
        borrowed[loan.borrower, loan.slot_type] += loan.slots
        lent[loan.lender, loan.slot_type] += loan.slots
    anything = waiting.get("", 0)
    return [
        QuotaStatus(
            use.slot_type,
            use.limit,
            use.used,
            waiting.get(use.slot_type, 0) + (anything if use.slot_type != CPU_TYPE else 0),
            borrowed[use.tenant, use.slot_type],
            lent[use.tenant, use.slot_type],
            use.cohort,
            use.borrowing_limit,
            use.lending_limit,
            use.weight,
            use.user_limit,
            use.gang_limit,
            opportunistic.get(use.slot_type, 0),
        )
        for use in uses
    ]


def _waiting_by_tenant(**narrowed: Any) -> dict[int, dict[str, int]]:
    """Slots of quotas asked for by queued jobs, by tenant id and requested type; "" is any GPU type."""
    rows = Job.objects.filter(
        state=State.QUEUED, intent=Intent.RUN, deleted_at=None, opportunistic=False, **narrowed
    )
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


def _opportunistic_by_tenant(**narrowed: Any) -> dict[int, dict[str, int]]:
    """Slots that opportunistic jobs hold, by tenant id and type."""
    rows = Attempt.objects.filter(held=True, opportunistic=True, **narrowed).values("tenant_id", "slot_type")
    found: dict[int, dict[str, int]] = {}
    for row in rows.annotate(sum=Sum(F("slots") * F("learners"))).order_by():
        found.setdefault(row["tenant_id"], {})[row["slot_type"]] = row["sum"]
    return found


@dataclass(frozen=True, slots=True)
class Wait:
    """How long jobs of one slot type waited for their first start: median and 90th percentile in seconds."""

    slot_type: str
    median: float
    p90: float


def waits_of(tenant: Tenant, *, since: datetime) -> list[Wait]:
    """Waiting times of the jobs that started since then, by slot type, without opportunistic ones."""
    with connection.cursor() as cursor:
        cursor.execute(WAITS, {"tenant": tenant.pk, "since": since})
        return [Wait(*row) for row in cursor.fetchall()]


@dataclass(frozen=True, slots=True)
class FirstWaits:
    """Seconds that jobs had waited for their first start, as (median, 90th percentile): of all, by username, and by
    resource ("gpu" or "cpu"). None and left out: no job started."""

    whole: tuple[float, float] | None
    by_user: Mapping[str, tuple[float, float]]
    by_resource: Mapping[str, tuple[float, float]]


def first_waits(tenant: Tenant, *, start: datetime, end: datetime) -> FirstWaits:
    """Of the jobs that first started between two times, without opportunistic ones; those of whole days count although
    they were purged."""
    span = Span.of(start, end, timezone.now())
    values: dict[str, Any] = {"tenant": tenant.pk, "start": start, "end": end}
    with connection.cursor() as cursor:
        cursor.execute(first_waits_sql(len(span.edges)), values | span.values)
        rows = cursor.fetchall()
    return FirstWaits(
        whole=next(
            ((median, p90) for user, resource, median, p90 in rows if not user and not resource), None
        ),
        by_user={user: (median, p90) for user, _, median, p90 in rows if user},
        by_resource={resource: (median, p90) for _, resource, median, p90 in rows if resource},
    )


def held_by(user: User, tenant: Tenant) -> dict[str, int]:
    """Slots of the quota in use by this user's jobs in the tenant, by slot type."""
    held = Attempt.objects.filter(held=True, opportunistic=False, tenant=tenant, job__owner=user)
    rows = held.values("slot_type")
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
    for tenant_id, state, n in rows.values_list("tenant_id", "state").annotate(n=Count("*")).order_by():
        counts.setdefault(tenant_id, [0, 0])[state == State.QUEUED] += n
    return {tenant_id: Live(*pair) for tenant_id, pair in counts.items()}


def usage_of(tenant: Tenant, *, start: datetime, end: datetime, by: By) -> list[Usage]:
    """Slot-seconds between start and end, by key and slot type; both times must be aware, start < end.

    Whole days (UTC) are read as rolled up, with the jobs that were purged; of a part of a day, jobs that are left
    count.
    """
    shown, columns = KEYS[by]
    return [Usage(*row) for row in _usage(tenant, start, end, (shown,), columns)]


def budgeted_by_day(tenant: Tenant, *, start: datetime, end: datetime) -> dict[date, float]:
    """GPU-hours by UTC day, as usage_of counts them, of what counts against a GPU-hour budget."""
    hours: defaultdict[date, float] = defaultdict(float)
    for row in usage_of(tenant, start=start, end=end, by=By.DAY):
        if row.gpu_type != CPU_TYPE:
            hours[date.fromisoformat(row.key)] += (row.used - row.opportunistic) / 3600
    return dict(hours)


@dataclass(frozen=True, slots=True)
class DayUsage:
    """As Usage, of one user on one UTC day. user: empty for those that were not named."""

    day: date
    user: str
    gpu_type: str
    used: float
    waited: float
    lost: float
    opportunistic: float


def usage_by_day_and_user(
    tenant: Tenant, *, start: datetime, end: datetime, named: Sequence[str] | None = None
) -> list[DayUsage]:
    """As usage_of, for charts that stack users on days. named: the users that have a name in it; by default all."""
    owner = "owner_id"
    if named is not None:
        owner = "CASE WHEN owner_id = ANY (%(named)s) THEN owner_id END AS owner_id"
    ids = list(User.objects.filter(username__in=named or ()).values_list("pk", flat=True))
    shown = ("sums.day", "coalesce(owner.username, '')")
    return [DayUsage(*row) for row in _usage(tenant, start, end, shown, ("day", owner), named=ids)]


def hours_by_day_and_user(tenant: Tenant, *, start: datetime, end: datetime) -> list[tuple[str, ...]]:
    """As usage_by_day_and_user of all users, as text for a file: day, user, slot type, and slot-hours used, waited and
    lost."""
    shown = ("sums.day::text", "coalesce(owner.username, '')")  # a driver's session writes dates as ISO 8601
    return _usage(tenant, start, end, shown, ("day", "owner_id"), figures=HOURS)


def _usage(
    tenant: Tenant,
    start: datetime,
    end: datetime,
    shown: Sequence[str],
    columns: Sequence[str],
    *,
    figures: str = SECONDS,
    **more: Any,
) -> list[tuple[Any, ...]]:
    """Rows of shown (of sums and owner), the slot type and the figures. columns: what is summed by, besides the
    type."""
    span = Span.of(start, end, timezone.now())
    keys = [*columns, "slot_type"]
    statement = USAGE.format(
        columns=", ".join(keys),
        groups=", ".join(str(n) for n, _ in enumerate(keys, 1)),
        shown=", ".join([*shown, "sums.slot_type"]),
        figures=figures,
        joined="LEFT JOIN tenants_user AS owner ON owner.id = sums.owner_id"
        if "owner_id" in " ".join(keys)
        else "",
        order=", ".join(str(n) for n in range(1, len(shown) + 2)),
        **direct(len(span.edges)),
    )
    values: dict[str, Any] = {"tenant": tenant.pk, "start": start, "end": end}
    with connection.cursor() as cursor:
        cursor.execute(statement, values | span.values | more)
        return cursor.fetchall()


@dataclass(frozen=True, slots=True)
class JobUsage:
    """Slot-seconds that one job held."""

    job_id: str
    used: float


def largest_jobs(
    tenant: Tenant, *, start: datetime, end: datetime, resource: str, count: int
) -> list[JobUsage]:
    """The jobs that held most between two times, on "gpu" or "cpu", most first; jobs that were purged are left out."""
    values: dict[str, Any] = {
        "tenant": tenant.pk,
        "start": start,
        "end": end,
        "cpu": resource == "cpu",
        "count": count,
    }
    with connection.cursor() as cursor:
        cursor.execute(LARGEST, values)
        return [JobUsage(*row) for row in cursor.fetchall()]


KEYS = {
    By.USER: ("owner.username", ("owner_id",)),
    By.GPU_TYPE: ("sums.slot_type", ()),
    By.DAY: ("to_char(sums.day, 'YYYY-MM-DD')", ("day",)),
}
"""What usage is shown by, and the columns that it is summed by, besides the slot type."""

HELD = """
      SELECT * FROM jobs_attempt WHERE tenant_id = %(tenant)s AND closed_at > %(start)s AND opened_at < %(end)s
      UNION ALL SELECT * FROM jobs_attempt WHERE tenant_id = %(tenant)s AND held AND opened_at < %(end)s
"""
"""The attempts that held slots between two times."""

LARGEST = f"""
WITH part AS MATERIALIZED (
  SELECT job_id, n, size * date_part('epoch', least(b, %(end)s) - greatest(opened_at, %(start)s)) AS used
  FROM (
    SELECT attempt.job_id, attempt.n, attempt.opened_at, attempt.slots * attempt.learners AS size, {COUNTS_UNTIL} AS b
    FROM ({HELD}) AS attempt WHERE (attempt.slot_type = 'cpu') = %(cpu)s
  ) AS one WHERE greatest(opened_at, %(start)s) < least(b, %(end)s)
),
again AS MATERIALIZED (SELECT DISTINCT job_id FROM part WHERE n > 1)
SELECT job_id, used FROM (
  (SELECT job_id, used FROM part WHERE job_id NOT IN (SELECT job_id FROM again)
   ORDER BY used DESC, job_id LIMIT %(count)s)
  UNION ALL
  SELECT job_id, sum(used) FROM part WHERE job_id IN (SELECT job_id FROM again) GROUP BY job_id
) AS job ORDER BY used DESC, job_id LIMIT %(count)s
"""
"""Only what jobs that began again used is summed up: most have one attempt, and a month may have tens of thousands.
date_part gives floats; numerics take twice as long."""


WAITS = f"""
SELECT attempt.slot_type, waits[1], waits[2]
FROM (
  SELECT attempt.slot_type, percentile_cont(ARRAY[0.5, 0.9])
    WITHIN GROUP (ORDER BY {FIRST_WAIT}) AS waits
  FROM jobs_attempt AS attempt JOIN jobs_job AS job ON job.id = attempt.job_id
  WHERE attempt.tenant_id = %(tenant)s AND {FIRST_START} AND attempt.opened_at > %(since)s
  GROUP BY attempt.slot_type
) AS attempt ORDER BY 1
"""


def quota_etag(limit: int, terms: Mapping[str, Any]) -> str:
    """The version of a quota: its limit, and of its terms those that are not as they are without a quota."""
    special = [f";{name}-{terms[name]}" for name, usual in TERMS.items() if terms[name] != usual]
    return f'"limit-{limit}{"".join(special)}"'
