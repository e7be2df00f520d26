"""A job's metrics: series downsampled for charts, and every point as CSV."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any

from django.http import HttpResponseBase
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from jobs.selectors import metric_csv, metrics
from jobs.selectors.retention import refuse_removed
from jobs.serialization import ReadSerializer, TimestampField
from portal.api import paging, permissions
from portal.api.downloads import csv_download
from portal.api.fields import PagedQuery, StrictSerializer
from portal.api.openapi import BYTES
from portal.api.operations import Call, operation
from tenants.retention import Kind

UNFIT_FOR_A_FILE = re.compile(r"[^\w.-]+")


class NamesQuery(StrictSerializer):
    names = serializers.ListField(
        child=serializers.CharField(max_length=120),
        required=False,
        help_text="one, or several by comma; default: all",
    )
    q = serializers.CharField(
        required=False, default="", allow_blank=True, max_length=120, help_text="in the name"
    )


@extend_schema_field({"oneOf": [{"type": "number"}, {"type": "string", "format": "date-time"}]})
class AxisField(TimestampField):
    """A number or, as other queries take it, a time; its value is a float or a datetime."""

    default_error_messages = {
        "invalid": "must be a number, or with x=time a time such as 2026-11-30T09:00:00Z"
    }

    def to_internal_value(self, data: Any) -> Any:
        try:
            return serializers.FloatField().run_validation(data)
        except serializers.ValidationError:
            return super().to_internal_value(data)


class MetricsQuery(NamesQuery, PagedQuery):
    page_size = serializers.IntegerField(
        required=False,
        default=metrics.MAX_SERIES,
        min_value=1,
        max_value=metrics.MAX_SERIES,
        help_text=f"series at once, 1 to {metrics.MAX_SERIES}",
    )
    from_ = AxisField(required=False, help_text="minimum x; with x=time also a time (RFC 3339)")
    to = AxisField(required=False, help_text="maximum x, in the same way")
    buckets = serializers.IntegerField(
        required=False, default=metrics.DEFAULT_BUCKETS, min_value=1, max_value=metrics.MAX_BUCKETS
    )
    x = serializers.ChoiceField(
        ["step", "time"], required=False, default="step", help_text="time: milliseconds since 1970"
    )

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        times = {name: at for name in ("from", "to") if isinstance(at := attrs.get(name), datetime)}
        if times and attrs["x"] != "time":
            raise serializers.ValidationError(dict.fromkeys(times, "A time needs x=time."))
        attrs |= {name: round(at.timestamp() * 1000, 3) for name, at in times.items()}
        if {"from", "to"} <= attrs.keys() and not attrs["from"] <= attrs["to"]:
            raise serializers.ValidationError({"from": "Must not be greater than `to`."})
        return attrs


class SeriesSerializer(ReadSerializer):
    name = serializers.CharField()
    rank = serializers.IntegerField()
    axis = serializers.ChoiceField(
        ["step", metrics.ORDER],
        help_text="order: `step` only gives the points' order, because the program printed none that count up",
    )
    buckets = serializers.ListField(
        help_text="[x, min, max, last]; min and max null where no value is finite"
    )
    superseded = serializers.ListField(help_text="the same of points that a newer attempt reported again")
    not_finite = serializers.ListField(help_text='[x, "NaN" | "Infinity" | "-Infinity"]')
    complete = serializers.BooleanField(help_text="every point has its own bucket")
    points = serializers.IntegerField()


class MetricsSerializer(ReadSerializer):
    x = serializers.ChoiceField(["step", "time"])
    seq = serializers.IntegerField(help_text="cursor of the live channel that continues from here")
    lost = serializers.IntegerField(
        help_text="points of the job that were not kept: its tenant's storage is full, or it has too many metrics"
    )
    series = SeriesSerializer(many=True)
    total = serializers.IntegerField(help_text="number of series of the requested names, on all pages")
    next = serializers.CharField(allow_null=True, help_text="`cursor` of the next page")


@operation(
    Out=MetricsSerializer,
    Query=MetricsQuery,
    response_example={
        "x": "step",
        "seq": 2,
        "lost": 0,
        "series": [
            {
                "name": "loss",
                "rank": 0,
                "axis": "step",
                "buckets": [[1, 0.93, 0.93, 0.93], [2, 0.71, 0.71, 0.71]],
                "superseded": [],
                "not_finite": [],
                "complete": True,
                "points": 2,
            }
        ],
        "total": 1,
        "next": None,
    },
    fails=(410,),
)
def metric_series(call: Call, job_id: str) -> dict[str, Any]:
    """A job's series by name and learner, in pages; each in at most `buckets` buckets of [x, min, max, last]."""
    job, query = permissions.job(call, job_id), call.query
    refuse_removed(job.pk, Kind.METRICS)
    x, seq = query["x"], metrics.newest(job.pk)
    spans = metrics.spans(job.pk, names=query.get("names"), q=query["q"], x=x, upto=seq)
    known = dict.fromkeys((span.name, span.rank) for span in spans)
    page = paging.whole(call, [{"name": name, "rank": rank} for name, rank in known], keys=("name", "rank"))
    asked = {(one["name"], one["rank"]) for one in page["items"]}
    found = metrics.series(
        job.pk,
        [span for span in spans if (span.name, span.rank) in asked],
        x_from=query.get("from"),
        x_to=query.get("to"),
        buckets=query["buckets"],
        x=x,
        upto=seq,
    )
    return MetricsSerializer.render(
        {
            "x": x,
            "seq": seq,
            "lost": metrics.lost(job.pk),
            "series": found,
            "total": len(known),
            "next": page["next"],
        }
    )


@operation(Out=BYTES, Query=NamesQuery, also=("text/csv",), fails=(410, 429))
def metric_csv_file(call: Call, job_id: str) -> HttpResponseBase:
    """Every point as CSV, in the order of arrival: name, learner, attempt, step, time, value.

    Nothing is downsampled. A name that a spreadsheet would take for a formula gets an apostrophe in front.
    """
    job, query = permissions.job(call, job_id, "metrics.download"), call.query
    refuse_removed(job.pk, Kind.METRICS)
    names = query.get("names")
    of = UNFIT_FOR_A_FILE.sub("-", names[0]).strip("-.") if names and len(names) == 1 else ""
    blocks = metric_csv.csv_blocks(job.pk, names=names, q=query["q"])
    return csv_download(call, blocks, f"{job.pk}-{of or 'metrics'}.csv")
