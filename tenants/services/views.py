"""Saved views: filters of a tenant's list of jobs that a user keeps under a name, and may share with the tenant.

A view gives no access to a job: it is read with the rights of the user who opens it. A shared one belongs to the
tenant: those who may share change it, and each change is in the audit log. What the filters mean is the list's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.db import transaction
from django.db.models import Q, QuerySet

from tenants import access, audit, checks
from tenants.errors import NameTaken, NotAllowed, NotFound, problem
from tenants.models import SavedView, Tenant, User
from tenants.roles import Permission
from tenants.services.users import preference_set

FILTERS = ("q", "state", "owner", "tag", "gpu_type", "project", "opportunistic", "ended")
MOST_OWN, MOST_SHARED = 12, 12
"""Of one user in one tenant, and shared in one tenant: each is a tab, whose jobs are counted."""
LONGEST_NAME, LONGEST_TEXT = 40, 120
DEFAULTS = "job_views"
"""Key among a user's preferences: by tenant, the view that opens with the list of jobs."""


def views_of(user: access.Person, tenant: Tenant) -> QuerySet[SavedView]:
    """The caller's own views in this tenant and those that are shared there, oldest first."""
    access.require(user, Permission.VIEW, tenant)
    return (
        SavedView.objects.filter(Q(owner=user.pk) | Q(shared=True), tenant=tenant)
        .select_related("owner")
        .order_by("pk")
    )


@transaction.atomic
def view_create(
    *, user: User, tenant: Tenant, name: str, filters: Mapping[str, str], shared: bool = False
) -> SavedView:
    """Save filters under a name. Raises NotFound, NotAllowed, FieldsInvalid, NameTaken."""
    _require(user, tenant, shared=shared)
    name = name.strip()
    _lock(tenant)
    checks.refuse(*_problems(name, filters), _too_many(tenant, owner=user), _too_many_shared(tenant, shared))
    _refuse_taken(_namesakes(tenant, user, shared=shared), name)
    row = SavedView.objects.create(tenant=tenant, owner=user, name=name, filters=dict(filters), shared=shared)
    if shared:
        _record(user, row.name, tenant, "view.share", {"filters": row.filters})
    return row


@transaction.atomic
def view_change(
    *,
    user: User,
    tenant: Tenant,
    view_id: int,
    name: str | None = None,
    filters: Mapping[str, str] | None = None,
    shared: bool | None = None,
) -> SavedView:
    """Change what is given. Of a view that another user shared, one who stops that changes nothing else: it is that
    user's own by then. Raises as view_create."""
    _lock(tenant)
    row = _get(user, tenant, view_id)
    before, was_shared = {"name": row.name, "filters": row.filters}, row.shared
    row.shared = was_shared if shared is None else shared
    _require(user, tenant, shared=was_shared or row.shared)
    row.name = row.name if name is None else name.strip()
    row.filters = row.filters if filters is None else dict(filters)
    after = {"name": row.name, "filters": row.filters}
    changed = {key: {"from": before[key], "to": after[key]} for key in after if before[key] != after[key]}
    still_seen = row.shared or row.owner_id == user.pk
    if changed and not still_seen:
        raise NotAllowed("A view that is no longer shared is changed by its owner alone.")
    checks.refuse(*_problems(row.name, row.filters), _too_many_shared(tenant, row.shared and not was_shared))
    if still_seen:  # else a refusal would say which views of their own its owner has
        _refuse_taken(_namesakes(tenant, row.owner, shared=row.shared).exclude(pk=row.pk), row.name)
    row.save()
    if was_shared and not row.shared:
        _record(user, before["name"], tenant, "view.unshare", _unshared(before["filters"], changed))
    elif row.shared and not was_shared:
        _record(user, row.name, tenant, "view.share", {"filters": row.filters})
    elif row.shared and changed:
        _record(user, row.name, tenant, "view.change", changed)
    return row


@transaction.atomic
def view_delete(*, user: User, tenant: Tenant, view_id: int) -> None:
    """Raises NotFound, NotAllowed."""
    _lock(tenant)
    row = _get(user, tenant, view_id)
    _require(user, tenant, shared=row.shared)
    if row.shared:
        _record(user, row.name, tenant, "view.delete", {"filters": row.filters})
    row.delete()


def default_of(user: access.Person, tenant: Tenant) -> str:
    """The key of the view that opens with the caller's list of jobs; "" if none was chosen. It may be gone."""
    chosen = getattr(user, "preferences", {}).get(DEFAULTS) or {}
    return str(chosen.get(str(tenant.pk), ""))


def default_set(*, user: User, tenant: Tenant, key: str) -> None:
    """Choose that view; "": none. Raises NotFound, NotAllowed."""
    _require(user, tenant)
    with transaction.atomic():
        row = User.objects.select_for_update(no_key=True).get(pk=user.pk)
        chosen = {**(row.preferences.get(DEFAULTS) or {}), str(tenant.pk): key}
        preference_set(user, DEFAULTS, {pk: one for pk, one in chosen.items() if one})


def key_of(row: SavedView) -> str:
    """What names a saved view among all views of a list."""
    return f"v{row.pk}"


def name_problem(name: str) -> dict[str, Any] | None:
    return checks.text("name", name, LONGEST_NAME)


def _require(user: User, tenant: Tenant, *, shared: bool = False) -> None:
    access.require(user, Permission.SHARE_VIEWS if shared else Permission.VIEW, tenant)
    access.require_writes(user)


def _get(user: User, tenant: Tenant, view_id: int) -> SavedView:
    row = views_of(user, tenant).filter(pk=view_id).first()
    if row is None:
        raise NotFound
    return row


def _lock(tenant: Tenant) -> None:
    """Views of a tenant are changed one after the other, so that they are counted right."""
    Tenant.objects.select_for_update(no_key=True).get(pk=tenant.pk)


def _problems(name: str, filters: Mapping[str, str]) -> list[dict[str, Any] | None]:
    found = [name_problem(name)]
    if not filters:
        found.append(problem("filters", "required", "must have at least one filter"))
    for key, value in filters.items():
        if key not in FILTERS:
            found.append(
                problem(
                    f"filters.{key}",
                    "unknown_field",
                    f"must be one of {', '.join(FILTERS)}",
                    key,
                    list(FILTERS),
                )
            )
        else:
            found.append(checks.text(f"filters.{key}", value, LONGEST_TEXT))
    return found


def _too_many(tenant: Tenant, owner: User) -> dict[str, Any] | None:
    if SavedView.objects.filter(tenant=tenant, owner=owner).count() < MOST_OWN:
        return None
    return problem(
        "name", "too_many", f"you can save {MOST_OWN} views here: delete one first", None, MOST_OWN
    )


def _too_many_shared(tenant: Tenant, shared: bool) -> dict[str, Any] | None:
    if not shared or SavedView.objects.filter(tenant=tenant, shared=True).count() < MOST_SHARED:
        return None
    text = f"a tenant can share {MOST_SHARED} views: delete one first"
    return problem("shared", "too_many", text, None, MOST_SHARED)


def _namesakes(tenant: Tenant, owner: User, *, shared: bool) -> QuerySet[SavedView]:
    """Among which a name is taken once: the shared ones of a tenant, and those that a user keeps there alone."""
    rows = SavedView.objects.filter(tenant=tenant, shared=shared)
    return rows if shared else rows.filter(owner=owner)


def _refuse_taken(rows: QuerySet[SavedView], name: str) -> None:
    if rows.filter(name=name).exists():
        raise NameTaken(f'There is a view "{name}" already: choose another name.', path="name", got=name)


def _unshared(filters: Mapping[str, str], changed: Mapping[str, Any]) -> dict[str, Any]:
    """What was shared until then, and which of it its owner changed with that; to what is theirs alone."""
    return {"filters": filters} | ({"changed": sorted(changed)} if changed else {})


def _record(user: User, name: str, tenant: Tenant, action: str, details: dict[str, Any]) -> None:
    audit.record(actor=user, action=action, tenant_id=tenant.pk, target=name, details=details)
