"""How much a tenant may store: the limit as a form, and who changed it when."""

from __future__ import annotations

from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.views.decorators.http import require_http_methods

from jobs import storage
from jobs.spec.quantities import UnitError, parse_memory, print_memory
from portal.pages import meters
from portal.pages.admin.shell import REASON_REQUIRED, frame
from portal.pages.form_once import Outcome, once, say
from portal.pages.form_responses import sentence
from portal.pages.guard import admins_only, person
from tenants.errors import ServiceError
from tenants.models import Tenant
from tenants.services import storage as services
from tenants.services.editing import changes

SHOWN = 20
MEBIBYTE = 1024 * 1024


@require_http_methods(["GET", "POST"])
@admins_only
def page(request: HttpRequest, slug: str) -> HttpResponse:
    """GET shows the limit, what is stored and the history; POST sets the limit."""
    tenant = Tenant.objects.filter(slug=slug).first()
    if tenant is None:
        raise Http404
    text, reason = _written(tenant.storage_limit), ""
    problems: dict[str, str] = {}
    if request.method == "POST":
        text, reason = request.POST.get("limit", "").strip(), request.POST.get("reason", "").strip()
        problems = _set(request, slug, text, reason)
        if not problems:
            say(request, "Storage limit updated.")
            return HttpResponseRedirect(f"/admin-console/tenants/{slug}/storage")
    context = frame(request, "tenants") | {
        "tenant": tenant,
        "storage": meters.storage(storage.used_by(tenant.pk), tenant.storage_limit),
        "text": text,
        "reason": reason,
        "problems": problems,
        "changes": changes(tenant, services.CHANGED, SHOWN),
        "etag": request.POST.get("etag") or services.etag(tenant),
    }
    return render(request, "console/storage.html", context, status=422 if problems else 200)


def _written(limit: int | None) -> str:
    """The limit as the form takes it, rounded up to whole MiB."""
    return "" if limit is None else print_memory(-(-limit // MEBIBYTE))


def _set(request: HttpRequest, slug: str, text: str, reason: str) -> dict[str, str]:
    """What is wrong, by field; empty: the limit is set."""
    problems = {} if reason else {"reason": REASON_REQUIRED}
    limit = None
    try:
        limit = parse_memory(text) * MEBIBYTE if text else None
    except UnitError as error:
        problems["limit"] = sentence(str(error))
    if problems:
        return problems
    seen = frozenset({request.POST.get("etag", "")})

    def set_limit() -> Outcome:
        services.storage_set(user=person(request), slug=slug, limit_bytes=limit, reason=reason, if_match=seen)
        return {}

    try:
        once(request, set_limit)
    except ServiceError as error:
        found = {each["path"]: sentence(each["message"]) for each in error.details.get("errors", [])}
        names = {"limit_bytes": "limit"}
        return {names.get(path, path): text for path, text in found.items()} or {
            "reason": sentence(error.message)
        }
    return {}
