"""What comparisons with another platform share: the sides take turns, and their figures are compared one by one."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping
from typing import TypeVar

from bench.record import percentile

Side = TypeVar("Side")
Found = dict[str, defaultdict[str, list[float]]]
"""Values by side and figure."""


def alternating(sides: Mapping[str, Side], place: int) -> list[tuple[str, Side]]:
    """All of them; which is first changes from place to place."""
    ordered = list(sides.items())
    return ordered if place % 2 == 0 else ordered[::-1]


def figures(found: Mapping[str, Mapping[str, list[float]]], against: str) -> dict[str, float]:
    """Medians of each side, and ours by those of the side named, as columns; no ratio of what one side alone has.
    found: values by side and figure."""
    flat: dict[str, dict[str, float]] = {}
    for name, values in found.items():
        lines = values["first_line_s"]
        flat[name] = {"first_line_p50_s": percentile(lines, 0.5), "first_line_p99_s": percentile(lines, 0.99)}
        flat[name] |= {
            key: statistics.median(taken) for key, taken in values.items() if key != "first_line_s"
        }
    flat["ratio"] = {
        key: flat["ours"][key] / flat[against][key] for key in flat[against] if key in flat["ours"]
    }
    return {f"{name} {key}": value for name, each in flat.items() for key, value in each.items()}
