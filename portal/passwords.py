"""The password again: before a token is made or the password is changed, so that an open session alone is not enough.

Wrong ones have a budget per user (docs/adr/0054-budgets.md). Only sessions of the user spend from it, and tokens from
another, so that neither can be used to lock the user out.
"""

from __future__ import annotations

from django.conf import settings
from django.contrib.auth import update_session_auth_hash
from django.db import transaction
from django.http import HttpRequest

from portal import budgets
from tenants import audit, two_factor
from tenants.errors import FieldsInvalid, TooManyPasswords, problem
from tenants.models import User
from tenants.sessions import FRESH, is_fresh

WRONG_A_MINUTE = 5
WRONG_AN_HOUR, HOUR_S = 20, 3600
"""With a token, which anyone may have found: at the sign-in it is the address that is slowed down."""


def confirm(request: HttpRequest, user: User, password: str, *, field: str = "password") -> None:
    """Raise unless the user of this session gave their password; of one who has none, unless their proof is fresh.

    Raises FieldsInvalid (path: field) or TooManyPasswords.
    """
    if asked_of(user):
        check(user, password, field=field)
        return
    if not is_fresh(request):
        within = f"then do this within {FRESH.seconds // 60} minutes"
        text = f"is not set here: confirm at /me/confirm that it is you, {within}"
        raise FieldsInvalid(errors=[problem(field, "sign_in_again", text)])


def asked_of(user: User) -> bool:
    """Whether this user has a password that counts here."""
    return bool(settings.LUTHIER_PASSWORD_SIGN_IN) and user.has_usable_password()


def check(user: User, password: str, *, field: str = "password") -> None:
    """Raise FieldsInvalid (path: field) for a wrong one, or TooManyPasswords, whatever this one is.

    Counted before it is checked, and given back if it was right: of many at once only the budget's are checked. Tokens
    of a user spend from a budget of their own, so that who has found one cannot keep the user's sessions from it.
    """
    key = f"password:{user.pk}" if user.token is None else f"password-by-token:{user.pk}"
    hour = f"{key}:hour"
    if not budgets.within(key, WRONG_A_MINUTE) or (
        user.token is not None and not budgets.within(hour, WRONG_AN_HOUR, window_s=HOUR_S)
    ):
        raise TooManyPasswords
    if not user.check_password(password):
        audit.record(actor=user, action="password.failure", target=user.get_username())
        raise FieldsInvalid(errors=[problem(field, "wrong_password", "is not your password")])
    budgets.give_back(key)
    if user.token is not None:
        budgets.give_back(hour)


@transaction.atomic
def change(request: HttpRequest, user: User, password: str, *, field: str = "password") -> int:
    """Set it, for who has shown the present one; how many other sessions ended, which are all.

    Raises FieldsInvalid (path: field) if another request has changed it since it was shown: of a user who puts out who
    knows the earlier one, theirs counts.
    """
    two_factor.locked(user)
    row = User.objects.get(
        pk=user.pk
    )  # not the caller's, which has what was shown, also if all of this is repeated
    if row.password != user.password:
        raise FieldsInvalid(errors=[problem(field, "wrong_password", "was changed a moment ago")])
    row.set_password(password)
    row.save(update_fields=["password"])
    keep = ""
    if user.token is None:
        update_session_auth_hash(request, row)  # gives this session a new key
        keep = request.session.session_key or ""
    ended: int = user.sessions.exclude(pk=keep).delete()[0]
    audit.record(actor=user, action="password.change", target=user.get_username())
    return ended
