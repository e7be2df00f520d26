"""Passkeys as a second factor: added, and signed in with after the password. They work where they were added.

What browsers and devices send is checked by `fido2`; this module keeps the challenges, each for one answer, and the
public keys with their use counts, by which a copied passkey is found. docs/adr/0080-passkeys.md
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from django.db import IntegrityError, transaction
from django.db.models import Q
from django.utils import timezone
from django.utils.crypto import salted_hmac

from tenants import audit, two_factor
from tenants.errors import (
    FieldsInvalid,
    NotAllowed,
    NotFound,
    PasskeyCopied,
    PasskeyRefused,
    PasskeysUnavailable,
    PasskeyTooLate,
    VersionChanged,
    problem,
)
from tenants.models import Passkey, PasskeyChallenge, User

if TYPE_CHECKING:  # imported where it is used: most processes never need it
    from fido2.server import Fido2Server
    from fido2.webauthn import AttestedCredentialData, PublicKeyCredentialDescriptor

ISSUER = two_factor.ISSUER
MOST = 20
"""Passkeys that one user may have."""
TO_ANSWER = timedelta(minutes=5)
"""How long a challenge may be answered."""
CHALLENGE_BYTES = 32
ANSWER_MAX_CHARS = 16 * 1024
VERIFICATION = "preferred"
"""Of the device's PIN or fingerprint: the password was shown already, so a device without either is enough."""
Parsed = TypeVar("Parsed")


@dataclass(frozen=True)
class Site:
    """The address at which a browser reaches the platform. origin: scheme, host and port, as browsers write it."""

    origin: str

    @property
    def host(self) -> str:
        return urlsplit(self.origin).hostname or ""

    @property
    def why_not(self) -> str:
        """Why browsers have no passkeys here, and what helps; "" where they have."""
        parts = urlsplit(self.origin)
        port = f":{parts.port}" if parts.port else ""
        if address := _address(self.host):
            at = f"http://localhost{port}" if address.is_loopback else "the platform's name over https"
            return f"Passkeys don't work at an IP address. Open {at} instead."
        if parts.scheme != "https" and self.host != "localhost" and not self.host.endswith(".localhost"):
            return "Passkeys need an https address, and this page came over http. Ask an operator for one."
        return ""


@dataclass(frozen=True)
class Begun:
    """A challenge. challenge_id: for the session that asked; options: for the browser, as WebAuthn's JSON."""

    challenge_id: int
    options: dict[str, Any]


@transaction.atomic
def add_begin(user: User, site: Site, *, replaces: int | None = None) -> Begun:
    """What the browser needs to make a passkey. replaces: the challenge that its session had before.

    Raises PasskeysUnavailable, NotAllowed or FieldsInvalid.
    """
    _check_site(site)
    two_factor.locked(user)
    _check_room(user)
    from fido2.webauthn import (
        PublicKeyCredentialUserEntity,
        ResidentKeyRequirement,
        UserVerificationRequirement,
    )

    challenge = _challenge(user, replaces, adds=True)
    name = user.get_username()
    options, _ = _server(site).register_begin(
        PublicKeyCredentialUserEntity(id=_handle(user), name=name, display_name=name),
        [_descriptor(passkey) for passkey in _of(user, site)],
        resident_key_requirement=ResidentKeyRequirement.DISCOURAGED,
        user_verification=UserVerificationRequirement(VERIFICATION),
        challenge=_bytes(challenge.text),
    )
    return Begun(challenge.pk, dict(options))


@transaction.atomic
def add(
    user: User, challenge_id: int | None, site: Site, answer: str, *, name: str, first: bool = False
) -> list[str]:
    """Let the passkey that the browser made count from now on; recovery codes if it is the first second factor.

    They are returned here and nowhere else. first: refuse if there is another factor, for a caller who has shown none.
    Other sessions are the caller's to end. Raises FieldsInvalid, NotAllowed or PasskeyRefused.
    """
    two_factor.locked(user)
    _check_room(user)
    name = _name(name) or _free_name(user)
    was_on = two_factor.is_on(user)
    challenge = _taken(user, challenge_id, adds=True)
    if challenge is None or (first and was_on):
        raise PasskeyTooLate
    made, transports = _checked(lambda: _registered(site, challenge, answer))
    credential, sign_count = made
    try:
        with transaction.atomic():
            Passkey.objects.create(
                user=user,
                name=name,
                host=site.host,
                credential_id=credential.credential_id,
                credential=bytes(credential),
                transports=transports,
                sign_count=sign_count,
                created_at=timezone.now(),
            )
    except IntegrityError as error:
        raise PasskeyRefused("This passkey was added before.") from error
    _record(user, "passkey.add", name)
    if was_on:
        return []
    two_factor.drop_begun(user)
    details = {"by": two_factor.PASSKEY}
    audit.record(actor=user, action="two_factor.enable", target=user.get_username(), details=details)
    return two_factor.new_codes(user)


def check_begin(user: User, site: Site, *, replaces: int | None = None) -> Begun:
    """What the browser needs to sign in with a passkey. replaces: the challenge that its session had before.

    Raises PasskeysUnavailable, also if none was added here.
    """
    _check_site(site)
    known = _of(user, site)
    if not known:
        raise PasskeysUnavailable("None of your passkeys was added at this address. Enter a code instead.")
    from fido2.webauthn import UserVerificationRequirement

    challenge = _challenge(user, replaces, adds=False)
    options, _ = _server(site).authenticate_begin(
        [_descriptor(passkey) for passkey in known],
        user_verification=UserVerificationRequirement(VERIFICATION),
        challenge=_bytes(challenge.text),
    )
    return Begun(challenge.pk, dict(options))


def check(user: User, challenge_id: int | None, site: Site, answer: str) -> None:
    """Return if one of the user's passkeys signed the challenge, which uses it up, also if the answer is wrong.

    Raises PasskeyRefused: PasskeyTooLate if there is no challenge to answer, PasskeyCopied if the passkey's use count
    is not above the one of its last use.
    """
    challenge = _taken(user, challenge_id, adds=False)
    if challenge is None:
        raise PasskeyTooLate
    known = {bytes(passkey.credential_id): passkey for passkey in _of(user, site)}
    credential_id, sign_count = _checked(lambda: _signed(site, challenge, known, answer))
    # The condition is the row's own: of simultaneous uses with the same count one succeeds.
    rising = Q(sign_count__lt=sign_count)
    if sign_count == 0:
        rising = Q(sign_count=0)  # it does not count, and never did
    rows = Passkey.objects.filter(rising, pk=known[credential_id].pk)
    if rows.update(sign_count=sign_count, last_used_at=timezone.now()):
        return
    raise PasskeyCopied if user.passkeys.filter(pk=known[credential_id].pk).exists() else PasskeyRefused


def version(passkey: Passkey) -> str:
    """The ETag of a passkey: of its name, which is all that can be changed."""
    return f'"k{hashlib.sha256(passkey.name.encode()).hexdigest()[:16]}"'


@transaction.atomic
def rename(user: User, passkey_id: int, name: str, if_match: frozenset[str] | None = None) -> None:
    """Raises NotFound, VersionChanged or FieldsInvalid (path: name)."""
    two_factor.locked(user)
    passkey, name = get(user, passkey_id), _name(name)
    if if_match is not None and (now := version(passkey)) not in if_match:
        raise VersionChanged(etag=now)
    if not name:
        raise FieldsInvalid(errors=[problem("name", "required", "is required")])
    if name != passkey.name:
        user.passkeys.filter(pk=passkey.pk).update(name=name)
        _record(user, "passkey.rename", name, before=passkey.name)


@transaction.atomic
def remove(user: User, passkey_id: int) -> None:
    """With the last second factor recovery codes go, too. Raises NotFound, or TwoFactorRequired if one is needed."""
    two_factor.locked(user)
    passkey = get(user, passkey_id)
    _record(user, "passkey.remove", passkey.name)
    passkey.delete()
    two_factor.turn_off_if_last(user)


def work_at(user: User, site: Site) -> bool:
    """Whether the user can sign in with a passkey at this address."""
    return not site.why_not and bool(_of(user, site))


def _check_site(site: Site) -> None:
    if site.why_not:
        raise PasskeysUnavailable(site.why_not)


def _check_room(user: User) -> None:
    if user.is_service_account:
        raise NotAllowed("Service accounts cannot sign in, so they have no passkeys.")
    if user.passkeys.count() >= MOST:
        raise FieldsInvalid(
            errors=[problem("passkey", "too_many", f"would be number {MOST + 1}: remove one")]
        )


def _challenge(user: User, replaces: int | None, *, adds: bool) -> PasskeyChallenge:
    from fido2.utils import websafe_encode

    now = timezone.now()
    user.passkey_challenges.filter(pk=replaces or 0).delete()
    PasskeyChallenge.objects.filter(
        created_at__lt=now - TO_ANSWER
    ).delete()  # of anyone: who left asks for no other
    text = websafe_encode(os.urandom(CHALLENGE_BYTES))
    return PasskeyChallenge.objects.create(user=user, text=text, adds=adds, created_at=now)


def _taken(user: User, challenge_id: int | None, *, adds: bool) -> str | None:
    """The challenge, if its row could be deleted: of simultaneous answers one is looked at."""
    rows = user.passkey_challenges.filter(pk=challenge_id or 0, adds=adds)
    found = rows.filter(created_at__gt=timezone.now() - TO_ANSWER).first()
    return found.text if found and rows.delete()[0] else None


def _server(site: Site) -> Fido2Server:
    """Fido2's own rule for origins lets in every port and subdomain; ours is the page's own."""
    from fido2.server import Fido2Server
    from fido2.webauthn import AttestationConveyancePreference, PublicKeyCredentialRpEntity

    return Fido2Server(
        PublicKeyCredentialRpEntity(id=site.host, name=ISSUER),
        attestation=AttestationConveyancePreference.NONE,
        verify_origin=lambda origin: origin == site.origin,
    )


def _registered(
    site: Site, challenge: str, answer: str
) -> tuple[tuple[AttestedCredentialData, int], list[str]]:
    from fido2.cose import CoseKey
    from fido2.webauthn import AuthenticatorTransport, RegistrationResponse

    given = _parsed(answer)
    response = RegistrationResponse.from_dict(given)
    _refuse_frames(response.response.client_data.cross_origin)
    state = {"challenge": challenge, "user_verification": VERIFICATION}
    made = _server(site).register_complete(state, response)
    credential = made.credential_data
    if credential is None or credential.public_key.get(3) not in CoseKey.supported_algorithms():
        raise ValueError("no key that can be checked")
    if response.raw_id != credential.credential_id or not credential.credential_id:
        raise ValueError("another credential's id")
    said = given["response"].get("transports") or []
    return (credential, made.counter), [each.value for each in AuthenticatorTransport if each.value in said]


def _signed(site: Site, challenge: str, known: dict[bytes, Passkey], answer: str) -> tuple[bytes, int]:
    from fido2.webauthn import AttestedCredentialData, AuthenticationResponse

    response = AuthenticationResponse.from_dict(_parsed(answer))
    _refuse_frames(response.response.client_data.cross_origin)
    state = {"challenge": challenge, "user_verification": VERIFICATION}
    credentials = [AttestedCredentialData(bytes(passkey.credential)) for passkey in known.values()]
    used = _server(site).authenticate_complete(state, credentials, response)
    return used.credential_id, response.response.authenticator_data.counter


def _parsed(answer: str) -> dict[str, Any]:
    if len(answer) > ANSWER_MAX_CHARS:
        raise ValueError("too long")
    given = json.loads(answer)
    if not isinstance(given, dict):
        raise TypeError("no object")
    return given


def _refuse_frames(cross_origin: object) -> None:
    if cross_origin:
        raise ValueError("made in a frame of another site")


def _checked(read: Callable[[], Parsed]) -> Parsed:
    """What read returns. Parsers raise many things at a hostile answer, which are not ours to list: each refuses it."""
    try:
        return read()
    except Exception as error:
        raise PasskeyRefused from error


def _of(user: User, site: Site) -> list[Passkey]:
    return list(user.passkeys.filter(host=site.host).order_by("pk"))


def get(user: User, passkey_id: int) -> Passkey:
    """Raises NotFound."""
    passkey = user.passkeys.filter(pk=passkey_id).first()
    if passkey is None:
        raise NotFound("There is no such passkey.")
    return passkey


def _descriptor(passkey: Passkey) -> PublicKeyCredentialDescriptor:
    from fido2.webauthn import AuthenticatorTransport, PublicKeyCredentialDescriptor, PublicKeyCredentialType

    return PublicKeyCredentialDescriptor(
        type=PublicKeyCredentialType.PUBLIC_KEY,
        id=bytes(passkey.credential_id),
        transports=[AuthenticatorTransport(name) for name in passkey.transports] or None,
    )


def _handle(user: User) -> bytes:
    """What devices keep of the user: no name, and nothing that a user of an earlier installation had."""
    return salted_hmac("passkey", str(user.pk), algorithm="sha256").digest()


def _name(given: str) -> str:
    """As it is stored: printable, without space around it."""
    name = " ".join("".join(letter if letter.isprintable() else " " for letter in given).split())
    longest = Passkey._meta.get_field("name").max_length or 0
    if len(name) > longest:
        raise FieldsInvalid(errors=[problem("name", "too_long", f"is longer than {longest} characters")])
    return name


def _free_name(user: User) -> str:
    taken = set(user.passkeys.values_list("name", flat=True))
    return next(name for n in range(1, MOST + 2) if (name := f"Passkey {n}") not in taken)


def _record(user: User, action: str, name: str, **more: str) -> None:
    details = {"passkey": name, **more}
    audit.record(actor=user, action=action, target=user.get_username(), details=details)


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _bytes(challenge: str) -> bytes:
    from fido2.utils import websafe_decode

    return websafe_decode(challenge)
