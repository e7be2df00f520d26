"""API tokens: the secret is shown once and stored as a hash; a token may allow less than its owner may do."""

from __future__ import annotations

import math
from datetime import timedelta

from django.db import connection, transaction
from django.db.models import QuerySet
from django.utils import timezone
from knox.crypto import hash_token

from tenants import access, audit, checks
from tenants.errors import FieldsInvalid, NotAllowed, NotFound, problem
from tenants.models import Membership, Tenant, Token, User
from tenants.roles import RANK, Role
from tenants.rows import Rows

PREFIX = "lut_"
DEFAULT_DAYS = 90
MAX_DAYS = 366
ID_LENGTH = (
    16  # hexadecimal digits of the digest: enough to name one of a person's tokens, useless to forge it
)
SHOWN_LENGTH = len(PREFIX) + 4  # of the secret: enough to recognize a token, while 60 digits stay unknown
SEEN_EVERY = timedelta(minutes=1)  # how fresh last_used_at is kept
TOKEN, OWNER = Rows(Token, "t"), Rows(User, "u")
BY_SECRET = (
    f"SELECT {TOKEN.columns}, {OWNER.columns} FROM tenants_token t JOIN tenants_user u ON u.id = t.user_id"
    " WHERE t.digest = %s"
)


def identify(secret: str) -> User | None:
    """The owner of this secret, with ``token`` set so that tenants.access limits them; None if it is not valid."""
    if not secret.startswith(PREFIX) or not secret.isascii():
        return None
    with connection.cursor() as cursor:
        cursor.execute(BY_SECRET, [hash_token(secret)])
        found = cursor.fetchone()
    if found is None:
        return None
    token, user = TOKEN.made(found[: TOKEN.width]), OWNER.made(found[TOKEN.width :])
    now = timezone.now()
    if not user.is_active or (token.expiry is not None and token.expiry <= now):
        return None
    if token.last_used_at is None or now - token.last_used_at > SEEN_EVERY:
        Token.objects.filter(pk=token.pk).update(last_used_at=now)
    user.token = token
    return user


def tokens_of(owner: User, *, tenant: Tenant | None = None) -> QuerySet[Token]:
    """A person's tokens, newest first; expired ones too, until they are revoked."""
    rows = Token.objects.filter(user=owner).select_related("tenant").order_by("-created", "pk")
    return rows.filter(tenant=tenant) if tenant else rows


def public_id(token: Token) -> str:
    return token.pk[:ID_LENGTH]


def shown_prefix(token: Token) -> str:
    """The first characters of its secret, to find the row of a secret that turned up somewhere."""
    return token.token_key[:SHOWN_LENGTH]


@transaction.atomic
def token_create(
    *,
    user: access.Person,
    owner: User,
    name: str,
    tenant: Tenant | None = None,
    role: Role | None = None,
    days: int | None = None,
) -> tuple[Token, str]:
    """A new token of owner, and its secret, which cannot be read again.

    A caller who came with a token grants no more than that token allows; what is left open defaults to as much as it
    allows. Raises FieldsInvalid.
    """
    mine = access.token_of(user)
    role = role or (Role(mine.role_ceiling) if mine else Role.MANAGER)
    expiry = timedelta(days=DEFAULT_DAYS if days is None else days)
    if days is None and mine and mine.expiry:
        expiry = min(expiry, mine.expiry - timezone.now())
    if tenant is None and mine and owner.pk == user.pk:
        tenant = mine.tenant
    problems = [each for each in [checks.text("name", name, 80)] if each]
    if days is not None and not 1 <= days <= MAX_DAYS:
        problems.append(
            problem(
                "expires_in_days",
                "out_of_range",
                f"must be 1 to {MAX_DAYS}",
                days,
                f"1 to {MAX_DAYS}",
            )
        )
    problems += _beyond_own(user, owner, tenant, role, days or 0)
    if problems:
        raise FieldsInvalid(errors=problems)
    token, secret = Token.objects.create(
        user=owner, expiry=expiry, name=name, tenant=tenant, role_ceiling=role
    )
    audit.record(
        actor=user,
        action="token.create",
        tenant_id=tenant.pk if tenant else None,
        target=owner.get_username(),
        details={"name": name, "role": role.value, "days": math.ceil(expiry / timedelta(days=1))},
    )
    return token, secret


@transaction.atomic
def token_revoke(*, user: access.Person, owner: User, token_id: str) -> None:
    """End a token at once. Raises NotFound, or NotAllowed for one beyond the bounds of the caller's own."""
    if len(token_id) != ID_LENGTH:
        raise NotFound
    token = Token.objects.filter(user=owner, pk__startswith=token_id).first()
    if token is None:
        raise NotFound
    _require_within_own(user, token)
    audit.record(
        actor=user,
        action="token.revoke",
        tenant_id=token.tenant_id,
        target=owner.get_username(),
        details={"name": token.name},
    )
    token.delete()


def _require_within_own(user: access.Person, token: Token) -> None:
    """A stolen weak token must not be able to revoke strong ones; any token may revoke itself."""
    mine = access.token_of(user)
    if mine is None or mine.pk == token.pk:
        return
    if mine.tenant_id and mine.tenant_id != token.tenant_id:
        raise NotAllowed(
            "This request's token is bound to a tenant: it can revoke only itself and tokens bound to the same tenant."
        )
    if RANK[Role(token.role_ceiling)] > RANK[Role(mine.role_ceiling)]:
        raise NotAllowed(
            f"This request's token can revoke only itself and tokens of at most the role {mine.role_ceiling}."
        )


def _beyond_own(
    user: access.Person, owner: User, tenant: Tenant | None, role: Role, days: int
) -> list[dict[str, object]]:
    """Problems where the requested token exceeds the owner's membership or the caller's own token."""
    found = []
    if tenant and not Membership.objects.filter(user=owner, tenant=tenant).exists():
        found.append(
            problem("tenant", "not_a_member", "the owner is not a member of this tenant", tenant.slug)
        )
    mine = access.token_of(user)
    if mine is None:
        return found
    if mine.tenant_id and (tenant is None or tenant.pk != mine.tenant_id):
        found.append(problem("tenant", "beyond_own_token", "this request's token is bound to another tenant"))
    if RANK[role] > RANK[Role(mine.role_ceiling)]:
        allowed = mine.role_ceiling
        found.append(
            problem(
                "role", "beyond_own_token", f"this request's token allows at most {allowed}", role, allowed
            )
        )
    if mine.expiry and timezone.now() + timedelta(days=days) > mine.expiry + timedelta(minutes=1):
        until = mine.expiry.date().isoformat()
        found.append(
            problem(
                "expires_in_days", "beyond_own_token", f"this request's token expires on {until}", days, until
            )
        )
    return found
