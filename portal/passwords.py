"""The password again: before a token is made or the password is changed, so that an open session alone is not enough.

Wrong ones have budgets (docs/adr/0054-budgets.md). Each session of a user has its own, so that who has got hold of one
keeps the user's others from nothing, such as ending it; and so have a user's tokens together.
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
from tenants.services.sessions import public_id
from tenants.sessions import FRESH, is_fresh, row_key

WRONG_A_MINUTE = 5
WRONG_AN_HOUR, HOUR_S = 20, 3600
"""Of one session, or all tokens of a user: who has found one may try for days."""
WRONG_AN_HOUR_IN_ALL = 100
"""Of all sessions of a user: by single sign-on, someone may begin many."""


def confirm(request: HttpRequest, user: User, password: str, *, field: str = "password") -> None:
    """Raise unless the user of this session gave their password; of one who has none, unless their proof is fresh.

    Raises FieldsInvalid (path: field) or TooManyPasswords.
    """
    if asked_of(user):
        check(user, password, field=field, session=row_key(request.session))
        return
    if not is_fresh(request):
        within = f"then do this within {FRESH.seconds // 60} minutes"
        text = f"is not set here: confirm at /me/confirm that it is you, {within}"
        raise FieldsInvalid(errors=[problem(field, "sign_in_again", text)])


def asked_of(user: User) -> bool:
    """Whether this user has a password that counts here."""
    return bool(settings.LUTHIER_PASSWORD_SIGN_IN) and user.has_usable_password()


def check(user: User, password: str, *, session: str | None, field: str = "password") -> None:
    """Raise FieldsInvalid (path: field) for a wrong one, or TooManyPasswords, whatever this one is.

    session: the key of the session that asks; None: a token does. Counted before it is checked, and given back if it
    was right: of many at once only the budget's are checked.
    """
    key = f"password-by-token:{user.pk}" if session is None else f"password:{public_id(session)}"
    limits = [
        (key, WRONG_A_MINUTE, budgets.WINDOW_S),
        (f"{key}:hour", WRONG_AN_HOUR, HOUR_S),
        (f"password:{user.pk}:hour", WRONG_AN_HOUR_IN_ALL, HOUR_S),
    ][: 2 if session is None else 3]
    # What one refuses is not counted by the next: a session alone never uses up what all have.
    if not all(budgets.within(name, most, window_s=window_s) for name, most, window_s in limits):
        raise TooManyPasswords
    if not user.check_password(password):
        audit.record(actor=user, action="password.failure", target=user.get_username())
        raise FieldsInvalid(errors=[problem(field, "wrong_password", "is not your password")])
    for name, *_ in limits:
        budgets.give_back(name)


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
        keep = row_key(request.session)
    ended: int = user.sessions.exclude(pk=keep).delete()[0]
    audit.record(actor=user, action="password.change", target=user.get_username())
    return ended
