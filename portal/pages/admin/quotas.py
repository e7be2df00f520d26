"""Limits: a draft over the matrix, its effects before it counts, applied all or none; and the history of it."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from django.contrib import messages
from django.core.paginator import Paginator
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.views.decorators.http import require_GET, require_http_methods

from jobs.selectors import effects
from jobs.services.quotas import quotas_change
from portal.pages.admin.matrix import Key, Matrix, changes_of, matrix, read_limits
from portal.pages.admin.shell import frame
from portal.pages.answers import problems_of
from portal.pages.guard import admins_only, person
from tenants.errors import TenantError
from tenants.models import QuotaChange, Tenant
from tenants.services.quotas import Applied, Change, ChangeSet, Total

SETS_PER_PAGE = 30
REASON_MAX = 500


@dataclass(frozen=True, slots=True)
class Effects:
    """What a draft would do now: who is over, which waiting jobs it starts or holds back, and the sums."""

    over: tuple[Applied, ...]
    starts: tuple[effects.Affected, ...]
    waits: tuple[effects.Affected, ...]
    promised: tuple[Total, ...]

    @property
    def none(self) -> bool:
        return not (self.over or self.starts or self.waits or self.promised)


@require_http_methods(["GET", "POST"])
@admins_only
def page(request: HttpRequest) -> HttpResponse:
    """GET: the matrix, or with ?revert=<set> a draft that undoes a change set. POST: review or apply a draft."""
    if request.method == "GET":
        reason, wished = _revert(request.GET.get("revert", ""))
        drawn = matrix(person(request), wished)
        return _page(request, drawn, reason=reason, **_review(request, drawn, {}))
    wished, seen, problems = read_limits(request.POST)
    drawn = matrix(person(request), wished)
    reason = request.POST.get("reason", "").strip()[:REASON_MAX]
    if request.POST.get("action") == "apply" and not problems:
        problems = _apply(request, drawn, seen, reason)
        if not problems:
            return HttpResponseRedirect("/admin-console/quota-history")
    reviewed = _review(request, drawn, seen) if not problems else {"problems": problems}
    if request.headers.get("HX-Request"):
        return render(request, "console/_quota_review.html", {"matrix": drawn, "swap": True} | reviewed)
    return _page(request, drawn, reason=reason, status=422 if problems else 200, **reviewed)


@require_GET
@admins_only
def history(request: HttpRequest) -> HttpResponse:
    """Change sets, newest first, narrowed by tenant and type."""
    rows = QuotaChange.objects.select_related("tenant", "actor").order_by("-pk")
    if tenant := request.GET.get("tenant", ""):
        rows = rows.filter(tenant__slug=tenant)
    if kind := request.GET.get("type", ""):
        rows = rows.filter(gpu_type=kind)
    found = Paginator(rows, SETS_PER_PAGE).get_page(request.GET.get("page"))
    sets = [list(group) for _, group in groupby(found, key=lambda row: row.change_set)]
    context = frame(request, "history") | {
        "sets": sets,
        "page": found,
        "tenant": tenant,
        "kind": kind,
        "tenants": Tenant.objects.order_by("slug").values_list("slug", flat=True),
        "kinds": QuotaChange.objects.order_by("gpu_type").values_list("gpu_type", flat=True).distinct(),
    }
    return render(request, "console/quota_history.html", context)


def _page(request: HttpRequest, drawn: Matrix, *, status: int = 200, **more: Any) -> HttpResponse:
    return render(
        request, "console/quotas.html", frame(request, "quotas") | {"matrix": drawn} | more, status=status
    )


def _apply(request: HttpRequest, drawn: Matrix, seen: dict[Key, int], reason: str) -> list[str]:
    """Set what the draft wishes. Returns sentences about what is wrong; then nothing was set."""
    changes = _changes(drawn, seen)
    problems = [] if changes else ["Change at least one limit first."]
    if not reason:
        problems.append("Reason: say why; the tenants read it.")
    if problems:
        return problems
    try:
        made = quotas_change(user=person(request), changes=changes, reason=reason)
    except TenantError as error:
        return [_with_names(line, changes) for line in problems_of(error)]
    messages.success(request, f"{len(made.changes)} limit{'s' * (len(made.changes) != 1)} set.")
    return []


def _review(request: HttpRequest, drawn: Matrix, seen: dict[Key, int]) -> dict[str, Any]:
    """The effects of the draft, or what is wrong with it."""
    changes = _changes(drawn, seen)
    if not changes:
        return {"effects": None, "problems": []}
    before = effects.would_start({})
    try:
        made = quotas_change(user=person(request), changes=changes, reason="draft", dry_run=True)
    except TenantError as error:
        return {"effects": None, "problems": [_with_names(line, changes) for line in problems_of(error)]}
    return {"effects": _effects(made, before), "problems": []}


def _effects(made: ChangeSet, before: effects.Outlook) -> Effects:
    after = effects.would_start({(one.tenant, one.gpu_type): one.new_limit for one in made.changes})
    return Effects(
        tuple(one for one in made.changes if one.used > one.new_limit),
        tuple(job for job in after.starting if job.job not in before.starting_ids),
        tuple(job for job in after.waiting if job.job in before.starting_ids),
        tuple(total for total in made.totals if total.limits > total.capacity),
    )


def _changes(drawn: Matrix, seen: dict[Key, int]) -> list[Change]:
    """if_limit is what the admin saw when the page was drawn, not what stands now."""
    return [
        Change(one.tenant, one.gpu_type, one.limit, seen.get((one.tenant, one.gpu_type), one.if_limit))
        for one in changes_of(drawn)
    ]


def _with_names(line: str, changes: list[Change]) -> str:
    """Change numbers in a sentence replaced by tenant and type."""
    for index, change in enumerate(changes):
        for part in ("limit", "if limit"):
            line = line.replace(f"Changes {index} {part}", f"{change.tenant} {change.gpu_type}")
    return line


def _revert(text: str) -> tuple[str, dict[Key, int]]:
    """A draft that sets every limit of a change set back, and a reason to start from."""
    if not text:
        return "", {}
    try:
        rows = list(QuotaChange.objects.filter(change_set=uuid.UUID(text)).select_related("tenant"))
    except ValueError:
        rows = []
    if not rows:
        raise Http404
    return f"Revert: {rows[0].reason}"[:REASON_MAX], dict(_old_limits(rows))


def _old_limits(rows: list[QuotaChange]) -> Iterator[tuple[Key, int]]:
    for row in rows:
        yield (row.tenant.slug, row.gpu_type), row.old_limit
