"""Roles within a tenant and what each grants. Pure: no Django.

viewer < researcher < manager; a platform admin (User.is_superuser) is outside this order and needs no membership.
"""

from __future__ import annotations

from enum import StrEnum


class Role(StrEnum):
    """A member's role in a tenant, stored in Membership."""

    VIEWER = "viewer"
    RESEARCHER = "researcher"
    MANAGER = "manager"


class Permission(StrEnum):
    """One verb each; tenants.access answers who has which."""

    VIEW = "view"
    SUBMIT = "submit"
    OPERATE_ANY = "operate_any"
    MANAGE_MEMBERS = "manage_members"
    MANAGE_SECRETS = "manage_secrets"
    MANAGE_PROJECTS = "manage_projects"
    SHARE_VIEWS = "share_views"


RANK = {Role.VIEWER: 1, Role.RESEARCHER: 2, Role.MANAGER: 3}

GRANTS: dict[Role, frozenset[Permission]] = {
    Role.VIEWER: frozenset({Permission.VIEW}),
    Role.RESEARCHER: frozenset({Permission.VIEW, Permission.SUBMIT}),
    Role.MANAGER: frozenset(Permission),
}

ADMIN_GRANTS = frozenset(Permission) - {Permission.SUBMIT}
"""What a platform admin may do in any tenant. Submitting jobs takes a membership."""
