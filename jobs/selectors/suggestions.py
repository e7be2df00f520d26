"""Suggestions for a waiting job: one change each that would start it sooner, tested with a forecast."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from gpu_scheduler.cycle import plan
from gpu_scheduler.forecast import FORECAST_JOBS, REQUEST_WORK, RunTime, StartForecast, suggest
from gpu_scheduler.ledger import Ledger
from gpu_scheduler.model import CPU_TYPE, Gang, Level, Priority, Snapshot, Topology
from jobs.models import Job
from jobs.selectors.nodes import scheduler_nodes
from jobs.selectors.queue import forecast_view
from jobs.selectors.snapshot import database_now, snapshot
from jobs.selectors.throughput import run_times
from jobs.selectors.wait_reasons import is_idle_backoff
from jobs.selectors.what_if import NEW
from jobs.spec.definition import MAX_OPPORTUNISTIC_GRACE
from jobs.spec.quantities import parse_duration, print_duration
from jobs.states import State

KINDS = ("topology", "learners", "gpus", "cpus", "gpu_type", "time_limit", "priority", "opportunistic")
ONLY_AT_ONCE = frozenset({"time_limit", "opportunistic"})
"""Kinds that are worth their while only if the job then starts now: it may be ended early."""
TO_SUBMIT_S = 60
"""A time limit is so much shorter than the time that there is: so long it may take to submit the clone."""


@dataclass(frozen=True, slots=True)
class Suggestion:
    """One change and its effect. kind: one of KINDS; estimate: when the changed job would start."""

    kind: str
    value: str
    estimate: dict[str, Any]

    @property
    def changes(self) -> dict[str, Any]:
        """The change as fields of the spec, for a clone."""
        if self.kind in {"priority", "time_limit"}:
            return {self.kind: self.value}
        if self.kind == "opportunistic":
            return {"opportunistic": True}
        if self.kind == "topology":
            how, level = self.value.split()
            return {"topology": {how: level}}
        return {"resources": {self.kind: self.value if self.kind == "gpu_type" else int(self.value)}}


def suggestions_for(job: Job) -> list[Suggestion]:
    """Clones with one change, each in place of this job: of each kind of change the one that starts first, if it
    starts sooner than the job does.

    At most eight queries, one plan, and REQUEST_WORK units of work, however long the queue is. Each variant takes at
    least one plan of these; run times are read only where a later start can be predicted.
    """
    if job.state != State.QUEUED or is_idle_backoff(job.reason_code):
        return []  # of one that backs off, any clone would start sooner, whatever is changed
    now = database_now()
    seen = snapshot(nodes=scheduler_nodes(), now=now, at_most=FORECAST_JOBS, with_job=job.pk)
    own = next((gang for gang in seen.waiting if gang.job == job.pk), None)
    if own is None:
        return []
    # In a long queue, jobs beyond the snapshot can be ahead of the clone: then only an immediate start is certain.
    until = now if len(seen.waiting) >= FORECAST_JOBS else None
    runs = {} if until else run_times(seen)
    known = (run_times(replace(seen, waiting=(own,), running=())) if until else runs).get(job.pk)
    variants = {(kind, value): gang for kind, value, gang in _variants(job, own, seen, known)}
    named = {f"{kind}={value}": gang for (kind, value), gang in variants.items()}
    found = suggest(seen, runs, job.pk, named, until=until, work=REQUEST_WORK)
    best: dict[str, tuple[str, StartForecast]] = {}
    for kind, value in variants:
        new = found.get(f"{kind}={value}")
        if kind in ONLY_AT_ONCE and (new is None or new.p90 != now):
            continue
        if new is not None and (kind not in best or _starts(new) < _starts(best[kind][1])):
            best[kind] = (value, new)
    ways = [(new, Suggestion(kind, value, forecast_view(new, now))) for kind, (value, new) in best.items()]
    return [way for _, way in sorted(ways, key=lambda each: _starts(each[0]))]


def _starts(estimate: StartForecast) -> Any:
    return (estimate.p50, estimate.p90)


def _variants(job: Job, own: Gang, seen: Snapshot, known: RunTime | None) -> Iterator[tuple[str, str, Gang]]:
    """The smallest change of each kind first: it wins among equals. The clone has its whole time limit. known: of what
    is left of the job."""
    new = replace(own, job=NEW, queued_at=seen.now, runs_at_most_s=job.time_limit_s)
    numbers = next((wait.numbers for wait in plan(seen).waits if wait.job == own.job), {})
    for topology in _looser(own.required_level):
        yield "topology", str(topology), replace(new, topology=topology)
    for learners in _smaller(own.learners.min, *_fitting(own, numbers)):
        yield "learners", str(learners), new.resized(learners=learners)
    for slots in _smaller(own.slots):
        yield "gpus" if job.gpus else "cpus", str(slots), new.resized(slots=slots)
    if job.gpus:
        asked = own.learners.min * own.slots
        account = Ledger(seen.quotas).account
        for slot_type in sorted({node.slot_type for node in seen.nodes} - {CPU_TYPE, own.slot_type}):
            fits = own.opportunistic or account(own.tenant, slot_type).most >= asked
            if own.slot_type is not None and fits:
                yield "gpu_type", slot_type, replace(new, slot_type=slot_type)
    if (limit_s := _passing_s(new, numbers, seen.now, known, job.running_s)) is not None:
        yield "time_limit", print_duration(limit_s), replace(new, runs_at_most_s=limit_s)
    for level in Priority:
        if own.opportunistic and level is Priority.URGENT:
            continue
        if level > own.priority and level.name.lower() in job.tenant.priorities:
            yield "priority", level.name.lower(), replace(new, priority=level)
    can_leave = own.learners.is_fixed and job.grace_s <= parse_duration(MAX_OPPORTUNISTIC_GRACE)
    if not own.opportunistic and can_leave and own.priority < Priority.URGENT:
        yield "opportunistic", "true", replace(new, opportunistic=True)


def _looser(required: Level | None) -> list[Topology]:
    """The larger levels that a job can require instead, then its own as a preference."""
    if required is None:
        return []
    return [
        *(Topology(level, required=True) for level in required.larger),
        Topology(required, required=False),
    ]


def _smaller(size: int, *more: int) -> list[int]:
    """The smaller sizes to try, the largest first: a half, a quarter, one, and these."""
    return sorted({each for each in (size // 2, size // 4, 1, *more) if 0 < each < size}, reverse=True)


def _fitting(own: Gang, numbers: Mapping[str, Any]) -> tuple[int, ...]:
    """How many of its learners may start now: what the nodes hold, and what is left of that by reservations, limits and
    the domain that it requires. A plan proves which of them do."""
    if "learners_fitting" not in numbers:
        return ()
    on_nodes = numbers["learners_fitting"]
    slots = [numbers["free"] - numbers["reserved"], numbers.get("most", numbers["limit"]) - numbers["used"]]
    if "cohort_room" in numbers:
        slots.append(numbers["cohort_room"])
    left = [on_nodes, *(each // own.slots for each in slots if not own.opportunistic)]
    if "domain" in numbers:
        left.append(numbers["have"])
    return on_nodes, min(left)


def _passing_s(
    new: Gang, numbers: Mapping[str, Any], now: datetime, known: RunTime | None, ran_s: float
) -> int | None:
    """With which time limit, in seconds, it has ended before the job can start for which the nodes are kept; None: that
    is not known, it has such a limit already, or nothing known says that it can get on that fast."""
    if not numbers.get("until"):
        return None
    left_s = (datetime.fromisoformat(numbers["until"]) - now).total_seconds()
    limit_s = int(left_s - TO_SUBMIT_S) // 60 * 60
    takes_s = ran_s + min(known.seconds) if known is not None and known.seconds else 0.0  # it begins again
    if limit_s <= takes_s or (new.runs_at_most_s is not None and new.runs_at_most_s <= limit_s):
        return None
    return limit_s
