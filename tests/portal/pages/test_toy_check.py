"""A new admission rule takes one Check, its entry in the catalog and its code: here a toy rule appears in the plan, in
REST, on the job's page, in the overview and, redacted, for guests, without a change to any of them."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import pytest
from django.test import Client

from gpu_scheduler import checks, cycle
from gpu_scheduler.checks import Check, Finding, Meter, Remedy, Scope, Supply
from gpu_scheduler.model import Gang
from gpu_scheduler.policies.base import Policy
from jobs.lifecycle.plan_effects import explain
from jobs.models import ClusterNode, Job
from jobs.selectors.nodes import scheduler_nodes
from jobs.selectors.snapshot import snapshot
from jobs.services.sharing import SharePermission, job_share
from tenants.models import Tenant, User
from tests import factories
from tests.markup import markup

pytestmark = pytest.mark.django_db


class ToyReason(StrEnum):
    MAINTENANCE = "MAINTENANCE"


class Maintenance(Check):
    """No job starts during maintenance that takes longer than the window."""

    code = ToyReason.MAINTENANCE  # type: ignore[assignment]  # a real rule adds its code to WaitReason
    key = "maintenance"
    title = "Maintenance window"
    claim = "The job ends before the maintenance"
    label = "waiting for the maintenance"
    remedy = Remedy.ASK
    scope = Scope.CLUSTER
    private = frozenset({"limit"})
    redacted = "Waiting for a maintenance."

    def test(self, gang: Gang, supply: Supply) -> Finding | None:
        return Finding(self, gang, supply, self.scope)

    def sentence(self, finding: Finding) -> str:
        return "Maintenance begins in 41 minutes; an administrator can postpone it."

    def meter(self, numbers: dict[str, Any]) -> Meter | None:
        return Meter(41, 60, 30)

    def meter_text(self, *, used: int, limit: int, asked: int) -> str:
        return f"{used} of {limit} minutes, this job takes {asked}"


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> Check:
    """The rule in the catalog, after all others."""
    added = Maintenance()
    catalog = (*checks.CHECKS, added)
    monkeypatch.setattr(checks, "CHECKS", catalog)
    monkeypatch.setattr(Policy, "checks", catalog)
    monkeypatch.setitem(checks._BY_CODE, added.code.value, added)
    monkeypatch.setitem(checks._BY_KEY, added.key, added)
    return added


@pytest.fixture
def job(lab: Tenant, toy: Check) -> Job:
    """A job that only the toy rule keeps from starting, explained as a scheduling cycle does it."""
    ClusterNode.objects.create(name="node-a", slot_type="cpu", slots=4, ready=True)
    made = factories.job(owner=factories.member(lab, "alice"), name="held")
    planned = cycle.plan(snapshot(nodes=scheduler_nodes(), now=made.created_at))
    assert [wait.code for wait in planned.waits] == [toy.code]
    explain(planned.waits)
    return Job.objects.get(pk=made.pk)


def browser(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


def test_a_toy_check_is_in_rest(job: Job, toy: Check) -> None:
    reason = browser(job.owner).get(f"/api/v1/jobs/{job.pk}").json()["reason"]
    assert reason["code"] == toy.code
    assert reason["message"].startswith("Maintenance begins in 41 minutes")
    assert (reason["title"], reason["actor"]) == (toy.title, "ask")
    assert reason["meter"] == {"used": 41, "limit": 60, "asked": 30}
    events = browser(job.owner).get(f"/api/v1/jobs/{job.pk}/events").json()["items"]
    assert events[-1]["reason"]["title"] == toy.title


def test_a_toy_check_is_on_the_pages(job: Job, toy: Check, admin: User) -> None:
    address = f"/t/{job.tenant.slug}/jobs/{job.pk}"
    page = markup(browser(job.owner).get(address))
    panel = page.partition('class="card why ask"')[2].partition("</section>")[0]
    for text in ("Maintenance begins in 41 minutes", "Ask a platform admin", toy.title, "41 of 60 minutes"):
        assert text in panel
    assert "#user-cog" in markup(browser(job.owner).get(f"{address}/events"))
    assert "held" in markup(browser(job.owner).get(f"/t/{job.tenant.slug}/")), "it needs attention"
    console = browser(admin).get("/admin-console/").context["waiting"]
    assert [(row["why"], row["acts"]) for row in console] == [(toy.label, "admin")]


def test_a_toy_check_is_redacted_for_guests(job: Job, toy: Check) -> None:
    guest = factories.member(factories.tenant("elsewhere"), "guest")
    job_share(user=job.owner, job_id=job.pk, username="guest", permission=SharePermission.VIEW)
    reason = browser(guest).get(f"/api/v1/jobs/{job.pk}").json()["reason"]
    assert (reason["message"], reason["meter"]) == (toy.redacted, None)
    assert (
        "41"
        not in markup(browser(guest).get(f"/t/{job.tenant.slug}/jobs/{job.pk}")).partition("why ask")[2][
            :3000
        ]
    )


def test_every_check_says_all_that_readers_need() -> None:
    for check in checks.CHECKS:
        assert all((check.title, check.claim, check.label, check.key)), check.code
        assert checks.check_of(check.code.value) is check
        assert checks.check_named(check.key) is check
        assert not check.private or check.redacted, "an outsider needs a sentence without the numbers"
