"""The installation's users: created, invited, reset, disabled and enabled by platform admins, all in the audit log.

Who is created or reset gets a one-time password (tenants.one_time), which is returned here and nowhere else. Service
accounts belong to tenants (tenants.services.accounts) and are not found here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from allauth.socialaccount.models import SocialAccount
from django.conf import settings
from django.contrib.auth.validators import UnicodeUsernameValidator
from django.core.exceptions import ValidationError
from django.core.validators import validate_email
from django.db import transaction
from django.db.models import Prefetch, Q, QuerySet
from django.utils import timezone

from tenants import access, audit, checks, one_time, two_factor
from tenants.errors import LastAdmin, NameTaken, NotFound, SingleSignOnOff, VersionChanged, problem
from tenants.models import NO_PASSWORD, Membership, OneTimePassword, Token, User
from tenants.signals import rights_lost

LENGTHS = {"username": 150, "email": 254, "first_name": 150, "last_name": 150}
RULES: Mapping[str, tuple[Callable[[str], None], str]] = {
    "username": (UnicodeUsernameValidator(), "may contain letters, digits and @ . + - _ only"),
    "email": (validate_email, "is not an e-mail address"),
}
RESET_NOTED = "two_factor_reset_at"
"""Key among a user's preferences: when their second factor was removed by an admin, until they have read it."""
EDITABLE = ("email", "first_name", "last_name", "is_superuser")


@dataclass(frozen=True)
class Invited:
    """A user with the one-time password to hand over, and the link that carries it."""

    user: User
    secret: str

    @property
    def link(self) -> str:
        return one_time.link(self.user.get_username(), self.secret)


def users(*, user: access.Person, q: str = "") -> QuerySet[User]:
    """All people, by name, with memberships, one-time passwords and has_two_factor: whether a second factor is set up.

    q: part of a name or address, or a tenant's slug. Raises AdminOnly.
    """
    access.require_admin(user)
    rows = User.objects.filter(is_service_account=False).order_by("username")
    rows = rows.annotate(has_two_factor=two_factor.set_up())
    if q:
        rows = rows.filter(
            Q(username__icontains=q) | Q(email__icontains=q) | Q(memberships__tenant__slug=q)
        ).distinct()
    memberships = Membership.objects.select_related("tenant").order_by("tenant__slug")
    return rows.select_related("one_time_password").prefetch_related(
        Prefetch("memberships", queryset=memberships)
    )


def user_get(*, user: access.Person, username: str) -> User:
    """Raises AdminOnly or NotFound."""
    found = users(user=user).filter(username=username).first()
    if found is None:
        raise NotFound
    return found


def state_of(user: User) -> str:
    """active; disabled; invited: has not come in yet; expired: nor can, for want of a new invitation."""
    if not user.is_active:
        return "disabled"
    if user.has_usable_password():
        return "active"
    given: OneTimePassword | None = getattr(user, "one_time_password", None)
    if given is None or (user.last_login is not None and links().filter(user=user).exists()):
        return "active"  # signs in by other means
    return "invited" if given.used_at is None and given.expires_at > timezone.now() else "expired"


def version(user: User) -> str:
    """What changes with an edit, for If-Match."""
    values = [user.pk, user.is_active, *(getattr(user, name) for name in EDITABLE)]
    return f'"{hashlib.sha256(repr(values).encode()).hexdigest()[:16]}"'


@transaction.atomic
def user_create(
    *,
    user: access.Person,
    username: str,
    email: str = "",
    first_name: str = "",
    last_name: str = "",
    is_superuser: bool = False,
) -> Invited:
    """A new user, who sets a password by the one-time password. Raises AdminOnly, FieldsInvalid or NameTaken."""
    access.require_admin(user)
    values = {"username": username, "email": email, "first_name": first_name, "last_name": last_name}
    _check(values)
    if User.objects.filter(username__iexact=username).exists():
        raise NameTaken(
            f"There is already a user {username}: choose another name.", path="username", got=username
        )
    made = User(**values, is_superuser=is_superuser)
    made.set_unusable_password()
    made.save()
    secret = one_time.issue(made)
    audit.record(
        actor=user, action="user.create", target=username, details={"is_platform_admin": is_superuser}
    )
    return Invited(user_get(user=user, username=username), secret)


@transaction.atomic
def user_change(
    *,
    user: access.Person,
    username: str,
    changes: Mapping[str, Any],
    if_match: frozenset[str] | None = None,
) -> User:
    """Change e-mail address, names, or whether the user is a platform admin.

    Raises AdminOnly, NotFound, FieldsInvalid, VersionChanged or LastAdmin.
    """
    changed = locked_user(user, username)
    if if_match is not None and version(changed) not in if_match:
        raise VersionChanged(etag=version(changed))
    _check({name: value for name, value in changes.items() if name in LENGTHS})
    if changes.get("is_superuser") is False:
        keep_an_admin(changed)
    before = {name: getattr(changed, name) for name in changes}
    different = {name: value for name, value in changes.items() if before[name] != value}
    if different:
        User.objects.filter(pk=changed.pk).update(**different)
        shown = {"is_superuser": "is_platform_admin"}
        details = {
            shown.get(name, name): {"from": before[name], "to": value} for name, value in different.items()
        }
        audit.record(actor=user, action="user.change", target=username, details=details)
        if different.get("is_superuser") is False:
            _send_rights_lost(changed, f"{username} is no platform admin any more")
    return user_get(user=user, username=username)


@transaction.atomic
def user_reset(*, user: access.Person, username: str) -> Invited:
    """Take the password away and give a one-time password instead; all sessions end, API tokens stay.

    Raises AdminOnly or NotFound.
    """
    changed = locked_user(user, username)
    secret = one_time.issue(changed)
    ended = changed.sessions.all().delete()[0]
    audit.record(actor=user, action="user.reset", target=username, details={"sessions": ended})
    return Invited(user_get(user=user, username=username), secret)


@transaction.atomic
def user_two_factor_reset(*, username: str, user: access.Person | None, by: str = "") -> User:
    """Remove a user's second factor, which they have lost; sessions end. The next sign-in says so to the user.

    user: None for a caller who has the database anyway, named by `by`. Raises AdminOnly or NotFound.
    """
    if user is None:
        changed = User.objects.select_for_update(no_key=True).filter(username=username).first()
    else:
        changed = locked_user(user, username)
    if changed is None or changed.is_service_account:
        raise NotFound(f"There is no user {username}.")
    if two_factor.forget(changed):
        _note_reset(changed)
        details = {"sessions": changed.sessions.all().delete()[0]} | ({"by": by} if by else {})
        audit.record(actor=user, action="two_factor.reset", target=username, details=details)
    return changed


@transaction.atomic
def user_disable(*, user: access.Person, username: str) -> User:
    """Keep a user out: sessions end, API tokens are revoked, what they shared is shared no more, jobs stay.

    Raises AdminOnly, NotFound or LastAdmin."""
    changed = locked_user(user, username)
    if changed.is_active:
        keep_an_admin(changed)
        User.objects.filter(pk=changed.pk).update(is_active=False)
        OneTimePassword.objects.filter(user=changed).delete()
        details = {
            "sessions": changed.sessions.all().delete()[0],
            "tokens": Token.objects.filter(user=changed).delete()[0],
        }
        audit.record(actor=user, action="user.disable", target=username, details=details)
        _send_rights_lost(changed, f"{username} was disabled")
    return user_get(user=user, username=username)


@transaction.atomic
def user_enable(*, user: access.Person, username: str) -> User:
    """Let a disabled user in again, with their password; they make new tokens. Raises AdminOnly or NotFound."""
    changed = locked_user(user, username)
    if not changed.is_active:
        User.objects.filter(pk=changed.pk).update(is_active=True)
        audit.record(actor=user, action="user.enable", target=username)
    return user_get(user=user, username=username)


@transaction.atomic
def admin_of_the_shell(*, username: str, email: str = "", reset: bool = False) -> Invited:
    """For `manage.py admin`, whose caller has the database anyway: a new platform admin, or with reset a known user.

    A user who is reset becomes an active platform admin; their sessions end, and their second factor is removed. Raises
    FieldsInvalid or NameTaken, and NotFound if there is no user to reset.
    """
    found = User.objects.select_for_update(no_key=True).filter(username=username).first()
    if reset:
        if found is None or found.is_service_account:
            raise NotFound(f"There is no user {username}.")
        User.objects.filter(pk=found.pk).update(is_active=True, is_superuser=True)
        found.sessions.all().delete()
        if two_factor.forget(found):
            audit.record(
                actor=None, action="two_factor.reset", target=username, details={"by": "manage.py admin"}
            )
    else:
        _check({"username": username, "email": email})
        if User.objects.filter(username__iexact=username).exists():
            raise NameTaken(f"There is already a user {username}.", path="username", got=username)
        found = User(username=username, email=email, is_superuser=True)
        found.set_unusable_password()
        found.save()
    secret = one_time.issue(found)
    action = "user.reset" if reset else "user.create"
    details = {"is_platform_admin": True, "by": "manage.py admin"}
    audit.record(actor=None, action=action, target=username, details=details)
    return Invited(found, secret)


def _send_rights_lost(changed: User, because: str) -> None:
    rights_lost.send(None, user=User.objects.get(pk=changed.pk), because=because)


def locked_user(user: access.Person, username: str) -> User:
    """The user, while the rows of all platform admins are held: two of them cannot demote each other at once."""
    access.require_admin(user)
    rows = User.objects.select_for_update(no_key=True).filter(is_service_account=False)
    held = list(rows.filter(Q(username=username) | Q(is_superuser=True)).order_by("pk"))
    found = next((each for each in held if each.get_username() == username), None)
    if found is None:
        raise NotFound
    return found


def require_provider() -> None:
    """Raise SingleSignOnOff unless there is a provider, whose identities a link or a mapping could mean."""
    if settings.LUTHIER_OIDC_ISSUER is None:
        raise SingleSignOnOff


def links() -> QuerySet[SocialAccount]:
    """The identities that are linked at the present provider: only these can sign in."""
    return SocialAccount.objects.filter(extra_data__issuer=str(settings.LUTHIER_OIDC_ISSUER))


def used_links() -> QuerySet[SocialAccount]:
    """Those of them by which their user has signed in; last_login says nothing, as a password sets it as well."""
    return links().filter(extra_data__signed_in_at__isnull=False)


def keep_an_admin(leaves: User) -> None:
    """Another one has to be there with a password that signs in, or with an identity that has signed in.

    Who was only invited or linked does not count: they may never come. Raises LastAdmin.
    """
    if not leaves.is_platform_admin:
        return
    able = (
        _signs_in_by_provider() | ~NO_PASSWORD
        if settings.LUTHIER_PASSWORD_SIGN_IN
        else _signs_in_by_provider()
    )
    if not _admins().filter(able).exclude(pk=leaves.pk).exists():
        raise LastAdmin


def admins_locked_out() -> bool:
    """Whether there are platform admins, and none could sign in without a password, nor by a one-time password."""
    invited = Q(one_time_password__used_at=None, one_time_password__expires_at__gt=timezone.now())
    return _admins().exists() and not _admins().filter(_signs_in_by_provider() | invited).exists()


def _admins() -> QuerySet[User]:
    return User.objects.filter(is_active=True, is_superuser=True)


def _signs_in_by_provider() -> Q:
    return Q(pk__in=used_links().values("user"))


def preference_set(user: User, name: str, value: Any) -> None:
    """Change one of the caller's own preferences, and no other that is changed at the same time."""
    with transaction.atomic():
        row = User.objects.select_for_update(no_key=True).get(pk=user.pk)
        user.preferences = {**row.preferences, name: value}
        User.objects.filter(pk=user.pk).update(preferences=user.preferences)


def _note_reset(user: User) -> None:
    """For the next sign-in, which shows it to the user."""
    User.objects.filter(pk=user.pk).update(
        preferences={**user.preferences, RESET_NOTED: timezone.now().isoformat()}
    )


def _check(values: Mapping[str, str]) -> None:
    checks.refuse(*(fault(name, value) for name, value in values.items()))


def fault(name: str, value: str) -> dict[str, Any] | None:
    """What is wrong with one field of a user; only the username may not be empty."""
    if not value and name != "username":
        return None
    if wrong := checks.text(name, value, LENGTHS[name]):
        return wrong
    if name in RULES:
        rule, text = RULES[name]
        try:
            rule(value)
        except ValidationError:
            return problem(name, "not_allowed", text, value)
    return None
