"""Points that the job's metric rules (regular expressions) find in the log: in lines, and in the drawings of progress
bars, which carriage returns separate."""

from __future__ import annotations

import math
import re
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from learner_agent.log_segments import LogReader, Piece
from learner_agent.shipper.metrics import BATCH_POINTS, EARLIEST_S, point_of
from learner_agent.shipper.metrics.axes import Axis, Place, continued, groups_of, is_due
from learner_agent.spool import Gap, Spool
from learner_agent.untrusted_files import LARGE_BYTES, now_ms
from learner_agent.wire import Metric
from learner_agent.wire_fields import MAX_OFFSET, Point

STATE = "shipper/rules.json"
COLORS = re.compile(rb"\x1b\[[0-9;:]*[mK]")
"""Escape codes that color a line or clear the rest of it: rules are written for what people see."""
LINE_CHARS = 4_096
"""Rules see this many characters of a line."""
RULE_CPU_S = 0.05
"""A rule that works longer on one line is switched off."""
LATEST_PRINTED_S = 2**33
"""A later time (the year 2242) in a line is not seconds since the epoch: milliseconds, most likely."""
DRAWING_MS, DRAWINGS = 500, 100
"""Of a progress bar one drawing in DRAWING_MS is read, and this many at once after a pause: a short bar gives all its
points. The last drawing is always read."""
NEWLINE = 10
TOGETHER_MS = 1_000
"""Processes of one learner print a step within this time of each other; epochs take longer."""
OTHERS_WAIT_MS = 2_000
"""Epochs that are as short as TOGETHER_MS print their step again within this time: then others' lines wait no more."""
HELD_VALUES = 500
"""At most so many values wait until it is known whose they are."""
FELL_BACK = (
    "The step in a line of the log fell back from {before:,} to {step:,}, as one that counts within an epoch does. From"
    " here on the points of its rule are in the order of their lines, and progress counts no steps by it."
)
SAME_AGAIN = (
    "A line of the log has the step {step:,} of the line before again, with another value, as a counter that is printed"
    " at the end of each epoch does. From here on the points of its rule are in the order of their lines, and progress"
    " counts no steps by it."
)
NO_METRICS = frozenset({"step", "time"})
BATCH_S = 0.1
"""After this long the rest of the log waits for the next frame, so that the shipper does its other work, too."""


class TooSlow(Exception):
    """Raised inside a search that takes too long."""


class SearchTimer:
    """Ends a search that works too long: Python's matcher checks for signals while it works.

    It ticks by the process's CPU time. The first tick in a search notes the thread's CPU time, so that neither a busy
    machine nor another thread counts; quick searches cost nothing.
    """

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self._is_searching = False
        self._search = self._ticked = 0
        self._since = 0.0
        signal.signal(signal.SIGVTALRM, self._tick)

    def start(self) -> None:
        signal.setitimer(signal.ITIMER_VIRTUAL, self.limit_s / 4, self.limit_s / 4)

    def stop(self) -> None:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)

    def search(self, pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
        """Search one line. Raises TooSlow."""
        self._search += 1
        try:
            self._is_searching = True
            return pattern.search(text)
        finally:
            self._is_searching = False

    def _tick(self, _number: int, _frame: object) -> None:
        if not self._is_searching:
            return
        if self._ticked != self._search:
            self._ticked, self._since = self._search, time.thread_time()
        elif time.thread_time() - self._since >= self.limit_s:
            raise TooSlow


ENDS = re.compile(rb"[\r\n]")
Match = tuple[int, dict[str, str | None]]
"""Number of a rule, and what its groups matched."""
Held = tuple[list[Match], int, bool]
"""What was found in a line or drawing, when it was printed, and whether it was drawn."""
NOT_STORED = {
    "no_step": "Of the metric rules, {n} not stored, because its step is not in digits alone, or too large.",
    "no_number": "Of the metric rules, {n} not stored, because its value is no number.",
    "same_step": "Of the metric rules, {n} not stored, because there is another value at the same step.",
    "too_large": "Of the metric rules, {n} not stored, because its step is too large.",
    "drawings": "Of a progress bar, {n} not read, because it was drawn more often than twice a second.",
}
"""Why points are not stored, by the name under which they are counted."""


class _State(Struct):
    """How far the log is read, and what its rest depends on. A program may write anything into the file of it."""

    off: Place = 0
    count: Place = 0
    """Lines and drawings in which a rule found something."""
    tail: Annotated[str, Meta(pattern="^(?:[0-9a-f]{2})*$")] = ""
    """The unfinished line before off, hexadecimal."""
    axes: list[Axis] = []
    newest: Axis | None = None
    """The axis of the last step that was found, as it was there."""
    values: dict[str, tuple[Place, float | str]] = {}
    """The newest point of each metric."""
    held: list[Held] = []
    """Lines that wait, and the axis that they wait for: see LogRules._hold."""
    held_for: Place = 0
    drawing: list[Match] = []
    """What the newest drawing of a bar showed: the next one may have a newer value of the same step."""
    drawing_ms: Place = 0
    drawn_ms: Place = 0
    may_draw: Annotated[float, Meta(ge=0, le=DRAWINGS)] = DRAWINGS
    """How many drawings may be read at once, as of drawn_ms."""
    has_bar: bool = False
    fell: str = ""
    """What to say of a step that fell back."""
    dropped: dict[str, Place] = {}
    ended: bool = False

    def copy(self) -> _State:
        return msgspec.convert(msgspec.to_builtins(self), _State)

    def drop(self, why: str, count: int = 1) -> None:
        self.dropped[why] = self.dropped.get(why, 0) + count


class LogRules:
    """Regular expressions of the spec, applied to each line of the log. The cursor is a byte offset of the log.

    Group ``step`` is the step, ``time`` the time (seconds since 1970, or ISO 8601), every other named group a metric. A
    match whose step is not an integer gives no point. A pattern without ``step`` belongs to the last step that any
    pattern found; if no pattern has one, matching lines are counted. ``axes`` says where points of a step that
    falls back are; ends: where metrics that were in order ended in earlier attempts.

    A rule that is too slow on a line is switched off until the shipper restarts, and on_slow gets its pattern. on_note
    gets code and message of a step that fell back, and of points that are not stored: at the first, at ten times as
    many, and at the end.
    """

    name = "rules"
    label = "the metric rules"

    def __init__(
        self,
        spool: Spool,
        patterns: Iterable[str],
        on_slow: Callable[[str], None] = lambda pattern: None,
        on_note: Callable[[str, str], None] = lambda code, message: None,
        ends: Mapping[str, int] | None = None,
    ) -> None:
        self.spool = spool
        self.on_slow, self.on_note = on_slow, on_note
        rules = list(_compiled(patterns))
        self.patterns = dict(enumerate(rules))
        self.timer = SearchTimer(RULE_CPU_S)
        self.has_step = any("step" in rule.groupindex for rule in rules)
        self.reader = LogReader(spool)
        self.axis_of = groups_of(rules, NO_METRICS) if self.has_step else [0] * len(rules)
        self.stepped = {self.axis_of[n] for n, rule in enumerate(rules) if "step" in rule.groupindex}
        self.state = self._next = self._saved() or _State(axes=self._axes(rules, ends or {}))
        self._reported = dict(self.state.dropped)
        self._at_end = False

    def _axes(self, rules: list[re.Pattern[str]], ends: Mapping[str, int]) -> list[Axis]:
        """The axes as the attempt begins. One without steps of its own follows others, which count on already."""
        axes = []
        for number in range(len(set(self.axis_of))):
            names = {
                name for n, rule in enumerate(rules) if self.axis_of[n] == number for name in rule.groupindex
            }
            axis = continued(names, {} if self.has_step and number not in self.stepped else ends)
            axis.in_order = axis.in_order or not self.has_step
            axes.append(axis)
        return axes

    def _saved(self) -> _State | None:
        """The state before a restart; None if a program has damaged it: points that are sent twice are harmless."""
        saved = self.spool.read(STATE, most=LARGE_BYTES)
        if saved is None:
            return None
        try:
            found = msgspec.convert(saved, _State)
        except msgspec.ValidationError:
            return None
        return found if len(found.axes) == len(set(self.axis_of)) else None

    @property
    def cursor(self) -> int:
        return self.state.off if self.patterns else MAX_OFFSET

    def rewind(self, cursor: int) -> None:
        """Do nothing: the position is in the spool, and reading from an older one changes nothing."""

    def end(self) -> None:
        """The program has ended: what it printed last is a line, even without a newline."""
        self._at_end = True

    def confirm(self, frame: Metric) -> None:
        if self._next.fell != self.state.fell:
            self.on_note("step_fell_back", self._next.fell)
        self.state = self._next
        with suppress(OSError):  # a full disk: after a restart some points are sent again
            self.spool.write(STATE, msgspec.to_builtins(self.state))
        self._tell()

    def _tell(self) -> None:
        for why, count in self.state.dropped.items():
            reported = self._reported.get(why, 0)
            if why in NOT_STORED and is_due(count, reported, ended=self.state.ended):
                self._reported[why] = count
                what = "drawing" if why == "drawings" else "point"
                n = f"{count:,} {what} was" if count == 1 else f"{count:,} {what}s were"
                self.on_note("points_not_stored", NOT_STORED[why].format(n=n))

    def read(self) -> Metric | None:
        if not self.patterns:
            return None
        found = self.reader.read(self.state.off)
        quiet = found is None and not self._at_end
        others_waited = quiet and self._others_waited(self.state, now_ms())
        if found is None and not others_waited and (not self._at_end or self.state.ended):
            return None
        state = self._next = self.state.copy()
        out = _Found()
        self.timer.start()
        try:
            if isinstance(found, Gap):
                state.off, state.tail = found.to, ""
            elif found is not None:
                self._read_piece(found, state, out)
            elif others_waited:
                self._release(state, out, once=None)
            else:
                self._read_line(bytes.fromhex(state.tail), state, state.drawn_ms or now_ms(), out)
                while state.held:
                    self._release(state, out, once=True)
                state.tail, state.ended = "", True
        finally:
            self.timer.stop()
        return Metric(self.name, self.state.off, state.off, out.points, in_order=sorted(out.in_order))

    def _read_piece(self, piece: Piece, state: _State, out: _Found) -> None:
        """Read lines and drawings. A carriage return at the end of a piece waits: a newline may follow it."""
        begun = bytes.fromhex(state.tail)
        text, at, clock = begun + piece.data, 0, _Clock(piece)
        until = time.monotonic() + BATCH_S
        for found in ENDS.finditer(text):
            end, after = found.start(), text[found.end() : found.end() + 1]
            is_line = text[end] == NEWLINE
            if not is_line and after in (b"\n", b""):
                continue
            read = self._read_line if is_line else self._read_drawing
            read(text[at:end], state, clock.at(end - len(begun) - (not is_line)), out)
            at = end + 1
            if len(out.points) >= BATCH_POINTS or time.monotonic() > until:
                break
        else:
            state.off = piece.off + len(piece.data)
            rest = text[at:]
            state.tail = (
                rest[: 4 * LINE_CHARS].rstrip(b"\r") + (b"\r" if rest.endswith(b"\r") else b"")
            ).hex()
            return
        state.off, state.tail = piece.off + at - len(begun), ""

    def _read_line(self, line: bytes, state: _State, at_ms: int, out: _Found) -> None:
        """A line, which may be the last drawing of a bar."""
        matches = self._matches(line)
        self._give_drawing(matches, state, out)
        if matches:
            self._hold(matches, state, at_ms, out, drawn=False)

    def _read_drawing(self, drawing: bytes, state: _State, at_ms: int, out: _Found) -> None:
        if not drawing.strip():
            return
        passed = max(0, at_ms - state.drawn_ms) / DRAWING_MS
        state.may_draw, state.drawn_ms = min(DRAWINGS, state.may_draw + passed), max(at_ms, state.drawn_ms)
        if state.may_draw < 1:
            if state.has_bar:
                state.drop("drawings")
            return
        state.may_draw -= 1
        if matches := self._matches(drawing):
            state.has_bar = True
            self._give_drawing(matches, state, out)
            state.drawing, state.drawing_ms = matches, at_ms

    def _give_drawing(self, newer: list[Match], state: _State, out: _Found) -> None:
        """Give the points of the newest drawing, unless a newer one shows the same steps."""
        if state.drawing and (not _steps(newer) or _steps(newer) != _steps(state.drawing)):
            self._hold(state.drawing, state, state.drawing_ms, out, drawn=True)
        state.drawing = []

    def _matches(self, text: bytes) -> list[Match]:
        seen = COLORS.sub(b"", text[: 4 * LINE_CHARS]) if b"\x1b" in text else text[: 4 * LINE_CHARS]
        line = seen.rstrip(b"\r").decode("utf-8", "replace")[:LINE_CHARS]
        found = [(n, self._search(n, pattern, line)) for n, pattern in tuple(self.patterns.items())]
        return [(n, match.groupdict()) for n, match in found if match is not None]

    def _hold(self, matches: list[Match], state: _State, at_ms: int, out: _Found, *, drawn: bool) -> None:
        """Give the points of a line or drawing, or let it wait.

        The first step again, with another value, is the next epoch's where a line is printed at the end of each, and
        another process's where several print every step. What is printed next says which: until then all waits, but
        lines of other metrics not for long.
        """
        if state.held:
            once = self._is_once(matches, state, at_ms)
            if once is None and not self._others_waited(state, at_ms):
                state.held.append((matches, at_ms, drawn))
                if sum(len(groups) for line, _, _ in state.held for _, groups in line) > HELD_VALUES:
                    self._release(state, out, once=True)
                return
            self._release(state, out, once=once)
            self._hold(matches, state, at_ms, out, drawn=drawn)
            return
        for n, groups in () if drawn else matches:
            axis = state.axes[self.axis_of[n]]
            is_again = axis.once is None and self._has_again(n, groups, state)
            if is_again and _between(at_ms, axis.printed_ms) < TOGETHER_MS:
                state.held, state.held_for = [(matches, at_ms, drawn)], self.axis_of[n]
                return
        self._give(matches, state, at_ms, out, drawn=drawn)

    def _has_again(self, n: int, groups: dict[str, str | None], state: _State) -> bool:
        """Whether a match has the last step of its axis again, with another value."""
        axis, text = state.axes[self.axis_of[n]], groups.get("step")
        if text is None or axis.drawn or axis.printed is None or step_of(text) != axis.printed:
            return False
        values = {name: value for name, value in groups.items() if value and name not in NO_METRICS}
        return any(_has_other(state, *one, axis.place) for one in values.items())

    def _is_once(self, matches: list[Match], state: _State, at_ms: int) -> bool | None:
        """Whether a step is printed once in each epoch, now that something else was printed; None: still unknown."""
        axis = state.axes[min(state.held_for, len(state.axes) - 1)]
        for n, groups in matches:
            step = step_of(groups.get("step") or "") if self.axis_of[n] == state.held_for else None
            if step is None or axis.printed is None:
                continue
            if step != axis.printed:
                return step < axis.printed
            if _between(at_ms, axis.printed_ms) >= TOGETHER_MS:
                return True
        return None

    def _others_waited(self, state: _State, at_ms: int) -> bool:
        """Whether lines of other metrics have waited for long enough: since the last one of the axis."""
        own = [at for matches, at, _ in state.held if self._has_step_of(matches, state.held_for)]
        return 0 < len(own) < len(state.held) and _between(at_ms, own[-1]) >= OTHERS_WAIT_MS

    def _has_step_of(self, matches: list[Match], axis: int) -> bool:
        return any(self.axis_of[n] == axis and groups.get("step") for n, groups in matches)

    def _release(self, state: _State, out: _Found, *, once: bool | None) -> None:
        """Give what waited. Of it, lines may wait for another axis. None: as of several processes, but what is printed
        next may still say that they are epochs."""
        held, state.held = state.held, []
        state.axes[min(state.held_for, len(state.axes) - 1)].once = once
        give = self._give if once is None else self._hold
        for matches, at_ms, drawn in held:
            give(matches, state, at_ms, out, drawn=drawn)

    def _give(self, matches: list[Match], state: _State, at_ms: int, out: _Found, *, drawn: bool) -> None:
        """The points of one line or drawing."""
        state.count += 1
        placed: set[int] = set()  # axes: only the first of several rules of a line may move to the next epoch
        for n, groups in matches:
            values = {name: text for name, text in groups.items() if text and name not in NO_METRICS}
            axis = state.axes[self.axis_of[n]]
            before, is_first = axis.place, self.axis_of[n] not in placed
            placed.add(self.axis_of[n])
            is_apart = axis.once or (axis.once is None and _between(at_ms, axis.printed_ms) >= TOGETHER_MS)
            again = is_first and not drawn and bool(is_apart) and self._has_again(n, groups, state)
            place = self._place(n, groups.get("step"), state, len(values), again=again)
            if place is None:
                continue
            if place != before or not axis.printed_ms:
                axis.printed_ms = max(at_ms, 0)
            axis.drawn = drawn or (axis.drawn and place == before)
            for name, text in values.items():
                value = printed_number(text)
                point = point_of(name, place, _time_ms(groups.get("time"), at_ms), value)
                if point is None or value is None:
                    state.drop("no_number")
                elif self._is_new(name, place, value, state):
                    out.points.append(point)
                    out.in_order |= {name} if axis.in_order else set()

    def _place(self, n: int, text: str | None, state: _State, count: int, *, again: bool) -> int | None:
        """Where on its axis the points of a match are; None, and count points dropped, if nowhere. again: it has the
        step before once more, in a new epoch."""
        number = self.axis_of[n]
        axis = state.axes[number]
        if text is None and number in self.stepped:
            return axis.place
        if text is None and self.has_step:  # it follows the rules with steps
            axis.in_order = axis.in_order or (state.newest is not None and state.newest.in_order)
            return axis.advance(state.newest.place if state.newest else 0)
        step = state.count if text is None else step_of(text)
        if step is None:  # an invented step would be the job's progress until its end
            state.drop("no_step", count)
            return None
        if again:
            axis.once = True
        if (again or axis.falls_at(step)) and not axis.in_order and not state.fell:
            state.fell = (SAME_AGAIN if again else FELL_BACK).format(before=axis.printed, step=step)
        place = axis.advance(step, again=again)
        if place is None:
            state.drop("too_large", count)
        state.newest = msgspec.structs.replace(axis)
        return place

    def _is_new(self, name: str, place: int, value: float | str, state: _State) -> bool:
        """Whether it is no other point of its metric: of one step the first counts. The same value again is no loss."""
        before = state.values.get(name)
        if before is not None and before[0] == place:
            if before[1] != value:
                state.drop("same_step")
            return False
        state.values[name] = (place, value)
        return True

    def _search(self, n: int, pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
        try:
            return self.timer.search(pattern, text)
        except TooSlow:
            del self.patterns[n]
            self.on_slow(pattern.pattern)
            return None


@dataclass
class _Found:
    """Points of a frame, and the metrics of which these have an order only."""

    points: list[Point] = field(default_factory=list)
    in_order: set[str] = field(default_factory=set)


class _Clock:
    """When the launcher had read a piece, by offsets that only grow."""

    def __init__(self, piece: Piece) -> None:
        self._reads = iter(piece.reads)
        self._end, self._ms, self._t0 = 0, 0, piece.t0

    def at(self, offset: int) -> int:
        while offset >= self._end and (read := next(self._reads, None)) is not None:
            self._end, self._ms = self._end + read[0], read[1]
        return self._t0 + self._ms


def _has_other(state: _State, name: str, text: str, place: int) -> bool:
    """Whether the newest point of a metric is at this place and has another value than this text."""
    value, newest = printed_number(text), state.values.get(name)
    return value is not None and newest is not None and newest[0] == place and newest[1] != value


def _steps(matches: list[Match]) -> list[tuple[int, str]]:
    return [(n, step) for n, groups in matches if (step := groups.get("step"))]


def _compiled(patterns: Iterable[str]) -> Iterator[re.Pattern[str]]:
    """The server has checked these rules, but a program may have changed the file since: skip what is none."""
    for pattern in patterns:
        with suppress(re.error, OverflowError, RecursionError):
            yield re.compile(pattern)


def step_of(text: str) -> int | None:
    """The step that a rule found, None if it is not in digits alone ("1,000", "-1", "0.5"), or too large."""
    digits = text.strip()
    if not (digits.isascii() and digits.isdigit()) or len(digits) > 19:  # "²".isdigit() is true, too
        return None
    return int(digits) if int(digits) <= MAX_OFFSET else None


def _time_ms(text: str | None, printed_ms: int) -> int:
    """The time that a line gives for itself, else when it was printed. ISO 8601 without a zone is UTC."""
    written = text.strip() if text else ""
    try:
        at_s = float(written)
    except ValueError:
        try:
            at = datetime.fromisoformat(written)
            at_s = (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
        except (ValueError, OverflowError):
            return printed_ms
    return int(at_s * 1000) if EARLIEST_S <= at_s < LATEST_PRINTED_S else printed_ms


def printed_number(text: str) -> float | str | None:
    """Read a number as programs print it (0.5, 97.3%, nan): a float, "NaN" or "±Infinity"; None if it is not one."""
    try:
        value = float(text.strip().rstrip(",;%"))
    except ValueError:
        return None
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else f"{'-' if value < 0 else ''}Infinity"


def _between(now_ms: int, then_ms: int) -> int:
    """The time that has passed; after a clock was set back, an unknown one: as much as it was set back by."""
    return abs(now_ms - then_ms)
