"""What a job's history says when something of it cannot be stored for want of room: once per attempt and kind."""

from __future__ import annotations

from django.db import transaction

from jobs import events
from jobs.humanize import filesize
from jobs.models import Job, JobEvent, StorageKind
from jobs.states import EventCode
from jobs.storage import NoRoom
from jobs.tokens import Grant
from learner_agent.wire import Ckpt

NOT_KEPT = "Not kept"
"""How refusals of offers begin: shippers repeat them as errors of their own, which the history has already."""
WHAT = {
    StorageKind.LOGS: "New lines of the log are not kept",
    StorageKind.METRICS: "New metric points are not kept",
    StorageKind.CHECKPOINTS: "A checkpoint is not kept",
    StorageKind.RESULTS: "The results are not kept",
}


def note_offer(grant: Grant, offered: Ckpt, full: NoRoom) -> str:
    """Note that offered files are refused; returns the refusal, with the numbers of this offer."""
    kind = StorageKind.RESULTS if offered.what == "results" else StorageKind.CHECKPOINTS
    note(grant, kind, full)
    total = sum({sha256: size for _, size, sha256 in offered.files}.values())
    return f"{NOT_KEPT} ({filesize(total)}): {full}"


def note(grant: Grant, kind: StorageKind, full: NoRoom) -> None:
    """Add it to the job's history, unless this attempt has it for this kind. Locks the job's row if not."""
    noted = JobEvent.objects.filter(
        job_id=grant.job_id, attempt=grant.attempt, code=EventCode.CONDITION, reason=full.reason
    ).filter(numbers__kind=kind.value)
    if noted.exists():
        return
    with transaction.atomic():
        locked = Job.objects.select_for_update(no_key=True).filter(pk=grant.job_id)
        if locked.first() is None or noted.exists():  # another learner's
            return
        events.append(
            job_id=grant.job_id,
            tenant_id=grant.tenant_id,
            attempt=grant.attempt,
            code=EventCode.CONDITION,
            reason=full.reason,
            message=f"{WHAT[kind]}: {full}",
            numbers={"kind": kind.value, **full.numbers},
            source="learner",
        )


def is_noted(code: str, message: str) -> bool:
    """True for a shipper's error that only repeats a refusal for want of room."""
    return code.endswith("_not_kept") and message.startswith(NOT_KEPT)
