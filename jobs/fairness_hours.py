"""Store what tenants were entitled to and received, hour by hour, so that it stays when jobs are purged.

An hour is stored once, a while after its end: what is read of it is complete by then. Nothing of it is written by the
scheduling cycle, whose decisions are in attempts and events already.
"""

from __future__ import annotations

import time
from datetime import datetime, timedelta
from typing import Any

from django.db import connection, transaction
from django.db.models import Max

from jobs.models import FairnessHour, FairnessShare
from jobs.retries import retry_on_serialization_failure
from jobs.selectors.fairness import COLUMNS, HOUR, hour_of, recomputed
from jobs.selectors.snapshot import database_now
from jobs.selectors.usage_sql import SETTLE
from tenants.models import Tenant

FIRST = 24 * HOUR
"""How much of the past is stored by the first run: of jobs that ended in this time, nothing is removed yet."""
KEPT = timedelta(days=400)
RUN_S = 5.0

FORGET_NODES = """
DELETE FROM jobs_nodechange AS old WHERE at < %(before)s AND (state = 'gone' OR EXISTS (
  SELECT 1 FROM jobs_nodechange AS newer WHERE newer.name = old.name AND newer.at > old.at AND newer.at < %(before)s))
"""
"""The last change before what is kept says what the node was at its begin."""


def record(_: dict[str, Any]) -> dict[str, Any]:
    """The periodic task: store the hours that are over. more: there are more of them."""
    deadline, stored = time.monotonic() + RUN_S, 0
    now = database_now()
    until = hour_of(now - SETTLE)
    newest = FairnessHour.objects.aggregate(newest=Max("at"))["newest"]
    at = until - FIRST if newest is None else newest + HOUR
    while at < until and time.monotonic() < deadline:
        _store(at)
        at, stored = at + HOUR, stored + 1
    if stored:
        _forget(now)
    return {"hours": stored, "more": at < until}


@retry_on_serialization_failure
def _store(hour: datetime) -> None:
    found = recomputed(hour, hour + HOUR)
    ids = dict(Tenant.objects.filter(slug__in={slug for slug, _ in found}).values_list("slug", "pk"))
    with transaction.atomic():
        _, is_new = FairnessHour.objects.get_or_create(at=hour)
        if not is_new:  # by another worker
            return
        FairnessShare.objects.bulk_create(
            FairnessShare(
                hour_id=hour,
                tenant_id=ids[slug],
                slot_type=slot_type,
                **{name: getattr(each, name) for name in COLUMNS},
            )
            for (slug, slot_type), each in sorted(found.items())
        )


def _forget(now: datetime) -> None:
    FairnessHour.objects.filter(at__lt=now - KEPT).delete()
    with connection.cursor() as cursor:
        cursor.execute(FORGET_NODES, {"before": now - KEPT})
