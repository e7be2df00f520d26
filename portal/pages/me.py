"""A user's own settings: theme, shortcuts, password; and their sessions."""

from __future__ import annotations

from dataclasses import asdict

from django.conf import settings
from django.contrib import messages
from django.contrib.auth.forms import PasswordChangeForm
from django.core.exceptions import ValidationError
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect, QueryDict
from django.shortcuts import render
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_GET, require_POST

from jobs.selectors.jobs import jobs_shared_with
from portal import passwords, proof
from portal.pages import confirm, sessions, theme
from portal.pages.form_once import Outcome, once, say
from portal.pages.form_responses import act_and_redirect
from portal.pages.guard import person, signed_in
from portal.pages.shell import frame, last_tenant
from tenants import access, notices, two_factor
from tenants.errors import FieldsInvalid, TooManyPasswords
from tenants.models import Token, User
from tenants.services.members import member_accept
from tenants.services.sessions import Ended, session_end, sessions_end
from tenants.services.users import preference_set
from tenants.sessions import row_key

DAY_S = 24 * 3600
SHARED_SHOWN = 50
"""Jobs shared by other tenants that are listed; the older ones are counted."""
EVERYWHERE = (
    "All other sessions end and all of your API tokens are revoked, immediately. "
    "Programs that use them lose access. This session stays."
)


class ChangePassword(PasswordChangeForm):
    """Django's; wrong old passwords have a budget, of the session with the given key."""

    def __init__(self, user: User, data: QueryDict, *, session: str | None) -> None:
        super().__init__(user, data)
        self.session = session

    def clean_old_password(self) -> str:
        given: str = self.cleaned_data["old_password"]
        try:
            passwords.check(self.user, given, session=self.session)
        except TooManyPasswords as error:
            raise ValidationError(error.message, code="too_many") from error
        except FieldsInvalid as error:
            raise ValidationError(
                "Your current password is another one.", code="password_incorrect"
            ) from error
        return given


@require_GET
@signed_in
def page(request: HttpRequest) -> HttpResponse:
    return _page(request, PasswordChangeForm(person(request)))


@require_POST
@signed_in
def appearance(request: HttpRequest) -> HttpResponse:
    """Theme (a cookie, so that the first paint has it) and single-key shortcuts (the account's)."""
    user = person(request)
    wanted = request.POST.get("theme", "")
    answer = HttpResponseRedirect("/me")
    if wanted not in theme.THEMES:
        messages.error(request, "Choose system, light or dark.")
        return answer
    theme.choose(request, answer, wanted)
    preference_set(user, "shortcuts", request.POST.get("shortcuts") == "on")
    messages.success(request, "Saved.")
    return answer


@sensitive_post_parameters()
@require_POST
@signed_in
def password(request: HttpRequest) -> HttpResponse:
    """Change it; every other session of this person ends."""
    if not settings.LUTHIER_PASSWORD_SIGN_IN:
        raise Http404
    if proof.lacks_factor(request, person(request)):
        return confirm.first(request, to="/me")
    form = ChangePassword(person(request), request.POST, session=row_key(request.session))
    if not form.is_valid():
        return _page(request, form, status=422)
    try:
        passwords.change(request, person(request), form.cleaned_data["new_password1"])
    except FieldsInvalid:
        form.add_error("old_password", "Your password was changed a moment ago.")
        return _page(request, form, status=422)
    messages.success(request, "Password changed. All other sessions were signed out.")
    return HttpResponseRedirect("/me")


@require_POST
@signed_in
def accept(request: HttpRequest, slug: str) -> HttpResponse:
    """Accept a membership, so that the other members see one's e-mail address."""
    user = person(request)
    row = access.memberships(user).select_related("tenant").filter(tenant__slug=slug).first()
    if row is None:
        raise Http404
    tenant = row.tenant
    return act_and_redirect(
        request,
        lambda: member_accept(user=user, tenant=tenant),
        to="/me",
        done=f"Accepted. Members of {tenant.name} now see your e-mail address.",
    )


@require_POST
@signed_in
@confirm.proved("End the session")
def end_session(request: HttpRequest, session_id: str) -> HttpResponse:
    """End one session of this user; ending the current one is a log-out."""
    user = person(request)
    return act_and_redirect(
        request,
        lambda: session_end(user=user, owner=user, session_id=session_id),
        to="/me",
        done="Session ended.",
    )


@require_POST
@signed_in
@confirm.proved("End all other sessions")
def sign_out_others(request: HttpRequest) -> HttpResponse:
    """End every session of this user but this one; with tokens=yes revoke their API tokens, too."""
    user, tokens = person(request), request.POST.get("tokens") == "yes"

    def work() -> Outcome:
        return asdict(sessions_end(user=user, owner=user, keep=row_key(request.session), tokens=tokens))

    ended = Ended(**once(request, work))
    say(request, sessions.said(ended, others=True, tokens=tokens))
    return HttpResponseRedirect("/me")


def _page(request: HttpRequest, form: PasswordChangeForm, *, status: int = 200) -> HttpResponse:
    user = person(request)
    rows = access.memberships(user).select_related("tenant").order_by("tenant__name")
    shared = jobs_shared_with(user)
    context = frame(request, last_tenant(request), "me") | {
        "form": form,
        "passwords": settings.LUTHIER_PASSWORD_SIGN_IN,
        "lacks_factor": passwords.asked_of(user) and proof.lacks_factor(request, user),
        "password_min_chars": settings.PASSWORD_MIN_CHARS,
        "sessions": sessions.rows(request, user),
        "everywhere_text": EVERYWHERE,
        "token_count": Token.objects.filter(user=user).count(),
        "session_days": settings.SESSION_COOKIE_AGE // DAY_S,
        "idle_days": settings.LUTHIER_SESSION_IDLE_DAYS,
        "rows": rows,
        "shared": shared[:SHARED_SHOWN],
        "shared_more": max(0, shared.count() - SHARED_SHOWN),
        "activity": [{"notice": each, "sentence": notices.sentence(each)} for each in notices.recent(user)],
        "activity_days": notices.KEPT_FOR.days,
        "sends_mail": settings.LUTHIER_SENDS_MAIL,
        "factors": two_factor.factors_of(user),
        "shortcuts": user.preferences.get("shortcuts", True),
        "themes": (("", "System"), ("light", "Light"), ("dark", "Dark")),
    }
    return render(request, "me/page.html", context, status=status)
