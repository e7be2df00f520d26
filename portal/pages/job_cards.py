"""What the job page says in its cards: numbers at a glance, what a halt kept, why it failed. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.template.defaultfilters import floatformat, pluralize

from jobs.states import FINAL
from portal.pages.cells import primary_metrics
from portal.templatetags.ui import duration, hours, newest, thousands

View = dict[str, Any]

CHARTS = 2
"""Metrics that have a tile and a chart on the overview of a job."""
HALT_PHASES = (
    ("seen", "acknowledged", "neutral"),
    ("saved", "saved", "amber"),
    ("verified", "verified", "teal"),
    ("released", "released", "green"),
)
"""Of each part of a receipt: its key, what a page calls it, and its color."""


@dataclass(frozen=True)
class Kpi:
    """One number of the strip. value_name: the key by which the page keeps it fresh; at: shows its age."""

    title: str
    value: str
    small: str = ""
    value_name: str = ""
    mono: bool = False
    percent: float | None = None
    at: str = ""


@dataclass(frozen=True)
class HaltPhase:
    """A part of a halt's time; x and width are shares of the whole, 0 to 100."""

    name: str
    family: str
    seconds: float
    x: float
    width: float


@dataclass(frozen=True)
class Receipt:
    """What a halt kept, and how long each part of it took. waited: it was taken out of the queue and held nothing.
    learners, batch: with what it ran, of an attempt whose batch the platform chose."""

    headline: str
    step: int | None
    steps_lost: int | None
    seconds: float | None
    checkpoint: int | None
    legs: list[HaltPhase]
    waited: bool
    learners: int | None = None
    batch: int | None = None


def kpis(job: View, *, ran_s: float, rest: tuple[str, str] | None = None) -> list[Kpi]:
    """The strip. ran_s: of closed attempts; an ended job shows it in place of the time left. rest: what a halted
    job has left, and how fast it was."""
    progress = job["progress"]
    step, total, percent = progress["step"], progress["total"], progress["percent"]
    steps = (
        f"{thousands(step)} / {thousands(total)}" if total else (thousands(step) if step is not None else "")
    )
    strip = [
        Kpi(
            "Progress",
            f"{floatformat(percent, 0)}%"
            if percent is not None
            else ("—" if step is None else f"step {thousands(step)}"),
            steps if percent is not None else "",
            value_name="progress",
            percent=percent,
        ),
        Kpi("Ran for", duration(ran_s) if ran_s else "—")
        if job["state"] in FINAL
        else Kpi("Left after resume", rest[0], f"at {rest[1]}")
        if rest
        else Kpi("Time left", *_time_left(job), value_name="left"),
    ]
    for name in primary_metrics(job, CHARTS):
        place = _place(job["metrics"][name])
        strip.append(Kpi(name, newest(job["metrics"], name), place, value_name=f"metric:{name}", mono=True))
    unit = "GPU-hours" if job["gpus"] else "CPU-hours"
    strip.append(Kpi(unit, hours(job["slot_seconds"] / 3600), job["devices_text"], value_name="hours"))
    used, allowed = job["restarts_used"], job["max_restarts"]
    restarts = (f"{used} of {allowed}", "node failures don't count") if allowed else ("0", "not enabled")
    strip.append(Kpi("Restarts", *restarts, value_name="restarts"))
    kept = job["checkpoint"]
    strip.append(
        Kpi(
            "Last checkpoint",
            ("none" if job["state"] in FINAL else "none yet")
            if kept is None
            else f"step {thousands(kept['step'])}"
            if kept["step"] is not None
            else "step unknown",
            value_name="checkpoint",
            at="" if kept is None else kept["at"],
        )
    )
    return strip


def _place(point: dict[str, Any]) -> str:
    """Where a point is, as texts.ts says it: one that only has an order is at no step."""
    return f"{'position' if point.get('axis') == 'order' else 'step'} {thousands(point['step'])}"


def receipt(job: View, *, waited: bool) -> Receipt | None:
    """What the last halt kept, while the job is halted. waited: that halt found it in the queue."""
    last = job["last_halt"]
    if job["state"] != "HALTED" or not last:
        return None
    lost, parts = last.get("steps_lost"), last.get("parts") or {}
    if waited:
        headline, parts = "Removed from the queue", {}
    elif last.get("checkpoint") is None:
        headline = "Halted without a checkpoint"
    elif lost == 0:
        headline = "Halted, no steps lost"
    elif lost is None:
        headline = "Halted"
    else:
        headline = f"Halted, {thousands(lost)} step{pluralize(lost)} to repeat"
    return Receipt(
        headline,
        last.get("step"),
        lost,
        last.get("seconds"),
        last.get("checkpoint"),
        _legs(parts),
        waited,
        last.get("learners"),
        last.get("batch"),
    )


def _legs(parts: dict[str, float | None]) -> list[HaltPhase]:
    known = [
        (name, family, parts[key] or 0.0) for key, name, family in HALT_PHASES if parts.get(key) is not None
    ]
    whole = sum(seconds for _, _, seconds in known) or 1.0
    legs, x = [], 0.0
    for name, family, seconds in known:
        width = 100 * seconds / whole
        legs.append(HaltPhase(name, family, seconds, round(x, 2), round(width, 2)))
        x += width
    return legs


def _time_left(job: View) -> tuple[str, str]:
    throughput = job["throughput"]
    if job["state"] != "PROCESSING" or not job["progress"]["total"]:
        return "—", ""
    if throughput["seconds_left"] is None:
        return "—", "no throughput yet"
    return duration(round(throughput["seconds_left"])), speed(throughput["steps_per_second"])


def speed(steps_per_s: float) -> str:
    """Three significant digits, as texts.ts writes them."""
    return f"{float(f'{steps_per_s:.3g}'):.10g} steps/s"
