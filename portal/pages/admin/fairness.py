"""What each tenant was entitled to beside what it received: drawn, as a table, and as CSV."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import render
from django.views.decorators.http import require_GET

from jobs import humanize
from jobs.selectors.fairness import HOUR, Report, fairness
from jobs.selectors.snapshot import database_now
from portal.pages.admin.shell import frame
from portal.pages.courses import charts_of
from portal.pages.entitlements import FIGURES, rows_of
from portal.pages.guard import admins_only

PERIODS = {"1": "Last day", "7": "Last 7 days", "30": "Last 30 days"}
USUAL = "7"
MOST_DAYS = 400


@dataclass(frozen=True, slots=True)
class Period:
    """What an address asks for: the last days, or dates of one's own, of which the last one counts, too."""

    start: datetime
    end: datetime
    days: str
    """A key of PERIODS; empty for own dates."""
    problem: str = ""

    @classmethod
    def read(cls, query: QueryDict, now: datetime) -> Period:
        """A wrong date is a problem; then it is the usual period."""
        if not (query.get("from") or query.get("to")):
            days = query.get("days", USUAL)
            return cls._last(days if days in PERIODS else USUAL, now)
        try:
            first, last = (date.fromisoformat(query.get(name, "")) for name in ("from", "to"))
        except ValueError:
            return cls._last(USUAL, now, "Give both dates, such as 2026-11-25.")
        if not timedelta(0) <= last - first <= timedelta(days=MOST_DAYS):
            return cls._last(
                USUAL, now, f"The first day must be before the last one, by at most {MOST_DAYS} days."
            )
        return cls(datetime.combine(first, time(), UTC), datetime.combine(last, time.max, UTC), "")

    @classmethod
    def _last(cls, days: str, now: datetime, problem: str = "") -> Period:
        return cls(now - int(days) * 24 * HOUR, now, days, problem)


@require_GET
@admins_only
def page(request: HttpRequest) -> HttpResponse:
    now = database_now()
    period = Period.read(request.GET, now)
    report = fairness(period.start, period.end, now, by_interval=True)
    assert report.history is not None
    charts = {chart.slot_type: chart for chart in charts_of(report.history)}
    context = frame(request, "fairness") | {
        "period": period,
        "periods": PERIODS,
        "asked": {name: request.GET.get(name, "") for name in ("from", "to")},
        "report": report,
        "pools": [
            _pool(report, slot_type) | {"chart": charts.get(slot_type)} for slot_type in report.slot_types
        ],
        "nothing_known": report.unknown == ((report.start, report.end),),
    }
    return render(request, "console/fairness.html", context, status=422 if period.problem else 200)


@require_GET
@admins_only
def export(request: HttpRequest) -> HttpResponse:
    """The same as CSV: one line per type and tenant, in slot-hours, and one per span that is unknown."""
    now = database_now()
    period = Period.read(request.GET, now)
    report = fairness(period.start, period.end, now)
    answer = HttpResponse(content_type="text/csv; charset=utf-8")
    name = f"fairness-{report.start:%Y-%m-%d}-{report.end:%Y-%m-%d}.csv"
    answer["Content-Disposition"] = f'attachment; filename="{name}"'
    lines = csv.writer(answer)
    lines.writerow(["type", "tenant", "cohort", *(f"slot_hours_{name}" for name in FIGURES)])
    for line in report.lines:
        hours = (f"{getattr(line.figures, name) / 3600:.4f}" for name in FIGURES)
        lines.writerow([line.slot_type, line.tenant, line.cohort, *hours])
    for since, until in report.unknown:
        spans = (at.isoformat(timespec="seconds") for at in (since, until))
        lines.writerow(["unknown", *spans, *[""] * len(FIGURES)])
    return answer


def _pool(report: Report, slot_type: str) -> dict[str, Any]:
    lines = [line for line in report.lines if line.slot_type == slot_type]
    rows = rows_of(lines)
    return {
        "slot_type": slot_type,
        "unit": f"{humanize.unit(slot_type, 1)}-hours",
        "jain": report.jain.get(slot_type),
        "entitled": sum(line.figures.entitled > 0 for line in lines),
        "short": sum(row["short"] for row in rows),
        "shortfall": sum(line.figures.shortfall for line in lines) / 3600,
        "rows": rows,
    }
