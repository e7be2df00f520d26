"""`tenant:{t}:quotas` and `cluster`: small states, sent whole whenever they change."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from jobs.models import Attempt, ClusterNode
from jobs.selectors import heads, usage
from jobs.selectors.serializers import QuotaSerializer
from portal.live.frames import ChannelSource, FrameBatch, ReadRequest, state_frame
from portal.live.protocol import Channel
from tenants.models import Tenant


class QuotaSource(ChannelSource):
    """Head: grows with the tenant's events and quota changes. Items: all quotas."""

    missed_is_fetched = False
    counts_rows = True

    def head(self, channel: Channel) -> int:
        return heads.of_quotas(channel.tenant)

    def read(self, requests: Sequence[ReadRequest]) -> dict[str, FrameBatch]:
        return {
            request.channel.name: _page(request, self.head(request.channel), quotas(request.channel.tenant))
            for request in requests
        }


class ClusterSource(ChannelSource):
    """Head: the newest event of all. Items: nodes with their use, without jobs."""

    missed_is_fetched = False
    counts_rows = True

    def head(self, channel: Channel) -> int:
        return heads.of_cluster()

    def read(self, requests: Sequence[ReadRequest]) -> dict[str, FrameBatch]:
        head, items = self.head(requests[0].channel), nodes()
        return {request.channel.name: _page(request, head, items) for request in requests}


def quotas(tenant: str) -> list[dict[str, Any]]:
    """Limit, use and what waits, by slot type, as REST shows them."""
    found = Tenant.objects.filter(slug=tenant).first()
    return [QuotaSerializer.render(use) for use in usage.quotas_of(found)] if found else []


def nodes() -> list[dict[str, Any]]:
    """Each node with its slots, those in use, and what else the cluster page shows of it: a change must reach it."""
    used: dict[str, int] = defaultdict(int)
    for names, slots in Attempt.objects.filter(held=True).values_list("nodes", "slots"):
        for name in names:
            used[name] += slots
    return [
        {
            "name": node.name,
            "slot_type": node.slot_type,
            "rack": node.rack,
            "block": node.block,
            "slots": node.slots,
            "used": used[node.name],
            "ready": node.ready,
            "cordoned": node.cordoned,
            "unhealthy": node.unhealthy,
            "why": node.why,
            "avoid_until": node.avoid_until.isoformat() if node.avoid_until else None,
            "others": {"slots": node.others_slots, "cpus": node.others_cpus, "memory_mib": node.others_mib},
        }
        for node in ClusterNode.objects.order_by("name")
    ]


def _page(request: ReadRequest, head: int, items: list[dict[str, Any]]) -> FrameBatch:
    if items == request.stamp:
        return FrameBatch([], request.after, items)
    head = max(head, request.after)
    return FrameBatch([state_frame(request.channel.name, request.after + 1, head, items)], head, items)
