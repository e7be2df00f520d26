"""The password again: before a token is made or the password is changed, so that an open session alone is not enough.

Wrong ones have a budget per user (docs/adr/0054-budgets.md). Only a session of the user spends from it, so that it
cannot be used to lock the user out.
"""

from __future__ import annotations

from datetime import timedelta

from django.conf import settings
from django.http import HttpRequest
from django.utils import timezone

from portal import budgets
from tenants import audit
from tenants.errors import FieldsInvalid, TooManyPasswords, problem
from tenants.models import Session, User

WRONG_A_MINUTE = 5
FRESH = timedelta(minutes=10)
"""How long ago a user without a password may have signed in, by other means, to be taken for present."""


def confirm(request: HttpRequest, user: User, password: str) -> None:
    """Raise unless the user of this session gave their password; of one who has none, unless the session is fresh.

    Raises FieldsInvalid (path: password) or TooManyPasswords.
    """
    if asked_of(user):
        check(user, password)
        return
    key, since = request.session.session_key, timezone.now() - FRESH
    if not Session.objects.filter(pk=key, started_at__gt=since).exists():
        text = f"is not set here: sign in again, then do this within {FRESH.seconds // 60} minutes"
        raise FieldsInvalid(errors=[problem("password", "sign_in_again", text)])


def asked_of(user: User) -> bool:
    """Whether this user has a password that counts here."""
    return bool(settings.LUTHIER_PASSWORD_SIGN_IN) and user.has_usable_password()


def check(user: User, password: str) -> None:
    """Raise FieldsInvalid (path: password) for a wrong one, or TooManyPasswords, whatever this one is.

    Counted before it is checked, and given back if it was right: of many at once only the budget's are checked.
    """
    key = f"password:{user.pk}"
    if not budgets.within(key, WRONG_A_MINUTE):
        raise TooManyPasswords
    if not user.check_password(password):
        audit.record(actor=user, action="password.failure", target=user.get_username())
        raise FieldsInvalid(errors=[problem("password", "wrong_password", "is not your password")])
    budgets.give_back(key)
