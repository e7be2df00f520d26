"""Saved views of a tenant's list of jobs: the caller's own, and those that are shared there."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from jobs.selectors.jobs import ENDED_WITHIN
from jobs.serialization import ReadSerializer
from jobs.states import State
from portal.api import paging, permissions
from portal.api.fields import Follows, ShortListQuery, StrictBooleanField, StrictCharField, StrictSerializer
from portal.api.operations import Call, operation
from tenants.models import SavedView, User
from tenants.roles import Permission
from tenants.services import views

NAME = {"max_length": views.LONGEST_NAME, "validators": [Follows(views.name_problem)]}


def _text() -> StrictCharField:
    return StrictCharField(required=False, max_length=views.LONGEST_TEXT)


class FiltersRequest(StrictSerializer):
    """At least one; as in the address of the list. What is not there does not filter."""

    q = _text()
    state = serializers.ChoiceField(["active", *(state.value for state in State)], required=False)
    owner = StrictCharField(
        required=False, max_length=views.LONGEST_TEXT, help_text="me: the user who opens the view"
    )
    tag = _text()
    gpu_type = _text()
    project = _text()
    opportunistic = serializers.ChoiceField(["true", "false"], required=False)
    ended = serializers.ChoiceField(list(ENDED_WITHIN), required=False, help_text="within this time")


class ViewRequest(StrictSerializer):
    name = StrictCharField(**NAME)
    filters = FiltersRequest()
    shared = StrictBooleanField(default=False, help_text="with everyone in the tenant; managers only")


class ViewChangeRequest(StrictSerializer):
    name = StrictCharField(required=False, **NAME)
    filters = FiltersRequest(required=False, help_text="replaces all of them")
    shared = StrictBooleanField(required=False)
    is_default = StrictBooleanField(required=False)


class ViewSerializer(ReadSerializer):
    id = serializers.IntegerField(source="pk")
    name = serializers.CharField()
    filters = serializers.DictField(child=serializers.CharField())
    shared = serializers.BooleanField(help_text="everyone in the tenant sees it")
    owner = serializers.CharField(source="owner.username")
    is_default = serializers.BooleanField(help_text="whether your list of jobs opens with it")

    @staticmethod
    def get_is_default(row: SavedView, user: User) -> bool:
        return views.default_of(user, row.tenant) == views.key_of(row)


VIEW = {
    "id": 7,
    "name": "Nightly sweeps",
    "filters": {"state": "FAILED", "tag": "sweep", "ended": "24h"},
    "shared": False,
    "owner": "alice",
    "is_default": False,
}
REQUEST = {"name": "Nightly sweeps", "filters": VIEW["filters"]}


@operation(Out=ViewSerializer, Query=ShortListQuery, many=True, response_example=VIEW)
def view_list(call: Call, t: str) -> dict[str, Any]:
    """Your saved views of the tenant's list of jobs, and those that are shared there, oldest first."""
    rows = views.views_of(call.user, permissions.tenant(call, t)).select_related("tenant")
    return paging.whole(call, [ViewSerializer.render(row, call.user) for row in rows], keys=("id",))


@operation(
    authorize=permissions.into_tenant(Permission.VIEW),
    In=ViewRequest,
    Out=ViewSerializer,
    status=201,
    request_example=REQUEST,
    response_example=VIEW,
    fails=(409,),
)
def view_create(call: Call, t: str) -> dict[str, Any]:
    """Save filters of the list of jobs under a name; for everyone in the tenant, if shared, by a manager."""
    row = views.view_create(
        user=call.user,
        tenant=call.found,
        name=call.data["name"],
        filters=call.data["filters"],
        shared=call.data["shared"],
    )
    return ViewSerializer.render(row, call.user)


@operation(
    authorize=permissions.into_tenant(Permission.VIEW),
    In=ViewChangeRequest,
    Out=ViewSerializer,
    request_example={"name": "Sweeps", "is_default": True},
    response_example=VIEW | {"name": "Sweeps", "is_default": True},
    fails=(409,),
)
def view_change(call: Call, t: str, view_id: int) -> dict[str, Any]:
    """Rename a view, replace its filters, share it or stop that, or open your list of jobs with it. A shared one is
    changed by managers; anyone may open their list with it."""
    data = dict(call.data)
    chosen = data.pop("is_default", None)
    row = views.views_of(call.user, call.found).filter(pk=view_id).first()
    if row is None or data:
        row = views.view_change(user=call.user, tenant=call.found, view_id=view_id, **data)
    key = views.key_of(row)
    if chosen:
        views.default_set(user=call.user, tenant=call.found, key=key)
    elif chosen is False and views.default_of(call.user, call.found) == key:
        views.default_set(user=call.user, tenant=call.found, key="")
    return ViewSerializer.render(row, call.user)


@operation(authorize=permissions.into_tenant(Permission.VIEW), status=204)
def view_delete(call: Call, t: str, view_id: int) -> None:
    """Delete a view: your own, or a shared one, by a manager."""
    views.view_delete(user=call.user, tenant=call.found, view_id=view_id)
