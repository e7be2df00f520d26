"""Why elastic runs get no more learners: noted where that is decided, put into words once the plan is made.

Nothing here decides or looks at a rule again. A run without a note is one of which that is not known. The words name
neither tenants nor jobs, and times are absolute: what stays the same reads the same from plan to plan.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from gpu_scheduler.model import Growth, GrowthReason, Running, timestamp, unit

Note = tuple[GrowthReason, dict[str, Any]]
Reason = GrowthReason

WORDS = {
    Reason.UNKNOWN: "it is not known why it gets no more.",
    Reason.NOT_MEASURED: "not known yet whether more would be faster: too few steps were measured.",
    Reason.SETTLING: "it started or was resized a short time ago; another size is considered from {until} UTC on.",
    Reason.COSTS: "a change would cost about {cost}, more than the {pays_back_s:.0f} s in which it must pay.",
    Reason.RESIZING: "it is being resized to {to}.",
    Reason.MOVING: "it is being moved to other nodes.",
    Reason.CANNOT_RETURN: "its tenant's limits, or its suspension, would not let it start again after a change.",
    Reason.NODE_CLOSED: "one of its nodes takes no learners any more.",
    Reason.BATCH: "its largest batch is {most} samples, one per learner.",
    Reason.FAILED_WITH_MORE: "it failed with more than {most} before its first step.",
    Reason.JOB_LIMIT: "its tenant's limit for one job allows {most}.",
    Reason.USER_LIMIT: "its user's limit allows {most}.",
    Reason.PROJECT_LIMIT: "its project's limit allows {most}.",
    Reason.NODES: "the nodes have room for {most}.",
    Reason.QUOTA: "the next size needs {needed} more {devices}; its tenant's quota has {left} left.",
    Reason.NOT_FREE: "the next size needs {needed} more {devices}; {free} {are} free.",
    Reason.KEPT: "the next size needs {needed} more {devices}; {free} {are} free, of which {kept} {kept_are} kept"
    " for other jobs.",
    Reason.OTHERS_GAIN: "other elastic jobs gain more from the devices that are free.",
    Reason.NOT_FASTER: "more would not be faster: by its measured step times, {tried} learners would be {times:.2f}"
    " times as fast.",
    Reason.NOT_WORTH: "by its measured step times, {tried} learners would be {times:.2f} times as fast, which does not"
    " pay for the {cost} that a change costs.",
    Reason.NO_PLACE: "{tried} learners would not fit beside those that it has; {fits} would.",
    Reason.SHRINKING_FIRST: "other elastic jobs first give up devices for jobs that wait, or leave nodes.",
    Reason.AFTER_OTHERS: "it gets {to} once other elastic jobs have given up devices.",
    Reason.AT_ONCE: "as many elastic jobs are being resized as may be at the same time ({at_once}); then it gets {to}.",
}
"""What follows "Runs with 2 of up to 8 learners:"."""


class Growths:
    """The notes of one plan. The last one of a run counts."""

    def __init__(self) -> None:
        self._notes: dict[str, Note] = {}

    def note(self, job: str, reason: GrowthReason, **numbers: Any) -> None:
        self._notes[job] = reason, numbers

    def explained(self, runs: Iterable[Running]) -> tuple[Growth, ...]:
        """Of each of these runs that could have more learners and is not on its way out, by job."""
        return tuple(
            self._explained(run)
            for run in sorted(runs, key=lambda run: run.job)
            if len(run.nodes) < run.gang.learners.max and not run.stopping and run.requeues
        )

    def _explained(self, run: Running) -> Growth:
        reason, found = self._notes.get(run.job, (Reason.UNKNOWN, {}))
        now, most = len(run.nodes), run.gang.learners.max
        words = found | _words(run, found)
        message = f"Runs with {now} of up to {most} learners: {WORDS[reason].format(**words)}"
        numbers = {name: _plain(value) for name, value in found.items()}
        return Growth(run.job, now, reason, message, {"learners": now, "most_learners": most, **numbers})


def _words(run: Running, found: dict[str, Any]) -> dict[str, Any]:
    words: dict[str, Any] = {}
    if (until := found.get("until")) is not None:
        words["until"] = f"{until:%Y-%m-%d %H:%M:%S}"
    if "cost_s" in found:
        words["cost"] = f"{found['cost_s']:.0f} s"
    if (since := found.get("unsaved_since")) is not None:
        words["cost"] += f" and the work since {since:%Y-%m-%d %H:%M:%S} UTC"
    if "needed" in found:
        words["devices"] = unit(run.slot_type, found["needed"])
        words["are"] = "is" if found.get("free") == 1 else "are"
        words["kept_are"] = "is" if found.get("kept") == 1 else "are"
    return words


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return timestamp(value)
    return round(value, 3) if isinstance(value, float) else value
