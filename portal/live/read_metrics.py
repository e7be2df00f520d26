"""`job:{id}:metrics`: points in the order in which they were taken in; the page thins them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from django.db.models import Q

from jobs.models import MetricPoint, Progress
from jobs.serialization import rfc3339
from learner_agent.wire import number_out
from portal.live.frames import ChannelSource, FrameBatch, ReadRequest, cut_items, items_frame
from portal.live.protocol import Channel

PAGE_POINTS = 5_000
POINT_BYTES = 145


class MetricChannelSource(ChannelSource):
    missed_is_fetched = True
    counts_rows = False

    def head(self, channel: Channel) -> int:
        found = Progress.objects.filter(job=channel.job_id).values_list("metric_seq", flat=True).first()
        return found or 0

    def read(self, requests: Sequence[ReadRequest]) -> dict[str, FrameBatch]:
        rows = Progress.objects.filter(job__in=[request.channel.job_id for request in requests])
        heads = {row.pk: row for row in rows.only("metric_seq", "metrics")}
        newer = [
            request
            for request in requests
            if (head := heads.get(request.channel.job_id)) and head.metric_seq > request.after
        ]
        points = _points(newer)
        return {
            request.channel.name: _batch(
                request, points[request.channel.job_id], heads.get(request.channel.job_id)
            )
            for request in requests
        }


def _points(requests: Sequence[ReadRequest]) -> dict[str, list[MetricPoint]]:
    found: dict[str, list[MetricPoint]] = defaultdict(list)
    if requests:
        asked = Q()
        for request in requests:
            one = Q(job_id=request.channel.job_id, seq__gt=request.after)
            asked |= one & Q(seq__lte=request.upto) if request.upto is not None else one
        for point in MetricPoint.objects.filter(asked).order_by("seq")[: PAGE_POINTS * len(requests)]:
            found[point.job_id].append(point)
    return found


def _batch(request: ReadRequest, points: list[MetricPoint], head: Progress | None) -> FrameBatch:
    ch, known = request.channel.name, head.metrics if head else {}
    run: list[MetricPoint] = []
    for point in points[:PAGE_POINTS]:
        if point.seq != request.after + len(run) + 1:
            break  # a hole: the rest waits until it is filled
        run.append(point)
    runs = cut_items(request.after + 1, [_item(point, known) for point in run], [POINT_BYTES] * len(run))
    frames = [items_frame(ch, *cut) for cut in runs]
    if not frames and request.stamp is None:
        frames = [items_frame(ch, request.after + 1, request.after, [])]
    return FrameBatch(frames, request.after + len(run), True, len(points) > PAGE_POINTS)


def _item(point: MetricPoint, known: Mapping[str, Any]) -> dict[str, Any]:
    """known: the newest value of each metric; only an axis other than steps is said of a point."""
    axis = known.get(point.name, {}).get("axis", "step")
    return {
        "n": point.seq,
        "name": point.name,
        "step": point.step,
        "value": number_out(point.value),
        "at": rfc3339(point.at),
        "attempt": point.attempt,
        "rank": point.rank,
        **({} if axis == "step" else {"axis": axis}),
    }
