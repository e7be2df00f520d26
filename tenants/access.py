"""Every question about who may do what in a tenant is answered here, and nowhere else.

A person's roles are stored in Membership alone. A token may carry less than its owner: authentication leaves it at
``user.token`` (tenants.models.Token), and its tenant and role ceiling bound every answer below.
"""

from __future__ import annotations

from django.contrib.auth.models import AnonymousUser
from django.db import connection
from django.db.models import QuerySet

from tenants.errors import AdminOnly, NotAllowed, NotFound
from tenants.models import Membership, Tenant, Token, User
from tenants.roles import ADMIN_GRANTS, GRANTS, RANK, Permission, Role
from tenants.rows import Rows

Person = User | AnonymousUser

LEAST_ROLE = {
    permission: min((role for role in Role if permission in GRANTS[role]), key=RANK.__getitem__)
    for permission in Permission
}
"""The lowest role that carries a permission, for messages."""
TENANT = Rows(Tenant, "t")
BY_SLUG = (
    f"SELECT m.role, {TENANT.columns} FROM tenants_membership m JOIN tenants_tenant t ON t.id = m.tenant_id"
    " WHERE m.user_id = %s AND t.slug = %s"
)


def memberships(user: Person) -> QuerySet[Membership]:
    """The memberships that count for this caller: an inactive one has none, a bound token only its tenant's."""
    if not isinstance(user, User) or not user.is_active:
        return Membership.objects.none()
    rows = Membership.objects.filter(user=user)
    token = token_of(user)
    return rows.filter(tenant=token.tenant_id) if token and token.tenant_id else rows


def role_in(user: Person, tenant_id: int) -> Role | None:
    """The caller's role in a tenant, no higher than their token allows; None for a stranger."""
    remembered = user.roles if isinstance(user, User) else None
    known = None if remembered is None else remembered.get(tenant_id)
    if known is None:
        known = memberships(user).filter(tenant=tenant_id).values_list("role", flat=True).first() or ""
        if remembered is not None:
            remembered[tenant_id] = known
    return _under_ceiling(user, Role(known)) if known else None


def read_roles(user: Person, tenants: QuerySet[Tenant]) -> None:
    """Read the caller's roles in all of these tenants at once, for the answers of this request."""
    if isinstance(user, User) and user.roles is not None:
        user.roles |= dict.fromkeys(tenants.values_list("pk", flat=True), "")
        user.roles |= dict(memberships(user).values_list("tenant", "role"))


def permissions_in(user: Person, tenant_id: int) -> frozenset[Permission]:
    """Everything the caller may do in this tenant; empty for a stranger."""
    return _granted(user, role_in(user, tenant_id))


def may(user: Person, permission: Permission, tenant_id: int) -> bool:
    """Say whether the caller has the permission in this tenant."""
    return permission in permissions_in(user, tenant_id)


def require(user: Person, permission: Permission, tenant: Tenant) -> None:
    """Raise NotFound for a stranger, NotAllowed for a member whose role is too low."""
    _demand(permission, tenant, permissions_in(user, tenant.pk))


def needs(permission: Permission, tenant: Tenant) -> str:
    """A sentence that names the least role with this permission."""
    least = LEAST_ROLE[permission]
    above = "" if least is Role.MANAGER else " or higher"
    return f"This requires the role {least}{above} in {tenant}."


def visible_tenants(user: Person) -> QuerySet[Tenant]:
    """The caller's tenants, by slug; a platform admin sees all."""
    rows = Tenant.objects.order_by("slug")
    return rows if is_platform_admin(user) else rows.filter(pk__in=memberships(user).values("tenant"))


def find_tenant(user: Person, slug: str) -> Tenant | None:
    """The tenant of this slug if the caller belongs to it or is a platform admin; None is what a stranger gets."""
    return visible_tenants(user).filter(slug=slug).first()


def tenant_get(user: Person, slug: str, permission: Permission = Permission.VIEW) -> Tenant:
    """The tenant of this slug, if the caller has the permission there. Raises NotFound or NotAllowed."""
    found, role = _own_tenant(user, slug) or (find_tenant(user, slug), None)
    if found is None:
        raise NotFound
    _demand(permission, found, _granted(user, role))
    return found


def is_platform_admin(user: Person) -> bool:
    """A platform admin, unless they came with a token that is bound to one tenant or to less than a manager."""
    return isinstance(user, User) and user.is_platform_admin and has_whole_token(user)


def has_whole_token(user: Person) -> bool:
    """Came with a session, or with a token that allows all that its owner may do."""
    token = token_of(user)
    return token is None or (token.tenant_id is None and Role(token.role_ceiling) == Role.MANAGER)


def require_admin(user: Person) -> None:
    """Raise AdminOnly unless the caller is a platform admin."""
    if not is_platform_admin(user):
        raise AdminOnly


def may_use_shares(user: Person, *, to_operate: bool = False) -> bool:
    """Say whether grants on single jobs of foreign tenants count for this caller: not with a bound token, and
    a viewer's token operates nothing."""
    token = token_of(user)
    if token is None:
        return True
    return token.tenant_id is None and not (to_operate and Role(token.role_ceiling) == Role.VIEWER)


def only_reads(user: Person) -> str:
    """A sentence for a caller whose token can change nothing, also not what is theirs alone; "" for any other."""
    token = token_of(user)
    if token is None or Role(token.role_ceiling) != Role.VIEWER:
        return ""
    return "This token has the role viewer, which can only read."


def require_writes(user: Person) -> None:
    """Raise NotAllowed for a token that can only read."""
    if problem := only_reads(user):
        raise NotAllowed(problem)


def token_of(user: Person) -> Token | None:
    """The token the caller came with; None for a session."""
    return getattr(user, "token", None)


def _own_tenant(user: Person, slug: str) -> tuple[Tenant, Role] | None:
    """The tenant of this slug if memberships(user) has it, and the role there; asked for by nearly every request."""
    if not isinstance(user, User) or not user.is_active:
        return None
    with connection.cursor() as cursor:
        cursor.execute(BY_SLUG, [user.pk, slug])
        row = cursor.fetchone()
    if row is None:
        return None
    stored, tenant = row[0], TENANT.made(row[1:])
    token = token_of(user)
    if token and token.tenant_id not in (None, tenant.pk):
        return None
    if user.roles is not None:
        user.roles[tenant.pk] = stored
    return tenant, _under_ceiling(user, Role(stored))


def _granted(user: Person, role: Role | None) -> frozenset[Permission]:
    granted = GRANTS[role] if role else frozenset()
    return granted | ADMIN_GRANTS if is_platform_admin(user) else granted


def _demand(permission: Permission, tenant: Tenant, granted: frozenset[Permission]) -> None:
    if not granted:
        raise NotFound
    if permission not in granted:
        raise NotAllowed(needs(permission, tenant))


def _under_ceiling(user: Person, role: Role) -> Role:
    token = token_of(user)
    return min(role, Role(token.role_ceiling), key=RANK.__getitem__) if token else role
