"""A job's history as people read it: a word for each kind of event, no sentence twice, runs of checkpoints in one line.

The codes stay in the tooltip and in the JSON, for those who look something up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from django.db.models import Count, Q, QuerySet

from jobs.models import Attempt, Job, JobEvent
from jobs.selectors import usage
from jobs.selectors.redaction import FOR_MEMBERS, needs_redaction, redacted_events
from jobs.selectors.start_reasons import why_now
from jobs.selectors.wait_reasons import check_of
from jobs.states import EVENT_MESSAGES, STOP_LABELS, EventCode, State, StopReason, stop_label
from portal.pages import stopped_for
from portal.pages.badges import STOPPED, phase_badge
from portal.pages.job_waiting import kind_of
from portal.templatetags.ui import thousands
from tenants import access

TITLES = {
    EventCode.SUBMITTED: "Submitted",
    EventCode.MOVED: "State changed",
    EventCode.REQUESTED: "Requested",
    EventCode.WAITING: "Waiting",
    EventCode.PLACED: "Placed",
    EventCode.CHECKPOINT_REQUESTED: "Checkpoint requested",
    EventCode.CHECKPOINT_STORED: "Checkpoint",
    EventCode.CHECKPOINT_CORRUPT: "Damaged checkpoint",
    EventCode.GPUS_RETURNED: "GPUs released",
    EventCode.LEARNER_RESTARTED: "Learners restarted",
    EventCode.QUOTA_CHANGED: "Quota changed",
    EventCode.EDITED: "Edited",
    EventCode.DELETED: "Deleted",
    EventCode.CLONED: "Cloned",
    EventCode.CONDITION: "Condition",
    EventCode.DATA_REMOVED: "Data removed",
}
SOURCES = {"lifecycle": "platform", "system": "platform", "admin": "platform admin"}
ICONS: dict[str, str] = {
    EventCode.CHECKPOINT_REQUESTED: "save",
    EventCode.CHECKPOINT_STORED: "save",
    EventCode.CHECKPOINT_CORRUPT: "shield-alert",
    EventCode.PLACED: "server",
    EventCode.REQUESTED: "hand",
    EventCode.WAITING: "hourglass",
    EventCode.GPUS_RETURNED: "undo-2",
    EventCode.SUBMITTED: "send",
    EventCode.EDITED: "pencil",
    EventCode.DATA_REMOVED: "archive-x",
    State.HALTED: phase_badge("Halted").icon,
    State.COMPLETED: phase_badge("Completed").icon,
    State.FAILED: phase_badge("Failed").icon,
    State.PROCESSING: "circle-play",
}
"""By code, else by the state it led to."""
KINDS = {
    "state": ~Q(to_state=""),
    "checkpoint": Q(code__startswith="CHECKPOINT_"),
    "people": Q(actor__isnull=False),
}
"""What the tab can be narrowed to."""
TABS = (("All", ""), ("State", "state"), ("Checkpoint", "checkpoint"), ("Users", "people"))
PAGE = 200
DIGITS = 12
"""Of a digest, as many as people compare; the JSON has all."""
FOLDED = 3
"""This number of checkpoints in a row, or more, are shown as one line."""


@dataclass(frozen=True)
class EventLine:
    """One line. event: the newest it stands for; first: the number of the oldest; phase: the badge of a move;
    border: what is said above it, where it is the last of its attempt."""

    event: JobEvent
    first: int
    phase: str
    title: str
    words: str
    by: str
    codes: str
    icon: str
    border: str


def tab(user: access.Person, job: Job, *, before: int | None, kind: str, sought: str) -> dict[str, Any]:
    """What the tab shows: the events of one kind with the sought words, older than number `before`, a page of them."""
    events = newest(user, job, before, kind, sought)
    found = counts(chosen(_searched(user, job, sought), "", sought))
    older = events[-1].n if len(events) == PAGE else None
    query = {name: value for name, value in (("show", kind), ("q", sought)) if value}
    return {
        "events": lines(events, _outcomes(job), of=job),
        "kinds": [
            (title, name, found[name or "all"], "?" + urlencode({**query, "show": name}))
            for title, name in TABS
        ],
        "kind": kind if kind in KINDS else "",
        "sought": sought,
        "older": f"?{urlencode(query | {'before': older})}" if older and older > 1 else "",
        "newest": f"?{urlencode(query)}" if before is not None else "",
    }


def newest(
    user: access.Person, job: Job, before: int | None = None, kind: str = "", sought: str = ""
) -> list[JobEvent]:
    """A page of a job's events as this user can read them, the newest first."""
    events = chosen(_searched(user, job, sought).select_related("actor").order_by("-n"), kind, sought)
    return redacted_events(user, job, (events.filter(n__lt=before) if before else events)[:PAGE])


def lines(
    events: Sequence[JobEvent], outcomes: Mapping[int, str] | None = None, of: Job | None = None
) -> list[EventLine]:
    """Lines, newest first as the events are. outcomes: how each attempt ended, for the row between two of them. of: the
    job, whose stops are explained if it is opportunistic."""
    found: list[EventLine] = []
    explained = _explained(of, events) if of is not None and of.opportunistic else {}
    at = 0
    while at < len(events):
        run = _checkpoints(events, at)
        newer = found[-1].event.attempt if found else 0
        border = _border(run[0].attempt, newer, outcomes or {})
        found.append(_line(run, events[at + 1 :], border, explained.get(run[0].n, "")))
        at += len(run)
    return found


def chosen(events: QuerySet[JobEvent], kind: str, sought: str) -> QuerySet[JobEvent]:
    """Those of one kind, that say what is sought in what a reader sees of them or in their codes."""
    found = events.filter(KINDS.get(kind, Q()))
    if not sought:
        return found
    low = sought.lower()
    codes = [code for code in EventCode if low in f"{code} {TITLES[code]} {EVENT_MESSAGES[code]}".lower()]
    stops = [stop for stop in StopReason if low in STOP_LABELS[stop].lower()]
    return found.filter(
        Q(message__icontains=sought)
        | Q(code__in=codes)
        | Q(to_state__icontains=sought)
        | Q(reason__icontains=sought)
        | Q(to_state=State.STOPPING, reason__in=stops)
        | Q(actor__username__icontains=sought)
    )


def counts(events: QuerySet[JobEvent]) -> dict[str, int]:
    """How many there are of each kind, and of all under "all"."""
    return events.aggregate(all=Count("pk"), **{kind: Count("pk", filter=of) for kind, of in KINDS.items()})


def outcome(attempt: Attempt) -> str:
    """How an attempt ended; it keeps the state or, before a restart, the reason of the stop."""
    if attempt.outcome in set(StopReason):
        return STOPPED[StopReason(attempt.outcome)]
    return attempt.outcome.capitalize() or "Ended"


def _searched(user: access.Person, job: Job, sought: str) -> QuerySet[JobEvent]:
    """All events; for a guest's search none in whose hidden words they could find a tenant's numbers by guessing."""
    events = JobEvent.objects.filter(job=job)
    if sought and needs_redaction(user, job.tenant_id):
        return events.exclude(code__in=(EventCode.WAITING, EventCode.QUOTA_CHANGED)).exclude(
            reason__in=FOR_MEMBERS
        )
    return events


def _outcomes(job: Job) -> dict[int, str]:
    ended = Attempt.objects.filter(job=job).exclude(outcome="")
    return {one.n: outcome(one) for one in ended}


def _checkpoints(events: Sequence[JobEvent], at: int) -> Sequence[JobEvent]:
    end = at
    while (
        end < len(events)
        and events[end].code == EventCode.CHECKPOINT_STORED
        and events[end].attempt == events[at].attempt
    ):
        end += 1
    return events[at:end] if end - at >= FOLDED else events[at : at + 1]


def _explained(job: Job, events: Sequence[JobEvent]) -> dict[int, str]:
    """Of each stop that made room for another job, why, by the number of its event."""
    known = stopped_for.names(job, events)
    return {event.n: stopped_for.sentence(event, known) for event in events if stopped_for.made_room(event)}


def _line(run: Sequence[JobEvent], before: Sequence[JobEvent], border: str, why: str) -> EventLine:
    event, oldest = run[0], run[-1]
    title = TITLES[event.kind] if event.kind else event.code
    if event.code == EventCode.GPUS_RETURNED and event.numbers.get("slot_type") == usage.CPU_TYPE:
        title = "CPUs released"
    by = event.actor.get_username() if event.actor else SOURCES.get(event.source, event.source)
    codes = ", ".join(code for code in (event.to_state or event.code, event.reason) if code)
    if digest := (event.numbers.get("plan") or {}).get("snapshot"):
        codes += f"; decided from snapshot {digest[:DIGITS]}"
    words = event.words if oldest is event else _together(run)
    if event.code == EventCode.PLACED and (now := why_now(event.numbers)):
        words = f"{words.removesuffix('.')}. {now}."
    words = f"{_once(event, words, before)} {why}".rstrip()
    return EventLine(event, oldest.n, _phase(event), title, words, by, codes, _icon(event), border)


def _border(attempt: int, newer: int, outcomes: Mapping[int, str]) -> str:
    """The text between the last line of an attempt and the first of a later one, the next where all are shown."""
    if not 0 < attempt < newer:
        return ""
    ended = f" ended: {word[0].lower()}{word[1:]}." if (word := outcomes.get(attempt, "")) else " ended."
    later = (
        f"Attempt {newer} follows" if newer == attempt + 1 else f"Attempts {attempt + 1} to {newer} follow"
    )
    return f"Attempt {attempt}{ended} {later}."


def _icon(event: JobEvent) -> str:
    """The icon of an event; a wait shows who can end it."""
    if event.code == EventCode.WAITING and check_of(event.reason):
        return kind_of(event.reason, event.numbers).icon
    return ICONS.get(event.code) or ICONS.get(event.to_state, "activity")


def _phase(event: JobEvent) -> str:
    """The badge's word, empty for what is no move; a stop says what for."""
    if event.to_state == State.STOPPING:
        return stop_label(event.reason)
    return event.to_state.capitalize()


def _together(run: Sequence[JobEvent]) -> str:
    """Steps are the least and the greatest: a halt may come to a lower step than the checkpoint before it."""
    first, last = run[-1].numbers.get("checkpoint"), run[0].numbers.get("checkpoint")
    steps = [one.numbers["step"] for one in run if one.numbers.get("step") is not None]
    where = f", at steps {thousands(min(steps))} to {thousands(max(steps))}," if steps else ""
    return f"Checkpoints {first} to {last}{where} are stored and verified."


def _once(event: JobEvent, words: str, before: Sequence[JobEvent]) -> str:
    """What a stop has said already is not said again by the state it leads to; what is new behind it stays."""
    stop = next((one for one in before if one.to_state), None)
    if not event.to_state or stop is None or stop.to_state != State.STOPPING or not stop.message:
        return words
    if not words.startswith(stop.message):
        return words
    rest = words.removeprefix(stop.message).strip()
    if not rest and event.to_state == State.FAILED:
        return f"Failed: {_first_sentence(words)}"
    waits = event.to_state == State.QUEUED
    return rest or ("It is waiting to restart." if waits else "The learners have ended.")


def _first_sentence(words: str) -> str:
    """What happened, without the resolver's reasons, the remedy or the numbers behind it."""
    return words.partition(". ")[0].removesuffix(".") + "."
