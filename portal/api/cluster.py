"""The cluster and what the installation offers; for everybody who is logged in."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.http import HttpResponse
from rest_framework import serializers

from jobs.selectors import cluster, installation, queue
from jobs.spec import json_schema
from portal.api import paging
from portal.api.fields import Short
from portal.api.operations import Call, operation
from portal.api.renderers import json_bytes


class PoolOut(serializers.Serializer[Any]):
    slot_type = serializers.CharField()
    nodes = serializers.IntegerField()
    slots = serializers.IntegerField()
    used = serializers.IntegerField()
    free = serializers.IntegerField()
    down = serializers.IntegerField()
    largest_free = serializers.IntegerField(
        help_text="most free slots on one node: what a learner may ask for now"
    )


class ClusterOut(serializers.Serializer[Any]):
    cluster = serializers.CharField(help_text="local, kubernetes or memory")
    pools = PoolOut(many=True)
    waiting = serializers.DictField(help_text="queued jobs by the type they ask for")


@operation(
    Out=ClusterOut,
    tell={
        "cluster": "kubernetes",
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
    """Slots of the cluster by type: in all, used, free and down, and how many jobs wait."""
    found = cluster.pools(cluster.nodes(call.user))
    return {
        "cluster": settings.LUTHIER_CLUSTER,
        "pools": [
            {
                "slot_type": pool.slot_type,
                "nodes": pool.nodes,
                "slots": pool.slots,
                "used": pool.used,
                "free": pool.free,
                "down": pool.down,
                "largest_free": pool.largest_free,
            }
            for pool in found
        ],
        "waiting": queue.waiting_by_type(),
    }


class OccupantOut(serializers.Serializer[Any]):
    job = serializers.CharField(allow_null=True, help_text="null: a job you may not see")
    name = serializers.CharField(allow_null=True)
    tenant = serializers.CharField(allow_null=True)
    slots = serializers.IntegerField()


class NodeOut(serializers.Serializer[Any]):
    name = serializers.CharField()
    slot_type = serializers.CharField()
    slots = serializers.IntegerField()
    used = serializers.IntegerField()
    free = serializers.IntegerField()
    ready = serializers.BooleanField()
    jobs = OccupantOut(many=True)


@operation(Out=NodeOut, Query=Short, many=True)
def node_list(call: Call) -> dict[str, Any]:
    """Every node with what runs on it. Jobs the caller may not see count, without their names."""
    return paging.whole(
        call,
        [
            {
                "name": node.name,
                "slot_type": node.slot_type,
                "slots": node.slots,
                "used": node.used,
                "free": node.free,
                "ready": node.ready,
                "jobs": [
                    {"job": each.job, "name": each.name, "tenant": each.tenant, "slots": each.slots}
                    for each in node.occupants
                ],
            }
            for node in cluster.nodes(call.user)
        ],
        keys=("name",),
    )


class RuntimeOut(serializers.Serializer[Any]):
    slug = serializers.CharField()
    title = serializers.CharField()
    description = serializers.CharField(allow_blank=True)
    image = serializers.CharField(allow_blank=True)


@operation(
    Out=RuntimeOut,
    Query=Short,
    many=True,
    tell={"slug": "sklearn", "title": "scikit-learn", "description": "", "image": ""},
)
def runtime_list(call: Call) -> dict[str, Any]:
    """The frameworks that a job may name."""
    return paging.whole(
        call,
        [
            {"slug": row.slug, "title": row.title, "description": row.description, "image": row.image}
            for row in installation.runtimes()
        ],
        keys=("slug",),
    )


class SchemaOut(serializers.Serializer[Any]):
    """JSON Schema, draft 2020-12."""


@operation(Out=SchemaOut)
def job_schema(call: Call) -> HttpResponse:
    """The JSON Schema of a job spec, for editors and checkers."""
    return HttpResponse(json_bytes(json_schema()), content_type="application/schema+json")
