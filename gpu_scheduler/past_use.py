"""The mean of what tenants held, in which the past counts half for each half-life that it is ago."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from gpu_scheduler.model import QuotaUse


def mean_slots(slot_seconds: float, half_life_s: float) -> float:
    """The weighted mean of the slots held: slot_seconds that count half for each half-life that they are ago, over the
    same for one slot that was held forever."""
    return slot_seconds * math.log(2) / half_life_s


def after(quotas: Iterable[QuotaUse], seconds: float, half_life_s: float) -> tuple[QuotaUse, ...]:
    """The quotas after a time in which what was used of them did not change."""
    kept = 0.5 ** (seconds / half_life_s)
    return tuple(
        replace(quota, used_recently=quota.used_recently * kept + quota.used * (1 - kept)) for quota in quotas
    )
