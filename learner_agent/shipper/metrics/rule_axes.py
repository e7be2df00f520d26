"""Where the points of metric rules lie: at the steps that a program prints, or in the order of its lines.

Programs print counters that begin again with every epoch. A counter that falls back is no step of the training: from
then on its axis only gives an order. It counts on where it was, so that no point takes another's place, and pages
must not call it a step.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated

from msgspec import Meta, Struct

from learner_agent.wire_fields import MAX_OFFSET

Place = Annotated[int, Meta(ge=0, le=MAX_OFFSET)]


class Axis(Struct):
    """The axis of rules that share metrics. printed: the last step that was printed; place: where its points are.

    shift: added to what is printed. stride: the last distance between two printed steps.
    """

    printed: Place | None = None
    place: Place = 0
    shift: Annotated[int, Meta(ge=-MAX_OFFSET, le=MAX_OFFSET)] = 0
    stride: Place = 1
    in_order: bool = False

    def advance(self, step: int) -> int | None:
        """Move to a printed step and return the place of its points. None, without a move, above MAX_OFFSET."""
        shift, stride = self.shift, self.stride
        if self.printed is not None and step < self.printed:
            shift = self.place + stride - step
        elif self.printed is not None and step > self.printed:
            stride = step - self.printed
        if step + shift > MAX_OFFSET:
            return None
        self.in_order = self.in_order or self.falls_at(step)
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
