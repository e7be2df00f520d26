"""Every item carries an etag; a stale If-Match is refused with the present one, also when many come at once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.db import connections

from jobs.models import ClusterNode
from jobs.states import State
from tests import factories
from tests.jobs.conftest import People
from tests.portal.api.conftest import Api

TENANT = "/tenants/vision-lab"


def test_items_of_every_list_that_can_be_changed_or_fetched_carry_an_etag(dave: Api, people: People) -> None:
    job = factories.job(owner=people.alice, state=State.COMPLETED)
    factories.checkpoint(job)
    dave.post(f"{TENANT}/service-accounts", {"name": "nightly"})
    dave.post(f"{TENANT}/service-accounts/nightly/tokens", {"name": "ci"})
    for path in (
        "/tenants",
        "/jobs",
        "/me/tokens",
        f"{TENANT}/members",
        f"{TENANT}/quotas",
        f"{TENANT}/service-accounts",
        f"{TENANT}/service-accounts/nightly/tokens",
        f"/jobs/{job.pk}/checkpoints",
    ):
        items = dave.get(path).json()["items"]
        assert items, path
        assert all(item["etag"].startswith('"') and item["etag"].endswith('"') for item in items), path


def test_one_item_has_its_etag_as_a_header(dave: Api, people: People) -> None:
    job = factories.job(owner=people.alice, state=State.COMPLETED)
    saved = factories.checkpoint(job)
    for path in (TENANT, f"/jobs/{job.pk}", f"/jobs/{job.pk}/checkpoints/{saved.n}"):
        answer = dave.get(path)
        assert answer["ETag"] == answer.json()["etag"], path
    made = dave.post("/me/tokens", {"name": "x"})
    assert made["ETag"] == made.json()["etag"]


def test_a_member_s_role_changes_only_from_the_one_that_was_seen(dave: Api, people: People) -> None:
    seen = dave.post(f"{TENANT}/members", {"username": "bob", "role": "viewer"}).json()["etag"]
    path = f"{TENANT}/members/bob"
    changed = dave.patch(path, {"role": "researcher"}, If_Match=seen)
    stale = dave.patch(path, {"role": "manager"}, If_Match=seen)
    assert (changed.status_code, stale.status_code) == (200, 412)
    assert stale["ETag"] == changed["ETag"] != seen
    assert dave.patch(path, {"role": "manager"}, If_Match="*").status_code == 200
    assert dave.patch(f"{TENANT}/members/no-such-user", {"role": "viewer"}, If_Match=seen).status_code == 404


def test_if_match_may_list_several_etags_and_a_weak_one_is_none_of_them(
    dave: Api, admin: Api, people: People
) -> None:
    ClusterNode.objects.create(name="node-a", cluster="memory", slot_type="cpu", slots=64)
    job = factories.job(owner=people.alice, state=State.COMPLETED)
    limit = {"limit": 9, "reason": "more"}
    changes = {
        f"/jobs/{job.pk}": lambda path, tags: dave.patch(path, {"name": "later"}, If_Match=tags),
        f"{TENANT}/members/carol": lambda path, tags: dave.patch(path, {"role": "manager"}, If_Match=tags),
        TENANT: lambda path, tags: admin.patch(path, {"name": "Vision", "reason": "x"}, If_Match=tags),
        f"{TENANT}/quotas/cpu": lambda path, tags: admin.put(path, limit, If_Match=tags),
    }
    for path, change in changes.items():
        now = change(path, '"x", "y"')
        assert now.status_code == 412, path
        present = now["ETag"]
        for stale in (f"W/{present}", f'"x",W/{present}', present.strip('"'), ""):
            assert change(path, stale).status_code == 412, (path, stale)
        assert change(path, f'"x" , {present}').status_code == 200, path


def at_once(calls: list[Any]) -> list[int]:
    """The statuses of calls made in threads of their own."""

    def one(call: Any) -> int:
        try:
            return int(call().status_code)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(one, calls))


@pytest.mark.django_db(transaction=True)
def test_of_many_changes_with_one_if_match_exactly_one_wins(dave: Api, admin: Api, people: People) -> None:
    ClusterNode.objects.create(name="node-a", cluster="memory", slot_type="cpu", slots=64)
    job = factories.job(owner=people.alice, state=State.PROCESSING)
    etag = dave.get(f"/jobs/{job.pk}").json()["etag"]
    member = next(m for m in dave.get(f"{TENANT}/members").json()["items"] if m["username"] == "carol")
    races = {
        "job": [
            lambda n=n: dave.patch(f"/jobs/{job.pk}", {"name": f"n{n}"}, If_Match=etag) for n in range(6)
        ],
        "member": [
            lambda role=role: dave.patch(f"{TENANT}/members/carol", {"role": role}, If_Match=member["etag"])
            for role in ("researcher", "manager") * 3
        ],
        "limit": [
            lambda n=n: admin.put(
                f"{TENANT}/quotas/cpu", {"limit": n, "reason": "race"}, If_Match='"limit-8"'
            )
            for n in range(20, 26)
        ],
    }
    for what, calls in races.items():
        assert sorted(at_once(calls)) == [200] + [412] * 5, what


@pytest.mark.django_db(transaction=True)
def test_of_many_who_create_the_same_name_exactly_one_does(dave: Api, admin: Api, people: People) -> None:
    tenant = {"slug": "speech", "name": "Speech", "reason": "race"}
    races = {
        "tenant": lambda: admin.post("/tenants", tenant),
        "account": lambda: dave.post(f"{TENANT}/service-accounts", {"name": "nightly"}),
        "member": lambda: dave.post(f"{TENANT}/members", {"username": "bob", "role": "viewer"}),
    }
    for what, call in races.items():
        assert sorted(at_once([call] * 6)) == [201] + [409] * 5, what
