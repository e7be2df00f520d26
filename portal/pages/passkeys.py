"""Passkeys on the page of two-factor authentication: added and removed with the password, and renamed.

A script fetches the challenge, and posts what the browser and the device made of it (static/src/ts/passkeys.ts).
"""

from __future__ import annotations

from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_POST

from portal import proof
from portal.pages import confirm
from portal.pages.form_once import Outcome, once, say
from portal.pages.form_responses import problem_of
from portal.pages.guard import person, signed_in
from portal.pages.site import CHALLENGE, given, refused, site_of
from portal.pages.two_factor import (
    BASE,
    all_shown,
    begun_too_long_ago,
    confirmed,
    note_begun,
    remove,
    show,
    turned_on,
)
from tenants import passkeys, two_factor
from tenants.errors import NotFound, ServiceError
from tenants.sessions import row_key

ADDED = "Passkey added."


@sensitive_post_parameters()
@require_POST
@signed_in
@never_cache
def begin(request: HttpRequest) -> HttpResponse:
    """The challenge for a new passkey, for who gave the password."""
    user = person(request)
    if proof.lacks_factor(request, user):
        return refused("This page was open for too long. Reload it, and confirm that it is you.")
    try:
        confirmed(request, user)()
        begun = passkeys.add_begin(user, site_of(request), replaces=request.session.get(CHALLENGE))
    except ServiceError as error:
        return refused(problem_of(error))
    note_begun(request, user)
    return given(request, begun)


@sensitive_post_parameters()
@require_POST
@signed_in
@never_cache
def add(request: HttpRequest) -> HttpResponse:
    """Let the new passkey count; if it is the first second factor, every other session of this person ends."""
    user, challenge, site = person(request), request.session.get(CHALLENGE), site_of(request)
    answer, name = request.POST.get("passkey", ""), request.POST.get("name", "")
    if begun_too_long_ago(request):
        return confirm.first(request, to=BASE)
    ran: list[bool] = []

    def work() -> Outcome:
        ran[:] = [True]
        codes = passkeys.add(user, challenge, site, answer, name=name)
        if codes:
            user.sessions.exclude(pk=row_key(request.session)).delete()
        return {"codes": "\n".join(codes)}

    try:
        codes = once(request, work, sealed=("codes",))["codes"].split()
    except ServiceError as error:
        return show(request, problems={"passkey": problem_of(error)})
    request.session.pop(CHALLENGE, None)
    if codes:
        return turned_on(request, codes, second=two_factor.PASSKEY, now=bool(ran), said=ADDED)
    say(request, ADDED)
    return HttpResponseRedirect(BASE)


@require_POST
@signed_in
def rename(request: HttpRequest, passkey_id: int) -> HttpResponse:
    """Give a passkey another name."""
    user = person(request)

    def work() -> Outcome:
        passkeys.rename(user, passkey_id, request.POST.get("name", ""))
        return {}

    try:
        once(request, work)
    except NotFound as error:
        raise Http404 from error
    except ServiceError as error:
        return show(request, problems={f"rename-{passkey_id}": problem_of(error)})
    say(request, "Passkey renamed.")
    return HttpResponseRedirect(BASE)


@sensitive_post_parameters()
@require_POST
@signed_in
@all_shown
def remove_one(request: HttpRequest, passkey_id: int) -> HttpResponse:
    """Remove a passkey; with the last second factor, two-factor authentication is off."""
    field = f"remove-{passkey_id}"
    return remove(
        request, lambda user: passkeys.remove(user, passkey_id), field=field, done="Passkey removed."
    )
