"""The cluster as anybody may see it: what there is, what is free, and what runs where; foreign jobs have no name."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from jobs import humanize
from jobs.selectors import cluster, heads, queue
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
            pool_view(pool)
            | {"rows": [_node_view(node) for node in nodes if node.slot_type == pool.slot_type]}
            for pool in cluster.pools(nodes)
        ],
        "queued": sum(waiting.values()),
        "out": sum(not node.ready for node in nodes),
        "driver": settings.LUTHIER_CLUSTER,
        "news": news,
    }
    return render(request, "cluster.html", context)


def pool_view(pool: cluster.PoolUse) -> dict[str, Any]:
    """A pool with its meter. Slots are GPUs, or CPU slots for the type "cpu"."""
    return {
        "pool": pool,
        "unit": humanize.unit(pool.slot_type, 2),
        "usable": pool.slots - pool.down,
        "meter": pool_meter(pool.slot_type, used=pool.used, free=pool.free, down=pool.down),
    }


def _node_view(node: cluster.NodeUse) -> dict[str, Any]:
    """One cell per slot: held by a job one may see, by another, free, or down."""
    per_cell = max(1, -(-node.slots // CELLS))
    cells: list[tuple[str, str]] = []
    for occupant in node.occupants:
        kind, text = ("own", occupant.name or "") if occupant.job else ("other", "another tenant's job")
        cells += [(kind, text)] * -(-occupant.slots // per_cell)
    rest = max(0, node.slots - node.used)
    cells += [("free", "free") if node.ready else ("down", "down")] * -(-rest // per_cell)
    state = "down" if not node.ready else "full" if not node.free else f"{node.free} free"
    return {
        "node": node,
        "cells": cells,
        "state": state,
        "foreign": sum(o.job is None for o in node.occupants),
    }
