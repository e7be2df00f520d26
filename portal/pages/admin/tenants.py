"""Tenants: all of them, one of them, a new one; suspended and resumed with a reason that the tenant reads."""

from __future__ import annotations

from datetime import UTC, date, timedelta
from typing import Any
from uuid import uuid4

from django.contrib import messages
from django.db import transaction
from django.db.models import Count
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.utils import timezone
from django.utils.text import slugify
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from jobs import storage
from jobs.selectors import usage
from jobs.selectors.budgets import budget_of
from jobs.selectors.jobs import detailed, job_list
from jobs.selectors.serializers import JobSerializer
from jobs.services.isolation import require_isolation_for_one_more
from jobs.services.quotas import quotas_change
from jobs.states import ACTIVE, HOLDS_GPUS, State
from portal.pages import charts, meters
from portal.pages.admin.matrix import CHANGE, Column, LimitsDraft, Matrix, matrix, not_a_limit, read_limits
from portal.pages.admin.shell import REASON_REQUIRED, frame
from portal.pages.burn import burn_of
from portal.pages.cells import row
from portal.pages.form_once import Outcome, once, say
from portal.pages.form_responses import act_and_redirect, sentence
from portal.pages.guard import admins_only, person
from tenants import audit
from tenants.errors import ServiceError, TenantError
from tenants.models import Membership, Tenant
from tenants.roles import Role
from tenants.services.images import effective_patterns
from tenants.services.members import member_add
from tenants.services.quotas import Change
from tenants.services.retention import effective_rules
from tenants.services.tenants import tenant_change, tenant_create

DAYS = 30
SHOWN = 12


@require_GET
@admins_only
def listing(request: HttpRequest) -> HttpResponse:
    drawn = matrix(person(request))
    people = Membership.objects.filter(user__is_service_account=False)
    members = dict(people.values_list("tenant").annotate(n=Count("pk")).order_by())
    managers: dict[int, list[str]] = {}
    for tenant_id, name in Membership.objects.filter(role=Role.MANAGER).values_list(
        "tenant", "user__username"
    ):
        managers.setdefault(tenant_id, []).append(name)
    rows = [
        {"row": each, "members": members.get(each.tenant.pk, 0), "managers": managers.get(each.tenant.pk, [])}
        for each in drawn.rows
    ]
    pools = [column.pool for column in drawn.columns if column.pool and column.kind != usage.CPU_TYPE]
    context = frame(request, "tenants") | {
        "matrix": drawn,
        "rows": rows,
        "members": people.values("user").distinct().count(),
        "suspended": sum(each.tenant.state == Tenant.State.SUSPENDED for each in drawn.rows),
        "running": sum(each.live.running for each in drawn.rows),
        "queued": sum(each.live.queued for each in drawn.rows),
        "gpus_used": sum(pool.used for pool in pools),
        "gpus_usable": sum(pool.slots - pool.down for pool in pools),
        "holders": [(each.tenant.name, meters.series(n)) for n, each in enumerate(drawn.rows)],
        "opportunistic": any(column.pool.opportunistic for column in drawn.columns if column.pool),
        "rest": meters.REST,
        "held": [_held(drawn, n, column) for n, column in enumerate(drawn.columns)],
    }
    return render(request, "console/tenants.html", context)


@require_GET
@admins_only
def detail(request: HttpRequest, slug: str) -> HttpResponse:
    """One tenant: 30 days of use, what runs, limits, people. Seeing its jobs is recorded in its audit log."""
    tenant = _get(slug)
    user = person(request)
    audit.admin_read(
        user=user, tenant_id=tenant.pk, action="tenant.read", target=slug, reason="admin console"
    )
    jobs = job_list(user=user, tenant=slug)
    gpus = tenant.quotas.exclude(gpu_type=usage.CPU_TYPE).exists()
    resource = request.GET.get("of") or ("gpu" if gpus else "cpu")
    live = jobs.filter(state__in=ACTIVE)
    budget = budget_of(tenant)
    members = list(Membership.objects.filter(tenant=tenant).select_related("user").order_by("user__username"))
    context = frame(request, "tenants") | {
        "tenant": tenant,
        "of": resource,
        "chart": _chart(tenant, resource),
        "jobs": [row(JobSerializer.render(job)) for job in detailed(live.only("pk")[:SHOWN])],
        "running": jobs.filter(state__in=HOLDS_GPUS).count(),
        "queued": jobs.filter(state=State.QUEUED).count(),
        "cells": next(each.cells for each in matrix(user).rows if each.tenant.pk == tenant.pk),
        "members": sorted(members, key=lambda each: each.user.is_service_account),
        "people": sum(not each.user.is_service_account for each in members),
        "events": tenant.audit.select_related("actor").order_by("-pk")[:SHOWN],
        "roles": list(Role),
        "retention": effective_rules(tenant).items(),
        "images": effective_patterns(tenant),
        "budget": budget,
        "budget_meter": meters.budget_meter(budget) if budget else None,
        "burn": burn_of(tenant, budget) if budget else None,
        "storage": meters.storage(storage.used_by(tenant.pk), tenant.storage_limit),
    }
    return render(request, "console/tenant.html", context)


@require_http_methods(["GET", "POST"])
@admins_only
def new(request: HttpRequest) -> HttpResponse:
    """A tenant with its limits and its first manager, all in one step or not at all."""
    values = {name: request.POST.get(name, "").strip() for name in ("name", "slug", "manager", "reason")}
    draft = read_limits(request.POST)
    problems: dict[str, str] = {}
    if request.method == "POST":
        problems = _create(request, values, draft)
        if not problems:
            say(request, f"{values['name']} created.")
            return HttpResponseRedirect(f"/admin-console/tenants/{values['slug']}")
    limits = {kind: str(limit) for (_, kind), limit in draft.requested.items()}
    limits |= {kind: text for (_, kind), text in draft.wrong.items()}
    columns = [
        {
            "column": column,
            "limit": limits.get(column.kind, "0"),
            "problem": problems.get(f"limit-{column.kind}", ""),
        }
        for column in matrix(person(request)).columns
    ]
    context = frame(request, "tenants") | {"values": values, "problems": problems, "columns": columns}
    return render(request, "console/tenant_new.html", context, status=422 if problems else 200)


@require_POST
@admins_only
def state(request: HttpRequest, slug: str) -> HttpResponse:
    """Suspend or resume; the service asks for the reason to be written into the audit log."""
    tenant = _get(slug)
    new_state = request.POST.get("state", "")
    reason = request.POST.get("reason", "").strip()
    back = f"/admin-console/tenants/{slug}"
    if new_state not in Tenant.State.values or not reason:
        messages.error(request, "A reason is required; the tenant sees it.")
        return HttpResponseRedirect(back)
    return act_and_redirect(
        request,
        lambda: tenant_change(user=person(request), slug=slug, changes={"state": new_state}, reason=reason),
        to=back,
        done=f"{tenant.name} is {new_state}."
        + (" Running jobs continue." if new_state == "suspended" else ""),
        level=messages.WARNING if new_state == "suspended" else messages.SUCCESS,
    )


@require_POST
@admins_only
def add_member(request: HttpRequest, slug: str) -> HttpResponse:
    tenant = _get(slug)
    name, role = request.POST.get("username", "").strip(), request.POST.get("role", "")
    back = f"/admin-console/tenants/{slug}"
    if not name or role not in set(Role):
        messages.error(request, "Enter a username and choose one of the three roles.")
        return HttpResponseRedirect(back)
    return act_and_redirect(
        request,
        lambda: member_add(user=person(request), tenant=tenant, username=name, role=Role(role)),
        to=back,
        done=f"{name} is now a {role} of {tenant}.",
    )


def _held(drawn: Matrix, index: int, column: Column) -> dict[str, Any]:
    """One pool by tenant, in the order and the colors of the table; what opportunistic jobs hold is of no tenant's
    quota."""
    free, down = (column.pool.free, column.pool.down) if column.pool else (0, 0)
    rows = [(each.tenant.name, meters.series(n), each.cells[index].used) for n, each in enumerate(drawn.rows)]
    idle = column.pool.opportunistic if column.pool else 0
    beside = [("opportunistic jobs", meters.REST, idle)] if idle else []
    meter = meters.held_meter(column.kind, [*rows, *beside], free=free, down=down)
    return {
        "column": column,
        "meter": meter,
        "used": sum(used for _, _, used in rows),
        "opportunistic": idle,
    }


def _get(slug: str) -> Tenant:
    tenant = Tenant.objects.filter(slug=slug).first()
    if tenant is None:
        raise Http404
    return tenant


def _missing(values: dict[str, str], draft: LimitsDraft) -> dict[str, str]:
    problems = {f"limit-{kind}": not_a_limit(text) for (_, kind), text in draft.wrong.items()}
    if not 1 <= len(values["name"]) <= 120:
        problems["name"] = "Enter a name of at most 120 characters."
    if values["slug"] != slugify(values["slug"]) or not 1 <= len(values["slug"]) <= 40:
        problems["slug"] = (
            "Use lowercase letters, digits and dashes, at most 40 characters; the slug is used in URLs."
        )
    if not values["reason"]:
        problems["reason"] = REASON_REQUIRED
    return problems


class _Refused(Exception):
    """Nothing was created. problems: everything that is wrong, by field."""

    def __init__(self, problems: dict[str, str]) -> None:
        super().__init__()
        self.problems = problems


def _create(request: HttpRequest, values: dict[str, str], draft: LimitsDraft) -> dict[str, str]:
    """Create it, or nothing: then everything that is wrong, by field."""

    def create() -> Outcome:
        if problems := _attempt(request, values, draft):
            raise _Refused(problems)
        return {}

    try:
        once(request, create)
    except _Refused as refused:
        return refused.problems
    except ServiceError as error:
        return {"reason": sentence(error.message)}
    return {}


def _attempt(request: HttpRequest, values: dict[str, str], draft: LimitsDraft) -> dict[str, str]:
    """Create it; where something is wrong, roll back and return it by field.

    Where a value is wrong a placeholder takes its place, so that the steps behind it say what they miss, too.
    """
    user = person(request)
    problems = _missing(values, draft)
    reason, spare = values["reason"] or "to be given", f"placeholder-{uuid4().hex[:12]}"

    def make(slug: str) -> Tenant:
        with transaction.atomic():
            return tenant_create(user=user, slug=slug, name=values["name"][:120] or spare, reason=reason)

    with transaction.atomic():
        try:
            require_isolation_for_one_more()
            made = make(spare if "slug" in problems else values["slug"])
        except TenantError as error:
            problems |= _by_field(error, "slug", [])
            made = make(spare)
        changes = [Change(made.slug, kind, limit, 0) for (_, kind), limit in draft.requested.items() if limit]
        try:
            if changes:
                quotas_change(user=user, changes=changes, reason=reason)
        except TenantError as error:
            problems |= _by_field(error, "limits", [f"limit-{change.gpu_type}" for change in changes])
        try:
            if values["manager"]:
                member_add(user=user, tenant=made, username=values["manager"], role=Role.MANAGER)
        except TenantError as error:
            problems |= _by_field(error, "manager", [])
        if problems:
            transaction.set_rollback(True)
    return problems


def _by_field(error: TenantError, otherwise: str, limits: list[str]) -> dict[str, str]:
    """Sentences of a service by field of the form."""
    found: dict[str, str] = {}
    for each in error.details.get("errors") or [{"path": "", "message": error.message}]:
        index = CHANGE.match(each["path"])
        found[limits[int(index[1])] if index else otherwise] = sentence(each["message"])
    return found


def _chart(tenant: Tenant, resource: str) -> charts.Bars:
    """30 days by slot type; GPU-hours and CPU-hours are never added up."""
    now = timezone.now()
    today = now.astimezone(UTC).date()
    first = today - timedelta(days=DAYS - 1)
    start = now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=DAYS - 1)
    found = usage.usage_of(tenant, start=start, end=now, by=usage.By.DAY)
    values = {
        (date.fromisoformat(use.key), use.gpu_type): use.used / 3600
        for use in found
        if (use.gpu_type == usage.CPU_TYPE) == (resource == "cpu")
    }
    return charts.stacked_days(values, first=first, days=DAYS, today=today)
