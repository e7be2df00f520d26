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
    used = serializers.IntegerField(help_text="by jobs of this installation")
    opportunistic = serializers.IntegerField(help_text="the part of used that opportunistic jobs hold")
    others = serializers.IntegerField(help_text="held by programs outside Luthier")
    free = serializers.IntegerField()
    down = serializers.IntegerField(help_text="unused, on nodes that are not ready or cordoned")
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
                "opportunistic": 4,
                "others": 0,
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
    opportunistic = serializers.BooleanField(help_text="it leaves when another job can start there")


class ResourceUseSerializer(ReadSerializer):
    total = serializers.FloatField()
    used = serializers.FloatField(help_text="by learners, each with its shipper")
    others = serializers.FloatField(help_text="held by programs outside Luthier")
    free = serializers.FloatField()


class AvoidSerializer(ReadSerializer):
    until = serializers.DateTimeField(
        help_text="before that, learners go there only if they fit on no others"
    )
    reason = serializers.CharField()


class NodeSerializer(ReadSerializer):
    name = serializers.CharField()
    slot_type = serializers.CharField()
    rack = serializers.CharField(allow_blank=True, help_text="empty: not known")
    block = serializers.CharField(allow_blank=True, help_text="several racks; empty: not known")
    slots = serializers.IntegerField()
    used = serializers.IntegerField()
    others = serializers.IntegerField(help_text="slots held by programs outside Luthier")
    free = serializers.IntegerField()
    cpus = ResourceUseSerializer(
        allow_null=True, help_text="CPUs beside GPUs; null: not known, so not limited, or its slots are CPUs"
    )
    memory_mib = ResourceUseSerializer(
        source="memory", allow_null=True, help_text="null: not known, or not divided among learners"
    )
    ready = serializers.BooleanField()
    cordoned = serializers.BooleanField(help_text="takes no new learners")
    unhealthy = serializers.IntegerField(
        help_text="devices beside the slots that the node has but cannot use"
    )
    why = serializers.CharField(
        allow_blank=True, help_text="what keeps learners away, as far as the cluster says"
    )
    avoid = AvoidSerializer(allow_null=True, help_text="it failed a gang; null: it did not, or long ago")
    jobs = OccupantSerializer(many=True, source="occupants")


@operation(
    Out=NodeSerializer,
    Query=ShortListQuery,
    many=True,
    response_example={
        "name": "node-7",
        "slot_type": "a100",
        "rack": "rack-2",
        "block": "block-a",
        "slots": 8,
        "used": 4,
        "others": 0,
        "free": 4,
        "cpus": {"total": 64, "used": 32, "others": 0.5, "free": 31.5},
        "memory_mib": {"total": 515_000, "used": 262_400, "others": 900, "free": 251_700},
        "ready": True,
        "cordoned": False,
        "unhealthy": 0,
        "why": "",
        "avoid": None,
        "jobs": [
            {
                "job": "3f9k2m7qx4ta",
                "name": "mnist",
                "tenant": "vision",
                "slots": 4,
                "opportunistic": False,
            }
        ],
    },
)
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
