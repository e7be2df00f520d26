"""Geometry of quota and pool meters: bars in percent of the scale, drawn by components/meter.html. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from jobs.humanize import filesize
from jobs.models import StorageKind
from jobs.selectors.budgets import Budget
from jobs.selectors.fairness import Figures

SERIES = ("fill-1", "fill-4", "fill-5", "fill-2", "fill-6", "fill-3")
"""Classes of the six series colors, most distinct first; the seventh and later series are gray."""
REST = "fill-0"
FULL = 0.9
"""From this share of a limit on, pages point a quota out."""


@dataclass(frozen=True, slots=True)
class Bar:
    """One rectangle. kind: its class in the style sheet; x and width: percent, as text for the attribute."""

    kind: str
    x: str
    width: str


@dataclass(frozen=True, slots=True)
class MeterBars:
    """label: the bars as text. tick, before: positions of the limit and of the previous limit, in percent."""

    label: str
    bars: tuple[Bar, ...]
    tick: str | None
    before: str | None = None


def series(index: int) -> str:
    return SERIES[index] if index < len(SERIES) else REST


def quota_meter(
    label: str, *, limit: int, used: int, waiting: int = 0, scale: int = 0, before: int | None = None
) -> MeterBars:
    """Used slots, separately those above the limit, then waiting ones (hatched), and a tick at the limit.

    scale: the slots of the full width; meters of one column share it.
    """
    whole = max(scale, limit, before or 0, used + waiting, 1)
    within = min(used, limit)
    parts = [("part-used", within), ("part-over", used - within), ("part-waiting", waiting)]
    bars = (_bar("part-track", 0, limit, whole), *_in_a_row(parts, whole))
    text = f"{label}: {used} of {limit} used" + (f", {waiting} waiting" if waiting else "")
    shown = None if before is None or before == limit else _percent(before, whole)
    return MeterBars(text, bars, _percent(limit, whole), shown)


def shared_meter(
    label: str, holders: Sequence[tuple[str, int]], *, limit: int, waiting: int, scale: int = 0
) -> MeterBars:
    """A quota by holder, in series colors: (name, slots) each."""
    used = sum(slots for _, slots in holders)
    whole = max(scale, limit, used + waiting, 1)
    parts = [(series(index), slots) for index, (_, slots) in enumerate(holders)]
    bars = (_bar("part-track", 0, limit, whole), *_in_a_row([*parts, ("part-waiting", waiting)], whole))
    names = ", ".join(f"{name} {slots}" for name, slots in holders) or "none in use"
    return MeterBars(f"{label}: {names}; {waiting} waiting; limit {limit}", bars, _percent(limit, whole))


@dataclass(frozen=True, slots=True)
class StorageMeter:
    """Bytes stored, with a limit or None, and those of each kind that has any, with its class."""

    used: int
    limit: int | None
    kinds: tuple[tuple[str, int, str], ...]
    meter: MeterBars

    @property
    def full(self) -> bool:
        return self.limit is not None and self.used >= FULL * self.limit


def storage(used: Mapping[StorageKind, int], limit: int | None) -> StorageMeter:
    """What a tenant stores, by kind, in series colors."""
    kinds = tuple((kind.value, size, series(n)) for n, (kind, size) in enumerate(used.items()) if size > 0)
    total = sum(size for _, size, _ in kinds)
    whole = max(total, limit or 0, 1)
    names = ", ".join(f"{name} {filesize(size)}" for name, size, _ in kinds) or "nothing stored"
    text = f"Storage: {names}; " + ("no limit" if limit is None else f"limit {filesize(limit)}")
    bars = _in_a_row([(color, size) for _, size, color in kinds], whole)
    track = () if limit is None else (_bar("part-track", 0, limit, whole),)
    tick = None if limit is None else _percent(limit, whole)
    return StorageMeter(total, limit, kinds, MeterBars(text, (*track, *bars), tick))


def stored(limit: int | None, used: int, scale: int) -> MeterBars:
    """Bytes stored, separately those above the limit. scale: the bytes of the full width."""
    whole = max(scale, used, limit or 0, 1)
    within = used if limit is None else min(used, limit)
    text = f"{filesize(used)} stored, " + ("no limit" if limit is None else f"limit {filesize(limit)}")
    bars = _in_a_row([("part-used", within), ("part-over", used - within)], whole)
    if limit is None:
        return MeterBars(text, tuple(bars), None)
    return MeterBars(text, (_bar("part-track", 0, limit, whole), *bars), _percent(limit, whole))


def budget_meter(budget: Budget) -> MeterBars:
    """GPU-hours used of a budget, separately those above it, and a tick at its end."""
    limit, used = budget.gpu_hours, budget.used_gpu_hours
    whole = max(limit, used) or 1.0
    parts = [("part-used", min(used, limit)), ("part-over", used - limit)]
    text = f"GPU-hour budget: {budget.used} of {budget.limit} used"
    bars = (_bar("part-track", 0, limit, whole), *_in_a_row(parts, whole))
    return MeterBars(text, bars, _percent(limit, whole))


def pool_meter(label: str, *, used: int, free: int, down: int) -> MeterBars:
    """A pool: used, free and down add up to its slots."""
    whole = max(1, used + free + down)
    bars = _in_a_row([("part-used", used), ("part-free", free), ("part-down", down)], whole)
    return MeterBars(f"{label}: {used} used, {free} free, {down} down of {whole}", tuple(bars), None)


def held_meter(label: str, holders: Sequence[tuple[str, str, int]], *, free: int, down: int) -> MeterBars:
    """A pool by holder: (name, class, slots) each, then free and down slots."""
    whole = max(1, sum(slots for _, _, slots in holders) + free + down)
    bars = _in_a_row(
        [*((kind, slots) for _, kind, slots in holders), ("part-free", free), ("part-down", down)], whole
    )
    names = ", ".join(f"{name} {slots}" for name, _, slots in holders if slots) or "none in use"
    return MeterBars(f"{label}: {names}; {free} free, {down} down of {whole}", tuple(bars), None)


def promise_meter(label: str, limits: Sequence[int], *, capacity: int, allowed: int) -> MeterBars:
    """Limits of all tenants in a row against the cluster's capacity; what exceeds it is highlighted."""
    total = sum(limits)
    whole = max(total, allowed, capacity, 1)
    bars, at = [], 0
    for limit in limits:
        inside = max(0, min(limit, capacity - at))
        bars += _in_a_row([("part-limits", inside), ("part-over-capacity", limit - inside)], whole, at)
        at += limit
    text = f"{label}: limits sum to {total} of {capacity}, the policy allows {allowed}"
    return MeterBars(text, tuple(bars), _percent(capacity, whole))


def entitlement(label: str, found: Figures, *, scale: float) -> MeterBars:
    """What was received of an entitlement, what was short of it, and what came beyond it; a tick at the entitlement.

    scale: the slot-seconds of the full width; meters of one column share it.
    """
    whole = max(scale, 1.0)
    delivered = found.entitled - found.shortfall
    beyond = max(0.0, found.received - delivered)
    parts = [("part-used", delivered), ("part-short", found.shortfall), ("part-beyond", beyond)]
    text = (
        f"{label}: received {_hours(found.received)} of {_hours(found.entitled)} device-hours,"
        f" {_hours(found.shortfall)} short, {_hours(beyond)} beyond"
    )
    return MeterBars(text, tuple(_in_a_row(parts, whole)), _percent(found.entitled, whole))


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:,.1f}"


def _in_a_row(parts: Iterable[tuple[str, float]], whole: float, start: float = 0) -> list[Bar]:
    bars, at = [], start
    for kind, count in parts:
        if count > 0:
            bars.append(_bar(kind, at, count, whole))
            at += count
    return bars


def _bar(kind: str, at: float, count: float, whole: float) -> Bar:
    return Bar(kind, _percent(at, whole), _percent(count, whole))


def _percent(count: float, whole: float) -> str:
    return f"{100 * count / whole:.2f}"
