"""Browser sessions of a user: listed and ended, one or all, by themselves or by a platform admin."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import datetime

from django.db import transaction
from django.utils import timezone

from tenants import access, audit, two_factor
from tenants.errors import NotAllowed, NotFound
from tenants.models import Token, User
from tenants.sessions import longest_idle

ID_LENGTH = 16


@dataclass(frozen=True)
class OpenSession:
    """One session, by an id from which its key cannot be computed. current: the caller's own."""

    id: str
    started_at: datetime
    seen_at: datetime
    expires_at: datetime
    address: str | None
    agent: str
    current: bool


@dataclass(frozen=True)
class Ended:
    """How much was ended."""

    sessions: int
    tokens: int = 0


def sessions_of(*, user: access.Person, owner: User, current: str | None = None) -> list[OpenSession]:
    """The owner's sessions that let them in, the last used first. current: the key of the row of the caller's own.

    Raises NotAllowed.
    """
    _require(user, owner)
    return [
        OpenSession(
            public_id(row.pk),
            row.started_at,
            row.seen_at,
            min(row.expire_date, row.seen_at + longest_idle()),
            row.address,
            row.agent,
            row.pk == current,
        )
        for row in owner.sessions.filter(
            expire_date__gt=timezone.now(), seen_at__gt=timezone.now() - longest_idle()
        ).order_by("-seen_at", "pk")
        if row.get_decoded()  # nothing of one that lets its user in no longer
    ]


@transaction.atomic
def session_end(*, user: access.Person, owner: User, session_id: str) -> None:
    """End one session at once. Raises NotAllowed or NotFound."""
    _require(user, owner)
    two_factor.locked(owner)  # whose confirmation gives a session another key
    row = next((row for row in owner.sessions.all() if public_id(row.pk) == session_id), None)
    if row is None:
        raise NotFound
    row.delete()
    details = {"sessions": 1, "of": {"address": row.address, "started_at": row.started_at.isoformat()}}
    audit.record(actor=user, action="session.end", target=owner.get_username(), details=details)


@transaction.atomic
def sessions_end(*, user: access.Person, owner: User, keep: str | None = None, tokens: bool = False) -> Ended:
    """End all sessions but the one whose row has the key `keep`; with tokens, revoke all API tokens, too.

    The token that the caller came with stays. Raises NotAllowed.
    """
    _require(user, owner)
    two_factor.locked(owner)  # as above
    ended = owner.sessions.exclude(pk=keep or "").delete()[0]
    revoked = 0
    if tokens:
        mine = access.token_of(user)
        revoked = Token.objects.filter(user=owner).exclude(pk=mine.pk if mine else "").delete()[0]
    details = {"sessions": ended} | ({"tokens": revoked} if tokens else {})
    audit.record(actor=user, action="session.end", target=owner.get_username(), details=details)
    return Ended(ended, revoked)


def public_id(row_key: str) -> str:
    return hashlib.sha256(row_key.encode()).hexdigest()[:ID_LENGTH]


def _require(user: access.Person, owner: User) -> None:
    """A platform admin, or the owner; with a token only one that allows all that its owner may do."""
    if access.is_platform_admin(user):
        return
    if user.pk != owner.pk:
        raise NotAllowed("Only a platform admin may see and end sessions of others.")
    if not access.has_whole_token(user):
        raise NotAllowed("This request's token is limited: it may not see or end sessions.")
