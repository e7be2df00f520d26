"""Runtimes: what jobs can name as framework; added, enabled and removed without a restart."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.views.decorators.http import require_http_methods, require_POST

from jobs import clusters
from jobs.models import Job, Runtime
from jobs.services import runtimes as services
from jobs.states import ACTIVE
from portal.pages.admin.shell import frame
from portal.pages.form_once import Outcome, once, say
from portal.pages.form_responses import act_and_redirect, problems_of
from portal.pages.guard import admins_only, person
from tenants.errors import ServiceError

PAGE = "/admin-console/runtimes"
FIELDS = ("slug", "title", "python", "requirements", "image")


@require_http_methods(["GET", "POST"])
@admins_only
def page(request: HttpRequest) -> HttpResponse:
    """GET lists them; POST adds one, or shows the form again with what is wrong and everything that was typed."""
    typed = {name: request.POST.get(name, "").strip() for name in FIELDS}
    problems: list[str] = []
    if request.method == "POST":

        def add() -> Outcome:
            services.runtime_add(user=person(request), values=_values(typed))
            return {}

        try:
            once(request, add)
        except ServiceError as error:
            problems = problems_of(error)
        else:
            say(request, f"Runtime {typed['slug']} added. Jobs can use it now.")
            return HttpResponseRedirect(PAGE)
    find = clusters.capabilities().pythons
    users = Job.objects.filter(deleted_at=None, state__in=ACTIVE).values_list("framework", flat=True)
    used = list(users)
    rows = [{"runtime": row, "jobs": used.count(row.slug)} for row in Runtime.objects.order_by("slug")]
    context = frame(request, "runtimes") | {
        "rows": rows,
        "typed": typed,
        "problems": problems,
        "pythons": find() if find is not None else (),
        "images": find is None,
    }
    return render(request, "console/runtimes.html", context, status=422 if problems else 200)


@require_POST
@admins_only
def act(request: HttpRequest, slug: str) -> HttpResponse:
    """Enable, disable or remove one."""
    verb = request.POST.get("verb", "")
    if verb == "remove":
        return act_and_redirect(
            request,
            lambda: services.runtime_remove(user=person(request), slug=slug),
            to=PAGE,
            done=f"Runtime {slug} removed.",
        )
    enabled = verb == "enable"
    return act_and_redirect(
        request,
        lambda: services.runtime_change(user=person(request), slug=slug, changes={"enabled": enabled}),
        to=PAGE,
        done=f"Runtime {slug} {'enabled' if enabled else 'disabled: no new job can use it'}.",
        level=messages.SUCCESS if enabled else messages.WARNING,
    )


def _values(typed: dict[str, str]) -> dict[str, Any]:
    lines = [line.strip() for line in typed["requirements"].splitlines() if line.strip()]
    return typed | {"title": typed["title"] or typed["slug"], "requirements": lines}
