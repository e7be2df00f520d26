"""A tenant's queue, and suggestions for a waiting job: clones with one change that would start sooner."""

from __future__ import annotations

from typing import Any

from django.utils import timezone
from rest_framework import serializers

from jobs.selectors import queue_places
from jobs.selectors.serializers import EstimateSerializer
from jobs.selectors.suggestions import KINDS, suggestions_for
from jobs.serialization import ReadSerializer
from portal.api import paging, permissions
from portal.api.fields import PagedQuery, ShortListQuery, StrictCharField
from portal.api.operations import Call, operation


class QueueQuery(PagedQuery):
    gpu_type = StrictCharField(
        required=False, max_length=40, help_text='a slot type ("cpu" for CPU jobs); default: all, one by one'
    )


class QueueEntrySerializer(ReadSerializer):
    position = serializers.IntegerField(
        source="place",
        allow_null=True,
        help_text="1 = next to start; null: it keeps no place, as it cannot start without a change",
    )
    id = serializers.CharField(
        source="job", allow_null=True, help_text="null: a job of another tenant, which is counted, not named"
    )
    name = serializers.CharField(allow_null=True)
    owner = serializers.CharField(allow_null=True)
    priority = serializers.CharField(allow_null=True)
    opportunistic = serializers.BooleanField(allow_null=True)
    gpu_type = serializers.CharField(source="slot_type")
    asks = serializers.IntegerField(help_text="slots of all learners together")
    code = serializers.CharField(allow_null=True, help_text="the code of what it waits for")
    waits_for = serializers.CharField(allow_null=True, help_text="the same sentence as the job's reason")
    starts = EstimateSerializer(source="estimate", allow_null=True)


@operation(
    Out=QueueEntrySerializer,
    Query=QueueQuery,
    many=True,
    response_example={
        "position": 2,
        "id": "3f9k2m7qx4ta",
        "name": "mnist-cnn",
        "owner": "alice",
        "priority": "normal",
        "opportunistic": False,
        "gpu_type": "a100",
        "asks": 4,
        "code": "INSUFFICIENT_CAPACITY",
        "waits_for": "Waiting for capacity: 2 of 16 a100 GPUs free, this job needs 4.",
        "starts": None,
    },
)
def queue_list(call: Call, t: str) -> dict[str, Any]:
    """Waiting jobs in the order of the next plan: the tenant's own, and those of other tenants ahead or behind, which
    are counted and not named. A job's position here is the `position` in its reason's numbers."""
    tenant = permissions.tenant(call, t)
    line = queue_places.places(tenant, call.query.get("gpu_type", ""))
    keys = [
        {"gpu_type": one.slot_type, "position": one.place, "id": one.job if one.own else None, "of": one}
        for one in line
    ]
    page = paging.whole(call, keys, keys=("gpu_type", "position", "id"))
    shown = queue_places.entries(call.user, tenant, [one["of"] for one in page["items"]], timezone.now())
    return page | {"items": [QueueEntrySerializer.render(one) for one in shown]}


class SuggestionSerializer(ReadSerializer):
    kind = serializers.ChoiceField(KINDS, help_text="what is changed")
    value = serializers.CharField(help_text="to what")
    spec = serializers.DictField(
        source="changes", help_text="the change, to be sent as `spec` to POST /jobs/{id}/clone"
    )
    estimate = EstimateSerializer(help_text="when that clone would start if it took this job's place")


@operation(
    Out=SuggestionSerializer,
    Query=ShortListQuery,
    many=True,
    response_example={
        "kind": "learners",
        "value": "2",
        "spec": {"resources": {"learners": 2}},
        "estimate": {
            "from": "2026-11-21T09:00:00.000Z",
            "to": "2026-11-21T09:00:00.000Z",
            "basis": [],
            "message": "Nothing ahead of it in the queue.",
            "at": "2026-11-21T09:00:00.000Z",
            "first": None,
            "started_at": None,
        },
    },
)
def suggestion_list(call: Call, job_id: str) -> dict[str, Any]:
    """Ways to start a waiting job sooner: clones with one change, each tried out now; the one that starts first leads.

    Empty for a job that does not wait, and where no change helps.
    """
    ways = suggestions_for(permissions.job(call, job_id))
    return paging.whole(call, [SuggestionSerializer.render(way) for way in ways], keys=("kind", "value"))
