"""Where metric points come from: metrics.jsonl, rules over the log, TensorBoard files.

Each source is read forward from a cursor and gives one batch at a time; the cursor moves on when the server has
committed the batch. A batch that is sent twice changes nothing there: one value per learner, series and step.
"""

from __future__ import annotations

import json
import math
import os
import re
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from learner_agent.log_segments import LogReader
from learner_agent.shipper.tensorboard import NotAnEventFile, records, scalars
from learner_agent.spool import TORN, Gap, Spool
from learner_agent.untrusted_files import LARGE_BYTES, sound_number
from learner_agent.wire import MAX_OFFSET, MAX_POINTS, NAME_CHARS, Point, number_in

BATCH_POINTS = 1_000
READ_BYTES = 256 * 1024
MAX_LINE = 64 * 1024
"""Longer lines of metrics.jsonl are skipped."""
JUNK_SHOWN = 80
RULES, TENSORBOARD = "shipper/rules.json", "shipper/tensorboard.json"
HEX = re.compile("(?:[0-9a-f]{2})*")
COLOURS = re.compile(rb"\x1b\[[0-9;:]*[mK]")
"""Escape codes that colour a line or clear the rest of it: a rule is written for what people see."""
RULE_LINE = 4_096
"""Rules look at this many characters of a line."""
RULE_CPU_S = 0.05
"""A rule that works longer on one line is switched off."""
LATEST_S = 2**33
"""A later time than this (the year 2242) is none of a line: milliseconds, most likely."""
RULES_BATCH_S = 0.1
"""After so long the rest of the log waits for the next batch, so that the shipper does other things, too."""


@dataclass(frozen=True)
class Batch:
    """Points read between two cursors; state is what the source keeps to go on from next."""

    off: int
    next: int
    points: list[Point]
    total: int | None = None
    state: Any = None


class Source(Protocol):
    """name is the cursor's name on the wire. read gives the next batch or None; confirm moves past it."""

    name: str

    @property
    def cursor(self) -> int: ...

    def read(self) -> Batch | None: ...

    def confirm(self, batch: Batch) -> None: ...

    def rewind(self, cursor: int) -> None: ...


def _point(name: Any, step: Any, at_ms: Any, value: Any) -> Point | None:
    """Make a point of what a program wrote, or None if it is none."""
    if isinstance(step, float) and step.is_integer():
        step = int(step)
    if isinstance(step, bool) or not isinstance(step, int) or not 0 <= step <= MAX_OFFSET:
        return None
    number = number_in(value)
    if number is None:
        return None
    # PostgreSQL text holds neither NUL nor lone surrogates.
    clean = (
        str(name).replace("\0", "").encode("utf-8", "replace").decode("utf-8", "replace")[:NAME_CHARS].strip()
    )
    return (clean, step, int(at_ms), number) if clean else None


class Reported:
    """metrics.jsonl, written by training.report or by any program: {"step", "time", "total"?, name: value …}.

    A line that holds no point is skipped; on_junk is told which the first was, and why.
    """

    name = "jsonl"

    def __init__(self, path: Path, on_junk: Callable[[str], None] = lambda line: None) -> None:
        self.path = path
        self.cursor = 0
        self._on_junk, self._told = on_junk, False

    def rewind(self, cursor: int) -> None:
        self.cursor = cursor

    def confirm(self, batch: Batch) -> None:
        self.cursor = batch.next

    def read(self) -> Batch | None:
        try:
            if os.stat(self.path).st_size <= self.cursor:
                return None
            with self.path.open("rb", buffering=0) as source:
                source.seek(self.cursor)
                data = source.read(READ_BYTES) or b""
        except OSError:
            return None
        points: list[Point] = []
        total, at = None, 0
        while len(points) < BATCH_POINTS:
            end = data.find(b"\n", at)
            if end < 0:
                if at == 0 and len(data) == READ_BYTES:
                    self._skip(data)
                    at = len(data)  # a line of that length is no report: skip it piece by piece
                break
            found, whole = self._line(data[at:end])
            if points and len(points) + len(found) > MAX_POINTS:
                break  # it begins the next batch
            points.extend(found[:MAX_POINTS])
            if len(found) > MAX_POINTS:
                self._skip(data[at:end], many=True)
            total = whole if whole is not None else total
            if not found and whole is None:
                self._skip(data[at:end])
            at = end + 1
        return Batch(self.cursor, self.cursor + at, points, total) if at else None

    def _skip(self, line: bytes, *, many: bool = False) -> None:
        if line.strip() and not line.endswith(TORN) and not self._told:
            self._told = True
            shown = line[:JUNK_SHOWN].decode("utf-8", "replace")
            several = "Write several lines of one step"
            if many:
                told = (
                    f"has more than {MAX_POINTS:,} metrics: {shown!r}. {several}; what is beyond is skipped."
                )
            elif len(line) > MAX_LINE:
                told = f"is longer than {MAX_LINE // 1024} KiB: {shown!r}. {several}; lines like this one are skipped."
            else:
                told = f"holds no metric: {shown!r}. Each is one JSON object with a whole step of at least 0 and "
                told += "numbers by name; lines like this one are skipped."
            self._on_junk(f"A line of metrics.jsonl {told}")

    def _line(self, text: bytes) -> tuple[list[Point], int | None]:
        try:
            line = json.loads(text) if len(text) <= MAX_LINE else None
        except (ValueError, RecursionError):
            line = None
        if not isinstance(line, dict):
            return [], None
        step, total, time_s = line.pop("step", None), line.pop("total", None), line.pop("time", None)
        at_ms = int(time_s * 1000) if isinstance(time_s, (int, float)) and 0 < time_s < 2**41 else 0
        points = [_point(name, step, at_ms, value) for name, value in line.items()]
        whole = isinstance(total, int) and not isinstance(total, bool) and 0 <= total <= MAX_OFFSET
        return [point for point in points if point is not None], total if whole else None


class TooSlow(Exception):
    """Raised inside a search that takes too long."""


class _Clock:
    """Ends a search that works too long: Python's matcher looks for signals while it works.

    It ticks by the process's use of the processor. The first tick in a search notes how far the thread has come, so
    that neither a busy machine nor another thread counts; quick searches cost nothing.
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
        """Raises TooSlow."""
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
class _RuleState:
    off: int = 0
    step: int = 0
    count: int = 0
    tail: str = ""
    """The unfinished line before off, hexadecimal."""

    @classmethod
    def of(cls, saved: Mapping[str, Any] | None) -> _RuleState:
        """As it was saved. What a program made of the file instead begins anew: a value sent twice changes nothing."""
        said = saved or {}
        off, step, count = (sound_number(said.get(name), -1) for name in ("off", "step", "count"))
        tail = said.get("tail")
        if min(off, step, count) < 0 or not isinstance(tail, str) or not HEX.fullmatch(tail):
            return cls()
        return cls(int(off), int(step), int(count), tail)


class Rules:
    """Regular expressions of the spec over the log.

    ``step`` is the step, ``time`` when it was (seconds since 1970, or ISO 8601), every other named group a metric. A
    match whose step is no whole number gives nothing. A pattern without ``step`` belongs to the last step that
    any pattern saw; if none of them has one, lines that match are counted. A rule that is too slow on a line is
    switched off until the shipper starts again, and on_slow is told.
    """

    name = "rules"

    def __init__(
        self, spool: Spool, patterns: Iterable[str], on_slow: Callable[[str], None] = lambda pattern: None
    ) -> None:
        self.spool = spool
        self.on_slow = on_slow
        self.patterns = list(_compiled(patterns))
        self.clock = _Clock(RULE_CPU_S)
        self.has_step = any("step" in pattern.groupindex for pattern in self.patterns)
        self.reader = LogReader(spool)
        self.state = _RuleState.of(spool.read(RULES))

    @property
    def cursor(self) -> int:
        return self.state.off if self.patterns else MAX_OFFSET

    def rewind(self, cursor: int) -> None:
        """The spool's own state is the cursor here: going on from an older place changes nothing."""

    def confirm(self, batch: Batch) -> None:
        self.state = batch.state
        _save(self.spool, RULES, vars(self.state))

    def read(self) -> Batch | None:
        if not self.patterns:
            return None
        found = self.reader.read(self.state.off)
        if found is None:
            return None
        state = _RuleState(self.state.off, self.state.step, self.state.count)
        if isinstance(found, Gap):
            state.off = found.to
            return Batch(self.state.off, found.to, [], state=state)
        at_ms = found.t0 + (found.reads[-1][1] if found.reads else 0)
        points: list[Point] = []
        begun = bytes.fromhex(self.state.tail)
        at = 0
        until = time.monotonic() + RULES_BATCH_S
        self.clock.start()
        try:
            while len(points) < BATCH_POINTS:
                end = found.data.find(b"\n", at)
                if end < 0:
                    state.tail = (begun + found.data[at:])[: 4 * RULE_LINE].hex()
                    at = len(found.data)
                    break
                points += self._match(begun + found.data[at:end], state, at_ms)
                begun, at = b"", end + 1
                if time.monotonic() > until:
                    break
        finally:
            self.clock.stop()
        state.off = found.off + at
        return Batch(self.state.off, state.off, points, state=state)

    def _match(self, line: bytes, state: _RuleState, at_ms: int) -> list[Point]:
        """Points of one line; of a line that was drawn over with carriage returns, the last drawing."""
        seen = COLOURS.sub(b"", line[: 4 * RULE_LINE]) if b"\x1b" in line else line[: 4 * RULE_LINE]
        text = seen.rstrip(b"\r").rsplit(b"\r", 1)[-1].decode("utf-8", "replace")[:RULE_LINE]
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
                digits = step.strip()
                # "²".isdigit() is true, too; and an invented step would be the job's progress for ever
                if (
                    not (digits.isascii() and digits.isdigit())
                    or len(digits) > 19
                    or int(digits) > MAX_OFFSET
                ):
                    continue
                state.step = int(digits)
            for name, value in groups.items():
                number = _number(value) if value is not None else None
                point = _point(name, state.step, _at_ms(when, at_ms), number) if number is not None else None
                points += [point] if point is not None else []
        return points

    def _search(self, pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
        try:
            return self.clock.search(pattern, text)
        except TooSlow:
            self.patterns.remove(pattern)
            self.on_slow(pattern.pattern)
            return None


def _compiled(patterns: Iterable[str]) -> Iterator[re.Pattern[str]]:
    """The rules as the server checked them; what else a program put there is none."""
    for pattern in patterns:
        with suppress(re.error, OverflowError, RecursionError):
            yield re.compile(pattern)


def _save(spool: Spool, name: str, value: Any) -> None:
    """Note how far a source is. On a full disk it is not, and a restarted shipper sends some of it again."""
    with suppress(OSError):
        spool.write(name, value)


def _at_ms(text: str | None, printed_ms: int) -> int:
    """The moment that a line tells of itself, else when it was printed. ISO 8601 without a zone is UTC."""
    said = text.strip() if text else ""
    try:
        at_s = float(said)
    except ValueError:
        try:
            at = datetime.fromisoformat(said)
            at_s = (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
        except (ValueError, OverflowError):
            return printed_ms
    return int(at_s * 1000) if 0 < at_s < LATEST_S else printed_ms


def _number(text: str) -> float | str | None:
    try:
        value = float(text.strip().rstrip(",;%"))
    except ValueError:
        return None
    return (
        value
        if math.isfinite(value)
        else ("NaN" if math.isnan(value) else f"{'-' if value < 0 else ''}Infinity")
    )


@dataclass
class TensorBoard:
    """Every ``*tfevents*`` file below the given directories, by how far each has been read."""

    spool: Spool
    roots: list[Path]
    name: str = "tb"
    cursor: int = 0
    offsets: dict[str, int] = field(default_factory=dict)
    look_every_s: float = 2.0
    _look_at: float = 0.0
    _unread: list[tuple[Path, Path]] = field(default_factory=list)  # of the last look, the next one last

    def __post_init__(self) -> None:
        saved = self.spool.read(TENSORBOARD, most=LARGE_BYTES) or {}
        numbers = {path: int(sound_number(at, 0)) for path, at in saved.items()}
        self.offsets = (
            numbers if sum(numbers.values()) < MAX_OFFSET else {}
        )  # a program may have written anything
        self.cursor = sum(self.offsets.values())

    def rewind(self, cursor: int) -> None:
        """The spool's own state is the cursor here, as in Rules."""

    def confirm(self, batch: Batch) -> None:
        self.offsets, self.cursor = batch.state, batch.next
        _save(self.spool, TENSORBOARD, self.offsets)

    def read(self) -> Batch | None:
        """The next points; None only after a look at all files that began in this very call."""
        while True:
            looks = not self._unread
            if looks:
                if time.monotonic() < self._look_at:
                    return None
                self._unread = [(root, path) for root in self.roots for path in self._files(root)][::-1]
            while self._unread:
                batch = self._read_file(*self._unread[-1])
                if batch is not None:
                    return batch  # and again from this file, until it has no more
                self._unread.pop()
            if looks:
                self._look_at = time.monotonic() + self.look_every_s
                return None

    def look_to_the_end(self) -> None:
        """The program has ended: from now on None means that nothing is left."""
        self.look_every_s = self._look_at = 0.0

    def _files(self, root: Path) -> list[Path]:
        found = []
        for folder, _, names in os.walk(root):
            found += [Path(folder, name) for name in names if "tfevents" in name]
        return sorted(found)

    def _read_file(self, root: Path, path: Path) -> Batch | None:
        key = str(path)
        start = self.offsets.get(key, 0)
        try:
            if path.is_symlink() or path.stat().st_size <= start:
                return None
            with path.open("rb") as source:
                source.seek(start)
                data = source.read(4 * READ_BYTES)
        except OSError:
            return None
        run = path.parent.relative_to(root).as_posix()
        points: list[Point] = []
        used = 0
        try:
            for end, event in records(data):
                used = end
                for scalar in scalars(event):
                    name = scalar.tag if run == "." else f"{run}/{scalar.tag}"
                    at_ms = int(scalar.time_s * 1000) if 0 < scalar.time_s < 2**41 else 0
                    point = _point(name, scalar.step, at_ms, _number(repr(scalar.value)))
                    points += [point] if point is not None else []
                if len(points) >= BATCH_POINTS:
                    break
        except NotAnEventFile:
            used = path.stat().st_size - start  # never looked at again
        if not used and len(data) == 4 * READ_BYTES:
            used = self._skip_large(data)
        if not used:
            return None
        offsets = {**self.offsets, key: start + used}
        return Batch(self.cursor, self.cursor + used, points[:2000], state=offsets)

    def _skip_large(self, data: bytes) -> int:
        """A record larger than one read holds an image or a graph: step over it."""
        return 12 + int.from_bytes(data[:8], "little") + 4
