"""Suggestions for a waiting job: one change each that would start it sooner, tested with a forecast."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from gpu_scheduler.forecast import FORECAST_JOBS, REQUEST_WORK, StartForecast, suggest
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
from jobs.spec.quantities import parse_duration
from jobs.states import State

KINDS = ("topology", "learners", "gpus", "cpus", "gpu_type", "priority", "opportunistic")
SIZES = 3
"""Smaller sizes tried of each kind: a half, a quarter, one."""


@dataclass(frozen=True, slots=True)
class Suggestion:
    """One change and its effect. kind: one of KINDS; estimate: when the changed job would start."""

    kind: str
    value: str
    estimate: dict[str, Any]

    @property
    def changes(self) -> dict[str, Any]:
        """The change as fields of the spec, for a clone."""
        if self.kind == "priority":
            return {"priority": self.value}
        if self.kind == "opportunistic":
            return {"opportunistic": True}
        if self.kind == "topology":
            how, level = self.value.split()
            return {"topology": {how: level}}
        return {"resources": {self.kind: self.value if self.kind == "gpu_type" else int(self.value)}}


def suggestions_for(job: Job) -> list[Suggestion]:
    """Clones with one change, each in place of this job: of each kind of change the one that starts first, if it
    starts sooner than the job does.

    At most eight queries and REQUEST_WORK units of work, however long the queue is. Each variant takes at least one
    plan; run times are read only where a later start can be predicted.
    """
    if job.state != State.QUEUED or is_idle_backoff(job.reason_code):
        return []  # of one that backs off, any clone would start sooner, whatever is changed
    now = database_now()
    seen = snapshot(nodes=scheduler_nodes(), now=now, at_most=FORECAST_JOBS, with_job=job.pk)
    own = next((gang for gang in seen.waiting if gang.job == job.pk), None)
    if own is None:
        return []
    variants = {(kind, value): gang for kind, value, gang in _variants(job, own, seen)}
    named = {f"{kind}={value}": gang for (kind, value), gang in variants.items()}
    # In a long queue, jobs beyond the snapshot can be ahead of the clone: then only an immediate start is certain.
    until = now if len(seen.waiting) >= FORECAST_JOBS else None
    runs = {} if until else run_times(seen)
    found = suggest(seen, runs, job.pk, named, until=until, work=REQUEST_WORK)
    best: dict[str, tuple[str, StartForecast]] = {}
    for kind, value in variants:
        new = found.get(f"{kind}={value}")
        if kind == "opportunistic" and (new is None or new.p90 != now):
            continue  # it can be stopped at any time, so it is worth its while only at once
        if new is not None and (kind not in best or _starts(new) < _starts(best[kind][1])):
            best[kind] = (value, new)
    ways = [(new, Suggestion(kind, value, forecast_view(new, now))) for kind, (value, new) in best.items()]
    return [way for _, way in sorted(ways, key=lambda each: _starts(each[0]))]


def _starts(estimate: StartForecast) -> Any:
    return (estimate.p50, estimate.p90)


def _variants(job: Job, own: Gang, seen: Snapshot) -> Iterator[tuple[str, str, Gang]]:
    """The smallest change of each kind first: it wins among equals."""
    new = replace(own, job=NEW, queued_at=seen.now)
    for topology in _looser(own.required_level):
        yield "topology", str(topology), replace(new, topology=topology)
    for learners in _smaller(own.learners.min):
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


def _smaller(size: int) -> list[int]:
    sizes = [size // 2, size // 4, 1]
    return [each for index, each in enumerate(sizes) if 0 < each < size and each not in sizes[:index]][:SIZES]
