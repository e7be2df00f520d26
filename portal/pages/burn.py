"""Geometry of the chart of a GPU-hour budget: what a month has used so far, and where that leads. Pure but for burn_of.

components/burn.html draws it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, timedelta

from jobs.selectors import usage
from jobs.selectors.budgets import Budget
from portal.pages.charts import axis_text, day_labels, round_up
from tenants.models import Tenant

TICKS = 2
"""Equal parts of the value axis."""
HEADROOM = 2
"""The scale ends at this many times the budget, or what is used if that is more; a projection may lead out of it."""


@dataclass(frozen=True, slots=True)
class BurnRow:
    """GPU-hours of a day, and of the month up to its end."""

    day: date
    used: float
    total: float


@dataclass(frozen=True, slots=True)
class Burn:
    """line, area and ahead (the projection; empty: not known) are path data in a box of 100 × 100; limit and now are
    percent from the top and from the left."""

    line: str
    area: str
    ahead: str
    limit: str
    now: str
    rest: str
    ticks: tuple[str, ...]
    days: tuple[tuple[str, str], ...]
    rows: tuple[BurnRow, ...]


def burn_of(tenant: Tenant, budget: Budget) -> Burn | None:
    """Of the tenant's budget, with what usage says of its days."""
    return burn(budget, usage.budgeted_by_day(tenant, start=budget.period_start, end=budget.now))


def burn(budget: Budget, used: Mapping[date, float]) -> Burn | None:
    """used: GPU-hours by day. None where there is nothing to draw: no hour is used, or the budget is 0.

    Within a day the line is straight. It ends with what the budget counts.
    """
    if not budget.gpu_hours or not budget.used_gpu_hours:
        return None
    month = budget.period_end - budget.period_start
    so_far = (budget.now - budget.period_start) / month
    rows = _rows(budget, used)
    projected = budget.projected_gpu_hours or 0.0
    highest = max(budget.gpu_hours, budget.used_gpu_hours)
    top = round_up(max(highest, min(projected, HEADROOM * highest)))

    def place(share: float, hours: float) -> str:
        return f"{100 * share:.2f} {100 - 100 * hours / top:.2f}"

    ends = [(n * timedelta(days=1)) / month for n in range(1, len(rows))] + [so_far]
    line = "M0 100L" + "L".join(place(end, row.total) for end, row in zip(ends, rows, strict=True))
    now = place(so_far, budget.used_gpu_hours)
    ahead = ""
    if projected:
        share = min(1.0, top / projected)  # the month so far, continued, leaves the plot there
        ahead = f"M{now}L{place(share, projected * share)}"
    return Burn(
        line,
        f"{line}V100H0Z",
        ahead,
        limit=f"{100 - 100 * budget.gpu_hours / top:.2f}",
        now=f"{100 * so_far:.2f}",
        rest=f"{100 - 100 * so_far:.2f}",
        ticks=tuple(axis_text(top * step / TICKS) for step in range(TICKS, -1, -1)),
        days=day_labels(budget.period_start.date(), month.days),
        rows=rows,
    )


def _rows(budget: Budget, used: Mapping[date, float]) -> tuple[BurnRow, ...]:
    """A row for each day until now; the last one has what the budget counts and the days before do not."""
    first = budget.period_start.date()
    days = [first + timedelta(days=n) for n in range((budget.now - budget.period_start).days + 1)]
    rows, total = [], 0.0
    for day in days:
        before, total = total, min(total + used.get(day, 0.0), budget.used_gpu_hours)
        if day == days[-1]:
            total = budget.used_gpu_hours
        rows.append(BurnRow(day, total - before, total))
    return tuple(rows)
