"""A new REST resource takes one serializer, one operation and one path; JSON and schema follow from the serializer."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest
from django.test import Client, override_settings
from django.urls import path
from drf_spectacular.generators import SchemaGenerator
from rest_framework import serializers

from jobs.serialization import ReadSerializer, TimestampField
from portal.api import paging
from portal.api.fields import ShortListQuery
from portal.api.operations import Call, operation, resource
from tests import factories


@dataclass(frozen=True)
class Rack:
    name: str
    row: int
    checked_at: datetime
    inspector: Any = None


class RackSerializer(ReadSerializer):
    name = serializers.CharField()
    in_ = serializers.IntegerField(source="row", help_text="row of the room")
    checked_at = TimestampField()
    inspector = serializers.CharField(allow_null=True, source="inspector.name")
    label = serializers.CharField()
    note = serializers.CharField(required=False)

    @staticmethod
    def get_label(rack: Rack, context: object) -> str:
        return f"{rack.row}-{rack.name}"

    @staticmethod
    def get_note(rack: Rack, context: object) -> str | None:
        return "new" if rack.row == 2 else None


AT = datetime(2026, 11, 21, 9, 0, 2, 500, tzinfo=UTC)
RACKS = [Rack("a", 1, AT), Rack("b", 2, AT)]


@operation(Out=RackSerializer, Query=ShortListQuery, many=True)
def rack_list(call: Call) -> dict[str, Any]:
    """Every rack."""
    return paging.whole(call, [RackSerializer.render(rack) for rack in RACKS], keys=("name",))


urlpatterns = [path("api/v1/racks", resource(get=rack_list))]


@pytest.mark.django_db
@override_settings(ROOT_URLCONF=__name__)
def test_a_resource_answers_with_the_fields_of_its_serializer(client: Client) -> None:
    client.force_login(factories.user("alice"))
    items = client.get("/api/v1/racks").json()["items"]
    assert items[0] == {
        "name": "a",
        "in": 1,
        "checked_at": "2026-11-21T09:00:02.000Z",
        "inspector": None,
        "label": "1-a",
    }
    assert items[1]["note"] == "new"


def test_the_openapi_document_describes_the_same_fields() -> None:
    document = SchemaGenerator(urlconf=__name__).get_schema(request=None, public=True)
    described = document["components"]["schemas"]["Rack"]
    assert list(described["properties"]) == ["name", "in", "checked_at", "inspector", "label", "note"]
    assert described["properties"]["checked_at"]["format"] == "date-time"
    assert set(described["required"]) == {"name", "in", "checked_at", "inspector", "label"}
