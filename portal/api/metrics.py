"""A job's series, thinned for charts."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from jobs.selectors import metrics
from portal.api import doors
from portal.api.fields import Strict
from portal.api.operations import Call, operation


class MetricsQuery(Strict):
    names = serializers.ListField(
        child=serializers.CharField(max_length=120),
        required=False,
        help_text="one, or several by comma; default: all",
    )
    to = serializers.FloatField(required=False, help_text="x at most")
    buckets = serializers.IntegerField(
        required=False, default=metrics.DEFAULT_BUCKETS, min_value=1, max_value=metrics.MAX_BUCKETS
    )
    x = serializers.ChoiceField(
        ["step", "time"], required=False, default="step", help_text="time: milliseconds since 1970"
    )

    def get_fields(self) -> dict[str, serializers.Field[Any, Any, Any, Any]]:
        start = serializers.FloatField(required=False, help_text="x at least")
        return {"from": start, **super().get_fields()}


class SeriesOut(serializers.Serializer[Any]):
    name = serializers.CharField()
    rank = serializers.IntegerField()
    buckets = serializers.ListField(
        help_text="[x, min, max, last]; min and max null where no value is finite"
    )
    overtaken = serializers.ListField(help_text="the same of points that a newer attempt reported again")
    not_finite = serializers.ListField(help_text='[x, "NaN" | "Infinity" | "-Infinity"]')
    complete = serializers.BooleanField(help_text="every point is a bucket of its own")
    points = serializers.IntegerField()


class MetricsOut(serializers.Serializer[Any]):
    x = serializers.ChoiceField(["step", "time"])
    seq = serializers.IntegerField(help_text="cursor of the live channel that goes on from here")
    series = SeriesOut(many=True)


@operation(
    Out=MetricsOut,
    Query=MetricsQuery,
    tell={
        "x": "step",
        "seq": 2,
        "series": [
            {
                "name": "loss",
                "rank": 0,
                "buckets": [[1, 0.93, 0.93, 0.93], [2, 0.71, 0.71, 0.71]],
                "overtaken": [],
                "not_finite": [],
                "complete": True,
                "points": 2,
            }
        ],
    },
)
def metric_series(call: Call, job_id: str) -> dict[str, Any]:
    """A job's series by name and learner, each in at most so many buckets of [x, min, max, last]."""
    job, query = doors.job(call, job_id), call.query
    seq = metrics.newest(job.pk)
    found = metrics.series(
        job.pk,
        names=query.get("names"),
        x_from=query.get("from"),
        x_to=query.get("to"),
        buckets=query["buckets"],
        x=query["x"],
        upto=seq,
    )
    return {"x": query["x"], "seq": seq, "series": [each.as_json() for each in found]}
