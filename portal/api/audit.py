"""The audit log, and its search: by who, what, of which object and when. A request looks at a bounded part of it."""

from __future__ import annotations

from typing import Any

from django.db.models import Q
from rest_framework import serializers

from jobs.serialization import ReadSerializer, TimestampField
from portal.api import paging, permissions
from portal.api.fields import PagedQuery
from portal.api.operations import Call, operation
from portal.api.periods import aware
from tenants.models import AuditEntry
from tenants.roles import Permission


class AuditEntrySerializer(ReadSerializer):
    id = serializers.IntegerField(source="pk")
    at = TimestampField()
    actor = serializers.CharField(allow_null=True, source="actor.username")
    action = serializers.CharField()
    target = serializers.CharField(allow_blank=True)
    reason = serializers.CharField(allow_blank=True)
    details = serializers.DictField()
    request_id = serializers.CharField(allow_blank=True)


class InstallationAuditSerializer(AuditEntrySerializer):
    tenant = serializers.CharField(
        allow_null=True, source="tenant.slug", help_text="null: of the installation"
    )
    address = serializers.CharField(allow_null=True, help_text="of the client")


class AuditQuery(PagedQuery):
    actor = serializers.CharField(required=False, max_length=150, help_text="a username")
    action = serializers.CharField(
        required=False, max_length=60, help_text="job.read, or job for all that begin with it"
    )
    object = serializers.CharField(required=False, max_length=200, help_text="the target: an id or a name")
    from_ = serializers.DateTimeField(required=False, help_text="not before; without a zone UTC")
    to = serializers.DateTimeField(required=False, help_text="before; without a zone UTC")


@operation(
    authorize=permissions.for_admins,
    Out=InstallationAuditSerializer,
    Query=AuditQuery,
    many=True,
    fails=(403,),
)
def audit_of_all(call: Call) -> dict[str, Any]:
    """Who did what from where, in all tenants and in none; platform admins only, newest first.

    A search looks at a part of the log at a time: a page may have few items, or none, and more follow while `next` is
    not null.
    """
    rows = AuditEntry.objects.select_related("actor", "tenant")
    return paging.searched(call, rows, _matches(call), InstallationAuditSerializer.render)


@operation(Out=AuditEntrySerializer, Query=AuditQuery, many=True, fails=(403,))
def audit_list(call: Call, t: str) -> dict[str, Any]:
    """Who changed what in this tenant, and what platform admins viewed in it; for its managers, newest first.

    A search looks at a part of the log at a time: a page may have few items, or none, and more follow while `next` is
    not null.
    """
    tenant = permissions.tenant(call, t, Permission.MANAGE_MEMBERS)
    rows = tenant.audit.select_related("actor")
    return paging.searched(call, rows, _matches(call), AuditEntrySerializer.render)


def _matches(call: Call) -> Q:
    """The conditions of the query, all of which count; an empty one finds what has none."""
    asked, found = call.query, Q()
    if "actor" in asked:
        found &= Q(actor__username=asked["actor"])
    if "action" in asked:
        found &= Q(action=asked["action"]) | Q(action__startswith=f"{asked['action']}.")
    if "object" in asked:
        found &= Q(target=asked["object"])
    if start := aware(asked.get("from")):
        found &= Q(at__gte=start)
    if end := aware(asked.get("to")):
        found &= Q(at__lt=end)
    return found
