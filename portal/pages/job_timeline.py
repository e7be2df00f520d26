"""A job's history as segments: which state, how long, and why it ended; grouped by attempt. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from math import sqrt

from jobs.accounting import PAUSE_S
from jobs.models import Attempt, JobEvent
from jobs.selectors.platform_stops import Span
from jobs.states import FINAL, HOLDS_GPUS, PROGRESS, State, StopReason, stop_label
from portal.pages.badges import STOPPED, phase_badge
from portal.pages.job_events import outcome
from portal.templatetags.ui import duration, thousands

PLATFORM_STOPPED = STOPPED[StopReason.PLATFORM_STOPPED]
NOT_RUNNING = "The platform was not running."
AHEAD = tuple(state.capitalize() for state in PROGRESS)
WIDEST = 12


@dataclass
class Segment:
    """One state that was visited. end is None while it lasts, and for good of a final one; ahead: not reached yet."""

    phase: str
    start: datetime | None = None
    end: datetime | None = None
    seconds: float = 0
    why: str = ""
    ahead: bool = False
    final: bool = False

    @property
    def family(self) -> str:
        return phase_badge(self.phase).family

    @property
    def icon(self) -> str:
        return phase_badge(self.phase).icon

    @property
    def width(self) -> int:
        """1 to 12: grows with the root of the duration, so that a long phase leaves room for a short one."""
        return 1 if self.ahead else max(1, min(WIDEST, round(sqrt(self.seconds / 5))))


@dataclass
class AttemptSpan:
    """One attempt on the timeline; ended: what ended it in a word or two, why: in a sentence."""

    n: int
    segments: list[Segment] = field(default_factory=list)
    ended: str = ""
    why: str = ""

    @property
    def width(self) -> int:
        """By the number of its segments, so that each finds room for its words as long as there is any."""
        return min(WIDEST, len(self.segments))


def timeline(
    events: Sequence[JobEvent],
    now: datetime,
    counts: Mapping[int, datetime] | None = None,
    stops: Sequence[Span] = (),
) -> list[AttemptSpan]:
    """Stretches in order. events: those that moved the job, oldest first. counts: until when each attempt counts, as
    jobs.accounting defines it: time without contact, such as that of a stopped platform, is no time of a state. stops:
    when the platform was stopped, in order; a job that was queued did not wait then."""
    stretches: list[AttemptSpan] = []
    for event, following in zip(events, [*events[1:], None], strict=True):
        state = State(event.to_state)
        n = _attempt_of(event, state)
        if not stretches or n > stretches[-1].n:
            _explain(stretches, event)
            stretches.append(AttemptSpan(n))
        final = state in FINAL
        end = following.at if following else None
        # Clocks of two machines may differ.
        until = end or now
        if state == State.QUEUED and (
            inside := [stop for stop in stops if event.at < stop[1] and stop[0] < until]
        ):
            stretches[-1].segments += _queued(event, end, until, inside)
            continue
        known = min(until, (counts or {}).get(n, until)) if state in HOLDS_GPUS else until
        seconds = 0 if final else max(0.0, (known - event.at).total_seconds())
        lost = 0 if final else (until - max(known, event.at)).total_seconds()
        why = (
            f"{event.message} {duration(lost)} without contact do not count."
            if lost > PAUSE_S
            else event.message
        )
        stretches[-1].segments.append(Segment(_word(state, event), event.at, end, seconds, why, final=final))
        if state in FINAL or state in (State.HALTED, State.STOPPING):
            stretches[-1].ended, stretches[-1].why = _ended(event), event.message
    if stretches and events and State(events[-1].to_state) not in FINAL | {State.HALTED, State.STOPPING}:
        stretches[-1].segments += _ahead(State(events[-1].to_state))
    return stretches


def _queued(
    event: JobEvent, end: datetime | None, until: datetime, stops: Sequence[Span]
) -> Iterator[Segment]:
    """A wait around the stops of the platform within it; until: its end, or now."""
    begin, why = event.at, event.message
    for began, ended in stops:
        if begin < began:
            yield Segment("Queued", begin, began, (began - begin).total_seconds(), why)
        began, ended = max(began, begin), min(ended, until)
        yield Segment(PLATFORM_STOPPED, began, ended, (ended - began).total_seconds(), NOT_RUNNING)
        begin = ended
    if begin < until or end is None:
        yield Segment("Queued", begin, end, max(0.0, (until - begin).total_seconds()), why)


def _explain(stretches: Sequence[AttemptSpan], event: JobEvent) -> None:
    """A restart knows why the attempt before it failed; the stop knew only how it ended."""
    if stretches and "cause" in event.numbers:
        stretches[-1].why = event.message


def _attempt_of(event: JobEvent, state: State) -> int:
    """A wait belongs to the attempt that it leads to."""
    return event.attempt + 1 if state == State.QUEUED else max(1, event.attempt)


def _word(state: State, event: JobEvent) -> str:
    """The stored state. What the job is on its way to (Resuming) is the badge's: it would rename what was."""
    return stop_label(event.reason) if state == State.STOPPING else state.capitalize()


def _ended(event: JobEvent) -> str:
    """Beside its segments there is room for "exit 1"; the sentence is under Attempts."""
    if (code := event.numbers.get("exit_code")) is not None:
        return f"exit {code}"
    if event.reason in set(StopReason):
        return STOPPED[StopReason(event.reason)]
    return "Stopped" if event.to_state == State.STOPPING else event.to_state.capitalize()


def _ahead(state: State) -> list[Segment]:
    word = state.capitalize()
    rest = AHEAD[AHEAD.index(word) + 1 :] if word in AHEAD else AHEAD
    return [Segment(phase, ahead=True) for phase in rest]


def borders(attempts: Sequence[Attempt]) -> dict[int, str]:
    """What the log of all attempts says between two of them, by the number of the later one. attempts: oldest first."""
    return {after.n: f"{_end(before)} → {_begin(after)}" for before, after in pairwise(attempts)}


def _end(attempt: Attempt) -> str:
    word = outcome(attempt) if attempt.closed_at else ""
    how = f": {word[0].lower()}{word[1:]}" if word and word != "Ended" else ""
    return f"Attempt {attempt.n} ended{_clock(attempt.closed_at)}{how}"


def _begin(attempt: Attempt) -> str:
    kept = attempt.resume_from
    if kept is None:
        place = "from the start"
    elif kept.step is None:
        place = f"resumed from checkpoint {kept.n}"
    else:
        place = f"resumed from step {thousands(kept.step)}"
    return f"Attempt {attempt.n} began{_clock(attempt.opened_at)}, {place}"


def _clock(at: datetime | None) -> str:
    """Times as the lines show them: in UTC."""
    return f" {at.astimezone(UTC):%H:%M:%S}" if at else ""
