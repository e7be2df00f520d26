"""Two-factor authentication: codes of an authenticator app, and recovery codes for when all else is lost.

The codes are those of RFC 6238, made by `cryptography`. The app's secret is encrypted as other secrets are
(tenants.keyring), recovery codes are stored as hashes. Who may try how often is decided where people sign in.
Passkeys, the other second factor, are in tenants.passkeys.
docs/adr/0073-two-factor-authentication.md
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import time
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from django.conf import settings
from django.db import transaction
from django.db.models import Exists, OuterRef, Q
from django.utils import timezone

from tenants import audit, one_time, sealed_rows
from tenants.errors import FieldsInvalid, SecretsUnavailable, TwoFactorRequired, problem
from tenants.models import AuthenticatorApp, Passkey, RecoveryCode, User

if TYPE_CHECKING:  # imported where it is used: most processes never need it
    from cryptography.hazmat.primitives.twofactor.totp import TOTP

APP, PASSKEY, RECOVERY = "authenticator app", "passkey", "recovery code"
"""What a person has shown, for the audit log."""
ISSUER = "Luthier"
SECRET_BYTES = 20
DIGITS = 6
STEP_S = 30
SKEW_STEPS = 1
"""By how many steps the clock of the app may differ: the codes before and after count as well."""
RECOVERY_CODES = 10
CODE_GROUPS = 7
"""140 bits: the fast hash that is stored hides them for good."""
TO_CONFIRM = timedelta(minutes=30)
"""How long an app that was begun may take to show its first code."""


@dataclass(frozen=True)
class Begun:
    """An app that is being set up. secret: to type, in base32; uri: for a QR code."""

    secret: str
    uri: str


@dataclass(frozen=True)
class Factors:
    """What a user has. app_since: None without an app; codes_left: recovery codes that were not used yet."""

    app_since: datetime | None
    passkeys: list[Passkey]
    codes_left: int

    @property
    def on(self) -> bool:
        return self.app_since is not None or bool(self.passkeys)


def factors_of(user: User) -> Factors:
    app = _confirmed(user)
    passkeys = list(user.passkeys.order_by("created_at", "pk"))
    return Factors(
        app.confirmed_at if app else None, passkeys, user.recovery_codes.filter(used_at=None).count()
    )


def set_up() -> Q:
    """As is_on, in a query of users."""
    app = Exists(AuthenticatorApp.objects.filter(user=OuterRef("pk"), confirmed_at__isnull=False))
    return Q(app) | Q(Exists(Passkey.objects.filter(user=OuterRef("pk"))))


def is_on(user: User) -> bool:
    """Whether a sign-in of this user takes a second factor."""
    return User.objects.filter(set_up(), pk=user.pk).exists()


@transaction.atomic
def app_begin(user: User) -> int:
    """A new secret for an app, which counts once app_confirm has seen a code; its id. Raises SecretsUnavailable."""
    locked(user)
    drop_begun(user)
    app = AuthenticatorApp(user=user, created_at=timezone.now())
    sealed_rows.seal(app, base64.b32encode(os.urandom(SECRET_BYTES)).decode())
    app.save()
    return app.pk


def drop_begun(user: User) -> None:
    """An app that was begun before there was a second factor, and so without showing it, can no longer be confirmed."""
    user.authenticator_apps.filter(confirmed_at=None).delete()


def app_begun(user: User, app_id: int | None) -> Begun | None:
    """What the app has to know; None once it is confirmed, too old or replaced, or its key is missing."""
    app = _begun(user, app_id)
    if app is None:
        return None
    try:
        secret = sealed_rows.unseal(app)
    except SecretsUnavailable:
        return None
    return Begun(secret, _totp(secret).get_provisioning_uri(user.get_username(), ISSUER))


@transaction.atomic
def app_confirm(user: User, app_id: int | None, code: str, *, replaces: bool = False) -> list[str]:
    """Let the app count from now on; new recovery codes, returned here and nowhere else.

    replaces: instead of an earlier one, for a caller who has shown that one. Other sessions are the caller's to end.
    Raises FieldsInvalid (path: code) or SecretsUnavailable.
    """
    locked(user)
    app = _begun(user, app_id)
    if app is None or (is_on(user) and not replaces):
        raise FieldsInvalid(errors=[problem("code", "too_late", "comes too late: start again")])
    step = _step_of(app, code)
    if step is None:
        text = "is not the app's current code: check that the clock of your device is right"
        raise FieldsInvalid(errors=[problem("code", "wrong_code", text)])
    user.authenticator_apps.exclude(pk=app.pk).delete()
    AuthenticatorApp.objects.filter(pk=app.pk).update(confirmed_at=timezone.now(), last_step=step)
    audit.record(actor=user, action="two_factor.enable", target=user.get_username(), details={"by": APP})
    return new_codes(user)


@transaction.atomic
def app_remove(user: User) -> None:
    """Keep the passkeys as the only second factor. Raises TwoFactorRequired as turn_off_if_last does."""
    locked(user)
    if user.authenticator_apps.filter(confirmed_at__isnull=False).delete()[0]:
        audit.record(actor=user, action="two_factor.remove", target=user.get_username(), details={"of": APP})
        turn_off_if_last(user)


@transaction.atomic
def turn_off(user: User) -> None:
    """Sign in without a second factor again. Raises TwoFactorRequired where the installation requires one."""
    locked(user)
    if settings.LUTHIER_TWO_FACTOR_REQUIRED:
        raise TwoFactorRequired
    if forget(user):
        audit.record(actor=user, action="two_factor.disable", target=user.get_username())


def turn_off_if_last(user: User) -> None:
    """Remove the recovery codes with the last second factor, within the caller's transaction.

    Raises TwoFactorRequired where the installation requires one, which undoes what the caller has removed.
    """
    if not is_on(user):
        turn_off(user)


@transaction.atomic
def codes_renew(user: User) -> list[str]:
    """New recovery codes, returned here and nowhere else; earlier ones stop working. None without a second factor."""
    locked(user)
    if not is_on(user):
        return []
    audit.record(actor=user, action="two_factor.codes", target=user.get_username())
    return new_codes(user)


def codes_current(user: User, codes: list[str]) -> bool:
    """Whether these are the recovery codes that the user has now, used or not."""
    return user.recovery_codes.filter(digest__in=[_digest(code) for code in codes]).exists()


def check(user: User, code: str) -> str | None:
    """What the code is of, if it is right, which uses it up: APP or RECOVERY. Of simultaneous calls one succeeds.

    Raises SecretsUnavailable.
    """
    if is_app_code(code):
        app = _confirmed(user)
        step = _step_of(app, code) if app else None
        # The condition is the row's own, so that a second update waits for the first and then finds nothing.
        if (
            app
            and step
            and AuthenticatorApp.objects.filter(pk=app.pk, last_step__lt=step).update(last_step=step)
        ):
            return APP
        return None
    unused = RecoveryCode.objects.filter(user=user, digest=_digest(code), used_at=None)
    return RECOVERY if is_on(user) and unused.update(used_at=timezone.now()) else None


def is_app_code(code: str) -> bool:
    """Whether it looks like a code of an app, of which there are few enough to guess one; recovery codes are long."""
    return len(_plain(code)) <= DIGITS


def forget(user: User) -> bool:
    """Remove all that is set up, within the caller's transaction; whether there was something."""
    user.passkey_challenges.all().delete()
    of_user = (user.authenticator_apps, user.passkeys, user.recovery_codes)
    return bool(sum(rows.all().delete()[0] for rows in of_user))


def locked(user: User) -> None:
    """Changes to what a user has come one by one."""
    User.objects.select_for_update(no_key=True).get(pk=user.pk)


def new_codes(user: User) -> list[str]:
    """Recovery codes in place of earlier ones, within the caller's transaction."""
    codes = [one_time.random_code(CODE_GROUPS) for _ in range(RECOVERY_CODES)]
    user.recovery_codes.all().delete()
    RecoveryCode.objects.bulk_create(RecoveryCode(user=user, digest=_digest(code)) for code in codes)
    return codes


def _confirmed(user: User) -> AuthenticatorApp | None:
    return (
        AuthenticatorApp.objects.select_related("user").filter(user=user, confirmed_at__isnull=False).first()
    )


def _begun(user: User, app_id: int | None) -> AuthenticatorApp | None:
    rows = AuthenticatorApp.objects.select_related("user").filter(user=user, confirmed_at=None)
    return rows.filter(pk=app_id or 0, created_at__gt=timezone.now() - TO_CONFIRM).first()


def _step_of(app: AuthenticatorApp, code: str) -> int | None:
    """The step whose code this is, counted from 1970; None if it is that of none that counts now."""
    totp, given = _totp(sealed_rows.unseal(app)), _plain(code).encode()
    now = int(time.time()) // STEP_S
    steps = range(now - SKEW_STEPS, now + SKEW_STEPS + 1)
    fitting = [step for step in steps if hmac.compare_digest(totp.generate(step * STEP_S), given)]
    return max(fitting, default=None)


def _totp(secret: str) -> TOTP:
    from cryptography.hazmat.primitives.hashes import SHA1
    from cryptography.hazmat.primitives.twofactor.totp import TOTP

    return TOTP(base64.b32decode(secret), DIGITS, SHA1(), STEP_S)  # noqa: S303 # what apps understand; as an HMAC sound


def _digest(code: str) -> str:
    return hashlib.sha256(_plain(code).encode()).hexdigest()


def _plain(code: str) -> str:
    """As it was typed, without case and what only makes it readable."""
    return "".join(letter for letter in code.lower() if letter.isalnum())
