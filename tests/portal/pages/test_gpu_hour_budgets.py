"""GPU-hour budgets on pages: what is used and when it turns, who is warned, and how an admin sets one."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from django.utils import timezone

from gpu_scheduler.cycle import plan
from jobs.lifecycle.facts import Order, Reason
from jobs.lifecycle.plan_effects import explain
from jobs.lifecycle.stopping import ending, ordered
from jobs.models import Attempt, ClusterNode, JobEvent, UsageDay
from jobs.selectors.budgets import month_of
from jobs.selectors.what_if import current
from jobs.services.sharing import SharePermission, job_share
from jobs.states import EventCode, Intent, State, StopReason
from portal.pages import job_events
from portal.pages.admin.terms import described
from tenants.models import Tenant, User
from tests import factories
from tests.jobs.lifecycle.observations import seen
from tests.markup import markup
from tests.portal.pages.conftest import SignIn

pytestmark = pytest.mark.django_db


@pytest.fixture
def member(lab: Tenant) -> User:
    return factories.member(lab, "mia", password=factories.PASSWORD)


def used(lab: Tenant, owner: User, hours: float, *, of: float, hard: bool = True) -> None:
    Tenant.objects.filter(pk=lab.pk).update(budget_gpu_hours=of, budget_is_hard=hard)
    factories.job(of=lab, owner=owner)
    UsageDay.objects.create(
        tenant=lab, owner=owner, day=month_of(timezone.now())[0].date(), slot_type="a100", used=hours * 3600,
        waited=0, lost=0,
    )  # fmt: skip


def words(text: str) -> str:
    return " ".join(text.split())


def test_the_usage_page_shows_the_budget_and_when_it_turns(
    lab: Tenant, member: User, signed_in: SignIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = signed_in(member)
    assert "GPU-hour budget" not in markup(client.get("/t/vision-lab/usage"))
    used(lab, member, 30, of=100)
    start, end = month_of(timezone.now())
    monkeypatch.setattr("jobs.selectors.budgets.timezone.now", lambda: start + timedelta(days=3))
    page = words(markup(client.get("/t/vision-lab/usage")))
    assert "GPU-hour budget: 30 of 100 used" in page, "the meter has a text"
    assert "30<small>of 100 GPU-hours</small>" in page.replace("30 <", "30<")
    assert f"Projection: {10 * (end - start).days} GPU-hours by month end if it continues as it was" in page
    assert f"used up about {(start + timedelta(days=10)).day} " in page
    assert f'<td class="num">1 {start:%b}</td><td class="number num">30.0</td>' in page, "of the chart"
    assert f"A new month begins on {end.day} {end:%b}, 00:00 UTC" in page
    monkeypatch.setattr("jobs.selectors.budgets.timezone.now", lambda: start + timedelta(hours=3))
    assert "Projection: not known before the month is a day old" in words(
        markup(client.get("/t/vision-lab/usage"))
    )


@pytest.mark.parametrize(
    ("hours", "hard", "shown"),
    [
        (79.9, True, ""),
        (80, True, "80% used: 80 of 100 GPU-hours"),
        (100, False, "Used up: 100 of 100 GPU-hours"),
        (101, True, "No GPU job starts before"),
        (99.999, True, "99% used: 99.9 of 100 GPU-hours"),
    ],
)
def test_the_overview_warns_from_80_percent(
    lab: Tenant, member: User, root: User, signed_in: SignIn, hours: float, hard: bool, shown: str
) -> None:
    used(lab, member, hours, of=100, hard=hard)
    page = words(markup(signed_in(member).get("/t/vision-lab/"))).replace("<b>", "").replace("</b>", "")
    assert (shown in page) if shown else ("GPU-hour budget" not in page)
    assert ("No GPU job starts before" in page) == (hard and hours > 100)
    console = words(markup(signed_in(root).get("/admin-console/")))
    assert ("GPU-hour budgets, 80% used or more" in console) == bool(shown)


def test_other_tenants_see_none_of_it(lab: Tenant, member: User, signed_in: SignIn) -> None:
    other = factories.tenant("nlp-research", quotas={"cpu": 8})
    used(lab, member, 100, of=100)
    bob = factories.member(other, "bob", password=factories.PASSWORD)
    client = signed_in(bob)
    for path in ("/t/nlp-research/", "/t/nlp-research/usage"):
        assert "GPU-hour budget" not in markup(client.get(path))
    assert client.get("/t/vision-lab/usage").status_code == 404


def test_an_admin_sets_one_in_the_quota_matrix_and_sees_it_on_the_tenant(
    lab: Tenant, member: User, root: User, signed_in: SignIn
) -> None:
    ClusterNode.objects.create(name="node-a", cluster="memory", slot_type="cpu", slots=16)
    client = signed_in(root)
    draft = {
        "term:vision-lab::budget_gpu_hours": "1250.5",
        "was:vision-lab::budget_gpu_hours": "",
        "term:vision-lab::budget_is_hard": "soft",
        "was:vision-lab::budget_is_hard": "hard",
    }
    wrong = draft | {"term:vision-lab::budget_gpu_hours": "1e3", "term:vision-lab::budget_is_hard": "firm"}
    answer = client.post("/admin-console/quotas", wrong | {"action": "review"})
    assert answer.status_code == 422
    assert (
        "'1e3' is no number of hours" in answer.context["review"].terms["vision-lab", "", "budget_gpu_hours"]
    )
    assert "neither hard nor soft" in answer.context["review"].terms["vision-lab", "", "budget_is_hard"]
    made = client.post("/admin-console/quotas", draft | {"action": "apply", "reason": "Grant"}, follow=True)
    assert "GPU-hours a month" in markup(made)
    lab.refresh_from_db()
    assert (lab.budget_gpu_hours, lab.budget_is_hard) == (1250.5, False)
    page = markup(client.get("/admin-console/quotas"))
    assert "GPU-hours a month: 1250.5" in page
    assert "Budget is: soft" in page
    tenant = words(markup(client.get("/admin-console/tenants/vision-lab")))
    assert "of 1,250.5 GPU-hours" in tenant
    history = lab.quota_changes.latest("pk")
    assert history.terms == {"budget_gpu_hours": [None, 1250.5], "budget_is_hard": [True, False]}
    undone = client.get(f"/admin-console/quotas?revert={history.change_set}")
    assert {(term.name, term.value) for term in undone.context["matrix"].term_changes} == {
        ("budget_gpu_hours", None),
        ("budget_is_hard", True),
    }


def test_the_page_of_a_held_job_says_why_and_a_guest_reads_none_of_the_numbers(
    lab: Tenant, member: User, signed_in: SignIn
) -> None:
    ClusterNode.objects.create(name="gpu-a", cluster="memory", slot_type="a100", slots=8)
    factories.quota(lab, "a100", 8)
    used(lab, member, 100, of=100)
    job = factories.job(of=lab, owner=member, slots=2, gpus=2, gpu_type="a100")
    explain([wait for wait in plan(current()).waits if wait.job == job.pk])
    path = f"/t/vision-lab/jobs/{job.pk}"
    page = words(markup(signed_in(member).get(path)))
    assert "GPU-hour budget is used up: 100 of 100 GPU-hours of this month are used." in page
    assert f"{month_of(timezone.now())[1]:%Y-%m-%d} 00:00 UTC" in page
    assert "Ask a platform admin" in page
    assert "100 of 100 GPU-hours of this month used" in page
    bob = factories.member(factories.tenant("nlp-research"), "bob", password=factories.PASSWORD)
    job_share(user=member, job_id=job.pk, username="bob", permission=SharePermission.VIEW)
    page = words(markup(signed_in(bob).get(path)))
    assert "Waiting: its tenant can start no GPU job now." in page
    assert "100 of 100" not in page


def test_a_guest_finds_nothing_of_the_budget_in_what_was_stopped(
    lab: Tenant, member: User, signed_in: SignIn
) -> None:
    """Nor in what is stored where a halt or a time limit came with the stop."""
    job = factories.job(of=lab, owner=member, state=State.HALTED)
    stored = [ordered(Order(StopReason.BUDGET_EXHAUSTED), seen(State.STOPPING))]
    for intent, left_s in ((Intent.HALT, None), (Intent.RUN, 0.0)):
        stopped = seen(
            State.STOPPING, gone=True, stop_reason="budget_exhausted", intent=intent, time_left_s=left_s
        )
        stored.append(ending(replace(stopped, reason=Reason("budget_exhausted", stored[0]))).reason.message)
    assert len(set(stored)) == 3
    assert not any("budget" in message.lower() for message in stored)
    JobEvent.objects.create(
        job=job, tenant=lab, n=50, code=EventCode.MOVED, to_state="STOPPING", reason="budget_exhausted",
        message=stored[0], numbers={}, source="scheduler", attempt=1,
    )  # fmt: skip
    assert "budget" not in job_events.outcome(Attempt(outcome="budget_exhausted")).lower()
    guest = factories.member(factories.tenant("nlp-research"), "bob", password=factories.PASSWORD)
    assert [len(job_events.newest(user, job, sought="budget")) for user in (member, guest)] == [1, 0]
    assert "GPU-hour budget was used up" in job_events.newest(member, job)[0].message
    assert "GPU-hour" not in job_events.newest(guest, job)[0].message


def test_a_term_of_a_later_version_breaks_no_page() -> None:
    assert described({"later_term": (None, 5)}) == [("later_term", "", "5")]


def test_a_budget_of_none_is_no_lasting_warning_and_names_no_month(
    lab: Tenant, member: User, signed_in: SignIn
) -> None:
    used(lab, member, 0, of=0)
    client = signed_in(member)
    assert "GPU-hour budget" not in markup(client.get("/t/vision-lab/"))
    page = words(markup(client.get("/t/vision-lab/usage")))
    assert "No GPU job starts unless a platform admin raises it" in page
    assert "used up" not in page
