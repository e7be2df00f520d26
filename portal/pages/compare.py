"""Jobs of a tenant side by side: their charts in one, what differs between them, their specs against a baseline's."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_GET, require_POST

from jobs.ids import is_job_id
from jobs.selectors import heads
from jobs.selectors.jobs import detailed, job_listing
from jobs.selectors.serializers import JobSerializer, ran_so_far_s
from jobs.states import FINAL
from portal.pages import comparison
from portal.pages.cells import row
from portal.pages.guard import in_tenant, note_read
from portal.pages.meters import SERIES
from portal.pages.shell import frame
from tenants.models import Tenant

MOST = 2 * len(SERIES)
"""Jobs in one comparison: as many as there are colors, each once plain and once dashed."""
LEAST = 2
RECENT = 30
"""Jobs to choose from; others are selected in the list of jobs."""
CHARTS = 24
"""Metrics that are drawn at once; the others are found by name."""
TABS = (("charts", "Charts"), ("values", "Values"), ("spec", "Specs"))


@dataclass(frozen=True)
class Asked:
    """What the address asks for. base: the id of the baseline; the oldest job if empty."""

    ids: tuple[str, ...]
    base: str
    tab: str
    find: str
    everything: bool
    choosing: bool

    @classmethod
    def read(cls, query: Any) -> Asked:
        """What cannot be read is the default, but an id is kept, so that the page can name it."""
        ids = dict.fromkeys(one.strip()[:40] for part in query.getlist("ids") for one in part.split(","))
        tab = query.get("tab", "")
        return cls(
            ids=tuple(one for one in ids if one),
            base=query.get("base", ""),
            tab=tab if tab in dict(TABS) else TABS[0][0],
            find=query.get("m", "").strip()[:120],
            everything=query.get("all") == "1",
            choosing=query.get("choose") == "1",
        )

    def address(self, **changes: Any) -> str:
        """The query of the same view, changed."""
        view = {
            "ids": ",".join(changes.get("ids", self.ids)),
            "base": changes.get("base", self.base),
            "tab": changes.get("tab", self.tab),
            "m": changes.get("find", self.find),
            "all": "1" if changes.get("everything", self.everything) else "",
            "choose": "1" if changes.get("choosing", False) else "",
        }
        return urlencode({name: value for name, value in view.items() if value}, safe=",")


@require_GET
@in_tenant
def page(request: HttpRequest, tenant: Tenant) -> HttpResponse:
    """The comparison, oldest job first; jobs to choose from where fewer than two are chosen, or with ?choose=1."""
    asked = Asked.read(request.GET)
    news = heads.first_row(heads.of_jobs(tenant.slug) + 1)  # before what the page shows is read
    rows = job_listing(user=request.user, tenant=tenant.slug).rows
    wanted = [one for one in asked.ids if is_job_id(one)]
    found = {job.pk: job for job in detailed(rows.filter(pk__in=wanted).only("pk"))}
    missing = [one for one in asked.ids if one not in found]
    chosen = sorted(found.values(), key=lambda job: (job.created_at, job.pk))
    context = frame(request, tenant, "jobs") | {
        "asked": asked,
        "missing": missing,
        "beyond": [job.name for job in chosen[MOST:]],
        "most": MOST,
    }
    if len(chosen) < LEAST or asked.choosing:
        recent = detailed(rows.order_by("-pk").only("pk")[:RECENT])
        older = [job for job in chosen if job.pk not in {one.pk for one in recent}]
        context |= {
            "rows": [row(JobSerializer.render(job)) for job in [*older, *recent]],
            "selected": set(found),
        }
        return render(request, "jobs/compare_choose.html", context)
    chosen = chosen[:MOST]
    for job in chosen:
        note_read(request, job)
    now = timezone.now()
    jobs = [JobSerializer.render(job, now) for job in chosen]
    base = next((n for n, job in enumerate(jobs) if job["id"] == asked.base), 0)
    heads_of = _heads(asked, jobs, base)
    context |= {
        "news": news,
        "jobs": heads_of,
        "base": heads_of[base],
        "tabs": _tabs(asked),
        "choose": f"?{asked.address(tab='', find='', everything=False, choosing=True)}",
    }
    match asked.tab:
        case "charts":
            context |= _charts(asked, heads_of)
        case "values":
            context |= _values(asked, jobs, [ran_so_far_s(job, now) for job in chosen], base)
        case _:
            context |= {"diffs": _diffs(heads_of, base)}
    return render(request, f"jobs/compare_{asked.tab}.html", context)


@require_POST
@in_tenant
def selected(request: HttpRequest, tenant: Tenant) -> HttpResponse:
    """From the selection in the list of jobs to the address of its comparison."""
    ids = [one for one in request.POST.getlist("job") if is_job_id(one)]
    query = urlencode({"ids": ",".join(ids)}, safe=",") if ids else ""
    return HttpResponseRedirect(f"/t/{tenant.slug}/compare?{query}")


def _tabs(asked: Asked) -> list[dict[str, Any]]:
    return [
        {"title": title, "query": asked.address(tab=name, find="", everything=False), "current": name == asked.tab}
        for name, title in TABS
    ]  # fmt: skip


def _heads(asked: Asked, jobs: list[dict[str, Any]], base: int) -> list[dict[str, Any]]:
    """Each job with its name here, its place, and the addresses with it as the baseline and without it."""
    ids = [job["id"] for job in jobs]
    return [
        row(job)
        | {
            "line": _line(job["id"], label, place, base),
            "is_base": place == base,
            "as_base": asked.address(ids=ids, base=job["id"]),
            "without": asked.address(ids=[one for one in ids if one != job["id"]]),
        }
        for place, (job, label) in enumerate(zip(jobs, comparison.labels(jobs), strict=True))
    ]


def _line(job_id: str, label: str, place: int, base: int) -> dict[str, Any]:
    """A job as series.ts (Compared) takes it: its name, and its line in every chart."""
    drawn = {"color": place % len(SERIES) + 1, "dashed": place >= len(SERIES)}
    return {"id": job_id, "label": label, **drawn, "base": place == base}


def _charts(asked: Asked, jobs: list[dict[str, Any]]) -> dict[str, Any]:
    """A chart for each metric, with the lines of the jobs that report it, or may yet."""
    names = comparison.metric_names(jobs)
    matching = [name for name in names if asked.find.lower() in name.lower()]
    lines = {
        name: [job["line"] for job in jobs if name in job["metrics"] or job["state"] not in FINAL]
        for name in matching[:CHARTS]
    }
    return {
        "charts": [{"name": name, "jobs": json.dumps(of_jobs)} for name, of_jobs in lines.items()],
        "total": len(names),
        "matching": len(matching),
        "searches": len(names) > CHARTS,
    }


def _values(asked: Asked, jobs: list[dict[str, Any]], ran_s: list[float], base: int) -> dict[str, Any]:
    """Tables of what differs, or of everything."""
    sections = [
        ("Outcome", comparison.outcome(jobs, ran_s, base)),
        ("Newest metrics", comparison.newest(jobs, comparison.metric_names(jobs), base)),
        ("Spec", comparison.spec_rows(jobs, base)),
    ]
    shown = [
        (title, rows if asked.everything else [one for one in rows if one.differs])
        for title, rows in sections
    ]
    return {
        "sections": shown,
        "same": sum(len(rows) for _, rows in sections) - sum(len(rows) for _, rows in shown),
        "others": asked.address(everything=not asked.everything),
    }  # fmt: skip


def _diffs(jobs: list[dict[str, Any]], base: int) -> list[dict[str, Any]]:
    """Each other job's spec against the baseline's."""
    return [
        {"label": job["line"]["label"], "id": job["id"], "lines": comparison.spec_diff(jobs[base], job)}
        for job in jobs
        if not job["is_base"]
    ]
