"""The quota matrix: every tenant's limits and terms by type beside what is used, with a draft laid over it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from django.conf import settings

from jobs.selectors import cluster, usage
from jobs.selectors.usage import Live, live_by_tenant
from portal.pages.admin import terms
from portal.pages.admin.terms import TermField, TermsDraft
from portal.pages.meters import MeterBars, pool_meter, promise_meter, quota_meter
from tenants.access import Person
from tenants.models import Tenant
from tenants.services.quotas import MAX_LIMIT, TERMS, WHOLE, WHOLE_TERMS, Change, most_allocatable

Key = tuple[str, str]
"""A tenant's slug and a slot type."""
CHANGE = re.compile(r"changes\[(\d+)\]")
"""The path of a service's finding that is about one change of a set."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One limit. before: as it is stored; limit: as in the draft."""

    tenant: str
    kind: str
    before: int
    limit: int
    used: int
    waiting: int
    meter: MeterBars
    shown: str
    """The content of its field: the limit, or the text that is not a number."""
    terms: tuple[TermField, ...] = ()
    borrowed: int = 0
    lent: int = 0
    opportunistic: int = 0

    @property
    def key(self) -> Key:
        return self.tenant, self.kind

    @property
    def changed(self) -> bool:
        return self.limit != self.before

    @property
    def over(self) -> int:
        """Slots in use above the limit that no other tenant lends."""
        return max(0, self.used - self.limit - self.borrowed)


@dataclass(frozen=True, slots=True)
class Column:
    """One slot type: what the cluster has of it, and what all limits add up to."""

    kind: str
    unit: str
    pool: cluster.PoolUse | None
    before: int
    total: int
    capacity: int
    allowed: int
    promised: MeterBars
    now: MeterBars

    @property
    def left(self) -> int:
        """Slots not allocated yet; negative when more is promised than there is."""
        return self.capacity - self.total


@dataclass(frozen=True, slots=True)
class Row:
    """One tenant. terms: those that hold for all its types together."""

    tenant: Tenant
    live: Live
    cells: tuple[Cell, ...]
    terms: tuple[TermField, ...] = ()


@dataclass(frozen=True, slots=True)
class Matrix:
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]

    @property
    def changes(self) -> list[Cell]:
        """The limits that the draft changes."""
        return [cell for row in self.rows for cell in row.cells if cell.changed]

    @property
    def term_changes(self) -> list[TermField]:
        """The terms that it changes."""
        return [
            term
            for row in self.rows
            for part in (row.terms, *(cell.terms for cell in row.cells))
            for term in part
            if term.changed
        ]

    @property
    def count(self) -> int:
        return len(self.changes) + len(self.term_changes)


@dataclass(frozen=True, slots=True)
class LimitsDraft:
    """Limits of a form. seen: those its sender saw; wrong: texts that are no limits, as they were typed."""

    requested: Mapping[Key, int] = field(default_factory=dict)
    seen: Mapping[Key, int] = field(default_factory=dict)
    wrong: Mapping[Key, str] = field(default_factory=dict)
    terms: TermsDraft = field(default_factory=TermsDraft)


def matrix(user: Person, draft: LimitsDraft | None = None) -> Matrix:
    """The current limits, or those of a draft. The caller is a platform admin."""
    draft = draft or LimitsDraft()
    requested = draft.requested
    tenants = list(Tenant.objects.order_by("name", "slug"))
    quotas = {pk: {use.gpu_type: use for use in uses} for pk, uses in usage.all_quotas().items()}
    pools = {pool.slot_type: pool for pool in cluster.pools(cluster.nodes(user))}
    kinds = sorted({*pools, *(kind for uses in quotas.values() for kind in uses)}, key=usage.gpus_first)
    live = live_by_tenant()
    uses = {
        (tenant.slug, kind): quotas.get(tenant.pk, {}).get(kind) or usage.QuotaStatus(kind, 0, 0, 0)
        for tenant in tenants
        for kind in kinds
    }
    scales = {kind: _scale(kind, uses, requested) for kind in kinds}
    rows = tuple(
        Row(
            tenant,
            live.get(tenant.pk, Live(0, 0)),
            tuple(_cell((tenant.slug, kind), uses[tenant.slug, kind], draft, scales[kind]) for kind in kinds),
            terms.fields(
                tenant.slug, WHOLE, {name: getattr(tenant, name) for name in WHOLE_TERMS}, draft.terms
            ),
        )
        for tenant in tenants
    )
    columns = tuple(_column(kind, index, rows, pools.get(kind)) for index, kind in enumerate(kinds))
    return Matrix(columns, rows)


def changes_of(drawn: Matrix, draft: LimitsDraft) -> list[Change]:
    """The draft as services take it: each change holds only while everything that it changes is what the admin saw when
    the page was drawn, not what it is now."""
    found = []
    for row in drawn.rows:
        if new := terms.changed(row.terms):
            seen = terms.seen(row.terms, draft.terms)
            found.append(Change(row.tenant.slug, WHOLE, 0, terms=new, if_terms=seen))
        for cell in row.cells:
            new = terms.changed(cell.terms)
            if cell.changed or new:
                limit = draft.seen.get(cell.key, cell.before)
                seen = terms.seen(cell.terms, draft.terms)
                found.append(Change(cell.tenant, cell.kind, cell.limit, limit, new, seen))
    return found


def _scale(kind: str, uses: Mapping[Key, usage.QuotaStatus], requested: Mapping[Key, int]) -> int:
    return max(
        (
            max(use.limit, requested.get(key, 0), use.used + use.waiting)
            for key, use in uses.items()
            if key[1] == kind
        ),
        default=1,
    )


def _cell(key: Key, use: usage.QuotaStatus, draft: LimitsDraft, scale: int) -> Cell:
    limit = draft.requested.get(key, use.limit)
    meter = quota_meter(
        f"{key[0]} {key[1]}", limit=limit, used=use.used, waiting=use.waiting, scale=scale, before=use.limit
    )
    shown = draft.wrong.get(key, str(limit))
    of_type = terms.fields(*key, {name: getattr(use, name) for name in TERMS}, draft.terms)
    return Cell(
        key[0], key[1], use.limit, limit, use.used, use.waiting, meter, shown, of_type, use.borrowed, use.lent,
        use.opportunistic,
    )  # fmt: skip


def _column(kind: str, index: int, rows: tuple[Row, ...], pool: cluster.PoolUse | None) -> Column:
    limits = [row.cells[index].limit for row in rows]
    capacity = pool.slots if pool else 0
    allowed = most_allocatable(capacity, settings.LUTHIER_OVERCOMMIT_MAX)
    used, free, down = (pool.used, pool.free, pool.down) if pool else (0, 0, 0)
    return Column(
        kind,
        "CPUs" if kind == usage.CPU_TYPE else "GPUs",
        pool,
        sum(row.cells[index].before for row in rows),
        sum(limits),
        capacity,
        allowed,
        promise_meter(kind, limits, capacity=capacity, allowed=allowed),
        pool_meter(kind, used=used, free=free, down=down),
    )


def read_limits(form: Mapping[str, Any]) -> LimitsDraft:
    """Fields "limit:<tenant>:<type>" and "if:<tenant>:<type>" as numbers, and the terms."""
    requested: dict[Key, int] = {}
    seen: dict[Key, int] = {}
    wrong: dict[Key, str] = {}
    for name, text in form.items():
        what, _, rest = name.partition(":")
        tenant, _, kind = rest.partition(":")
        if what not in ("limit", "if") or not kind:
            continue
        if text.isascii() and text.isdigit() and len(text) <= 7 and int(text) <= MAX_LIMIT:
            (requested if what == "limit" else seen)[tenant, kind] = int(text)
        elif what == "limit":
            wrong[tenant, kind] = text[:20]
    return LimitsDraft(requested, seen, wrong, terms.read(form))


def not_a_limit(text: str) -> str:
    return f"{text!r} is no limit; give a whole number from 0 to {MAX_LIMIT:,}."
