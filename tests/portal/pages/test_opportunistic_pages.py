"""What pages say of opportunistic jobs: which they are, why they wait and were stopped, what they hold."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone
from guardian.shortcuts import assign_perm

from gpu_scheduler.model import StartReason, WaitReason
from jobs.models import Attempt, ClusterNode, Job, JobEvent, NodeChange, Runtime
from jobs.selectors.jobs import job_get
from jobs.selectors.serializers import JobSerializer
from jobs.selectors.suggestions import Suggestion
from jobs.selectors.usage import held_by, quotas_of
from jobs.selectors.wait_reasons import label_of
from jobs.spec import to_yaml
from jobs.states import EventCode, State
from portal.pages.job_waiting import WAIT, kind_of, offer
from tenants.models import Tenant, User
from tests import factories
from tests.markup import markup
from tests.portal.pages.conftest import SignIn

pytestmark = pytest.mark.django_db
SPEC = to_yaml(factories.spec(name="sweep", framework="plain", opportunistic=True))


@pytest.fixture
def browser(client: Client, alice: User) -> Client:
    Runtime.objects.create(slug="plain", title="Python alone")
    client.force_login(alice)
    return client


def runs(owner: User, *, slots: int = 2, hours: float = 1, **fields: Any) -> Job:
    """An opportunistic job that holds CPUs of node-a since some hours, and nothing of its tenant's quota."""
    job = factories.job(owner=owner, slots=slots, opportunistic=True, **fields)
    Attempt.objects.create(
        job=job, tenant=job.tenant, n=1, cluster="memory", slot_type="cpu", slots=slots, learners=1,
        nodes=["node-a"], opportunistic=True, opened_at=timezone.now() - timedelta(hours=hours),
        known_at=timezone.now(),
    )  # fmt: skip
    Job.objects.filter(pk=job.pk).update(state=State.DEPLOYING, attempt=1)
    job.refresh_from_db()
    return job


def stopped(owner: User, winner: str = "", *, step: int | None = None, opportunistic: bool = True) -> Job:
    """A job that waits after it was stopped for another. winner: as the event names it, so only within the tenant."""
    job = factories.job(
        owner=owner, attempt=1, opportunistic=opportunistic, reason_code=WaitReason.NOT_IDLE,
        reason_message="Waits.",
    )  # fmt: skip
    for n, state in ((2, State.STOPPING), (3, State.QUEUED)):
        JobEvent.objects.create(
            job=job, tenant=job.tenant, n=n, code=EventCode.MOVED, to_state=state, attempt=1, reason="preempted",
            numbers={"for_job": winner} if winner else {},
            message="Preempting: another job needs its devices." if state == State.STOPPING else "",
        )  # fmt: skip
    if step is not None:
        factories.checkpoint(job, step=step)
    return job


def words(page: str) -> str:
    return " ".join(re.sub(r"<[^>]*>", " ", page).split())


def page_of(user: User, job: Job, tab: str = "") -> str:
    client = Client()
    client.force_login(user)
    answer = client.get(f"/t/{job.tenant.slug}/jobs/{job.pk}{tab}")
    assert answer.status_code == 200
    return markup(answer)


def test_a_clone_keeps_that_it_is_opportunistic(browser: Client, lab: Tenant) -> None:
    browser.post("/t/vision-lab/jobs/new", {"spec": SPEC})
    first = Job.objects.get()
    path = f"/t/vision-lab/jobs/new?from={first.pk}"
    page = browser.get(path)
    assert 'role="switch" id="f-opportunistic" data-path="opportunistic"' in markup(page)
    assert "opportunistic: true\n" in page.context["text"]
    assert "Its halt grace period is 5m at most." in " ".join(markup(page).split())
    browser.post(path, {"spec": page.context["text"]})
    assert Job.objects.get(cloned_from=first).opportunistic


@pytest.mark.parametrize(("program", "warned"), [("print(1)", True), ("save(CHECKPOINT_DIR)", False)])
def test_one_that_may_lose_its_work_says_so_after_its_submission(
    browser: Client, lab: Tenant, program: str, warned: bool
) -> None:
    spec = factories.spec(framework="plain", opportunistic=True, code={"files": {"train.py": program}})
    answer = browser.post("/t/vision-lab/jobs/new", {"spec": to_yaml(spec)}, follow=True)
    said = "opportunistic is set, but nothing in the code, the command or env mentions checkpoints"
    assert (said in markup(answer)) == warned


def test_a_comparison_says_which_job_is_opportunistic(browser: Client, alice: User) -> None:
    usual = factories.job(owner=alice, spec=factories.spec(name="usual"))
    sweep = factories.job(owner=alice, spec=factories.spec(name="sweep", opportunistic=True))
    page = markup(browser.get(f"/t/vision-lab/compare?ids={usual.pk},{sweep.pk}&tab=values"))
    row = re.search(r"<tr[^>]*>(?:(?!</tr>).)*>\s*opportunistic\s*<.*?</tr>", page, re.DOTALL)
    assert row is not None
    assert words(row[0]).startswith("opportunistic")
    assert "yes" in words(row[0])


def test_list_page_and_overview_say_which_jobs_are_opportunistic(
    browser: Client, lab: Tenant, alice: User
) -> None:
    usual, sweep = factories.job(owner=alice, name="usual"), runs(alice, name="sweep")
    rows = markup(browser.get("/t/vision-lab/jobs")).split('id="rows"')[1]
    of = {job.pk: rows.split(f'id="job-{job.pk}"')[1].split("</tr>")[0] for job in (usual, sweep)}
    assert "Opportunistic" in words(of[sweep.pk])
    assert "Opportunistic" not in words(of[usual.pk])
    assert "uses no quota" in page_of(alice, sweep).split("<main", 1)[1]
    assert "pportunistic" not in page_of(alice, usual).split("<main", 1)[1]
    overview = words(markup(browser.get("/t/vision-lab/")))
    assert overview.count("alice · opportunistic") == 1


@pytest.mark.parametrize(
    ("query", "found"), [("", {"usual", "sweep"}), ("true", {"sweep"}), ("false", {"usual"})]
)
def test_the_list_can_be_narrowed_to_them(browser: Client, alice: User, query: str, found: set[str]) -> None:
    factories.job(owner=alice, name="usual")
    factories.job(owner=alice, name="sweep", opportunistic=True)
    page = browser.get(f"/t/vision-lab/jobs?opportunistic={query}")
    assert {row["name"] for row in page.context["rows"]} == found
    assert page.context["total"] == str(len(found))
    chosen = re.search(r'name="opportunistic">(.*?)</select>', markup(page), re.DOTALL)
    assert chosen is not None
    assert re.findall(r'value="(\w*)" selected', chosen[1]) == ([query] if query else [])


def test_a_kind_of_job_that_is_none_is_named_and_left_out(browser: Client, alice: User) -> None:
    factories.job(owner=alice)
    page = browser.get("/t/vision-lab/jobs?opportunistic=maybe")
    assert len(page.context["rows"]) == 1
    assert "Unknown kind of job" in markup(page)


def test_one_that_was_stopped_says_for_what_and_where_it_continues(alice: User) -> None:
    winner = factories.job(owner=alice, name="paper-run")
    job = stopped(alice, winner.pk, step=1200)
    card = page_of(alice, job).split('class="card why', 1)[1].split("</section>")[0]
    assert f'href="/t/vision-lab/jobs/{winner.pk}"' in card
    said = words(card).replace(" ,", ",")
    assert "for paper-run, which could start on its devices." in said
    assert "It continues from step 1,200 when devices are idle again." in said
    events = words(page_of(alice, job, "/events"))
    assert (
        "Preempting: another job needs its devices. Stopped for paper-run. An opportunistic job leaves when another job"
        " can start on its devices." in events
    )


def test_one_that_stays_away_continues_after_the_time_that_its_reason_names(alice: User) -> None:
    job = stopped(alice, step=1200)
    until = "It starts no earlier than 2026-01-01 12:01:00 UTC."
    Job.objects.filter(pk=job.pk).update(reason_code=WaitReason.IDLE_BACKOFF, reason_message=until)
    card = words(page_of(alice, job).split('class="card why', 1)[1].split("</section>")[0])
    assert card.index(until) < card.index(
        "It continues from step 1,200 after that time, when devices are idle."
    )
    assert "idle again" not in card


def test_one_that_saved_nothing_starts_from_scratch(alice: User) -> None:
    card = words(page_of(alice, stopped(alice)).split('class="card why', 1)[1].split("</section>")[0])
    assert "starts from scratch, because it saved no checkpoint" in card


def test_the_job_it_was_stopped_for_is_named_to_no_guest_and_never_of_another_tenant(alice: User) -> None:
    winner = factories.job(owner=alice, name="paper-run")
    shared = stopped(alice, winner.pk)
    guest = factories.member(factories.tenant("nlp"), "grace")
    assign_perm("view_job", guest, shared)
    foreign = factories.job(owner=guest, name="secret-run")
    other = stopped(alice, foreign.pk)  # as no event has it
    for reader, job in ((guest, shared), (alice, other)):
        for tab in ("", "/events"):
            page = page_of(reader, job, tab)
            assert "paper-run" not in page
            assert "secret-run" not in page
            assert "when another job can start on its devices" in words(page)
        assert "for another job" in words(page_of(reader, job)).replace(" ,", ",")


def test_a_job_of_the_usual_kind_says_nothing_of_it(alice: User) -> None:
    job = stopped(alice, factories.job(owner=alice, name="paper-run").pk, opportunistic=False)
    for tab in ("", "/events"):
        page = page_of(alice, job, tab).split("<main", 1)[1]
        assert "pportunistic" not in page
        assert "which could start on its devices" not in page


def test_a_wait_for_opportunistic_jobs_to_leave_needs_no_action() -> None:
    code = WaitReason.IDLE_LEAVING.value
    assert kind_of(code, {}) is WAIT
    assert label_of(code) == "opportunistic jobs leave for it"
    assert kind_of(WaitReason.NOT_IDLE.value, {}) is WAIT
    assert label_of(WaitReason.NOT_IDLE.value) == "waiting for idle devices"


def test_one_that_stays_away_is_shown_as_backing_off() -> None:
    code = WaitReason.IDLE_BACKOFF.value
    assert kind_of(code, {}).chip == "Backing off"
    assert "It starts again by itself" in kind_of(code, {}).advice
    assert label_of(code) == "left its devices too often to start at once"


def test_a_start_says_that_it_lasts_until_another_job_can(alice: User) -> None:
    job = runs(alice)
    JobEvent.objects.create(
        job=job, tenant=job.tenant, n=2, code=EventCode.PLACED, to_state=State.DEPLOYING, attempt=1,
        message="Attempt 1: 1 learner with 2 CPUs on node-a",
        numbers={"slot_type": "cpu", "why": StartReason.OPPORTUNISTIC.value, "borrowed": 0},
    )  # fmt: skip
    assert "on node-a. No other job can take what it runs on now. It is stopped as soon as one can." in words(
        page_of(alice, job, "/events")
    )


def test_what_they_hold_is_beside_the_quota_and_never_use_of_it(lab: Tenant, alice: User) -> None:
    factories.job(owner=alice, state=State.PROCESSING, slots=3)
    runs(alice, slots=2)
    factories.job(owner=alice, opportunistic=True, slots=4)
    found = {use.gpu_type: use for use in quotas_of(lab)}
    assert (found["cpu"].used, found["cpu"].waiting, found["cpu"].opportunistic) == (3, 0, 2)
    assert held_by(alice, lab) == {"cpu": 3}


def test_the_pages_of_quotas_show_it_apart(signed_in: SignIn, lab: Tenant, alice: User, admin: User) -> None:
    factories.job(owner=alice, state=State.PROCESSING, slots=3)
    runs(alice, slots=2)
    usage = signed_in(alice).get("/t/vision-lab/usage?of=cpu")
    card = markup(usage).split('aria-labelledby="quota-cpu"')[1].split("</section>")[0]
    assert "2 held by opportunistic jobs, beside the quota" in words(card)
    assert usage.context["cards"][0]["holders"] == [("alice", 3, "fill-1")]
    assert "2 opportunistic beside it" in words(markup(signed_in(alice).get("/t/vision-lab/")))
    ClusterNode.objects.create(name="node-a", slot_type="cpu", slots=8, ready=True)
    tenants = words(markup(signed_in(admin).get("/admin-console/tenants")))
    assert "3 used · 2 by opportunistic jobs · 3 free" in tenants
    assert "5 used, 2 by opportunistic jobs" in words(markup(signed_in(admin).get("/admin-console/")))
    cell = markup(signed_in(admin).get("/admin-console/quotas")).split('id="cell-vision-lab-cpu"')[1]
    assert "3 used · 2 opportunistic, beside the quota" in words(f'<div "{cell[:3000]}')


def test_their_hours_are_listed_apart_and_use_none_of_what_the_limits_allow(
    signed_in: SignIn, lab: Tenant, alice: User
) -> None:
    job = runs(alice, slots=2, hours=0.5)
    page = signed_in(alice).get("/t/vision-lab/usage?of=cpu")
    found = page.context["sum"]
    assert found["opportunistic"] == pytest.approx(found["used"], rel=0.01)
    assert found["share"] == pytest.approx(0, abs=0.01)
    shown = words(markup(page))
    assert re.search(r"[\d.]+ by opportunistic jobs", shown)
    assert "Quota utilization leaves out the hours of opportunistic jobs" in shown
    assert "alice · opportunistic" in shown
    of_gpus = signed_in(alice).get("/t/vision-lab/usage?of=gpu")
    assert of_gpus.context["sum"]["opportunistic"] == 0, "CPUs are no GPUs"
    Attempt.objects.filter(job=job).update(opportunistic=False)
    assert "pportunistic jobs" not in words(markup(signed_in(alice).get("/t/vision-lab/usage?of=cpu")))


def test_the_cluster_says_in_words_which_slots_they_hold(signed_in: SignIn, alice: User) -> None:
    ClusterNode.objects.create(name="node-a", slot_type="cpu", slots=8, ready=True)
    plain = markup(signed_in(alice).get("/cluster"))
    assert "pportunistic" not in plain.split("<main", 1)[1]
    runs(alice, slots=2, name="sweep")
    stranger = factories.member(factories.tenant("nlp"), "grace")
    factories.job(owner=alice, state=State.PROCESSING, slots=3)
    page = markup(signed_in(alice).get("/cluster"))
    assert "5 of 8 used, 2 by opportunistic jobs" in page
    assert page.count('class="own opportunistic" title="sweep, opportunistic"') == 2
    assert "of usable, 2 by opportunistic jobs" in words(page)
    assert "2 opportunistic" in words(page.split('data-label="Jobs"')[1])
    foreign = markup(signed_in(stranger).get("/cluster"))
    assert foreign.count('class="other opportunistic" title="another tenant&#x27;s job, opportunistic"') == 2
    assert "sweep" not in foreign


def test_the_timeline_says_how_much_of_the_time_they_held(signed_in: SignIn, alice: User) -> None:
    ClusterNode.objects.create(name="node-a", slot_type="cpu", slots=8, ready=True)
    NodeChange.objects.create(
        name="node-a", at=timezone.now() - timedelta(days=9), slot_type="cpu", slots=8, state="ready"
    )
    runs(alice, slots=2, hours=30)
    usual = factories.job(owner=alice, state=State.PROCESSING, slots=3)
    since = timezone.now() - timedelta(hours=30)
    Attempt.objects.filter(job=usual).update(opened_at=since, known_at=timezone.now())
    page = signed_in(alice).get("/cluster/timeline")
    (node,) = page.context["timeline"]["nodes"]
    assert node["used"] == pytest.approx(62.5, abs=2), "5 of 8"
    assert node["opportunistic"] == pytest.approx(25, abs=1), "2 of 8"
    assert "25% by opportunistic jobs" in words(markup(page))


def test_the_queue_marks_them(signed_in: SignIn, alice: User) -> None:
    numbers = {"position": 1, "nodes_ahead": 0, "slot_type": "cpu", "scope": "cluster"}
    job = factories.job(owner=alice, opportunistic=True, reason_code="NOT_IDLE", reason_numbers=numbers)
    assert "normal, opportunistic" in words(markup(signed_in(alice).get("/t/vision-lab/queue?gpu_type=cpu")))
    assert "normal, opportunistic" in words(page_of(alice, job))


def test_a_suggestion_to_make_it_opportunistic_says_what_that_means(alice: User) -> None:
    job = JobSerializer.render(job_get(user=alice, job_id=factories.job(owner=alice).pk))
    now = timezone.now()
    estimate = {"from": now.isoformat(), "to": now.isoformat()}
    card = offer(Suggestion("opportunistic", "true", estimate), job, now)
    assert card.href.endswith("&opportunistic=true")
    assert "It uses no quota, and is stopped when another job can start on its devices." in card.text
