"""Why an opportunistic job was stopped, in words for those who see it. A job of another tenant is never named: the
event does not have it (lifecycle.facts.Order), nor has a guest's (redaction)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from jobs.models import Job, JobEvent
from jobs.selectors.redaction import redacted_events
from jobs.selectors.wait_reasons import is_idle_backoff
from jobs.states import State, StopReason
from portal.templatetags.ui import thousands
from tenants import access

ANOTHER = "another job"
WHY = "An opportunistic job leaves when another job can start on its devices."


@dataclass(frozen=True, slots=True)
class LastStop:
    """When a waiting job was stopped, for which job, and where and when it continues. job: empty if it cannot be
    named."""

    at: datetime
    job: str
    name: str
    continues: str
    when: str


def made_room(event: JobEvent) -> bool:
    """Whether by this event a job began to make room for another."""
    return event.to_state == State.STOPPING and event.reason == StopReason.PREEMPTED


def names(job: Job, events: Iterable[JobEvent]) -> dict[str, str]:
    """The names of the jobs for which it made room, by their ids. Asks the database only where there are any."""
    ids = {event.numbers.get("for_job", "") for event in events if made_room(event)} - {""}
    found = (
        Job.objects.filter(pk__in=ids, tenant=job.tenant_id, deleted_at=None) if ids else Job.objects.none()
    )
    return dict(found.values_list("pk", "name"))


def sentence(event: JobEvent, known: dict[str, str]) -> str:
    """What is said of a stop beside its own words. known: as names() gives them."""
    name = known.get(event.numbers.get("for_job", ""), "")
    return f"Stopped for {name}. {WHY}" if name else WHY


def last_stop(user: access.Person, job: Job) -> LastStop | None:
    """The stop after which an opportunistic job waits; None if it waits for another reason."""
    if not job.opportunistic or job.state != State.QUEUED:
        return None
    stops = JobEvent.objects.filter(job=job, to_state=State.STOPPING).order_by("-n")[:1]
    newest = next(iter(redacted_events(user, job, stops)), None)
    if newest is None or newest.attempt != job.attempt or not made_room(newest):
        return None
    known = names(job, [newest])
    pk = next(iter(known), "")
    return LastStop(newest.at, pk, known.get(pk, ANOTHER), _continues(job), _when(job))


def _continues(job: Job) -> str:
    kept = getattr(job, "newest_checkpoint", None)
    if kept is None:
        return "starts from scratch, because it saved no checkpoint,"
    return "continues" if kept["step"] is None else f"continues from step {thousands(kept['step'])}"


def _when(job: Job) -> str:
    """Beside the reason for its wait, which names the time if it stays away until one."""
    if is_idle_backoff(job.reason_code):
        return "after that time, when devices are idle"
    return "when devices are idle again"
