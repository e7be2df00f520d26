"""The receipt of a halt: the step that is saved, the steps lost, and the seconds of each phase."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from jobs.lifecycle.observation import JobRows
from jobs.models import Checkpoint, Progress
from jobs.states import Intent


def halt_receipt(rows: JobRows) -> dict[str, Any]:
    """{step, steps_lost, seconds, checkpoint, parts: {seen, saved, verified, released}}, seconds with milliseconds.

    step and checkpoint are None if nothing was saved; steps_lost is None if no step was reported either; a part is None
    if it was not observed.
    """
    job = rows.job
    newest = _kept(rows)
    # A resume that came meanwhile has overwritten the time at which the halt was requested.
    asked = job.intent_at if job.intent == Intent.HALT else (job.stop_at or job.intent_at)
    fresh = newest if newest is not None and newest.committed_at and newest.committed_at >= asked else None
    seen = _last(learner.halt_seen_at for learner in rows.learners)
    saved = fresh.created_at if fresh else _last(learner.exited_at for learner in rows.learners)
    verified = fresh.committed_at if fresh else None
    return {
        "step": newest.step if newest else None,
        "steps_lost": _steps_lost(rows, newest),
        "seconds": _seconds(asked, rows.now),
        "checkpoint": newest.n if newest else None,
        "parts": _phases(asked, rows.now, seen=seen, saved=saved, verified=verified, released=rows.now),
    }


def _kept(rows: JobRows) -> Checkpoint | None:
    """What the attempt saved last, or, before its first save, the checkpoint from which it resumed. An earlier attempt
    may have saved a later step, if its owner went back."""
    valid = rows.job.checkpoints.filter(state=Checkpoint.State.COMMITTED).order_by(*Checkpoint.NEWEST_FIRST)
    newest, attempt = valid.first(), rows.attempt
    if attempt is None or attempt.resume_from_id is None or (newest and newest.attempt == attempt.n):
        return newest
    return valid.filter(pk=attempt.resume_from_id).first() or newest


def _phases(since: datetime, now: datetime, **marks: datetime | None) -> dict[str, float | None]:
    """Seconds of each phase, one after the other, so that they add up to the whole.

    The timestamps are those at which the server stored the learners' reports, so one may be later than the next.
    """
    phases: dict[str, float | None] = {}
    before_s = 0.0
    for phase, mark in marks.items():
        if mark is None:
            phases[phase] = None
            continue
        until_s = max(before_s, _seconds(since, min(mark, now)) or 0.0)
        phases[phase] = round(until_s - before_s, 3)
        before_s = until_s
    return phases


def halt_message(message: str, receipt: dict[str, Any]) -> str:
    """Why the job was halted, and what that saved, for people."""
    lost = _lost(receipt["steps_lost"])
    if receipt["checkpoint"] is None and receipt["steps_lost"] is None:
        saved = "No checkpoint was saved, so a resume starts from scratch"
    elif receipt["checkpoint"] is None:
        saved = f"No checkpoint was saved; {lost}"
    elif receipt["step"] is None:
        saved = f"Checkpoint {receipt['checkpoint']} has what the program saved"
    else:
        saved = f"Checkpoint {receipt['checkpoint']} has step {receipt['step']:,}; {lost}"
    return f"{message.removesuffix('.')}. {saved}."


def _lost(steps: int | None) -> str:
    if not steps:
        return "no steps lost"
    return "1 step lost" if steps == 1 else f"{steps:,} steps lost"


def _steps_lost(rows: JobRows, newest: Checkpoint | None) -> int | None:
    reported = Progress.objects.filter(job=rows.job).values_list("step", flat=True).first()
    if _went_back(rows, newest) and all(row.last_step is None for row in rows.learners):
        return 0  # the reported steps are those of an attempt that its owner left behind
    if reported is None:
        return None if newest is None else 0
    if newest is None:
        return int(reported)
    return max(0, int(reported) - newest.step) if newest.step is not None else 0


def _went_back(rows: JobRows, kept: Checkpoint | None) -> bool:
    """Whether its owner chose an older checkpoint than the newest to resume from."""
    if kept is None or rows.attempt is None or rows.attempt.resume_from_id != kept.pk:
        return False
    valid = rows.job.checkpoints.filter(state=Checkpoint.State.COMMITTED)
    return valid.order_by(*Checkpoint.NEWEST_FIRST).first() != kept


def _seconds(since: datetime | None, until: datetime | None) -> float | None:
    return round(max(0.0, (until - since).total_seconds()), 3) if since and until else None


def _last(timestamps: Iterable[datetime | None]) -> datetime | None:
    return max((at for at in timestamps if at is not None), default=None)
