"""Signing in and out, and where a person lands. Brute force is held off by django-axes."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta
from math import ceil
from typing import Any

from axes.handlers.proxy import AxesProxyHandler
from axes.models import AccessAttempt
from django.conf import settings
from django.contrib.auth.forms import AuthenticationForm
from django.contrib.auth.views import LoginView, LogoutView
from django.db.models import Sum
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.utils import timezone

from portal import login_names
from portal.budgets import budget_address
from portal.pages import welcome
from portal.pages.errors import error_page
from portal.pages.guard import signed_in
from portal.pages.session_start import enter
from tenants import access, audit, one_time
from tenants.backends import OneTimeBackend
from tenants.models import User
from tenants.sessions import ONE_TIME as BY_ONE_TIME
from tenants.sessions import PASSWORD

MISTYPED = 3
"""Wrong passwords for a name, from all addresses together, before answers about it come late …"""
DELAY_MAX_S = 5.0
"""… each twice as late as the one before, and never later: guessing is slow, and the user still signs in."""
CHECKS_AT_ONCE = 4
"""Passwords of one address that are checked at a time, per web process."""
NAME_CHARS = 150
WARNED = 3
"""Once this number of tries or fewer are left, the page says how many."""


_lock = threading.Lock()
_under_way: Counter[str | None] = Counter()


ONE_TIME = f"{OneTimeBackend.__module__}.{OneTimeBackend.__qualname__}"


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

    def post(self, *args: Any, **kwargs: Any) -> HttpResponse:
        """Sign in. The response is held back by the event loop, so that no thread waits."""
        with _checking(self.request) as admitted:
            if not admitted:
                return wait_page(self.request, wait_s=1)
            delay_s = delay_of(given_name(self.request))
            response = super().post(*args, **kwargs)
        response.delay_s = delay_s  # type: ignore[attr-defined]  # read by portal.asgi_handler
        return response

    def form_valid(self, form: AuthenticationForm) -> HttpResponse:
        user: Any = form.get_user()
        if user.backend == ONE_TIME:
            if settings.LUTHIER_PASSWORD_SIGN_IN:
                return welcome.begin(self.request, user, user.one_time_id)
            one_time.discard(user.one_time_id)
            return enter(self.request, user, to=self.get_success_url(), by=BY_ONE_TIME)
        return enter(self.request, user, to=self.get_success_url(), by=PASSWORD)

    def form_invalid(self, form: AuthenticationForm) -> HttpResponse:
        """A failure that was counted is recorded, so that a crowd of guesses above the budget fills no table."""
        counted = getattr(self.request, "axes_failures_since_start", None) or not settings.AXES_ENABLED
        if counted and (name := given_name(self.request)):
            known = User.objects.filter(username=name[:NAME_CHARS]).exists()
            # Of others the name is left out: it may be a password in the wrong field.
            audit.record(
                actor=None,
                action="login.failure",
                target=name if known else "",
                details={"known_name": known},
            )
        return super().form_invalid(form)

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        """ended: a session was here; tries_left: before the wait, once they are few."""
        context = super().get_context_data(**kwargs)
        context["invited"] = "invited" in self.request.POST
        context["passwords"] = settings.LUTHIER_PASSWORD_SIGN_IN
        context["sso_name"] = settings.LUTHIER_OIDC_NAME if settings.LUTHIER_OIDC_ISSUER else None
        context["ended"] = settings.SESSION_COOKIE_NAME in self.request.COOKIES
        name = given_name(self.request)
        if name and settings.AXES_ENABLED:
            left = settings.AXES_FAILURE_LIMIT - AxesProxyHandler.get_failures(
                self.request, {"username": name}
            )
            context["tries_left"] = left if left <= WARNED else None
            context["wait_s"] = settings.AXES_COOLOFF_TIME.total_seconds()
        return context


@contextlib.contextmanager
def _checking(request: HttpRequest) -> Iterator[bool]:
    """Whether one more password of this address may be checked now: what is under way is not counted as wrong yet."""
    address = budget_address(request)
    with _lock:
        admitted = _under_way[address] < CHECKS_AT_ONCE
        _under_way[address] += admitted
    try:
        yield admitted
    finally:
        with _lock:
            _under_way[address] -= admitted
            if not _under_way[address]:
                del _under_way[address]


def given_name(request: HttpRequest) -> str:
    """The name that is tried, as the form reads it: without spaces around it, and in NFKC."""
    return SignIn.base_fields["username"].to_python(request.POST.get("username", "")) or ""


def delay_of(name: str) -> float:
    """Seconds by which the answer to a login under this name is delayed; names that do not exist have theirs, too."""
    if not name or not settings.AXES_ENABLED:
        return 0.0
    recent = AccessAttempt.objects.filter(
        username=login_names.hashed(name[:NAME_CHARS]),
        attempt_time__gte=timezone.now() - settings.AXES_COOLOFF_TIME,
    )
    failures = recent.aggregate(n=Sum("failures_since_start"))["n"] or 0
    return min(DELAY_MAX_S, 0.5 * 2.0 ** min(failures - MISTYPED, 10)) if failures > MISTYPED else 0.0


class Logout(LogoutView):
    """POST only: a link cannot sign anybody out."""

    def post(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        if isinstance(request.user, User):
            audit.record(actor=request.user, action="logout.success", target=request.user.get_username())
        response: HttpResponse = super().post(request, *args, **kwargs)
        return response


def locked_out(request: HttpRequest, answer: object, credentials: dict[str, Any] | None) -> HttpResponse:
    """What axes answers after too many wrong passwords: how long the wait still is."""
    until = _open_again(request, credentials)
    return wait_page(request, wait_s=max(1, ceil((until - timezone.now()).total_seconds())), until=until)


def wait_page(request: HttpRequest, *, wait_s: int, until: datetime | None = None) -> HttpResponse:
    until = until or timezone.now() + timedelta(seconds=wait_s)
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
    last = request.user.last_tenant.slug if request.user.last_tenant else None  # type: ignore[union-attr]  # signed in
    if slugs:
        return HttpResponseRedirect(f"/t/{last if last in slugs else slugs[0]}/")
    if access.is_platform_admin(request.user):
        return HttpResponseRedirect("/admin-console/")
    return render(request, "no_tenant.html")
