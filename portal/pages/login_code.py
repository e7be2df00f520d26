"""The second factor at the sign-in: a passkey, a code, or setting one up where the installation requires it.

A wrong code or passkey counts as a wrong password does: per address over all names, and towards the delay of answers
about the name. Codes of an app have a budget per user as well (portal.code_budget).
"""

from __future__ import annotations

from axes.handlers.proxy import AxesProxyHandler
from django.conf import settings
from django.contrib import messages
from django.contrib.auth.signals import user_login_failed
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters, sensitive_variables
from django.views.decorators.http import require_http_methods, require_POST

from portal import budgets, code_budget
from portal.pages import two_factor as pages
from portal.pages.auth import delay_of, locked_out
from portal.pages.form_responses import problem_of
from portal.pages.session_start import AWAITED, SET_UP, Awaited, awaited, finish
from portal.pages.site import CHALLENGE, given, refused, site_of
from tenants import audit, passkeys, two_factor
from tenants.errors import (
    FieldsInvalid,
    PasskeyCopied,
    PasskeyRefused,
    PasskeyTooLate,
    SecretsUnavailable,
    ServiceError,
)
from tenants.models import User

CHALLENGES_A_MINUTE = 20
TOO_LATE = "This sign-in took too long or no longer counts. Start again."
TOO_MANY = "Too many wrong codes. Try again later, or enter a recovery code."
TOO_OFTEN = "Too many requests for a passkey. Wait a minute, then try again."
WRONG = "Incorrect code. Each works once; an app shows a new one every 30 seconds."


@sensitive_post_parameters()
@sensitive_variables("given")
@never_cache
@require_http_methods(["GET", "POST"])
def code(request: HttpRequest) -> HttpResponse:
    """Ask for a passkey or a code, and begin the session once it is right."""
    known = awaited(request)
    if known is not None and known.app is not None:
        return HttpResponseRedirect(SET_UP)
    if known is None or not two_factor.is_on(known.user):
        return _too_late(request)
    if request.method == "GET":
        return _ask(request, known.user)
    credentials = {"username": known.user.get_username()}
    if settings.AXES_ENABLED and not AxesProxyHandler.is_allowed(request, credentials):
        return locked_out(request, None, credentials)
    delay_s = delay_of(known.user.get_username())
    if "passkey" in request.POST:
        response = _answer_passkey(request, known, request.POST["passkey"])
    else:
        response = _answer(request, known, request.POST.get("code", ""))
    response.delay_s = delay_s  # type: ignore[attr-defined]  # read by portal.asgi_handler
    return response


@never_cache
@require_POST
def passkey(request: HttpRequest) -> HttpResponse:
    """The challenge for a passkey: one to sign in with, or where a second factor is set up, a new one."""
    known, before = awaited(request), request.session.get(CHALLENGE)
    if known is None:
        return _too_late(request)
    if not budgets.within(f"passkey:{known.user.pk}", CHALLENGES_A_MINUTE):
        return refused(TOO_OFTEN)
    try:
        if known.app is None:
            begun = passkeys.check_begin(known.user, site_of(request), replaces=before)
        elif two_factor.is_on(known.user):
            return refused(TOO_LATE)
        else:
            begun = passkeys.add_begin(known.user, site_of(request), replaces=before)
    except ServiceError as error:
        return refused(problem_of(error))
    return given(request, begun)


@sensitive_post_parameters()
@never_cache
@require_http_methods(["GET", "POST"])
def set_up(request: HttpRequest) -> HttpResponse:
    """Set up an app or a passkey, without one of which the installation lets no one in; then begin the session."""
    known = awaited(request)
    begun = two_factor.app_begun(known.user, known.app) if known else None
    if known is None or begun is None:
        return _too_late(request)
    problem = ""
    if request.method == "POST":
        codes: list[str] = []
        try:
            response = finish(request, known, lambda: _first_factor(request, known, codes), to=pages.BASE)
        except (FieldsInvalid, PasskeyRefused) as error:
            problem = problem_of(error)
        else:
            if response is None:
                return _too_late(request)
            pages.give_codes(request, response, codes, to=known.to)
            return response
    context = {
        "of": known.user,
        "begun": begun,
        "qr": pages.qr(begun.uri),
        "problem": problem,
        "here": SET_UP,
        "site": site_of(request),
    }
    return render(request, "login_two_factor.html", context, status=422 if problem else 200)


def _first_factor(request: HttpRequest, known: Awaited, codes: list[str]) -> str:
    """Which factor counts from now on; adds its recovery codes to the list. Raises FieldsInvalid or PasskeyRefused."""
    if "passkey" not in request.POST:
        codes += two_factor.app_confirm(known.user, known.app, request.POST.get("code", ""))
        return two_factor.APP
    challenge, answer = request.session.pop(CHALLENGE, None), request.POST["passkey"]
    codes += passkeys.add(known.user, challenge, site_of(request), answer, name="", first=True)
    return two_factor.PASSKEY


def _answer_passkey(request: HttpRequest, known: Awaited, answer: str) -> HttpResponse:
    challenge = request.session.pop(CHALLENGE, None)
    refusals: list[PasskeyRefused] = []

    def shown() -> str:
        try:
            passkeys.check(known.user, challenge, site_of(request), answer)
        except PasskeyRefused as error:  # not out of the transaction: the challenge is used up
            refusals.append(error)
            return ""
        return two_factor.PASSKEY

    response = finish(request, known, shown)
    if response is not None:
        return response
    for error in refusals:
        if not isinstance(error, PasskeyTooLate):  # which says nothing of the passkey
            more = {"copied": True} if isinstance(error, PasskeyCopied) else {}
            _count_failure(request, known.user, by=two_factor.PASSKEY, **more)
        return _ask(request, known.user, error.message)
    return _too_late(request)


def _answer(request: HttpRequest, known: Awaited, given: str) -> HttpResponse:
    """Spent before the code is checked, given back if it was right: of many at once only the budget's are checked."""
    user, limited = known.user, two_factor.is_app_code(given)
    if limited and not code_budget.spend(user):
        return _ask(request, user, TOO_MANY)
    try:
        response = finish(request, known, lambda: two_factor.check(user, given) or "")
    except SecretsUnavailable as error:
        return _ask(request, user, f"{error.message} A recovery code works meanwhile.")
    if response is None:
        if awaited(request) != known:
            return _too_late(request)
        _count_failure(request, user)
        return _ask(request, user, WRONG)
    if limited:
        code_budget.give_back(user)
    else:
        left = two_factor.factors_of(user).codes_left
        text = f"You used a recovery code. {left} left: make new ones on your profile before they run out."
        messages.warning(request, text)
    return response


def _count_failure(request: HttpRequest, user: User, *, by: str = "code", **more: bool) -> None:
    """As one of a password, which django-axes counts; above its budget nothing is recorded."""
    user_login_failed.send(__name__, credentials={"username": user.get_username()}, request=request)
    if getattr(request, "axes_failures_since_start", None) or not settings.AXES_ENABLED:
        details = {"known_name": True, "by": by, **more}
        audit.record(actor=None, action="login.failure", target=user.get_username(), details=details)


def _ask(request: HttpRequest, user: User, problem: str = "") -> HttpResponse:
    site, factors = site_of(request), two_factor.factors_of(user)
    context = {
        "of": user,
        "problem": problem,
        "wrong_code": problem and "passkey" not in request.POST,
        "factors": factors,
        "passkey": passkeys.work_at(user, site),
        "elsewhere": "" if site.why_not else ", ".join(sorted({each.host for each in factors.passkeys})),
        "site": site,
    }
    return render(request, "login_code.html", context, status=422 if problem else 200)


def _too_late(request: HttpRequest) -> HttpResponse:
    if AWAITED in request.session:
        request.session.flush()
        messages.error(request, TOO_LATE)
    return HttpResponseRedirect("/login")
