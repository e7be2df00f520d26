"""Signing in and out, and where a person lands. Brute force is held off by django-axes."""

from __future__ import annotations

from datetime import datetime
from math import ceil
from typing import Any

from axes.handlers.proxy import AxesProxyHandler
from django.conf import settings
from django.contrib.auth.forms import AuthenticationForm
from django.contrib.auth.views import LoginView, LogoutView
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.utils import timezone

from portal.pages.errors import error_page
from portal.pages.guard import signed_in
from tenants import access

WARNED = 3
"""Once this number of tries or fewer are left, the page says how many."""


class SignIn(AuthenticationForm):
    """One text for every wrong pair, so that it does not reveal which names exist."""

    error_messages = {  # Django's own attribute
        "invalid_login": "Incorrect username or password.",
        "inactive": "Incorrect username or password.",
    }


class Login(LoginView):
    template_name = "login.html"
    authentication_form = SignIn
    redirect_authenticated_user = True

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        """ended: a session was here; tries_left: before the wait, once they are few."""
        context = super().get_context_data(**kwargs)
        context["ended"] = settings.SESSION_COOKIE_NAME in self.request.COOKIES
        name = self.request.POST.get("username", "")
        if name and settings.AXES_ENABLED:
            left = settings.AXES_FAILURE_LIMIT - AxesProxyHandler.get_failures(
                self.request, {"username": name}
            )
            context["tries_left"] = left if left <= WARNED else None
            context["wait_s"] = settings.AXES_COOLOFF_TIME.total_seconds()
        return context


class Logout(LogoutView):
    """POST only: a link cannot sign anybody out."""


def locked_out(request: HttpRequest, answer: object, credentials: dict[str, Any] | None) -> HttpResponse:
    """What axes answers after too many wrong passwords: how long the wait still is."""
    until = _open_again(request, credentials)
    wait_s = max(1, ceil((until - timezone.now()).total_seconds()))
    response = error_page(request, 429, wait_s=wait_s, until=until)
    response["Retry-After"] = str(wait_s)
    return response


def _open_again(request: HttpRequest, credentials: dict[str, Any] | None) -> datetime:
    """When enough of the counted failures are too old; axes keeps a row per browser and counts them together."""
    handler = AxesProxyHandler.get_implementation()
    rows = sorted(
        (row for found in handler.get_user_attempts(request, credentials) for row in found),
        key=lambda row: row.attempt_time,
    )
    left = sum(row.failures_since_start for row in rows)
    for row in rows:
        left -= row.failures_since_start
        if left < settings.AXES_FAILURE_LIMIT:
            ends: datetime = row.attempt_time + settings.AXES_COOLOFF_TIME
            return ends
    return timezone.now()


@signed_in
def home(request: HttpRequest) -> HttpResponse:
    """To the tenant used last, else to the first one; a platform admin without tenants to the console."""
    rows = access.memberships(request.user).select_related("tenant").order_by("tenant__name")
    slugs = [row.tenant.slug for row in rows]
    last = request.user.last_tenant.slug if request.user.last_tenant else None  # type: ignore[union-attr]
    if slugs:
        return HttpResponseRedirect(f"/t/{last if last in slugs else slugs[0]}/")
    if access.is_platform_admin(request.user):
        return HttpResponseRedirect("/admin-console/")
    return render(request, "no_tenant.html")
