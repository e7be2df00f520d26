"""That the user is there, before how someone signs in is changed or sessions are ended.

One rule: a session whose user showed all of their factors within ten minutes is fresh. One that is not asks for them on
a page (portal.pages.confirm), and by REST is refused. What takes the password each time takes the second factor, too,
in a session that is not fresh, and from a token, which has shown none. Passkeys cannot be shown by REST; recovery codes
can. docs/adr/0115-a-fresh-proof.md
"""

from __future__ import annotations

from django.http import HttpRequest

from portal import code_budget, passwords
from tenants import access, audit, two_factor
from tenants.errors import FieldsInvalid, NotAllowed, ProofRequired, TooManyCodes, problem
from tenants.models import User
from tenants.sessions import is_fresh

CODE_REQUIRED = "is required: of your authenticator app, or a recovery code"


def confirm(request: HttpRequest, user: User, *, password: str, code: str, field: str = "password") -> bool:
    """Raise unless the request shows that its user is there; whether that was with all their factors.
    field: the path of the password in errors.

    Raises NotAllowed, FieldsInvalid, TooManyPasswords, TooManyCodes or SecretsUnavailable.
    """
    confirm_password(request, user, password, field=field)
    if user.token is None and is_fresh(request):
        return True
    if not two_factor.is_on(user):
        return False
    check_code(user, code)  # after the password, so that only who knows it spends from the budget of codes
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
    passwords.check(user, password, field=field, session=None)


def require_whole(user: User) -> None:
    """Raise NotAllowed for a service account, or a token that is limited."""
    if user.is_service_account:
        raise NotAllowed("Service accounts cannot sign in, so they have nothing to sign in with.")
    if not access.has_whole_token(user):
        raise NotAllowed("This request's token is limited: it may neither see nor change how you sign in.")


def require_fresh(request: HttpRequest, user: User) -> None:
    """Raise ProofRequired if a session that is not fresh asks. A token is no session: each request shows it."""
    if user.token is None and not is_fresh(request):
        raise ProofRequired


def lacks_factor(request: HttpRequest, user: User) -> bool:
    """Whether a form of this session that takes the password does not show all factors of the user by it."""
    return not is_fresh(request) and (two_factor.is_on(user) or not passwords.asked_of(user))


def check_code(user: User, code: str) -> str:
    """What the code is of. Raises FieldsInvalid (path: code), TooManyCodes or SecretsUnavailable."""
    if not code:
        raise FieldsInvalid(errors=[problem("code", "required", CODE_REQUIRED)])
    limited = two_factor.is_app_code(code)
    if limited and not code_budget.spend(user):
        raise TooManyCodes
    shown = two_factor.check(user, code)
    if shown is None:
        audit.record(actor=user, action="code.failure", target=user.get_username())
        raise FieldsInvalid(errors=[problem("code", "wrong_code", "is not a code that counts now")])
    if limited:
        code_budget.give_back(user)
    return shown
