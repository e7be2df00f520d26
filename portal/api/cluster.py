"""The cluster and what this installation offers; for every authenticated user."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.http import HttpResponse
from rest_framework import serializers

from jobs.selectors import cluster, queue
from jobs.serialization import ReadSerializer, json_bytes
from jobs.spec import json_schema
from portal.api import paging
from portal.api.fields import ShortListQuery
from portal.api.operations import Call, operation


class PoolSerializer(ReadSerializer):
    slot_type = serializers.CharField()
    nodes = serializers.IntegerField()
    slots = serializers.IntegerField()
    used = serializers.IntegerField()
    free = serializers.IntegerField()
    down = serializers.IntegerField()
    largest_free = serializers.IntegerField(
        help_text="most free slots on one node: the most a learner can have now"
    )


class ClusterSerializer(ReadSerializer):
    cluster = serializers.CharField(help_text="local or memory")
    pools = PoolSerializer(many=True)
    waiting = serializers.DictField(help_text="number of queued jobs by the type they request")


@operation(
    Out=ClusterSerializer,
    response_example={
        "cluster": "local",
        "pools": [
            {
                "slot_type": "a100",
                "nodes": 4,
                "slots": 32,
                "used": 20,
                "free": 8,
                "down": 4,
                "largest_free": 4,
            }
        ],
        "waiting": {"a100": 3},
    },
)
def cluster_read(call: Call) -> dict[str, Any]:
    """The cluster's slots by type: total, used, free and down, and the number of waiting jobs."""
    return ClusterSerializer.render(
        {
            "cluster": settings.LUTHIER_CLUSTER,
            "pools": cluster.pools(cluster.nodes(call.user)),
            "waiting": queue.waiting_by_type(),
        }
    )


class OccupantSerializer(ReadSerializer):
    job = serializers.CharField(allow_null=True, help_text="null: a job that is not visible to you")
    name = serializers.CharField(allow_null=True)
    tenant = serializers.CharField(allow_null=True)
    slots = serializers.IntegerField()


class NodeSerializer(ReadSerializer):
    name = serializers.CharField()
    slot_type = serializers.CharField()
    slots = serializers.IntegerField()
    used = serializers.IntegerField()
    free = serializers.IntegerField()
    ready = serializers.BooleanField()
    jobs = OccupantSerializer(many=True, source="occupants")


@operation(Out=NodeSerializer, Query=ShortListQuery, many=True)
def node_list(call: Call) -> dict[str, Any]:
    """Every node and the jobs on it. Jobs that the caller cannot see are included without their names."""
    nodes = [NodeSerializer.render(node) for node in cluster.nodes(call.user)]
    return paging.whole(call, nodes, keys=("name",))


class JobSchemaSerializer(ReadSerializer):
    """JSON Schema, draft 2020-12."""


@operation(Out=JobSchemaSerializer)
def job_schema(call: Call) -> HttpResponse:
    """The JSON Schema of a job spec, for editors and validators."""
    return HttpResponse(json_bytes(json_schema()), content_type="application/schema+json")
