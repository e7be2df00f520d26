"""What a wait reason means to readers: the scheduler's checks as REST, pages and events see them.

The portal never imports the scheduler. All that it says about a rule (title, who can act, meter, words, what is hidden
outside the tenant) comes from the rule's one Check through this module, so a new rule appears everywhere.
A reason that no rule gives (NOT_EVALUATED, IDLE_LEAVING, IDLE_BACKOFF, START_PENDING, CLUSTER_BUSY, DISK_FULL,
START_FAILED, a restart, a halt) has no Check.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpu_scheduler import checks
from gpu_scheduler.checks import Meter, Remedy, Scope, check_of
from gpu_scheduler.model import WaitReason

__all__ = [
    "CheckResult",
    "Meter",
    "Remedy",
    "Scope",
    "check_of",
    "check_results",
    "codes_of",
    "failed_meter",
    "is_cluster_busy",
    "is_disk_full",
    "is_idle_backoff",
    "is_idle_leaving",
    "is_start_failed",
    "is_start_pending",
    "label_of",
]

NOT_CHECKED = "not checked yet"
LABELS = {
    WaitReason.IDLE_LEAVING.value: "opportunistic jobs leave for it",
    WaitReason.IDLE_BACKOFF.value: "left its devices too often to start at once",
    WaitReason.START_PENDING.value: "start pending",
    WaitReason.CLUSTER_BUSY.value: "cluster not responding",
    WaitReason.DISK_FULL.value: "disk full",
    WaitReason.START_FAILED.value: "start failed",
}


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One check of a waiting job. ok: None if it was not reached. meter: None if the check counts nothing."""

    title: str
    text: str
    ok: bool | None
    meter: Meter | None


def check_results(numbers: Mapping[str, Any]) -> list[CheckResult]:
    """The checks of a waiting job in the order in which the scheduler makes them; empty before the first plan."""
    return [_result(one) for one in numbers.get("checks", [])]


def label_of(code: str) -> str:
    """A wait reason in a few words, as in lists and histories."""
    check = check_of(code)
    if check is not None:
        return check.label
    return LABELS.get(code, NOT_CHECKED)


def is_cluster_busy(code: str) -> bool:
    """The cluster does not respond, so nothing can start, whatever each job needs."""
    return code == WaitReason.CLUSTER_BUSY


def is_start_pending(code: str) -> bool:
    """The job can start: it is the platform's turn to start it, after others."""
    return code == WaitReason.START_PENDING


def is_idle_leaving(code: str) -> bool:
    """The job starts as soon as opportunistic ones have left the devices that it starts on."""
    return code == WaitReason.IDLE_LEAVING


def is_idle_backoff(code: str) -> bool:
    """The job is opportunistic, left its devices to others several times within an hour, and stays away for a while."""
    return code == WaitReason.IDLE_BACKOFF


def is_disk_full(code: str) -> bool:
    """The platform's disk has no room for what jobs store, so nothing starts."""
    return code == WaitReason.DISK_FULL


def is_start_failed(code: str) -> bool:
    """The platform failed on the job, and leaves it out of its plans for a while."""
    return code == WaitReason.START_FAILED


def codes_of(*remedies: Remedy) -> list[str]:
    """The codes of all reasons that usually one of these ends."""
    return [check.code.value for check in checks.RULES if check.remedy in remedies]


def failed_meter(numbers: Mapping[str, Any]) -> Meter | None:
    """The meter of the check that failed; None if it has none, or if its numbers are redacted."""
    for one in numbers.get("checks", []):
        if one.get("ok") is False:
            return None if one["used"] is None else Meter(one["used"], one["limit"], one["asked"])
    return None


def _result(one: Mapping[str, Any]) -> CheckResult:
    check = checks.check_named(one["check"])
    title, text, ok = check.title if check else one["check"], one["text"], one["ok"]
    used, limit, asked = one["used"], one["limit"], one["asked"]
    if check is None or used is None or limit is None or asked is None:
        return CheckResult(title, text, ok, None)
    return CheckResult(
        title, check.meter_text(used=used, limit=limit, asked=asked), ok, Meter(used, limit, asked)
    )
