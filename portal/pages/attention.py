"""What needs attention on the overview: one line per job with the reason and a link to the page that fixes it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Exists, OuterRef, QuerySet
from django.utils.dateparse import parse_datetime

from jobs.models import Attempt, Job
from jobs.selectors.budgets import Budget
from jobs.selectors.dismissals import dismissed_by, recent_failures
from jobs.selectors.failures import last_failures
from jobs.selectors.wait_reasons import Remedy, codes_of
from jobs.spec.quantities import parse_duration
from jobs.states import ACTIVE, RESTART_LOOP, State
from portal.pages.job_failure import error_path
from portal.templatetags.ui import duration, thousands
from tenants.models import User

HALTED_FOR = timedelta(hours=24)
SILENT_FOR = timedelta(minutes=15)
OVERDUE = 3
"""Intervals after which a checkpoint is old."""
LEAST_OVERDUE = timedelta(minutes=1)
"""An interval of seconds is no promise: what is saved also has to arrive."""
GOOD_RUN = timedelta(minutes=10)
"""A job in a restart loop whose newest attempt has run this long has left it."""
SHOWN = 8
FAILED = "failed"
BLOCKED = "waiting"
"""The kind of a job that cannot start as it is."""
LISTS = {
    FAILED: "state=FAILED&ended=24h",
    "in a restart loop": "state=active",
    BLOCKED: "state=QUEUED",
    "halted": "state=HALTED",
    "running": "state=PROCESSING",
}
"""The query of the narrowest list of jobs that has those of a kind."""
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

    @property
    def can_dismiss(self) -> bool:
        """What is over can be; what is still so goes away with its cause alone."""
        return self.kind == FAILED


@dataclass(frozen=True, slots=True)
class Attention:
    """What is shown, most severe first, and how many jobs there are of each kind, shown or not."""

    shown: list[Notice]
    counts: dict[str, int]
    budget: Budget | None = None
    """The tenant's, if people are to know how much of it is used."""
    dismissed: Sequence[Job] = ()
    """Failed jobs that the reader has dismissed: the newest, with their names; of dismissed_count."""
    dismissed_count: int = 0

    @property
    def total(self) -> int:
        return sum(self.counts.values()) + (self.budget is not None)

    @property
    def seen_until(self) -> str:
        """Until when failures are counted here: what failed later is not dismissed with all."""
        failed = [one.since for one in self.shown if one.kind == FAILED and one.since is not None]
        return max(failed).isoformat() if failed else ""

    @property
    def dismissed_more(self) -> int:
        """Those that are counted, and have no line of their own."""
        return max(0, self.dismissed_count - len(self.dismissed))

    @property
    def failed(self) -> int:
        return self.counts[FAILED]

    @property
    def more(self) -> list[tuple[int, str, str]]:
        """Jobs that need attention and are not shown: how many, their kind, and the query of a list that has them."""
        shown = Counter(one.kind for one in self.shown)
        rest = ((count - shown[kind], kind) for kind, count in self.counts.items())
        return [(count, kind, LISTS[kind]) for count, kind in rest if count > 0]

    @property
    def color(self) -> str:
        """Of the most severe line."""
        if self.budget is not None and self.budget.color == "red":
            return "red"
        return "red" if self.shown and self.shown[0].color == "red" else "amber"

    @property
    def summary(self) -> str:
        """1 failed · 2 running · GPU-hour budget."""
        counted = [f"{count} {kind}" for kind, count in self.counts.items() if count]
        return " · ".join([*counted, *(["GPU-hour budget"] if self.budget else [])])


@dataclass(frozen=True, slots=True)
class Candidates:
    """Jobs that may need attention, by kind, before their details are read; the running ones come last."""

    kinds: dict[str, QuerySet[Job]]
    lists: list[list[Job]]
    dismissed: QuerySet[Job]
    """Those that the reader has dismissed; they are in no list."""


def candidates(jobs: QuerySet[Job], user: User, now: datetime) -> Candidates:
    """Failed jobs that this user has not dismissed, those in a restart loop, blocked, running, and halted for long.
    Their details are read by the page, with those of its other lists."""
    queued, failures = jobs.filter(state=State.QUEUED), recent_failures(jobs, now)
    runs_well = Attempt.objects.filter(job=OuterRef("pk"), held=True, processing_at__lt=now - GOOD_RUN)
    restarts = jobs.filter(state__in=ACTIVE - {State.HALTED}, early_ends__gte=RESTART_LOOP)
    kinds: dict[str, QuerySet[Job]] = {
        FAILED: failures.exclude(dismissed_by(user)),
        "in a restart loop": restarts.exclude(Exists(runs_well)).order_by("-early_ends", "pk"),
        BLOCKED: queued.filter(
            reason_code__in=codes_of(Remedy.FIX, Remedy.ASK), early_ends__lt=RESTART_LOOP
        ).order_by("queued_at"),
        "halted": jobs.filter(state=State.HALTED, stop_at__lt=now - HALTED_FOR).order_by("stop_at"),
    }
    lists = [list(rows.only("pk")[:SHOWN]) for rows in kinds.values()]
    running = jobs.filter(state=State.PROCESSING).order_by("id").only("pk")[:WATCHED]
    return Candidates(kinds, [*lists, list(running)], failures.filter(dismissed_by(user)))


def judged(
    found: Candidates, details: Sequence[list[Job]], now: datetime, budget: Budget | None = None
) -> Attention:
    """What is wrong with them; of the running ones those that are silent or without a recent checkpoint. details:
    found.lists with details. A count, which is read later, is no lower than what is shown."""
    kinds, first = found.kinds, dict(zip(found.kinds, details, strict=False))
    running = list(_running(details[-1], now))
    counts = {
        kind: len(first[kind]) if len(first[kind]) < SHOWN else max(SHOWN, rows.order_by().count())
        for kind, rows in kinds.items()
    } | {"running": len(running)}
    groups = (
        list(map(_failed, first[FAILED])),
        list(_looping(first["in a restart loop"])),
        list(map(_stuck, first[BLOCKED])),
        running,
        list(map(_forgotten, first["halted"])),
    )
    dismissed = list(found.dismissed.only("pk", "name", "finished_at")[:SHOWN])
    return Attention(
        _of_each(groups),
        counts,
        budget if budget and budget.warns else None,
        dismissed,
        found.dismissed.order_by().count() if len(dismissed) == SHOWN else len(dismissed),
    )


def _of_each(groups: Sequence[list[Notice]]) -> list[Notice]:
    """As many as are shown, in turn from each kind, in the order of the kinds: many failed jobs hide no other kind."""
    in_turn = sorted((place, kind) for kind, group in enumerate(groups) for place in range(len(group)))[
        :SHOWN
    ]
    return [groups[kind][place] for kind, place in sorted((kind, place) for place, kind in in_turn)]


def _failed(job: Job) -> Notice:
    text = job.reason_message or "The job failed, and its cause was not recorded."
    path = error_path(job.reason_code, job.reason_numbers, job.attempt)
    return Notice(job, FAILED, "octagon-x", "red", "Failed", text, job.finished_at, "View error", path)


def _looping(jobs: list[Job]) -> Iterator[Notice]:
    last = last_failures(jobs)
    for job in jobs:
        event = last.get(job.pk)
        text = event.message if event else job.reason_message
        path = error_path(event.reason, event.numbers, event.attempt) if event else ""
        title = f"{job.early_ends} attempts in a row ended early"
        since = event.at if event else job.queued_at
        yield Notice(job, "in a restart loop", "rotate-cw", "red", title, text, since, "View error", path)


def _stuck(job: Job) -> Notice:
    return Notice(
        job, BLOCKED, "octagon-x", "red", "Cannot start", job.reason_message, job.queued_at, "See why"
    )


def _running(jobs: list[Job], now: datetime) -> Iterator[Notice]:
    for job in jobs:
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


def _forgotten(job: Job) -> Notice:
    kept: dict[str, Any] | None = getattr(job, "newest_checkpoint", None)
    step = kept and kept["step"]
    text = f"resume it from step {thousands(step)}, or cancel it" if step else "resume or cancel it"
    return Notice(job, "halted", "circle-pause", "amber", "Halted for a long time", text, job.stop_at, "Open")


def _moment(text: str | None) -> datetime | None:
    return parse_datetime(text) if text else None
