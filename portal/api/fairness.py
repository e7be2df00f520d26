"""What tenants were entitled to and what they received."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from rest_framework import serializers

from jobs.selectors.fairness import COLUMNS, Report, fairness
from jobs.selectors.snapshot import database_now
from jobs.serialization import ReadSerializer, TimestampField
from portal.api import paging, permissions
from portal.api.fields import ShortListQuery
from portal.api.operations import Call, operation
from portal.api.periods import period
from tenants.models import Tenant

USUAL = timedelta(days=7)
MAX_SPAN = timedelta(days=400)


class FairnessQuery(ShortListQuery):
    from_ = TimestampField(
        required=False, help_text="default: the day that began 7 days before `to`; rounded to whole hours"
    )
    to = TimestampField(required=False, help_text="default: now")


class FairnessSerializer(ReadSerializer):
    tenant = serializers.CharField()
    cohort = serializers.CharField(allow_blank=True, help_text="that of now")
    gpu_type = serializers.CharField(help_text="cpu for jobs without GPUs")
    guaranteed = serializers.FloatField(help_text="slot-seconds of demand up to the limit")
    share = serializers.FloatField(help_text="its part, by weight, of what its cohort lent")
    entitled = serializers.FloatField(help_text="guaranteed and share")
    received = serializers.FloatField(help_text="slot-seconds held")
    borrowed = serializers.FloatField(help_text="the part of received that other tenants lent")
    lent = serializers.FloatField(help_text="slot-seconds of its limit that other tenants held")
    shortfall = serializers.FloatField(
        help_text="slot-seconds of the entitlement that were missing; what is received later makes up for nothing"
    )


EXAMPLE = {
    "tenant": "vision-lab",
    "cohort": "research",
    "gpu_type": "a100",
    "guaranteed": 691200.0,
    "share": 86400.0,
    "entitled": 777600.0,
    "received": 763200.0,
    "borrowed": 79200.0,
    "lent": 0.0,
    "shortfall": 14400.0,
}


BY_INTERVAL = ("entitled", "received", "shortfall")


class FairnessIntervalSerializer(ReadSerializer):
    tenant = serializers.CharField(allow_blank=True, help_text="empty: the sum of all that are not listed")
    tenants = serializers.IntegerField(help_text="how many tenants it is the sum of")
    gpu_type = serializers.CharField(help_text="cpu for jobs without GPUs")
    start = TimestampField(help_text="begin of the interval")
    end = TimestampField(help_text="its end")
    entitled = serializers.FloatField(allow_null=True, help_text="slot-seconds; null: unknown")
    received = serializers.FloatField(allow_null=True, help_text="slot-seconds held; null: unknown")
    shortfall = serializers.FloatField(
        allow_null=True, help_text="slot-seconds of the entitlement that were missing; null: unknown"
    )
    unknown_s = serializers.FloatField(
        help_text="seconds of the interval without figures, or in which the platform was stopped"
    )


INTERVAL_EXAMPLE = {
    "tenant": "vision-lab",
    "tenants": 1,
    "gpu_type": "a100",
    "start": "2026-11-25T00:00:00Z",
    "end": "2026-11-25T06:00:00Z",
    "entitled": 172800.0,
    "received": 158400.0,
    "shortfall": 14400.0,
    "unknown_s": 0.0,
}


@operation(
    authorize=permissions.for_admins,
    Out=FairnessSerializer,
    Query=FairnessQuery,
    many=True,
    response_example=EXAMPLE,
    fails=(403,),
)
def fairness_list(call: Call) -> dict[str, Any]:
    """What each tenant was entitled to and received, by slot type, in slot-seconds; platform admins only.

    `jain`: Jain's index by slot type, over the tenants that were entitled to anything; null where none received any.
    `unknown`: the hours of the period of which no figures are stored; they count as nothing.
    """
    report = _report(call, None)
    jain = {slot_type: None if index is None else round(index, 6) for slot_type, index in report.jain.items()}
    return _answer(call, report) | {"jain": jain}


@operation(Out=FairnessSerializer, Query=FairnessQuery, many=True, response_example=EXAMPLE)
def tenant_fairness_list(call: Call, t: str) -> dict[str, Any]:
    """What the tenant was entitled to and received, by slot type, in slot-seconds.

    `unknown`: the hours of the period of which no figures are stored; they count as nothing.
    """
    tenant = permissions.tenant(call, t)
    return _answer(call, _report(call, tenant))


@operation(
    authorize=permissions.for_admins,
    Out=FairnessIntervalSerializer,
    Query=FairnessQuery,
    many=True,
    response_example=INTERVAL_EXAMPLE,
    fails=(403,),
)
def fairness_history(call: Call) -> dict[str, Any]:
    """What each tenant was entitled to and received in each interval of the period; platform admins only.

    `interval_s`: how long an interval is: an hour, 6 hours, a day or a week, so that there are at most 64. Of each type
    the 8 tenants that were short of the most are listed; the others are one sum, with an empty `tenant`. `unknown`:
    spans without figures, or in which the platform was stopped; those close to each other are one.
    """
    return _history(call, None)


@operation(Out=FairnessIntervalSerializer, Query=FairnessQuery, many=True, response_example=INTERVAL_EXAMPLE)
def tenant_fairness_history(call: Call, t: str) -> dict[str, Any]:
    """What the tenant was entitled to and received in each interval of the period.

    `interval_s`: how long an interval is: an hour, 6 hours, a day or a week, so that there are at most 64. `unknown`:
    spans without figures, or in which the platform was stopped; those close to each other are one.
    """
    return _history(call, permissions.tenant(call, t))


def _report(call: Call, tenant: Tenant | None, *, by_interval: bool = False) -> Report:
    start, end = period(call.query, usual=USUAL, most=MAX_SPAN)
    return fairness(start, end, database_now(), tenant, by_interval=by_interval)


def _history(call: Call, tenant: Tenant | None) -> dict[str, Any]:
    report = _report(call, tenant, by_interval=True)
    assert report.history is not None
    rows = [
        FairnessIntervalSerializer.render(
            {
                "tenant": course.tenant,
                "tenants": course.tenants,
                "gpu_type": course.slot_type,
                "start": interval.since,
                "end": interval.until,
                "unknown_s": round(interval.unknown_s, 3),
                **{name: None if found is None else round(getattr(found, name), 3) for name in BY_INTERVAL},
            }
        )
        for course in report.history.courses
        for interval, found in zip(report.history.intervals, course.figures, strict=True)
    ]
    unknown = [{"from": since, "to": until} for since, until in report.history.unknown]
    span = {"from": report.start, "to": report.end, "unknown": unknown}
    width = {"interval_s": report.history.width.total_seconds()}
    return {**paging.whole(call, rows, keys=("gpu_type", "tenant", "start")), **span, **width}


def _answer(call: Call, report: Report) -> dict[str, Any]:
    rows = [
        FairnessSerializer.render(
            {
                "tenant": line.tenant,
                "cohort": line.cohort,
                "gpu_type": line.slot_type,
                "entitled": round(line.figures.entitled, 3),
                **{name: round(getattr(line.figures, name), 3) for name in COLUMNS},
            }
        )
        for line in report.lines
    ]
    unknown = [{"from": since, "to": until} for since, until in report.unknown]
    span = {"from": report.start, "to": report.end, "unknown": unknown}
    return {**paging.whole(call, rows, keys=("gpu_type", "tenant")), **span}
