"""`job:{id}:metrics`: points in the order in which they were taken in; the page thins them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from django.db.models import Q

from jobs.models import MetricPoint, Progress
from jobs.timestamps import rfc3339
from learner_agent.wire_fields import number_out
from portal.live.frames import cut_items, items_frame
from portal.live.protocol import Channel
from portal.live.sources import Page, Source, Want

PAGE_POINTS = 5_000
POINT_BYTES = 130


class MetricSource(Source):
    missed_is_fetched = True
    counts_rows = False

    def head(self, channel: Channel) -> int:
        found = Progress.objects.filter(job=channel.job_id).values_list("metric_seq", flat=True).first()
        return found or 0

    def read(self, wants: Sequence[Want]) -> dict[str, Page]:
        heads = dict(
            Progress.objects.filter(job__in=[want.channel.job_id for want in wants]).values_list(
                "job_id", "metric_seq"
            )
        )
        newer = [want for want in wants if heads.get(want.channel.job_id, 0) > want.after]
        points = _points(newer)
        return {want.channel.name: _page(want, points[want.channel.job_id]) for want in wants}


def _points(wants: Sequence[Want]) -> dict[str, list[MetricPoint]]:
    found: dict[str, list[MetricPoint]] = defaultdict(list)
    if wants:
        asked = Q()
        for want in wants:
            one = Q(job_id=want.channel.job_id, seq__gt=want.after)
            asked |= one & Q(seq__lte=want.upto) if want.upto is not None else one
        for point in MetricPoint.objects.filter(asked).order_by("seq")[: PAGE_POINTS * len(wants)]:
            found[point.job_id].append(point)
    return found


def _page(want: Want, points: list[MetricPoint]) -> Page:
    ch = want.channel.name
    run: list[MetricPoint] = []
    for point in points[:PAGE_POINTS]:
        if point.seq != want.after + len(run) + 1:
            break  # a hole: the rest waits until it is filled
        run.append(point)
    runs = cut_items(want.after + 1, [_item(point) for point in run], [POINT_BYTES] * len(run))
    frames = [items_frame(ch, *cut) for cut in runs]
    if not frames and want.stamp is None:
        frames = [items_frame(ch, want.after + 1, want.after, [])]
    return Page(frames, want.after + len(run), True, len(points) > PAGE_POINTS)


def _item(point: MetricPoint) -> dict[str, Any]:
    return {
        "n": point.seq,
        "name": point.name,
        "step": point.step,
        "value": number_out(point.value),
        "at": rfc3339(point.at),
        "attempt": point.attempt,
        "rank": point.rank,
    }
