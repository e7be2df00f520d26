"""Why a queued job waits, on its page: the reason with its checks, when it starts, what would start it sooner, and the
queue around it. Everything about a rule comes from its check (jobs.selectors.wait_reasons). Pure, except `panel`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from jobs.models import Job, JobEvent
from jobs.selectors.queue import checked_at
from jobs.selectors.queue_places import around
from jobs.selectors.redaction import needs_redaction, redact
from jobs.selectors.suggestions import Suggestion, suggestions_for
from jobs.selectors.wait_reasons import (
    CheckResult,
    Remedy,
    check_of,
    check_results,
    is_cluster_busy,
    is_disk_full,
    is_idle_backoff,
    is_idle_leaving,
    is_start_failed,
    is_start_pending,
    label_of,
)
from portal.pages.stopped_for import last_stop
from portal.templatetags.ui import approximately, duration, foreseen
from tenants import access
from tenants.models import Tenant
from tenants.roles import Permission

View = dict[str, Any]
REASON_CHANGES = 8
"""Changes of the reason that the panel lists."""


@dataclass(frozen=True)
class WaitKind:
    """How a wait is shown, by who can end it. name: its class in the style sheet."""

    name: str
    chip: str
    icon: str
    color: str
    advice: str


FIX = WaitKind("fix", "Fix needed", "wrench", "red", "It can't start as configured.")
ASK = WaitKind("ask", "Ask a platform admin", "user-cog", "amber", "Only a platform admin can change this.")
WAIT = WaitKind("wait", "Waiting", "hourglass", "amber", "No action needed: it starts automatically.")
CHECKING = WaitKind(
    "checking",
    "Checking",
    "circle-dashed",
    "neutral",
    "The scheduler checks new jobs within a second or two.",
)
BACKING_OFF = WaitKind(
    "back-off",
    "Backing off",
    "rotate-cw",
    "amber",
    "It ended early at least twice in a row. The next attempt starts automatically;"
    " no GPUs are held while waiting.",
)
START_FAILED = WaitKind(
    "start-failed",
    "Start failed",
    "triangle-alert",
    "red",
    "The platform failed to start it and tries again automatically; a platform admin should look at the worker's log.",
)
RESTS = WaitKind(
    "back-off",
    "Backing off",
    "rotate-cw",
    "amber",
    "It left its devices to other jobs several times, soon after its starts. It starts again by itself.",
)
BY_REMEDY = {Remedy.FIX: FIX, Remedy.ASK: ASK, Remedy.WAIT: WAIT}


def kind_of(code: str, numbers: Mapping[str, Any]) -> WaitKind:
    """How a wait for this reason is shown."""
    check = check_of(code)
    if check is not None:
        return BY_REMEDY[check.remedy_for(numbers)]
    if is_start_failed(code):
        return START_FAILED
    if is_disk_full(code):
        return ASK
    if is_idle_backoff(code):
        return RESTS
    moves_on = is_cluster_busy(code) or is_start_pending(code) or is_idle_leaving(code)
    return WAIT if moves_on else CHECKING


@dataclass(frozen=True)
class CheckRow:
    """One admission check. used, asked and limit are shares of the meter, 0 to 100; None: no meter."""

    title: str
    text: str
    ok: bool | None
    used: float | None = None
    asked: float | None = None
    limit: float | None = None


@dataclass(frozen=True)
class Waiting:
    """Why a queued job waits."""

    headline: str
    kind: WaitKind
    position: int | None
    slot_type: str
    checks: list[CheckRow] = field(default_factory=list)

    @property
    def later(self) -> list[str]:
        """Checks that were not reached."""
        return [one.title for one in self.checks if one.ok is None]


@dataclass(frozen=True)
class SuggestionCard:
    """The card of one suggestion."""

    title: str
    text: str
    button: str
    href: str


@dataclass(frozen=True)
class ReasonChange:
    """When the reason changed, and to what."""

    at: datetime
    words: str
    message: str


def waiting(job: View, *, backs_off: bool = False) -> Waiting | None:
    """Why a QUEUED job waits; None in any other state. backs_off: it must not start before a retry time."""
    if job["state"] != "QUEUED":
        return None
    reason: Mapping[str, Any] = job["reason"]
    message, numbers = reason["message"], reason["numbers"]
    return Waiting(
        message or "The scheduler has not checked this job yet.",
        BACKING_OFF
        if backs_off and not is_start_failed(reason["code"])
        else kind_of(reason["code"], reason["numbers"]),
        numbers.get("position"),
        numbers.get("slot_type", ""),
        [_row(one, message) for one in check_results(numbers)],
    )


def panel(user: access.Person, job: Job, view: View, now: datetime, *, is_current: bool = True) -> View:
    """Everything that the panel shows in addition to the reason. The number of queries does not depend on the queue.

    is_current: passes complete; if not, no time of a start is foreseen.
    """
    active = job.tenant.state == Tenant.State.ACTIVE
    may_submit = active and access.may(user, Permission.SUBMIT, job.tenant_id)
    return {
        "span": approximately(foreseen(view["estimate"], now)) if is_current else "",
        "checked_at": checked_at(),
        "offers": [offer(way, view, now) for way in suggestions_for(job)]
        if may_submit and is_current
        else [],
        "places": [
            (place, foreseen(place.estimate, now) if is_current else "") for place in around(user, job, now)
        ],
        "stopped": last_stop(user, job),
        "turns": _turns(job, guest=needs_redaction(user, job.tenant_id)),
    }


def offer(way: Suggestion, job: View, now: datetime) -> SuggestionCard:
    """The card of a suggestion: what to change, when the job then starts, and a link to the form with the change."""
    unit = "GPU" if job["gpus"] else "CPU"
    count, learners, each = way.value, job["learners"], job["gpus"] or job["slots"]
    titles = {
        "learners": f"Use {count} × {each} {unit}{_s(str(each))}",
        "gpus": f"Use {learners} × {count} {unit}{_s(count)}",
        "cpus": f"Use {learners} × {count} {unit}{_s(count)}",
        "gpu_type": f"Use {count}",
        "time_limit": f"Use a time limit of {count}",
        "priority": f"Use {count} priority",
        "topology": _topology_title(way.value),
        "opportunistic": "Make it opportunistic",
    }
    query = urlencode({"from": job["id"], way.kind: way.value})
    text = f"Starts in {approximately(foreseen(way.estimate, now))}."
    if way.kind == "opportunistic":
        text = f"{text} It uses no quota, and is stopped when another job can start on its devices."
    if way.kind == "time_limit":
        text = f"{text} It then ends before the job can start for which devices are kept."
    return SuggestionCard(titles[way.kind], text, "Edit and resubmit", f"/t/{job['tenant']}/jobs/new?{query}")


def _topology_title(topology: str) -> str:
    how, _, level = topology.partition(" ")
    return f"Require one {level}" if how == "required" else f"Prefer one {level}"


def hindsight(view: View) -> str:
    """How good the first estimate was, once the job has started: "estimated 25–40 min, started 31 min later"."""
    estimate = view["estimate"]
    if not estimate or not estimate["started_at"] or not estimate["first"]:
        return ""
    first, started = estimate["first"], datetime.fromisoformat(estimate["started_at"])
    estimated_at = datetime.fromisoformat(first["at"])
    after = duration((started - estimated_at).total_seconds())
    return f"estimated {foreseen(first, estimated_at)}, started {after} later"


def _row(result: CheckResult, headline: str) -> CheckRow:
    """The headline is not repeated; a meter needs a limit above 0 as its scale."""
    text, meter = "" if result.text == headline else result.text, result.meter
    if meter is None or not meter.limit:
        return CheckRow(result.title, text, result.ok)
    scale = max(meter.limit, meter.used + meter.asked) / 100
    return CheckRow(
        result.title, text, result.ok, meter.used / scale, meter.asked / scale, meter.limit / scale
    )


def _turns(job: Job, *, guest: bool) -> list[ReasonChange]:
    """How the reason changed since the job was queued, oldest first."""
    events = JobEvent.objects.filter(job=job, code="WAITING", at__gte=job.queued_at).order_by("-n")
    newest = events.values_list("at", "reason", "message")[:REASON_CHANGES]
    return [
        ReasonChange(at, label_of(reason), redact(reason, message, {})[0] if guest else message)
        for at, reason, message in newest
    ][::-1]


def _s(count: str) -> str:
    return "" if count == "1" else "s"
