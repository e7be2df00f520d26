"""That a user who is signed in is still there: asked before how someone signs in is changed or sessions are ended.

Here all of their factors are shown again: the password or single sign-on, then the second factor. A form that was sent
meanwhile is held in the session, and is sent from here once they were. docs/adr/0115-a-fresh-proof.md
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import wraps
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.contrib import messages
from django.db import transaction
from django.http import HttpRequest, HttpResponse, HttpResponseBase, HttpResponseRedirect
from django.shortcuts import render
from django.utils.http import url_has_allowed_host_and_scheme, urlencode
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_http_methods, require_POST

from portal import budgets, passwords, proof
from portal.pages.form_responses import problem_of
from portal.pages.guard import View, person, signed_in
from portal.pages.site import CHALLENGE, given, refused, site_of
from tenants import audit, passkeys, two_factor
from tenants.errors import FieldsInvalid, PasskeyRefused, PasskeyTooLate, ServiceError, problem
from tenants.models import Session, User
from tenants.services.identities import identity_of
from tenants.sessions import (
    FRESH,
    PASSWORD,
    PROVED_AT,
    is_fresh,
    prove,
    row_key,
    second_factor_due,
)

ADDRESS = "/me/confirm"
WANTED = "confirms_for"
"""Key of the session: {"to": the page to return to, "held": None or {"action", "label", "fields"}, a form to send,
"at": when it was held, in seconds since 1970}."""
FIRST = "confirmed_first"
"""Key of the session of who has shown the first factor again, and a second one is due: {"at", "by"}."""
HELD_MAX_CHARS = 16 * 1024
"""A longer form is not held: its page is returned to."""
TOO_LATE = (
    f"The form was kept for {FRESH.seconds // 60} minutes only, so nothing was changed. Fill it in again."
)
NEVER_HELD = {"csrfmiddlewaretoken", "password", "code"}
CHALLENGES_A_MINUTE = 20


def proved(label: str | Callable[..., str]) -> Callable[[View], View]:
    """For forms that take a fresh proof. label: of the button that sends the form afterwards."""

    def decorate(view: View) -> View:
        @wraps(view)
        def guarded(request: HttpRequest, *args: Any, **path: Any) -> HttpResponseBase:
            if request.method != "POST":
                return view(request, *args, **path)
            if not is_fresh(request):
                _hold(request, label if isinstance(label, str) else label(**path))
                return HttpResponseRedirect(ADDRESS)
            request.session.pop(WANTED, None)
            return view(request, *args, **path)

        return guarded

    return decorate


def first(request: HttpRequest, *, to: str) -> HttpResponse:
    """To the page that asks, and then to the page `to`: nothing is held of forms that have passwords in them."""
    return HttpResponseRedirect(f"{ADDRESS}?{urlencode({'next': to})}")


@sensitive_post_parameters()
@require_http_methods(["GET", "POST"])
@signed_in
@never_cache
def page(request: HttpRequest) -> HttpResponse:
    """Ask for one factor after the other; then go on with what was intended."""
    if "cancel" in request.GET:
        wanted = request.session.pop(WANTED, None)
        # A page without a held form asks by itself, so it would lead back here.
        return HttpResponseRedirect(wanted["to"] if wanted and wanted["held"] else "/me")
    if "next" in request.GET:
        request.session[WANTED] = {
            "to": _own_page(request, request.GET["next"]),
            "held": None,
            "at": time.time(),
        }
        return HttpResponseRedirect(ADDRESS)
    wrong = ""
    if request.method == "POST" and not is_fresh(request):
        if "password" not in request.POST and _shown(request) is None:
            messages.error(request, "This took too long. Start again.")
            return HttpResponseRedirect(ADDRESS)
        try:
            _take(request, person(request))
        except ServiceError as error:
            wrong = problem_of(error)
        else:
            return HttpResponseRedirect(ADDRESS)
    return _go_on(request) if is_fresh(request) else _ask(request, wrong)


@require_POST
@signed_in
@never_cache
def passkey(request: HttpRequest) -> HttpResponse:
    """The challenge for a passkey, for who has shown the first factor again."""
    user, before = person(request), request.session.get(CHALLENGE)
    if _shown(request) is None:
        return refused("This took too long. Reload the page, and start again.")
    if not budgets.within(f"passkey:{user.pk}", CHALLENGES_A_MINUTE):
        return refused("Too many requests for a passkey. Wait a minute, then try again.")
    try:
        return given(request, passkeys.check_begin(user, site_of(request), replaces=before))
    except ServiceError as error:
        return refused(problem_of(error))


def shown_first(request: HttpRequest, user: User, *, by: str, at: float) -> None:
    """Take the first factor as shown at that time, in seconds since 1970; the second one is asked next if it is due."""
    with transaction.atomic():
        two_factor.locked(user)  # who turns one on, does it before this or ends the session that comes of it
        if second_factor_due(by) and two_factor.is_on(user):
            request.session[FIRST] = {"by": by, "at": at}
        else:
            _confirmed(request, user, by=by, at=at, second="")


def _take(request: HttpRequest, user: User) -> None:
    """What the form shows.

    Raises FieldsInvalid, TooManyPasswords, TooManyCodes, SecretsUnavailable or PasskeyRefused.
    """
    shown = _shown(request)
    if shown is None:
        if not passwords.asked_of(user):
            raise FieldsInvalid(errors=[problem("password", "no_password", "is not set here")])
        passwords.check(user, request.POST["password"], session=row_key(request.session))
        shown_first(request, user, by=PASSWORD, at=time.time())
    elif "passkey" in request.POST:
        _check_passkey(request, user, request.POST["passkey"])
        _confirmed(request, user, **_by_now(shown), second=two_factor.PASSKEY)
    else:
        second = proof.check_code(user, request.POST.get("code", ""))
        _confirmed(request, user, **_by_now(shown), second=second)


def _by_now(shown: dict[str, Any]) -> dict[str, Any]:
    """What was shown first. A password counts from when the second factor follows, as at the sign-in."""
    return shown | {"at": time.time()} if shown["by"] == PASSWORD else shown


def _check_passkey(request: HttpRequest, user: User, answer: str) -> None:
    try:
        passkeys.check(user, request.session.pop(CHALLENGE, None), site_of(request), answer)
    except PasskeyTooLate:  # which says nothing of the passkey
        raise
    except PasskeyRefused:
        details = {"by": two_factor.PASSKEY}
        audit.record(actor=user, action="code.failure", target=user.get_username(), details=details)
        raise


@transaction.atomic
def _confirmed(request: HttpRequest, user: User, *, by: str, at: float, second: str) -> None:
    """The session is fresh from now on, under a new key: who has copied the one before has not shown this.

    One that was ended meanwhile stays so: it has to be there while the user's row is held, as at a sign-in.
    """
    two_factor.locked(user)
    if not user.sessions.filter(pk=row_key(request.session)).exists():
        if Session.objects.filter(pk=row_key(request.session)).exists():
            # Another request of this browser has confirmed it, and has the later key: this one takes nothing from it.
            request.session.modified = False
        else:
            request.session.flush()
        return
    request.session.pop(FIRST, None)
    request.session[PROVED_AT] = at
    if second:
        prove(request, second=second)
    request.session.cycle_key()
    request.session.save()
    details = {"by": by} | ({"second_factor": second} if second else {})
    audit.record(actor=user, action="session.confirm", target=user.get_username(), details=details)


def _shown(request: HttpRequest) -> dict[str, Any] | None:
    shown: dict[str, Any] | None = request.session.get(FIRST)
    return shown if shown and time.time() - shown["at"] < FRESH.total_seconds() else None


def _hold(request: HttpRequest, label: str) -> None:
    fields = [
        (name, value) for name, values in request.POST.lists() if name not in NEVER_HELD for value in values
    ]
    held = {"action": request.get_full_path(), "label": label, "fields": fields}
    small = sum(len(name) + len(value) for name, value in fields) <= HELD_MAX_CHARS
    back = _own_page(request, request.headers.get("Referer", ""))
    request.session[WANTED] = {"to": back, "held": held if small else None, "at": time.time()}


def _wanted(request: HttpRequest) -> dict[str, Any]:
    """What was intended; of a form that was held too long ago, the page that it is on."""
    wanted: dict[str, Any] = request.session.get(WANTED) or {"to": "/me", "held": None}
    if wanted["held"] and time.time() - wanted.get("at", 0) >= FRESH.total_seconds():
        wanted = request.session[WANTED] = wanted | {"held": None}
        messages.warning(request, TOO_LATE)
    return wanted


def _go_on(request: HttpRequest) -> HttpResponse:
    wanted = _wanted(request)
    if wanted["held"] is None:
        request.session.pop(WANTED, None)
        return HttpResponseRedirect(wanted["to"])
    return render(request, "confirm.html", {"wanted": wanted, "of": person(request)})


def _ask(request: HttpRequest, wrong: str) -> HttpResponse:
    user, site = person(request), site_of(request)
    shown = _shown(request)
    linked = settings.LUTHIER_OIDC_ISSUER is not None and identity_of(user) is not None
    factors = two_factor.factors_of(user)
    context = {
        "of": user,
        "wanted": _wanted(request),
        "asks": "second" if shown else "first",
        "problem": wrong,
        "wrong_code": bool(wrong) and "passkey" not in request.POST,
        "has_password": passwords.asked_of(user),
        "sso_name": settings.LUTHIER_OIDC_NAME if linked else "",
        "minutes": FRESH.seconds // 60,
        "factors": factors,
        "passkey": passkeys.work_at(user, site),
        "elsewhere": "" if site.why_not else ", ".join(sorted({each.host for each in factors.passkeys})),
        "site": site,
    }
    return render(request, "confirm.html", context, status=422 if wrong else 200)


def _own_page(request: HttpRequest, url: str) -> str:
    """Path and query of a page of this site, else the profile."""
    hosts, secure = {request.get_host()}, request.is_secure()
    if not url_has_allowed_host_and_scheme(url, allowed_hosts=hosts, require_https=secure):
        return "/me"
    parts = urlsplit(url)
    path = f"/{parts.path.lstrip('/')}"
    return f"{path}?{parts.query}" if parts.query else path
