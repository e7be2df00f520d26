"""Geometry of a line of 96 × 26 without axes. Pure; overview.html draws it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

WIDTH, HEIGHT, EDGE, LEAST = 96.0, 26.0, 3.0, 3


@dataclass(frozen=True, slots=True)
class Spark:
    """line and area: path data; x and y: where the newest point is."""

    line: str
    area: str
    x: str
    y: str


def draw(points: Sequence[tuple[int, float]]) -> Spark | None:
    """None where there are too few points for a shape."""
    if len(points) < LEAST:
        return None
    first, last = points[0][0], points[-1][0]
    low, high = min(value for _, value in points), max(value for _, value in points)
    spread = high - low

    def place(step: int, value: float) -> str:
        x = EDGE + (WIDTH - 2 * EDGE) * (step - first) / (last - first)
        share = (high - value) / spread if spread else 0.5
        return f"{x:.1f} {EDGE + (HEIGHT - 2 * EDGE) * share:.1f}"

    places = [place(step, value) for step, value in points]
    line = "M" + "L".join(places)
    x, y = places[-1].split()
    return Spark(line, f"{line}L{x} {HEIGHT:.0f}L{EDGE} {HEIGHT:.0f}Z", x, y)
