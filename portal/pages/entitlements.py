"""Figures of fairness as rows of a table, for the console and for a tenant's own page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jobs.selectors.fairness import Line
from portal.pages import meters

FIGURES = ("guaranteed", "share", "entitled", "received", "borrowed", "lent", "shortfall")
SHORT = 0.01
"""The part of an entitlement from which on what is missing is marked: each start takes a short time."""


def rows_of(lines: Sequence[Line]) -> list[dict[str, Any]]:
    """Each line in hours, with a bar on the scale of them all."""
    scale = max([0.0, *(max(line.figures.entitled, line.figures.received) for line in lines)])
    return [
        {
            "tenant": line.tenant,
            "cohort": line.cohort,
            "slot_type": line.slot_type,
            **{name: getattr(line.figures, name) / 3600 for name in FIGURES},
            "short": line.figures.shortfall > SHORT * line.figures.entitled,
            "meter": meters.entitlement(f"{line.tenant}, {line.slot_type}", line.figures, scale=scale),
        }
        for line in lines
    ]
