"""For how long a tenant's data is kept, and what its rules would remove now."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from jobs.selectors.retention import Effect, effects
from jobs.serialization import ReadSerializer, TimestampField
from portal.api import permissions
from portal.api.fields import StrictCharField, StrictIntegerField, StrictSerializer
from portal.api.operations import Call, operation
from tenants.models import Tenant
from tenants.retention import OF_TENANTS, Kind
from tenants.services import retention as services


class LimitsSerializer(ReadSerializer):
    days = serializers.IntegerField(allow_null=True, help_text="what is older is removed; null: no limit")
    bytes = serializers.IntegerField(
        allow_null=True, help_text="the oldest of what is above is removed; null: no limit"
    )


class AppliedRuleSerializer(LimitsSerializer):
    kind = serializers.ChoiceField([kind.value for kind in OF_TENANTS])
    source = serializers.ChoiceField(  # type: ignore[assignment]  # a field; the metaclass takes it off the class
        ["tenant", "installation"], help_text="whose rule it is; a kind without either is kept forever"
    )


class RetentionSerializer(ReadSerializer):
    rules = serializers.DictField(
        child=LimitsSerializer(), help_text="the tenant's own, by kind; PUT takes the same"
    )
    applies = AppliedRuleSerializer(many=True, help_text="the rule that counts for each kind")
    etag = serializers.CharField()


RULES_EXAMPLE = {"logs": {"days": 90, "bytes": None}, "checkpoints": {"days": None, "bytes": 1099511627776}}
RETENTION_EXAMPLE = {
    "rules": RULES_EXAMPLE,
    "applies": [
        {"kind": "logs", "days": 90, "bytes": None, "source": "tenant"},
        {"kind": "metrics", "days": None, "bytes": None, "source": "installation"},
    ],
    "etag": '"r0f1f7b3e6a534b7a"',
}


@operation(Out=RetentionSerializer, response_example=RETENTION_EXAMPLE)
def retention_get(call: Call, t: str) -> dict[str, Any]:
    """For how long each kind of the tenant's data is kept: its own rules, and the installation's where it has none."""
    return _shown(permissions.tenant(call, t))


class LimitsRequest(StrictSerializer):
    days = StrictIntegerField(required=False, allow_null=True, default=None)
    bytes = StrictIntegerField(required=False, allow_null=True, default=None)


class AgeRequest(StrictSerializer):
    days = StrictIntegerField(required=False, allow_null=True, default=None)


class RulesRequest(StrictSerializer):
    """One rule per kind that is to have its own; without limits it is kept forever."""

    logs = LimitsRequest(required=False)
    metrics = LimitsRequest(required=False)
    checkpoints = LimitsRequest(required=False)
    results = LimitsRequest(required=False)
    events = LimitsRequest(required=False)
    audit = AgeRequest(required=False)


class RetentionRequest(StrictSerializer):
    rules = RulesRequest()
    reason = StrictCharField(max_length=500)


@operation(
    authorize=permissions.for_admins,
    In=RetentionRequest,
    Out=RetentionSerializer,
    request_example={"rules": RULES_EXAMPLE, "reason": "The disk is 90 % full"},
    response_example=RETENTION_EXAMPLE,
)
def retention_set(call: Call, t: str) -> dict[str, Any]:
    """Replace the tenant's own rules; platform admins only. Preview them first: what is removed cannot be restored.

    A kind that is not named follows the installation's rule. Only data of jobs that ended is removed, by a background
    task; the first rules act within minutes.
    """
    changed = services.retention_set(
        user=call.user, slug=t, rules=call.data["rules"], reason=call.data["reason"], if_match=call.if_match
    )
    return _shown(changed)


class PreviewRequest(StrictSerializer):
    rules = RulesRequest(required=False)


class ExemptSerializer(ReadSerializer):
    code = serializers.CharField()
    message = serializers.CharField()
    jobs = serializers.IntegerField()
    bytes = serializers.IntegerField()


class EffectSerializer(ReadSerializer):
    kind = serializers.ChoiceField([kind.value for kind in OF_TENANTS])
    rule = LimitsSerializer()
    jobs = serializers.IntegerField(help_text="that lose this kind of data")
    rows = serializers.IntegerField()
    unit = serializers.CharField(help_text="what rows counts: lines, points, checkpoints …")
    bytes = serializers.IntegerField(
        help_text="of metrics, events and audit about; of files that other jobs share, all"
    )
    oldest = TimestampField(allow_null=True, help_text="when the first affected job ended")
    newest = TimestampField(allow_null=True, help_text="when the last affected job ended")
    left_bytes = serializers.IntegerField(help_text="that stay")
    exempt = ExemptSerializer(many=True, help_text="what stays whatever the rule says, and why")


class PreviewSerializer(ReadSerializer):
    kinds = EffectSerializer(many=True)


@operation(
    authorize=permissions.for_admins,
    In=PreviewRequest,
    Out=PreviewSerializer,
    request_example={"rules": RULES_EXAMPLE},
    response_example={
        "kinds": [
            {
                "kind": "logs",
                "rule": {"days": 90, "bytes": None},
                "jobs": 12,
                "rows": 48210,
                "unit": "lines",
                "bytes": 1258291,
                "oldest": "2026-03-02T11:20:00.000Z",
                "newest": "2026-08-20T08:00:00.000Z",
                "left_bytes": 734003,
                "exempt": [
                    {
                        "code": "not_ended",
                        "message": "running, waiting and halted jobs keep everything",
                        "jobs": 3,
                        "bytes": 52428,
                    }
                ],
            }
        ]
    },
)
def retention_preview(call: Call, t: str) -> dict[str, Any]:
    """What these rules would remove now, of each kind; without rules, what the current ones will. Nothing is removed.

    Platform admins only.
    """
    given = call.data.get("rules")
    own = None if given is None else services.checked_rules(given)
    rules = services.effective_rules(call.found, own)
    return PreviewSerializer.render({"kinds": [_effect(each) for each in effects(call.found, rules)]})


def _effect(each: Effect) -> dict[str, Any]:
    limits = {"days": each.rule.days, "bytes": each.rule.bytes}
    names = ("kind", "jobs", "rows", "unit", "bytes", "oldest", "newest", "left_bytes", "exempt")
    return {name: getattr(each, name) for name in names} | {"rule": limits}


def _shown(tenant: Tenant) -> dict[str, Any]:
    own = services.own_rules(tenant)
    applies = [
        {"kind": kind, "days": rule.days, "bytes": rule.bytes, "source": _source(kind, own)}
        for kind, rule in services.effective_rules(tenant, own).items()
    ]
    rules = {kind.value: {"days": rule.days, "bytes": rule.bytes} for kind, rule in own.items()}
    return RetentionSerializer.render({"rules": rules, "applies": applies, "etag": services.etag(tenant)})


def _source(kind: Kind, own: dict[Kind, Any]) -> str:
    return "tenant" if kind in own else "installation"
