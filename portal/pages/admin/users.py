"""Users of the installation: all of them, one of them with their sessions, a new one; invited, reset, disabled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from django.conf import settings
from django.core.paginator import Paginator
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.utils.dateparse import parse_datetime
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from portal.pages import confirm, sessions, shown_once
from portal.pages.admin.shell import frame
from portal.pages.form_once import Outcome, once, say
from portal.pages.form_responses import act_and_redirect, sentence
from portal.pages.guard import admins_only, person
from tenants import two_factor
from tenants.errors import NotFound, ServiceError
from tenants.models import Token, User
from tenants.services.identities import identities_of, identity_link, identity_unlink
from tenants.services.sessions import Ended, session_end, sessions_end
from tenants.services.users import (
    Invited,
    state_of,
    user_change,
    user_create,
    user_disable,
    user_enable,
    user_get,
    user_reset,
    user_two_factor_reset,
    users,
)
from tenants.sessions import row_key

PER_PAGE = 50
BASE = "/admin-console/users"
INVITED = "one-time-password"
FIELDS = ("username", "email", "first_name", "last_name")
ACTS = {
    "reset": "Give {} a one-time password",
    "disable": "Disable {}",
    "enable": "Enable {}",
    "two-factor-reset": "Reset two-factor authentication of {}",
}


def _act_label(username: str, verb: str) -> str:
    return ACTS.get(verb, "Continue").format(username)


@require_GET
@admins_only
def listing(request: HttpRequest) -> HttpResponse:
    """Everyone with an account, and their tenants."""
    q = request.GET.get("q", "").strip()[:120]
    page = Paginator(users(user=request.user, q=q), PER_PAGE).get_page(request.GET.get("page"))
    rows = [{"user": each, "state": state_of(each)} for each in page]
    context = frame(request, "users") | {"page": page, "rows": rows, "q": q}
    context["sso"] = settings.LUTHIER_OIDC_ISSUER is not None
    return render(request, "console/users.html", context)


@require_http_methods(["GET", "POST"])
@admins_only
@confirm.proved("Create the user")
def new(request: HttpRequest) -> HttpResponse:
    """A new user; the page after it shows the one-time password."""
    values: dict[str, Any] = {name: request.POST.get(name, "").strip() for name in FIELDS}
    values["is_superuser"] = request.POST.get("is_superuser") == "on"
    problems: dict[str, str] = {}
    if request.method == "POST":
        try:
            return _invited(request, lambda: user_create(user=person(request), **values))
        except ServiceError as error:
            problems = _by_field(error, "username")
    context = frame(request, "users") | {"values": values, "problems": problems}
    return render(request, "console/user_new.html", context, status=422 if problems else 200)


@require_GET
@admins_only
@never_cache
def detail(request: HttpRequest, username: str) -> HttpResponse:
    """One user, and once the one-time password that this browser has just asked for."""
    response = _page(request, _get(request, username), invited=shown_once.taken(request, INVITED))
    response.delete_cookie(INVITED, path=BASE)
    return response


@require_POST
@admins_only
@confirm.proved("Save {username}".format)
def edit(request: HttpRequest, username: str) -> HttpResponse:
    """Address, names, and whether the user is a platform admin."""
    shown = _get(request, username)
    changes: dict[str, Any] = {name: request.POST.get(name, "").strip() for name in FIELDS[1:]}
    changes["is_superuser"] = request.POST.get("is_superuser") == "on"

    def work() -> Outcome:
        user_change(user=person(request), username=username, changes=changes)
        return {}

    try:
        once(request, work)
    except ServiceError as error:
        problems = _by_field(error, "is_superuser")
        return _page(request, shown, values=changes, problems=problems)
    say(request, "Saved.")
    return HttpResponseRedirect(f"{BASE}/{username}")


@require_POST
@admins_only
@confirm.proved(_act_label)
def act(request: HttpRequest, username: str, verb: str) -> HttpResponse:
    """Reset the password or the second factor, disable or enable."""
    who = person(request)
    _get(request, username)
    if verb == "reset":
        return _invited(request, lambda: user_reset(user=who, username=username))
    acts: dict[str, tuple[Callable[..., object], str]] = {
        "disable": (user_disable, f"{username} is disabled: sessions ended, API tokens revoked."),
        "enable": (user_enable, f"{username} can sign in again."),
        "two-factor-reset": (
            user_two_factor_reset,
            f"{username} signs in without a second factor. Sessions ended.",
        ),
    }
    if verb not in acts:
        raise Http404
    service, done = acts[verb]
    return act_and_redirect(
        request, lambda: service(user=who, username=username), to=f"{BASE}/{username}", done=done
    )


@require_POST
@admins_only
@confirm.proved("Change the single sign-on of {username}".format)
def identity(request: HttpRequest, username: str) -> HttpResponse:
    """Link an identity at the provider of single sign-on to the user, or with the id of one as unlink none."""
    who, shown, to = person(request), _get(request, username), f"{BASE}/{username}"
    if settings.LUTHIER_OIDC_ISSUER is None:
        raise Http404
    if identity_id := request.POST.get("unlink"):
        unlinked = f"No identity signs in as {username} any more. Sessions ended."
        return act_and_redirect(
            request,
            lambda: identity_unlink(user=who, username=username, identity_id=identity_id),
            to=to,
            done=unlinked,
        )
    subject = request.POST.get("subject", "")

    def work() -> Outcome:
        identity_link(user=who, username=username, subject=subject)
        return {}

    try:
        once(request, work)
    except ServiceError as error:
        return _page(request, shown, problems=_by_field(error, "subject"), subject=subject)
    say(request, "Identity linked.")
    return HttpResponseRedirect(to)


@require_POST
@admins_only
@confirm.proved("End sessions of {username}".format)
def end_sessions(request: HttpRequest, username: str) -> HttpResponse:
    """End one session (the field `session`), or all of the user; with tokens=yes revoke the API tokens, too."""
    who, owner, back = person(request), _get(request, username), f"{BASE}/{username}"
    if session_id := request.POST.get("session"):
        return act_and_redirect(
            request,
            lambda: session_end(user=who, owner=owner, session_id=session_id),
            to=back,
            done="Session ended.",
        )
    tokens = request.POST.get("tokens") == "yes"
    own = row_key(request.session) if owner.pk == who.pk else None
    ended = Ended(
        **once(request, lambda: asdict(sessions_end(user=who, owner=owner, keep=own, tokens=tokens)))
    )
    say(request, sessions.said(ended, tokens=tokens))
    return HttpResponseRedirect(back)


def _invited(request: HttpRequest, service: Callable[[], Invited]) -> HttpResponse:
    """Run it once per form, and take the one-time password to the user's page."""

    def work() -> Outcome:
        made = service()
        expires = made.user.one_time_password.expires_at.isoformat()
        shown = {"secret": made.secret, "link": made.link, "expires_at": expires}
        return {"username": made.user.get_username(), "shown": shown_once.packed(shown)}

    done = once(request, work, sealed=("shown",))
    response = HttpResponseRedirect(f"{BASE}/{done['username']}")
    shown_once.give(request, response, INVITED, done["shown"], path=BASE)
    return response


def _page(request: HttpRequest, shown: User, *, invited: Any = None, **more: Any) -> HttpResponse:
    values = {name: getattr(shown, name) for name in (*FIELDS, "is_superuser")}
    sso = settings.LUTHIER_OIDC_ISSUER is not None
    linked = identities_of(user=person(request), username=shown.get_username()) if sso else []
    context = frame(request, "users") | {
        "of": shown,
        "state": state_of(shown),
        "sessions": sessions.rows(request, shown),
        "token_count": Token.objects.filter(user=shown).count(),
        "factors": two_factor.factors_of(shown),
        "values": values | more.get("values", {}),
        "problems": more.get("problems", {}),
        "sso_name": settings.LUTHIER_OIDC_NAME if sso else None,
        "subject": more.get("subject"),
        "linked": next(iter(linked), None),
        "invited": invited and invited | {"expires_at": parse_datetime(invited["expires_at"])},
    }
    return render(request, "console/user.html", context, status=422 if context["problems"] else 200)


def _get(request: HttpRequest, username: str) -> User:
    try:
        return user_get(user=request.user, username=username)
    except NotFound as error:
        raise Http404 from error


def _by_field(error: ServiceError, otherwise: str) -> dict[str, str]:
    wrong = error.details.get("errors") or [{"path": otherwise, "message": error.message}]
    return {each["path"]: sentence(each["message"]) for each in wrong}
