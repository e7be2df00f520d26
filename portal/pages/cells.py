"""The text of the cells of a job row, from the Job of REST."""

from __future__ import annotations

from typing import Any

from django.utils import timezone

from jobs.states import ACTIVE, HOLDS_GPUS, State
from learner_agent.wire_fields import SECONDS_PER_STEP
from portal.templatetags.ui import approximately, foreseen, newest, thousands

View = dict[str, Any]


def detail(job: View) -> str:
    """The most useful thing to know in this state, in a few words."""
    state, reason = job["state"], job["reason"]
    if state == "QUEUED":
        position, start = reason["numbers"].get("position"), starts(job)
        known = [f"#{position}"] if position else []
        known += [start] if start else []
        return f"{', '.join(known)} · {reason['message']}" if known else reason["message"]
    if state == "PROCESSING":
        return _primary_value(job) or "Running"
    if state == "HALTED":
        checkpoint = job["checkpoint"]
        if checkpoint is None:
            return "No checkpoint; a resume starts from scratch"
        step = checkpoint["step"]
        return (
            f"Resumes from {thousands(step)}"
            if step is not None
            else "Resumes from what the program saved, step unknown"
        )
    if state == "COMPLETED":
        return _primary_value(job) or "Exit 0"
    return reason["message"] or job["phase"]


def starts(job: View) -> str:
    """How far off a waiting job's start is, as "≈25–40 min"; nothing without an estimate."""
    return approximately(foreseen(job["estimate"], timezone.now()))


def size(job: View) -> str:
    """Learners × devices per learner; of an elastic job its range, and how many it has."""
    learners = str(job["learners"])
    if elastic := job["elastic"]:
        span = f"{elastic['min']}–{elastic['max']}"
        learners = f"{learners} of {span}" if State(job["state"]) in HOLDS_GPUS else span
    return f"{learners} × {job['gpus'] or job['slots']}"


def device(job: View) -> str:
    """The type it runs on, else the requested one; empty for any GPU."""
    return job["slot_type"] or job["gpu_type"] or ("" if job["gpus"] else "cpu")


def row(job: View) -> View:
    """The job with the text of its cells, for templates."""
    cells = {"detail": detail(job), "starts": starts(job), "size": size(job), "device": device(job) or "any"}
    return job | cells | {"sub": job["id"][-6:], "is_active": job["state"] in ACTIVE}


def primary_metrics(job: View, count: int) -> list[str]:
    """Names worth a glance: losses first, then the alphabet, and last what the program did not report by itself."""
    names = sorted(job["metrics"], key=lambda name: (name == SECONDS_PER_STEP, "loss" not in name, name))
    return names[:count]


def primary_metric(job: View) -> str:
    """The first of them; empty if the job has reported none."""
    return next(iter(primary_metrics(job, 1)), "")


def _primary_value(job: View) -> str:
    name = primary_metric(job)
    return f"{name} {newest(job['metrics'], name)}" if name else ""
