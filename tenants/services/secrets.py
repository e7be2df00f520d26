"""Secrets of tenants and users: set and deleted by people, read by a job's launch alone.

A job names secrets, and gets their values when it is launched: the owner's own secret of that name, else the tenant's.
A value leaves this module in ``values_for`` only.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from django.db import transaction
from django.db.models import Q, QuerySet
from django.utils import timezone

from tenants import access, audit, checks, sealed_rows
from tenants.errors import NotAllowed, NotFound, VersionChanged, problem
from tenants.models import Membership, Secret, Tenant, User
from tenants.roles import Permission, Role
from tenants.secret_names import PATTERN, RULE

NAME = re.compile(PATTERN.strip("^$"), re.ASCII)
LEAST_BYTES = 6
"""A shorter value cannot be masked in logs without hiding ordinary words, and protects nothing."""
MOST_BYTES = 16 * 1024
MOST_SECRETS = 200
"""Of one tenant or one user."""

Owner = Tenant | User


class SecretMissing(Exception):
    """A job names secrets that no longer exist."""

    def __init__(self, names: Collection[str]) -> None:
        super().__init__(", ".join(names))
        self.names = tuple(names)


def secrets_of(user: access.Person, tenant: Tenant) -> QuerySet[Secret]:
    """The tenant's secrets by name, for those who may submit jobs that use them and those who set them."""
    if not access.may(user, Permission.MANAGE_SECRETS, tenant.pk):
        access.require(user, Permission.SUBMIT, tenant)
    return _rows(tenant)


def own_secrets(user: User) -> QuerySet[Secret]:
    """The user's own secrets by name."""
    return _rows(user)


def names_for(owner: User, tenant: Tenant) -> frozenset[str]:
    """What a job of this owner in this tenant may name: the owner's own secrets and the tenant's."""
    found = Secret.objects.filter(Q(user=owner) | Q(tenant=tenant))
    return frozenset(found.values_list("name", flat=True))


def version(row: Secret) -> str:
    """What changes with the value, for If-Match."""
    return f'"{row.pk}-{int(row.updated_at.timestamp() * 1_000_000):x}"'


@transaction.atomic
def secret_set(
    *,
    user: User,
    name: str,
    value: str,
    tenant: Tenant | None = None,
    if_match: frozenset[str] | None = None,
) -> Secret:
    """Set a secret of the tenant, or, without one, the caller's own. The value cannot be read again.

    Raises NotAllowed, VersionChanged, FieldsInvalid (which repeats no value) or SecretsUnavailable.
    """
    owner = _writable(user, tenant)
    model = User if tenant is None else Tenant
    model._default_manager.select_for_update(no_key=True).get(pk=owner.pk)  # changes come one by one
    checks.refuse(_name_problem(name), _value_problem(value), _count_problem(owner, name))
    row = _rows(owner).filter(name=name).first()
    _require_match(row, if_match)
    action = "secret.replace" if row else "secret.create"
    row = row or Secret(tenant=tenant, user=None if tenant else user, name=name)
    sealed_rows.seal(row, value)
    row.updated_at, row.updated_by = timezone.now(), user
    row.save()
    _record(user, tenant, action, name)
    return row


@transaction.atomic
def secret_delete(
    *, user: User, name: str, tenant: Tenant | None = None, if_match: frozenset[str] | None = None
) -> None:
    """Delete a secret. A waiting job that names it will fail at its launch; a running one keeps the value.

    Raises NotAllowed, VersionChanged or NotFound.
    """
    row = _rows(_writable(user, tenant)).select_for_update(of=("self",)).filter(name=name).first()
    if row is None:
        raise NotFound
    _require_match(row, if_match)
    row.delete()
    _record(user, tenant, "secret.delete", name)


def values_for(*, owner: User, tenant: Tenant, names: Collection[str]) -> dict[str, str]:
    """The values of these secrets, for the launch of a job: the owner's own first, then the tenant's.

    The owner's own count only while the owner is an active member. Raises SecretMissing with every name that is
    missing, and SecretsUnavailable.
    """
    return {name: sealed_rows.unseal(row) for name, row in _granted(owner, tenant, names).items()}


def require(*, owner: User, tenant: Tenant, names: Collection[str]) -> None:
    """Raise SecretMissing, as values_for would, and read no value."""
    _granted(owner, tenant, names)


def _granted(owner: User, tenant: Tenant, names: Collection[str]) -> dict[str, Secret]:
    if not names:
        return {}
    rows = Secret.objects.filter(name__in=names)
    found = {row.name: row for row in rows.filter(tenant=tenant)}
    if owner.is_active and Membership.objects.filter(user=owner, tenant=tenant).exists():
        found |= {row.name: row for row in rows.filter(user=owner)}
    missing = sorted(set(names) - found.keys())
    if missing:
        raise SecretMissing(missing)
    return found


def _rows(owner: Owner) -> QuerySet[Secret]:
    field = "tenant" if isinstance(owner, Tenant) else "user"
    return Secret.objects.filter(**{field: owner}).select_related("updated_by").order_by("name")


def _writable(user: User, tenant: Tenant | None) -> Owner:
    """Whose secret the caller may change. A viewer's token reads, so it changes none of its owner's own."""
    if tenant is not None:
        access.require(user, Permission.MANAGE_SECRETS, tenant)
        return tenant
    token = access.token_of(user)
    if token is not None and Role(token.role_ceiling) == Role.VIEWER:
        raise NotAllowed("This request's token has the role viewer at most: it cannot change secrets.")
    return user


def _require_match(row: Secret | None, if_match: frozenset[str] | None) -> None:
    now = version(row) if row else None
    if if_match is not None and now not in if_match:
        raise VersionChanged(**({"etag": now} if now else {}))


def _name_problem(name: str) -> dict[str, object] | None:
    if NAME.fullmatch(name):
        return None
    return problem("name", "bad_name", f"must be {RULE}", name, RULE)


def _value_problem(value: str) -> dict[str, object] | None:
    size = len(value.encode("utf-8", "surrogatepass"))
    if size < LEAST_BYTES:
        message = f"must have at least {LEAST_BYTES} bytes: a shorter value could not be masked in logs"
        return problem("value", "too_short", message, allowed=f"{LEAST_BYTES} to {MOST_BYTES} bytes")
    if size > MOST_BYTES:
        message = f"must have at most {MOST_BYTES} bytes"
        return problem("value", "too_long", message, allowed=f"{LEAST_BYTES} to {MOST_BYTES} bytes")
    if not value.strip():
        return problem("value", "required", "must not be blank")
    if "\0" in value:
        return problem("value", "nul_in_text", "must not contain the NUL character")
    return None


def _count_problem(owner: Owner, name: str) -> dict[str, object] | None:
    others = _rows(owner).exclude(name=name).count()
    if others < MOST_SECRETS:
        return None
    return problem("name", "too_many", f"there are {others} secrets: delete one first", name, MOST_SECRETS)


def _record(user: User, tenant: Tenant | None, action: str, name: str) -> None:
    audit.record(
        actor=user,
        action=action,
        tenant_id=tenant.pk if tenant else None,
        target=name,
        reason=audit.access_reason.get(),
    )
