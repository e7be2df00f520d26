"""Quotas, their changes and their use."""

from __future__ import annotations

from collections.abc import Mapping, Set
from datetime import timedelta
from typing import Any

from rest_framework import serializers

from jobs.selectors import quota_effects, usage
from jobs.selectors.budgets import budget_of
from jobs.selectors.installation import pools
from jobs.selectors.platform_stops import stopped_s
from jobs.selectors.serializers import QuotaSerializer
from jobs.selectors.usage import quota_etag
from jobs.serialization import ReadSerializer, TimestampField
from jobs.services.quotas import quotas_change
from portal.api import paging, permissions
from portal.api.errors import MAX_ERRORS
from portal.api.fields import (
    FieldError,
    PagedQuery,
    ShortListQuery,
    StrictBooleanField,
    StrictCharField,
    StrictIntegerField,
    StrictNumberField,
    StrictSerializer,
)
from portal.api.operations import Call, operation
from portal.api.periods import period
from tenants.errors import FieldsInvalid, LimitChanged, Overcommitted, TenantError, VersionChanged
from tenants.services.quotas import (
    MAX_GPU_HOURS,
    MAX_LIMIT,
    MAX_TIME_S,
    MAX_WEIGHT,
    TERMS,
    WHOLE,
    WHOLE_TERMS,
    Applied,
    Change,
    unknown_rows,
)

CHANGE_SETS_A_MINUTE = 30
"""Of one user, tried ones included: each may plan the whole queue of the installation twice."""
MAX_CHANGES = 500
USUAL_USAGE = timedelta(days=30)
MAX_USAGE_SPAN = timedelta(days=400)


QUOTA_EXAMPLE = {
    "gpu_type": "a100",
    "limit": 16,
    "used": 18,
    "waiting": 4,
    "borrowed": 2,
    "lent": 0,
    "opportunistic": 0,
    "cohort": "research",
    "borrowing_limit": 8,
    "lending_limit": None,
    "weight": 1,
    "user_limit": 4,
    "gang_limit": None,
    "etag": '"limit-16;borrowing_limit-8;user_limit-4"',
}


@operation(Out=QuotaSerializer, Query=ShortListQuery, many=True, response_example=QUOTA_EXAMPLE)
def quota_list(call: Call, t: str) -> dict[str, Any]:
    """The tenant's limit, use and waiting slots by slot type. A type without a row has no quota."""
    found = [QuotaSerializer.render(use) for use in usage.quotas_of(permissions.tenant(call, t))]
    return paging.whole(call, found, keys=("gpu_type",))


class TermsRequest(StrictSerializer):
    """On which terms the tenant borrows and lends, and the limits for one user and one job; what is not sent stays as
    it is."""

    borrowing_limit = StrictIntegerField(required=False, allow_null=True, max_value=MAX_LIMIT)
    lending_limit = StrictIntegerField(required=False, allow_null=True, max_value=MAX_LIMIT)
    weight = StrictIntegerField(required=False, min_value=1, max_value=MAX_WEIGHT)
    user_limit = StrictIntegerField(required=False, allow_null=True, min_value=1, max_value=MAX_LIMIT)
    gang_limit = StrictIntegerField(required=False, allow_null=True, min_value=1, max_value=MAX_LIMIT)


def _terms(sent: Mapping[str, Any]) -> dict[str, Any]:
    return {name: sent[name] for name in (*TERMS, *WHOLE_TERMS) if name in sent}


class LimitRequest(TermsRequest):
    limit = StrictIntegerField(max_value=MAX_LIMIT)
    reason = StrictCharField(max_length=500)


@operation(
    authorize=permissions.for_admins,
    In=LimitRequest,
    Out=QuotaSerializer,
    request_example={"limit": 16, "reason": "Second half of the grant"},
    response_example=QUOTA_EXAMPLE,
    fails=(409,),
)
def quota_set(call: Call, t: str, gpu_type: str) -> dict[str, Any]:
    """Set one limit, how much of it is lent and may be borrowed, and what one user and one job can have of it; platform
    admins only.

    A limit below the current use stops no job by itself; it prevents new starts. In a cohort, what a tenant uses above
    its limit is borrowed, and its jobs are stopped when a lender's own jobs wait for it.
    """
    limit, terms = _seen(call, gpu_type)
    change = Change(t, gpu_type, call.data["limit"], limit, _terms(call.data), terms)
    try:
        quotas_change(user=call.user, changes=[change], reason=call.data["reason"])
    except FieldsInvalid as error:
        raise FieldsInvalid(errors=_of_one(error)) from error
    except Overcommitted as error:
        raise Overcommitted(errors=_of_one(error)) from error
    except LimitChanged:
        raise VersionChanged(etag=quota_etag(*_now(call, gpu_type))) from None
    for use in usage.quotas_of(call.found):
        if use.gpu_type == gpu_type:
            return QuotaSerializer.render(use)
    return QuotaSerializer.render(usage.QuotaStatus(gpu_type, 0, 0, 0))  # no row: it was and is 0


def _of_one(error: TenantError) -> list[dict[str, Any]]:
    """The errors of a change set, with paths as for the single limit that was sent."""
    return [each | {"path": each["path"].removeprefix("changes[0].")} for each in error.details["errors"]]


def _seen(call: Call, gpu_type: str) -> tuple[int | None, Mapping[str, int | None]]:
    """The limit and the terms that If-Match names; they are compared again while the row is locked."""
    if call.if_match is None:
        return None, {}
    now = _now(call, gpu_type)
    if (etag := quota_etag(*now)) not in call.if_match:
        raise VersionChanged(etag=etag)
    return now


def _now(call: Call, gpu_type: str) -> tuple[int, Mapping[str, int | None]]:
    stored = call.found.quotas.filter(gpu_type=gpu_type).values("limit", *TERMS).first()
    terms = {name: value for name, value in (stored or TERMS).items() if name in TERMS}
    return (stored["limit"] if stored else 0), terms


class QuotaChangeSerializer(ReadSerializer):
    id = serializers.IntegerField(source="pk")
    gpu_type = serializers.CharField(
        allow_blank=True, help_text="empty: of the tenant as a whole, in terms; it has no limit"
    )
    old_limit = serializers.IntegerField()
    new_limit = serializers.IntegerField()
    used_then = serializers.IntegerField(
        allow_null=True, help_text="slots held when it was changed; null for changes before this was stored"
    )
    reason = serializers.CharField()
    actor = serializers.CharField(allow_null=True, source="actor.username")
    terms = serializers.DictField(
        help_text="borrowing_limit, lending_limit, weight, user_limit and gang_limit, or of the whole tenant cohort, "
        "jobs_limit, user_jobs_limit, max_time_s, budget_gpu_hours and budget_is_hard, as far as they changed: "
        "[before, after]"
    )
    change_set = serializers.UUIDField(help_text="the changes that were applied together")
    at = TimestampField()


@operation(
    Out=QuotaChangeSerializer,
    Query=PagedQuery,
    many=True,
    response_example={
        "id": 17,
        "gpu_type": "a100",
        "old_limit": 8,
        "new_limit": 16,
        "used_then": 7,
        "reason": "Second half of the grant",
        "actor": "admin",
        "terms": {"lending_limit": [None, 4]},
        "change_set": "0f1f7b3e-6a53-4b7a-9a0e-6b8a2b8a2f11",
        "at": "2026-11-21T09:00:00.000Z",
    },
)
def quota_change_list(call: Call, t: str) -> dict[str, Any]:
    """Every limit ever set for this tenant, newest first."""
    rows = permissions.tenant(call, t).quota_changes.select_related("actor")
    return paging.page(call, rows, QuotaChangeSerializer.render, keys=("-pk",))


class WholeTermsRequest(StrictSerializer):
    """What is set for all of a tenant's slot types together; what is not sent stays as it is."""

    jobs_limit = StrictIntegerField(required=False, allow_null=True, max_value=MAX_LIMIT)
    user_jobs_limit = StrictIntegerField(required=False, allow_null=True, min_value=1, max_value=MAX_LIMIT)
    max_time_s = StrictIntegerField(required=False, allow_null=True, min_value=1, max_value=MAX_TIME_S)
    budget_gpu_hours = StrictNumberField(
        required=False,
        allow_null=True,
        max_value=MAX_GPU_HOURS,
        help_text="of each calendar month (UTC); null: no budget",
    )
    budget_is_hard = StrictBooleanField(
        required=False, help_text="true: GPU jobs stop when it is used up; false: it only warns"
    )
    cohort = StrictCharField(required=False, allow_blank=True, max_length=40)


class ChangeRequest(TermsRequest, WholeTermsRequest):
    tenant = StrictCharField(max_length=40)
    gpu_type = StrictCharField(
        max_length=40,
        allow_blank=True,
        help_text="empty: the tenant as a whole, which has no limit, but cohort, jobs_limit, user_jobs_limit, "
        "max_time_s, budget_gpu_hours and budget_is_hard",
    )
    limit = StrictIntegerField(
        required=False, max_value=MAX_LIMIT, help_text="required unless gpu_type is empty"
    )
    if_limit = StrictIntegerField(required=False, allow_null=True)

    def wrong_names(self, data: Any) -> dict[str, list[serializers.ErrorDetail]]:
        wrong = super().wrong_names(data)
        if not hasattr(data, "keys"):
            return wrong
        whole = data.get("gpu_type") == WHOLE
        others = ("limit", "if_limit", *TERMS) if whole else WHOLE_TERMS
        text = (
            "Is set for each slot type."
            if whole
            else "Is set for the tenant as a whole: gpu_type must be empty."
        )
        wrong |= {
            name: [serializers.ErrorDetail(text, code="wrong_scope")] for name in others if name in data
        }
        if not whole and "limit" not in data:
            wrong["limit"] = [serializers.ErrorDetail("This field is required.", code="required")]
        return wrong

    @staticmethod
    def change(sent: Mapping[str, Any]) -> Change:
        """What a valid body asks for."""
        return Change(
            sent["tenant"], sent["gpu_type"], sent.get("limit", 0), sent.get("if_limit"), _terms(sent)
        )


class ReasonRequest(StrictSerializer):
    """Why something is changed that has a history. With dry_run nothing is."""

    reason = StrictCharField(max_length=500)
    dry_run = StrictBooleanField(required=False, default=False)


class ChangeSetRequest(ReasonRequest):
    changes = serializers.ListField(child=ChangeRequest(), min_length=1, max_length=MAX_CHANGES)

    def wrong_rows(self, sent: Any, wrong: Set[str]) -> list[FieldError]:
        changes = sent.get("changes") if isinstance(sent, Mapping) else None
        if not isinstance(changes, list) or "changes" in wrong:
            return []
        if len(changes) > MAX_CHANGES or len(wrong) >= MAX_ERRORS:
            return []  # the rest would not be shown

        def text(n: int, change: Mapping[str, Any], name: str) -> str | None:
            value = change.get(name)
            return value.strip() if isinstance(value, str) and f"changes[{n}].{name}" not in wrong else None

        named = {
            n: (text(n, each, "tenant"), text(n, each, "gpu_type"))
            for n, each in enumerate(changes)
            if isinstance(each, Mapping)
        }
        return unknown_rows(named, {kind: pool.slots for kind, pool in pools().items()})


class AppliedChangeSerializer(ReadSerializer):
    tenant = serializers.CharField()
    gpu_type = serializers.CharField()
    old_limit = serializers.IntegerField()
    new_limit = serializers.IntegerField()
    used = serializers.IntegerField()
    terms = serializers.DictField(help_text="what else changed: [before, after]")


class OverLimitSerializer(ReadSerializer):
    tenant = serializers.CharField()
    gpu_type = serializers.CharField()
    limit = serializers.IntegerField(source="new_limit")
    used = serializers.IntegerField()
    over = serializers.IntegerField(help_text="slots held above the limit until jobs end; no job is stopped")

    @staticmethod
    def get_over(change: Applied, context: object) -> int:
        return change.used - change.new_limit


class AffectedJobSerializer(ReadSerializer):
    job = serializers.CharField()
    name = serializers.CharField()
    tenant = serializers.CharField()
    slots = serializers.IntegerField(help_text="over all learners")
    slot_type = serializers.CharField(allow_null=True)
    reason = serializers.CharField(allow_blank=True, help_text="why it will wait")


class QuotaTotalSerializer(ReadSerializer):
    gpu_type = serializers.CharField()
    limits = serializers.IntegerField(help_text="summed over all tenants")
    capacity = serializers.IntegerField()
    allowed = serializers.IntegerField(help_text="capacity times the over-commit factor")


class EffectsSerializer(ReadSerializer):
    over = OverLimitSerializer(many=True)
    starts = AffectedJobSerializer(many=True)
    waits = AffectedJobSerializer(many=True)
    stops = AffectedJobSerializer(many=True, help_text="running jobs that are stopped because of the change")
    totals = QuotaTotalSerializer(many=True)


class ChangeSetSerializer(ReadSerializer):
    change_set = serializers.UUIDField(allow_null=True, help_text="null for a dry run")
    dry_run = serializers.BooleanField()
    changes = AppliedChangeSerializer(many=True)
    effects = EffectsSerializer()


def _try_quotas(call: Call) -> tuple[list[Change], quota_effects.Tried]:
    """What is wrong is refused before anything is planned."""
    changes = [ChangeRequest.change(each) for each in call.data["changes"]]
    made = quotas_change(user=call.user, changes=changes, reason=call.data["reason"], dry_run=True)
    return changes, quota_effects.tried(made)


@operation(
    authorize=permissions.for_admins,
    prepare=_try_quotas,
    per_minute=CHANGE_SETS_A_MINUTE,
    In=ChangeSetRequest,
    Out=ChangeSetSerializer,
    request_example={
        "changes": [
            {"tenant": "vision-lab", "gpu_type": "a100", "limit": 12, "if_limit": 16},
            {"tenant": "nlp-research", "gpu_type": "a100", "limit": 8, "if_limit": 4},
            {"tenant": "nlp-research", "gpu_type": "", "cohort": "research", "user_jobs_limit": 20},
        ],
        "reason": "Deadline of the NLP group",
        "dry_run": True,
    },
)
def quota_changes(call: Call) -> dict[str, Any]:
    """Set several limits and terms, also of tenants as a whole, all or none; platform admins only. With dry_run nothing
    is set; the response has the effects.

    The set is refused if an if_limit is not the current limit. The effects: tenants over their limit, waiting jobs that
    start at once because of the change, jobs that no longer start, and the totals.
    """
    changes, tried = call.prepared
    made, effects = tried.made, tried.effects
    if not call.data["dry_run"]:
        made = quotas_change(user=call.user, changes=changes, reason=call.data["reason"])
        effects = tried.effects_of(made)
    return ChangeSetSerializer.render(
        {
            "change_set": made.id,
            "dry_run": made.id is None,
            "changes": made.changes,
            "effects": effects,
        }
    )


class UsageQuery(ShortListQuery):
    from_ = TimestampField(required=False, help_text="default: the day that began 30 days before `to`")
    to = TimestampField(required=False, help_text="default: now")
    by = serializers.ChoiceField([by.value for by in usage.By], required=False, default="user")


class UsageSerializer(ReadSerializer):
    key = serializers.CharField(help_text="the user, the day or the slot type, depending on `by`")
    gpu_type = serializers.CharField(help_text="cpu for jobs without GPUs; any while a job waits for any GPU")
    used = serializers.FloatField(help_text="slot-seconds held")
    waited = serializers.FloatField(
        help_text="slot-seconds requested while queued, without the time of a stopped platform"
    )
    lost = serializers.FloatField(
        help_text="the part of used after the newest checkpoint of attempts that failed, or that the scheduler or the"
        " platform stopped before they had saved; not of what its owner halted or canceled"
    )


class BudgetSerializer(ReadSerializer):
    gpu_hours = serializers.FloatField()
    used_gpu_hours = serializers.FloatField(help_text="without CPU jobs and opportunistic ones")
    is_hard = serializers.BooleanField()
    period_start = TimestampField()
    period_end = TimestampField(help_text="when the next month begins")
    projected_gpu_hours = serializers.FloatField(
        allow_null=True,
        help_text="of the whole month if it continues as it was; null: it is too young to say",
    )


@operation(
    Out=UsageSerializer,
    Query=UsageQuery,
    many=True,
    response_example={"key": "alice", "gpu_type": "a100", "used": 86400.0, "waited": 1200.0, "lost": 0.0},
)
def usage_list(call: Call, t: str) -> dict[str, Any]:
    """Slot-seconds used, waited for and lost, by user, slot type or day (UTC).

    Whole days are read from daily sums, which outlive the jobs; of a part of a day, jobs that were purged do not count.
    `platform_stopped_s`: seconds of the period in which the platform was stopped; no job waits in them. `budget`: of
    the present month, whatever the period, with gpu_hours, used_gpu_hours, is_hard, period_start, period_end and
    projected_gpu_hours (null: the month is too young to say); null: the tenant has none.
    """
    tenant = permissions.tenant(call, t)
    start, end = period(call.query, usual=USUAL_USAGE, most=MAX_USAGE_SPAN)
    by = usage.By(call.query["by"])
    found = usage.usage_of(tenant, start=start, end=end, by=by)
    rows = [UsageSerializer.render(row) | {by.value: row.key} for row in found]
    budget = budget_of(tenant)
    span = {
        "from": start,
        "to": end,
        "platform_stopped_s": stopped_s(start, end),
        "budget": BudgetSerializer.render(budget) if budget else None,
    }
    return {**paging.whole(call, rows, keys=("key", "gpu_type")), **span}
