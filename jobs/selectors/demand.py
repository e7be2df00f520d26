"""Who held what and who waited for what between two times, of all tenants, from attempts and events.

Times without a row are not made up: of jobs that were purged, and of events that a retention rule removed, there is
nothing here. Callers have checked that a person may see all tenants, or narrow to those that they may.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from django.db import OperationalError, connection, transaction

from gpu_scheduler.fairness import Span, Terms
from gpu_scheduler.model import QuotaUse, WaitReason
from jobs.accounting import COUNTS_UNTIL
from jobs.models.job import LIFE_SQL
from jobs.selectors.platform_stops import stops_between
from jobs.selectors.snapshot import quota_uses
from jobs.states import EventCode, State
from tenants.models import QuotaChange
from tenants.retention import Kind
from tenants.services.quotas import TERMS, WHOLE

OWED = frozenset(
    {
        WaitReason.COHORT_GPUS,
        WaitReason.FAIR_SHARE,
        WaitReason.INSUFFICIENT_CAPACITY,
        WaitReason.GANG_FRAGMENTED,
        WaitReason.TOPOLOGY_FRAGMENTED,
        WaitReason.NODE_CPUS,
        WaitReason.NODE_MEMORY,
        WaitReason.IDLE_LEAVING,
        WaitReason.START_PENDING,
        WaitReason.CLUSTER_BUSY,
        WaitReason.DISK_FULL,
    }
)
"""What a job waits for while its tenant is owed its slots: others have them, or there are too few. The other reasons
are the job's own, its owner's limits, or its tenant's."""


TIMED_OUT = "57014"


class TooMuch(Exception):
    """More was held or asked for in this time than is read at once, or than the database reads in time."""


@dataclass(frozen=True, slots=True)
class Use:
    """One attempt: from its placement until it counts no longer (jobs.accounting). nodes: a name per rank.
    opportunistic: it took nothing of its tenant's quota."""

    job: str
    tenant: str
    slot_type: str
    slots: int
    nodes: tuple[str, ...]
    since: datetime
    until: datetime
    opportunistic: bool


@dataclass(frozen=True, slots=True)
class Wait:
    """One reason for which a job waited, from the pass that found it until the next one or the end of the wait.

    slots: of all its learners. slot_type: "" if it takes any type and no pass named one. opportunistic: of a job that
    is owed nothing.
    """

    job: str
    tenant: str
    slot_type: str
    slots: int
    reason: str
    since: datetime
    until: datetime
    opportunistic: bool


ALIVE = f"""
WITH alive AS (
  SELECT id, slug, state, gpus, gpu_type, slots, learners, opportunistic
  FROM jobs_job JOIN (SELECT id AS tenant_id, slug FROM tenants_tenant) AS tenant USING (tenant_id)
  WHERE {LIFE_SQL} && tstzrange(%(start)s, %(end)s)
    AND (%(tenants)s::text[] IS NULL OR slug = ANY(%(tenants)s))
)"""
"""By an index (job_life). A job that is halted is alive, so few of these are of other times."""

USES = f"""{ALIVE}
SELECT * FROM (
  SELECT attempt.job_id, alive.slug, attempt.slot_type, attempt.slots,
    ARRAY(SELECT jsonb_array_elements_text(attempt.nodes)) AS nodes, attempt.opened_at, {COUNTS_UNTIL} AS until,
    attempt.opportunistic
  FROM alive JOIN jobs_attempt AS attempt ON attempt.job_id = alive.id
  WHERE attempt.opened_at < %(end)s AND (attempt.closed_at IS NULL OR attempt.closed_at > %(start)s)
    AND (%(nodes)s::text[] IS NULL OR attempt.nodes ?| %(nodes)s)
) AS held WHERE until > %(start)s ORDER BY opened_at, job_id LIMIT %(most)s + 1
"""

WAITS = f"""{ALIVE}
SELECT alive.id, alive.slug,
  coalesce(wait.numbers->>'slot_type', CASE WHEN alive.gpus = 0 THEN 'cpu' ELSE alive.gpu_type END),
  alive.slots * alive.learners, wait.reason, wait.at, coalesce(wait.until, now()), alive.opportunistic
FROM alive CROSS JOIN LATERAL (
  SELECT at, code, reason, numbers, lead(at) OVER (ORDER BY n) AS until
  FROM jobs_jobevent WHERE job_id = alive.id AND (code = '{EventCode.WAITING}' OR to_state <> '')
) AS wait
WHERE wait.code = '{EventCode.WAITING}' AND wait.at < %(end)s
  AND (wait.until > %(start)s OR wait.until IS NULL AND alive.state = '{State.QUEUED}')
ORDER BY wait.at, alive.id LIMIT %(most)s + 1
"""

REMOVED = f"""{ALIVE}
SELECT count(*) FROM alive JOIN jobs_removal AS gone ON gone.job_id = alive.id WHERE gone.kind = '{Kind.EVENTS}'
"""


def uses_between(
    start: datetime,
    end: datetime,
    nodes: Sequence[str] | None = None,
    most: int | None = None,
    tenants: Sequence[str] | None = None,
) -> list[Use]:
    """The attempts that held slots in this time (of these nodes or tenants, or of all), not cut to it, oldest
    first. Raises TooMuch if there are more than `most`."""
    return [
        Use(job, tenant, slot_type, slots, tuple(nodes), since, until, opportunistic)
        for job, tenant, slot_type, slots, nodes, since, until, opportunistic in _rows(
            USES, start, end, most, tenants, nodes=None if nodes is None else list(nodes)
        )
    ]


def waits_between(
    start: datetime, end: datetime, most: int | None = None, tenants: Sequence[str] | None = None
) -> list[Wait]:
    """The waits of this time by reason, not cut to it, oldest first. A wait is known from the first pass on that
    evaluated the job. Raises TooMuch if there are more than `most`."""
    return [Wait(*row) for row in _rows(WAITS, start, end, most, tenants)]


def events_removed_between(start: datetime, end: datetime) -> int:
    """How many jobs of this time have lost their events by a retention rule, and so the reasons of their waits."""
    ((count,),) = _rows(REMOVED, start, end)
    return int(count)


def _rows(
    statement: str,
    start: datetime,
    end: datetime,
    most: int | None = None,
    tenants: Sequence[str] | None = None,
    **values: Any,
) -> list[tuple[Any, ...]]:
    values |= {
        "start": start,
        "end": end,
        "most": most,
        "tenants": None if tenants is None else list(tenants),
    }
    try:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(statement, values)
            rows: list[tuple[Any, ...]] = cursor.fetchall()
    except OperationalError as error:
        if getattr(error.__cause__, "pgcode", None) == TIMED_OUT:
            raise TooMuch from error
        raise
    if most is not None and len(rows) > most:
        raise TooMuch
    return rows


def held_spans(start: datetime, end: datetime, tenants: Sequence[str] | None = None) -> list[Span]:
    """What jobs of these tenants, or of all, held, as fairness counts it: not what others could take at any time."""
    return [
        Span(use.tenant, use.slot_type, use.slots * len(use.nodes), use.since, use.until)
        for use in uses_between(start, end, tenants=tenants)
        if not use.opportunistic
    ]


def owed_spans(start: datetime, end: datetime, tenants: Sequence[str] | None = None) -> list[Span]:
    """What waiting jobs asked for while their tenants were owed it; without the time of a stopped platform."""
    stops = stops_between(start, end)
    return [
        Span(wait.tenant, wait.slot_type, wait.slots, since, until)
        for wait in waits_between(start, end, tenants=tenants)
        if wait.reason in OWED and wait.slot_type and not wait.opportunistic
        for since, until in _without(stops, wait.since, wait.until)
    ]


def _without(
    stops: Sequence[tuple[datetime, datetime]], since: datetime, until: datetime
) -> Iterator[tuple[datetime, datetime]]:
    for began, ended in stops:
        if began >= until:
            break
        if since < began:
            yield since, began
        since = max(since, ended)
    if since < until:
        yield since, until


def terms_between(start: datetime, end: datetime) -> list[Terms]:
    """The quotas of this time, oldest first: those of now, with all later changes taken back one by one."""
    quotas = {(quota.tenant, quota.slot_type): quota for quota in quota_uses()}
    found: list[Terms] = []
    changes = QuotaChange.objects.filter(at__gt=start).order_by("-at", "-pk")
    for slug, slot_type, old_limit, terms, at in changes.values_list(
        "tenant__slug", "gpu_type", "old_limit", "terms", "at"
    ):
        if at < end:
            found.append(Terms(at, end, tuple(quotas.values())))
            end = at
        _take_back(quotas, slug, slot_type, old_limit, {name: before for name, (before, _) in terms.items()})
    found.append(Terms(start, end, tuple(quotas.values())))
    return [terms for terms in reversed(found) if terms.since < terms.until]


def _take_back(
    quotas: dict[tuple[str, str], QuotaUse], tenant: str, slot_type: str, limit: int, before: dict[str, Any]
) -> None:
    if slot_type == WHOLE:
        if "cohort" in before:
            for key in [key for key in quotas if key[0] == tenant]:
                quotas[key] = replace(quotas[key], cohort=before["cohort"] or "")
        return
    key = (tenant, slot_type)
    known = quotas.get(key) or QuotaUse(tenant, slot_type, 0, 0)
    quotas[key] = replace(known, limit=limit, **{name: before[name] for name in TERMS if name in before})
