"""Tenant membership: adding, changing and removing members. A tenant always has at least one manager."""

from __future__ import annotations

from django.db import transaction
from django.db.models import Q, QuerySet
from django.utils import timezone

from tenants import access, audit, checks
from tenants.errors import (
    AlreadyMember,
    FieldsInvalid,
    LastManager,
    NotFound,
    OwnRoleRaised,
    VersionChanged,
    problem,
)
from tenants.models import Membership, Tenant, Token, User
from tenants.roles import RANK, Permission, Role
from tenants.signals import rights_lost


def members_of(tenant: Tenant, q: str = "") -> QuerySet[Membership]:
    """People and service accounts of the tenant, by name; q: part of a username or name, or a role.

    Addresses are not searched: those of people who have not accepted are not shown.
    """
    rows = Membership.objects.filter(tenant=tenant).select_related("user").order_by("user__username")
    if q:
        rows = rows.filter(
            Q(user__username__icontains=q)
            | Q(user__first_name__icontains=q)
            | Q(user__last_name__icontains=q)
            | Q(role=q.lower())
        )
    return rows


def managers_of(tenant: Tenant) -> QuerySet[Membership]:
    """Those who can manage it: a disabled user cannot."""
    return Membership.objects.filter(tenant=tenant, role=Role.MANAGER, user__is_active=True)


@transaction.atomic
def member_add(*, user: access.Person, tenant: Tenant, username: str, role: Role) -> Membership:
    """Make an existing person a member. Raises NotAllowed, FieldsInvalid, AlreadyMember or OwnRoleRaised."""
    access.require(user, Permission.MANAGE_MEMBERS, tenant)
    person = User.objects.filter(username=username, is_service_account=False, is_active=True).first()
    if person is None:
        wrong = problem("username", "user_not_found", "no such user; platform admins add users", username)
        raise FieldsInvalid(errors=[wrong])
    if person.pk == user.pk:
        raise OwnRoleRaised(
            "You can't add yourself to a tenant. Ask a manager of the tenant or another platform admin."
        )
    membership, made = Membership.objects.get_or_create(user=person, tenant=tenant, defaults={"role": role})
    if not made:
        text = f"{username} is already a member, as {membership.role}. Change the role instead."
        raise AlreadyMember(text, errors=[problem("username", AlreadyMember.code, text, username)])
    _record(user, tenant, "member.add", username, {"role": role.value})
    return membership


def version(membership: Membership) -> str:
    """What changes with the role, for If-Match."""
    return f'"{membership.pk}-{membership.role}"'


@transaction.atomic
def member_change(
    *, user: access.Person, tenant: Tenant, username: str, role: Role, if_match: frozenset[str] | None = None
) -> Membership:
    """Give a member another role, or one that a group gave, the same by hand: it stays without the group.

    Raises NotAllowed, NotFound, VersionChanged, OwnRoleRaised, LastManager, or FieldsInvalid for a service account as
    manager.
    """
    access.require(user, Permission.MANAGE_MEMBERS, tenant)
    membership = _locked(tenant, username)
    if if_match is not None and version(membership) not in if_match:
        raise VersionChanged(etag=version(membership))
    if membership.user.pk == user.pk and RANK[role] > RANK[Role(membership.role)]:
        raise OwnRoleRaised
    if membership.user.is_service_account:
        checks.refuse(checks.account_role(role))
    before = membership.role
    if before == role and not membership.group:
        return membership
    if before != role:
        _keep_a_manager(membership)
    membership.role, membership.group = role, ""
    membership.save(update_fields=["role", "group"])
    _record(user, tenant, "member.change", username, {"from": before, "to": role.value})
    send_role_changed(membership.user.pk, tenant)
    return membership


def send_role_changed(user_id: int, tenant: Tenant) -> None:
    """Let what the user granted by an earlier role end, if the one that they have now could not grant it."""
    changed = User.objects.get(pk=user_id)
    rights_lost.send(
        None, user=changed, because=f"the role of {changed.get_username()} in {tenant.slug} changed"
    )


@transaction.atomic
def member_remove(*, user: access.Person, tenant: Tenant, username: str) -> None:
    """End a membership and its tokens; the jobs stay. Members may remove themselves.

    Raises NotAllowed, NotFound or LastManager.
    """
    leaves = isinstance(user, User) and user.get_username() == username
    access.require(user, Permission.VIEW if leaves else Permission.MANAGE_MEMBERS, tenant)
    membership = _locked(tenant, username)
    _keep_a_manager(membership)
    Token.objects.filter(user=membership.user, tenant=tenant).delete()
    membership.delete()
    _record(user, tenant, "member.remove", username, {"role": membership.role})


@transaction.atomic
def member_accept(*, user: User, tenant: Tenant) -> Membership:
    """The caller lets the other members see their e-mail address. Raises NotFound for one who is no member."""
    membership = Membership.objects.select_related("user").filter(user=user, tenant=tenant).first()
    if membership is None:
        raise NotFound
    if membership.accepted_at is None:
        membership.accepted_at = timezone.now()
        membership.save(update_fields=["accepted_at"])
        _record(user, tenant, "member.accept", user.get_username(), {})
    return membership


def _locked(tenant: Tenant, username: str) -> Membership:
    """The membership, while the tenant's row is held: its changes come one by one, so two managers cannot leave at
    once and no two changes wait for each other."""
    Tenant.objects.select_for_update(no_key=True).get(pk=tenant.pk)
    rows = Membership.objects.select_for_update(of=("self",)).select_related("user", "tenant")
    found = rows.filter(tenant=tenant, user__username=username).first()
    if found is None:
        raise NotFound
    return found


def _keep_a_manager(membership: Membership) -> None:
    if membership.role != Role.MANAGER:
        return
    if not managers_of(membership.tenant).exclude(pk=membership.pk).exists():
        raise LastManager


def _record(user: access.Person, tenant: Tenant, action: str, target: str, details: dict[str, str]) -> None:
    audit.record(actor=user, action=action, tenant_id=tenant.pk, target=target, details=details)
