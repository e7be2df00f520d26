"""Limits and terms: set one by one or as a change set, all or none, each with a reason and a line of history."""

from __future__ import annotations

import math
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from django.db import connection, transaction
from django.db.models import Sum

from tenants import access, audit, checks
from tenants.errors import FieldsInvalid, LimitChanged, Overcommitted, problem
from tenants.models import ProjectShare, Quota, QuotaChange, Tenant

QUOTA_LOCK = 4_770_001
"""Advisory lock for changes of limits: the sum over all tenants must hold at commit."""
MAX_LIMIT = 1_000_000
MAX_WEIGHT = 1000
MAX_TIME_S = 10 * 365 * 86_400
MAX_GPU_HOURS = MAX_LIMIT * 31 * 24
TERMS: Mapping[str, int | None] = {
    "borrowing_limit": None,
    "lending_limit": None,
    "weight": 1,
    "user_limit": None,
    "gang_limit": None,
}
"""The terms on which a tenant borrows and lends, the limits for one user and one job, and what they all are without a
quota."""
WHOLE = ""
"""In place of a slot type: what is set for all of a tenant's types together."""
LIMIT_SET = "quota.set"
"""What the audit log calls a changed limit."""
WHOLE_TERMS: Mapping[str, int | float | str | None] = {
    "cohort": "",
    "jobs_limit": None,
    "user_jobs_limit": None,
    "max_time_s": None,
    "budget_gpu_hours": None,
    "budget_is_hard": True,
}
"""The terms of a tenant as a whole, fields of its row, and what they are by default."""
Term = int | float | str | None
LEAST = {"weight": 1, "user_limit": 1, "gang_limit": 1, "user_jobs_limit": 1, "max_time_s": 1}
"""The least that a limit or a term can be, if not 0: one of 0 for each user or job is a limit of 0."""
MOST = {"weight": MAX_WEIGHT, "max_time_s": MAX_TIME_S, "budget_gpu_hours": MAX_GPU_HOURS}
"""The most that it can be, if not MAX_LIMIT."""


@dataclass(frozen=True, slots=True)
class Change:
    """One requested limit, in slots, or with gpu_type WHOLE what is set for the whole tenant. if_limit: apply only
    while the limit is this. terms: those of TERMS, or of WHOLE_TERMS, to set; if_terms: apply only while they are
    these.
    """

    tenant: str
    gpu_type: str
    limit: int
    if_limit: int | None = None
    terms: Mapping[str, Term] = field(default_factory=dict)
    if_terms: Mapping[str, Term] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Applied:
    """One limit before and after the change, and the slots in use; all 0 for the whole tenant. terms: which of them
    change, before and after."""

    tenant: str
    gpu_type: str
    old_limit: int
    new_limit: int
    used: int
    terms: Mapping[str, tuple[Term, Term]] = field(default_factory=dict)

    @property
    def changes(self) -> bool:
        return self.new_limit != self.old_limit or bool(self.terms)


@dataclass(frozen=True, slots=True)
class Total:
    """Limits of one type summed over all tenants, with the cluster's capacity and the most that may be allocated."""

    gpu_type: str
    limits: int
    capacity: int
    allowed: int


@dataclass(frozen=True, slots=True)
class ChangeSet:
    """What a change set did, or would do. id is None for a dry run."""

    id: uuid.UUID | None
    changes: tuple[Applied, ...]
    totals: tuple[Total, ...]


def quota_changes_apply(
    *,
    user: access.Person,
    changes: Sequence[Change],
    reason: str,
    capacity: Mapping[str, int],
    overcommit: float,
    dry_run: bool = False,
) -> ChangeSet:
    """Set all limits and terms or none. capacity: slots per type of the cluster; overcommit: how far limits may exceed
    it.

    Lowering a limit below its use is legal and stops nothing. Raises AdminOnly, FieldsInvalid, LimitChanged,
    Overcommitted; each names every wrong change.
    """
    access.require_admin(user)
    checks.refuse(
        checks.text("reason", reason, 500),
        *(wrong for n, each in enumerate(changes) for wrong in _bounds(n, each)),
        *unknown_rows({n: (each.tenant, each.gpu_type) for n, each in enumerate(changes)}, capacity),
    )
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_xact_lock(%s)", [QUOTA_LOCK])
        tenants = {one.slug: one for one in Tenant.objects.filter(slug__in={each.tenant for each in changes})}
        rows = _lock(tenants.values(), {change.gpu_type for change in changes})
        whole = {change.tenant for change in changes if change.gpu_type == WHOLE}
        locked = Tenant.objects.select_for_update(no_key=True).filter(slug__in=whole).order_by("pk")
        tenants |= {tenant.slug: tenant for tenant in locked}
        _refuse_outdated(changes, tenants, rows)
        applied = tuple(
            _applied(change, tenants[change.tenant], rows.get((tenants[change.tenant].pk, change.gpu_type)))
            for change in changes
        )
        if wrong := below_guarantees(applied):
            raise FieldsInvalid(errors=wrong)
        totals = totals_of(applied, capacity, overcommit)
        change_set = None if dry_run else uuid.uuid4()
        if change_set:
            for one in applied:
                _write(one, tenants[one.tenant], reason, user, change_set)
    return ChangeSet(change_set, applied, totals)


def most_allocatable(capacity: int, overcommit: float) -> int:
    """The most that all limits of one type may sum to, in slots, rounded up to a whole slot."""
    return math.ceil(capacity * Fraction(str(overcommit)))


def _bounds(index: int, change: Change) -> Iterator[dict[str, Any]]:
    usual: Mapping[str, Term] = WHOLE_TERMS if change.gpu_type == WHOLE else TERMS
    for name, value in {"limit": change.limit, **change.terms}.items():
        if name == "cohort":
            wrong = checks.slug(f"changes[{index}].cohort", str(value), 40) if value else None
            if wrong:
                yield wrong
            continue
        if name == "budget_is_hard":
            if not isinstance(value, bool):
                yield problem(f"changes[{index}].{name}", "invalid", "must be true or false", value)
            continue
        least, most = LEAST.get(name, 0), MOST.get(name, MAX_LIMIT)
        unlimited = value is None and name in usual and usual[name] is None
        kinds = (int, float) if name == "budget_gpu_hours" else int
        if not unlimited and not (isinstance(value, kinds) and least <= value <= most):
            allowed = f"{least}s to {most // 86_400}d" if name == "max_time_s" else f"{least} to {most}"
            yield problem(f"changes[{index}].{name}", "out_of_range", f"must be {allowed}", value, allowed)


def unknown_rows(
    named: Mapping[int, tuple[str | None, str | None]], capacity: Mapping[str, int]
) -> list[dict[str, Any]]:
    """Which of these tenants and slot types there are not, and which pairs are named twice, as entries of
    details["errors"]. named: both by the index of their change; None: not to be judged. Two queries.
    """
    slugs = Tenant.objects.filter(slug__in={slug for slug, _ in named.values() if slug is not None})
    found = set(slugs.values_list("slug", flat=True))
    known = set(capacity) | set(Quota.objects.values_list("gpu_type", flat=True).distinct())
    wrong, seen = [], set()
    for index, (slug, gpu_type) in named.items():
        at = f"changes[{index}]"
        if slug is not None and slug not in found:
            wrong.append(problem(f"{at}.tenant", "tenant_not_found", "no such tenant", slug))
        if gpu_type is not None and gpu_type not in known and gpu_type != WHOLE:
            message = "the cluster has no devices of this type"
            wrong.append(problem(f"{at}.gpu_type", "gpu_type_not_found", message, gpu_type, sorted(known)))
        if (slug, gpu_type) in seen:
            wrong.append(problem(at, "repeated", "this tenant and type appear twice", slug))
        if slug is not None and gpu_type is not None:
            seen.add((slug, gpu_type))
    return wrong


def _lock(tenants: Iterable[Tenant], types: set[str]) -> dict[tuple[int, str], Quota]:
    rows = Quota.objects.select_for_update(no_key=True).filter(tenant__in=list(tenants), gpu_type__in=types)
    return {(row.tenant_id, row.gpu_type): row for row in rows.order_by("tenant_id", "gpu_type")}


def _refuse_outdated(
    changes: Sequence[Change], tenants: Mapping[str, Tenant], rows: Mapping[tuple[int, str], Quota]
) -> None:
    wrong = []
    for index, change in enumerate(changes):
        tenant = tenants[change.tenant]
        row = rows.get((tenant.pk, change.gpu_type))
        before = _terms_now(change, tenant, row)
        wrong += [
            problem(f"changes[{index}].{name}", "limit_changed", f"it is {before[name]}", seen, before[name])
            for name, seen in change.if_terms.items()
            if before[name] != seen
        ]
        now = row.limit if row else 0
        if change.if_limit is not None and change.if_limit != now:
            wrong.append(
                problem(
                    f"changes[{index}].if_limit", "limit_changed", f"the limit is {now}", change.if_limit, now
                )
            )
    if wrong:
        raise LimitChanged(errors=wrong)


def _terms_now(change: Change, tenant: Tenant, row: Quota | None) -> dict[str, Term]:
    if change.gpu_type == WHOLE:
        return {name: getattr(tenant, name) for name in WHOLE_TERMS}
    return {name: getattr(row, name) if row else usual for name, usual in TERMS.items()}


def below_guarantees(
    applied: Sequence[Applied], tried: Mapping[tuple[str, str], int] | None = None
) -> list[dict[str, Any]]:
    """What is wrong with each limit that would be lowered below what the tenant guarantees to its projects. tried: by
    tenant and type, sums of guarantees in place of those that are set."""
    shares = ProjectShare.objects.filter(project__tenant__slug__in={one.tenant for one in applied})
    sums = {
        (slug, gpu_type): total
        for slug, gpu_type, total in shares.order_by()
        .values_list("project__tenant__slug", "gpu_type")
        .annotate(Sum("guarantee"))
    } | dict(tried or {})
    return [
        problem(
            f"changes[{index}].limit",
            "below_guarantees",
            f"the tenant's projects are guaranteed {sums[one.tenant, one.gpu_type]}: lower these first",
            one.new_limit,
            f"at least {sums[one.tenant, one.gpu_type]}",
        )
        for index, one in enumerate(applied)
        if one.new_limit < min(one.old_limit, sums.get((one.tenant, one.gpu_type), 0))
    ]


def _applied(change: Change, tenant: Tenant, row: Quota | None) -> Applied:
    before = _terms_now(change, tenant, row)
    terms = {name: (before[name], value) for name, value in change.terms.items() if before[name] != value}
    limit, used = (row.limit, row.used) if row else (0, 0)
    return Applied(change.tenant, change.gpu_type, limit, change.limit, used, terms)


def totals_of(
    applied: Sequence[Applied], capacity: Mapping[str, int], overcommit: float
) -> tuple[Total, ...]:
    """The sums after the change. Raises Overcommitted if a sum grows above what may be allocated."""
    sums = dict(Quota.objects.values_list("gpu_type").annotate(total=Sum("limit")).order_by())
    totals, wrong = [], []
    for gpu_type in sorted({one.gpu_type for one in applied} - {WHOLE}):
        grows = sum(one.new_limit - one.old_limit for one in applied if one.gpu_type == gpu_type)
        total = Total(
            gpu_type,
            sums.get(gpu_type, 0) + grows,
            capacity.get(gpu_type, 0),
            most_allocatable(capacity.get(gpu_type, 0), overcommit),
        )
        totals.append(total)
        if grows > 0 and total.limits > total.allowed:
            wrong += [
                problem(
                    f"changes[{index}].limit",
                    "overcommitted",
                    f"all limits for {gpu_type} would sum to {total.limits}; the cluster has {total.capacity}, "
                    f"so at most {total.allowed} may be allocated (the over-commit limit is {overcommit:.0%})",
                    one.new_limit,
                    total.allowed,
                )
                for index, one in enumerate(applied)
                if one.gpu_type == gpu_type and one.new_limit > one.old_limit
            ]
    if wrong:
        raise Overcommitted(errors=wrong)
    return tuple(totals)


def _write(one: Applied, tenant: Tenant, reason: str, user: access.Person, change_set: uuid.UUID) -> None:
    if not one.changes:
        return
    terms = {name: after for name, (_, after) in one.terms.items()}
    changes: dict[str, tuple[Term, Term]] = dict(one.terms)
    if one.gpu_type == WHOLE:
        Tenant.objects.filter(pk=tenant.pk).update(**terms)
    else:
        values = {"limit": one.new_limit, **terms}
        Quota.objects.update_or_create(tenant=tenant, gpu_type=one.gpu_type, defaults=values)
        if one.new_limit != one.old_limit:
            changes = {"limit": (one.old_limit, one.new_limit), **changes}
    audit.record(
        actor=user,
        action="tenant.change" if one.gpu_type == WHOLE else LIMIT_SET,
        tenant_id=tenant.pk,
        target=tenant.slug if one.gpu_type == WHOLE else one.gpu_type,
        reason=reason,
        details={name: {"from": before, "to": after} for name, (before, after) in changes.items()},
    )
    _record(one, tenant, reason, user, change_set)


def whole_changed(
    tenant: Tenant, changes: Mapping[str, tuple[Term, Term]], *, reason: str, user: access.Person
) -> None:
    """Add what was changed of WHOLE_TERMS outside a change set, before and after, to the history as a set of its own:
    else an older set would still seem to be in effect."""
    terms = {name: pair for name, pair in changes.items() if name in WHOLE_TERMS}
    if terms:
        _record(Applied(tenant.slug, WHOLE, 0, 0, 0, terms), tenant, reason, user, uuid.uuid4())


def _record(one: Applied, tenant: Tenant, reason: str, user: access.Person, change_set: uuid.UUID) -> None:
    QuotaChange.objects.create(
        tenant=tenant,
        gpu_type=one.gpu_type,
        old_limit=one.old_limit,
        new_limit=one.new_limit,
        used_then=None if one.gpu_type == WHOLE else one.used,
        reason=reason,
        actor_id=user.pk,
        change_set=change_set,
        terms={name: list(pair) for name, pair in one.terms.items()},
    )
