"""The job page: every tab in every state, for those who may see it; actions as plain forms."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from html import unescape

import pytest
from django.test import Client
from django.utils import timezone

from jobs import archives, blobs
from jobs.models import Attempt, Estimate, Job, JobEvent, Learner, Progress, ResultFile
from jobs.services.sharing import SharePermission, job_share
from jobs.states import Intent, State
from tenants.models import Tenant, User
from tenants.roles import Role
from tests import factories
from tests.jobs.selectors.test_metric_series import add
from tests.jobs.test_log_lines import store
from tests.markup import markup
from tests.portal.pages.conftest import OpenPage
from tests.portal.pages.job_page import TABS, moved

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("state", list(State))
def test_every_tab_of_a_job_in_every_state_opens(alice: User, open_page: OpenPage, state: State) -> None:
    intent = Intent.HALT if state == State.HALTED else Intent.RUN
    job = factories.job(owner=alice, state=state, intent=intent, stop_reason="halt_requested", learners=2)
    moved(job, state, reason="halt_requested")
    for tab in TABS:
        text = open_page(alice, job, tab)
        assert job.pk in text
        assert 'style="' not in text.split("<main", 1)[1]


@pytest.mark.parametrize(
    ("state", "kinds"),
    [
        (State.COMPLETED, ["success"]),
        (State.FAILED, ["error"]),
        (State.CANCELED, ["info"]),
        (State.HALTED, ["info"]),
        (State.QUEUED, []),
        (State.PROCESSING, []),
    ],
)
def test_each_state_in_which_a_job_stays_names_the_kind_of_its_toast(
    alice: User, open_page: OpenPage, state: State, kinds: list[str]
) -> None:
    intent = Intent.HALT if state == State.HALTED else Intent.RUN
    page = open_page(alice, factories.job(owner=alice, state=state, intent=intent))
    assert re.findall(r'data-toast="(\w+)"', page) == kinds


def test_a_start_that_takes_long_says_why(alice: User, open_page: OpenPage) -> None:
    job = factories.job(owner=alice, state=State.DEPLOYING)
    said = "Preparing runtime sklearn: its packages are installed once per machine, 3 of 31 MB fetched"
    Job.objects.filter(pk=job.pk).update(reason_code="preparing", reason_message=said)
    assert said in open_page(alice, job)
    running = factories.job(owner=alice, state=State.PROCESSING, reason_message="All run.")
    assert "All run." not in open_page(alice, running), "what is as it should be needs no sentence"


def test_a_stranger_gets_the_page_of_a_missing_job(alice: User, client: Client) -> None:
    job = factories.job(owner=alice)
    bob = factories.member(factories.tenant("nlp-research"), "bob")
    client.force_login(bob)
    for tab in TABS:
        foreign = client.get(f"/t/vision-lab/jobs/{job.pk}{tab}")
        missing = client.get(f"/t/vision-lab/jobs/3f9k2m7qx4ta{tab}")
        assert (foreign.status_code, missing.status_code) == (404, 404)
        assert foreign.content.replace(job.pk.encode(), b"") == missing.content.replace(b"3f9k2m7qx4ta", b"")
    assert client.get(f"/t/nlp-research/jobs/{job.pk}").status_code == 404


def test_a_viewer_sees_the_job_and_no_buttons(alice: User, open_page: OpenPage) -> None:
    job = factories.job(owner=alice, state=State.PROCESSING)
    carol = factories.member(job.tenant, "carol", Role.VIEWER)
    assert f"/jobs/{job.pk}/halt" in open_page(alice, job)
    page = open_page(carol, job)
    assert f"/jobs/{job.pk}/halt" not in page
    assert "jobs/new?from" not in page


def test_halt_and_resume_are_plain_forms_that_come_back_to_the_page(alice: User, client: Client) -> None:
    job = factories.job(owner=alice, state=State.PROCESSING)
    client.force_login(alice)
    answer = client.post(f"/t/vision-lab/jobs/{job.pk}/halt", {"confirmed": "yes"})
    assert answer.headers["Location"] == f"/t/vision-lab/jobs/{job.pk}"
    job.refresh_from_db()
    assert job.intent == Intent.HALT
    client.post(f"/t/vision-lab/jobs/{job.pk}/resume")
    job.refresh_from_db()
    assert job.intent == Intent.RUN


def test_what_cannot_be_done_is_said_on_the_page(alice: User, client: Client) -> None:
    job = factories.job(owner=alice, state=State.COMPLETED)
    client.force_login(alice)
    answer = client.post(f"/t/vision-lab/jobs/{job.pk}/halt", follow=True)
    assert "cannot be halted" in markup(answer) or "halted" in markup(answer)


def test_canceling_asks_once_more(alice: User, client: Client) -> None:
    job = factories.job(owner=alice, state=State.PROCESSING)
    client.force_login(alice)
    page = client.get(f"/t/vision-lab/jobs/{job.pk}/cancel")
    assert "cannot be resumed" in markup(page)
    job.refresh_from_db()
    assert job.intent == Intent.RUN
    client.post(f"/t/vision-lab/jobs/{job.pk}/cancel")
    job.refresh_from_db()
    assert job.intent == Intent.CANCEL


def test_a_waiting_job_says_why_with_numbers(alice: User, open_page: OpenPage) -> None:
    job = factories.job(
        owner=alice,
        reason_code="QUOTA_GPUS",
        reason_message="Waiting for quota: 6 of 8 CPUs in use, this job needs 4.",
        reason_numbers={
            "position": 3,
            "nodes_ahead": 1,
            "slot_type": "cpu",
            "scope": "tenant",
            "checks": [
                {
                    "check": "pool",
                    "ok": True,
                    "used": None,
                    "limit": None,
                    "asked": None,
                    "text": "There are nodes",
                },
                {"check": "quota", "ok": False, "used": 6, "limit": 8, "asked": 4, "text": "6 of 8 in use"},
                {"check": "gang", "ok": None, "used": None, "limit": None, "asked": None, "text": "All fit"},
            ],
        },
    )
    page = open_page(alice, job)
    for words in (
        "6 of 8 CPUs in use",
        "#3",
        "Waiting",
        "Tenant quota",
        "Gang placement",
    ):
        assert words in page
    assert 'href="/t/vision-lab/queue?gpu_type=cpu"' in page
    # One position, wherever it is shown.
    assert set(re.findall(r"#(\d+)", re.sub(r"<[^>]+>", "", page))) == {"3"}


def test_a_job_that_can_never_start_says_so_once_and_marks_the_limit(
    alice: User, open_page: OpenPage
) -> None:
    why = "Larger than the tenant's quota: this job needs 2 CPUs, the quota is 1."
    larger = {"check": "max_quota", "ok": False, "used": 0, "limit": 1, "asked": 2, "text": why}
    rest = [
        {"check": name, "ok": None, "used": None, "limit": None, "asked": None, "text": ""}
        for name in ("quota", "gang")
    ]
    job = factories.job(
        owner=alice,
        reason_code="EXCEEDS_MAX_QUOTA",
        reason_message=why,
        reason_numbers={"position": 1, "nodes_ahead": 0, "checks": [larger, *rest]},
    )
    Estimate.objects.create(job=job, tenant=job.tenant, why_none="cannot_start")
    panel = open_page(alice, job).partition('class="card why fix"')[2].partition("</section>")[0]
    assert panel.count("this job needs 2 CPUs") == 1
    assert "needs 2, the quota is 1" in panel
    assert "cannot start" not in panel
    assert '<svg x="50.0%" overflow="visible"><rect class="limit-tick"' in panel, (
        "the limit of 1 is in the middle of the 2 requested"
    )
    assert panel.count("<li") == 2, "what was not reached is one row"
    assert "Tenant quota, Gang placement" in panel
    assert "#octagon-x" in panel
    assert "#hourglass" not in panel


@pytest.mark.parametrize(
    ("code", "chip"),
    [("EXCEEDS_MAX_QUOTA", "Fix needed"), ("TENANT_SUSPENDED", "Ask a platform admin"), ("", "Checking")],
)
def test_the_chip_says_who_has_to_act(alice: User, open_page: OpenPage, code: str, chip: str) -> None:
    assert chip in open_page(alice, factories.job(owner=alice, reason_code=code, reason_message="x"))


def test_canceling_a_halted_job_promises_no_devices(alice: User, open_page: OpenPage) -> None:
    """It holds none; the dialog said that the tenant gets them back."""
    halted = factories.job(owner=alice, state=State.HALTED, intent=Intent.HALT)
    assert "back." not in open_page(alice, halted).split("cancel-title", 1)[1].split("</p>", 1)[0]
    runs = factories.job(owner=alice, state=State.PROCESSING)
    assert "gets its 1 CPU back." in " ".join(open_page(alice, runs).split())


def test_an_event_of_a_later_version_is_shown_with_its_code(alice: User, open_page: OpenPage) -> None:
    job = factories.job(owner=alice, state=State.PROCESSING)
    JobEvent.objects.create(
        job=job, tenant=job.tenant, n=99, code="OF_LATER", source="lifecycle", numbers={"plan": {"new": 1}}
    )
    for tab in ("", "/events"):
        assert "OF_LATER" in open_page(alice, job, tab)


def test_a_stop_for_memory_is_not_shown_as_a_halt(alice: User, open_page: OpenPage) -> None:
    job = factories.job(owner=alice, state=State.STOPPING, stop_reason="learner_failed")
    moved(job, State.PROCESSING)
    moved(
        job, State.STOPPING, reason="out_of_memory", message="Learner 0: Used 252 MiB; limit 128 MiB. Killed."
    )
    for tab in ("", "/events"):
        page = open_page(alice, job, tab)
        assert "Halting" not in page
        assert "Stopping" in page


def test_a_guest_sees_the_job_in_the_shell_of_their_own_tenants(alice: User, open_page: OpenPage) -> None:
    job = factories.job(owner=alice, state=State.PROCESSING)
    bob = factories.member(factories.tenant("nlp-research"), "bob")
    carl = factories.user("carl")
    for guest in (bob, carl):
        job_share(user=alice, job_id=job.pk, username=guest.username, permission=SharePermission.VIEW)
    for tab in TABS:
        page = open_page(bob, job, tab)
        links = set(re.findall(r'href="(/t/[^"?#]*)', page))
        own = {link for link in links if link.startswith(f"/t/vision-lab/jobs/{job.pk}")}
        assert links - own == {
            f"/t/nlp-research/{place}"
            for place in ("", "jobs", "members", "projects", "usage", "secrets", "tokens")
        }
        assert "Shared with you" in page
    page = open_page(carl, job)
    assert "You are not a member of a tenant." in page
    assert "Shared with you" not in open_page(alice, job)


def test_the_first_paint_has_the_log_s_last_lines_and_the_numbers(alice: User, open_page: OpenPage) -> None:
    job = factories.job(owner=alice, state=State.PROCESSING)
    store(job, [b"".join(b"line %d\n" % n for n in range(1, 101))])
    Progress.objects.filter(job=job).update(
        step=420,
        total=1_000,
        metrics={"loss": {"last": "NaN", "step": 420}, "acc": {"last": 0.5, "step": 400}},
    )
    page = open_page(alice, job)
    for words in ("line 100", "42%", "420 / 1,000", "NaN", "<title>42% Processing"):
        assert words in page
    assert "line 60<" not in page


def test_the_title_has_the_percentage_only_while_the_program_runs(alice: User, open_page: OpenPage) -> None:
    """As the scripts keep it: a halted job makes no progress."""
    job = factories.job(owner=alice, state=State.HALTED, intent=Intent.HALT)
    Progress.objects.filter(job=job).update(step=420, total=1_000)
    assert "<title>Halted" in open_page(alice, job)


@pytest.mark.parametrize(
    ("state", "phases", "words"),
    [
        (State.PROCESSING, ["PROCESSING", "PROCESSING"], "2 / 2 running"),
        (State.PROCESSING, ["PROCESSING", "DONE"], "1 / 2 ended, 1 running"),
        (
            State.DOWNLOADING,
            ["PROCESSING", "READY"],
            "1 / 2 running Step time — fewer than two steps reported Waits for L1 ready",
        ),
        (State.HALTED, ["DONE", "PROCESSING"], "2 / 2 ended Step time"),
    ],
)
def test_the_learners_tab_says_how_many_run_and_how_many_ended(
    alice: User, open_page: OpenPage, state: State, phases: list[str], words: str
) -> None:
    job = factories.job(owner=alice, state=state, learners=2)
    for rank, phase in enumerate(phases):
        Learner.objects.filter(job=job, rank=rank).update(phase=phase)
    page = open_page(alice, job, "/learners")
    strip = page.split('<dl class="kpis"')[1].split("</dl>")[0]
    assert words in " ".join(re.sub(r"<[^>]*>", " ", strip).split())


def test_of_more_metrics_than_a_page_shows_the_rest_is_counted_and_found_by_name(
    alice: User, open_page: OpenPage
) -> None:
    job = factories.job(owner=alice, state=State.PROCESSING)
    names = [f"m{n:03d}" for n in range(205)]
    kept = {name: {"last": 1.0, "step": 1, "rank": 0} for name in names[:200]}
    Progress.objects.filter(job=job).update(metrics=kept)
    for name in names:
        add(job, {1: 1.0}, name=name)
    page = open_page(alice, job, "/metrics")
    assert "200 of 205 metrics are shown." in page
    assert 'Metrics<span class="count">200+</span>' in page
    assert (page.count("<x-chart "), 'data-name="m204"' in page) == (200, False)
    found = open_page(alice, job, "/metrics?m=M20")
    assert "5 of 205 metrics match." in found
    assert re.findall(r'data-name="(m\d+)"', found) == names[200:]
    assert "No metric matches" in open_page(alice, job, "/metrics?m=nothing")
    Progress.objects.filter(job=job).update(metrics={name: kept[name] for name in names[:3]})
    assert "metrics are shown" not in open_page(alice, job, "/metrics")


@pytest.mark.parametrize(("seconds", "said"), [(0, "—"), (20, "&lt; 0.01"), (180, "0.05"), (18_000, "5.0")])
def test_short_use_is_use_too(alice: User, open_page: OpenPage, seconds: float, said: str) -> None:
    page = open_page(alice, factories.job(owner=alice, state=State.COMPLETED, slot_seconds=seconds))
    assert f'<span data-value="hours">{said}</span>' in page


def test_the_page_says_which_versions_of_its_packages_a_job_has(alice: User, open_page: OpenPage) -> None:
    job = factories.job(owner=alice, packages={"requirements": ["upper", "third; python_version < '3'"]})
    assert "2 packages required; the versions are not chosen yet" in open_page(alice, job)
    Job.objects.filter(pk=job.pk).update(packages=job.packages | {"lock": ["lower==1.0", "upper==1.5"]})
    assert "Versions of 2 packages were chosen: upper==1.5, lower==1.0" in open_page(alice, job)
    Job.objects.filter(pk=job.pk).update(packages=job.packages | {"lock": ["upper==1.5"]})
    assert "Version of 1 package was chosen: upper==1.5" in open_page(alice, job)
    Job.objects.filter(pk=job.pk).update(packages=job.packages | {"lock": []})
    assert "2 packages required; none of them applies here" in open_page(alice, job)
    assert "<dt>Packages</dt>" not in open_page(alice, factories.job(owner=alice))


def test_a_canceled_learner_is_canceled_not_halted(alice: User, open_page: OpenPage) -> None:
    job = factories.job(owner=alice, state=State.CANCELED, attempt=0)
    factories.add_attempt(job, 1, held=True)
    Job.objects.filter(pk=job.pk).update(attempt=1)
    job.attempts.update(held=False, closed_at=timezone.now(), outcome=State.CANCELED)
    job.learner_rows.update(phase="DONE", exited_at=timezone.now(), exit_code=143, halted=True)
    page = open_page(alice, job, "/learners")
    assert "Canceled</" in page
    assert "Halted" not in page


def test_the_log_of_a_job_that_was_halted_in_the_queue_says_so(alice: User, open_page: OpenPage) -> None:
    job = factories.job(owner=alice, state=State.HALTED, intent=Intent.HALT, attempt=0, last_halt={})
    page = open_page(alice, job, "/logs")
    assert "The job was halted before its program started. Resume it to run it." in page
    assert "The program has not started" not in page


def test_what_a_job_made_is_there_to_be_fetched(alice: User, open_page: OpenPage, client: Client) -> None:
    lab = Tenant.objects.get(slug="vision-lab")
    job = factories.job(of=lab, owner=alice, state=State.COMPLETED, attempt=1)
    assert "Results" not in open_page(alice, job)
    for rank, path in ((0, "scores & more.json"), (1, "model.pt"), *((2, f"{n}.txt") for n in range(9))):
        blob = blobs.put(job.tenant_id, f"bytes of {rank} {path}".encode())
        ResultFile.objects.create(job=job, tenant=job.tenant, attempt=1, rank=rank, path=path, blob=blob)
    page = open_page(alice, job)
    assert "11 files" in page
    assert f'href="/api/v1/jobs/{job.pk}/results.zip" download' in page
    assert "3 more" in page
    links = re.findall(rf'href="(/api/v1/jobs/{job.pk}/results/[^"]+)"', page)
    assert len(links) == 8
    assert links[0].endswith("/results/scores%20%26%20more.json")
    answers = [client.get(link) for link in links[:2]]
    # The test client's type knows no stream.
    assert [b"".join(answer.streaming_content) for answer in answers] == [  # type: ignore[attr-defined]
        b"bytes of 0 scores & more.json",
        b"bytes of 1 model.pt",
    ]


def test_the_log_of_all_attempts_gets_the_text_between_them(alice: User, open_page: OpenPage) -> None:
    job = factories.job(owner=alice, state=State.PROCESSING, attempt=3)
    kept = factories.checkpoint(job, step=1500, n=7)
    at = datetime(2026, 11, 20, 9, 30, tzinfo=UTC)
    Attempt.objects.filter(job=job, n=3).update(resume_from=kept, opened_at=at + timedelta(minutes=40))
    Attempt.objects.filter(job=job, n__lt=3).delete()
    for n, outcome in ((1, "learner_failed"), (2, "HALTED")):
        Attempt.objects.create(
            job=job, tenant=job.tenant, n=n, cluster="local", slot_type="cpu", slots=1, learners=1, nodes=["node-a"],
            held=False, opened_at=at + timedelta(minutes=10 * n), closed_at=at + timedelta(minutes=10 * n + 5),
            outcome=outcome,
        )  # fmt: skip
    page = open_page(alice, job, "/logs?attempt=all")
    borders = re.search(r'data-borders="([^"]*)"', page)
    assert borders
    assert json.loads(unescape(borders[1])) == {
        "2": "Attempt 1 ended 09:45:00: a learner failed → Attempt 2 began 09:50:00, from the start",
        "3": "Attempt 2 ended 09:55:00: halted → Attempt 3 began 10:10:00, resumed from step 1,500",
    }
    assert 'data-attempt="all"' in page
    single = factories.job(owner=alice, state=State.PROCESSING)
    assert 'data-attempt="1"' in open_page(alice, single, "/logs?attempt=all"), "nothing to put together"


@pytest.mark.parametrize(
    ("state", "attempt", "text"),
    [
        (State.QUEUED, 0, "The program has not started. Its output will appear here."),
        (State.HALTED, 0, "The job was halted before its program started. Resume it to run it."),
        (State.HALTED, 1, "The job was halted before its program started. Resume it to run it."),
        (State.CANCELED, 1, "The job ended before its program started."),
        (State.PROCESSING, 1, "The program is running and has not printed a complete line."),
    ],
)
def test_an_empty_log_says_why_it_is_empty(
    alice: User, open_page: OpenPage, state: State, attempt: int, text: str
) -> None:
    job = factories.job(owner=alice, state=state, attempt=attempt)
    assert text in " ".join(open_page(alice, job, "/logs").split())


def test_points_that_were_not_kept_are_counted_beside_the_charts(alice: User, open_page: OpenPage) -> None:
    job = factories.job(owner=alice, state=State.PROCESSING)
    assert "not kept" not in open_page(alice, job, "/metrics")
    Progress.objects.filter(job=job).update(metric_lost=1_500)
    assert "1,500 points were not kept." in open_page(alice, job, "/metrics")


def test_the_page_leads_to_the_code_as_a_file(alice: User, client: Client, open_page: OpenPage) -> None:
    job = factories.job(owner=alice, state=State.HALTED, intent=Intent.HALT, name="net")
    archive = archives.pack([("train.py", "print(1)")])
    Job.objects.filter(pk=job.pk).update(code=blobs.put(job.tenant_id, archive))
    [address] = re.findall(r'<a href="([^"]+)" download>Download code</a>', open_page(alice, job))
    answer = client.get(address)
    assert b"".join(answer.streaming_content) == archive
    assert "attachment; filename=" in answer["Content-Disposition"]
    assert "Download code" not in open_page(alice, factories.job(owner=alice, spec=without_code(job.spec)))


def without_code(spec: dict[str, object]) -> dict[str, object]:
    """As of a job that runs what its image holds."""
    return {name: value for name, value in spec.items() if name != "code"}
