"""What needs attention on the overview: one line per job with the reason and a link to the page that fixes it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db.models import QuerySet
from django.utils.dateparse import parse_datetime

from jobs.models import Job
from jobs.selectors.jobs import detailed
from jobs.selectors.wait_reasons import Remedy, codes_of
from jobs.spec.quantities import parse_duration
from jobs.states import State
from portal.pages import job_failure
from portal.templatetags.ui import duration, thousands

FAILED_WITHIN = timedelta(hours=24)
HALTED_FOR = timedelta(hours=24)
SILENT_FOR = timedelta(minutes=15)
OVERDUE = 3
"""Intervals after which a checkpoint is old."""
LEAST_OVERDUE = timedelta(minutes=1)
"""An interval of seconds is no promise: what is saved also has to arrive."""
SHOWN = 8
WORDS = 200  # characters of the last line of a traceback
WATCHED = 200
"""Most running jobs that are looked at for silence and old checkpoints."""


@dataclass(frozen=True, slots=True)
class Notice:
    """One line. kind: what the header counts it as; path: what the action opens, below the job's address."""

    job: Job
    kind: str
    icon: str
    color: str
    title: str
    text: str
    since: datetime | None
    action: str
    path: str = ""


def notices(jobs: QuerySet[Job], now: datetime) -> list[Notice]:
    """Most severe first: failed, blocked, silent or without a recent checkpoint, halted for long."""
    found = [*_failed(jobs, now), *_stuck(jobs), *_running(jobs, now), *_forgotten(jobs, now)]
    return found[:SHOWN]


def summary(found: list[Notice]) -> str:
    """1 failed · 2 running."""
    kinds = dict.fromkeys(one.kind for one in found)
    return " · ".join(f"{sum(one.kind == kind for one in found)} {kind}" for kind in kinds)


def _failed(jobs: QuerySet[Job], now: datetime) -> Iterator[Notice]:
    rows = jobs.filter(state=State.FAILED, finished_at__gt=now - FAILED_WITHIN).order_by("-finished_at")
    for job in detailed(rows.only("pk")[:SHOWN]):
        text = job_failure.words(job)[:WORDS] or job.reason_message or "The job ended with an error."
        yield Notice(
            job,
            "failed",
            "octagon-x",
            "red",
            "Failed",
            text,
            job.finished_at,
            "View error",
            "/logs?level=error",
        )


def _stuck(jobs: QuerySet[Job]) -> Iterator[Notice]:
    rows = jobs.filter(state=State.QUEUED, reason_code__in=codes_of(Remedy.FIX, Remedy.ASK)).order_by(
        "queued_at"
    )
    for job in detailed(rows.only("pk")[:SHOWN]):
        yield Notice(
            job, "waiting", "octagon-x", "red", "Cannot start", job.reason_message, job.queued_at, "See why"
        )


def _running(jobs: QuerySet[Job], now: datetime) -> Iterator[Notice]:
    for job in detailed(jobs.filter(state=State.PROCESSING).order_by("id").only("pk")[:WATCHED]):
        live: dict[str, Any] = getattr(job, "live_attempt", None) or {}
        began = _moment(live.get("processing_at")) or job.started_at or now
        if notice := _silent(job, began, now) or _unsaved(job, began, now):
            yield notice


def _silent(job: Job, began: datetime, now: datetime) -> Notice | None:
    reported = max(began, job.progress.reported_at or began)
    if now - reported <= SILENT_FOR:
        return None
    text = f"no log line or metric for {duration((now - reported).total_seconds())}"
    return Notice(job, "running", "activity", "amber", "Silent", text, reported, "Open log", "/logs")


def _unsaved(job: Job, began: datetime, now: datetime) -> Notice | None:
    """A job that has never saved may not mean to; one that has, and stopped, loses more by the minute."""
    kept: dict[str, Any] | None = getattr(job, "newest_checkpoint", None)
    at = _moment(kept["at"]) if kept else None
    if kept is None or at is None:
        return None
    every = parse_duration(job.spec["checkpoint"]["every"])
    saved = max(at, began)
    if now - saved <= max(OVERDUE * timedelta(seconds=every), LEAST_OVERDUE):
        return None
    step = "" if kept["step"] is None else f"step {thousands(kept['step'])}, "
    age = duration((now - at).total_seconds())
    text = f"{step}{age} ago; the spec says every {duration(every)}"
    return Notice(
        job, "running", "save-off", "amber", "Checkpoint overdue", text, saved, "Checkpoints", "/checkpoints"
    )


def _forgotten(jobs: QuerySet[Job], now: datetime) -> Iterator[Notice]:
    rows = jobs.filter(state=State.HALTED, stop_at__lt=now - HALTED_FOR).order_by("stop_at")
    for job in detailed(rows.only("pk")[:SHOWN]):
        kept: dict[str, Any] | None = getattr(job, "newest_checkpoint", None)
        step = kept and kept["step"]
        text = f"resume it from step {thousands(step)}, or cancel it" if step else "resume or cancel it"
        yield Notice(
            job, "halted", "circle-pause", "amber", "Halted for a long time", text, job.stop_at, "Open"
        )


def _moment(text: str | None) -> datetime | None:
    return parse_datetime(text) if text else None
