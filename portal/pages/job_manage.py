"""Rename a job, change its tags and priority, share it, and delete it: one page, which works without script."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render

from jobs import services
from jobs.errors import JobError
from jobs.models import Job
from jobs.selectors.jobs import may_manage
from jobs.services.sharing import SharePermission, job_share, job_unshare, shares_of
from jobs.spec.definition import MAX_NAME_CHARS
from jobs.states import FINAL, State
from portal.pages.form_once import Outcome, once, say
from portal.pages.form_responses import act_and_redirect, problems_of
from portal.pages.guard import person
from portal.pages.job import job_frame, job_of

FIELDS = ("name", "tags", "priority")


def tags_of(text: str) -> list[str]:
    """Comma-separated tags, each once."""
    return list(dict.fromkeys(tag for part in text.split(",") if (tag := part.strip())))


@login_required
def page(request: HttpRequest, slug: str, job_id: str) -> HttpResponse:
    """The form; POST saves it. Nothing typed is lost where something is wrong."""
    job = _managed(request, slug, job_id)
    typed = {"name": job.name, "tags": ", ".join(job.tags), "priority": job.priority}
    if request.method != "POST":
        return _form(request, job, typed, [])
    typed |= {name: request.POST[name][:2000] for name in FIELDS if name in request.POST}

    def save() -> Outcome:
        services.job_edit(
            user=person(request),
            job_id=job.pk,
            name=typed["name"],
            tags=tags_of(typed["tags"]),
            priority=None if State(job.state) in FINAL else typed["priority"],
        )
        return {}

    try:
        once(request, save)
    except JobError as error:
        return _form(request, job, typed, problems_of(error))
    say(request, "Saved.")
    return HttpResponseRedirect(f"/t/{slug}/jobs/{job.pk}")


@login_required
def act_or_show(request: HttpRequest, slug: str, job_id: str, manage_verb: str) -> HttpResponse:
    """POST shares the job, ends a share, or deletes the job; GET leads to the page that offers these."""
    job = _managed(request, slug, job_id)
    if request.method != "POST":
        return HttpResponseRedirect(f"/t/{slug}/jobs/{job.pk}/edit")
    return ACTS[manage_verb](request, job)


def _share(request: HttpRequest, job: Job) -> HttpResponse:
    name = request.POST.get("username", "").strip()[:150]
    may = SharePermission.OPERATE if request.POST.get("permission") == "operate" else SharePermission.VIEW
    return act_and_redirect(
        request,
        lambda: job_share(user=person(request), job_id=job.pk, username=name, permission=may),
        to=f"/t/{job.tenant.slug}/jobs/{job.pk}/edit#sharing",
        done=f"Shared with {name}, if there is such a user.",
    )


def _unshare(request: HttpRequest, job: Job) -> HttpResponse:
    name = request.POST.get("username", "")[:150]
    return act_and_redirect(
        request,
        lambda: job_unshare(user=person(request), job_id=job.pk, username=name),
        to=f"/t/{job.tenant.slug}/jobs/{job.pk}/edit#sharing",
        done=f"No longer shared with {name}.",
    )


def _delete(request: HttpRequest, job: Job) -> HttpResponse:
    try:
        services.job_delete(user=person(request), job_id=job.pk)
    except JobError as error:
        messages.error(request, error.message)
        return HttpResponseRedirect(f"/t/{job.tenant.slug}/jobs/{job.pk}/edit")
    messages.success(request, f"Deleted {job.name}.")
    return HttpResponseRedirect(f"/t/{job.tenant.slug}/jobs")


ACTS = {"share": _share, "unshare": _unshare, "delete": _delete}


def _managed(request: HttpRequest, slug: str, job_id: str) -> Job:
    job = job_of(request, slug, job_id)
    if not may_manage(request.user, job):
        raise PermissionDenied(
            f"Only the job's owner ({job.owner}) or a manager of {job.tenant} can do this."
        )
    return job


def _form(request: HttpRequest, job: Job, typed: dict[str, Any], problems: list[str]) -> HttpResponse:
    context = job_frame(request, job, "") | {
        "typed": typed,
        "max_name_chars": MAX_NAME_CHARS,
        "problems": problems,
        "priorities": job.tenant.priorities,
        "ended": State(job.state) in FINAL,
        "shares": shares_of(user=person(request), job_id=job.pk),
    }
    return render(request, "jobs/detail/manage.html", context, status=422 if problems else 200)
