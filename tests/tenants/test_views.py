"""Saved views: whose they are, who may change them, how many there can be, and what the audit log says."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest
from django.db import connection

from tenants.errors import FieldsInvalid, NameTaken, NotAllowed, NotFound
from tenants.models import AuditEntry, SavedView, Tenant, Token, User
from tenants.roles import Role
from tenants.services import views
from tests import factories

pytestmark = pytest.mark.django_db
FAILED = {"state": "FAILED"}


@pytest.fixture
def lab() -> Tenant:
    return factories.tenant("vision-lab")


@pytest.fixture
def alice(lab: Tenant) -> User:
    return factories.member(lab, "alice")


@pytest.fixture
def carol(lab: Tenant) -> User:
    return factories.member(lab, "carol", Role.VIEWER)


@pytest.fixture
def dave(lab: Tenant) -> User:
    return factories.member(lab, "dave", Role.MANAGER)


def names(user: User, tenant: Tenant) -> list[str]:
    return [row.name for row in views.views_of(user, tenant)]


def test_a_view_is_its_owner_s_until_a_manager_shares_one(
    lab: Tenant, alice: User, carol: User, dave: User
) -> None:
    views.view_create(user=alice, tenant=lab, name="Mine", filters=FAILED)
    views.view_create(user=dave, tenant=lab, name="Ours", filters=FAILED, shared=True)
    assert names(alice, lab) == ["Mine", "Ours"]
    assert names(carol, lab) == ["Ours"]


def test_views_of_one_tenant_are_not_those_of_another(lab: Tenant, alice: User, dave: User) -> None:
    other = factories.tenant("nlp-research")
    other.memberships.create(user=alice, role=Role.RESEARCHER)
    shared = views.view_create(user=dave, tenant=lab, name="Ours", filters=FAILED, shared=True)
    assert names(alice, other) == []
    for stranger, where in ((factories.user("eve"), lab), (alice, other)):
        with pytest.raises(NotFound):
            views.view_delete(user=stranger, tenant=where, view_id=shared.pk)
    with pytest.raises(NotFound):
        views.views_of(dave, other)


def test_of_a_shared_view_only_those_who_may_share_change_anything(
    lab: Tenant, alice: User, dave: User
) -> None:
    shared = views.view_create(user=dave, tenant=lab, name="Ours", filters=FAILED, shared=True)
    own = views.view_create(user=alice, tenant=lab, name="Mine", filters=FAILED)
    with pytest.raises(NotAllowed):
        views.view_change(user=alice, tenant=lab, view_id=shared.pk, name="Theirs")
    with pytest.raises(NotAllowed):
        views.view_delete(user=alice, tenant=lab, view_id=shared.pk)
    with pytest.raises(NotAllowed):
        views.view_change(user=alice, tenant=lab, view_id=own.pk, shared=True)
    with pytest.raises(NotAllowed):
        views.view_create(user=alice, tenant=lab, name="Other", filters=FAILED, shared=True)
    with pytest.raises(NotFound):  # a manager does not see what others keep for themselves
        views.view_change(user=dave, tenant=lab, view_id=own.pk, name="Theirs")


def test_each_change_of_a_shared_view_is_in_the_audit_log_and_of_an_own_one_none(
    lab: Tenant, alice: User, dave: User
) -> None:
    own = views.view_create(user=alice, tenant=lab, name="Mine", filters=FAILED)
    views.view_change(user=alice, tenant=lab, view_id=own.pk, name="My own")
    views.view_delete(user=alice, tenant=lab, view_id=own.pk)
    assert not AuditEntry.objects.exists()

    row = views.view_create(user=dave, tenant=lab, name="Ours", filters=FAILED, shared=True)
    views.view_change(user=dave, tenant=lab, view_id=row.pk, name="All", filters={"tag": "sweep"})
    views.view_change(user=dave, tenant=lab, view_id=row.pk, shared=False)
    views.view_change(user=dave, tenant=lab, view_id=row.pk, shared=True)
    views.view_delete(user=dave, tenant=lab, view_id=row.pk)
    said = list(AuditEntry.objects.order_by("pk").values_list("action", "target", "actor__username"))
    assert [action for action, _, _ in said] == [
        "view.share", "view.change", "view.unshare", "view.share", "view.delete",
    ]  # fmt: skip
    assert {(target, actor) for _, target, actor in said[1:]} == {("All", "dave")}
    assert AuditEntry.objects.get(action="view.change").details == {
        "name": {"from": "Ours", "to": "All"},
        "filters": {"from": FAILED, "to": {"tag": "sweep"}},
    }


def test_there_are_so_many_own_and_so_many_shared_ones(
    lab: Tenant, alice: User, dave: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(views, "MOST_OWN", 2)
    monkeypatch.setattr(views, "MOST_SHARED", 1)
    for name in ("a", "b"):
        views.view_create(user=alice, tenant=lab, name=name, filters=FAILED)
    with pytest.raises(FieldsInvalid) as refused:
        views.view_create(user=alice, tenant=lab, name="c", filters=FAILED)
    assert [each["code"] for each in refused.value.details["errors"]] == ["too_many"]
    views.view_create(user=dave, tenant=lab, name="a", filters=FAILED, shared=True)
    own = views.view_create(user=dave, tenant=lab, name="b", filters=FAILED)
    with pytest.raises(FieldsInvalid):
        views.view_change(user=dave, tenant=lab, view_id=own.pk, shared=True)


@pytest.mark.parametrize(
    ("name", "filters", "wrong"),
    [
        ("", FAILED, "name"),
        ("x" * 41, FAILED, "name"),
        ("a\tb", FAILED, "name"),
        ("a", {}, "filters"),
        ("a", {"secret": "x"}, "filters.secret"),
        ("a", {"q": "x" * 121}, "filters.q"),
        ("a", {"q": " "}, "filters.q"),
    ],
)
def test_what_is_no_view_is_refused(
    lab: Tenant, alice: User, name: str, filters: dict[str, str], wrong: str
) -> None:
    with pytest.raises(FieldsInvalid) as refused:
        views.view_create(user=alice, tenant=lab, name=name, filters=filters)
    assert [each["path"] for each in refused.value.details["errors"]] == [wrong]
    assert not SavedView.objects.exists()


def test_a_name_is_taken_once_among_those_of_a_user_and_among_the_shared_ones(
    lab: Tenant, alice: User, dave: User
) -> None:
    views.view_create(user=alice, tenant=lab, name="Failed", filters=FAILED)
    views.view_create(user=dave, tenant=lab, name="Failed", filters=FAILED)
    other = views.view_create(user=alice, tenant=lab, name="Other", filters=FAILED)
    with pytest.raises(NameTaken):
        views.view_create(user=alice, tenant=lab, name=" Failed ", filters=FAILED)
    with pytest.raises(NameTaken):
        views.view_change(user=alice, tenant=lab, view_id=other.pk, name="Failed")

    views.view_create(user=dave, tenant=lab, name="Failed", filters=FAILED, shared=True)
    erin = factories.member(lab, "erin", Role.MANAGER)
    with pytest.raises(NameTaken):
        views.view_create(user=erin, tenant=lab, name="Failed", filters=FAILED, shared=True)
    own = views.view_create(user=erin, tenant=lab, name="Failed", filters=FAILED)
    with pytest.raises(NameTaken):
        views.view_change(user=erin, tenant=lab, view_id=own.pk, shared=True)


def test_what_another_manager_does_says_nothing_of_an_owner_s_own_views(lab: Tenant, dave: User) -> None:
    erin = factories.member(lab, "erin", Role.MANAGER)
    views.view_create(user=dave, tenant=lab, name="Private", filters={"tag": "secret"})
    shared = views.view_create(user=dave, tenant=lab, name="Ours", filters=FAILED, shared=True)
    views.view_change(user=erin, tenant=lab, view_id=shared.pk, name="Private")
    views.view_change(user=erin, tenant=lab, view_id=shared.pk, shared=False)
    assert names(dave, lab) == ["Private", "Private"]
    with pytest.raises(NameTaken):  # their owner keeps them apart
        views.view_create(user=dave, tenant=lab, name="Private", filters=FAILED)


def test_who_stops_sharing_the_view_of_another_changes_nothing_else(lab: Tenant, dave: User) -> None:
    erin = factories.member(lab, "erin", Role.MANAGER)
    row = views.view_create(user=dave, tenant=lab, name="Ours", filters=FAILED, shared=True)
    changes: tuple[dict[str, Any], ...] = ({"name": "Theirs"}, {"filters": {"tag": "x"}})
    for change in changes:
        with pytest.raises(NotAllowed):
            views.view_change(user=erin, tenant=lab, view_id=row.pk, shared=False, **change)
    row.refresh_from_db()
    assert (row.name, row.filters, row.shared) == ("Ours", FAILED, True)
    same = {"name": "Ours", "filters": FAILED}
    views.view_change(user=erin, tenant=lab, view_id=row.pk, shared=False, **same)
    entry = AuditEntry.objects.get(action="view.unshare")
    assert (entry.target, entry.actor, entry.details) == ("Ours", erin, {"filters": FAILED})


def test_an_owner_who_stops_sharing_and_changes_a_view_is_recorded_with_what_was_shared(
    lab: Tenant, dave: User
) -> None:
    row = views.view_create(user=dave, tenant=lab, name="Ours", filters=FAILED, shared=True)
    views.view_change(
        user=dave, tenant=lab, view_id=row.pk, shared=False, name="Mine", filters={"tag": "secret"}
    )
    entry = AuditEntry.objects.get(action="view.unshare")
    assert entry.target == "Ours"
    assert entry.details == {"filters": FAILED, "changed": ["filters", "name"]}


def test_a_token_that_can_only_read_saves_nothing(lab: Tenant, alice: User) -> None:
    alice.token, _ = Token.objects.create(user=alice, name="reads", role_ceiling=Role.VIEWER)
    with pytest.raises(NotAllowed):
        views.view_create(user=alice, tenant=lab, name="Failed", filters=FAILED)
    with pytest.raises(NotAllowed):
        views.default_set(user=alice, tenant=lab, key="mine")


def test_the_default_is_each_user_s_in_each_tenant(lab: Tenant, alice: User, dave: User) -> None:
    other = factories.tenant("nlp-research")
    other.memberships.create(user=alice, role=Role.RESEARCHER)
    views.default_set(user=alice, tenant=lab, key="mine")
    views.default_set(user=alice, tenant=other, key="failed")
    alice.refresh_from_db()
    found = [views.default_of(*one) for one in ((alice, lab), (alice, other), (dave, lab))]
    assert found == ["mine", "failed", ""]
    views.default_set(user=alice, tenant=lab, key="")
    assert views.default_of(alice, lab) == ""


def test_the_migration_gives_shared_views_of_one_name_names_of_their_own(lab: Tenant, dave: User) -> None:
    with connection.cursor() as cursor:
        cursor.execute("DROP INDEX shared_view_name_once")
    erin = factories.member(lab, "erin", Role.MANAGER)
    name = "x" * views.LONGEST_NAME
    first, second = (
        SavedView.objects.create(tenant=lab, owner=owner, name=name, filters=FAILED, shared=True)
        for owner in (dave, erin)
    )
    own = SavedView.objects.create(tenant=lab, owner=erin, name=name, filters=FAILED)
    with connection.cursor() as cursor:
        cursor.execute(import_module("tenants.migrations.0026_view_names").RENAME)
    assert [SavedView.objects.get(pk=row.pk).name for row in (first, second, own)] == [
        name,
        f"{name[:20]} {second.pk}",
        name,
    ]
