"""The mapping of the identity provider's groups to roles in tenants: edited as lines, previewed, then saved."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.views.decorators.http import require_http_methods

from portal.pages.admin.shell import frame
from portal.pages.form_once import Outcome, once, say
from portal.pages.form_responses import sentence
from portal.pages.guard import admins_only, person
from tenants.errors import ServiceError, VersionChanged
from tenants.services import groups as services

PAGE = "/admin-console/groups"


@require_http_methods(["GET", "POST"])
@admins_only
def page(request: HttpRequest) -> HttpResponse:
    """GET shows it; POST previews it, and with save=yes saves what was previewed."""
    if settings.LUTHIER_OIDC_ISSUER is None:
        raise Http404
    shown: dict[str, Any] = {
        "provider": settings.LUTHIER_OIDC_NAME,
        "claim": settings.LUTHIER_OIDC_GROUPS_CLAIM,
    }
    if request.method == "POST":
        shown["text"] = request.POST.get("text", "")
        try:
            wanted = services.read_rules(shown["text"])
            if request.POST.get("save") == "yes":
                return _save(request, wanted, request.POST.get("etag", ""))
            shown["effects"] = services.effects(user=request.user, wanted=wanted)
            shown["previewed"] = True
        except VersionChanged:
            pass  # as below
        except ServiceError as error:
            wrong = error.details.get("errors") or [{"message": error.message}]
            shown["problem"] = " ".join(sentence(each["message"]) for each in wrong)
    shown |= _stored(request)
    context = frame(request, "users") | shown
    failed = "problem" in shown or "changed_to" in shown
    return render(request, "console/groups.html", context, status=422 if failed else 200)


def _stored(request: HttpRequest) -> dict[str, Any]:
    """The mapping and its version; for a form whose version is another one, beside what was typed.

    What is previewed or saved next then replaces what its admin has seen.
    """
    rules = services.rules(user=request.user)
    text, etag = "\n".join(rule.line for rule in rules), services.version(rules)
    if request.method == "GET":
        return {"text": text, "etag": etag}
    if request.POST.get("etag", "") == etag:
        return {"etag": etag}
    return {"etag": etag, "changed_to": text, "previewed": False}


def _save(request: HttpRequest, wanted: list[services.Rule], etag: str) -> HttpResponse:
    def work() -> Outcome:
        services.rules_set(user=person(request), wanted=wanted, if_match=frozenset({etag}))
        return {}

    once(request, work)
    say(request, "Mapping saved. Memberships follow when people sign in.")
    return HttpResponseRedirect(PAGE)
