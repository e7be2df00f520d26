"""How the caller signs in: their password and second factor. Changes take the proof that their user is there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.conf import settings
from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.db import transaction
from rest_framework import serializers

from jobs.serialization import ReadSerializer, TimestampField
from portal import passwords, proof
from portal.api.fields import StrictCharField, StrictSerializer
from portal.api.operations import Call, operation
from portal.api.sessions import current
from tenants import passkeys, two_factor
from tenants.errors import FieldsInvalid, PasswordsOff, TwoFactorRequired, problem
from tenants.models import Passkey, User
from tenants.services.sessions import sessions_end
from tenants.sessions import prove

PER_MINUTE = 20


def _secret_field(help_text: str, **more: Any) -> StrictCharField:
    return StrictCharField(
        trim_whitespace=False, max_length=4096, write_only=True, help_text=help_text, **more
    )


def _code_field() -> StrictCharField:
    text = (
        "if you have a second factor, with a token or a session that has not shown it within ten minutes: "
        "a code of your app, or a recovery code"
    )
    return _secret_field(text, required=False, allow_blank=True, default="")


class ProofRequest(StrictSerializer):
    """What shows that the user is there. With a session that was just begun without a password it may be empty."""

    repeats_values = False

    password = _secret_field("your password", required=False, allow_blank=True, default="")
    code = _code_field()


class PasswordRequest(StrictSerializer):
    repeats_values = False

    current_password = _secret_field("your password until now")
    new_password = _secret_field("the new one")
    code = _code_field()


class AppConfirmRequest(StrictSerializer):
    repeats_values = False

    app = StrictCharField(max_length=20, help_text="of the response that began it")
    app_code = _secret_field("what the new app shows now")
    password = _secret_field("your password", required=False, allow_blank=True, default="")


class PasskeyRequest(StrictSerializer):
    name = StrictCharField(max_length=200)


class PasskeySerializer(ReadSerializer):
    id = serializers.IntegerField(source="pk")
    name = serializers.CharField()
    host = serializers.CharField(help_text="where it works")
    created_at = TimestampField()
    last_used_at = TimestampField(allow_null=True)
    etag = serializers.CharField()

    @staticmethod
    def get_etag(passkey: Passkey, context: object) -> str:
        return passkeys.version(passkey)


class TwoFactorSerializer(ReadSerializer):
    on = serializers.BooleanField(help_text="whether your sign-in takes a second factor")
    required = serializers.BooleanField(  # type: ignore[assignment]  # a field; the metaclass takes it off the class
        help_text="whether the installation requires one"
    )
    app_since = TimestampField(allow_null=True, help_text="null: no authenticator app")
    passkeys = PasskeySerializer(many=True)
    recovery_codes_left = serializers.IntegerField()


class BegunSerializer(ReadSerializer):
    app = serializers.CharField()
    secret = serializers.CharField(
        allow_null=True, help_text="to type, in base32; null in a repeated response"
    )
    uri = serializers.CharField(allow_null=True, help_text="for a QR code; null in a repeated response")


class CodesSerializer(ReadSerializer):
    recovery_codes = serializers.ListField(
        child=serializers.CharField(), allow_null=True, help_text="shown once; null in a repeated response"
    )


class PasswordChangedSerializer(ReadSerializer):
    sessions = serializers.IntegerField(help_text="that were ended")


PASSKEY_EXAMPLE = {
    "id": 3,
    "name": "laptop",
    "host": "luthier.example.org",
    "created_at": "2026-11-21T09:00:00.000Z",
    "last_used_at": None,
    "etag": '"k5d0a1c3f2b9e4786"',
}
STATE_EXAMPLE = {
    "on": True,
    "required": False,
    "app_since": "2026-11-21T09:00:00.000Z",
    "passkeys": [PASSKEY_EXAMPLE],
    "recovery_codes_left": 9,
}
CODES_EXAMPLE = {"recovery_codes": ["k3f9-2m7q-x4ta-9w1z-7ehc-0prd-5m8v"]}


def _to_own(call: Call) -> None:
    """Before the body is read: not with a limited token, and not of a service account."""
    proof.require_whole(call.user)


def _to_passkey(call: Call, passkey_id: int) -> Passkey:
    proof.require_whole(call.user)
    return passkeys.get(call.user, passkey_id)


def _shown(call: Call, field: str = "password", **path: object) -> bool:
    """Before anything is done: that the user is there; whether with all their factors."""
    return proof.confirm(
        call.request._request,
        call.user,
        password=call.data[field],
        code=call.data.get("code", ""),
        field=field,
    )


def _shown_to_remove(call: Call, **path: object) -> bool:
    """As _shown, unless no factor may be removed anyway: a recovery code that was shown is used up."""
    found = two_factor.factors_of(call.user)
    if settings.LUTHIER_TWO_FACTOR_REQUIRED and bool(found.app_since) + len(found.passkeys) == 1:
        raise TwoFactorRequired
    return _shown(call)


def _shown_to_turn_off(call: Call) -> bool:
    if settings.LUTHIER_TWO_FACTOR_REQUIRED:
        raise TwoFactorRequired
    return _shown(call)


def _shown_to_change(call: Call) -> bool:
    if not settings.LUTHIER_PASSWORD_SIGN_IN:
        raise PasswordsOff
    try:
        validate_password(call.data["new_password"], call.user)
    except ValidationError as error:
        text = " ".join(error.messages)
        raise FieldsInvalid(errors=[problem("new_password", "too_weak", text)]) from error
    if not passwords.asked_of(call.user):
        text = "is not set here: sign in by other means, or ask a platform admin"
        raise FieldsInvalid(errors=[problem("current_password", "no_password", text)])
    return _shown(call, "current_password")


def _shown_to_confirm(call: Call) -> None:
    """The password; the second factor was shown when the app was begun, or there was none, and there is none now."""
    proof.confirm_password(call.request._request, call.user, call.data["password"])


@operation(
    authorize=_to_own,
    proof=_shown_to_change,
    In=PasswordRequest,
    Out=PasswordChangedSerializer,
    per_minute=PER_MINUTE,
    request_example={"current_password": "…", "new_password": "…", "code": "123456"},
    response_example={"sessions": 2},
)
def password_change(call: Call) -> dict[str, Any]:
    """Change your password; your other sessions end, API tokens stay. 409 `passwords_off` where no password signs in.

    With a token that is limited to a tenant or a role: 403. Wrong passwords and codes have budgets: 429.
    """
    with transaction.atomic():
        proof.require_still(call.user, shown=call.prepared)
        ended = passwords.change(
            call.request._request, call.user, call.data["new_password"], field="current_password"
        )
    return {"sessions": ended}


@operation(authorize=_to_own, Out=TwoFactorSerializer, response_example=STATE_EXAMPLE, fails=(403,))
def two_factor_get(call: Call) -> dict[str, Any]:
    """Your second factors; not with a token that is limited to a tenant or a role, and not of a service account."""
    return _state(call.user)


@operation(
    authorize=_to_own,
    proof=_shown_to_turn_off,
    In=ProofRequest,
    Out=TwoFactorSerializer,
    per_minute=PER_MINUTE,
    request_example={"password": "…", "code": "123456"},
    response_example=STATE_EXAMPLE | {"on": False, "app_since": None, "passkeys": []},
)
def two_factor_remove(call: Call) -> dict[str, Any]:
    """Turn your two-factor authentication off; your other sessions end. 409 `two_factor_required` where the
    installation requires it."""
    return _removed(call, two_factor.turn_off)


@operation(
    authorize=_to_own,
    proof=_shown,
    In=ProofRequest,
    Out=BegunSerializer,
    status=201,
    secret=("secret", "uri"),
    per_minute=PER_MINUTE,
    request_example={"password": "…"},
    response_example={
        "app": "7",
        "secret": "JBSWY3DPEHPK3PXP",
        "uri": "otpauth://totp/Luthier:alice?secret=…",
    },
)
def app_begin(call: Call) -> dict[str, Any]:
    """Begin to set up an authenticator app, in place of an earlier one. It counts once you confirm it, within 30
    minutes."""
    with transaction.atomic():
        proof.require_still(call.user, shown=call.prepared)
        app = two_factor.app_begin(call.user)
    begun = two_factor.app_begun(call.user, app)
    assert begun is not None  # made just now
    return {"app": str(app), "secret": begun.secret, "uri": begun.uri}


@operation(
    authorize=_to_own,
    proof=_shown_to_confirm,
    In=AppConfirmRequest,
    Out=CodesSerializer,
    secret=("recovery_codes",),
    per_minute=PER_MINUTE,
    request_example={"app": "7", "app_code": "123456", "password": "…"},
    response_example=CODES_EXAMPLE,
)
def app_confirm(call: Call) -> dict[str, Any]:
    """Let the app count, by the code that it shows; the response has new recovery codes. Your other sessions end."""
    app = call.data["app"]
    try:
        with transaction.atomic():
            codes = two_factor.app_confirm(
                call.user, int(app) if app.isdecimal() else None, call.data["app_code"], replaces=True
            )
            call.user.sessions.exclude(pk=current(call) or "").delete()
    except FieldsInvalid as error:  # whose path is that of the page
        raise FieldsInvalid(
            errors=[{**each, "path": "app_code"} for each in error.details["errors"]]
        ) from error
    if call.user.token is None:
        prove(call.request._request, second=two_factor.APP)
    return {"recovery_codes": codes}


@operation(
    authorize=_to_own,
    proof=_shown_to_remove,
    In=ProofRequest,
    Out=TwoFactorSerializer,
    per_minute=PER_MINUTE,
    request_example={"password": "…", "code": "123456"},
    response_example=STATE_EXAMPLE | {"app_since": None},
)
def app_remove(call: Call) -> dict[str, Any]:
    """Remove your authenticator app; your other sessions end. With your last second factor, recovery codes go, too."""
    return _removed(call, two_factor.app_remove)


@operation(
    authorize=_to_own,
    proof=_shown,
    In=ProofRequest,
    Out=CodesSerializer,
    secret=("recovery_codes",),
    per_minute=PER_MINUTE,
    request_example={"password": "…", "code": "123456"},
    response_example=CODES_EXAMPLE,
)
def codes_renew(call: Call) -> dict[str, Any]:
    """New recovery codes in place of the earlier ones; none without a second factor."""
    with transaction.atomic():
        proof.require_still(call.user, shown=call.prepared)
        return {"recovery_codes": two_factor.codes_renew(call.user)}


@operation(
    authorize=_to_passkey,
    In=PasskeyRequest,
    Out=PasskeySerializer,
    request_example={"name": "laptop"},
    response_example=PASSKEY_EXAMPLE,
)
def passkey_change(call: Call, passkey_id: int) -> dict[str, Any]:
    """Rename one of your passkeys. Passkeys are added in the browser only."""
    passkeys.rename(call.user, passkey_id, call.data["name"], call.if_match)
    return PasskeySerializer.render(Passkey.objects.get(pk=passkey_id))


@operation(
    authorize=_to_passkey,
    proof=_shown_to_remove,
    In=ProofRequest,
    Out=TwoFactorSerializer,
    per_minute=PER_MINUTE,
    request_example={"password": "…", "code": "123456"},
    response_example=STATE_EXAMPLE | {"passkeys": []},
)
def passkey_remove(call: Call, passkey_id: int) -> dict[str, Any]:
    """Remove one of your passkeys; your other sessions end. With your last second factor, recovery codes go, too."""
    return _removed(call, lambda user: passkeys.remove(user, passkey_id))


def _removed(call: Call, act: Callable[[User], None]) -> dict[str, Any]:
    """As the page does it: who holds what is removed may have begun one of the other sessions with it."""
    with transaction.atomic():
        proof.require_still(call.user, shown=call.prepared)
        act(call.user)
        sessions_end(user=call.user, owner=call.user, keep=current(call))
    if call.user.token is None and not two_factor.is_on(call.user):
        prove(call.request._request, second="")
    return _state(call.user)


def _state(user: User) -> dict[str, Any]:
    found = two_factor.factors_of(user)
    return TwoFactorSerializer.render(
        {
            "on": found.on,
            "required": bool(settings.LUTHIER_TWO_FACTOR_REQUIRED),
            "app_since": found.app_since,
            "passkeys": found.passkeys,
            "recovery_codes_left": found.codes_left,
        }
    )
