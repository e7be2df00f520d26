"""Why a job started when it did, in words for its tenant. Guests do not see it (``redaction.HIDDEN``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpu_scheduler.model import StartReason
from jobs.humanize import devices

WORDS: dict[str, str] = {
    StartReason.NOMINATED: "What it starts on was offered to it first: it was freed for it, or it was resized",
    StartReason.BACKFILLED: "It passes a job ahead of it for which slots are kept, and does not delay it",
    StartReason.BORROWED: "It goes beyond its tenant's own limit",
    StartReason.GUARANTEED: "It is within its tenant's own limit",
    StartReason.OPPORTUNISTIC: "No other job can take what it runs on now. It is stopped as soon as one can",
}


def why_now(numbers: Mapping[str, Any]) -> str:
    """From the numbers of a start's event. Of others, for a guest, and of a reason of a later version: ""."""
    said = WORDS.get(numbers.get("why", ""), "")
    if not said or not numbers.get("borrowed"):
        return said
    lent = devices(numbers["borrowed"], numbers["slot_type"])
    return f"{said}; {lent} {'is' if numbers['borrowed'] == 1 else 'are'} lent by other tenants"
