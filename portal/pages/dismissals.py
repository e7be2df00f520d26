"""The forms of the overview that dismiss failures from what needs attention, and restore them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import urlencode

from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.dateparse import parse_datetime
from django.views.decorators.http import require_POST

from jobs.errors import IllegalTransition, JobNotFound
from jobs.models import Dismissal
from jobs.selectors.dismissals import dismissals_of
from jobs.selectors.jobs import job_get
from jobs.services import dismissals
from portal.pages.form_once import Outcome, once
from portal.pages.guard import in_tenant, note_read, person
from tenants.models import Tenant

UNDO = "dismissed"
"""In the address of the overview: since when what was dismissed can be undone there."""
RESTORED = "restored"
"""In the address of the overview, where its section has the focus then."""


@dataclass(frozen=True, slots=True)
class Undo:
    """since: of the form that restores these. name: of the newest of count jobs."""

    since: str
    name: str
    count: int


@require_POST
@in_tenant
def act(request: HttpRequest, tenant: Tenant) -> HttpResponse:
    """Dismiss or restore one failure (job), or all. until: what the user had seen; since: of an undo."""
    verb, job = request.POST.get("act", ""), request.POST.get("job", "")
    user, until, since = person(request), _moment(request, "until"), _moment(request, "since")

    if job:
        _note(request, tenant, job)

    def work() -> Outcome:
        made: list[Dismissal] = []
        match verb, bool(job):
            case "dismiss", True:
                made = [dismissals.failure_dismiss(user=user, job_id=job)]
            case "dismiss", False:
                made = dismissals.failures_dismiss(user=user, tenant=tenant, until=until)
            case "restore", True:
                dismissals.failure_restore(user=user, job_id=job)
            case "restore", False:
                dismissals.failures_restore(user=user, tenant=tenant, since=since)
            case _:
                raise Http404
        return {"at": made[0].dismissed_at.isoformat() if made else ""}

    try:
        at = once(request, work)["at"]
    except (JobNotFound, IllegalTransition) as error:
        raise Http404 from error
    # No fragment: browsers take the focus away when they scroll to one.
    return HttpResponseRedirect(f"/t/{tenant.slug}/?{urlencode({UNDO: at}) if at else RESTORED}")


def _note(request: HttpRequest, tenant: Tenant, job_id: str) -> None:
    """404 for a job that is not in this tenant; a platform admin's reading is recorded, as by REST."""
    try:
        job = job_get(user=person(request), job_id=job_id)
    except JobNotFound as error:
        raise Http404 from error
    if job.tenant_id != tenant.pk:
        raise Http404
    note_read(request, job)


def undo_of(request: HttpRequest, tenant: Tenant) -> Undo | None:
    """What the address of the overview says was dismissed last, and still is; None for an address that no form led
    to."""
    since = _read(request.GET.get(UNDO, ""))
    if since is None:
        return None
    rows = dismissals_of(person(request), tenant).filter(dismissed_at=since)
    names = list(rows.values_list("job__name", flat=True)[:2])
    return Undo(since.isoformat(), names[0], rows.count() if len(names) > 1 else 1) if names else None


def _moment(request: HttpRequest, name: str) -> datetime | None:
    """A time that a form of the overview carries; 404 for what none does."""
    text = request.POST.get(name, "")
    found = _read(text)
    if text and found is None:
        raise Http404
    return found


def _read(text: str) -> datetime | None:
    """A time with its zone; None for anything else. In UTC: PostgreSQL knows no offset of 16 hours."""
    try:
        found = parse_datetime(text)
        return found.astimezone(UTC) if found is not None and found.tzinfo is not None else None
    except (ValueError, OverflowError):
        return None
