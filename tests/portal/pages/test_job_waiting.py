"""The why-it-waits panel: start, ways to start sooner, the line; and that nothing of foreign jobs is in it."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from guardian.shortcuts import assign_perm

from gpu_scheduler.checks import check_of
from jobs.models import (
    ClusterNode,
    Estimate,
    Job,
    JobEvent,
    PeriodicTask,
    Runtime,
    SchedulerState,
    SchedulingLease,
)
from jobs.selectors import suggestions
from jobs.selectors.jobs import job_get
from jobs.selectors.queue_places import around
from jobs.selectors.serializers import JobSerializer
from jobs.selectors.suggestions import suggestions_for
from jobs.states import EventCode, Intent, State
from portal.pages.cells import detail
from portal.pages.job_waiting import hindsight
from portal.templatetags.ui import span
from tenants.models import Tenant, User
from tests import factories
from tests.markup import markup

pytestmark = pytest.mark.django_db


@pytest.fixture
def alice(lab: Tenant) -> User:
    """A researcher of a tenant with eight CPU slots, on a cluster of two nodes of four."""
    for name in ("node-a", "node-b"):
        ClusterNode.objects.create(name=name, slot_type="cpu", slots=4, ready=True)
    return factories.member(lab, "alice")


def waits(code: str = "INSUFFICIENT_CAPACITY", place: int = 1, **fields: Any) -> Job:
    check = check_of(code)
    scope = check.scope if check else None
    numbers = {"position": place, "nodes_ahead": place - 1, "slot_type": "cpu", "scope": scope}
    return factories.job(reason_code=code, reason_message="Waiting.", reason_numbers=numbers, **fields)


def expect(job: Job, low_min: float, high_min: float, **fields: Any) -> Estimate:
    now = timezone.now() + timedelta(seconds=5)
    low, high = now + timedelta(minutes=low_min), now + timedelta(minutes=high_min)
    shown = {"soonest": low, "latest": high, "first_soonest": low, "first_latest": high, "first_at": now}
    return Estimate.objects.create(job=job, tenant=job.tenant, **(shown | fields))


def page_of(user: User, job: Job) -> str:
    client = Client()
    client.force_login(user)
    answer = client.get(f"/t/{job.tenant.slug}/jobs/{job.pk}")
    assert answer.status_code == 200
    return markup(answer)


def test_the_panel_shows_the_start_its_source_and_the_last_check(alice: User) -> None:
    job = waits(owner=alice, place=3)
    expect(job, 25, 40, basis=["progress", "history"])
    PeriodicTask.objects.create(name="cycle", done_at=timezone.now())
    page = page_of(alice, job)
    for words in (
        "25–40 min",
        "Based on the progress of running jobs and past runs",
        "#3",
        "checked<time",
        "s ago",
    ):
        assert words in page


def test_nothing_is_foreseen_while_no_pass_completes(alice: User) -> None:
    job = waits(owner=alice)
    expect(job, 25, 40, basis=["progress", "history"])
    PeriodicTask.objects.create(name="cycle", done_at=timezone.now() - timedelta(minutes=40))
    page = page_of(alice, job)
    assert "No scheduling pass has completed for 40 min. Nothing starts now." in page
    assert "data-recheck" in page, "it is seen when passes complete again"
    PeriodicTask.objects.update(done_at=timezone.now())
    assert 'id="outdated"' not in page_of(alice, job), "an empty banner would take room"
    PeriodicTask.objects.update(done_at=timezone.now() - timedelta(minutes=40))
    Job.objects.update(reason_code="CLUSTER_BUSY")
    busy = page_of(alice, job)
    assert "No scheduling pass has completed" not in busy, "its reason says it"
    for each in (page, busy):
        assert "25–40 min" not in each
        assert "Based on the progress" not in each
    assert "40 min ago" in page


@pytest.mark.parametrize("page", ["", "jobs", "queue"])
def test_pages_of_waiting_jobs_say_that_no_pass_completes(page: str, alice: User) -> None:
    expect(waits(owner=alice), 25, 40)
    task = PeriodicTask.objects.create(name="cycle", done_at=timezone.now())
    client = Client()
    client.force_login(alice)
    said = "No scheduling pass has completed for 40 min. Nothing starts now."
    assert "25–40 min" in client.get(f"/t/vision-lab/{page}").content.decode()
    task.done_at -= timedelta(minutes=40)
    task.save()
    text = client.get(f"/t/vision-lab/{page}").content.decode()
    assert said in text
    assert page != "queue" or "25–40 min" not in text
    if page == "jobs":
        fresh = client.get("/t/vision-lab/jobs?rows=").content.decode()
        assert f"<tr hidden data-outdated><td>{said}</td></tr>" in fresh, "for lists that are open"
    else:
        assert "data-recheck" in text


@pytest.mark.parametrize("state", [State.DEPLOYING, State.STORING, State.STOPPING, State.PROCESSING])
def test_a_job_that_starts_or_ends_says_when_the_cluster_does_not_respond(state: State, alice: User) -> None:
    job = factories.job(owner=alice, state=state)
    PeriodicTask.objects.create(name="cycle", done_at=timezone.now() - timedelta(minutes=3))
    lease = SchedulingLease.objects.create(name="cycle", problem="a fault of the scheduler")
    assert "Until it responds" not in page_of(alice, job), "its processes do not need a pass"
    lease.problem = "the cluster did not respond: timed out"
    lease.save()
    page = page_of(alice, job)
    assert (" ago. Until it responds, processes of this job" in page) == (state != State.PROCESSING), (
        "what runs reports for itself"
    )


def test_without_an_estimate_the_panel_says_why(alice: User) -> None:
    job = waits(owner=alice)
    expect(job, 0, 0, soonest=None, latest=None, why_none="unknown_end")
    assert "No estimate. A running job that holds what it needs has no known end" in page_of(alice, job)


def test_a_job_that_backs_off_says_so_and_until_when(alice: User) -> None:
    until = timezone.now() + timedelta(minutes=4)
    job = waits("learner_failed", owner=alice, start_after=until)
    text = " ".join(re.sub(r"<[^>]*>", " ", page_of(alice, job).split('class="card why', 1)[1]).split())
    assert "Backing off" in text
    assert f"Retries at {until:%H:%M:%S} UTC" in text
    assert "No estimate" not in text
    Job.objects.update(start_after=timezone.now() - timedelta(seconds=1))
    assert "Backing off" not in page_of(alice, job), "the wait is over"


def test_the_place_in_the_tenant_is_said_once(alice: User) -> None:
    job = waits(owner=alice)
    shown = "".join(
        re.sub(r"<[^>]+>", "", page_of(alice, job).split('class="estimate"')[1].split("</div>")[0]).split()
    )
    assert shown.startswith(">Positioninthecpuqueue#1")
    expect(job, 25, 40)
    shown = "".join(
        re.sub(r"<[^>]+>", "", page_of(alice, job).split('class="estimate"')[1].split("</div>")[0]).split()
    )
    assert shown.startswith(">Startsin≈25–40min#1inthecpuqueue")


def test_a_row_says_place_start_and_reason(alice: User) -> None:
    job = waits(owner=alice, place=3)
    assert detail(JobSerializer.render(job_get(user=alice, job_id=job.pk))) == "#3 · Waiting."
    expect(job, 25, 40)
    assert detail(JobSerializer.render(job_get(user=alice, job_id=job.pk))) == "#3, ≈25–40 min · Waiting."


def test_afterwards_the_page_says_how_good_the_estimate_was(alice: User) -> None:
    job = factories.job(owner=alice, state=State.PROCESSING)
    shown = expect(job, 25, 40)
    assert hindsight(JobSerializer.render(job_get(user=alice, job_id=job.pk))) == ""
    assert shown.first_at
    Estimate.objects.update(started_at=shown.first_at + timedelta(minutes=31))
    assert "estimated 25–40 min, started 31 min later" in page_of(alice, job)


def test_the_reasons_are_listed_in_order_since_the_job_was_queued(alice: User) -> None:
    job = waits(owner=alice)
    Job.objects.filter(pk=job.pk).update(queued_at=timezone.now() - timedelta(hours=1))
    for n, (reason, minutes) in enumerate((("BEFORE", 90), ("QUOTA_GPUS", 30), ("GANG_FRAGMENTED", 5)), 2):
        at = timezone.now() - timedelta(minutes=minutes)
        JobEvent.objects.create(
            job=job, tenant=job.tenant, n=n, code=EventCode.WAITING, reason=reason, message="m", at=at
        )
    text = re.sub(r"<[^>]+>", "", page_of(alice, job))
    assert re.search(r"\d\d:\d\d over quota → \d\d:\d\d waiting for whole nodes", text)
    assert "BEFORE" not in text


def test_a_way_to_start_sooner_leads_to_a_clone_with_the_change(alice: User, lab: Tenant) -> None:
    factories.job(owner=alice, state=State.PROCESSING, slots=2, learners=1, time_limit_s=3600)
    job = waits(owner=alice, learners=2, slots=4)
    ways = {way.kind: way for way in suggestions_for(job)}
    assert (ways["learners"].value, ways["cpus"].value) == ("1", "2")
    page = page_of(alice, job)
    assert "Use 1 × 4 CPUs" in page
    assert "Starts in under 1 min." in page
    href = f"/t/vision-lab/jobs/new?from={job.pk}&amp;learners=1"
    assert href in page
    client = Client()
    client.force_login(alice)
    answer = client.get(href.replace("&amp;", "&"))
    assert "learners: 1" in answer.context["text"]
    assert "learners 1" in markup(answer)


def other_lab(slots: int = 8) -> Tenant:
    return factories.tenant("other-lab", quotas={"cpu": slots})


def test_as_many_learners_are_offered_as_fit_now(alice: User) -> None:
    factories.job(of=other_lab(), state=State.PROCESSING, slots=1)
    job = waits(owner=alice, learners=8, slots=1)
    [way] = suggestions_for(job)
    assert (way.kind, way.value) == ("learners", "7"), "and no half of it"


def test_of_the_learners_that_fit_those_are_offered_that_the_quota_has_left(alice: User) -> None:
    factories.job(owner=alice, state=State.PROCESSING, slots=3)
    job = waits("QUOTA_GPUS", owner=alice, learners=8, slots=1)
    assert {way.kind: way.value for way in suggestions_for(job)} == {"learners": "5"}


@pytest.fixture
def kept(alice: User) -> Job:
    """The job of another tenant that has waited for both nodes for an hour. One is half used for two hours more."""
    other = other_lab(16)
    factories.job(of=other, state=State.PROCESSING, slots=2, time_limit_s=7200)
    head = waits(of=other, learners=2, slots=4)
    since = timezone.now() - timedelta(hours=1)
    SchedulerState.objects.create(policy="fair_share", state={head.pk: since.isoformat()})
    return head


def test_a_time_limit_is_offered_with_which_it_ends_before_the_job_for_which_nodes_are_kept(
    alice: User, kept: Job
) -> None:
    job = waits("FAIR_SHARE", owner=alice, slots=4)
    [way] = suggestions_for(job)
    assert (way.kind, way.value, way.changes) == ("time_limit", "118m", {"time_limit": "118m"})
    assert way.estimate["from"] == way.estimate["to"]
    page = page_of(alice, job)
    assert "Use a time limit of 118m" in page
    assert "Starts in under 1 min. It then ends before the job can start for which devices are kept." in page
    client = Client()
    client.force_login(alice)
    href = f"/t/vision-lab/jobs/new?from={job.pk}&time_limit="
    answer = client.get(f"{href}118m")
    assert "time_limit: 118m" in answer.context["text"]
    assert "time limit 118m" in markup(answer)
    assert "time_limit" not in client.get(f"{href}1%0A").context["text"]
    Job.objects.filter(pk=kept.pk).update(state=State.HALTED, intent=Intent.HALT)
    assert suggestions_for(job) == []


@pytest.mark.parametrize(
    ("limit_h", "others_s", "ran_s", "offered"),
    [
        (3, None, 0, True),
        (1.9, None, 0, False),
        (3, 7000, 0, True),
        (3, 7100, 0, False),
        (4, 7000, 6000, True),
        (4, 7100, 6000, False),
    ],
)
@pytest.mark.parametrize("queue", [300, 1], ids=["a queue", "a longer queue than is run forward"])
def test_no_time_limit_is_offered_that_it_has_or_that_would_end_it_early(
    alice: User, kept: Job, monkeypatch: pytest.MonkeyPatch,
    queue: int, limit_h: float, others_s: int | None, ran_s: int, offered: bool,
) -> None:  # fmt: skip
    """Others like it took so long, each of them. What it ran itself, a clone has to run again."""
    monkeypatch.setattr(suggestions, "FORECAST_JOBS", queue)
    for _ in range(2) if others_s else ():
        factories.job(owner=alice, state=State.COMPLETED, running_s=others_s)
    job = waits("FAIR_SHARE", owner=alice, slots=4, time_limit_s=int(limit_h * 3600), running_s=ran_s)
    assert [way.kind for way in suggestions_for(job)] == ["time_limit"] * offered


def test_a_clone_counts_with_its_whole_time_limit(alice: User, kept: Job) -> None:
    """The job itself has ten minutes of it left, and would end in time with fewer learners."""
    job = waits(owner=alice, learners=8, slots=1, time_limit_s=36000, running_s=35400)
    assert suggestions_for(job) == []
    Job.objects.filter(pk=job.pk).update(time_limit_s=600, running_s=0)
    assert [way.value for way in suggestions_for(Job.objects.get(pk=job.pk))] == ["6"]


def test_a_looser_topology_is_offered_where_it_starts_sooner_and_leads_to_its_clone(alice: User) -> None:
    ClusterNode.objects.update(rack="r1", block="b1")
    ClusterNode.objects.filter(name="node-b").update(rack="r2")
    job = waits("TOPOLOGY_TOO_SMALL", owner=alice, learners=2, slots=3, topology="required rack")
    Job.objects.filter(pk=job.pk).update(spec=job.spec | {"topology": {"required": "rack"}})
    way = next(way for way in suggestions_for(job) if way.kind == "topology")
    assert (way.value, way.changes) == ("required block", {"topology": {"required": "block"}})
    page = page_of(alice, job)
    assert "Require one block" in page
    assert "pack, required rack" in page
    client = Client()
    client.force_login(alice)
    answer = client.get(f"/t/vision-lab/jobs/new?from={job.pk}&topology=required+block")
    assert "topology:\n  required: block" in answer.context["text"]
    assert "required topology block" in markup(answer)


def test_the_api_has_the_same_suggestions_with_the_change_for_a_clone(alice: User, carol: User) -> None:
    Runtime.objects.get_or_create(slug="sklearn", defaults={"title": "scikit-learn"})
    factories.job(owner=alice, state=State.PROCESSING, slots=2, learners=1, time_limit_s=3600)
    job = waits(owner=alice, learners=2, slots=4)
    client = Client()
    client.force_login(carol)  # who may read the job may read this, too
    answer = client.get(f"/api/v1/jobs/{job.pk}/suggestions").json()
    assert answer["next"] is None
    ways = {way["kind"]: way for way in answer["items"]}
    assert {kind: way["spec"] for kind, way in ways.items()} == {
        "learners": {"resources": {"learners": 1}},
        "cpus": {"resources": {"cpus": 2}},
    }
    assert ways["learners"]["value"] == "1"
    assert ways["learners"]["estimate"]["message"] == "Nothing ahead of it in the queue."
    client.force_login(alice)
    spec = ways["learners"]["spec"]
    made = client.post(f"/api/v1/jobs/{job.pk}/clone", {"spec": spec}, content_type="application/json")
    assert (made.status_code, made.json()["learners"]) == (202, 1)
    assert client.get(
        f"/api/v1/jobs/{factories.job(owner=alice, state=State.FAILED).pk}/suggestions"
    ).json() == {
        "items": [],
        "next": None,
    }


@pytest.mark.parametrize(
    ("kind", "value", "changes"),
    [
        ("gpus", "2", {"resources": {"gpus": 2}}),
        ("gpu_type", "a100", {"resources": {"gpu_type": "a100"}}),
        ("priority", "high", {"priority": "high"}),
        ("time_limit", "90m", {"time_limit": "90m"}),
        ("topology", "preferred rack", {"topology": {"preferred": "rack"}}),
    ],
)
def test_a_way_is_a_change_of_the_spec(kind: str, value: str, changes: dict[str, Any]) -> None:
    assert suggestions.Suggestion(kind, value, {}).changes == changes


def test_of_a_queue_too_long_to_see_only_a_start_at_once_is_offered(
    alice: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    factories.job(owner=alice, state=State.PROCESSING, slots=2, time_limit_s=3600)
    job = waits(owner=alice, learners=2, slots=4)
    assert {way.kind for way in suggestions_for(job)} == {"learners", "cpus"}
    for name in ("node-a", "node-b"):
        other = factories.tenant(f"other-{name}")
        for _ in range(3):
            factories.job(of=other, state=State.COMPLETED, running_s=50)
        filler = factories.job(of=other, state=State.PROCESSING, slots=2 if name == "node-a" else 4)
        filler.attempts.update(nodes=[name])
    Job.objects.filter(state=State.PROCESSING).exclude(owner=alice).update(time_limit_s=60)
    assert {way.kind for way in suggestions_for(job)} == {"learners", "cpus"}
    monkeypatch.setattr(suggestions, "FORECAST_JOBS", 1)
    assert suggestions_for(job) == []


def test_who_may_not_submit_is_offered_nothing(alice: User, carol: User) -> None:
    factories.job(owner=alice, state=State.PROCESSING, slots=2, learners=1, time_limit_s=3600)
    page = page_of(carol, waits(owner=alice, learners=2, slots=4))
    assert "resubmit with one change" not in page


def test_a_priority_is_offered_only_where_the_tenant_may_use_it(alice: User, lab: Tenant) -> None:
    other = factories.tenant("other-lab")
    factories.job(of=other, state=State.PROCESSING, learners=2, slots=4, time_limit_s=3600)
    for _ in range(3):
        waits(of=other, learners=2, slots=4, time_limit_s=3600)
    job = waits(owner=alice, learners=2, slots=4)
    Tenant.objects.filter(pk=lab.pk).update(priorities=["low", "normal"])
    job = Job.objects.get(pk=job.pk)
    assert "priority" not in {way.kind for way in suggestions_for(job)}
    Tenant.objects.filter(pk=lab.pk).update(priorities=["low", "normal", "high"])
    kinds = {way.kind: way.value for way in suggestions_for(Job.objects.get(pk=job.pk))}
    assert kinds.get("priority") in (None, "high")


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [
        (0, 59, "under 1 min"),
        (-5, 61, "0–1 min"),
        (8 * 60, 8.4 * 60, "8 min"),
        (24 * 60, 41 * 60, "25–40 min"),
        (79 * 60, 87 * 60, "80–85 min"),
        (80 * 60, 200 * 60, "1.5–3.5 h"),
        (30 * 3600, 100 * 3600, "1.5–4 d"),
    ],
)
def test_a_range_is_no_finer_than_anybody_could_know(low: float, high: float, words: str) -> None:
    assert span(low, high) == words


SECRET = "nightingale"


def foreign(lab: Tenant, n: int, **fields: Any) -> Job:
    owner = fields.pop("owner")
    return waits(of=lab, owner=owner, place=n, name=f"{SECRET}-{n}", slots=2, **fields)


def test_only_the_size_of_an_invisible_job_is_shown(alice: User) -> None:
    """Its id, name, tenant, owner and estimate stay out of page, REST and rows; a manager elsewhere is no exception."""
    other = factories.tenant(f"{SECRET}-lab")
    mallory = factories.member(other, f"{SECRET}-owner")
    foreigners = [foreign(other, n, owner=mallory) for n in (1, 2, 4)]
    running = factories.job(
        of=other, owner=mallory, name=f"{SECRET}-run", state=State.PROCESSING, time_limit_s=3600, slots=4
    )
    job = waits(owner=alice, place=3, learners=2, slots=4)
    expect(job, 25, 40, basis=["history"])
    for each in foreigners:
        expect(each, 7, 13)
    page = page_of(alice, job)
    assert page.count("Another tenant") == 3
    client = Client()
    client.force_login(alice)
    rest = markup(client.get(f"/api/v1/jobs/{job.pk}"))
    rows = markup(client.get("/t/vision-lab/jobs"))
    verdict = markup(
        client.post("/api/v1/tenants/vision-lab/jobs:validate", job.spec, content_type="application/json")
    )
    for text in (page, rest, rows, verdict):
        assert SECRET not in text
        assert "7–13 min" not in text
        for each in (*foreigners, running):
            assert each.pk not in text


def test_a_guest_of_one_job_sees_its_neighbors_as_a_stranger(alice: User, lab: Tenant) -> None:
    guest = factories.member(factories.tenant("elsewhere"), "guest")
    job = waits(owner=alice, place=2)
    waits(owner=alice, place=1, name=SECRET)
    assign_perm("jobs.view_job", guest, job)
    assert SECRET not in page_of(guest, job)
    assert SECRET in page_of(alice, job)


def test_a_job_that_waits_for_its_tenants_limits_is_in_the_tenants_queue(alice: User) -> None:
    other = factories.tenant("other-lab")
    waits("QUOTA_GPUS", 1, of=other)
    waits("QUOTA_GPUS", 1, owner=alice, name="first")
    job = waits("QUOTA_GPUS", 2, owner=alice)
    line = around(alice, job_get(user=alice, job_id=job.pk), timezone.now())
    assert [place.name for place in line] == ["first", "train"]


def test_the_panel_asks_the_same_however_long_the_queue_is(alice: User) -> None:
    factories.job(owner=alice, state=State.PROCESSING, slots=4, learners=2, time_limit_s=3600)
    job = waits(owner=alice, place=5, learners=2, slots=4)
    page_of(alice, job)
    counts = []
    for _ in range(2):
        with CaptureQueriesContext(connection) as queries:
            page_of(alice, job)
        counts.append(len(queries))
        for n in range(30):
            waits(owner=alice, place=n + 1, learners=2, slots=4)
    assert counts[0] == counts[1]
