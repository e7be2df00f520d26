"""Every question about who may do what in a tenant is answered here, and nowhere else.

A person's roles stand in Membership alone. A token may carry less than its owner: authentication leaves it at
``user.token`` (tenants.models.Token), and its tenant and role ceiling bound every answer below.
"""

from __future__ import annotations

from django.contrib.auth.models import AnonymousUser
from django.db.models import QuerySet

from tenants.models import Membership, Tenant, Token, User
from tenants.roles import GRANTS, RANK, Permission, Role

Person = User | AnonymousUser


def memberships(user: Person) -> QuerySet[Membership]:
    """The memberships that count for this caller: an inactive one has none, a bound token only its tenant's."""
    if not isinstance(user, User) or not user.is_active:
        return Membership.objects.none()
    rows = Membership.objects.filter(user=user)
    token = _token(user)
    return rows.filter(tenant=token.tenant_id) if token and token.tenant_id else rows


def role_in(user: Person, tenant_id: int) -> Role | None:
    """The caller's role in a tenant, no higher than his token allows; None for a stranger."""
    stored = memberships(user).filter(tenant=tenant_id).values_list("role", flat=True).first()
    return None if stored is None else _under_ceiling(user, Role(stored))


def may(user: Person, permission: Permission, tenant_id: int) -> bool:
    """Say whether the caller's role in this tenant grants the permission."""
    role = role_in(user, tenant_id)
    return role is not None and permission in GRANTS[role]


def tenant_for(user: Person, slug: str) -> Tenant | None:
    """The tenant of this slug if the caller belongs to it or is a platform admin; None is what a stranger gets."""
    found = Tenant.objects.filter(slug=slug).first()
    if found and (is_platform_admin(user) or memberships(user).filter(tenant=found).exists()):
        return found
    return None


def is_platform_admin(user: Person) -> bool:
    """A platform admin, unless he came with a token that is bound to one tenant or to less than a manager."""
    if not isinstance(user, User) or not user.is_platform_admin:
        return False
    token = _token(user)
    return token is None or (token.tenant_id is None and Role(token.role_ceiling) == Role.MANAGER)


def _under_ceiling(user: Person, role: Role) -> Role:
    token = _token(user)
    return min(role, Role(token.role_ceiling), key=RANK.__getitem__) if token else role


def _token(user: Person) -> Token | None:
    return getattr(user, "token", None)
