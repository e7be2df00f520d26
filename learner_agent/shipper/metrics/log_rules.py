"""Points that the job's metric rules (regular expressions) find in the log."""

from __future__ import annotations

import math
import re
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from learner_agent.log_segments import LogReader
from learner_agent.shipper.metrics import BATCH_POINTS, point_of
from learner_agent.spool import Gap, Spool
from learner_agent.untrusted_files import number_or
from learner_agent.wire import Metric
from learner_agent.wire_fields import MAX_OFFSET, Point

STATE = "shipper/rules.json"
HEX = re.compile("(?:[0-9a-f]{2})*")
COLORS = re.compile(rb"\x1b\[[0-9;:]*[mK]")
"""Escape codes that color a line or clear the rest of it: rules are written for what people see."""
LINE_CHARS = 4_096
"""Rules see this many characters of a line."""
RULE_CPU_S = 0.05
"""A rule that works longer on one line is switched off."""
LATEST_PRINTED_S = 2**33
"""A later time (the year 2242) in a line is not seconds since the epoch: milliseconds, most likely."""
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


@dataclass
class _State:
    off: int = 0
    step: int = 0
    count: int = 0
    tail: str = ""
    """The unfinished line before off, hexadecimal."""

    @classmethod
    def of(cls, saved: Mapping[str, Any] | None) -> _State:
        """Read the saved state. A program may have changed the file: then start over, repeated values are harmless."""
        values = saved or {}
        off, step, count = (number_or(values.get(name), -1) for name in ("off", "step", "count"))
        tail = values.get("tail")
        if min(off, step, count) < 0 or not isinstance(tail, str) or not HEX.fullmatch(tail):
            return cls()
        return cls(int(off), int(step), int(count), tail)


class LogRules:
    """Regular expressions of the spec, applied to each line of the log. The cursor is a byte offset of the log.

    Group ``step`` is the step, ``time`` the time (seconds since 1970, or ISO 8601), every other named group a metric. A
    match whose step is not an integer gives no point. A pattern without ``step`` belongs to the last step that any
    pattern found; if no pattern has one, matching lines are counted. A rule that is too slow on a line is switched
    off until the shipper restarts, and on_slow gets its pattern.
    """

    name = "rules"
    label = "the metric rules"

    def __init__(
        self, spool: Spool, patterns: Iterable[str], on_slow: Callable[[str], None] = lambda pattern: None
    ) -> None:
        self.spool = spool
        self.on_slow = on_slow
        self.patterns = list(_compiled(patterns))
        self.timer = SearchTimer(RULE_CPU_S)
        self.has_step = any("step" in pattern.groupindex for pattern in self.patterns)
        self.reader = LogReader(spool)
        self.state = self._next = _State.of(spool.read(STATE))

    @property
    def cursor(self) -> int:
        return self.state.off if self.patterns else MAX_OFFSET

    def rewind(self, cursor: int) -> None:
        """Do nothing: the position is in the spool, and reading from an older one changes nothing."""

    def confirm(self, frame: Metric) -> None:
        self.state = self._next
        with suppress(OSError):  # a full disk: after a restart some points are sent again
            self.spool.write(STATE, vars(self.state))

    def read(self) -> Metric | None:
        if not self.patterns:
            return None
        found = self.reader.read(self.state.off)
        if found is None:
            return None
        state = self._next = _State(self.state.off, self.state.step, self.state.count)
        if isinstance(found, Gap):
            state.off = found.to
            return Metric(self.name, self.state.off, found.to)
        at_ms = found.t0 + (found.reads[-1][1] if found.reads else 0)
        points: list[Point] = []
        begun = bytes.fromhex(self.state.tail)
        at = 0
        until = time.monotonic() + BATCH_S
        self.timer.start()
        try:
            while len(points) < BATCH_POINTS:
                end = found.data.find(b"\n", at)
                if end < 0:
                    state.tail = (begun + found.data[at:])[: 4 * LINE_CHARS].hex()
                    at = len(found.data)
                    break
                points += self._match(begun + found.data[at:end], state, at_ms)
                begun, at = b"", end + 1
                if time.monotonic() > until:
                    break
        finally:
            self.timer.stop()
        state.off = found.off + at
        in_order = [] if self.has_step else sorted({name for name, _, _, _ in points})
        return Metric(self.name, self.state.off, state.off, points, in_order=in_order)

    def _match(self, line: bytes, state: _State, at_ms: int) -> list[Point]:
        """Points of one line; if carriage returns rewrote it, of its last version."""
        seen = COLORS.sub(b"", line[: 4 * LINE_CHARS]) if b"\x1b" in line else line[: 4 * LINE_CHARS]
        text = seen.rstrip(b"\r").rsplit(b"\r", 1)[-1].decode("utf-8", "replace")[:LINE_CHARS]
        matches = [
            match for pattern in tuple(self.patterns) if (match := self._search(pattern, text)) is not None
        ]
        if not matches:
            return []
        state.count += 1
        if not self.has_step:
            state.step = state.count
        points = []
        for groups in (match.groupdict() for match in matches):
            step, when = groups.pop("step", None), groups.pop("time", None)
            if step is not None:
                number = step_of(step)
                if number is None:  # an invented step would be the job's progress until its end
                    continue
                state.step = number
            for name, value in groups.items():
                found = point_of(name, state.step, _time_ms(when, at_ms), printed_number(value or ""))
                points += [found] if found is not None else []
        return points

    def _search(self, pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
        try:
            return self.timer.search(pattern, text)
        except TooSlow:
            self.patterns.remove(pattern)
            self.on_slow(pattern.pattern)
            return None


def _compiled(patterns: Iterable[str]) -> Iterator[re.Pattern[str]]:
    """The server has checked these rules, but a program may have changed the file since: skip what is none."""
    for pattern in patterns:
        with suppress(re.error, OverflowError, RecursionError):
            yield re.compile(pattern)


def step_of(text: str) -> int | None:
    """The step that a rule found, None if it is no whole number."""
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
    return int(at_s * 1000) if 0 < at_s < LATEST_PRINTED_S else printed_ms


def printed_number(text: str) -> float | str | None:
    """Read a number as programs print it (0.5, 97.3%, nan): a float, "NaN" or "±Infinity"; None if it is not one."""
    try:
        value = float(text.strip().rstrip(",;%"))
    except ValueError:
        return None
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else f"{'-' if value < 0 else ''}Infinity"
