"""Who belongs to a tenant, and as what; managers add, change and remove."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.db.models import Count, Q
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_GET, require_POST

from jobs.models import Job
from jobs.selectors import usage
from jobs.states import ACTIVE
from portal.pages.form_once import Outcome, once, say
from portal.pages.form_responses import act_and_redirect, problems_of
from portal.pages.guard import in_tenant
from portal.pages.shell import frame
from tenants import access
from tenants.errors import NotAllowed, ServiceError
from tenants.models import Membership, Tenant
from tenants.roles import Permission, Role
from tenants.services.members import managers_of, member_add, member_change, member_remove, members_of

PER_PAGE = 50
ROLES = (
    (Role.VIEWER, "Can view jobs, logs, metrics and quotas; can't run jobs."),
    (
        Role.RESEARCHER,
        "Can also submit and clone jobs, halt, resume, save and cancel their own, and use the whole quota.",
    ),
    (Role.MANAGER, "Can also manage everyone’s jobs, members and service accounts. Can't change quotas."),
)


@require_GET
@in_tenant
def listing(request: HttpRequest, tenant: Tenant) -> HttpResponse:
    """Everybody with role, last sign-in, live jobs and this month's use."""
    return _page(request, tenant)


def _page(request: HttpRequest, tenant: Tenant, problems: Sequence[str] = ()) -> HttpResponse:
    """problems: what is wrong with the form of a new member, which keeps what was typed."""
    q = request.GET.get("q", "").strip()[:120]
    found = members_of(tenant, q)
    page = Paginator(found.filter(user__is_service_account=False), PER_PAGE).get_page(request.GET.get("page"))
    shown = _rows(tenant, [*page, *found.filter(user__is_service_account=True)])
    everyone = members_of(tenant).filter(user__is_service_account=False).order_by()
    counts = dict(everyone.values_list("role").annotate(Count("pk")))
    context = frame(request, tenant, "members") | {
        "page": page,
        "q": q,
        "total": sum(counts.values()),
        "people": [row for row in shown if not row["is_service_account"]],
        "programs": [row for row in shown if row["is_service_account"]],
        "manages": access.may(request.user, Permission.MANAGE_MEMBERS, tenant.pk),
        "roles": [{"role": role, "text": text, "count": counts.get(role, 0)} for role, text in ROLES],
        "problems": problems,
        "typed": request.POST.get("username", "") if problems else "",
        "chosen": _role(request) or Role.RESEARCHER,
    }
    return render(request, "tenant/members.html", context, status=422 if problems else 200)


@require_POST
@in_tenant
def add(request: HttpRequest, tenant: Tenant) -> HttpResponse:
    """A form that is wrong comes back as it was sent, with what is wrong beside it."""
    name, role = request.POST.get("username", "").strip(), _role(request)
    try:
        access.require(request.user, Permission.MANAGE_MEMBERS, tenant)
        if not name or role is None:
            return _page(request, tenant, ["Enter a username and choose one of the three roles."])
        once(request, lambda: _added(request, tenant, name, role))
    except NotAllowed as error:
        raise PermissionDenied(error.message) from error
    except ServiceError as error:
        return _page(request, tenant, problems_of(error))
    say(request, f"{name} is now a {role} of {tenant}.")
    return HttpResponseRedirect(f"/t/{tenant.slug}/members")


def _added(request: HttpRequest, tenant: Tenant, name: str, role: Role) -> Outcome:
    member_add(user=request.user, tenant=tenant, username=name, role=role)
    return {}


@require_POST
@in_tenant
def change(request: HttpRequest, tenant: Tenant, username: str) -> HttpResponse:
    """Give another role, or with remove=yes none at all."""
    back = f"/t/{tenant.slug}/members" + (f"?{request.GET.urlencode()}" if request.GET else "")
    who: Any = request.user
    if request.POST.get("remove"):
        leaves = username == who.get_username()
        return act_and_redirect(
            request,
            lambda: member_remove(user=who, tenant=tenant, username=username),
            to="/" if leaves else back,
            done=f"{'You are' if leaves else f'{username} is'} no longer a member of {tenant}. Jobs stay.",
        )
    role = _role(request)
    if role is None:
        messages.error(request, "Choose one of the three roles.")
        return HttpResponseRedirect(back)
    return act_and_redirect(
        request,
        lambda: member_change(user=who, tenant=tenant, username=username, role=role),
        to=back,
        done=f"{username} is now a {role} of {tenant}.",
    )


def month_start(now: datetime | None = None) -> datetime:
    """The first instant of this month, UTC: usage is counted by UTC days."""
    return (now or timezone.now()).astimezone(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)


def gpu_hours(rows: list[usage.Usage]) -> dict[str, float]:
    """GPU-hours by key; CPU slots are counted apart and left out here."""
    hours: dict[str, float] = {}
    for row in rows:
        if row.gpu_type != usage.CPU_TYPE:
            hours[row.key] = hours.get(row.key, 0.0) + row.used / 3600
    return hours


def _rows(tenant: Tenant, rows: Iterable[Membership]) -> list[dict[str, Any]]:
    """What the page shows of these memberships, with live jobs and the month's use."""
    hours = gpu_hours(usage.usage_of(tenant, start=month_start(), end=timezone.now(), by=usage.By.USER))
    live = Q(deleted_at=None, state__in=ACTIVE)
    running = dict(
        Job.objects.filter(live, tenant=tenant).values_list("owner").annotate(n=Count("pk")).order_by()
    )
    managers = list(managers_of(tenant).values_list("pk", flat=True)[:2])
    return [
        {
            "username": row.user.get_username(),
            "is_service_account": row.user.is_service_account,
            "name": row.user.get_full_name() or row.shown_email,
            "role": row.role,
            "group": row.group,
            "only_manager": row.role == Role.MANAGER and managers in ([], [row.pk]),
            "seen_at": row.user.last_login,
            "running": running.get(row.user.pk, 0),
            "hours": hours.get(row.user.get_username(), 0.0),
            "since": row.created_at,
        }
        for row in rows
    ]


def _role(request: HttpRequest) -> Role | None:
    requested = request.POST.get("role", "")
    return Role(requested) if requested in set(Role) else None
