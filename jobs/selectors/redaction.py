"""What outsiders see of a job that was shared with them: why it waits, without the numbers of its tenant.

A guest sees the job only because of a share. The cluster's numbers and the job's own are not hidden.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from gpu_scheduler.checks import PRIVATE, check_named, check_of
from gpu_scheduler.forecast import WhyNone
from jobs.models import Job, JobEvent
from jobs.selectors.queue import WHY_NONE, why_unforeseen
from jobs.states import EVENT_MESSAGES, EventCode, StopReason
from tenants import access

HIDDEN = PRIVATE | {"for_job", "why"}
"""Names of numbers that a guest does not see: private ones of the checks, the job that a stop makes room for, and what
a start says of its tenant's limit."""


FOR_MEMBERS = {StopReason.BUDGET_EXHAUSTED.value: "Its tenant's GPU-hour budget was used up."}
"""What members read beside the stored words, which are the guests', by reason."""


def needs_redaction(user: access.Person, tenant_id: int) -> bool:
    """True for a user without a role in the tenant: one who sees a job of it only because it was shared with them."""
    return not access.is_platform_admin(user) and access.role_in(user, tenant_id) is None


def redact(code: str, message: str, numbers: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Message and numbers for a guest."""
    if code == EventCode.QUOTA_CHANGED:
        return EVENT_MESSAGES[EventCode.QUOTA_CHANGED], {}
    check = check_of(code)
    redacted = check.redacted if check else ""
    shown = {name: value for name, value in numbers.items() if name not in HIDDEN}
    if isinstance(listed := shown.get("checks"), list):
        shown["checks"] = [_redact_check(one, redacted) for one in listed]
    return redacted or message, shown


def _redact_check(one: dict[str, Any], redacted: str) -> dict[str, Any]:
    check = check_named(one.get("check", ""))
    if check is None or not check.private:
        return one
    return one | {
        "used": None,
        "limit": None,
        "text": redacted if one.get("ok") is False else one.get("text"),
    }


def is_private(code: str, numbers: Mapping[str, Any]) -> bool:
    """True if a guest reads something else than the tenant's members."""
    check = check_of(code)
    hidden = bool(check and check.redacted) or code == EventCode.QUOTA_CHANGED
    return hidden or not HIDDEN.isdisjoint(numbers)


def redacted_job(user: access.Person, job: Job) -> Job:
    """The job with its reason as this user can read it. For display only: never save it."""
    if job.growth and needs_redaction(user, job.tenant_id):
        job.growth = None  # it has numbers of its tenant's quota and other limits
    if is_private(job.reason_code, job.reason_numbers) and needs_redaction(user, job.tenant_id):
        job.reason_message, job.reason_numbers = redact(
            job.reason_code, job.reason_message, job.reason_numbers
        )
    elif job.reason_code in FOR_MEMBERS and not needs_redaction(user, job.tenant_id):
        job.reason_message = f"{job.reason_message} {FOR_MEMBERS[job.reason_code]}"
    return job


def redacted_events(user: access.Person, job: Job, events: Iterable[JobEvent]) -> list[JobEvent]:
    """A job's events as this user can read them. For display only: never save them."""
    listed = list(events)
    private = [event for event in listed if is_private(key_of(event.code, event.reason), event.numbers)]
    if private and needs_redaction(user, job.tenant_id):
        for event in private:
            key = key_of(event.code, event.reason)
            event.message, event.numbers = redact(key, event.message, event.numbers)
    ordered = [event for event in listed if event.reason in FOR_MEMBERS]
    if ordered and not needs_redaction(user, job.tenant_id):
        for event in ordered:
            event.message = f"{event.message} {FOR_MEMBERS[event.reason]}"
    return listed


def key_of(code: str, reason: str) -> str:
    """The one of an event's two codes that its message belongs to."""
    return code if code == EventCode.QUOTA_CHANGED else reason


def redact_job(view: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON of a job (JobSerializer) for a guest."""
    reason = view["reason"]
    message, numbers = redact(reason["code"], reason["message"], reason["numbers"])
    redacted = dict(view) | {"reason": _redact_reason(reason, message, numbers), "growth": None}
    if view.get("estimate"):
        redacted["estimate"] = redact_estimate(reason["code"], view["estimate"])
    return redacted


def redact_estimate(code: str, estimate: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON of an estimate for a guest: when the tenant's budget ends is its own. code: why the job waits."""
    private = why_unforeseen(code) is WhyNone.BUDGET
    return dict(estimate) | ({"message": WHY_NONE[WhyNone.BUDGET]} if private else {})


def redact_event(view: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON of an event (EventSerializer) for a guest."""
    reason = view["reason"]
    key = key_of(view["code"], reason["code"])
    if not is_private(key, view["numbers"]):
        return dict(view)
    message, numbers = redact(key, view["message"], view["numbers"])
    return dict(view) | {
        "reason": _redact_reason(reason, message, numbers),
        "message": message,
        "numbers": numbers,
    }


def _redact_reason(reason: Mapping[str, Any], message: str, numbers: dict[str, Any]) -> dict[str, Any]:
    check = check_of(reason["code"])
    meter = None if check and check.private else reason["meter"]
    return dict(reason) | {"message": message, "numbers": numbers, "meter": meter}
