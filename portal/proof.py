"""That the user is there, before what a page of theirs asks the password for is done by REST.

A session has shown all factors at its sign-in and gives the password again. A token has shown none: it gives the
password and, where the user has a second factor, a code of it. Passkeys cannot be shown by REST; recovery codes can.
"""

from __future__ import annotations

from django.http import HttpRequest

from portal import code_budget, passwords
from tenants import access, audit, two_factor
from tenants.errors import FieldsInvalid, NotAllowed, TooManyCodes, problem
from tenants.models import User

CODE_REQUIRED = "is required: of your authenticator app, or a recovery code"


def confirm(request: HttpRequest, user: User, *, password: str, code: str, field: str = "password") -> bool:
    """Raise unless the request shows that its user is there; whether that was with all their factors, or a session's.
    field: the path of the password in errors.

    Raises NotAllowed, FieldsInvalid, TooManyPasswords, TooManyCodes or SecretsUnavailable.
    """
    confirm_password(request, user, password, field=field)
    if user.token is None:
        return True
    if not two_factor.is_on(user):
        return False
    _check_code(user, code)  # after the password, so that only who knows it spends from the budget of codes
    return True


def require_still(user: User, *, shown: bool) -> None:
    """Within the transaction of the change: raise if the user has a second factor by now that was not shown."""
    two_factor.locked(user)
    if not shown and two_factor.is_on(user):
        raise FieldsInvalid(errors=[problem("code", "required", CODE_REQUIRED)])


def confirm_password(request: HttpRequest, user: User, password: str, *, field: str = "password") -> None:
    """As confirm, without the second factor."""
    require_whole(user)
    if user.token is None:
        passwords.confirm(request, user, password, field=field)
        return
    if not passwords.asked_of(user):
        text = "is not set here: do this on your profile in the portal"
        raise FieldsInvalid(errors=[problem(field, "sign_in_again", text)])
    passwords.check(user, password, field=field)


def require_whole(user: User) -> None:
    """Raise NotAllowed for a service account, or a token that is limited."""
    if user.is_service_account:
        raise NotAllowed("Service accounts cannot sign in, so they have nothing to sign in with.")
    if not access.has_whole_token(user):
        raise NotAllowed("This request's token is limited: it may neither see nor change how you sign in.")


def _check_code(user: User, code: str) -> None:
    if not code:
        raise FieldsInvalid(errors=[problem("code", "required", CODE_REQUIRED)])
    limited = two_factor.is_app_code(code)
    if limited and not code_budget.spend(user):
        raise TooManyCodes
    if not two_factor.check(user, code):
        audit.record(actor=user, action="code.failure", target=user.get_username())
        raise FieldsInvalid(errors=[problem("code", "wrong_code", "is not a code that counts now")])
    if limited:
        code_budget.give_back(user)
