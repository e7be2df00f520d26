"""The cluster as anybody may see it: what there is, what is free, and what runs where; foreign jobs have no name."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from jobs import humanize
from jobs.selectors import cluster, heads, queue
from portal.pages import passes
from portal.pages.guard import signed_in
from portal.pages.meters import pool_meter
from portal.pages.shell import frame, last_tenant

CELLS = 64
"""Most cells drawn for one node; a larger node's cells stand for several slots each."""


@require_GET
@signed_in
def page(request: HttpRequest) -> HttpResponse:
    news = heads.first_row(heads.of_cluster() + 1)  # before what the page shows is read
    nodes = cluster.nodes(request.user)
    waiting = queue.waiting_by_type()
    context = frame(request, last_tenant(request), "cluster") | {
        "pools": [
            pool_view(pool) | _columns([node for node in nodes if node.slot_type == pool.slot_type])
            for pool in cluster.pools(nodes)
        ],
        "opportunistic": any(node.opportunistic for node in nodes),
        "queued": sum(waiting.values()),
        "out": sum(not node.takes_learners for node in nodes),
        "driver": settings.LUTHIER_CLUSTER,
        "news": news,
        "outdated": passes.outdated(f"{passes.NOTHING_STARTS} What this page shows may have changed."),
    }
    return render(request, "cluster.html", context)


def pool_view(pool: cluster.PoolUse) -> dict[str, Any]:
    """A pool with its meter. Slots are GPUs, or CPU slots for the type "cpu"."""
    return {
        "pool": pool,
        "unit": humanize.unit(pool.slot_type, 2),
        "usable": pool.slots - pool.down,
        "meter": pool_meter(pool.slot_type, used=pool.used + pool.others, free=pool.free, down=pool.down),
    }


def _columns(nodes: list[cluster.NodeUse]) -> dict[str, Any]:
    """The rows of one pool, and whether any has CPUs or memory to show."""
    return {
        "rows": [_node_view(node) for node in nodes],
        "has_cpus": any(node.cpus for node in nodes),
        "has_memory": any(node.memory for node in nodes),
    }


def _share_view(share: cluster.Share | None, scale: float = 1) -> dict[str, str] | None:
    """The numbers of a Share, divided by scale."""
    if share is None:
        return None
    numbers = {"total": share.total, "used": share.used, "others": share.others}
    return {
        name: f"{number / scale:,.10g}" if scale == 1 else f"{number / scale:,.1f}"
        for name, number in numbers.items()
    }


def _node_view(node: cluster.NodeUse) -> dict[str, Any]:
    """One cell per slot: held by a job one may see, by another, by a program outside Luthier, free, or down."""
    per_cell = max(1, -(-node.slots // CELLS))
    cells: list[tuple[str, str]] = []
    for occupant in node.occupants:
        kind, text = ("own", occupant.name or "") if occupant.job else ("other", "another tenant's job")
        if occupant.opportunistic:
            kind, text = f"{kind} opportunistic", f"{text}, opportunistic"
        cells += [(kind, text)] * -(-occupant.slots // per_cell)
    cells += [("other", "a program outside Luthier")] * -(-node.others // per_cell)
    cells += [("free", "free") if node.takes_learners else ("down", "down")] * -(-node.unused // per_cell)
    state = "full" if not node.free else f"{node.free} free"
    return {
        "node": node,
        "cells": cells,
        "state": state,
        "avoid": node.avoid,
        "cpus": _share_view(node.cpus),
        "memory": _share_view(node.memory, 1024),
        "foreign": sum(o.job is None for o in node.occupants),
    }
