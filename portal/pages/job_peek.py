"""The peek: what the list of jobs shows of one job beside it, without leaving the list. A part of a page."""

from __future__ import annotations

import json
from typing import Any

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_GET

from jobs.selectors.requests import size_range
from jobs.selectors.retention import removals_of
from jobs.selectors.serializers import JobSerializer
from jobs.states import FINAL, State
from portal.pages.cells import primary_metric, row
from portal.pages.job import job_of, log_context, marks_of, newest_values, outdated_of, stretches_of

LINES = 20
SPANS = 2
"""Attempts whose states are listed, the newest ones; the job's page has more."""


@require_GET
@login_required
def page(request: HttpRequest, slug: str, job_id: str) -> HttpResponse:
    """What the job went through, its primary metric and the end of its log. Who may read the job's page may read this;
    an admin's reading is recorded like that."""
    job = job_of(request, slug, job_id)
    view, now = JobSerializer.render(job), timezone.now()
    stretches, metric = stretches_of(job, now), primary_metric(view)
    removed = {kind.value: each for kind, each in removals_of(job.pk).items()}
    context: dict[str, Any] = {
        "job": row(view) | {"most_learners": size_range(job).max},
        "base": f"/t/{job.tenant.slug}/jobs/{job.pk}",
        "seq": job.event_seq,
        "is_live": State(job.state) not in FINAL,
        "outdated": outdated_of(job),
        "stretches": stretches[-SPANS:],
        "earlier": max(0, len(stretches) - SPANS),
        "metric": "" if "metrics" in removed else metric,
        "metric_values": newest_values(job, [metric] if metric else []),
        "marks": json.dumps(marks_of(job)),
        "removed": removed,
    }
    return render(request, "jobs/peek.html", context | log_context(job, request, tail=LINES))
