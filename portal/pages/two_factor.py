"""Two-factor authentication on the profile: an authenticator app is set up or removed, recovery codes are made.

Each takes the password, or what passwords.confirm takes in its place, and the second factor if it was not shown within
ten minutes. Recovery codes are shown once
(portal.pages.shown_once). Passkeys are in portal.pages.passkeys.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import wraps
from typing import Any

from django.conf import settings
from django.db import transaction
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase, HttpResponseRedirect
from django.shortcuts import render
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_GET, require_POST

from portal import passwords, proof
from portal.pages import confirm, shown_once
from portal.pages.form_once import Outcome, once, say
from portal.pages.form_responses import problem_of
from portal.pages.guard import View, person, signed_in
from portal.pages.shell import frame, last_tenant
from portal.pages.site import site_of
from tenants import two_factor
from tenants.errors import NotFound, ServiceError
from tenants.models import User
from tenants.services.sessions import sessions_end
from tenants.sessions import FRESH, PROVED_AT, is_fresh, prove, row_key

BASE = "/me/two-factor"
CODES = "recovery-codes"
BEGUN = "sets_up_app"
"""Key of the session of a browser that sets up an app: its id."""
BEGUN_AT = "set_up_proved_at"
"""Key of when the user of a browser that sets up an app or a passkey gave the password for it, in seconds since 1970;
of a user who has none, when they confirmed by other means."""


def all_shown(view: View) -> View:
    """For forms that take the password, and their page: who has not shown all factors within ten minutes does first."""

    @wraps(view)
    def guarded(request: HttpRequest, *args: Any, **path: Any) -> HttpResponseBase:
        if proof.lacks_factor(request, person(request)):
            return confirm.first(request, to=BASE)
        return view(request, *args, **path)

    return guarded


@require_GET
@signed_in
@all_shown
@never_cache
def page(request: HttpRequest) -> HttpResponse:
    """What is set up, and once the recovery codes that this browser has just been given."""
    response = show(request, given=shown_once.taken(request, CODES))
    response.delete_cookie(CODES, path=BASE)
    return response


@sensitive_post_parameters()
@require_POST
@signed_in
@all_shown
@never_cache
def app_begin(request: HttpRequest) -> HttpResponse:
    """A new app; the page shows what it has to know until a code of it was right."""
    user = person(request)
    try:
        done = once(request, lambda: {"app": two_factor.app_begin(user)}, proof=confirmed(request, user))
    except ServiceError as error:
        return show(request, problems={"begin": problem_of(error)})
    request.session[BEGUN] = done["app"]
    note_begun(request, user)
    return HttpResponseRedirect(f"{BASE}#set-up")


@sensitive_post_parameters()
@require_POST
@signed_in
@never_cache
def app_confirm(request: HttpRequest) -> HttpResponse:
    """Let the app count once its code is right; every other session of this person ends."""
    user, app = person(request), request.session.get(BEGUN)
    if begun_too_long_ago(request):
        return confirm.first(request, to=BASE)
    ran: list[bool] = []

    def work() -> Outcome:
        ran[:] = [True]
        codes = two_factor.app_confirm(user, app, request.POST.get("code", ""), replaces=True)
        user.sessions.exclude(pk=row_key(request.session)).delete()
        return {"codes": "\n".join(codes)}

    try:
        codes = once(request, work, sealed=("codes",))["codes"].split()
    except ServiceError as error:
        return show(request, problems={"code": problem_of(error)})
    request.session.pop(BEGUN, None)
    return turned_on(request, codes, second=two_factor.APP, now=bool(ran))


def note_begun(request: HttpRequest, user: User) -> None:
    """Keep when the proof was given by which the set-up of a second factor begins."""
    by_password = passwords.asked_of(user)
    request.session[BEGUN_AT] = time.time() if by_password else request.session.get(PROVED_AT)


def begun_too_long_ago(request: HttpRequest) -> bool:
    """Whether who ends the set-up may be another than who began it: the proof was not given within ten minutes."""
    at = request.session.get(BEGUN_AT)
    return not is_fresh(request) and (at is None or time.time() - at >= FRESH.total_seconds())


def turned_on(
    request: HttpRequest, codes: list[str], *, second: str, now: bool, said: str = ""
) -> HttpResponse:
    """Back to the page, with the recovery codes of a first second factor that counts now; `said` comes before it is
    said that it does. now: by this request, and not by an earlier one that this repeats, which shows nothing."""
    response = HttpResponseRedirect(BASE)
    if two_factor.codes_current(
        person(request), codes
    ):  # what was replaced or removed since takes its codes along
        prove(request, second=second)
        if now and BEGUN_AT in request.session:
            proved = request.session.get(PROVED_AT) or 0
            request.session[PROVED_AT] = max(request.session.pop(BEGUN_AT), proved)
        say(request, f"{said} Two-factor authentication is on. All other sessions were signed out.".lstrip())
        give_codes(request, response, codes)
    return response


@sensitive_post_parameters()
@require_POST
@signed_in
@all_shown
def app_remove(request: HttpRequest) -> HttpResponse:
    """Keep passkeys as the only second factor."""
    return remove(request, two_factor.app_remove, field="begin", done="Authenticator app removed.")


@sensitive_post_parameters()
@require_POST
@signed_in
@all_shown
def turn_off(request: HttpRequest) -> HttpResponse:
    """Turn two-factor authentication off."""
    return remove(request, two_factor.turn_off, field="remove", done="Two-factor authentication is off.")


def remove(request: HttpRequest, act: Callable[[User], None], *, field: str, done: str) -> HttpResponse:
    """Remove one second factor or all, with the password; every other session of this person ends.

    Someone who holds what is removed may have begun one with it. field: of the form, for what was wrong.
    """
    user = person(request)

    def work() -> Outcome:
        with transaction.atomic():
            act(user)
            sessions_end(user=user, owner=user, keep=row_key(request.session))
        return {}

    try:
        once(request, work, proof=confirmed(request, user))
    except NotFound as error:
        raise Http404 from error
    except ServiceError as error:
        return show(request, problems={field: problem_of(error)})
    say(request, f"{done} All other sessions were signed out.")
    if not two_factor.is_on(user):
        prove(request, second="")
    return HttpResponseRedirect(BASE)


@sensitive_post_parameters()
@require_POST
@signed_in
@all_shown
@never_cache
def codes_renew(request: HttpRequest) -> HttpResponse:
    """New recovery codes in place of the earlier ones."""
    user = person(request)

    def work() -> Outcome:
        return {"codes": "\n".join(two_factor.codes_renew(user))}

    try:
        done = once(request, work, proof=confirmed(request, user), sealed=("codes",))
    except ServiceError as error:
        return show(request, problems={"codes": problem_of(error)})
    codes, response = done["codes"].split(), HttpResponseRedirect(BASE)
    if two_factor.codes_current(user, codes):
        give_codes(request, response, codes)
    return response


def give_codes(request: HttpRequest, response: HttpResponse, codes: list[str], *, to: str = "") -> None:
    """Let the response take them to the page, which then leads on to `to`."""
    text = shown_once.packed({"text": "\n".join(codes), "to": to})
    shown_once.give(request, response, CODES, text, path=BASE)


def qr(text: str) -> dict[str, Any]:
    """A QR code as the path of an SVG and its side in modules, with the quiet zone of 4 that scanners need."""
    import qrcode  # only who sets up an app needs it

    code = qrcode.QRCode(border=4)
    code.add_data(text)
    rows = code.get_matrix()
    dark = (f"M{x} {y}h1v1h-1z" for y, row in enumerate(rows) for x, on in enumerate(row) if on)
    return {"side": len(rows), "path": "".join(dark)}


def confirmed(request: HttpRequest, user: User) -> Callable[[], None]:
    """What raises unless the form has the user's password, or what is taken in its place."""
    return lambda: passwords.confirm(request, user, request.POST.get("password", ""))


def show(request: HttpRequest, *, given: Any = None, problems: dict[str, str] | None = None) -> HttpResponse:
    """The page, with what was wrong by the form's field."""
    user, problems = person(request), problems or {}
    begun = two_factor.app_begun(user, request.session.get(BEGUN))
    factors = two_factor.factors_of(user)
    context = frame(request, last_tenant(request), "me") | {
        "factors": factors,
        "passkeys": [
            {
                "row": row,
                "renaming": problems.get(f"rename-{row.pk}"),
                "removing": problems.get(f"remove-{row.pk}"),
            }
            for row in factors.passkeys
        ],
        "begun": begun,
        "qr": qr(begun.uri) if begun else None,
        "given": given,
        "problems": problems,
        "has_password": passwords.asked_of(user),
        "required": settings.LUTHIER_TWO_FACTOR_REQUIRED,
        "of_all": two_factor.RECOVERY_CODES,
        "site": site_of(request),
    }
    return render(request, "me/two_factor.html", context, status=422 if problems else 200)
