"""The views of the list of jobs: those that every list has, the user's own, and those shared with the tenant."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from django.db.models import Q
from django.http import Http404, HttpRequest, HttpResponse
from django.utils import timezone
from django.views.decorators.http import require_POST

from jobs.selectors.jobs import ENDED_WITHIN
from jobs.states import ACTIVE, State
from portal.pages.form_responses import act_and_redirect
from portal.pages.guard import in_tenant, person
from portal.pages.job_filters import Filters, listing_of, rows_of
from tenants import access
from tenants.models import SavedView, Tenant
from tenants.roles import Permission
from tenants.services import views

COUNT_CAP = 999
"""Each view's tab says how many jobs it holds, whatever else is shown."""
COMMON: tuple[tuple[str, str, Filters], ...] = (
    ("active", "Active", Filters(state="active")),
    ("mine", "Mine", Filters(owner="me")),
    ("failed", "Failed 24 h", Filters(state="FAILED", ended="24h")),
    ("all", "All", Filters()),
)


@dataclass(frozen=True)
class View:
    """One tab. row: of a saved one; may_change: whether the reader may rename, delete or share it."""

    name: str
    title: str
    filters: Filters
    current: bool
    is_default: bool
    row: SavedView | None = None
    may_change: bool = False

    @property
    def address(self) -> str:
        return self.filters.address


def context(request: HttpRequest, tenant: Tenant, filters: Filters) -> dict[str, Any]:
    """What the list shows of its views. savable: the filters are those of no view."""
    shown = _views(request, tenant, filters)
    current = next((view for view in shown if view.current), None)
    return {
        "views": shown,
        "view": current,
        "counts": counts(request, tenant, saved=True),
        "savable": current is None and not filters.problems,
        "may_share": access.may(request.user, Permission.SHARE_VIEWS, tenant.pk),
        "longest_name": views.LONGEST_NAME,
    }


def opened_first(request: HttpRequest, tenant: Tenant) -> str:
    """The query of the view that this user has chosen to open first; "" if there is none."""
    key = views.default_of(request.user, tenant)
    if not key or key == "all":
        return ""
    return next((view.address for view in _views(request, tenant, Filters()) if view.name == key), "")


def counts(request: HttpRequest, tenant: Tenant, *, saved: bool) -> dict[str, str]:
    """How many jobs each view holds, read up to the cap; each of those that every list has is one range of an index.

    saved: those of saved views, too."""
    rows, found = rows_of(request, tenant, Filters()).order_by(), {}
    for name, _, filters in COMMON:
        where = Q(owner=request.user.pk) if filters.owner else Q()
        if filters.state:
            where &= Q(state__in=ACTIVE) if filters.state == "active" else Q(state=State(filters.state))
        if filters.ended:
            where &= Q(finished_at__gt=timezone.now() - ENDED_WITHIN[filters.ended])
        count = rows.filter(where).values("pk")[: COUNT_CAP + 1].count()
        found[name] = _capped(min(count, COUNT_CAP), count > COUNT_CAP)
    for row in views.views_of(request.user, tenant) if saved else ():
        found[views.key_of(row)] = _capped(
            *listing_of(request, tenant, Filters.read(row.filters)).count(COUNT_CAP)
        )
    return found


def _capped(count: int, more: bool) -> str:
    return f"{count}+" if more else str(count)


def _views(request: HttpRequest, tenant: Tenant, shown: Filters) -> list[View]:
    default = views.default_of(request.user, tenant)
    shares = access.may(request.user, Permission.SHARE_VIEWS, tenant.pk)
    known = [(name, title, filters, None) for name, title, filters in COMMON]
    saved = [
        (views.key_of(row), row.name, replace(Filters.read(row.filters), view=views.key_of(row)), row)
        for row in views.views_of(request.user, tenant)
    ]
    every = [*known, *saved]
    equal = [name for name, _, filters, _ in every if filters.chosen == shown.chosen]
    current = shown.view if shown.view in equal else next(iter(equal), None)
    found: list[View] = []
    for name, title, filters, row in every:
        may_change = row is not None and (shares if row.shared else row.owner_id == request.user.pk)
        found.append(View(name, title, filters, name == current, name == default, row, may_change))
    return found


@require_POST
@in_tenant
def act(request: HttpRequest, tenant: Tenant) -> HttpResponse:
    """Save, rename, share, stop sharing or delete a view, or choose the one that opens first."""
    work = ACTS.get(request.POST.get("act", ""))
    if work is None:
        raise Http404
    done, do = work
    shown = Filters.read(request.POST)
    address = "view=all" if request.POST.get("act") == "delete" else shown.address
    return act_and_redirect(
        request, lambda: do(request, tenant), to=f"/t/{tenant.slug}/jobs?{address}", done=done
    )


def _save(request: HttpRequest, tenant: Tenant) -> None:
    """Under the name of a view that only this user sees, its filters become these; and it is shared, if asked."""
    user, name = person(request), request.POST.get("name", "").strip()
    filters, shared = Filters.read(request.POST).chosen, "shared" in request.POST
    same = views.views_of(user, tenant).filter(owner=user, name=name, shared=False).first()
    if same is None:
        views.view_create(user=user, tenant=tenant, name=name, filters=filters, shared=shared)
    else:
        views.view_change(user=user, tenant=tenant, view_id=same.pk, filters=filters, shared=shared)


def _change(request: HttpRequest, tenant: Tenant, **changes: Any) -> None:
    views.view_change(user=person(request), tenant=tenant, view_id=_id(request), **changes)


def _delete(request: HttpRequest, tenant: Tenant) -> None:
    views.view_delete(user=person(request), tenant=tenant, view_id=_id(request))


def _choose(request: HttpRequest, tenant: Tenant) -> None:
    """A view that the caller does not see is none to them."""
    key = request.POST.get("view", "")
    if key and key not in {view.name for view in _views(request, tenant, Filters())}:
        raise Http404
    views.default_set(user=person(request), tenant=tenant, key=key)


def _id(request: HttpRequest) -> int:
    text = request.POST.get("view", "").removeprefix("v")
    if not text.isdecimal() or len(text) > 15:
        raise Http404
    return int(text)


ACTS: dict[str, tuple[str, Callable[[HttpRequest, Tenant], None]]] = {
    "save": ("View saved.", _save),
    "rename": (
        "View renamed.",
        lambda request, tenant: _change(request, tenant, name=request.POST.get("name", "")),
    ),
    "share": ("View shared.", lambda request, tenant: _change(request, tenant, shared=True)),
    "unshare": (
        "The view is no longer shared.",
        lambda request, tenant: _change(request, tenant, shared=False),
    ),
    "delete": ("View deleted.", _delete),
    "default": ("The list of jobs now opens with this view.", _choose),
}
"""What the form does: the message when it is done, and the work."""
