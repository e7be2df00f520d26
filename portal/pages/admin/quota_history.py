"""What was done to limits, set by set: who, when, why, and what became of it; on a page and as CSV."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby
from typing import Any

from django.core.paginator import Paginator
from django.db.models import Min, OuterRef, QuerySet, Subquery
from django.http import HttpRequest, HttpResponse, HttpResponseBase, QueryDict
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_GET

from jobs.selectors.metric_csv import harmless
from portal.pages.admin.matrix import Matrix, matrix
from portal.pages.admin.shell import frame
from portal.pages.admin.terms import described
from portal.pages.charts import steps
from portal.pages.csv_files import csv_file
from portal.pages.guard import admins_only, person
from tenants.models import QuotaChange, Tenant

PER_PAGE = 30
CSV_LINES = 20_000
CSV_BATCH = 1_000
STEPS_WITHIN = timedelta(days=90)
PERIODS = {"7": "Last 7 days", "30": "Last 30 days", "90": "Last 90 days", "365": "Last year"}
CSV_FIELDS = (
    "at", "actor__username", "tenant__slug", "gpu_type", "old_limit", "new_limit", "used_then", "reason",
    "terms",
)  # fmt: skip
"""Tuples, not model objects, of which 10,000 would take a second. What is not known is an empty cell."""


@dataclass(frozen=True, slots=True)
class Fate:
    """What became of a set: every limit of it was changed again. by: the number of the set that did it, the last."""

    word: str
    by: int


@require_GET
@admins_only
def page(request: HttpRequest) -> HttpResponse:
    """Change sets, newest first, narrowed by tenant, type, person and period."""
    narrowed = _narrowed(request.GET)
    found = Paginator(narrowed, PER_PAGE).get_page(_page_of(request.GET) or request.GET.get("page"))
    sets = [list(group) for _, group in groupby(found, key=lambda row: row.change_set)]
    changes = QuotaChange.objects.order_by()
    context = frame(request, "history") | {
        "sets": _described(sets),
        "page": found,
        "asked": {name: request.GET.get(name, "") for name in ("tenant", "type", "who", "days")},
        "tenants": Tenant.objects.order_by("slug").values_list("slug", flat=True),
        "kinds": sorted(set(changes.exclude(gpu_type="").values_list("gpu_type", flat=True).distinct())),
        "people": sorted(
            set(changes.exclude(actor=None).values_list("actor__username", flat=True).distinct())
        ),
        "periods": PERIODS,
        "steps": _steps(matrix(person(request))),
    }
    return render(request, "console/quota_history.html", context)


@require_GET
@admins_only
def export(request: HttpRequest) -> HttpResponseBase:
    """The same changes as CSV, one line per limit: not one page of them, but the newest CSV_LINES at most."""
    return csv_file(request, f"quota-history-{timezone.now():%Y-%m-%d}.csv", _lines(_narrowed(request.GET)))


def _lines(changes: QuerySet[QuotaChange]) -> Iterator[Sequence[object]]:
    """Read in batches, each behind the one before: rows are only added, before the first one, so that none is left out
    and none comes twice."""
    yield "set", "at", "who", "tenant", "type", "old_limit", "new_limit", "used_then", "reason", "terms"
    found = changes.values_list("pk", "change_set", *CSV_FIELDS)
    rest, left = found, CSV_LINES
    while left:
        batch = list(rest[: min(CSV_BATCH, left)])
        if not batch:
            return
        numbers = _numbers({change_set for _, change_set, *_ in batch})
        for _, change_set, at, who, tenant, kind, *figures, reason, terms in batch:
            texts = harmless(who or ""), tenant, harmless(kind)  # a tenant's begins with a letter or digit
            when, terms = at.isoformat(timespec="seconds"), _listed(terms) if terms else ""
            yield numbers[change_set], when, *texts, *figures, harmless(reason), terms
        rest, left = found.filter(pk__lt=batch[-1][0]), left - len(batch)
    if rest.exists():
        yield *[""] * 8, f"Only the newest {CSV_LINES:,} changes: narrow the period for older ones."


def _page_of(query: QueryDict) -> int | None:
    """The page that lists the change set ?set=…, which another set links as its successor; None without a number."""
    asked = query.get("set", "")
    if not asked.isdecimal() or len(asked) > 18:
        return None
    return QuotaChange.objects.filter(pk__gt=int(asked)).count() // PER_PAGE + 1


def _listed(terms: dict[str, list[Any]]) -> str:
    """What else changed, in one cell: "weight 1 to 2; cohort  to lab"."""
    none = "no limit"
    return "; ".join(
        f"{name} {none if before is None else before} to {none if after is None else after}"
        for name, (before, after) in terms.items()
    )


def _narrowed(query: QueryDict) -> QuerySet[QuotaChange]:
    rows = QuotaChange.objects.select_related("tenant", "actor").order_by("-pk")
    for name, field in (("tenant", "tenant__slug"), ("type", "gpu_type"), ("who", "actor__username")):
        if wanted := query.get(name, ""):
            rows = rows.filter(**{field: wanted})
    if (days := query.get("days", "")) in PERIODS:
        rows = rows.filter(at__gt=timezone.now() - timedelta(days=int(days)))
    return rows


def _described(sets: Sequence[list[QuotaChange]]) -> list[dict[str, Any]]:
    """The rows of each set with its number and its fate, which its rows on other pages decide too."""
    later = QuotaChange.objects.filter(
        tenant=OuterRef("tenant"), gpu_type=OuterRef("gpu_type"), pk__gt=OuterRef("pk")
    ).order_by("pk")
    whole: dict[uuid.UUID, list[Any]] = defaultdict(list)  # with `next`, which the type does not know
    for row in QuotaChange.objects.filter(change_set__in={rows[0].change_set for rows in sets}).annotate(
        next=Subquery(later.values("pk")[:1])
    ):
        whole[row.change_set].append(row)
    nexts = QuotaChange.objects.in_bulk({row.next for rows in whole.values() for row in rows if row.next})
    numbers = _numbers({*whole, *(row.change_set for row in nexts.values())})
    return [
        {
            "rows": rows,
            "terms": {row.pk: described(row.terms) for row in rows},
            "number": numbers[rows[0].change_set],
            "fate": _fate(whole[rows[0].change_set], nexts, numbers),
        }
        for rows in sets
    ]


def _fate(rows: list[Any], nexts: dict[int, QuotaChange], numbers: dict[uuid.UUID, int]) -> Fate | None:
    """Reverted if one set put every limit back, superseded if all were changed otherwise, None if still in effect."""
    after = [nexts.get(row.next) for row in rows]
    found = [row for row in after if row is not None]
    if len(found) < len(rows):
        return None
    by = {row.change_set for row in found}
    back = all(_restores(new, row) for row, new in zip(rows, found, strict=True))
    return Fate("Reverted" if back and len(by) == 1 else "Superseded", max(numbers[one] for one in by))


def _restores(new: QuotaChange, row: QuotaChange) -> bool:
    """Whether the later change set back all that the earlier one had changed."""
    return new.new_limit == row.old_limit and all(
        new.terms.get(name, (None, after))[1] == before for name, (before, after) in row.terms.items()
    )


def _numbers(sets: set[uuid.UUID]) -> dict[uuid.UUID, int]:
    """A set is numbered by its first row; rows are never removed, so a number stays."""
    rows = QuotaChange.objects.filter(change_set__in=sets).order_by().values_list("change_set")
    return dict(rows.annotate(Min("pk")))


def _steps(drawn: Matrix) -> list[dict[str, Any]]:
    """Per type the sum of limits since its first change, or over the last weeks of many.

    One step per change set: limits that moved from one tenant to another at once never were fewer in between.
    """
    now = timezone.now()
    moves: dict[str, dict[uuid.UUID, tuple[datetime, int]]] = {}
    changes = QuotaChange.objects.filter(at__gt=now - STEPS_WITHIN).order_by("at", "pk")
    rows = changes.values_list("gpu_type", "change_set", "at", "old_limit", "new_limit")
    for kind, change_set, at, old, new in rows:
        sets = moves.setdefault(kind, {})
        since, by = sets.get(change_set, (at, 0))
        sets[change_set] = since, by + new - old
    first = min((at for sets in moves.values() for at, _ in sets.values()), default=now) - timedelta(days=1)
    return [
        {
            "column": column,
            "steps": steps(
                list(moves.get(column.kind, {}).values()),
                total=column.total,
                capacity=column.capacity,
                first=first,
                last=now,
            ),
        }
        for column in drawn.columns
    ]
