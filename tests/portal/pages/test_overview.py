"""The overview: what it counts as needing attention and what not, its lines, and the first run."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import connection
from django.http import QueryDict
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from jobs.models import Attempt, Estimate, Job, JobEvent, MetricPoint, Progress
from jobs.selectors.jobs import detailed_lists, job_list
from jobs.selectors.metrics import glances
from jobs.selectors.usage import QuotaStatus, held_by, waits_of
from jobs.states import Intent, State
from portal.pages import attention
from portal.pages.cells import primary_metric, primary_metrics
from portal.pages.charts import sparkline
from portal.pages.job_filters import Filters
from portal.pages.overview import CELLS, quota_row
from tenants.models import Tenant, User
from tests import factories
from tests.markup import markup
from tests.portal.pages.conftest import SignIn

pytestmark = pytest.mark.django_db


def attention_of(user: User) -> attention.Attention:
    now = timezone.now()
    found = attention.candidates(job_list(user=user), user, now)
    return attention.judged(found, detailed_lists(found.lists), now)


def noticed(user: User) -> list[tuple[str, str]]:
    return [(one.job.name, one.title) for one in attention_of(user).shown]


def ago(**span: float) -> object:
    return timezone.now() - timedelta(**span)


def running(owner: User, name: str, *, since: object, reported: object = None, every: str = "10m") -> Job:
    spec = factories.spec(name=name, checkpoint={"every": every, "keep": 3, "grace": "60s"})
    job = factories.job(owner=owner, name=name, state=State.PROCESSING, spec=spec)
    Attempt.objects.filter(job=job).update(processing_at=since)
    Progress.objects.filter(job=job).update(reported_at=reported or timezone.now())
    return job


def test_what_ended_ran_for_the_time_of_its_attempts_alone(signed_in: SignIn, alice: User) -> None:
    factories.job(
        owner=alice, state=State.COMPLETED, attempt=2, started_at=ago(minutes=11), running_s=255 + 62
    )
    factories.job(owner=alice, state=State.CANCELED)  # never ran
    tenant = alice.memberships.get().tenant
    ended = signed_in(alice).get(f"/t/{tenant.slug}/").context["ended"]
    assert {one["state"]: one["ran"] for one in ended} == {"COMPLETED": 317, "CANCELED": None}


def test_only_a_failure_of_the_last_day_is_noticed(alice: User) -> None:
    factories.job(owner=alice, name="fresh", state=State.FAILED)
    old = factories.job(owner=alice, name="old", state=State.FAILED)
    Job.objects.filter(pk=old.pk).update(finished_at=ago(hours=25))
    assert noticed(alice) == [("fresh", "Failed")]


def test_a_waiting_job_is_noticed_only_when_waiting_does_not_help(alice: User) -> None:
    factories.job(owner=alice, name="full", reason_code="INSUFFICIENT_CAPACITY")
    factories.job(owner=alice, name="never", reason_code="EXCEEDS_MAX_QUOTA")
    assert noticed(alice) == [("never", "Cannot start")]


def test_a_silent_running_job_is_noticed_after_a_quarter_of_an_hour(alice: User) -> None:
    running(alice, "talks", since=ago(hours=2), reported=ago(minutes=14))
    running(alice, "silent", since=ago(hours=2), reported=ago(minutes=16))
    running(alice, "young", since=ago(minutes=2), reported=ago(hours=3))  # what its last attempt said
    assert noticed(alice) == [("silent", "Silent")]


def test_a_checkpoint_is_old_after_three_intervals(alice: User) -> None:
    for name, minutes, every in (("late", 31, "10m"), ("in-time", 29, "10m"), ("seconds", 0.9, "5s")):
        factories.checkpoint(
            running(alice, name, since=ago(hours=2), every=every), committed_at=ago(minutes=minutes)
        )
    running(alice, "never-saves", since=ago(hours=2))
    again = running(alice, "resumed", since=ago(minutes=5))
    factories.checkpoint(again, committed_at=ago(hours=9))
    assert noticed(alice) == [("late", "Checkpoint overdue")]


def test_a_halted_job_is_noticed_after_a_day(alice: User) -> None:
    for name, hours in (("forgotten", 25), ("paused", 23)):
        job = factories.job(owner=alice, name=name, state=State.HALTED, intent=Intent.HALT)
        Job.objects.filter(pk=job.pk).update(stop_at=ago(hours=hours))
    assert noticed(alice) == [("forgotten", "Halted for a long time")]


def test_each_line_links_to_where_it_can_be_fixed(alice: User, signed_in: SignIn) -> None:
    numbers = {"learner": 1, "attempt": 2, "line": 204, "cause": "out_of_memory"}
    job = factories.job(
        owner=alice,
        state=State.FAILED,
        attempt=2,
        reason_message="Learner 1 ran out of memory.",
        reason_numbers=numbers,
    )
    page = markup(signed_in(alice).get("/t/vision-lab/"))
    assert f'href="/t/vision-lab/jobs/{job.pk}/logs?learner=1&amp;attempt=2#L204"' in page
    assert "<b>Failed:</b> Learner 1 ran out of memory." in page
    assert "1 failed" in page


def test_a_job_that_fails_again_and_again_is_noticed_with_its_diagnosis(
    alice: User, signed_in: SignIn
) -> None:
    """It used to be a gray "Queued" that nothing pointed at."""
    job = factories.job(owner=alice, name="loops", attempt=19, early_ends=19, reason_code="QUOTA_GPUS")
    factories.job(owner=alice, name="restarts", attempt=2, early_ends=2)
    well = running(alice, "ran-well", since=ago(minutes=11))
    Job.objects.filter(pk=well.pk).update(early_ends=19)
    JobEvent.objects.create(
        job=job, tenant=job.tenant, n=2, code="MOVED", from_state="STOPPING", to_state="QUEUED", attempt=19,
        message="Learner 1 could not import the module torchvision (log line 3).", source="lifecycle",
        numbers={"learner": 1, "attempt": 19, "line": 3, "cause": "import_error"},
    )  # fmt: skip
    assert noticed(alice) == [("loops", "19 attempts in a row ended early")]
    page = markup(signed_in(alice).get("/t/vision-lab/"))
    assert "Learner 1 could not import the module torchvision (log line 3)." in page
    assert f'href="/t/vision-lab/jobs/{job.pk}/logs?learner=1&amp;attempt=19#L3"' in page
    shown = markup(signed_in(alice).get("/t/vision-lab/jobs"))
    assert "Restart loop" in shown


def test_the_count_is_that_of_all_jobs_that_need_attention_not_of_the_shown_ones(alice: User) -> None:
    for n in range(attention.SHOWN + 3):
        factories.job(owner=alice, name=f"failed-{n}", state=State.FAILED)
    factories.job(owner=alice, name="never", reason_code="EXCEEDS_MAX_QUOTA")
    found = attention_of(alice)
    assert len(found.shown) == attention.SHOWN
    assert (found.total, found.summary) == (12, "11 failed · 1 waiting")
    assert found.more == [(4, "failed", "state=FAILED&ended=24h")]


def test_jobs_that_change_while_the_page_is_read_leave_no_negative_count(alice: User) -> None:
    for n in range(attention.SHOWN):
        factories.job(owner=alice, name=f"failed-{n}", state=State.FAILED)
    now = timezone.now()
    found = attention.candidates(job_list(user=alice), alice, now)
    details = detailed_lists(found.lists)
    Job.objects.filter(name="failed-0").update(finished_at=ago(hours=25))
    judged = attention.judged(found, details, now)
    assert (len(judged.shown), judged.total, judged.more) == (attention.SHOWN, attention.SHOWN, [])


def test_every_list_of_a_kind_is_one_that_the_page_of_jobs_knows(alice: User) -> None:
    kinds = [*attention.candidates(job_list(user=alice), alice, timezone.now()).kinds, "running"]
    assert set(attention.LISTS) == set(kinds)
    assert not any(Filters.read(QueryDict(query)).problems for query in attention.LISTS.values())


def test_many_failed_jobs_hide_no_other_kind(alice: User, signed_in: SignIn) -> None:
    for n in range(attention.SHOWN):
        factories.job(owner=alice, name=f"failed-{n}", state=State.FAILED)
    for name in ("never", "ever"):
        factories.job(owner=alice, name=name, reason_code="EXCEEDS_MAX_QUOTA")
    running(alice, "silent", since=ago(hours=2), reported=ago(minutes=16))
    titles = [title for _, title in noticed(alice)]
    assert titles == ["Failed"] * 5 + ["Cannot start"] * 2 + ["Silent"]
    page = markup(signed_in(alice).get("/t/vision-lab/"))
    assert '<a href="/t/vision-lab/jobs?state=FAILED&amp;ended=24h">3 more failed</a>' in page


def test_own_jobs_come_first_and_halted_ones_are_among_the_active(
    alice: User, dave: User, signed_in: SignIn
) -> None:
    factories.job(owner=alice, name="mine", state=State.HALTED, intent=Intent.HALT)
    factories.job(owner=dave, name="newer", state=State.QUEUED)
    rows = signed_in(alice).get("/t/vision-lab/").context["active"]
    assert [row["name"] for row in rows] == ["mine", "newer"]


def test_the_first_run_offers_an_example_that_can_be_submitted(alice: User, signed_in: SignIn) -> None:
    client = signed_in(alice)
    page = client.get("/t/vision-lab/")
    assert "Run your first job" in markup(page)
    from portal.runtimes import register_runtimes

    register_runtimes()
    answer = client.post("/t/vision-lab/jobs/new", {"spec": page.context["example"]})
    assert answer.status_code == 302
    assert "Run your first job" not in markup(client.get("/t/vision-lab/"))


def test_a_viewer_is_offered_no_first_run(carol: User, signed_in: SignIn) -> None:
    assert "Run your first job" not in markup(signed_in(carol).get("/t/vision-lab/"))


def test_a_glance_is_a_few_points_of_one_learner(alice: User) -> None:
    job = factories.job(owner=alice, state=State.PROCESSING)
    for rank in (0, 1):
        MetricPoint.objects.bulk_create(
            MetricPoint(
                job=job, tenant=job.tenant, attempt=1, rank=rank, name="loss", step=step,
                value=float("nan") if step == 500 else step + rank / 2, at=timezone.now(),
                seq=rank * 1000 + step,
            )
            for step in range(1, 1001)
        )  # fmt: skip
    line = glances([(job.pk, "loss", 0, 1000)], points=11)[job.pk]
    assert [step for step, _ in line] == [1, 100, 200, 300, 400, 600, 700, 800, 900, 1000]
    assert all(value == step for step, value in line)
    assert glances([]) == {}


def test_losses_come_first_and_last_what_the_program_did_not_report() -> None:
    job = {"metrics": {key: {} for key in ["seconds_per_step", "zeta", "accuracy", "val_loss"]}}
    assert primary_metrics(job, 4) == ["val_loss", "accuracy", "zeta", "seconds_per_step"]
    assert primary_metric({"metrics": {"seconds_per_step": {}}}) == "seconds_per_step"


def test_a_line_spans_its_box_and_few_points_make_none() -> None:
    drawn = sparkline([(0, 2.0), (50, 1.0), (100, 0.0)])
    assert drawn is not None
    assert drawn.line == "M3.0 3.0L48.0 13.0L93.0 23.0"
    assert (drawn.x, drawn.y) == ("93.0", "23.0")
    flat = sparkline([(0, 1.0), (1, 1.0), (2, 1.0)])
    assert flat is not None
    assert flat.y == "13.0"
    assert sparkline([(0, 1.0), (1, 1.0)]) is None


def test_waits_are_those_of_first_starts(lab: Tenant, alice: User, client: Client) -> None:
    for seconds in (10, 20, 60):
        job = factories.job(owner=alice, state=State.PROCESSING)
        Job.objects.filter(pk=job.pk).update(created_at=ago(seconds=seconds))
        Attempt.objects.filter(job=job).update(opened_at=timezone.now())
    factories.add_attempt(job, 2, held=False)
    idle = factories.job(owner=alice, state=State.PROCESSING, opportunistic=True)
    Job.objects.filter(pk=idle.pk).update(created_at=ago(days=9))
    (wait,) = waits_of(lab, since=timezone.now() - timedelta(hours=1))
    assert (wait.slot_type, round(wait.median), round(wait.p90)) == ("cpu", 20, 52)
    assert waits_of(lab, since=timezone.now() + timedelta(hours=1)) == []


@pytest.mark.parametrize(("limit", "used", "waiting"), [(32, 0, 92), (4, 4, 1000), (0, 0, 7), (500, 480, 30)])
def test_however_many_wait_a_quota_fits_its_card(limit: int, used: int, waiting: int) -> None:
    row = quota_row(QuotaStatus("a100", limit, used, waiting), mine=0)
    assert len(row["cells"]) <= CELLS + 4, "each kind of cells is rounded up, and there is the tick"
    assert 1 <= row["cells"].count("waiting-mark") <= len(row["cells"]) / 2 + 1
    assert row["waiting"] == waiting, "the number next to it counts all of them"


def test_a_quota_separates_mine_from_the_others(
    lab: Tenant, alice: User, dave: User, signed_in: SignIn
) -> None:
    factories.job(owner=alice, state=State.PROCESSING, slots=2, learners=2)
    factories.job(owner=dave, state=State.PROCESSING, slots=1)
    assert held_by(alice, lab) == {"cpu": 4}
    (quota,) = signed_in(alice).get("/t/vision-lab/").context["quotas"]
    assert (quota["used"], quota["mine"]) == (5, 4)
    assert quota["cells"].count("mine") == 4
    assert quota["cells"].count("others") == 1


def test_a_waiting_job_says_since_when_and_whether_anybody_knows_until_when(
    alice: User, signed_in: SignIn
) -> None:
    known = factories.job(owner=alice, name="known", reason_message="After #1.")
    factories.job(owner=alice, name="unknown")
    low, high = (timezone.now() + timedelta(minutes=minutes, seconds=5) for minutes in (25, 40))
    Estimate.objects.create(job=known, tenant=known.tenant, soonest=low, latest=high)
    page = " ".join(markup(signed_in(alice).get("/t/vision-lab/")).split())
    queue = page.split('id="queue"')[1].split("</section>")[0]
    assert queue.count("Queued<time") == 2
    assert "starts in ≈25–40 min" in queue
    assert queue.count(">no estimate<") == 1


def test_a_job_that_cannot_start_is_explained_once(alice: User, signed_in: SignIn) -> None:
    factories.job(
        owner=alice, name="stuck", reason_code="NO_MATCHING_POOL", reason_message="No node has h200."
    )
    factories.job(owner=alice, name="waits", reason_code="QUOTA_GPUS", reason_message="Waiting for quota.")
    page = markup(signed_in(alice).get("/t/vision-lab/"))
    queue = page.split('id="queue"')[1].split("</section>")[0]
    assert "No node has h200." in page
    assert "No node has h200." not in queue
    assert 'href="#attention"' in queue
    assert "Waiting for quota." in queue


def test_only_who_may_resume_a_halted_job_is_offered_it(
    alice: User, carol: User, dave: User, signed_in: SignIn
) -> None:
    factories.job(owner=alice, name="paused", state=State.HALTED, intent=Intent.HALT)
    for who, offered in ((alice, True), (dave, True), (carol, False)):
        page = markup(signed_in(who).get("/t/vision-lab/"))
        assert (">Resume</a>" in page) is offered, who
    Tenant.objects.update(state=Tenant.State.SUSPENDED)
    assert ">Resume</a>" not in markup(signed_in(alice).get("/t/vision-lab/"))


def test_a_suspended_tenant_says_so_with_the_reason_and_offers_no_new_job(
    lab: Tenant, alice: User, admin: User, signed_in: SignIn
) -> None:
    state = {"state": "suspended", "reason": "The invoice of October is open."}
    signed_in(admin).post("/admin-console/tenants/vision-lab/state", state)
    page = markup(signed_in(alice).get("/t/vision-lab/"))
    assert "Submission is suspended." in page
    assert "The invoice of October is open." in page
    assert "/t/vision-lab/jobs/new" not in page
    form = markup(signed_in(alice).get("/t/vision-lab/jobs/new"))
    assert "The invoice of October is open." in form
    assert '<button class="button primary" disabled>' in form
    signed_in(admin).post("/admin-console/tenants/vision-lab/state", {"state": "active", "reason": "Paid."})
    page = markup(signed_in(alice).get("/t/vision-lab/"))
    assert "Submission is suspended." not in page
    assert "/t/vision-lab/jobs/new" in page


def test_the_sidebar_counts_the_jobs_that_the_overview_counts(alice: User, signed_in: SignIn) -> None:
    factories.job(owner=alice, state=State.HALTED, intent=Intent.HALT)
    factories.job(owner=alice, state=State.QUEUED)
    factories.job(owner=alice, state=State.COMPLETED)
    context = signed_in(alice).get("/t/vision-lab/").context
    assert context["live_jobs"] == context["active_count"] == 2


def test_a_quota_of_nothing_draws_no_meter(lab: Tenant, alice: User, signed_in: SignIn) -> None:
    factories.quota(lab, "a100", 0)
    page = markup(signed_in(alice).get("/t/vision-lab/"))
    assert "none allocated" in page
    assert page.count('class="cells"') == 1


@pytest.mark.parametrize(("limit", "column", "hours"), [(0, "CPU-hours", "2.0"), (4, "GPU-hours", "—")])
def test_hours_of_what_ended_are_of_cpu_slots_only_where_a_tenant_has_no_gpus(
    alice: User, client: Client, limit: int, column: str, hours: str
) -> None:
    lab = Tenant.objects.get(slug="vision-lab")
    lab.quotas.create(gpu_type="a100", limit=limit)
    job = factories.job(owner=alice, of=lab, state=State.COMPLETED, slot_seconds=7200)
    Job.objects.filter(pk=job.pk).update(finished_at=timezone.now())
    client.force_login(alice)
    page = markup(client.get("/t/vision-lab/"))
    ended = page.partition('id="ended"')[2].partition("</section>")[0]
    assert f'class="number">{column}</th>' in ended
    assert f'<td class="number hide-on-phone">{hours}</td>' in ended


def test_details_of_all_lists_are_read_in_one_query(alice: User, signed_in: SignIn) -> None:
    """The statement takes longer to build than to run, and the page had eight of it."""
    for state in (State.FAILED, State.PROCESSING, State.QUEUED, State.COMPLETED):
        factories.job(owner=alice, name=state.lower(), state=state)
    client = signed_in(alice)
    with CaptureQueriesContext(connection) as queries:
        page = markup(client.get("/t/vision-lab/"))
    assert all(name in page for name in ("failed", "processing", "queued", "completed"))
    assert sum('AS "newest_checkpoint"' in one["sql"] for one in queries.captured_queries) == 1
