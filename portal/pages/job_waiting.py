"""What the job page says of a wait: when it starts, what would make it start sooner, who else stands in line. Pure but
for `panel`, which asks for what it shows."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from jobs.models import Job, JobEvent
from jobs.selectors.queue import QueueSection, checked_at, queue_around
from jobs.selectors.redaction import is_guest, redact
from jobs.selectors.suggestions import Suggestion, suggestions_for
from portal.templatetags.ui import duration, foreseen
from tenants import access
from tenants.models import Tenant
from tenants.roles import Permission

View = dict[str, Any]
TURNS = 8
WORDS = {
    "NO_MATCHING_POOL": "no such devices",
    "EXCEEDS_MAX_QUOTA": "larger than the quota",
    "TENANT_SUSPENDED": "tenant suspended",
    "QUOTA_GPUS": "over quota",
    "QUOTA_JOBS": "too many jobs at once",
    "FAIR_SHARE": "waiting its turn",
    "INSUFFICIENT_CAPACITY": "waiting for capacity",
    "GANG_FRAGMENTED": "waiting for whole nodes",
    "NOT_EVALUATED": "the cluster did not answer",
}


@dataclass(frozen=True)
class Offer:
    """One way to start sooner, as a card."""

    title: str
    text: str
    button: str
    href: str


@dataclass(frozen=True)
class Turn:
    """From when on the job waited for what."""

    at: datetime
    words: str
    message: str


def panel(user: access.Person, job: Job, view: View, now: datetime) -> View:
    """What the why-it-waits panel shows beside the reason; the queries are the same however long the queue is."""
    active = job.tenant.state == Tenant.State.ACTIVE
    may_submit = active and access.may(user, Permission.SUBMIT, job.tenant_id)
    line = queue_around(user, job, now)
    return {
        "span": foreseen(view["estimate"], now),
        "checked_at": checked_at(),
        "offers": [offer(way, view, now) for way in suggestions_for(job)] if may_submit else [],
        "line": line,
        "places": _places(line, now),
        "turns": _turns(job, guest=is_guest(user, job.tenant_id)),
    }


def offer(way: Suggestion, job: View, now: datetime) -> Offer:
    """The card of one way: what to change, when that starts, and the new-job page with the change made."""
    unit = "GPU" if job["gpus"] else "CPU slot"
    count, learners, each = way.value, job["learners"], job["gpus"] or job["slots"]
    titles = {
        "learners": (f"Use {count} × {each} {unit}{_s(str(each))}", f"Clone with {count} learner{_s(count)}"),
        "gpus": (f"Use {learners} × {count} {unit}{_s(count)}", f"Clone with {count} {unit}{_s(count)}"),
        "cpus": (f"Use {learners} × {count} {unit}{_s(count)}", f"Clone with {count} {unit}{_s(count)}"),
        "gpu_type": (f"Use {count}", f"Clone to {count}"),
        "priority": (f"Priority {count}", f"Clone with priority {count}"),
    }
    title, button = titles[way.kind]
    query = urlencode({"from": job["id"], way.kind: way.value})
    starts = foreseen(way.estimate, now)
    text = f"Starts in {starts if starts.startswith('under') else f'about {starts}'}."
    return Offer(title, text, button, f"/t/{job['tenant']}/jobs/new?{query}")


def hindsight(view: View) -> str:
    """How good the first estimate was, once the job has started: "estimated 25–40 min, started after 31 min"."""
    told = view["estimate"]
    if not told or not told["started_at"] or not told["first"]:
        return ""
    first, started = told["first"], datetime.fromisoformat(told["started_at"])
    begun = datetime.fromisoformat(first["at"])
    after = duration((started - begun).total_seconds())
    return f"estimated {foreseen(first, begun)}, started after {after}"


def _places(line: QueueSection | None, now: datetime) -> list[tuple[Any, str]]:
    return [(place, foreseen(place.estimate, now)) for place in line.places] if line else []


def _turns(job: Job, *, guest: bool) -> list[Turn]:
    """How the reason changed since the job queued, oldest first."""
    events = JobEvent.objects.filter(job=job, code="WAITING", at__gte=job.queued_at).order_by("-n")
    newest = events.values_list("at", "reason", "message")[:TURNS]
    told = [
        (at, reason, redact(reason, message, {})[0] if guest else message) for at, reason, message in newest
    ]
    return [Turn(at, WORDS.get(reason, reason), message) for at, reason, message in told][::-1]


def _s(count: str) -> str:
    return "" if count == "1" else "s"
