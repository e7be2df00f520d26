"""The jobs list: filters in the address, pages by key, actions on many jobs with a result for each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from django.contrib import messages
from django.db.models import Max, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, QueryDict
from django.shortcuts import render
from django.template.defaultfilters import pluralize
from django.utils import timezone
from django.views.decorators.http import require_GET, require_POST

from jobs import services
from jobs.errors import JobError
from jobs.ids import is_job_id
from jobs.models import Job
from jobs.selectors import heads
from jobs.selectors.jobs import Listing, detailed, job_get, may_operate
from jobs.selectors.serializers import JobSerializer
from jobs.states import State
from portal.pages import job_halt, job_views, passes
from portal.pages.cells import row
from portal.pages.form_once import Outcome, once
from portal.pages.form_responses import problems_of
from portal.pages.guard import in_tenant, person
from portal.pages.job_filters import ENDED, Filters, listing_of, rows_of
from portal.pages.job_manage import tags_of
from portal.pages.shell import frame
from tenants.models import Tenant, User

PAGE = 50
FOUND = 8
RESULTS = "bulk_results"
"""The session's key of what the last action on many jobs did, shown once."""
COUNT_CAP = 10_000
BULK_MAX = 200


@require_GET
@in_tenant
def listing(request: HttpRequest, tenant: Tenant) -> HttpResponse:
    """The page, or with ?rows= the rows that have changed, or with ?find= the newest that match."""
    if "rows" in request.GET:
        return _some(request, tenant)
    if "find" in request.GET:
        return _found(request, tenant)
    if not request.GET and (address := job_views.opened_first(request, tenant)):
        return HttpResponseRedirect(f"?{address}")
    filters = Filters.read(request.GET)
    news = heads.first_row(heads.of_jobs(tenant.slug))  # before the rows are read, like the newest job
    newest = Job.objects.filter(tenant=tenant).aggregate(newest=Max("pk"))["newest"]
    listed = listing_of(request, tenant, filters)
    page = list(_behind(listed.rows.order_by("-pk"), filters.before).only("pk")[: PAGE + 1])
    context = {
        "filters": filters,
        "newest": newest or "",
        "news": news,
        "outdated": passes.outdated(),
        "rows": [row(JobSerializer.render(job)) for job in detailed(page[:PAGE])],
        "next": page[PAGE - 1].pk if len(page) > PAGE else "",
        "states": list(State),
        "ended_within": ENDED,
        "projects": _projects(tenant, filters),
        "results": request.session.pop(RESULTS, None),
    }
    context |= frame(request, tenant, "jobs") | {
        "total": _total(listed, page, filters),
        "tenant_has_jobs": bool(page) or rows_of(request, tenant, Filters()).exists(),
    }
    context |= job_views.context(request, tenant, filters)
    return render(request, "jobs/list.html", context)


def _some(request: HttpRequest, tenant: Tenant) -> HttpResponse:
    """The rows of ?rows=<id>,<id> and the views' counts: what the page fetches when jobs have changed. ?saved: those of
    saved views, too."""
    ids = [each for each in request.GET["rows"].split(",")[:BULK_MAX] if is_job_id(each)]
    found = rows_of(request, tenant, Filters()).filter(pk__in=ids).only("pk")
    return render(
        request,
        "jobs/_changed.html",
        {
            "tenant": tenant,
            "rows": [row(JobSerializer.render(job)) for job in detailed(found)],
            "counts": job_views.counts(request, tenant, saved="saved" in request.GET).items(),
            "outdated": passes.outdated(),
        },
    )


def _found(request: HttpRequest, tenant: Tenant) -> HttpResponse:
    """The rows of the newest jobs that match ?find=, for the palette."""
    found = rows_of(request, tenant, Filters(q=request.GET["find"].strip()[:200]))[:FOUND].only("pk")
    rows = [row(JobSerializer.render(job)) for job in detailed(list(found))]
    return render(request, "jobs/_rows.html", {"tenant": tenant, "rows": rows})


Act = Callable[[User, str, QueryDict], object]
"""What a bulk action does to one job: the caller, the job's id and the form."""


class Bulk(NamedTuple):
    """An action on many jobs. done: what is said of each job it was done to, and of all with their number."""

    act: Act
    done: str


BULK = {
    "halt": Bulk(lambda user, job, _: services.job_halt(user=user, job_id=job), "Halting"),
    "resume": Bulk(lambda user, job, _: services.job_resume(user=user, job_id=job), "Resuming"),
    "cancel": Bulk(lambda user, job, _: services.job_cancel(user=user, job_id=job), "Canceling"),
    "delete": Bulk(lambda user, job, _: services.job_delete(user=user, job_id=job), "Deleted"),
    "tag": Bulk(lambda user, job, form: _tag(user, job, form), "Tagged"),
}


TOO_MANY = f"Not done: at most {BULK_MAX} jobs at a time. Select it again."
"""What is said of each selected job beyond those."""
REPEATABLE = frozenset({"halt", "resume", "cancel"})
"""What may be requested again without effect."""


@require_POST
@in_tenant
def act_on_many(request: HttpRequest, tenant: Tenant, verb: str) -> HttpResponse:
    """Do it to every selected job, then list them with a result for each; those that cannot do not stop the others.

    Asks first where a halt may lose something.
    """
    bulk, selected = BULK[verb], list(dict.fromkeys(request.POST.getlist("job")))
    ids, beyond = selected[:BULK_MAX], selected[BULK_MAX:]
    if verb == "halt" and "confirmed" not in request.POST and (asked := _questions(request, tenant, ids)):
        context = frame(request, tenant, "jobs") | {"ids": selected, "questions": asked}
        return render(request, "jobs/halt_many.html", context | {"filters": Filters.read(request.POST)})
    chosen = (
        rows_of(request, tenant, Filters()).filter(pk__in=selected).values_list("pk", "name", "intent_gen")
    )
    before = {pk: (name, generation) for pk, name, generation in chosen}
    results = [_act_on_one(request, verb, job_id, *before.get(job_id, (job_id, None))) for job_id in ids]
    for job_id in beyond:
        name, _ = before.get(job_id, (job_id, None))
        results.append({"id": job_id, "ok": False, "name": name, "done": False, "text": TOO_MANY})
    if results:
        done = sum(result["done"] for result in results)
        title = f"{bulk.done} {done} of {len(results)} job{pluralize(len(results))}."
        request.session[RESULTS] = {"title": title, "rows": results, "gone": verb == "delete"}
    else:
        messages.warning(request, "Choose at least one job first.")
    return HttpResponseRedirect(f"/t/{tenant.slug}/jobs?{Filters.read(request.POST).address}")


def _act_on_one(
    request: HttpRequest, verb: str, job_id: str, name: str, generation: int | None
) -> dict[str, Any]:
    """Its row of the results. A form acts on each job once: repeated after an interruption, it goes on with the rest.

    generation: of its intent before the action.
    """

    def work() -> Outcome:
        changed = BULK[verb].act(person(request), job_id, request.POST)
        if verb in REPEATABLE and isinstance(changed, Job) and changed.intent_gen == generation:
            return {"name": name, "done": False, "text": "No change: it was requested before."}
        return {"name": name, "done": True, "text": f"{BULK[verb].done}."}

    try:
        return {"id": job_id, "ok": True} | once(request, work, part=job_id)
    except JobError as error:
        return {"id": job_id, "ok": False, "name": name, "done": False, "text": " ".join(problems_of(error))}


def _questions(request: HttpRequest, tenant: Tenant, ids: list[str]) -> list[tuple[Job, str]]:
    """The chosen jobs that this person can halt and that may lose something, each with what."""
    chosen = rows_of(request, tenant, Filters()).filter(pk__in=[each for each in ids if is_job_id(each)])
    asked = [
        (job, job_halt.question(job, timezone.now())) for job in chosen if may_operate(request.user, job)
    ]
    return [(job, text) for job, text in asked if text]


def _tag(user: User, job_id: str, form: QueryDict) -> None:
    """Add tags to those that the job has."""
    job = job_get(user=user, job_id=job_id)
    new = [tag for tag in tags_of(form.get("new_tags", "")) if tag not in job.tags]
    services.job_edit(user=user, job_id=job_id, tags=[*job.tags, *new])


def _projects(tenant: Tenant, filters: Filters) -> list[str]:
    """Those to filter by; one that is chosen and gone is still one of them, so that the list says what it shows."""
    found = set(tenant.projects.values_list("slug", flat=True)) | {filters.project}
    return sorted(found - {""})


def _behind(rows: QuerySet[Job], before: str) -> QuerySet[Job]:
    return rows.filter(pk__lt=before) if before else rows


def _total(listing: Listing, page: list[Job], filters: Filters) -> str:
    """How many jobs the filters leave, up to a cap; never fewer than this page and those before it have."""
    above = _above(listing, filters.before)
    count, more = (0, False) if len(page) <= PAGE else listing.count(COUNT_CAP)
    count, more = max(count, above + len(page)), more or above > COUNT_CAP
    return f"{min(count, COUNT_CAP):,}+" if more else f"{count:,}"


def _above(listing: Listing, before: str) -> int:
    """How many the pages before this one have; beyond the cap none is counted."""
    if not before:
        return 0
    return listing.rows.filter(pk__gte=before).order_by().values("pk")[: COUNT_CAP + 1].count()
