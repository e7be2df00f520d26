"""Roles within a tenant and what each grants. Pure: no Django.

viewer < researcher < manager; a platform admin stands beside them (User.is_superuser) and has no membership.
"""

from __future__ import annotations

from enum import StrEnum


class Role(StrEnum):
    """What a member is in a tenant; Membership is the only truth about it."""

    VIEWER = "viewer"
    RESEARCHER = "researcher"
    MANAGER = "manager"


class Permission(StrEnum):
    """One verb each; tenants.access answers who has which."""

    VIEW = "view"
    SUBMIT = "submit"
    OPERATE_ANY = "operate_any"
    MANAGE_MEMBERS = "manage_members"


RANK = {Role.VIEWER: 1, Role.RESEARCHER: 2, Role.MANAGER: 3}

GRANTS: dict[Role, frozenset[Permission]] = {
    Role.VIEWER: frozenset({Permission.VIEW}),
    Role.RESEARCHER: frozenset({Permission.VIEW, Permission.SUBMIT}),
    Role.MANAGER: frozenset(Permission),
}

ADMIN_GRANTS = frozenset({Permission.VIEW, Permission.OPERATE_ANY, Permission.MANAGE_MEMBERS})
"""What a platform admin may do in any tenant. He submits nothing where he is no member."""
