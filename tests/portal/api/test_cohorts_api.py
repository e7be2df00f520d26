"""Cohorts by REST: who lends, who borrows, on which terms, and what a change of them does."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from jobs.models import Attempt, ClusterNode
from jobs.states import State
from tenants.models import Quota, QuotaChange, Tenant
from tests import factories
from tests.jobs.conftest import People
from tests.portal.api.conftest import Api

QUOTAS = "/tenants/vision-lab/quotas"


@pytest.fixture(autouse=True)
def cluster(people: People) -> None:
    """16 CPU slots; both tenants have a limit of 8."""
    for name in ("node-a", "node-b"):
        ClusterNode.objects.create(name=name, cluster="memory", slot_type="cpu", slots=8)


def join(admin: Api, *tenants: str, cohort: str = "research") -> None:
    for tenant in tenants:
        made = admin.patch(f"/tenants/{tenant}", {"cohort": cohort, "reason": "One grant"})
        assert (made.status_code, made.json()["cohort"]) == (200, cohort)


def quota(api: Api) -> dict[str, Any]:
    found: dict[str, Any] = api.get(QUOTAS).json()["items"][0]
    return found


def test_without_a_cohort_nothing_is_borrowed_or_lent(alice: Api, people: People) -> None:
    Quota.objects.filter(tenant=people.vision).update(limit=2, used=2)
    Quota.objects.filter(tenant=people.vision).update(limit=1)
    row = quota(alice)
    assert (row["cohort"], row["borrowed"], row["lent"]) == ("", 0, 0)


def test_a_quota_shows_what_it_borrows_and_what_it_lends(admin: Api, alice: Api, people: People) -> None:
    other = Tenant.objects.exclude(pk=people.vision.pk).get()
    join(admin, people.vision.slug, other.slug)
    factories.job(owner=people.alice, state=State.PROCESSING, slots=8)
    factories.job(owner=people.alice, state=State.PROCESSING, slots=3)
    row = quota(alice)
    assert (row["limit"], row["used"], row["borrowed"], row["lent"]) == (8, 11, 3, 0)
    lender = admin.get(f"/tenants/{other.slug}/quotas").json()["items"][0]
    assert (lender["used"], lender["borrowed"], lender["lent"]) == (0, 0, 3)


def test_terms_are_set_with_the_limit_and_leave_a_line_of_history(admin: Api, alice: Api) -> None:
    sent = {"limit": 8, "reason": "r", "borrowing_limit": 4, "lending_limit": 0, "weight": 2}
    made = admin.put(f"{QUOTAS}/cpu", sent).json()
    assert {name: made[name] for name in ("borrowing_limit", "lending_limit", "weight")} == {
        "borrowing_limit": 4,
        "lending_limit": 0,
        "weight": 2,
    }
    line = alice.get("/tenants/vision-lab/quota-changes").json()["items"][0]
    assert line["terms"] == {"borrowing_limit": [None, 4], "lending_limit": [None, 0], "weight": [1, 2]}
    assert (line["old_limit"], line["new_limit"]) == (8, 8)
    admin.put(f"{QUOTAS}/cpu", {"limit": 8, "reason": "r", "borrowing_limit": None})
    row = quota(alice)
    assert (row["borrowing_limit"], row["lending_limit"], row["weight"]) == (None, 0, 2), "the others stay"
    count = QuotaChange.objects.count()
    admin.put(f"{QUOTAS}/cpu", {"limit": 8, "reason": "r", "weight": 2})
    assert QuotaChange.objects.count() == count, "nothing changed"


def test_a_limit_of_nothing_with_terms_is_a_tenant_that_only_borrows(admin: Api, people: People) -> None:
    Quota.objects.filter(tenant=people.vision).delete()
    made = admin.put(f"{QUOTAS}/cpu", {"limit": 0, "reason": "r", "borrowing_limit": 4}).json()
    assert (made["limit"], made["borrowing_limit"]) == (0, 4)


@pytest.mark.parametrize(
    ("wrong", "path"),
    [
        ({"weight": 0}, "weight"),
        ({"weight": None}, "weight"),
        ({"borrowing_limit": -1}, "borrowing_limit"),
        ({"lending_limit": "4"}, "lending_limit"),
    ],
)
def test_wrong_terms_are_named(admin: Api, wrong: dict[str, object], path: str) -> None:
    answer = admin.put(f"{QUOTAS}/cpu", {"limit": 8, "reason": "r", **wrong})
    assert answer.status_code in (400, 422)
    assert [error["path"] for error in answer.json()["errors"]] == [path]


def test_a_cohort_has_a_name_for_urls(admin: Api) -> None:
    answer = admin.patch("/tenants/vision-lab", {"cohort": "No such name", "reason": "r"})
    assert (answer.status_code, answer.json()["errors"][0]["path"]) == (400, "cohort")


def test_a_dry_run_shows_what_would_start_on_borrowed_slots(admin: Api, people: People) -> None:
    other = Tenant.objects.exclude(pk=people.vision.pk).get()
    join(admin, people.vision.slug, other.slug)
    admin.put(f"{QUOTAS}/cpu", {"limit": 8, "reason": "r", "borrowing_limit": 0})
    factories.job(owner=people.alice, state=State.PROCESSING, slots=8)
    waiting = factories.job(owner=people.alice, slots=4)
    change = {"tenant": "vision-lab", "gpu_type": "cpu", "limit": 8, "borrowing_limit": 4}
    made = admin.post("/quota-changes", {"changes": [change], "reason": "r", "dry_run": True}).json()
    assert [job["job"] for job in made["effects"]["starts"]] == [waiting.pk]
    assert made["changes"][0]["terms"] == {"borrowing_limit": [0, 4]}
    assert quota(admin)["borrowing_limit"] == 0


def test_a_set_that_ends_a_loan_shows_who_is_stopped(admin: Api, people: People) -> None:
    """vision borrowed what the other tenant lends, which has a job that waits; with a larger limit it takes it back."""
    other = Tenant.objects.exclude(pk=people.vision.pk).get()
    join(admin, people.vision.slug, other.slug)
    Quota.objects.filter(tenant=other).update(limit=2)
    Quota.objects.filter(tenant=people.vision).update(limit=8)
    run = factories.job(owner=people.alice, state=State.PROCESSING, slots=8)
    borrower = factories.job(owner=people.alice, state=State.PROCESSING, slots=2)
    Attempt.objects.filter(job=run).update(opened_at=timezone.now() - timedelta(hours=2))
    Attempt.objects.filter(job=borrower).update(
        opened_at=timezone.now() - timedelta(hours=1), nodes=["node-b"]
    )
    waiting = factories.job(of=other, slots=8)
    change = {"tenant": other.slug, "gpu_type": "cpu", "limit": 8}
    made = admin.post("/quota-changes", {"changes": [change], "reason": "r", "dry_run": True}).json()
    assert [job["job"] for job in made["effects"]["stops"]] == [borrower.pk]
    assert made["effects"]["starts"] == []
    assert waiting.pk not in {job["job"] for job in made["effects"]["waits"]}
