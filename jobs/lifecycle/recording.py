"""Keeps what each decision was made from: a digest with every decision, the snapshot itself for a while.

A snapshot is written down once for each plan that decides something, not for those that only explain.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from hashlib import sha256

from django.conf import settings
from django.db import DatabaseError, connection, transaction
from django.db.models import Max, Q
from django.db.models.functions import Now

from gpu_scheduler import record
from gpu_scheduler.model import Gang, Plan, Snapshot
from gpu_scheduler.policies.base import policy_of
from jobs.models import DecidedPlan
from jobs.retries import database_away
from jobs.selectors.decisions import program_of

logger = logging.getLogger(__name__)

LARGEST = 2 << 20
"""Bytes of a snapshot's text beyond which it is not kept: some 8,000 jobs, waiting and running. Its digest is."""
KEPT_BYTES = 64 << 20
"""Of the newest snapshots, compressed, that are kept."""
KEPT_PLANS = 200_000
"""The most plans that are kept, with or without their snapshots."""
TASK, EVERY_S = "decisions", 60.0


@dataclass(frozen=True, slots=True)
class Source:
    """What a plan was made from. text: the snapshot's, see gpu_scheduler.record."""

    digest: str
    program: str
    text: bytes

    @property
    def numbers(self) -> dict[str, str]:
        """As events of the decisions carry it."""
        return {"snapshot": self.digest, "program": self.program}


def source_of(
    seen: Snapshot, decided: Plan, texts: Callable[[Iterable[Gang]], Iterable[str]] | None = None
) -> Source | None:
    """None if the plan starts, stops and resizes nothing, and reserves for the same jobs as the last one. texts: of
    waiting gangs, for one that keeps what it has written before (kept_rows)."""
    if not (decided.starts or decided.stops or decided.resizes):
        if not decided.reserved:
            return None
        last = DecidedPlan.objects.order_by("-pk").values_list("decided__reserved", flat=True).first()
        if last == list(decided.reserved):
            return None
    try:
        text = record.written(seen, None if texts is None else texts(seen.waiting))
    except (TypeError, ValueError):  # a defect of ours, which must not stop what was decided
        logger.exception("a snapshot could not be written down")
        return None
    return Source(sha256(text).hexdigest(), program_of(policy_of(seen)), text)


def keep(source: Source | None, seen: Snapshot, decided: Plan) -> None:
    """Store a plan that decided something. After its decisions, so that no start waits for this to be written."""
    if source is None:
        return
    fits = len(source.text) <= LARGEST
    row = DecidedPlan(
        digest=source.digest,
        policy=settings.LUTHIER_SCHEDULER_POLICY,
        program=source.program,
        decided=record.decisions(decided, seen),
        snapshot=zlib.compress(source.text, 1) if fits else None,
    )
    try:
        with transaction.atomic():
            # The same snapshot gave the same decisions before.
            DecidedPlan.objects.bulk_create([row], ignore_conflicts=True)
    except DatabaseError as error:
        if database_away(error):
            raise
        logger.exception("a plan could not be stored")  # the rest of the pass does not depend on it


FORGET = """
UPDATE jobs_decidedplan SET snapshot = NULL WHERE id IN (
  SELECT id FROM (
    SELECT id, sum(octet_length(snapshot)) OVER (ORDER BY id DESC) AS newest_bytes
    FROM jobs_decidedplan WHERE snapshot IS NOT NULL
  ) AS kept WHERE newest_bytes > %s
)
"""


def forget(_: dict[str, object]) -> dict[str, object]:
    """Remove the snapshots beyond KEPT_BYTES, the oldest first, and whole plans when deleted jobs are purged: a
    snapshot names jobs of all tenants."""
    over = Now() - timedelta(days=settings.LUTHIER_RETENTION_DAYS)
    newest = DecidedPlan.objects.aggregate(newest=Max("pk"))["newest"] or 0
    removed, _rows = DecidedPlan.objects.filter(Q(at__lt=over) | Q(pk__lte=newest - KEPT_PLANS)).delete()
    with connection.cursor() as cursor:
        cursor.execute(FORGET, [KEPT_BYTES])
        return {"removed": removed, "snapshots": cursor.rowcount}
