"""What tenants held in the hours that are stored, for policies to which the past counts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from functools import lru_cache

from django.db import connection
from django.db.models import Max

from gpu_scheduler.model import QuotaUse
from gpu_scheduler.past_use import mean_slots
from jobs.models import FairnessHour

HALF_LIVES = 4
"""What is longer ago counts less than a sixteenth, and is not read."""

WEIGHED = """
SELECT tenant.slug, share.slot_type,
       sum(share.received * power(0.5, extract(epoch FROM %(newest)s - share.hour_id)::float / %(half_life_s)s))
  FROM jobs_fairnessshare AS share JOIN tenants_tenant AS tenant ON tenant.id = share.tenant_id
 WHERE share.hour_id > %(since)s AND share.hour_id <= %(newest)s
 GROUP BY tenant.slug, share.slot_type
"""


def with_the_past(
    quotas: Iterable[QuotaUse], now: datetime, half_life_s: float | None
) -> tuple[QuotaUse, ...]:
    """The quotas with `used_recently`, in slots; as they are without a half-life.

    Hours that are not stored count as unused: the newest one or two, and those that were never computed.
    """
    newest = None if half_life_s is None else FairnessHour.objects.aggregate(newest=Max("at"))["newest"]
    if half_life_s is None or newest is None:
        return tuple(quotas)
    weighed = _weighed(newest, half_life_s)
    since = 0.5 ** ((now - newest).total_seconds() / half_life_s)
    return tuple(
        replace(
            quota,
            used_recently=mean_slots(since * weighed.get((quota.tenant, quota.slot_type), 0.0), half_life_s),
        )
        for quota in quotas
    )


@lru_cache(maxsize=1)
def _weighed(newest: datetime, half_life_s: float) -> Mapping[tuple[str, str], float]:
    """Slot-seconds by tenant and type, as they count at the newest hour. Hours are stored in turn and never change, so
    they are summed once for each."""
    since = newest - timedelta(seconds=HALF_LIVES * half_life_s)
    with connection.cursor() as cursor:
        cursor.execute(WEIGHED, {"newest": newest, "since": since, "half_life_s": half_life_s})
        return {(tenant, slot_type): weighed for tenant, slot_type, weighed in cursor}
