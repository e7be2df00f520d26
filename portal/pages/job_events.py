"""A job's history as people read it: a word for each kind of event, no sentence twice, runs of checkpoints in one line.

The codes stay in the tooltip and in the JSON, for those who look something up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jobs.models import Attempt, JobEvent
from jobs.states import STOPPING_WORDS, EventCode, State, StopReason
from portal.templatetags.ui import thousands

TITLES = {
    EventCode.SUBMITTED: "Submitted",
    EventCode.MOVED: "Went on",
    EventCode.WISHED: "Asked for",
    EventCode.WAITING: "Waiting",
    EventCode.PLACED: "Placed",
    EventCode.CHECKPOINT_STORED: "Checkpoint",
    EventCode.CHECKPOINT_CORRUPT: "Damaged checkpoint",
    EventCode.GPUS_RETURNED: "GPUs returned",
    EventCode.LEARNER_RESTARTED: "Learner restarted",
    EventCode.QUOTA_CHANGED: "Quota changed",
    EventCode.EDITED: "Edited",
    EventCode.DELETED: "Deleted",
    EventCode.CLONED: "Cloned",
    EventCode.CONDITION: "Condition",
}
SOURCES = {"lifecycle": "platform", "system": "platform", "admin": "administrator"}
STOPPED = {
    StopReason.HALT_REQUESTED: "Halted",
    StopReason.PREEMPTED: "Preempted",
    StopReason.RESCALED: "Rescaled",
    StopReason.CANCEL_REQUESTED: "Canceled",
    StopReason.TIME_LIMIT: "Time limit reached",
    StopReason.BUDGET_EXHAUSTED: "Budget used up",
    StopReason.LEARNER_FAILED: "A learner failed",
    StopReason.LEARNER_LOST: "A learner was lost",
    StopReason.NODE_LOST: "A node was lost",
    StopReason.DEPLOY_FAILED: "Could not be deployed",
    StopReason.IMAGE_ERROR: "No usable image",
    StopReason.DATA_ERROR: "Data could not be read",
}
FOLDED = 3
"""From so many checkpoints in a row on, one line stands for all."""


@dataclass(frozen=True)
class Told:
    """One line. event: the newest it stands for; first: the number of the oldest; phase: the badge of a move."""

    event: JobEvent
    first: int
    phase: str
    title: str
    words: str
    by: str
    codes: str


def told(events: Sequence[JobEvent]) -> list[Told]:
    """Lines, newest first as the events are."""
    lines: list[Told] = []
    at = 0
    while at < len(events):
        run = _checkpoints(events, at)
        lines.append(_line(run[0], run[-1], events[at + 1 :]))
        at += len(run)
    return lines


def outcome(attempt: Attempt) -> str:
    """How an attempt ended; it keeps the state or, before a restart, the reason of the stop."""
    if attempt.outcome in set(StopReason):
        return STOPPED[StopReason(attempt.outcome)]
    return attempt.outcome.capitalize() or "Ended"


def _checkpoints(events: Sequence[JobEvent], at: int) -> Sequence[JobEvent]:
    end = at
    while (
        end < len(events)
        and events[end].code == EventCode.CHECKPOINT_STORED
        and events[end].attempt == events[at].attempt
    ):
        end += 1
    return events[at:end] if end - at >= FOLDED else events[at : at + 1]


def _line(event: JobEvent, oldest: JobEvent, before: Sequence[JobEvent]) -> Told:
    title = TITLES[EventCode(event.code)]
    if event.code == EventCode.GPUS_RETURNED and event.numbers.get("slot_type") == "cpu":
        title = "CPU slots returned"
    by = event.actor.get_username() if event.actor else SOURCES.get(event.source, event.source)
    codes = ", ".join(code for code in (event.to_state or event.code, event.reason) if code)
    words = event.words if oldest is event else _together(event, oldest)
    return Told(event, oldest.n, _phase(event), title, _once(event, words, before), by, codes)


def _phase(event: JobEvent) -> str:
    """The badge's word, empty for what is no move; a stop says what for."""
    if event.to_state == State.STOPPING and event.reason in set(StopReason):
        return STOPPING_WORDS[StopReason(event.reason)]
    return event.to_state.capitalize()


def _together(newest: JobEvent, oldest: JobEvent) -> str:
    first, last = oldest.numbers.get("checkpoint"), newest.numbers.get("checkpoint")
    low, high = oldest.numbers.get("step"), newest.numbers.get("step")
    steps = (
        f", at steps {thousands(low)} to {thousands(high)}," if low is not None and high is not None else ""
    )
    return f"Checkpoints {first} to {last}{steps} are stored and verified."


def _once(event: JobEvent, words: str, before: Sequence[JobEvent]) -> str:
    """What a stop has said already is not said again by the state it leads to; what is new behind it stays."""
    stop = next((one for one in before if one.to_state), None)
    if not event.to_state or stop is None or stop.to_state != State.STOPPING or not stop.message:
        return words
    if not words.startswith(stop.message):
        return words
    rest = words.removeprefix(stop.message).strip()
    return rest or {State.FAILED: "The job has failed.", State.QUEUED: "It waits to go on."}.get(
        State(event.to_state), "The learners are gone."
    )
