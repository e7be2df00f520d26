"""Service accounts: users for programs. They belong to one tenant, are researchers at most and cannot log in."""

from __future__ import annotations

from django.contrib.auth.hashers import make_password
from django.db import transaction
from django.db.models import QuerySet

from tenants import access, audit, checks
from tenants.errors import NameTaken, NotFound
from tenants.models import Membership, Tenant, Token, User
from tenants.roles import Permission, Role
from tenants.tokens import token_create, token_revoke


def username_of(tenant: Tenant, name: str) -> str:
    """A service account's username: the tenant's slug and the name, which is unique within its tenant."""
    return f"{tenant.slug}.{name}"


def accounts(*, user: access.Person, tenant: Tenant) -> QuerySet[Membership]:
    """The tenant's service accounts, by name, as memberships. Raises NotAllowed below manager."""
    access.require(user, Permission.MANAGE_MEMBERS, tenant)
    rows = Membership.objects.filter(tenant=tenant, user__is_service_account=True)
    return rows.select_related("user", "tenant").order_by("user__username")


def account_get(*, user: access.Person, tenant: Tenant, name: str) -> User:
    """The service account of this name. Raises NotAllowed or NotFound."""
    found = accounts(user=user, tenant=tenant).filter(user__username=username_of(tenant, name)).first()
    if found is None:
        raise NotFound
    return found.user


@transaction.atomic
def account_create(
    *, user: access.Person, tenant: Tenant, name: str, role: Role = Role.RESEARCHER
) -> Membership:
    """Create a service account in the tenant.

    Raises NotAllowed, FieldsInvalid (its name, or a manager's role) or NameTaken.
    """
    access.require(user, Permission.MANAGE_MEMBERS, tenant)
    checks.refuse(checks.account_role(role), checks.slug("name", name, 60))
    username = username_of(tenant, name)
    account, made = User.objects.get_or_create(
        username=username, defaults={"is_service_account": True, "password": make_password(None)}
    )
    if not made:
        if account.is_active:
            text = f"The account {name} already exists in {tenant}: choose another name."
        else:
            text = (
                f"The name {name} belonged to an account of {tenant} that is closed and stays with its jobs: "
                "choose another name."
            )
        raise NameTaken(text, path="name", got=name)
    membership = Membership.objects.create(user=account, tenant=tenant, role=role)
    _record(user, tenant, "service_account.create", name, {"role": role.value})
    return membership


@transaction.atomic
def account_remove(*, user: access.Person, tenant: Tenant, name: str) -> None:
    """Close a service account: its tokens end at once, its jobs stay its own. Its name stays taken."""
    account = account_get(user=user, tenant=tenant, name=name)
    Token.objects.filter(user=account).delete()
    Membership.objects.filter(user=account).delete()
    User.objects.filter(pk=account.pk).update(is_active=False)
    _record(user, tenant, "service_account.remove", name, {})


def account_token_create(
    *, user: access.Person, tenant: Tenant, name: str, token_name: str, days: int | None = None
) -> tuple[Token, str]:
    """A token for the account, bound to its tenant, and the secret to show once.

    Raises NotAllowed, NotFound or FieldsInvalid.
    """
    account = account_get(user=user, tenant=tenant, name=name)
    return token_create(
        user=user, owner=account, name=token_name, tenant=tenant, role=Role.RESEARCHER, days=days
    )


def account_token_revoke(*, user: access.Person, tenant: Tenant, name: str, token_id: str) -> None:
    """End one of the account's tokens at once. Raises NotAllowed or NotFound."""
    token_revoke(user=user, owner=account_get(user=user, tenant=tenant, name=name), token_id=token_id)


def _record(user: access.Person, tenant: Tenant, action: str, target: str, details: dict[str, str]) -> None:
    audit.record(actor=user, action=action, tenant_id=tenant.pk, target=target, details=details)
