"""Plots as SVG files: small, readable in a diff, and without a library."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 720, 360, 48, 140, 28, 44
COLORS = ("#2563eb", "#dc2626", "#059669", "#d97706", "#7c3aed", "#475569")


def shares(path: Path, title: str, x_label: str, curves: Mapping[str, Sequence[float]]) -> None:
    """For each curve, which share of its values (all more than 0) is at most x; x is logarithmic."""
    least = min(min(values) for values in curves.values())
    most = max(max(values) for values in curves.values())
    low, high = math.floor(math.log10(least)), math.ceil(math.log10(most))
    wide, tall = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def x_of(value: float) -> float:
        return LEFT + wide * (math.log10(value) - low) / (high - low)

    def y_of(share: float) -> float:
        return TOP + tall * (1 - share)

    parts = [_text(LEFT, 16, title, anchor="start")]
    for power in range(low, high + 1):
        x = x_of(10.0**power)
        parts += [_line(x, TOP, x, TOP + tall), _text(x, TOP + tall + 16, f"{10.0**power:,g}")]
    for percent in range(0, 101, 25):
        y = y_of(percent / 100)
        parts += [_line(LEFT, y, LEFT + wide, y), _text(LEFT - 6, y + 4, f"{percent} %", anchor="end")]
    parts.append(_text(LEFT + wide / 2, HEIGHT - 8, x_label))
    for number, values in enumerate(curves.values()):
        color, ordered = COLORS[number % len(COLORS)], sorted(values)
        picked = sorted({round(step * (len(ordered) - 1) / 200) for step in range(201)})
        points = " ".join(f"{x_of(ordered[at]):.1f},{y_of((at + 1) / len(ordered)):.1f}" for at in picked)
        parts.append(f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="1.5"/>')
    _write(path, [*parts, *_legend(list(curves))])


def bars(
    path: Path, title: str, groups: Mapping[str, Mapping[str, float]], *, line: float | None = None
) -> None:
    """For each group one bar per name, from 0. line: a value that is drawn across, such as a target."""
    names = list(dict.fromkeys(name for group in groups.values() for name in group))
    wide, tall = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
    most = max([line or 0.0, *(value for group in groups.values() for value in group.values())])
    step = 10.0 ** math.floor(math.log10(most))
    step = next(each for each in (step / 4, step / 2, step, 2 * step) if most / each <= 5)
    top = step * math.ceil(most / step)

    def y_of(value: float) -> float:
        return TOP + tall * (1 - value / top)

    parts = [_text(LEFT, 16, title, anchor="start")]
    for tick in range(round(top / step) + 1):
        y = y_of(tick * step)
        parts += [
            _line(LEFT, y, LEFT + wide, y),
            _text(LEFT - 6, y + 4, f"{tick * step:,.6g}", anchor="end"),
        ]
    room = wide / len(groups)
    width = 0.8 * room / len(names)
    for place, (label, group) in enumerate(groups.items()):
        x = LEFT + room * (place + 0.1)
        for number, name in enumerate(names):
            y, color = y_of(group.get(name, 0.0)), COLORS[number % len(COLORS)]
            left, high = x + number * width, TOP + tall - y
            parts.append(
                f'<rect x="{left:.1f}" y="{y:.1f}" width="{width - 1:.1f}" height="{high:.1f}" fill="{color}"/>'
            )
        parts.append(_text(LEFT + room * (place + 0.5), TOP + tall + 16, label))
    if line is not None:
        y = y_of(line)
        parts.append(
            f'<path d="M{LEFT} {y:.1f}H{LEFT + wide}" stroke="#333" stroke-width="1.5" stroke-dasharray="5 3"/>'
        )
    _write(path, [*parts, *_legend(names)])


def _legend(names: Sequence[str]) -> list[str]:
    parts, x = [], WIDTH - RIGHT + 12
    for number, name in enumerate(names):
        y, color = TOP + 16 + 18 * number, COLORS[number % len(COLORS)]
        parts.append(f'<path d="M{x} {y - 4}h18" stroke="{color}" stroke-width="3"/>')
        parts.append(_text(x + 24, y, name, anchor="start"))
    return parts


def _write(path: Path, parts: Sequence[str]) -> None:
    path.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif"'
        f' font-size="12"><rect width="100%" height="100%" fill="#fff"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def _line(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<path d="M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}" stroke="#ddd"/>'


def _text(x: float, y: float, text: str, anchor: str = "middle") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="#333">{escape(text)}</text>'
