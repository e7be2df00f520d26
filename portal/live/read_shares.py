"""`tenant:{t}:quotas` and `cluster`: small states, sent whole whenever they change."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from django.db.models import F, Max, Sum

from jobs.models import Attempt, ClusterNode, Job, JobEvent
from jobs.states import State
from portal.live.frames import items_frame
from portal.live.names import Channel
from portal.live.sources import Page, Source, Want
from tenants.models import Quota, QuotaChange


class QuotaSource(Source):
    """Cursor: counts the tenant's events and quota changes, so it never goes back. Items: all its quotas."""

    missed_is_fetched = False

    def head(self, channel: Channel) -> int:
        events = JobEvent.objects.filter(tenant__slug=channel.tenant).aggregate(newest=Max("id"))
        changes = QuotaChange.objects.filter(tenant__slug=channel.tenant).aggregate(newest=Max("id"))
        return (events["newest"] or 0) + (changes["newest"] or 0)

    def read(self, wants: Sequence[Want]) -> dict[str, Page]:
        return {
            want.channel.name: _page(want, self.head(want.channel), quotas(want.channel.tenant))
            for want in wants
        }


class ClusterSource(Source):
    """Cursor: the newest event of all. Items: nodes with what is used of them; nobody's job is named."""

    missed_is_fetched = False

    def head(self, channel: Channel) -> int:
        return JobEvent.objects.aggregate(newest=Max("id"))["newest"] or 0

    def read(self, wants: Sequence[Want]) -> dict[str, Page]:
        head, items = self.head(wants[0].channel), nodes()
        return {want.channel.name: _page(want, head, items) for want in wants}


def quotas(tenant: str) -> list[dict[str, Any]]:
    """Limit, use and what waits, by slot type; a job that takes any type is not counted as waiting for one."""
    waiting = dict(
        Job.objects.filter(tenant__slug=tenant, state=State.QUEUED, deleted_at=None)
        .values_list("gpu_type")
        .annotate(slots=Sum(F("slots") * F("learners")))
    )
    return [
        {
            "gpu_type": quota.gpu_type,
            "limit": quota.limit,
            "used": quota.used,
            "waiting": waiting.get("" if quota.gpu_type == "cpu" else quota.gpu_type, 0),
        }
        for quota in Quota.objects.filter(tenant__slug=tenant)
    ]


def nodes() -> list[dict[str, Any]]:
    """Each node with its slots and those in use."""
    used: dict[str, int] = defaultdict(int)
    for names, slots in Attempt.objects.filter(held=True).values_list("nodes", "slots"):
        for name in names:
            used[name] += slots
    return [
        {
            "name": node.name,
            "slot_type": node.slot_type,
            "slots": node.slots,
            "used": used[node.name],
            "ready": node.ready,
        }
        for node in ClusterNode.objects.order_by("name")
    ]


def _page(want: Want, head: int, items: list[dict[str, Any]]) -> Page:
    if items == want.stamp:
        return Page([], want.after, items)
    head = max(head, want.after)
    return Page([items_frame(want.channel.name, want.after + 1, head, items)], head, items)
