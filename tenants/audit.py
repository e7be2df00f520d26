"""The audit log: who did what from where, what was downloaded, and what platform admins read in tenants of others."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from datetime import timedelta
from typing import Any

from django.db import transaction
from django.db.models.functions import Now

from tenants import access, audit_chain, notices
from tenants.models import AuditEntry, AuditSeal, User

logger = logging.getLogger(__name__)

REPEAT_AFTER = timedelta(minutes=10)
"""The same reading by the same admin within this time is one entry: a page that follows a job reads it often."""

EXPORTED = 1000
"""Entries that are read at a time for an export."""

request_id: ContextVar[str] = ContextVar("request_id", default="")
"""Set for each request, so that an audit entry can be matched with the log."""
access_reason: ContextVar[str] = ContextVar("access_reason", default="")
"""Set for each request: the reason that a platform admin gave for working in a tenant of others."""

source_address: ContextVar[str | None] = ContextVar("source_address", default=None)
"""Set for each request: the client's address, as LUTHIER_TRUSTED_PROXIES lets it be known."""

OF_ADMINS_ALONE = frozenset({"job.cancel", "job.checkpoint", "job.edit", "job.halt", "job.resume"})
"""Changes by admin_act: those of members are in the history of the job."""

REASON_HEADER, REASON_PARAMETER = "X-Access-Reason", "access_reason"


def reason_given(header: str | None, parameter: str | None) -> str:
    """The reason that came with a request or a handshake: printable, at most 500 characters."""
    return "".join(letter for letter in header or parameter or "" if letter.isprintable())[:500]


def record(
    *,
    actor: access.Person | None,
    action: str,
    tenant_id: int | None = None,
    target: str = "",
    reason: str = "",
    details: dict[str, Any] | None = None,
) -> AuditEntry:
    """Write one entry, within the caller's transaction: if it cannot be written, the change is rolled back.

    What it says of a user's account is noted for the user as well (tenants.notices), both or neither.
    """
    with transaction.atomic(savepoint=False):
        entry = AuditEntry.objects.create(
            tenant_id=tenant_id,
            actor=actor if isinstance(actor, User) else None,
            action=action,
            target=_cut(target),
            reason=reason[:500],
            details=details or {},
            request_id=request_id.get(),
            address=source_address.get(),
        )
        notices.note(entry)
    return entry


def admin_read(
    *, user: access.Person, tenant_id: int, action: str, target: str = "", reason: str = ""
) -> None:
    """Record that a platform admin read something of a tenant of which they are not a member. Other readers
    leave no entry."""
    admin_reads(user=user, targets={tenant_id: target}, action=action, reason=reason)


def admin_reads(*, user: access.Person, targets: Mapping[int, str], action: str, reason: str = "") -> None:
    """As admin_read, for what was read of several tenants at once. targets: tenant -> what."""
    if not targets or not access.is_platform_admin(user):
        return
    own = set(access.memberships(user).filter(tenant__in=targets).values_list("tenant", flat=True))
    seen = AuditEntry.objects.filter(
        actor=user.pk, action=action, tenant__in=targets, at__gt=Now() - REPEAT_AFTER
    )
    if reason:
        seen = seen.filter(reason=reason[:500])
    known = set(
        seen.filter(target__in={_cut(target) for target in targets.values()}).values_list("tenant", "target")
    )
    for tenant_id, target in targets.items():
        if tenant_id not in own and (tenant_id, _cut(target)) not in known:
            record(actor=user, action=action, tenant_id=tenant_id, target=target, reason=reason)


def downloaded(*, user: User, tenant_id: int, action: str, target: str, reason: str = "") -> None:
    """Record a download by any user; a repeated one, such as each range of a file, is one entry."""
    recent = AuditEntry.objects.filter(
        actor=user.pk, action=action, target=_cut(target), tenant=tenant_id, at__gt=Now() - REPEAT_AFTER
    )
    if reason:
        recent = recent.filter(reason=reason[:500])
    if not recent.exists():
        record(actor=user, action=action, tenant_id=tenant_id, target=target, reason=reason)


def export(*, after: int = 0) -> Iterator[dict[str, Any]]:
    """Every entry after this id, oldest first, as plain values, with its place in the chain once it has one."""
    while True:
        rows = list(
            AuditEntry.objects.filter(pk__gt=after)
            .select_related("actor", "tenant")
            .order_by("pk")[:EXPORTED]
        )
        seals = {
            seal.entry_id: seal for seal in AuditSeal.objects.filter(entry_id__in=[row.pk for row in rows])
        }
        for row in rows:
            yield _values(row, seals.get(row.pk))
        if len(rows) < EXPORTED:
            return
        after = rows[-1].pk


def sealed(*, after: int = 0) -> Iterator[dict[str, Any]]:
    """Every entry behind this place in the chain, in its order. Who continues from the last one's misses none, which
    by ids they would: an id is given before its entry is committed."""
    while True:
        seals = list(AuditSeal.objects.filter(n__gt=after).order_by("n")[:EXPORTED])
        rows = AuditEntry.objects.select_related("actor", "tenant").in_bulk([seal.entry_id for seal in seals])
        for seal in seals:
            if seal.entry_id in rows:
                yield _values(rows[seal.entry_id], seal)
        _report_missing([seal.n for seal in seals if seal.entry_id not in rows])
        if len(seals) < EXPORTED:
            return
        after = seals[-1].n


def _report_missing(places: list[int]) -> None:
    """What retention has removed says so by now: it marks a seal as it removes its entry, and counts the marks. The
    rest was removed by another hand."""
    if places and (words := audit_chain.unrecorded()):
        logger.error("entries of the audit log are missing", extra={"marks": words})
    missing = AuditSeal.objects.filter(n__in=places, removed=False).order_by("n").values_list("n", flat=True)
    if places and (found := list(missing[:20])):
        logger.error("entries of the audit log are missing", extra={"seals": found})


def _values(row: AuditEntry, seal: AuditSeal | None) -> dict[str, Any]:
    return {
        "id": row.pk,
        "at": row.at,
        "actor": row.actor.get_username() if row.actor else None,
        "action": row.action,
        "tenant": row.tenant.slug if row.tenant else None,
        "target": row.target,
        "reason": row.reason,
        "details": row.details,
        "request_id": row.request_id,
        "address": row.address,
        "seal": {"n": seal.n, "hash": seal.hash} if seal else None,
    }


def admin_act(*, user: access.Person, tenant_id: int, action: str, target: str) -> None:
    """Record that a platform admin changed something in a tenant of others, within the change's transaction."""
    if access.is_platform_admin(user) and not access.memberships(user).filter(tenant=tenant_id).exists():
        record(actor=user, action=action, tenant_id=tenant_id, target=target, reason=access_reason.get())


def lacks_reason(entry: AuditEntry) -> bool:
    """Whether a platform admin did this in a tenant of others without saying why, which no one has to."""
    of_admins = entry.action in OF_ADMINS_ALONE or entry.action.endswith((".read", ".list"))
    return entry.tenant_id is not None and of_admins and not entry.reason


def _cut(target: str) -> str:
    return target[: AuditEntry._meta.get_field("target").max_length]
