"""A job as REST, pages and sockets show it: one shape, plain JSON, without a further query."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.utils import timezone

from jobs.accounting import counts_until
from jobs.models import Attempt, Job, JobEvent
from jobs.selectors.jobs import actions_of
from jobs.selectors.queue import estimate_view
from jobs.selectors.throughput import Run, Throughput, throughput
from jobs.states import EventCode, Intent, State, display_phase
from jobs.timestamps import rfc3339


def job_view(job: Job, *, now: datetime | None = None) -> dict[str, Any]:
    """The Job of contracts 3. job comes from job_get or job_list, which bring what is needed along."""
    state, intent = State(job.state), Intent(job.intent)
    live = getattr(job, "live_attempt", None)
    now = now or timezone.now()
    attempt = _attempt(live)
    seconds = job.slot_seconds + _live_slot_seconds(job, attempt, now)
    return {
        "id": job.pk,
        "name": job.name,
        "tenant": job.tenant.slug,
        "owner": job.owner.get_username(),
        "state": state.value,
        "phase": display_phase(state, intent, job.stop_reason, job.attempt),
        "intent": intent.value,
        "reason": {"code": job.reason_code, "message": job.reason_message, "numbers": job.reason_numbers},
        "estimate": estimate_view(job, now),
        "attempt": job.attempt,
        "restarts_used": job.restarts_used,
        "max_restarts": job.max_restarts,
        "spec": job.spec,
        "framework": job.framework,
        "learners": job.learners,
        "gpus": job.gpus,
        "gpu_type": job.gpu_type or None,
        "slot_type": getattr(job, "slot_type", None),
        "slots": job.slots,
        "priority": job.priority,
        "tags": job.tags,
        "progress": progress_view(job),
        "pace": pace_view(job, now),
        "metrics": job.progress.metrics,
        "checkpoint": _checkpoint(getattr(job, "newest_checkpoint", None)),
        "last_halt": job.last_halt,
        "gpu_seconds": round(seconds, 1) if job.gpus else 0.0,
        "slot_seconds": round(seconds, 1),
        "cloned_from": job.cloned_from_id,
        "created_at": rfc3339(job.created_at),
        "queued_at": rfc3339(job.queued_at),
        "started_at": rfc3339(job.started_at),
        "finished_at": rfc3339(job.finished_at),
        "allowed_actions": [action.value for action in actions_of(job, attempt, now)],
        "etag": etag(job),
    }


def event_view(event: JobEvent) -> dict[str, Any]:
    """One line of a job's history, the same by REST and on the socket. A move's code is the state it led to, so the
    receipt of a halt is the reason.numbers of the HALTED event."""
    moved = event.code == EventCode.MOVED
    return {
        "n": event.n,
        "at": rfc3339(event.at),
        "code": event.to_state if moved else event.code,
        "from_state": event.from_state or None,
        "to_state": event.to_state or None,
        "attempt": event.attempt,
        "reason": {"code": event.reason, "message": event.message, "numbers": event.numbers},
        "message": event.message,
        "numbers": event.numbers,
        "actor": event.actor.get_username() if event.actor else None,
        "source": event.source,
    }


def progress_view(job: Job) -> dict[str, Any]:
    """step, total and percent (0 to 100, None while the total is unknown)."""
    step, total = job.progress.step, job.progress.total
    percent = min(100.0, round(100 * step / total, 1)) if step is not None and total else None
    return {"step": step, "total": total, "percent": percent}


def pace_view(job: Job, now: datetime) -> dict[str, Any]:
    """How long it has to go and how fast it goes; None while it does not run, or while nobody can know."""
    found = _pace(job, now) if job.state == State.PROCESSING else None
    return {
        "seconds_left": round(found.left_s, 1) if found else None,
        "steps_per_second": found.steps_per_s if found else None,
    }


def _pace(job: Job, now: datetime) -> Throughput | None:
    live: dict[str, Any] = getattr(job, "live_attempt", None) or {}
    if not live.get("processing_at"):
        return None
    since, progress = datetime.fromisoformat(live["processing_at"]), job.progress
    first_step = getattr(job, "first_step", None) or 0
    began_step = live.get("began_step") or 0
    run = Run(
        progress.step, progress.total, progress.reported_at, job.running_s, first_step, since, began_step
    )
    return throughput(run, now)


def etag(job: Job) -> str:
    """The row's version for If-Match: the number of its newest event."""
    return f'"{job.event_seq}"'


def _checkpoint(newest: dict[str, Any] | None) -> dict[str, Any] | None:
    if newest is None:
        return None
    return newest | {"at": rfc3339(datetime.fromisoformat(newest["at"]))}


def _attempt(live: dict[str, Any] | None) -> Attempt | None:
    """The live attempt, as far as its times go."""
    if live is None:
        return None
    times = ((name, live.get(name)) for name in ("opened_at", "processing_at", "known_at"))
    return Attempt(**{name: datetime.fromisoformat(text) if text else None for name, text in times})


def _live_slot_seconds(job: Job, live: Attempt | None, now: datetime) -> float:
    if live is None:
        return 0.0
    held_s = (counts_until(live.known_at, None, now) - live.opened_at).total_seconds()
    return max(0.0, held_s) * job.slots * job.learners
