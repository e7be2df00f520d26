"""What the cells of a job row say. One shape for the first paint, a refresh and the socket: the Job of REST."""

from __future__ import annotations

from typing import Any

from portal.templatetags.ui import metric, thousands

View = dict[str, Any]


def detail(job: View) -> str:
    """The most useful thing to know in this state, in a few words."""
    state, reason = job["state"], job["reason"]
    if state == "QUEUED":
        position = reason["numbers"].get("position")
        return f"#{position}: {reason['message']}" if position else reason["message"]
    if state == "PROCESSING":
        return _primary_metric(job) or "Running"
    if state == "HALTED":
        checkpoint = job["checkpoint"]
        if checkpoint is None:
            return "No checkpoint: starts anew"
        step = checkpoint["step"]
        return f"Resumes from {thousands(step)}" if step is not None else "Resumes from its files"
    if state == "COMPLETED":
        return _primary_metric(job) or "Exit 0"
    return reason["message"] or job["phase"]


def size(job: View) -> str:
    """Learners × devices per learner; a CPU job says so."""
    return f"{job['learners']} × {job['gpus'] or job['slots']}"


def device(job: View) -> str:
    """The type it runs on, else the one asked for."""
    return job["slot_type"] or job["gpu_type"] or ("any" if job["gpus"] else "cpu")


def row(job: View) -> View:
    """The job with its cells; templates and the socket's rows use the same."""
    return job | {"detail": detail(job), "size": size(job), "device": device(job), "sub": job["id"][-6:]}


def _primary_metric(job: View) -> str:
    """The first of loss-like names, else the first metric at all."""
    metrics = job["metrics"]
    name = next((name for name in sorted(metrics) if "loss" in name), next(iter(sorted(metrics)), None))
    return f"{name} {metric(metrics[name]['last'])}" if name else ""
