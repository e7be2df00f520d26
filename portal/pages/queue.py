"""The queue for one device type: the tenant's waiting jobs in the order of the next plan, others only counted."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_GET

from jobs import humanize
from jobs.selectors import heads, queue_places
from jobs.selectors.queue import checked_at, estimate_hits
from jobs.selectors.usage import CPU_TYPE, quotas_of
from portal.pages import passes
from portal.pages.guard import in_tenant, person
from portal.pages.shell import frame
from portal.templatetags.ui import foreseen
from tenants.models import Tenant

SHOWN = 200
"""Places on the page; the API has them all."""
JUDGED_WITHIN = timedelta(days=30)


@require_GET
@in_tenant
def page(request: HttpRequest, tenant: Tenant) -> HttpResponse:
    """The queue of ?gpu_type=; without it that of the first type in which a job of the tenant waits."""
    now = timezone.now()
    news = heads.first_row(heads.of_jobs(tenant.slug) + 1)  # before what the page shows is read
    line = queue_places.places(tenant)
    own: dict[str, int] = dict.fromkeys((use.gpu_type for use in quotas_of(tenant)), 0)
    for place in line:
        own[place.slot_type] = own.get(place.slot_type, 0) + place.own
    chosen = request.GET.get("gpu_type", "")[:40] or next((kind for kind in own if own[kind]), CPU_TYPE)
    places = [place for place in line if place.slot_type == chosen]
    outdated = passes.outdated()
    context: dict[str, Any] = frame(request, tenant, "jobs") | {
        "news": news,
        "kinds": own.items(),
        "chosen": chosen,
        "unit": humanize.unit(chosen, 2),
        "rows": [
            (one, foreseen(one.estimate, now) if one.estimate and not outdated else "")
            for one in queue_places.entries(person(request), tenant, places[:SHOWN], now)
        ],
        "more": max(0, len(places) - SHOWN),
        "others": sum(not place.own for place in places),
        "outdated": outdated,
        "checked_at": checked_at(),
        "hits": estimate_hits(tenant, since=now - JUDGED_WITHIN),
    }
    return render(request, "tenant/queue.html", context)
