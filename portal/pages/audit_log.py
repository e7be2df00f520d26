"""The audit log: what people changed, what platform admins read, and every limit that was set, in one order of time.

Admins see that of all tenants in their console, the managers of a tenant that of theirs.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

from django.core.exceptions import PermissionDenied
from django.db.models import OuterRef, Q, QuerySet, Subquery
from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import render
from django.utils.dateparse import parse_datetime
from django.views.decorators.http import require_GET

from portal.pages.admin.shell import frame as admin_frame
from portal.pages.guard import admins_only, in_tenant
from portal.pages.shell import frame
from tenants import access, audit, search
from tenants.errors import NotAllowed
from tenants.models import AUDIT_TERMS, AuditEntry, QuotaChange, Tenant, User
from tenants.roles import Permission
from tenants.services.quotas import LIMIT_SET, WHOLE

PER_PAGE = 50
NO_REASON = "No reason given"
SAME_CHANGE = timedelta(minutes=1)
"""A changed limit (LIMIT_SET) is listed by its row of the quota history, which says from what to what, with what its
entry adds: both are written in one transaction, the entry first. Rows of versions that wrote no such entries have none.
"""

CURSOR = re.compile(r"(\d{4}-[0-9T:.+-]{10,30})~([01])~(\d{1,18})")
ENTRY, CHANGE = 0, 1


@dataclass(frozen=True)
class Place:
    """A row's position in the order: later first, and of one instant the entries after the limits."""

    at: datetime
    table: int
    pk: int

    @property
    def address(self) -> str:
        return f"{self.at.isoformat()}~{self.table}~{self.pk}"

    @classmethod
    def read(cls, text: str) -> Place | None:
        found = CURSOR.fullmatch(text)
        try:
            at = parse_datetime(found.group(1)) if found else None
        except ValueError:
            return None
        return cls(at, int(found.group(2)), int(found.group(3))) if found and at and at.tzinfo else None

    def rows_after(self, table: int) -> Q:
        """What of a table comes after this place in the list."""
        older = Q(at__lt=self.at)
        if table == self.table:
            return older | Q(at=self.at, pk__lt=self.pk)
        return older | Q(at=self.at) if table < self.table else older


@dataclass(frozen=True)
class Days:
    """The days (UTC) of which entries are asked for: the first and the last one, each if it is given."""

    first: date | None = None
    last: date | None = None
    problem: str = ""

    @classmethod
    def read(cls, query: QueryDict) -> Days:
        """A wrong day is a problem; then all days are shown."""
        try:
            first, last = (
                date.fromisoformat(text) if (text := query.get(name, "").strip()) else None
                for name in ("from", "to")
            )
        except ValueError:
            return cls(problem="Give days such as 2026-11-25, or leave them empty.")
        if first and last and last < first:
            return cls(problem="The first day must not be after the last one.")
        return cls(first, last)

    @property
    def rows(self) -> Q:
        """What of a table is within them."""
        found = Q()
        if self.first:
            found &= Q(at__gte=datetime.combine(self.first, time(), UTC))
        if self.last:
            found &= Q(at__lte=datetime.combine(self.last, time.max, UTC))
        return found


@require_GET
@admins_only
def of_all(request: HttpRequest) -> HttpResponse:
    """Everything, for platform admins."""
    return _rendered(request, "console/audit.html", admin_frame(request, "audit"), None)


@require_GET
@in_tenant
def of_tenant(request: HttpRequest, tenant: Tenant) -> HttpResponse:
    """What was done in one tenant, for its managers."""
    try:
        access.require(request.user, Permission.MANAGE_MEMBERS, tenant)
    except NotAllowed as error:
        raise PermissionDenied(error.message) from error
    return _rendered(request, "tenant/audit.html", frame(request, tenant, "audit"), tenant)


def _rendered(
    request: HttpRequest, template: str, context: dict[str, Any], tenant: Tenant | None
) -> HttpResponse:
    """Newest first, a page at a time from a place in the list, so that what comes meanwhile moves nothing."""
    q = request.GET.get("q", "").strip()[:120]
    days = Days.read(request.GET)
    start = Place.read(request.GET.get("before", ""))
    found = _rows(tenant, q, days, start)
    shown = found[:PER_PAGE]
    context |= {
        "rows": [row for _, row in shown],
        "q": q,
        "asked": {name: request.GET.get(name, "").strip()[:10] for name in ("from", "to")},
        "problem": days.problem,
        "older": shown[-1][0].address if len(found) > PER_PAGE else "",
        "newest": start is None,
    }
    return render(request, template, context, status=422 if days.problem else 200)


def _rows(
    tenant: Tenant | None, q: str, days: Days, start: Place | None
) -> list[tuple[Place, dict[str, Any]]]:
    """One more than a page of both tables together: each is asked for as many, in its own order."""
    entries = AuditEntry.objects.filter(days.rows).exclude(action=LIMIT_SET)
    changes = QuotaChange.objects.filter(days.rows).exclude(gpu_type=WHOLE)  # its entry is tenant.change
    if tenant is not None:
        entries, changes = entries.filter(tenant=tenant), changes.filter(tenant=tenant)
    if q:
        # By ids: with joins in the condition, each row of the log would be joined to be compared.
        actors = list(User.objects.filter(username=q).values_list("pk", flat=True))
        tenants = list(Tenant.objects.filter(slug=q).values_list("pk", flat=True))
        common = Q(actor__in=actors) | Q(tenant__in=tenants)
        text = Q(action__icontains=q) | Q(target__icontains=q)
        found = search.find(
            entries,
            AUDIT_TERMS,
            q,
            matches=common | text,
            text_matches=text,
            tenants=None if tenant is None else [tenant.pk],
            also=[*search.marks("person", actors), *search.marks("tenant", tenants)],
        )
        entries = entries.filter(common | text if found is None else Q(pk__in=found))
        if q.lower() not in LIMIT_SET:
            changes = changes.filter(common | Q(gpu_type__icontains=q))
    listed = list(_part(changes.annotate(entry=Subquery(_entry_of_change())), CHANGE, start))
    of_changes = AuditEntry.objects.select_related("tenant", "actor").in_bulk(
        [row.entry for row in listed if row.entry is not None]
    )
    places = [(Place(row.at, ENTRY, row.pk), _described(row)) for row in _part(entries, ENTRY, start)]
    places += [
        (Place(row.at, CHANGE, row.pk), _described_limit(row, of_changes.get(row.entry))) for row in listed
    ]
    return sorted(places, key=lambda one: (one[0].at, one[0].table, one[0].pk), reverse=True)[: PER_PAGE + 1]


def _part(rows: QuerySet[Any], table: int, start: Place | None) -> QuerySet[Any]:
    rows = rows.select_related("tenant", "actor").order_by("-at", "-pk")
    return (rows.filter(start.rows_after(table)) if start else rows)[: PER_PAGE + 1]


def _entry_of_change() -> QuerySet[Any, Any]:
    """The id of the entry that was written with a row of the quota history."""
    near = Q(at__lte=OuterRef("at"), at__gt=OuterRef("at") - SAME_CHANGE)
    same = Q(action=LIMIT_SET, tenant=OuterRef("tenant"), target=OuterRef("gpu_type"))
    return AuditEntry.objects.filter(near, same).order_by("-at", "-pk").values("pk")[:1]


def _described(row: AuditEntry) -> dict[str, Any]:
    facts = [(name.replace("_", " "), _text(value)) for name, value in row.details.items()]
    reason = NO_REASON if audit.lacks_reason(row) else row.reason
    return {"row": row, "action": row.action, "target": row.target, "reason": reason, "facts": facts}


def _described_limit(row: QuotaChange, entry: AuditEntry | None) -> dict[str, Any]:
    limit = (row.old_limit, row.new_limit) if row.old_limit != row.new_limit else None
    described = _described(entry) if entry else {"row": row, "action": LIMIT_SET, "reason": row.reason}
    return described | {"target": row.gpu_type, "limit": limit}


def _text(value: Any) -> str:
    """A fact of an entry as it is kept, which may be a whole diff."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, sort_keys=True)
