"""Store what tenants were entitled to and received, hour by hour, so that it stays when jobs are purged.

An hour is stored once, a while after its end: what is read of it is complete by then. Nothing of it is written by the
scheduling cycle, whose decisions are in attempts and events already.
"""

from __future__ import annotations

import logging
import time
from datetime import datetime, timedelta
from typing import Any

from django.db import connection, transaction
from django.db.models import Max

from jobs.models import FairnessHour, FairnessShare
from jobs.retries import retry_on_serialization_failure
from jobs.selectors.demand import TooMuch
from jobs.selectors.fairness import COLUMNS, HOUR, hour_of, recomputed
from jobs.selectors.snapshot import database_now
from jobs.selectors.usage_sql import SETTLE
from tenants.models import Tenant

logger = logging.getLogger(__name__)

EVERY_S = 600.0
"""Also for how long a run is its worker's alone: far longer than an hour takes to compute."""
TRIES = 3
FIRST = 24 * HOUR
"""How much of the past is stored by the first run: of jobs that ended in this time, nothing is removed yet."""
KEPT = timedelta(days=400)
RUN_S = 5.0

FORGET_NODES = """
DELETE FROM jobs_nodechange AS old WHERE at < %(before)s AND (state = 'gone' OR EXISTS (
  SELECT 1 FROM jobs_nodechange AS newer WHERE newer.name = old.name AND newer.at > old.at AND newer.at < %(before)s))
"""
"""The last change before what is kept says what the node was at its begin."""


def record(before: dict[str, Any]) -> dict[str, Any]:
    """The periodic task: store the hours that are over. more: there are more of them.

    An hour that the database does not read in time is tried again by the next runs (failures: how often it was); then
    it stays unknown (skipped), and the hours after it are stored.
    """
    deadline, stored = time.monotonic() + RUN_S, 0
    now = database_now()
    until = hour_of(now - SETTLE)
    newest = FairnessHour.objects.aggregate(newest=Max("at"))["newest"]
    at = until - FIRST if newest is None else newest + HOUR
    result = {"failures": before.get("failures", 0), "skipped": before.get("skipped", "")}
    if result["skipped"]:
        at = max(at, datetime.fromisoformat(result["skipped"]) + HOUR)
    while at < until and time.monotonic() < deadline:
        try:
            _store(at)
            stored += 1
        except TooMuch:
            logger.warning("the fairness of an hour was not computed in time", extra={"hour": at.isoformat()})
            result["failures"] += 1
            if result["failures"] < TRIES:
                return result | {"hours": stored, "more": False}
            result["skipped"] = at.isoformat()
        result["failures"] = 0
        at += HOUR
    if stored:
        _forget(now)
    return result | {"hours": stored, "more": at < until}


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
