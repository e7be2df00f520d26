"""Where a one-time password leads: an invited user, or one whose password was reset, sets a password.

The link has name and one-time password behind its #, where no server or log sees them; a script puts them into the
form of the first page, which posts them to the login as if they had been typed there. Opening the link uses nothing up.
"""

from __future__ import annotations

from django.conf import settings
from django.contrib import messages
from django.contrib.auth.forms import SetPasswordForm
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_GET, require_http_methods

from tenants import audit, one_time
from tenants.models import OneTimePassword, User

SETS = "sets_password"
"""Key of the session of a browser that has presented a one-time password: the row's id. It signs no one in."""
TOO_LATE = "A password can no longer be set this way. Ask a platform admin for another one-time password."


@require_GET
@never_cache
def page(request: HttpRequest) -> HttpResponse:
    """What the link opens."""
    return render(
        request,
        "welcome/invited.html",
        {"valid_days": one_time.VALID.days, "passwords": settings.LUTHIER_PASSWORD_SIGN_IN},
    )


def begin(request: HttpRequest, user: User, one_time_id: int) -> HttpResponse:
    """After the login has used up a one-time password: let this browser set a password."""
    request.session.flush()
    request.session[SETS] = one_time_id
    request.session.set_expiry(one_time.PERIOD)
    audit.record(actor=user, action="login.one_time", target=user.get_username())
    return HttpResponseRedirect("/welcome/password")


@sensitive_post_parameters()
@never_cache
@require_http_methods(["GET", "POST"])
def password(request: HttpRequest) -> HttpResponse:
    """The form of the new password; then to the login, which asks for it."""
    found = _to_set(request)
    if found is None:
        return _too_late(request)
    form = SetPasswordForm(found.user, request.POST if request.method == "POST" else None)
    if request.method == "GET" or not form.is_valid():
        context = {"form": form, "of": found.user, "password_min_chars": settings.PASSWORD_MIN_CHARS}
        return render(request, "welcome/password.html", context, status=422 if form.errors else 200)
    user = one_time.password_set(found.pk, form.cleaned_data["new_password1"])
    if user is None:
        return _too_late(request)
    request.session.flush()
    messages.success(request, "Password set. Sign in with it.")
    return HttpResponseRedirect("/login")


def _to_set(request: HttpRequest) -> OneTimePassword | None:
    known = request.session.get(SETS)
    return one_time.to_set(known) if known else None


def _too_late(request: HttpRequest) -> HttpResponse:
    if SETS in request.session:
        request.session.flush()
        messages.error(request, TOO_LATE)
    return HttpResponseRedirect("/login")
