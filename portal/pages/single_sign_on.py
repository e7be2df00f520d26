"""Signing in by an OpenID provider: there, and back to a session or to the login page with the reason.

The start is a link, not a form: the pages' policy lets forms lead to this site only. It changes nothing but this
browser's session, and has a budget per address, because each start stores one.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from django.conf import settings
from django.contrib import messages
from django.db import transaction
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.utils.http import url_has_allowed_host_and_scheme, urlencode
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_variables
from django.views.decorators.http import require_GET

from portal import budgets, passwords
from portal.pages import confirm
from portal.pages.auth import wait_page
from portal.pages.guard import person, signed_in
from portal.pages.session_start import enter
from tenants import audit
from tenants.errors import AccountClosed, IdentityUnknown
from tenants.services.identities import Identity, identity_of, is_of, user_of
from tenants.sessions import FRESH, SINGLE_SIGN_ON

if TYPE_CHECKING:
    from portal.single_sign_on import Asked, Found, Refused

logger = logging.getLogger(__name__)

TRIES_A_MINUTE = 30
"""Starts and returns of one address together."""
STATE_S = 600
"""How long a person may take at the provider."""
NEXT = "sso_next"
"""In the session: where the person wanted to go, so that the login page after a failure still leads there."""
TEXTS = {
    "provider_unreachable": "{name} does not respond. Try again, or sign in with {instead}.",
    "provider_slow": "{name} responds slowly, and too many sign-ins wait for it. Try again in a minute.",
    "canceled": "Signing in with {name} was canceled.",
    "state_lost": "This sign-in is too old or was started in another browser. Start again.",
    "clocks_differ": "The clock of this server and that of {name} differ by more than a minute. Ask a platform admin.",
    "not_again": "{name} did not ask again who you are. Sign in with {instead} instead.",
    "refused": "{name} did not confirm who you are. Try again, or ask a platform admin.",
}


@require_GET
@never_cache
def begin(request: HttpRequest) -> HttpResponseBase:
    """To the provider."""
    _require_provider()
    to = _safe(request, request.GET.get("next", ""))
    if request.user.is_authenticated:
        return HttpResponseRedirect(to or settings.LOGIN_REDIRECT_URL)
    if request.headers.get("Sec-Fetch-Site") in ("cross-site", "same-site"):
        # Another site sent the browser here, not its user: a provider that asks nothing would sign them in unasked.
        return HttpResponseRedirect(f"/login?{urlencode({'next': to})}" if to else "/login")
    if not _within_budget(request):
        return wait_page(request, wait_s=budgets.WINDOW_S)
    from portal import single_sign_on  # with it come libraries that other pages do not need

    try:
        away = single_sign_on.begin(request, to)
    except single_sign_on.Refused as refusal:
        return _refused(request, refusal, to)
    request.session[NEXT] = to
    request.session.set_expiry(STATE_S)
    return away


@require_GET
@signed_in
@never_cache
def again(request: HttpRequest) -> HttpResponseBase:
    """To the provider, which asks a user who is signed in here who they are."""
    _require_provider()
    user = person(request)
    from_elsewhere = request.headers.get("Sec-Fetch-Site") in ("cross-site", "same-site")
    if from_elsewhere or identity_of(user) is None:
        return HttpResponseRedirect(confirm.ADDRESS)
    if not _within_budget(request):
        return wait_page(request, wait_s=budgets.WINDOW_S)
    from portal import single_sign_on

    try:
        return single_sign_on.begin(request, "", again=single_sign_on.Asked(user.pk, time.time()))
    except single_sign_on.Refused as refusal:
        return _refused(request, refusal, "", back=confirm.ADDRESS)


@require_GET
@never_cache
@sensitive_variables()
def callback(request: HttpRequest) -> HttpResponse:
    """Back from the provider."""
    _require_provider()
    if not _within_budget(request):
        return wait_page(request, wait_s=budgets.WINDOW_S)
    from portal import single_sign_on

    wanted = request.session.pop(NEXT, "")
    try:
        found = single_sign_on.finish(request)
        if found.again is not None:
            return _confirm(request, found, found.again)
        return _enter(request, found.identity, found.next_url, found.asked_at)
    except single_sign_on.Refused as refusal:
        back = (
            confirm.ADDRESS if request.user.is_authenticated else ""
        )  # who is signed in can only have confirmed
        return _refused(request, refusal, wanted, back=back)
    except IdentityUnknown as unknown:
        subject = unknown.details["subject"]
        _record_failure("", "unknown identity", subject)
        return _to_login(request, f"{unknown.message} It is known there as {subject}.", wanted)
    except AccountClosed as closed:
        _record_failure(closed.details["username"], "disabled", found.identity.subject)
        return _to_login(request, closed.message, wanted)


@transaction.atomic
def _enter(request: HttpRequest, identity: Identity, to: str, at: float | None) -> HttpResponse:
    """The user's row is held until the session is there."""
    user = user_of(identity)
    # Nothing of the session before goes on: neither its key, nor its expiry, nor whose it was.
    request.session.flush()
    return enter(
        request, user, to=_safe(request, to) or settings.LOGIN_REDIRECT_URL, by=SINGLE_SIGN_ON, at=at
    )


def _confirm(request: HttpRequest, found: Found, asked: Asked) -> HttpResponse:
    """Take it for what the user of this session shows first, if the provider asked them since this began."""
    from portal.single_sign_on import SKEW_S

    user, identity, at = request.user, found.identity, found.asked_at
    if not user.is_authenticated or user.pk != asked.user:
        return HttpResponseRedirect(confirm.ADDRESS)
    if not is_of(identity, user):
        _record_failure(user.get_username(), "another identity", identity.subject)
        messages.error(request, f"You are {identity.subject} there, who is not {user.get_username()} here.")
    elif at is None or at < asked.at - SKEW_S:
        messages.error(request, _text("not_again", has_password=passwords.asked_of(user)))
    elif time.time() - at >= FRESH.total_seconds():
        messages.error(request, "This took too long. Start again.")
    else:
        confirm.shown_first(request, user, by=SINGLE_SIGN_ON, at=at)
    return HttpResponseRedirect(confirm.ADDRESS)


def _require_provider() -> None:
    if settings.LUTHIER_OIDC_ISSUER is None:
        raise Http404


def _within_budget(request: HttpRequest) -> bool:
    return budgets.within(f"sso:{budgets.budget_address(request)}", TRIES_A_MINUTE)


def _refused(request: HttpRequest, refusal: Refused, to: str, *, back: str = "") -> HttpResponse:
    """To the login page, or back to a page of a user who is signed in."""
    logger.warning("single sign-on failed", extra={"reason": refusal.reason, "error": str(refusal)})
    user = request.user
    has_password = (
        passwords.asked_of(user) if user.is_authenticated else bool(settings.LUTHIER_PASSWORD_SIGN_IN)
    )
    text = _text(refusal.reason, has_password=has_password)
    if back:
        messages.error(request, text)
        return HttpResponseRedirect(back)
    return _to_login(request, text, to)


def _text(reason: str, *, has_password: bool) -> str:
    name = settings.LUTHIER_OIDC_NAME
    instead = "your password" if has_password else "a one-time password of a platform admin"
    return TEXTS[reason].format(name=name[:1].upper() + name[1:], instead=instead)


def _to_login(request: HttpRequest, text: str, to: str) -> HttpResponse:
    """A redirect, so that neither code nor state stays in the address."""
    messages.error(request, text)
    return HttpResponseRedirect(f"/login?{urlencode({'next': to})}" if to else "/login")


def _record_failure(username: str, reason: str, subject: str) -> None:
    details = {"by": SINGLE_SIGN_ON, "reason": reason, "subject": subject}
    audit.record(actor=None, action="login.failure", target=username, details=details)


def _safe(request: HttpRequest, url: str) -> str:
    """The address if it is one of this site's, else ""."""
    hosts, secure = {request.get_host()}, request.is_secure()
    return url if url_has_allowed_host_and_scheme(url, allowed_hosts=hosts, require_https=secure) else ""
