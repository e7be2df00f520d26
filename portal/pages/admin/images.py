"""Which container images a tenant's jobs may run: the patterns as a form, one per line, and who changed them when."""

from __future__ import annotations

from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.views.decorators.http import require_http_methods

from portal.pages.admin.shell import REASON_REQUIRED, frame
from portal.pages.form_once import Outcome, once, say
from portal.pages.form_responses import sentence
from portal.pages.guard import admins_only, person
from tenants.errors import ServiceError
from tenants.models import Tenant
from tenants.services import images as services
from tenants.services.editing import changes

SHOWN = 20


@require_http_methods(["GET", "POST"])
@admins_only
def page(request: HttpRequest, slug: str) -> HttpResponse:
    """GET shows the patterns and their history; POST replaces them."""
    tenant = Tenant.objects.filter(slug=slug).first()
    if tenant is None:
        raise Http404
    own, text = tenant.image_patterns is not None, "\n".join(services.effective_patterns(tenant))
    reason, problems = "", {}
    if request.method == "POST":
        own, text = bool(request.POST.get("own")), request.POST.get("patterns", "")
        reason = request.POST.get("reason", "").strip()
        problems = _set(request, slug, _lines(text) if own else None, reason)
        if not problems:
            say(request, "Allowed images updated.")
            return HttpResponseRedirect(f"/admin-console/tenants/{slug}/images")
    context = frame(request, "tenants") | {
        "tenant": tenant,
        "own": own,
        "text": text,
        "reason": reason,
        "problems": problems,
        "default": services.default_patterns(),
        "changes": changes(tenant, services.CHANGED, SHOWN),
        "etag": request.POST.get("etag") or services.etag(tenant),
    }
    return render(request, "console/images.html", context, status=422 if problems else 200)


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]


def _set(request: HttpRequest, slug: str, patterns: list[str] | None, reason: str) -> dict[str, str]:
    """What is wrong, by field; empty: they are set."""
    seen = frozenset({request.POST.get("etag", "")})

    def set_patterns() -> Outcome:
        services.images_set(user=person(request), slug=slug, patterns=patterns, reason=reason, if_match=seen)
        return {}

    try:
        once(request, set_patterns)
    except ServiceError as error:
        return _by_field(error)
    return {}


def _by_field(error: ServiceError) -> dict[str, str]:
    found: dict[str, list[str]] = {}
    for each in error.details.get("errors", []):
        if each["path"] == "reason":
            found["reason"] = [REASON_REQUIRED]
        else:
            found.setdefault("patterns", []).append(sentence(f"“{each['got']}” {each['message']}"))
    return {field: " ".join(texts) for field, texts in found.items()} or {"reason": sentence(error.message)}
