"""What tenants have used of their GPU-hour budgets in the present calendar month (UTC).

It is summed as usage is (usage_sql): attempts that run or are not rolled up yet, and the days that are. CPU jobs and
opportunistic ones do not count.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db import connection
from django.utils import timezone

from gpu_scheduler.checks.words import hours, hours_used
from gpu_scheduler.model import CPU_TYPE, TenantState
from jobs.accounting import COUNTS_UNTIL
from jobs.models import Attempt
from tenants.models import Tenant

WARNED_FROM = 0.8
"""The part of a budget from which people are warned."""
FORESEEN_AFTER = timedelta(hours=24)
"""So much of a month must be over before it says what the whole will use."""


@dataclass(frozen=True, slots=True)
class Budget:
    """A tenant's budget and what is used of it, in GPU-hours. The period is a calendar month, its end excluded."""

    gpu_hours: float
    used_gpu_hours: float
    is_hard: bool
    period_start: datetime
    period_end: datetime
    now: datetime

    @property
    def is_used_up(self) -> bool:
        return self.used_gpu_hours >= self.gpu_hours

    @property
    def warns(self) -> bool:
        """One of 0 was set to let no GPU job start: no lasting warning is made of that."""
        return self.gpu_hours > 0 and self.used_gpu_hours >= WARNED_FROM * self.gpu_hours

    @property
    def color(self) -> str:
        """Of a warning."""
        return "red" if self.is_used_up and self.is_hard else "amber"

    @property
    def used(self) -> str:
        """As text, which reaches the budget only if it is used up."""
        return hours_used(self.used_gpu_hours, self.gpu_hours)

    @property
    def limit(self) -> str:
        """As text, in GPU-hours."""
        return hours(self.gpu_hours)

    @property
    def percent(self) -> str:
        """Used, in full percent; 100% only if it is used up."""
        return f"{math.floor(100 * self.used_gpu_hours / self.gpu_hours):,}%" if self.gpu_hours else "—"

    @property
    def projected_gpu_hours(self) -> float | None:
        """What the month will use if it continues as it was; None: it is too young to say."""
        over = self.now - self.period_start
        if over < FORESEEN_AFTER:
            return None
        return self.used_gpu_hours * ((self.period_end - self.period_start) / over)

    @property
    def runs_out_at(self) -> datetime | None:
        """When it is used up if the month continues as it was; None: not in this month, or that is not known."""
        if self.is_used_up or (self.projected_gpu_hours or 0.0) <= self.gpu_hours:
            return None
        return self.period_start + (self.now - self.period_start) * (self.gpu_hours / self.used_gpu_hours)


def month_of(now: datetime) -> tuple[datetime, datetime]:
    """The calendar month (UTC) of a time: its begin, and that of the next."""
    first = now.astimezone(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    return first, (first + timedelta(days=31)).replace(day=1)


_FIRST = "date_trunc('month', now(), 'UTC')"
THIS_MONTH = _FIRST, f"(({_FIRST} AT TIME ZONE 'UTC' + interval '1 month') AT TIME ZONE 'UTC')"
"""The same of the present in SQL."""


def budget_of(tenant: Tenant) -> Budget | None:
    """The tenant's; None: it has none."""
    return budgets_of([tenant]).get(tenant.slug)


def budgets_of(tenants: Iterable[Tenant]) -> dict[str, Budget]:
    """Those of the tenants that have one, by slug. One query if any has, else none."""
    limited = {tenant.slug: tenant for tenant in tenants if tenant.budget_gpu_hours is not None}
    if not limited:
        return {}
    now = timezone.now()
    start, end = month_of(now)
    used = used_gpu_s(limited, start, end)
    return {
        slug: Budget(
            tenant.budget_gpu_hours or 0.0, used[slug] / 3600, tenant.budget_is_hard, start, end, now
        )
        for slug, tenant in limited.items()
    }


def with_use(states: Iterable[TenantState], now: datetime) -> tuple[TenantState, ...]:
    """The states, those with a hard budget with what is used of it. One query if there are any, else none."""
    states = tuple(states)
    limited = {
        state.tenant for state in states if state.budget_gpu_hours is not None and state.budget_is_hard
    }
    if not limited:
        return states
    start, end = month_of(now)
    used = used_gpu_s(limited, start, end)
    return tuple(
        replace(state, used_gpu_s=used[state.tenant], month_ends=end) if state.tenant in limited else state
        for state in states
    )


def may_run_out() -> bool:
    """Whether a job runs whose tenant's budget would stop it."""
    runs = Attempt.objects.filter(held=True, opportunistic=False).exclude(slot_type=CPU_TYPE)
    return runs.filter(tenant__budget_gpu_hours__isnull=False, tenant__budget_is_hard=True).exists()


def used_gpu_s(tenants: Collection[str], start: datetime, end: datetime) -> dict[str, float]:
    """GPU-seconds of these tenants, by slug, between the beginnings of two days (UTC), up to now."""
    values: dict[str, Any] = {"tenants": list(tenants), "start": start, "end": end}
    with connection.cursor() as cursor:
        cursor.execute(USED, values)
        return dict(cursor.fetchall())


def used_sql(*, start: str, end: str, of: str) -> str:
    """Rows of slug and GPU-seconds of tenants. start, end: SQL of the beginnings of two days (UTC); of: which tenants.

    All of it is one statement: nothing is counted twice, or left out, while it is rolled up. What is known to have run
    counts to known_at although the clock was set back since.
    """
    return f"""
SELECT tenant.slug, sum(part.gpu_s)::float8
FROM tenants_tenant AS tenant CROSS JOIN LATERAL (
  SELECT coalesce(sum(attempt.slots * attempt.learners * greatest(0, extract(epoch FROM
    least(greatest({COUNTS_UNTIL}, attempt.known_at), {end}) - greatest(attempt.opened_at, {start})))), 0)::float8
    AS gpu_s
  FROM (
    SELECT * FROM jobs_attempt WHERE tenant_id = tenant.id AND held
    UNION ALL
    SELECT ended.* FROM jobs_usagedue AS due
    JOIN jobs_attempt AS ended ON ended.job_id = due.job_id AND ended.n = due.n
    WHERE due.tenant_id = tenant.id AND due.holds
  ) AS attempt
  WHERE attempt.slot_type <> '{CPU_TYPE}' AND NOT attempt.opportunistic
  UNION ALL
  SELECT coalesce(sum(used - opportunistic), 0) FROM jobs_usageday
  WHERE tenant_id = tenant.id AND slot_type <> '{CPU_TYPE}'
    AND day >= ({start} AT TIME ZONE 'UTC')::date AND day < ({end} AT TIME ZONE 'UTC')::date
) AS part
WHERE {of} GROUP BY tenant.slug"""


USED = used_sql(
    start="%(start)s::timestamptz", end="%(end)s::timestamptz", of="tenant.slug = ANY (%(tenants)s)"
)
