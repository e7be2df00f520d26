"""Identities at an OpenID provider, and whose accounts they are: linked by an admin, or by rules that are set.

Nothing that a provider claims links an identity to an account by itself. The rules are LUTHIER_OIDC_LINK_BY_EMAIL, by
an address that the provider has verified, and LUTHIER_OIDC_CREATE_USERS, to an account that is made for it
(docs/adr/0071-single-sign-on.md).
"""

from __future__ import annotations

import hashlib
import logging
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from allauth.socialaccount.models import SocialAccount
from django.conf import settings
from django.core.exceptions import ValidationError
from django.core.validators import validate_email
from django.db import IntegrityError, transaction
from django.db.models import QuerySet
from django.utils import timezone

from tenants import access, audit, checks
from tenants.errors import AccountClosed, FieldsInvalid, IdentityUnknown, NotFound, UserDisabled, problem
from tenants.models import User
from tenants.services.groups import GROUP_CHARS, apply_groups
from tenants.services.users import (
    LENGTHS,
    keep_an_admin,
    links,
    locked_user,
    require_provider,
    used_links,
    user_get,
)

logger = logging.getLogger(__name__)

PROVIDER = "openid_connect"
"""Of the rows. Who an identity is depends on its issuer as well, so another provider's same subject is another one."""
SIGNED_IN_AT = "signed_in_at"
"""Key of what a row keeps: when its user last signed in by it; absent before the first time."""
SUBJECT_CHARS = 255
ID_LENGTH = 16
NAMES_TRIED = 99


@dataclass(frozen=True)
class Identity:
    """A person as the provider knows them.

    email: "" unless the provider has verified it. groups: None where they are too many for the provider to state.
    """

    issuer: str
    subject: str
    email: str = ""
    username: str = ""
    first_name: str = ""
    last_name: str = ""
    groups: tuple[str, ...] | None = ()

    @property
    def stored(self) -> dict[str, Any]:
        """What its row keeps: who it is, and the groups of the last sign-in, for the preview of a mapping."""
        return {"issuer": self.issuer, "subject": self.subject, "groups": list(self.groups or ())}

    @property
    def uid(self) -> str:
        """The key of its row."""
        return hashlib.sha256(f"{self.issuer}\0{self.subject}".encode()).hexdigest()

    @classmethod
    def from_claims(cls, claims: Mapping[str, Any]) -> Identity:
        """From verified claims. Only `true` counts as verified: a text "false" would be true as well.

        Raises ValueError for a subject that no row can hold.
        """
        subject = str(claims["sub"])
        if not subject.isprintable() or not 0 < len(subject) <= SUBJECT_CHARS:
            raise ValueError("the subject")
        email = _text(claims, "email", LENGTHS["email"]) if claims.get("email_verified") is True else ""
        try:
            validate_email(email)
        except ValidationError:
            email = ""
        name = _text(claims, "preferred_username", LENGTHS["username"])
        return cls(
            issuer=claims["iss"],
            subject=subject,
            email=email,
            username=_username(name) or _username(email.partition("@")[0]),
            first_name=_text(claims, "given_name", LENGTHS["first_name"]),
            last_name=_text(claims, "family_name", LENGTHS["last_name"]),
            groups=_groups(claims, settings.LUTHIER_OIDC_GROUPS_CLAIM),
        )


@dataclass(frozen=True)
class Linked:
    """An identity that signs in as a user. signed_in_at: when it last did; None: it has not yet."""

    id: str
    issuer: str
    subject: str
    linked_at: datetime
    signed_in_at: datetime | None


@transaction.atomic
def user_of(identity: Identity) -> User:
    """The user who this is, linked or made now if the rules say so.

    The user is neither unlinked nor disabled until the caller's transaction ends, so a session that begins in it is
    among those that an admin ends. Raises IdentityUnknown, or AccountClosed for a disabled user.
    """
    try:
        with transaction.atomic():
            user = _linked(identity) or _linked_by_email(identity) or _created(identity)
    except IntegrityError:  # the same person came twice at once
        user = _linked(identity)
    if user is not None:
        User.objects.select_for_update(no_key=True).get(pk=user.pk)
        user = _linked(identity)  # an admin may have been here before the lock
    if user is None:
        raise IdentityUnknown(subject=identity.subject)
    if not user.is_active or user.is_service_account:
        raise AccountClosed(username=user.get_username())
    row = SocialAccount.objects.get(provider=PROVIDER, uid=identity.uid)
    row.extra_data[SIGNED_IN_AT] = timezone.now().isoformat()
    if identity.groups is None:
        logger.warning("groups not stated by the provider", extra={"username": user.get_username()})
    else:
        row.extra_data |= identity.stored
        apply_groups(user, identity.groups)
    row.save(update_fields=["extra_data"])
    return user


def identities_of(*, user: access.Person, username: str) -> list[Linked]:
    """What is linked to the user at the present provider: one identity, or none. Raises AdminOnly or NotFound."""
    return _linked_to(user_get(user=user, username=username))


def identity_of(user: User) -> str | None:
    """The subject that is linked to the user at the present provider; None without one."""
    return links().filter(user=user).values_list("extra_data__subject", flat=True).first()


def is_of(identity: Identity, user: User) -> bool:
    """Whether who this is at the provider signs in as the user."""
    return _linked(identity) == user


@transaction.atomic
def identity_link(*, user: access.Person, username: str, subject: str) -> User:
    """Let the identity with this subject sign in as the user, instead of the one linked before, whose sessions end.

    One that has signed in is not replaced for the last platform admin who has no password to sign in with: the new one
    may never come. Raises AdminOnly, NotFound, SingleSignOnOff, FieldsInvalid, LastAdmin, or UserDisabled where one is
    linked.
    """
    changed = locked_user(user, username)
    require_provider()
    subject = subject.strip()
    checks.refuse(checks.text("subject", subject, SUBJECT_CHARS))
    identity = Identity(str(settings.LUTHIER_OIDC_ISSUER), subject)
    other = _linked(identity)
    if other is not None and other.pk != changed.pk:
        raise _in_use(other)
    if other is None:
        details: dict[str, Any] = {"subject": subject, "by": "admin"}
        if identity_of(changed) is not None:
            if not _has_password(changed) and used_links().filter(user=changed).exists():
                keep_an_admin(changed)
            details["sessions"] = _forget(changed)
        try:
            with transaction.atomic():
                _link(changed, identity)
        except IntegrityError as error:  # who has it has just signed in for the first time
            raise _in_use(_linked(identity)) from error
        audit.record(actor=user, action="user.link", target=username, details=details)
    return user_get(user=user, username=username)


@transaction.atomic
def identity_add(*, user: access.Person, username: str, subject: str) -> Linked:
    """As identity_link; what is linked then."""
    linked = identity_link(user=user, username=username, subject=subject)
    return _as_linked(links().get(user=linked))


@transaction.atomic
def identity_unlink(*, user: access.Person, username: str, identity_id: str | None = None) -> User:
    """Let no identity sign in as the user any more; sessions end, and memberships that groups gave.

    identity_id: only if it is this one. Raises AdminOnly, NotFound, UserDisabled or LastAdmin.
    """
    changed = locked_user(user, username)
    linked = next(iter(_linked_to(changed)), None)
    if identity_id is not None and (linked is None or linked.id != identity_id):
        raise NotFound
    if linked is not None:
        if not _has_password(changed):
            keep_an_admin(changed)
        details = {"subject": linked.subject, "sessions": _forget(changed)}
        audit.record(actor=user, action="user.unlink", target=username, details=details)
    return user_get(user=user, username=username)


def _has_password(user: User) -> bool:
    """Whether the user can sign in with one."""
    return settings.LUTHIER_PASSWORD_SIGN_IN and user.has_usable_password()


def _linked_to(user: User) -> list[Linked]:
    return [_as_linked(row) for row in links().filter(user=user).order_by("pk")]


def _as_linked(row: SocialAccount) -> Linked:
    kept, used = row.extra_data, row.extra_data.get(SIGNED_IN_AT)
    signed_in_at = datetime.fromisoformat(used) if used else None
    return Linked(row.uid[:ID_LENGTH], kept["issuer"], kept["subject"], row.date_joined, signed_in_at)


def _in_use(by: User | None) -> FieldsInvalid:
    name = by.get_username() if by else "another user"
    return FieldsInvalid(errors=[problem("subject", "in_use", f"is linked to {name}: unlink it there first")])


def _linked(identity: Identity) -> User | None:
    row = SocialAccount.objects.select_related("user").filter(provider=PROVIDER, uid=identity.uid).first()
    return row and row.user


def _linked_by_email(identity: Identity) -> User | None:
    """The one user with this verified address, unless another identity is theirs already.

    Not a platform admin: who controls addresses at the provider would control the installation. The database also
    takes letters such as a dotless i for ASCII ones, so the address is compared here once more. Raises AccountClosed.
    """
    if not settings.LUTHIER_OIDC_LINK_BY_EMAIL or not identity.email.isascii():
        return None
    found = list(_with_address(identity).select_for_update(no_key=True)[:2])
    if len(found) != 1 or found[0].email.lower() != identity.email.lower():
        return None
    (user,) = found
    if user.is_superuser or user.is_service_account or links().filter(user=user).exists():
        return None
    if not user.is_active:
        raise AccountClosed(username=user.get_username())
    _link(user, identity)
    details = {"subject": identity.subject, "by": "verified e-mail address"}
    audit.record(actor=user, action="user.link", target=user.get_username(), details=details)
    return user


def _created(identity: Identity) -> User | None:
    """A user of their own, never one that exists, whatever name or address the provider claims.

    Raises AccountClosed if a disabled user has the verified address: a second account would let them back in.
    """
    if not settings.LUTHIER_OIDC_CREATE_USERS or not identity.username:
        return None
    closed = _with_address(identity).filter(is_active=False).first()
    if closed is not None:
        raise AccountClosed(username=closed.get_username())
    base = identity.username[: LENGTHS["username"] - 3]
    names = [base, *(f"{base}-{n}" for n in range(2, NAMES_TRIED))]
    name = next((name for name in names if not User.objects.filter(username__iexact=name).exists()), None)
    if name is None:
        return None
    made = User(
        username=name, email=identity.email, first_name=identity.first_name, last_name=identity.last_name
    )
    made.set_unusable_password()
    made.save()
    _link(made, identity)
    details = {"subject": identity.subject, "by": "single sign-on"}
    audit.record(actor=made, action="user.create", target=name, details=details)
    return made


def _link(user: User, identity: Identity) -> None:
    SocialAccount.objects.create(user=user, provider=PROVIDER, uid=identity.uid, extra_data=identity.stored)


def _with_address(identity: Identity) -> QuerySet[User]:
    """Who may have the verified address, by the database's idea of upper case; empty without one."""
    return User.objects.filter(email__iexact=identity.email).exclude(email="")


def _forget(user: User) -> int:
    """Unlink what is linked; what its groups gave goes with it. How many sessions ended. Raises UserDisabled."""
    if not user.is_active:
        raise UserDisabled
    links().filter(user=user).delete()
    apply_groups(user, ())
    ended: int = user.sessions.all().delete()[0]
    return ended


def _groups(claims: Mapping[str, Any], name: str) -> tuple[str, ...] | None:
    """Names of groups in a claim that is a list, or one name; anything else is none.

    None: there is no such claim because the person is in too many, as Entra ID says by `_claim_names` (OpenID Connect
    Core, 5.6.2: the claim is elsewhere) or `hasgroups`.
    """
    claim, elsewhere = claims.get(name), claims.get("_claim_names")
    if claim is None and (
        (isinstance(elsewhere, dict) and name in elsewhere)
        or (name == "groups" and claims.get("hasgroups") is True)
    ):
        return None
    names = [claim] if isinstance(claim, str) else claim if isinstance(claim, list) else []
    fitting = {each for each in names if isinstance(each, str) and each.isprintable()}
    return tuple(sorted(each for each in fitting if 0 < len(each) <= GROUP_CHARS))


def _username(claimed: str) -> str:
    """A name that a user may have, as login forms read it (NFKC) and addresses of pages hold it (not "..")."""
    return re.sub(r"[^\w.@+-]+", "-", unicodedata.normalize("NFKC", claimed)).strip("-.")


def _text(claims: Mapping[str, Any], name: str, longest: int) -> str:
    """A claim as a text for a row; "" for anything else."""
    value = claims.get(name)
    return value.strip()[:longest] if isinstance(value, str) and value.isprintable() else ""
