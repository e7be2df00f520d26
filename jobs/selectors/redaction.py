"""What a guest of one shared job is told: why it waits in a plain sentence, without the numbers of a tenant that is not
his. The cluster's numbers and the job's own are everybody's who sees the job.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from gpu_scheduler.model import WaitReason
from jobs.models import Job, JobEvent
from jobs.states import EVENT_WORDS, EventCode
from tenants import access

SENTENCES: dict[str, str] = {
    WaitReason.EXCEEDS_MAX_QUOTA: "Larger than the tenant's quota: its people can ask for more, or clone it smaller.",
    WaitReason.QUOTA_GPUS: "Waiting for quota: what its tenant may use is in use.",
    WaitReason.QUOTA_JOBS: "Waiting for another job to end: its tenant runs as many as it may run at once.",
    EventCode.QUOTA_CHANGED: EVENT_WORDS[EventCode.QUOTA_CHANGED],
}
"""By the code whose own words hold a tenant's numbers."""
NUMBERS = frozenset({"limit", "used", "jobs_limit", "jobs_used", "for_job"})
CHECKS = frozenset({"max_quota", "quota", "jobs"})


def is_guest(user: access.Person, tenant_id: int) -> bool:
    """Say whether somebody who sees a job of this tenant does so only because it was shared with him."""
    return not access.is_platform_admin(user) and access.role_in(user, tenant_id) is None


def redact(code: str, message: str, numbers: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Message and numbers as a guest is told them."""
    if code == EventCode.QUOTA_CHANGED:
        return SENTENCES[code], {}
    shown = {name: value for name, value in numbers.items() if name not in NUMBERS}
    if isinstance(listed := shown.get("checks"), list):
        shown["checks"] = [_check(one, code) for one in listed]
    return SENTENCES.get(code, message), shown


def _check(one: dict[str, Any], code: str) -> dict[str, Any]:
    if one.get("check") not in CHECKS:
        return one
    text = SENTENCES.get(code, "") if one.get("ok") is False else one.get("text")
    return one | {"used": None, "limit": None, "text": text}


def is_private(code: str, numbers: Mapping[str, Any]) -> bool:
    """Say whether a guest is told anything else than the tenant's people."""
    return code in SENTENCES or not NUMBERS.isdisjoint(numbers)


def redacted_job(user: access.Person, job: Job) -> Job:
    """The job with its reason as this person is told it. To be shown, not to be saved."""
    if is_private(job.reason_code, job.reason_numbers) and is_guest(user, job.tenant_id):
        job.reason_message, job.reason_numbers = redact(
            job.reason_code, job.reason_message, job.reason_numbers
        )
    return job


def redacted_events(user: access.Person, job: Job, events: Iterable[JobEvent]) -> list[JobEvent]:
    """The same of a job's events."""
    listed = list(events)
    private = [event for event in listed if is_private(key_of(event.code, event.reason), event.numbers)]
    if private and is_guest(user, job.tenant_id):
        for event in private:
            key = key_of(event.code, event.reason)
            event.message, event.numbers = redact(key, event.message, event.numbers)
    return listed


def key_of(code: str, reason: str) -> str:
    """Which of an event's two codes says what its words are about."""
    return code if code == EventCode.QUOTA_CHANGED else reason


def redact_job(view: Mapping[str, Any]) -> dict[str, Any]:
    """The view of a job as a guest is given it."""
    reason = view["reason"]
    message, numbers = redact(reason["code"], reason["message"], reason["numbers"])
    return dict(view) | {"reason": {"code": reason["code"], "message": message, "numbers": numbers}}


def redact_event(view: Mapping[str, Any]) -> dict[str, Any]:
    """The view of an event as a guest is given it."""
    reason = view["reason"]
    key = key_of(view["code"], reason["code"])
    if not is_private(key, view["numbers"]):
        return dict(view)
    message, numbers = redact(key, view["message"], view["numbers"])
    told = {"code": reason["code"], "message": message, "numbers": numbers}
    return dict(view) | {"reason": told, "message": message, "numbers": numbers}
