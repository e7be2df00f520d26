"""The learners tab: the gang at a glance, who is slow, its size over time, and the start of an attempt as bars.

Pure but for `panel` and what it reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from statistics import median_low
from typing import Any

from jobs.models import Attempt, Job, Learner
from jobs.selectors.failures import NEVER_BEGAN, exit_code_of, first_exit, was_stopped
from jobs.selectors.requests import size_range
from jobs.selectors.throughput import step_times, times_median
from jobs.states import HOLDS_GPUS, Phase, State
from portal.pages.cells import primary_metric
from portal.pages.charts import Steps, steps
from portal.pages.job_cards import Kpi, View
from portal.templatetags.ui import duration

LATE = timedelta(
    seconds=15
)  # a learner whose heartbeat is this old is marked as late, long before it is silent
ATTEMPTS_SHOWN = 12
SIZES_SHOWN = 100  # newest attempts of which the size is drawn
MAX_BARS = 32  # of a large gang those that came last
TICKS = 5
LEAST_WAIT_S = 0.1
STARTING = (
    ("neutral", "placed"),
    ("violet", "deploying"),
    ("teal", "downloading"),
    ("amber", "starting"),
    ("blue", "processing"),
)
"""Phases of a start in order, each with its color family."""
ENDED = (Phase.EXITED, Phase.STORING, Phase.DONE)
UP = (Phase.PROCESSING, *ENDED)


@dataclass(frozen=True)
class LearnerRow:
    """A learner in the table. slow: how many times the gang's median its step takes, if that is worth a flag."""

    row: Learner
    late: bool
    step_time: float | None = None
    slow: float | None = None

    canceled: bool = False
    """Its attempt was canceled, which its program sees as it sees a halt."""
    stopped: bool = False
    """The platform stopped it because another learner had failed."""

    @property
    def phase(self) -> str:
        """How it ended; while it works, what it says of itself."""
        row = self.row
        if row.phase not in ENDED and not row.cluster_phase:
            return row.phase.capitalize()
        code = exit_code_of(row)
        if self.canceled and (code != 0 or row.halted):
            return "Canceled"
        if code is None and row.failure_details.get("reason") in NEVER_BEGAN:
            return "Not started"
        if code is None and (row.exited_at or row.cluster_phase):
            return "Lost"
        if not code:
            return row.phase.capitalize()
        return "Stopped" if self.stopped else "Halted" if row.halted else "Failed"

    @property
    def step_words(self) -> str:
        return "—" if self.step_time is None else seconds(self.step_time)


@dataclass(frozen=True)
class StartBar:
    """A phase of a start; x and width are shares of the whole, 0 to 100."""

    name: str
    family: str
    x: float
    width: float


@dataclass(frozen=True)
class Lane:
    """One learner's start. after: seconds until its program ran; waited: how long the last one came after it."""

    rank: int
    node: str
    bars: tuple[StartBar, ...]
    after: float | None
    waited: float | None


@dataclass(frozen=True)
class LearnerStart:
    """How an attempt started. last: the rank whose program began last; missing: those that have not started yet."""

    lanes: tuple[Lane, ...]
    last: int | None
    took: float | None
    missing: int
    hidden: int
    ticks: tuple[str, ...]


def rows(job: Job, attempt: int | None, now: datetime) -> list[LearnerRow]:
    """The learners of an attempt, the newest if none is named."""
    n = attempt or max(1, job.attempt)
    found = list(Learner.objects.filter(job=job, attempt=n).order_by("rank"))
    first = first_exit(found)
    canceled = Attempt.objects.filter(job=job, n=n, outcome=State.CANCELED).exists()
    return [_one(row, now, first, canceled=canceled) for row in found]


def panel(job: Job, view: View, n: int, now: datetime) -> dict[str, Any]:
    """What the tab shows of attempt n; the queries are the same however large the gang is."""
    attempt = Attempt.objects.filter(job=job, n=n).first()
    times = step_times(job.pk, n, primary_metric(view))
    slow = times_median(times)
    learners = [
        replace(one, step_time=times.get(one.row.rank), slow=slow.get(one.row.rank))
        for one in rows(job, n, now)
    ]
    over = n < job.attempt or State(job.state) not in HOLDS_GPUS  # whatever a learner said last
    return {
        "learner_rows": learners,
        "attempt": n,
        "attempt_numbers": _offered(max(1, job.attempt), n),
        "strip": strip(job, attempt, learners, over=over),
        "slowest": max((one for one in learners if one.slow), key=lambda one: one.slow or 0, default=None),
        "start": start(attempt, [one.row for one in learners], now) if attempt else None,
        "starting": STARTING,
        "sizes": sizes(job, now),
        "over": over,
    }


def _offered(newest: int, chosen: int) -> list[int]:
    """The attempts to choose from: the newest, and the one that is shown. An elastic job may have hundreds."""
    shown = list(range(newest, max(0, newest - ATTEMPTS_SHOWN), -1))
    return shown if chosen in shown else [*shown, chosen]


def sizes(job: Job, now: datetime) -> Steps | None:
    """How many learners an elastic job had, over its newest attempts; None for any other, and before its first."""
    size = size_range(job)
    newest = list(job.attempts.order_by("-n")[:SIZES_SHOWN]) if not size.is_fixed else []
    if not newest:
        return None
    moves = [(one.opened_at, one.learners) for one in newest]
    moves += [(one.closed_at, -one.learners) for one in newest if one.closed_at]
    held = sum(one.learners for one in newest if one.held)
    last = now if held else max(at for at, _ in moves)
    return steps(sorted(moves), total=held, capacity=size.max, first=newest[-1].opened_at, last=last)


def strip(job: Job, attempt: Attempt | None, learners: Sequence[LearnerRow], *, over: bool) -> list[Kpi]:
    """The gang in a few numbers; nothing before its first learner."""
    if not learners:
        return []
    times = {one.row.rank: one.step_time for one in learners if one.step_time is not None}
    cells = [_gang(learners, over=over)]
    if attempt is not None and attempt.batch:
        cells.append(
            Kpi("Batch", f"{attempt.batch:,}", f"samples in a step, {attempt.micro_batch:,} at once")
        )
    if times:
        usual = median_low(times.values())
        reporting = f"{len(times)} of {len(learners)} learners report" if len(times) < len(learners) else ""
        cells.append(
            Kpi("Step time", seconds(usual), reporting or ("median" if len(times) > 1 else "self-reported"))
        )
    else:
        cells.append(Kpi("Step time", "—", "fewer than two steps reported"))
    if len(learners) > 1:
        cells.append(_waits_for(learners, over=over))
    seen = [one.row.last_seen_at for one in learners if one.row.last_seen_at and not one.row.done_at]
    if not over and seen:
        rank = min((one for one in learners if one.row.last_seen_at in seen), key=_seen_at).row.rank
        cells.append(Kpi("Oldest heartbeat", f"L{rank}", at=min(seen).isoformat()))
    used, allowed = job.restarts_used, job.max_restarts
    cells.append(
        Kpi(
            "Restarts",
            *((f"{used} of {allowed}", "halts don't use restarts") if allowed else ("0", "not enabled")),
        )
    )
    return cells


def start(attempt: Attempt, learners: Sequence[Learner], now: datetime) -> LearnerStart | None:
    """Bars on one axis from the placement on; None for an attempt of which no learner reported when it came to what."""
    if not any(row.downloading_at or row.processing_at for row in learners):
        return None
    began = attempt.opened_at
    reached_at = [row.processing_at for row in learners if row.processing_at]
    missing = len(learners) - len(reached_at)
    stopped = attempt.closed_at or now
    last = max(reached_at, default=stopped)
    shown = max(0.001, ((stopped if missing else last) - began).total_seconds())
    axis = _axis(shown if missing else shown * 1.15)

    def lane(row: Learner) -> Lane:
        own = row.processing_at
        return Lane(
            row.rank,
            row.node,
            tuple(_bars(attempt, row, stopped, axis)),
            max(0.0, (own - began).total_seconds()) if own else None,
            _waited(last, own) if own and not missing else None,
        )

    latest = sorted(
        learners, key=lambda row: (row.processing_at is None, row.processing_at or last), reverse=True
    )
    picked = sorted(latest[:MAX_BARS], key=lambda row: row.rank)
    step = axis / (TICKS - 1)
    return LearnerStart(
        tuple(lane(row) for row in picked),
        next((row.rank for row in latest), None) if not missing else None,
        shown if not missing else None,
        missing,
        len(learners) - len(picked),
        tuple(
            f"{step * place:g} s" if axis < 600 else f"{step * place / 60:g} min" for place in range(TICKS)
        ),
    )


def seconds(value: float) -> str:
    """A step's time: 12 ms, 0.63 s, 4.2 s, 2 min 5 s."""
    if value < 0.1:
        return f"{value * 1000:.3g} ms"
    return f"{value:.2g} s" if value < 10 else duration(round(value))


def _one(row: Learner, now: datetime, first_failure: datetime | None, *, canceled: bool) -> LearnerRow:
    seen = row.last_seen_at
    late = bool(seen and not row.done_at and now - seen > LATE)
    return LearnerRow(row, late, canceled=canceled, stopped=was_stopped(row, first_failure))


def _seen_at(one: LearnerRow) -> datetime:
    assert one.row.last_seen_at is not None
    return one.row.last_seen_at


def _gang(learners: Sequence[LearnerRow], *, over: bool) -> Kpi:
    ended = sum(over or one.row.phase in ENDED for one in learners)
    running = 0 if over else sum(one.row.phase == Phase.PROCESSING for one in learners)
    if ended:
        rest = f"ended, {running} running" if running else "ended"
        return Kpi("Gang", f"{ended} / {len(learners)}", rest)
    return Kpi("Gang", f"{running} / {len(learners)}", "running")


def _waits_for(learners: Sequence[LearnerRow], *, over: bool) -> Kpi:
    """Until all programs run: who does not yet; then whose steps take much longer than the others'."""
    late = [one for one in learners if one.row.phase not in UP]
    if late and not over:
        names = ", ".join(f"L{one.row.rank}" for one in late[:3]) + (" …" if len(late) > 3 else "")
        return Kpi(
            "Waits for", names, late[0].phase.lower() if len(late) == 1 else f"{len(late)} not started"
        )
    slow = max((one for one in learners if one.slow), key=lambda one: one.slow or 0, default=None)
    if slow is None:
        compared = sum(one.step_time is not None for one in learners) > 1
        return Kpi(
            "Slowest", "none" if compared else "—", "all near the median" if compared else "not compared"
        )
    return Kpi("Slowest", f"L{slow.row.rank}", f"{slow.slow:.2f} × median")


def _waited(last: datetime, own: datetime) -> float | None:
    """Nothing where it would be said as 0 s."""
    waited = (last - own).total_seconds()
    return waited if waited >= LEAST_WAIT_S else None


def _bars(attempt: Attempt, row: Learner, stopped: datetime, axis: float) -> list[StartBar]:
    """Phase after phase; a moment that is not known leaves its phase to the one before."""
    reached_at = (attempt.opened_at, attempt.launched_at, row.downloading_at, row.ready_at, row.processing_at)
    reached = [(*phase[::-1], at) for phase, at in zip(STARTING, reached_at, strict=True) if at is not None]
    ends = [at for _, _, at in reached[1:]] + [min(stopped, row.exited_at or stopped)]
    bars = []
    for (name, family, at), end in zip(reached, ends, strict=True):
        x = max(0.0, (at - attempt.opened_at).total_seconds()) * 100 / axis
        width = min(100 - x, max(0.0, (end - at).total_seconds()) * 100 / axis)
        if x < 100 and width > 0:
            bars.append(StartBar(name, family, round(x, 2), round(width, 2)))
    return bars


def _axis(least: float) -> float:
    """A length whose quarters are round numbers."""
    unit = 60 if least > 600 else 1
    step, size = 0.01 * unit, least / (TICKS - 1)
    while True:
        for factor in (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8):
            if step * factor >= size:
                return round(step * factor * (TICKS - 1), 6)
        step *= 10
