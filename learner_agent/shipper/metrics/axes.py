"""Where points lie: at the steps that a program prints or reports, or in the order in which they came.

Programs count from the beginning again with every epoch, fold or phase. A counter that falls back is no place in the
whole training: from then on its axis only gives an order. It counts on where it was, so that no point takes another's
place, and pages must not call it a step.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, NamedTuple

from msgspec import Meta, Struct
from msgspec.structs import replace

from learner_agent.untrusted_files import now_ms
from learner_agent.wire import number_out
from learner_agent.wire_fields import MAX_OFFSET, MAX_POINTS, Point

Place = Annotated[int, Meta(ge=0, le=MAX_OFFSET)]


class Axis(Struct):
    """The axis of a metric, or of rules that share metrics. printed: the last step; place: where its points are.

    shift: added to what is printed. stride: the last distance between two printed steps.
    drawn: the last step was shown by a progress bar, which draws it again with other values.
    once: whether the step is printed once in each epoch, None if unknown. printed_ms: when the last step was printed
    first.
    """

    printed: Place | None = None
    place: Place = 0
    shift: Annotated[int, Meta(ge=-MAX_OFFSET, le=MAX_OFFSET)] = 0
    stride: Place = 1
    in_order: bool = False
    drawn: bool = False
    once: bool | None = None
    printed_ms: Place = 0

    def advance(self, step: int, *, again: bool = False) -> int | None:
        """Move to a printed step and return the place of its points. None, without a move, above MAX_OFFSET.

        again: the same step as before counts as one that fell back."""
        shift, stride = self.shift, self.stride
        falls = self.falls_at(step) or (again and step == self.printed)
        if falls:
            shift = self.place + stride - step
        elif self.printed is not None and step > self.printed:
            stride = step - self.printed
        if step + shift > MAX_OFFSET:
            return None
        if self.once is None and self.printed is not None and step > self.printed:
            self.once = False
        self.in_order = self.in_order or falls
        self.printed, self.place, self.shift, self.stride = step, step + shift, shift, stride
        return self.place

    def falls_at(self, step: int) -> bool:
        return self.printed is not None and step < self.printed


def groups_of(patterns: Sequence[re.Pattern[str]], apart: frozenset[str]) -> list[int]:
    """For each pattern the number of its axis: those that share a metric share it. apart: groups that are no metric."""
    found: list[tuple[set[str], list[int]]] = []
    for index, pattern in enumerate(patterns):
        names, members = set(pattern.groupindex) - apart, [index]
        for other in [one for one in found if one[0] & names]:
            found.remove(other)
            names, members = names | other[0], members + other[1]
        found.append((names, members))
    numbers = {index: number for number, (_, members) in enumerate(found) for index in members}
    return [numbers[index] for index in range(len(patterns))]


def continued(names: set[str], ends: Mapping[str, int]) -> Axis:
    """The axis of these metrics in a later attempt. ends: where those that are in order ended before it."""
    end = max((ends[name] for name in names if name in ends), default=None)
    return Axis() if end is None else Axis(place=end, shift=end, in_order=True)


def is_due(count: int, said: int, *, ended: bool) -> bool:
    """Whether to say how many points are not stored: at the first, at ten times as many, and at the end."""
    return count > said and (ended or count >= 10 * said)


MAX_AXES = 5_000
"""Metrics of a source that have an axis; a job stores no more metrics either."""
BARE = ""
"""The name of the axis of steps that were reported without a number: no metric has it."""
FELL_BACK = (
    "The step of {name} in {label} fell back from {before:,} to {step:,}, as one that begins again with every epoch"
    " does. From here on the points of such metrics are in the order in which they were reported."
)
NOT_STORED = {
    "dropped": "Of {label}, {n} not stored, because there is another value at the same step.",
    "others": "Of {label}, {n} not stored, because another file, written at the same time, has the metric, too.",
    "over": f"Of {{label}}, {{n}} not stored, because an event has more than {MAX_POINTS:,} metrics.",
}
"""Why points are not stored, by the field of Axes that counts them."""


class MetricAxis(Axis):
    """The axis of one metric. value: the one at its place; falls: how often steps had begun again by then; at_ms: the
    latest time of its points; writer: whose they are, None if unknown."""

    value: float | str | None = None
    falls: Place = 0
    at_ms: Place = 0
    writer: Place | None = None


class Writer(NamedTuple):
    """What wrote points one after the other: each event file is one. began_ms: when it began, since the epoch; 0 if
    unknown."""

    key: int
    began_ms: int = 0


ALONE = Writer(0)
"""That of a source with one file."""


class Axes(Struct):
    """Those of all metrics that a program reports by name. A program may write anything into the file of it.

    falls: how often its steps began again. Metrics of one step fall back one after the other: that counts once.
    fell: what to say of the first time. dropped: points that are not stored, because of another value at their step;
    others: because another writer's are; over: because too many were reported at once.
    """

    of: dict[str, MetricAxis] = {}
    falls: Place = 0
    fell: str = ""
    dropped: Place = 0
    others: Place = 0
    over: Place = 0

    def copy(self) -> Axes:
        """Independent of this one: place() replaces what is in it."""
        return Axes(dict(self.of), self.falls, self.fell, self.dropped, self.others, self.over)

    def place(
        self, line: Sequence[Point], into: Placed, ends: Mapping[str, int], label: str, by: Writer = ALONE
    ) -> None:
        """Add points of one step, reported at once, where they belong, or count them as not stored. ends: see
        `continued`."""
        own = [point for point in line if not self._is_of_another(point, by)]
        self.others += len(line) - len(own)
        self._find_fall(own, into, label)
        for point in own:
            self._place(point, into, ends, by)

    def _is_of_another(self, point: Point, by: Writer) -> bool:
        """Whether a metric has points of another writer that were made when this one wrote already. Several processes
        may write the same metrics, and the steps of each may begin again: only one's count."""
        axis = self.of.get(point[0])
        return axis is not None and axis.writer not in (None, by.key) and 0 < by.began_ms < axis.at_ms

    def _find_fall(self, line: Sequence[Point], into: Placed, label: str) -> None:
        """Note that steps begin again with this line. All of it is asked first: a metric that is reported at the first
        step only has the same step again then."""
        for name, step, at_ms, _ in line:
            axis = self.of.get(name)
            if axis is not None and axis.falls_at(step) and axis.falls == self.falls:
                self.falls += 1
                self.fell = self.fell or FELL_BACK.format(
                    name=name or "what it reports", label=label, before=axis.printed, step=step
                )
                into.fall(at_ms or now_ms())
                return

    def _place(self, point: Point, into: Placed, ends: Mapping[str, int], by: Writer) -> None:
        name, step, at_ms, number = point
        if name not in self.of and len(self.of) >= MAX_AXES:
            into.points.append(point)
            return
        value = number_out(number)
        axis = replace(self.of.get(name) or self._new({name}, ends))
        is_behind = axis.falls < self.falls  # others have begun again since
        if step == axis.printed and not is_behind:
            self.dropped += name != BARE and value != axis.value
            return
        if axis.advance(step, again=is_behind) is None:
            return
        axis.value, axis.falls, axis.at_ms, axis.writer = value, self.falls, max(at_ms, axis.at_ms), by.key
        self.of[name] = axis
        into.count(step, has_point=name != BARE and not axis.in_order)
        if name != BARE:
            into.points.append((name, axis.place, at_ms, number))
            into.in_order |= {name} if axis.in_order else set()

    def _new(self, names: set[str], ends: Mapping[str, int]) -> MetricAxis:
        begun = continued(names, ends)
        return MetricAxis(place=begun.place, shift=begun.shift, in_order=begun.in_order, falls=self.falls)


class Notes:
    """Reports about a source to on_note, by code and message. saved: what was reported before a restart."""

    def __init__(self, on_note: Callable[[str, str], None], label: str, saved: Axes) -> None:
        self.on_note, self.label = on_note, label
        self.ended = False
        self._said = {why: int(getattr(saved, why)) for why in NOT_STORED}

    def fell(self, before: Axes, now: Axes) -> None:
        if now.fell and not before.fell:
            self.on_note("step_fell_back", now.fell)

    def dropped(self, now: Axes) -> None:
        for why, words in NOT_STORED.items():
            count = int(getattr(now, why))
            if is_due(count, self._said[why], ended=self.ended):
                self._said[why] = count
                n = "1 point was" if count == 1 else f"{count:,} points were"
                self.on_note("points_not_stored", words.format(label=self.label, n=n))


@dataclass
class Placed:
    """Points of a frame, and what METRIC says beside them."""

    points: list[Point] = field(default_factory=list)
    in_order: set[str] = field(default_factory=set)
    fell_ms: int | None = None
    _low: int | None = None
    _high: int | None = None
    _since: int = 0  # the highest since steps fell back

    def fall(self, at_ms: int) -> None:
        self.fell_ms, self._since = at_ms, 0

    def count(self, step: int, *, has_point: bool) -> None:
        """Note a step that was reported. has_point: a point is at it."""
        self._since = max(self._since, step)
        if not has_point:
            self._low = step if self._low is None else min(self._low, step)
            self._high = step if self._high is None else max(self._high, step)

    @property
    def steps(self) -> tuple[int, int] | None:
        """As in METRIC."""
        if self._low is None or self._high is None:
            return None
        return (
            (min(self._low, self._since), self._since)
            if self.fell_ms is not None
            else (self._low, self._high)
        )
