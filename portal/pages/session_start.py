"""How a session begins: at once, or after a second factor. Until that is shown no one is signed in.

In between, the browser's session holds whose code is awaited, and nothing that pages, REST or sockets take for a user.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.conf import settings
from django.contrib import messages
from django.contrib.auth import login
from django.db import transaction
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.crypto import constant_time_compare

from portal.pages.sessions import browser_of
from tenants import audit, two_factor
from tenants.backends import PeopleBackend
from tenants.errors import SecretsUnavailable
from tenants.models import User
from tenants.services.identities import identity_of
from tenants.services.users import RESET_NOTED
from tenants.sessions import PASSWORD, PROVED_AT, SINGLE_SIGN_ON, prove, second_factor_due

PEOPLE = f"{PeopleBackend.__module__}.{PeopleBackend.__qualname__}"
AWAITED = "awaits_code"
"""Key of the session of a browser that has shown the first factor."""
PERIOD = timedelta(minutes=30)
"""How long the second one may take."""
CODE, SET_UP = "/login/code", "/login/two-factor"


@dataclass(frozen=True)
class Awaited:
    """A sign-in that lacks the second factor. app: one that is set up first, by its id; None where a code is due.

    at: as in enter.
    """

    user: User
    by: str
    to: str
    app: int | None
    at: float | None


@transaction.atomic
def enter(request: HttpRequest, user: User, *, to: str, by: str, at: float | None = None) -> HttpResponse:
    """Begin the user's session, or ask for the second factor. by: what was shown as the first one. at: of single
    sign-on, when the provider asked who it is, in seconds since 1970; None: it has not said so.

    The session is there before the user's row is let go: who turns a second factor on, or unlinks an identity, then
    ends it.
    """
    two_factor.locked(user)
    arrived = _enter(request, user, to=to, by=by, at=at)
    request.session.save()
    return arrived


def _enter(request: HttpRequest, user: User, *, to: str, by: str, at: float | None) -> HttpResponse:
    if second_factor_due(by):
        if two_factor.is_on(user):
            return _wait(request, user, to=to, by=by, app=None, at=at)
        if settings.LUTHIER_TWO_FACTOR_REQUIRED:
            return _set_up(request, user, to=to, by=by, at=at)
    return begin(request, user, to=to, by=by, at=at)


def awaited(request: HttpRequest) -> Awaited | None:
    """Whose second factor this browser may show; None if there is none, or the first one counts no longer."""
    kept = request.session.get(AWAITED)
    if kept is None:
        return None
    user = User.objects.filter(pk=kept["user"], is_active=True, is_service_account=False).first()
    if user is None or not constant_time_compare(kept["hash"], user.get_session_auth_hash()):
        return None
    if kept["by"] == SINGLE_SIGN_ON:
        subject = identity_of(user)
        if subject is None or subject != kept.get("subject"):  # unlinked, or replaced
            return None
    return Awaited(user, kept["by"], kept["to"], kept["app"], kept.get("at"))


@transaction.atomic
def finish(
    request: HttpRequest, known: Awaited, shown: Callable[[], str], *, to: str | None = None
) -> HttpResponse | None:
    """Begin the session if the second factor is shown now: the name of what shows it, "" if nothing does.

    None: it was not shown, or the sign-in counts no longer. As in enter, the session is there before the user's row is
    let go, so who removes the factor, or resets it, ends the session.
    """
    two_factor.locked(known.user)
    second = shown() if awaited(request) == known else ""
    if not second:
        return None
    response = begin(request, known.user, to=to or known.to, by=known.by, second=second, at=known.at)
    request.session.save()
    return response


def begin(
    request: HttpRequest, user: User, *, to: str, by: str, second: str = "", at: float | None = None
) -> HttpResponse:
    """Begin the session of who has shown all that is due. A provider may have known its user for days: the session is
    as fresh as what it says of that."""
    request.session.pop(AWAITED, None)
    request.session.set_expiry(None)  # of what came before: a single sign-on, or the wait for a code
    login(request, user, backend=PEOPLE)
    prove(request, by=by, second=second)
    if by == SINGLE_SIGN_ON:
        request.session[PROVED_AT] = at
    agent = request.META.get("HTTP_USER_AGENT", "")
    details = {"browser": browser_of(agent)} if agent else {}
    details |= ({} if by == PASSWORD else {"by": by}) | ({"second_factor": second} if second else {})
    audit.record(actor=user, action="login.success", target=user.get_username(), details=details)
    _show_reset(request, user)
    return HttpResponseRedirect(to)


def _set_up(request: HttpRequest, user: User, *, to: str, by: str, at: float | None) -> HttpResponse:
    try:
        app = two_factor.app_begin(user)
    except SecretsUnavailable as error:
        messages.error(request, error.message)
        return HttpResponseRedirect("/login")
    return _wait(request, user, to=to, by=by, app=app, at=at)


def _wait(
    request: HttpRequest, user: User, *, to: str, by: str, app: int | None, at: float | None
) -> HttpResponse:
    request.session.flush()
    request.session[AWAITED] = {
        "user": user.pk,
        "hash": user.get_session_auth_hash(),
        "subject": identity_of(user) if by == SINGLE_SIGN_ON else None,
        "by": by,
        "to": to,
        "app": app,
        "at": at,
    }
    request.session.set_expiry(PERIOD)
    return HttpResponseRedirect(CODE if app is None else SET_UP)


def _show_reset(request: HttpRequest, user: User) -> None:
    """Once: that an admin has removed the second factor, which may be news to the user."""
    at = user.preferences.get(RESET_NOTED)
    if at is None:
        return
    kept = {name: value for name, value in user.preferences.items() if name != RESET_NOTED}
    User.objects.filter(pk=user.pk).update(preferences=kept)
    user.preferences = kept
    day = datetime.fromisoformat(at).strftime("%-d %b %Y, %H:%M UTC")
    text = (
        f"A platform admin removed your two-factor authentication on {day}. Set it up again on your profile."
    )
    messages.warning(request, text)
