"""One-time passwords: by one, an invited user or one whose password was reset sets a password of their own.

It opens no session. Presented at the login, once and before it expires, it gives that browser PERIOD to set a password
(portal.pages.welcome). Only its SHA-256 is stored: with 140 random bits there is nothing to guess.
"""

from __future__ import annotations

import hashlib
import secrets
from datetime import timedelta
from urllib.parse import quote

from django.conf import settings
from django.contrib.auth.hashers import make_password
from django.db import transaction
from django.utils import timezone

from tenants import audit
from tenants.models import OneTimePassword, User

PREFIX = "once-"
ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"  # without letters that look like others
GROUPS, GROUP = 7, 4
VALID = timedelta(days=3)
PERIOD = timedelta(hours=1)
"""How long the browser that presented it may take to set a password."""


def issue(user: User) -> str:
    """A new one-time password of the user, who has no other password from now on; an earlier one stops working."""
    secret = PREFIX + random_code()
    User.objects.filter(pk=user.pk).update(password=make_password(None))
    OneTimePassword.objects.filter(user=user).delete()
    OneTimePassword.objects.create(user=user, digest=_digest(secret), expires_at=timezone.now() + VALID)
    return secret


def random_code(groups: int = GROUPS) -> str:
    """Random bits, 20 in each group, as one types them: in letters and digits."""
    return "-".join("".join(secrets.choice(ALPHABET) for _ in range(GROUP)) for _ in range(groups))


def link(username: str, secret: str, *, base: str = "") -> str:
    """The address to hand over. The secret is behind the #, which browsers send to no server and no log keeps.

    base: the installation's address, by default LUTHIER_PUBLIC_URL.
    """
    return f"{(base or settings.LUTHIER_PUBLIC_URL).rstrip('/')}/welcome#{quote(username, safe='')}/{secret}"


@transaction.atomic
def redeem(username: str, secret: str) -> OneTimePassword | None:
    """Use it up: its row with the user, or None if it is wrong, expired, replaced or used. Of simultaneous calls one
    succeeds. What follows asks for this row by its id: by then the user may have been given another one."""
    if not secret.startswith(PREFIX):
        return None
    now = timezone.now()
    rows = OneTimePassword.objects.filter(digest=_digest(secret), expires_at__gt=now, used_at=None)
    found = rows.filter(user__username=username).first()
    if found is None:
        return None
    # The user first, as a reset and a disabling have it: what they do to either row is known from here on.
    people = User.objects.select_for_update(no_key=True).filter(is_active=True, is_service_account=False)
    user = people.filter(pk=found.user_id).first()
    if user is None or not rows.filter(pk=found.pk).update(used_at=now):
        return None
    found.user, found.used_at = user, now
    return found


def discard(one_time_id: int) -> None:
    """Forget the one that was used, of a user who signs in without a password from now on."""
    OneTimePassword.objects.filter(pk=one_time_id).delete()


def to_set(one_time_id: int) -> OneTimePassword | None:
    """The used one-time password, while a password may still be set by it."""
    rows = OneTimePassword.objects.select_related("user").filter(pk=one_time_id, user__is_active=True)
    return rows.filter(used_at__gt=timezone.now() - PERIOD).first()


@transaction.atomic
def password_set(one_time_id: int, password: str) -> User | None:
    """Give the user this password; None if that is no longer possible. Of simultaneous calls one succeeds."""
    found = to_set(one_time_id)
    if found is None:
        return None
    # The user first, as a reset and a disabling have it: two that take the rows in turns wait for each other.
    user = User.objects.select_for_update(no_key=True).get(pk=found.user_id)
    if not OneTimePassword.objects.filter(pk=found.pk).delete()[0]:
        return None
    user.set_password(password)
    user.save(update_fields=["password"])
    user.sessions.all().delete()
    audit.record(actor=user, action="password.set", target=user.get_username())
    return user


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
