"""`job:{id}`: a job's events with its current state; `tenant:{t}:jobs`: the rows that changed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from django.db.models import Q

from jobs.models import Job, JobEvent
from jobs.selectors import heads, redaction
from jobs.selectors.jobs import with_details
from jobs.selectors.serializers import EventSerializer, JobSerializer, ProgressSerializer
from jobs.states import ACTIVE, Intent, State, StopReason, display_phase
from portal.live.frames import (
    FRAME_ITEMS,
    ChannelSource,
    FrameBatch,
    ReadRequest,
    ViewerFrame,
    cut_items,
    items_frame,
    rows_gap_frame,
    state_frame,
)
from portal.live.protocol import Channel

PAGE_EVENTS = 1_000
LIST_ROWS = 500  # active jobs of a tenant that are followed without an event of theirs: their progress
CHANGES_AT_ONCE = 5_000
OVERLAP = 50  # ids: an event can be committed after one with a higher id; repeated rows are harmless
DELETED = "deleted"


class JobSource(ChannelSource):
    """Cursor: event number. Every frame includes the job, because its numbers can change without an event."""

    missed_is_fetched = False
    counts_rows = False

    def head(self, channel: Channel) -> int:
        return Job.objects.filter(pk=channel.job_id).values_list("event_seq", flat=True).first() or 0

    def read(self, requests: Sequence[ReadRequest]) -> dict[str, FrameBatch]:
        jobs = with_details(Job.objects.filter(deleted_at=None)).in_bulk([w.channel.job_id for w in requests])
        present = [request for request in requests if request.channel.job_id in jobs]
        events = _events([w for w in present if jobs[w.channel.job_id].event_seq > w.after])
        return {
            request.channel.name: _job_batch(
                request, jobs[request.channel.job_id], events[request.channel.job_id]
            )
            for request in present
        }


class TenantJobsSource(ChannelSource):
    """Head: id of the tenant's newest event. Items are jobs that changed; a deleted one is marked."""

    missed_is_fetched = False
    counts_rows = True

    def head(self, channel: Channel) -> int:
        return heads.of_jobs(channel.tenant)

    def read(self, requests: Sequence[ReadRequest]) -> dict[str, FrameBatch]:
        return {request.channel.name: self._one(request) for request in requests}

    def _one(self, request: ReadRequest) -> FrameBatch:
        channel, before = request.channel, request.stamp or {}
        head = max(request.after, self.head(channel))
        of_tenant = Job.objects.filter(tenant__slug=channel.tenant)
        changed, is_complete = _changed_since(request)
        # Two queries: one with OR would read every job of the tenant, each second.
        shown = of_tenant.filter(deleted_at=None)
        active = shown.filter(state__in=ACTIVE).order_by("-id").values_list("pk", flat=True)[:LIST_ROWS]
        # A row that was active and is so no longer is read even if its event was not found: it may have been committed
        # after one with a much higher id. Otherwise viewers would see it run forever.
        was_active = {pk for pk, seen in before.items() if seen != DELETED and seen[0]}
        stamp: dict[str, Any] = {}
        items = []
        for row in with_details(shown.filter(pk__in=changed.union(active, was_active))).order_by("-id"):
            stamp[row.pk] = (row.state in ACTIVE, _fingerprint(row))
            known = row.pk not in changed if request.stamp is None else before.get(row.pk) == stamp[row.pk]
            if not known:
                items.append(job_state(row))
        gone = of_tenant.filter(pk__in=(changed | was_active) - stamp.keys()).exclude(deleted_at=None)
        for pk in gone.values_list("pk", flat=True):
            stamp[pk] = DELETED
            if before.get(pk) != DELETED:
                items.append({"id": pk, "deleted": True})
        return FrameBatch(_row_frames(request, head, items, is_complete=is_complete), head, stamp)


def _changed_since(request: ReadRequest) -> tuple[set[str], bool]:
    """The tenant's jobs with an event above the cursor, and whether these are all: at most CHANGES_AT_ONCE events are
    read, the newest, for a viewer that comes back after long."""
    newest = (
        JobEvent.objects.filter(tenant__slug=request.channel.tenant, id__gt=max(0, request.after - OVERLAP))
        .order_by("-id")
        .values_list("job_id", flat=True)[: CHANGES_AT_ONCE + 1]
    )
    jobs = list(newest)
    return set(jobs[:CHANGES_AT_ONCE]), len(jobs) <= CHANGES_AT_ONCE


def _row_frames(
    request: ReadRequest, head: int, items: list[dict[str, Any]], *, is_complete: bool
) -> list[ViewerFrame]:
    """Frames of these rows; only the last one takes a viewer to head, so that one that falls behind gets all again. Not
    complete: before them, a gap, so that the viewer fetches the rows it shows."""
    ch, first = request.channel.name, request.after + 1
    gaps = [] if is_complete else [rows_gap_frame(ch, first, head)]
    runs = [items[start : start + FRAME_ITEMS] for start in range(0, len(items), FRAME_ITEMS)]
    if not runs and request.stamp is None:
        runs = [[]]
    frames = [state_frame(ch, first, head if run is runs[-1] else request.after, run) for run in runs]
    return gaps + frames


def job_state(job: Job) -> dict[str, Any]:
    """The job for all its viewers: without the spec, and without what depends on the viewer."""
    view = JobSerializer.render(job)
    for key in ("spec", "allowed_actions"):
        view.pop(key, None)
    return view


def _events(requests: Iterable[ReadRequest]) -> dict[str, list[JobEvent]]:
    found: dict[str, list[JobEvent]] = defaultdict(list)
    asked = Q()
    for request in requests:
        one = Q(job_id=request.channel.job_id, n__gt=request.after)
        asked |= one & Q(n__lte=request.upto) if request.upto is not None else one
    if asked:
        for event in JobEvent.objects.filter(asked).select_related("actor").order_by("job_id", "n"):
            found[event.job_id].append(event)
    return found


def _job_batch(request: ReadRequest, job: Job, events: list[JobEvent]) -> FrameBatch:
    ch, events = request.channel.name, events[:PAGE_EVENTS]
    stamp = _fingerprint(job)
    items = _items(job, events)
    runs = _numbered_runs(request.after + 1, events, items)
    frames = [_event_frame(ch, first, last, run) for first, last, run in runs[:-1]]
    frames += [_event_frame(ch, first, last, run, job=job_state(job)) for first, last, run in runs[-1:]]
    if not frames and request.stamp != stamp:
        frames = [_event_frame(ch, request.after + 1, request.after, [], job=job_state(job))]
    newest = events[-1].n if events else request.after
    return FrameBatch(frames, newest, stamp, len(events) == PAGE_EVENTS)


def _numbered_runs(
    first: int, events: Sequence[JobEvent], items: Sequence[dict[str, Any]]
) -> list[tuple[int, int, Sequence[Any]]]:
    """Runs of events from `first` on. A run also covers the numbers before it of events that retention removed."""
    runs = []
    for _, place, run in cut_items(0, items, [400 + len(item["message"]) for item in items]):
        last = events[place].n
        runs.append((first, last, run))
        first = last + 1
    return runs


def _event_frame(
    ch: str, first: int, last: int, items: Sequence[Any], **state: dict[str, Any]
) -> ViewerFrame:
    """The frame, with a redacted one for guests if it differs."""
    frame = items_frame(ch, first, last, items, **state)
    plain = [redaction.redact_event(item) for item in items]
    plain_state = {name: redaction.redact_job(view) for name, view in state.items()}
    if plain == list(items) and plain_state == state:
        return frame
    return replace(frame, for_guests=items_frame(ch, first, last, plain, **plain_state))


def _items(job: Job, events: list[JobEvent]) -> list[dict[str, Any]]:
    """Each event with the state after it, derived backward from the job's current state."""
    state = State(job.state)
    items = []
    for event in reversed(events):
        state = State(event.to_state) if event.to_state else state
        items.append(_item(job, event, state, is_newest=event.n == job.event_seq))
        state = State(event.from_state) if event.from_state else state
    return items[::-1]


def _item(job: Job, event: JobEvent, state: State, *, is_newest: bool) -> dict[str, Any]:
    intent = Intent(job.intent) if is_newest else Intent.RUN
    named = [reason for reason in (event.reason, job.stop_reason) if reason in set(StopReason)]
    stop_reason = named[0] if named else ""
    early_ends = job.early_ends if is_newest else 0
    return EventSerializer.render(event) | {
        "state": state.value,
        "phase": display_phase(state, intent, stop_reason, event.attempt, early_ends),
        "progress": ProgressSerializer.render(job.progress),
    }


def _fingerprint(job: Job) -> tuple[Any, ...]:
    """The values whose change a viewer would see."""
    progress, estimate = job.progress, getattr(job, "estimate", None)
    return (
        job.event_seq,
        job.reason_message,
        job.reason_numbers,
        estimate and (estimate.soonest, estimate.latest, estimate.why_none),
        progress.step,
        progress.total,
        progress.metrics,
    )
