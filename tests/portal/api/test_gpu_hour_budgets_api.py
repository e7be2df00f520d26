"""GPU-hour budgets by REST: set with a line of history, shown with what is used, and named before a submission."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from jobs.models import ClusterNode, Runtime, UsageDay
from jobs.selectors.budgets import month_of
from portal.api.examples import SPEC
from tenants.models import AuditEntry, Tenant
from tests import factories
from tests.jobs.conftest import People
from tests.portal.api.conftest import Api

USAGE = "/tenants/vision-lab/usage"


@pytest.fixture(autouse=True)
def cluster(people: People) -> None:
    ClusterNode.objects.create(name="gpu-a", cluster="memory", slot_type="a100", slots=8)
    Runtime.objects.create(slug="sklearn", title="scikit-learn")
    factories.quota(people.vision, "a100", 8)


def use(people: People, hours: float) -> None:
    UsageDay.objects.create(
        tenant=people.vision,
        owner=people.alice,
        day=month_of(timezone.now())[0].date(),
        slot_type="a100",
        used=hours * 3600,
        waited=0,
        lost=0,
    )


def changes(**terms: Any) -> dict[str, Any]:
    return {"changes": [{"tenant": "vision-lab", "gpu_type": "", **terms}], "reason": "Second quarter"}


def test_a_budget_is_set_with_a_line_of_history_and_undone(admin: Api, alice: Api, people: People) -> None:
    made = admin.post("/quota-changes", changes(budget_gpu_hours=12.5, budget_is_hard=False)).json()
    assert made["changes"][0]["terms"] == {"budget_gpu_hours": [None, 12.5], "budget_is_hard": [True, False]}
    shown = alice.get("/tenants/vision-lab").json()
    assert (shown["budget_gpu_hours"], shown["budget_is_hard"]) == (12.5, False)
    line = alice.get("/tenants/vision-lab/quota-changes").json()["items"][0]
    assert (line["terms"], line["actor"]) == (made["changes"][0]["terms"], "admin")
    entry = AuditEntry.objects.filter(action="tenant.change").latest("pk")
    assert entry.details["budget_gpu_hours"] == {"from": None, "to": 12.5}
    etag = shown["etag"]
    sent = {"budget_gpu_hours": None, "budget_is_hard": True, "reason": "r"}
    assert admin.patch("/tenants/vision-lab", sent, If_Match=etag).status_code == 200
    people.vision.refresh_from_db()
    assert (people.vision.budget_gpu_hours, people.vision.budget_is_hard) == (None, True)
    assert admin.patch("/tenants/vision-lab", sent, If_Match=etag).status_code == 412


def test_a_patched_budget_wakes_a_pass_and_is_shown(
    admin: Api, people: People, monkeypatch: pytest.MonkeyPatch, django_capture_on_commit_callbacks: Any
) -> None:
    woken, shown = [], []
    monkeypatch.setattr("jobs.wake.cycle", lambda: woken.append(True))
    monkeypatch.setattr("jobs.pubsub.quotas_changed", shown.append)
    for sent, due in (({"budget_gpu_hours": 5}, 1), ({"budget_is_hard": False}, 2), ({"name": "Seeing"}, 2)):
        etag = admin.get("/tenants/vision-lab").json()["etag"]
        with django_capture_on_commit_callbacks(execute=True):
            answer = admin.patch("/tenants/vision-lab", sent | {"reason": "r"}, If_Match=etag)
        assert answer.status_code == 200
        assert (len(woken), shown) == (due, [people.vision.pk] * due)


def test_a_tenant_that_is_created_with_a_budget_has_it_in_its_history(admin: Api) -> None:
    sent = {
        "slug": "speech",
        "name": "Speech",
        "reason": "New",
        "budget_gpu_hours": 7,
        "budget_is_hard": True,
    }
    assert admin.post("/tenants", sent).status_code == 201
    (line,) = admin.get("/tenants/speech/quota-changes").json()["items"]
    assert line["terms"] == {"budget_gpu_hours": [None, 7]}
    entry = AuditEntry.objects.filter(action="tenant.create").latest("pk")
    assert entry.details["budget_gpu_hours"] == 7


def test_all_that_is_wrong_is_named_at_once(admin: Api, alice: Api, people: People) -> None:
    answer = admin.post("/quota-changes", changes(budget_gpu_hours=-1, budget_is_hard="yes", jobs_limit=-1))
    assert answer.status_code == 400
    assert sorted(error["path"] for error in answer.json()["errors"]) == [
        "changes[0].budget_gpu_hours",
        "changes[0].budget_is_hard",
        "changes[0].jobs_limit",
    ]
    for wrong in ("5", True, 1e18, 10**400):
        answer = admin.post("/quota-changes", changes(budget_gpu_hours=wrong))
        assert answer.status_code == 400
        assert [error["path"] for error in answer.json()["errors"]] == ["changes[0].budget_gpu_hours"]
    of_type = {"tenant": "vision-lab", "gpu_type": "a100", "limit": 8, "budget_gpu_hours": 5}
    answer = admin.post("/quota-changes", {"changes": [of_type], "reason": "r"})
    assert [error["code"] for error in answer.json()["errors"]] == ["wrong_scope"]
    assert alice.post("/quota-changes", changes(budget_gpu_hours=9)).status_code == 403
    people.vision.refresh_from_db()
    assert people.vision.budget_gpu_hours is None


def test_members_see_what_is_used_and_others_nothing(
    alice: Api, bob: Api, people: People, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert alice.get(USAGE).json()["budget"] is None
    Tenant.objects.filter(pk=people.vision.pk).update(budget_gpu_hours=100)
    use(people, 30)
    start, end = month_of(timezone.now())
    found = alice.get(USAGE).json()["budget"]
    assert found | {"projected_gpu_hours": None} == {
        "gpu_hours": 100,
        "used_gpu_hours": 30,
        "is_hard": True,
        "period_start": start.strftime("%Y-%m-%dT%H:%M:%S.000Z"),
        "period_end": end.strftime("%Y-%m-%dT%H:%M:%S.000Z"),
        "projected_gpu_hours": None,
    }
    monkeypatch.setattr("jobs.selectors.budgets.timezone.now", lambda: start + timedelta(days=5))
    days = (end - start).days
    assert alice.get(USAGE).json()["budget"]["projected_gpu_hours"] == pytest.approx(30 * days / 5)
    monkeypatch.setattr("jobs.selectors.budgets.timezone.now", lambda: start + timedelta(hours=5))
    assert alice.get(USAGE).json()["budget"]["projected_gpu_hours"] is None
    assert bob.get(USAGE).status_code == 404
    assert bob.get("/tenants/vision-lab").status_code == 404


def test_before_a_submission_it_is_said_that_the_job_would_wait(alice: Api, people: People) -> None:
    Tenant.objects.filter(pk=people.vision.pk).update(budget_gpu_hours=10)
    use(people, 10)
    spec = SPEC | {"resources": {"learners": 1, "gpus": 1, "gpu_type": "a100"}}
    answer = alice.post("/tenants/vision-lab/jobs:validate", spec).json()
    (budget,) = [check for check in answer["checks"] if check["name"] == "budget"]
    assert budget["result"] == "waits"
    assert budget["message"].startswith("The tenant's GPU-hour budget is used up: 10 of 10 GPU-hours")
    assert alice.post("/tenants/vision-lab/jobs", spec).status_code == 201, "it waits, as with any limit"


def test_a_dry_run_shows_what_a_budget_would_stop_and_hold(admin: Api, people: People) -> None:
    use(people, 10)
    waiting = factories.job(owner=people.alice, of=people.vision, slots=1, gpus=1, gpu_type="a100")
    dry = admin.post("/quota-changes", changes(budget_gpu_hours=5) | {"dry_run": True}).json()["effects"]
    assert [job["job"] for job in dry["waits"]] == [waiting.pk]
    soft = changes(budget_gpu_hours=5, budget_is_hard=False) | {"dry_run": True}
    assert admin.post("/quota-changes", soft).json()["effects"]["waits"] == []
    admin.post("/quota-changes", changes(budget_gpu_hours=5))
    back = admin.post("/quota-changes", changes(budget_gpu_hours=20) | {"dry_run": True}).json()["effects"]
    assert [job["job"] for job in back["starts"]] == [waiting.pk]
