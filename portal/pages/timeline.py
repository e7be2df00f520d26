"""Nodes over time, on a page of their own: geometry of the bands, the gaps in them, and what is said of one gap."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import Any
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import render
from django.utils.dateparse import parse_datetime
from django.views.decorators.http import require_GET

from jobs import humanize
from jobs.models import NodeChange
from jobs.selectors.demand import TooMuch
from jobs.selectors.snapshot import database_now
from jobs.selectors.timeline import UNKNOWN, Gap, Losses, NodeTime, Phase, gap, nodes, timeline
from jobs.selectors.wait_reasons import label_of
from portal.pages import shell
from portal.pages.guard import signed_in

SPANS = {
    "hour": ("Last hour", timedelta(hours=1), 60),
    "day": ("Last day", timedelta(days=1), 96),
    "week": ("Last week", timedelta(days=7), 84),
}
"""Title, length, and how many parts it is drawn in."""
USUAL = "day"
NODES = 50
"""Drawn at once: each has up to a hundred rectangles."""
MONDAY = datetime(2000, 1, 3, tzinfo=UTC)
LEAST_IDLE = 0.05
"""Slots that are idle on average, from which on a part has a gap."""
JOBS_SHOWN = 20
DIGEST_SHOWN = 12
STATES = {
    NodeChange.State.DOWN: "down",
    NodeChange.State.CORDONED: "cordoned",
    NodeChange.State.GONE: "not part of the cluster",
    UNKNOWN: "in a state that was not recorded",
}


@dataclass(frozen=True, slots=True)
class Band:
    """One rectangle of a node's line: in percent of its width and height, as text for the attributes."""

    kind: str
    x: str
    y: str
    width: str
    height: str


@dataclass(frozen=True, slots=True)
class Idle:
    """A gap: parts in a row with the same number of idle slots. link: the address that says why."""

    since: datetime
    until: datetime
    idle: float
    x: str
    width: str
    link: str
    chosen: bool


@dataclass(frozen=True, slots=True)
class Frame:
    """What is drawn: a span in equal parts, until the end of the one that began last; and the chosen gap, if any."""

    span: str
    start: datetime
    end: datetime
    part: timedelta
    now: datetime
    chosen: tuple[str, datetime, datetime] | None
    nodes: str
    """The number of the first node, as the address has it."""

    @classmethod
    def read(cls, query: QueryDict, now: datetime) -> Frame:
        name = query.get("span", USUAL)
        span = name if name in SPANS else USUAL
        _, length, parts = SPANS[span]
        part = length / parts
        # Parts begin at multiples of their length, so that a gap keeps its address while time goes on.
        end = MONDAY + part * -((MONDAY - now) // part)
        chosen = _chosen(query, end - length, now)
        return cls(span, end - length, end, part, now, chosen, query.get("nodes", "1"))

    @property
    def parts(self) -> int:
        return round((self.end - self.start) / self.part)

    def percent(self, length: timedelta) -> str:
        return f"{100 * (length / (self.end - self.start)):.2f}"

    def begin_of(self, part: int) -> datetime:
        return min(self.now, self.start + part * self.part)


@require_GET
@signed_in
def page(request: HttpRequest) -> HttpResponse:
    """A page of its own: the cluster's is fetched again with each change, and a timeline reads much more."""
    context = shell.frame(request, shell.last_tenant(request), "cluster") | {"timeline": view(request)}
    return render(request, "cluster_timeline.html", context)


def view(request: HttpRequest) -> dict[str, Any]:
    """The timeline that the address asks for, and the gap that it names, if any. too_much: which of both is not shown,
    because too many jobs had a part in it."""
    frame = Frame.read(request.GET, database_now().astimezone(UTC))
    every = nodes()
    first = _first(request.GET.get("nodes", ""), len(every))
    shown = every[first : first + NODES]
    found: list[NodeTime] = []
    why, too_much = None, ""
    try:
        found = timeline(request.user, shown, frame.start, frame.end, frame.parts, frame.now)
        if frame.chosen:
            why = _why(gap(request.user, *frame.chosen, frame.now))
    except TooMuch:
        too_much = "gap" if found else "span"
    return {
        "count": len(every),
        "more": len(every) > NODES,
        "first": first + 1,
        "last": first + len(shown),
        "previous": max(1, first + 1 - NODES) if first else 0,
        "next": first + 1 + NODES if first + NODES < len(every) else 0,
        "span": frame.span,
        "spans": {key: title for key, (title, _, _) in SPANS.items()},
        "start": frame.start,
        "end": frame.now,
        "ticks": _ticks(frame),
        "nodes": [_node(node, frame) for node in found],
        "why": why,
        "too_much": too_much,
    }


def _first(text: str, count: int) -> int:
    """The index of the first node to draw, from the number in the address."""
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 9 else 1
    return max(0, min(number, count) - 1)


def _chosen(query: QueryDict, start: datetime, now: datetime) -> tuple[str, datetime, datetime] | None:
    """The gap that the address names; None without one, or where it is none."""
    try:
        since, until = (parse_datetime(query.get(name, "")) for name in ("since", "until"))
    except ValueError:
        return None
    if since is None or until is None or since.tzinfo is None or until.tzinfo is None:
        return None
    since, until = max(since, start), min(until, now)
    return (query.get("node", ""), since, until) if since < until else None


def _node(node: NodeTime, frame: Frame) -> dict[str, Any]:
    slots = max(1, node.slots)
    held = [visible + others for visible, others in zip(node.visible, node.others, strict=True)]
    idle = [round(max(0.0, slots - each), 1) for each in held]
    return {
        "name": node.name,
        "slots": node.slots,
        "unit": humanize.unit(node.slot_type, node.slots),
        "used": _used(node, slots, held, frame),
        "opportunistic": _used(node, slots, node.opportunistic, frame) if any(node.opportunistic) else None,
        "partly_known": any(phase.state == UNKNOWN for phase in node.phases),
        "bands": [
            *_bands("part-used", node.visible, [0.0] * len(held), slots),
            *_bands("part-others", node.others, node.visible, slots),
        ],
        "phases": [_phase(phase, frame) for phase in node.phases if phase.state != NodeChange.State.READY],
        "gaps": [
            _gap(node.name, frame.begin_of(parts[0]), frame.begin_of(parts[-1] + 1), value, frame)
            for value, parts in _in_a_row(idle)
            if value > LEAST_IDLE
        ],
    }


def _used(node: NodeTime, slots: int, held: Sequence[float], frame: Frame) -> float | None:
    """Percent of the slots that were held, of the time in which it is known what the node was; None: it never is."""
    lengths = [
        min(phase.until, frame.now) - phase.since
        for phase in node.phases
        if phase.state != UNKNOWN and phase.since < frame.now
    ]
    known = sum(lengths, timedelta())
    if not known:
        return None
    # Of the last part, only what is over was averaged.
    taken = sum(held[:-1]) * frame.part + held[-1] * (frame.now - frame.end + frame.part)
    return min(100.0, 100 * (taken / known) / slots)


def _bands(kind: str, values: Sequence[float], below: Sequence[float], slots: int) -> list[Band]:
    """Rectangles of equal parts in a row, stacked on what is below."""
    pairs = [(round(value, 2), round(under, 2)) for value, under in zip(values, below, strict=True)]
    width = 100 / len(pairs)
    return [
        Band(
            kind,
            f"{group[0] * width:.2f}",
            f"{max(0.0, 100 - 100 * (value + under) / slots):.1f}",
            f"{len(group) * width:.2f}",
            f"{min(100.0, 100 * value / slots):.1f}",
        )
        for (value, under), group in _in_a_row(pairs)
        if value > 0
    ]


def _in_a_row(values: Sequence[Any]) -> list[tuple[Any, list[int]]]:
    """Each value with the indexes of the parts in a row that have it."""
    return [
        (value, [n for n, _ in group])
        for value, group in groupby(enumerate(values), key=lambda pair: pair[1])
    ]


def _phase(phase: Phase, frame: Frame) -> Band:
    kind = "part-unknown" if phase.state == UNKNOWN else "part-down"
    x, width = frame.percent(phase.since - frame.start), frame.percent(phase.until - phase.since)
    return Band(kind, x, "0", width, "100")


def _gap(node: str, since: datetime, until: datetime, idle: float, frame: Frame) -> Idle:
    times = {name: f"{at:%Y-%m-%dT%H:%M:%SZ}" for name, at in (("since", since), ("until", until))}
    chosen = frame.chosen
    return Idle(
        since,
        until,
        idle,
        frame.percent(since - frame.start),
        frame.percent(until - since),
        "?" + urlencode({"span": frame.span, "nodes": frame.nodes, "node": node} | times) + "#why",
        chosen is not None and chosen[0] == node and chosen[1] < until and since < chosen[2],
    )


def _ticks(frame: Frame) -> list[tuple[str, str]]:
    """Percent and text of the marks of the time axis, five between its six parts."""
    form = "%a %H:%M" if frame.span == "week" else "%H:%M"
    step = (frame.end - frame.start) / 6
    return [(f"{100 * n / 6:.2f}", f"{frame.start + n * step:{form}}") for n in range(1, 6)]


def _why(found: Gap | None) -> dict[str, Any] | None:
    """What is said of a gap: sentences, then the jobs that waited."""
    if found is None:
        return None
    return {
        "gap": found,
        "sentences": list(_sentences(found)),
        "jobs": [{"job": each, "reason": label_of(each.reason)} for each in found.jobs[:JOBS_SHOWN]],
        "more": max(0, len(found.jobs) - JOBS_SHOWN),
        "plans": [
            {"plan": each, "short": each.digest[:DIGEST_SHOWN], "losses": _cost(each.losses, found.slot_type)}
            for each in found.plans
        ],
    }


def _cost(losses: Losses | None, slot_type: str) -> str:
    """What a plan's orders cost; "" where it gave none that the reader may know of."""
    if losses is None:
        return ""
    expected = humanize.slot_time(losses.expected, slot_type)
    unknown = f" and {_count(losses.unmeasured, 'restart')} never measured" if losses.unmeasured else ""
    said = (
        f"stops or resizes {_count(losses.orders, 'job')} that you can see: {expected}{unknown} at stake then"
    )
    if losses.pending == losses.orders:
        return f"{said}; none has stopped for it"
    lost = f"{humanize.slot_time(losses.lost, slot_type)} of work" if losses.lost else "no work"
    pending = f", {_count(losses.pending, 'job')} did not stop for it, or not yet" if losses.pending else ""
    return f"{said}; lost {lost}{pending}"


def _count(count: int, word: str) -> str:
    return f"{count} {word}{'' if count == 1 else 's'}"


def _sentences(found: Gap) -> list[str]:
    said = [
        f"The node was {STATES[phase.state]}{_during(phase.since, phase.until, found)}."
        for phase in found.phases
        if phase.state in STATES
    ]
    said += [f"The platform was stopped{_during(*stop, found)}." for stop in found.stops]
    unit = humanize.unit(found.slot_type, 2)
    waited = len(found.jobs) + found.others
    if waited:
        said.append(f"{waited} job{'' if waited == 1 else 's'} waited for {unit} meanwhile.")
    elif found.complete:
        said.append(f"Nothing waited for {unit}.")
    else:
        said.append(f"Unknown whether anything waited for {unit}.")
    if found.removed:
        said.append(f"The events of {found.removed} jobs of that time were removed by a retention rule.")
    if found.purged:
        said.append("Jobs that were deleted since may be missing here.")
    return said


def _during(since: datetime, until: datetime, found: Gap) -> str:
    if since <= found.since and until >= found.until:
        return ""
    return f" from {since.astimezone(UTC):%H:%M} to {until.astimezone(UTC):%H:%M} UTC"
