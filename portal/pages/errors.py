"""Error pages: no script needed, in both themes, with a way onward. 5xx and 429 ask the database nothing."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from django.contrib.sessions.exceptions import SessionInterrupted
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone

from portal.pages import shell, theme
from portal.problem_details import PROGRAMS, problem
from tenants import access
from tenants.models import Membership, Tenant, User
from tenants.roles import Role

TEXTS = {
    400: ("Bad request", "Check the URL, or go back and try again."),
    403: ("Your role does not allow this", "Ask a manager of the tenant for the required role."),
    404: (
        "Page not found",
        "This page does not exist, or it belongs to a tenant you are not a member of. "
        "Both look the same by design.",
    ),
    405: ("This address only accepts form submissions", "It has no page. Go back and use the form."),
    429: ("Too many attempts", "Sign-in is blocked for a while to prevent password guessing."),
    500: (
        "Internal error",
        "Your running jobs are not affected. The error was recorded.",
    ),
    503: ("The database is not responding", "Running jobs continue. Try again in a moment."),
}
OLD_FORM = (
    "Your session changed",
    "You signed in or out elsewhere, or cookies are disabled. Nothing was changed: "
    "go back, reload the page and resubmit the form.",
)
ENDED = (
    "Your session has ended",
    "It was ended elsewhere while your request was answered. What you sent may have been done: "
    "sign in again, and look before you send it once more.",
)
NUL = (
    "Invalid character in the request",
    "The URL or the form contains a NUL character (code 0), which cannot be stored. Nothing was changed: "
    "remove it – it often comes along when something is pasted from a file – and send it again.",
)
IN_SHELL = (403, 404, 405)
"""Statuses whose page has the frame of the signed-in user."""
HELPERS = 3


def error_page(request: HttpRequest, status: int, **facts: Any) -> HttpResponse:
    """The page of one status; the theme is the cookie's. facts: what its template shows beside the text."""
    title, text = facts.pop("texts", None) or TEXTS[status]
    context = {
        "theme": theme.chosen(request),
        "status": status,
        "title": title,
        "text": text,
        "now": timezone.now(),
        **facts,
    }
    user = getattr(request, "user", None) if status in IN_SHELL else None
    if not isinstance(user, User):
        return render(request, "errors/page.html", context, status=status)
    framed = shell.frame(request, shell.last_tenant(request), "") | context
    return render(request, "errors/framed.html", framed, status=status)


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Django's own refusals, and the session of a request that was ended before the answer."""
    return error_page(request, 400, texts=ENDED if isinstance(exception, SessionInterrupted) else None)


def forbidden(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Says which role it takes, which one the caller has and who can give the other."""
    tenant = _tenant_of(request)
    facts: dict[str, Any] = {"needs": str(exception)}
    if tenant is not None:
        rows = Membership.objects.filter(tenant=tenant).select_related("user").order_by("user__username")
        facts |= {
            "of": tenant,
            "mine": access.memberships(request.user).filter(tenant=tenant).first(),
            "helpers": [row.user.get_username() for row in rows.filter(role=Role.MANAGER)[:HELPERS]],
        }
    return error_page(request, 403, **facts)


def old_form(request: HttpRequest, reason: str = "") -> HttpResponse:
    """Django's CSRF_FAILURE_VIEW."""
    return error_page(request, 403, texts=OLD_FORM)


def not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    if request.path.startswith(PROGRAMS):
        return problem(
            HTTPStatus.NOT_FOUND, "not_found", "There is no such object, or it is not visible to you."
        )
    return error_page(request, 404)


def _tenant_of(request: HttpRequest) -> Tenant | None:
    match = request.resolver_match
    slug = match.kwargs.get("slug", "") if match else ""
    return access.find_tenant(request.user, slug) if slug else None
