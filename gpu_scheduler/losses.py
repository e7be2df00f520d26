"""What it costs to stop a run, or to start it again in another size: the work that it has not saved, and the restart.

A program that saves when it is asked to loses no work. Whether it will is not known in advance, so this is what is at
stake when it is decided; by it the runs to stop are chosen, and with each decision it is stored. What a run does until
it has stopped is not in it, nor is a restart that takes longer than the last one.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from gpu_scheduler.model import Plan, Running, Snapshot


@dataclass(frozen=True, slots=True)
class Loss:
    """In slot-seconds of this type. restart: None if no start of the run was measured."""

    slot_type: str
    unsaved: float
    restart: float | None


def unsaved_s(run: Running, now: datetime) -> float:
    """Seconds since its last checkpoint, or since it started."""
    return max(0.0, (now - unsaved_since(run)).total_seconds())


def unsaved_since(run: Running) -> datetime:
    """When it last saved, or started."""
    return max(run.started_at, run.last_checkpoint_at or run.started_at)


def lost_work_s(run: Running, now: datetime) -> float:
    """In slot-seconds, with a restart that was never measured as nothing: runs are compared by it."""
    return (unsaved_s(run, now) + (run.restart_cost_s or 0.0)) * _held(run)


def expected(plan: Plan, snapshot: Snapshot) -> dict[str, Loss]:
    """By job, what each order of this plan, made from this snapshot, will cost. Whole milliseconds of a slot."""
    ordered = {stop.job for stop in plan.stops} | {resize.job for resize in plan.resizes}
    return {run.job: _loss(run, snapshot.now) for run in snapshot.running if run.job in ordered}


def _loss(run: Running, now: datetime) -> Loss:
    held, restart_s = _held(run), run.restart_cost_s
    restart = None if restart_s is None else round(restart_s * held, 3)
    return Loss(run.slot_type, round(unsaved_s(run, now) * held, 3), restart)


def _held(run: Running) -> int:
    return run.slots * len(run.nodes)
