"""Amounts as text, the same in stored messages and on pages. Pure."""

from __future__ import annotations

from decimal import Decimal

from gpu_scheduler.model import unit as unit


def duration(seconds: float) -> str:
    """3 d 4 h, 1 h 31 min, 4 min 12 s, 38 s; below ten seconds with tenths: 1.8 s."""
    left = int(seconds)
    if seconds < 9.95 and seconds != left:
        return f"{seconds:.1f} s" if seconds >= 0.05 else "0 s"
    days, left = divmod(left, 86400)
    hours, left = divmod(left, 3600)
    minutes, rest = divmod(left, 60)
    if days:
        return f"{days} d {hours} h"
    if hours:
        return f"{hours} h {minutes:02d} min"
    if minutes:
        return f"{minutes} min {rest:02d} s" if minutes < 10 else f"{minutes} min"
    return f"{rest} s"


def past(seconds: float) -> str:
    """How long ago, in the largest unit only: 38 s ago, 6 min ago, 3 h ago, 2 d ago."""
    left = max(0, int(seconds))
    for seconds_each, word in ((86400, "d"), (3600, "h"), (60, "min")):
        if left >= seconds_each:
            return f"{left // seconds_each} {word} ago"
    return f"{left} s ago"


def devices(count: int, kind: str, *, each: int = 0) -> str:
    """4 CPUs, 1 h100 GPU; for several learners 2 × 4 CPUs. kind: a slot type; "" is any GPU."""
    if each and count > 1:
        return f"{count} × {each} {unit(kind, each)}"
    total = count * (each or 1)
    return f"{total} {unit(kind, total)}"


def slot_time(slot_seconds: float, kind: str) -> str:
    """Devices times the time that they were held: 2.5 a100 GPU hours, 12 GPU minutes, 40 CPU seconds."""
    for each, word in ((3600, "hours"), (60, "minutes")):
        if slot_seconds >= each:
            return f"{slot_seconds / each:,.1f} {unit(kind, 1)} {word}".replace(".0 ", " ", 1)
    return f"{slot_seconds:.0f} {unit(kind, 1)} seconds"


def saved_step(step: int | None, reported: int | None) -> str:
    """At what step a checkpoint is; without it, what is known instead. reported: the last step that was."""
    if step is not None:
        return f"step {step:,}"
    return "saved by the program, step unknown" + (
        "" if reported is None else f", last reported {reported:,}"
    )


def filesize(count: float) -> str:
    """Bytes as 12.3 MiB."""
    size, units = float(count), ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"]
    while size >= 1024 and len(units) > 1:
        size, units = size / 1024, units[1:]
    return f"{size:.0f} {units[0]}" if units[0] == "B" else f"{size:.1f} {units[0]}"


def decimal(value: float) -> str:
    """A number as people type it, read back as the same: "1000", "12.5"."""
    return format(Decimal(repr(float(value))), "f").removesuffix(".0")
