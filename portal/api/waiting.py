"""Suggestions for a waiting job: clones with one change that would start sooner."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from jobs.selectors.serializers import EstimateSerializer
from jobs.selectors.suggestions import KINDS, suggestions_for
from jobs.serialization import ReadSerializer
from portal.api import paging, permissions
from portal.api.fields import ShortListQuery
from portal.api.operations import Call, operation


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
