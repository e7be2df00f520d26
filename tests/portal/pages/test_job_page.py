"""The job page: every tab in every state, for those who may see it; actions as plain forms."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from html import unescape

import pytest
from django.test import Client
from django.utils import timezone

from jobs import blobs
from jobs.diagnosis import FailureCause
from jobs.models import Attempt, Estimate, Job, JobEvent, Learner, PlatformStop, Progress, ResultFile
from jobs.selectors.platform_stops import stops_between
from jobs.services.sharing import SharePermission, job_share
from jobs.states import EventCode, Intent, State
from portal.pages.job_failure import CAUSES
from portal.pages.job_timeline import timeline
from tenants.models import Tenant, User
from tenants.roles import Role
from tests import factories
from tests.jobs.selectors.test_metric_series import add
from tests.jobs.test_log_lines import store
from tests.markup import markup

pytestmark = pytest.mark.django_db
TABS = ["", "/metrics", "/logs", "/learners", "/events", "/checkpoints", "/spec"]


@pytest.fixture
def alice() -> User:
    return factories.member(factories.tenant("vision-lab"), "alice")


@pytest.fixture
def open_page(client: Client) -> Callable[..., str]:
    def open_one(user: User, job: Job, tab: str = "", *, status: int = 200) -> str:
        client.force_login(user)
        answer = client.get(f"/t/{job.tenant.slug}/jobs/{job.pk}{tab}")
        assert answer.status_code == status
        return markup(answer)

    return open_one


def moved(job: Job, to: State, **fields: object) -> None:
    """One more event that moved the job."""
    job.event_seq += 1
    job.save()
    JobEvent.objects.create(
        job=job,
        tenant=job.tenant,
        n=job.event_seq,
        code=EventCode.MOVED,
        to_state=to,
        attempt=job.attempt,
        **fields,
    )


@pytest.mark.parametrize("state", list(State))
def test_every_tab_of_a_job_in_every_state_opens(
    alice: User, open_page: Callable[..., str], state: State
) -> None:
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
    alice: User, open_page: Callable[..., str], state: State, kinds: list[str]
) -> None:
    intent = Intent.HALT if state == State.HALTED else Intent.RUN
    page = open_page(alice, factories.job(owner=alice, state=state, intent=intent))
    assert re.findall(r'data-toast="(\w+)"', page) == kinds


def test_a_start_that_takes_long_says_why(alice: User, open_page: Callable[..., str]) -> None:
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


def test_a_viewer_sees_the_job_and_no_buttons(alice: User, open_page: Callable[..., str]) -> None:
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


def test_a_waiting_job_says_why_with_numbers(alice: User, open_page: Callable[..., str]) -> None:
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
    alice: User, open_page: Callable[..., str]
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
def test_the_chip_says_who_has_to_act(
    alice: User, open_page: Callable[..., str], code: str, chip: str
) -> None:
    assert chip in open_page(alice, factories.job(owner=alice, reason_code=code, reason_message="x"))


def test_a_halted_job_shows_its_receipt(alice: User, open_page: Callable[..., str]) -> None:
    job = factories.job(
        owner=alice,
        state=State.HALTED,
        intent=Intent.HALT,
        last_halt={
            "step": 41_250,
            "steps_lost": 0,
            "seconds": 3.4,
            "checkpoint": 9,
            "parts": {"seen": 0.2, "saved": 1.7, "verified": 1.2, "released": 0.3},
            "learners": 4,
            "batch": 1024,
        },
    )
    page = open_page(alice, job)
    for words in ("Halted, no steps lost", "step 41,250", "3.4 s", "saved 1.7", "verified"):
        assert words in page
    assert "ran with 4 learners, batch 1,024" in page
    assert f"/jobs/{job.pk}/resume" in page


def test_a_receipt_of_a_checkpoint_without_a_step_says_that_it_is_unknown(
    alice: User, open_page: Callable[..., str]
) -> None:
    """A program that does not use the platform's API left files; their step is unknown."""
    left = {"step": None, "steps_lost": None, "seconds": 3.4, "checkpoint": 1, "parts": {"released": 0.3}}
    job = factories.job(owner=alice, state=State.HALTED, intent=Intent.HALT, attempt=1, last_halt=left)
    page = open_page(alice, job)
    assert "<dd>step unknown<span" in page
    assert '<dd id="steps-lost">unknown' in page


def test_a_halted_job_says_of_a_checkpoint_without_a_step_what_is_known(
    alice: User, open_page: Callable[..., str]
) -> None:
    left = {"step": None, "steps_lost": None, "seconds": 3.4, "checkpoint": 1, "parts": {}}
    job = factories.job(owner=alice, state=State.HALTED, intent=Intent.HALT, attempt=1, last_halt=left)
    Progress.objects.filter(job=job).update(step=344, total=1_000)
    factories.checkpoint(job, step=None, implicit=True)
    page = open_page(alice, job)
    assert "checkpoint 1: saved by the program, step unknown, last reported 344" in page
    assert "last reported 344" in page.split('id="steps-lost"')[1].split("</dd>")[0]
    assert "Would run for" not in page, "how many steps are left is unknown"


def test_no_steps_are_counted_from_a_checkpoint_of_unknown_step(
    alice: User, open_page: Callable[..., str]
) -> None:
    job = factories.job(owner=alice, state=State.PROCESSING)
    Progress.objects.filter(job=job).update(step=344)
    factories.checkpoint(job, step=None, implicit=True)
    page = " ".join(open_page(alice, job, "/cancel").split())
    assert "Its checkpoints stay" in page
    assert "since the newest one" not in page


def _started_from(page: str) -> list[str]:
    """What the attempts table says of where each attempt began, on a wide screen."""
    cells = re.findall(r'<td class="phone-start whole-text">(.*?)</td>', page, flags=re.S)
    plain = [re.sub(r'<span class="phone-only">.*?</span>', "", cell) for cell in cells]
    return [" ".join(re.sub(r"<[^>]*>", "", cell).split()) for cell in plain]


def test_the_attempts_say_how_many_steps_they_repeated(alice: User, open_page: Callable[..., str]) -> None:
    job = factories.job(owner=alice, state=State.PROCESSING, attempt=2)
    saved = factories.checkpoint(job, step=None, implicit=True, attempt=1)
    job.attempts.filter(n=2).update(resume_from=saved)
    runs = Learner.objects.filter(job=job)
    runs.filter(attempt=1).update(first_step=1, last_step=344, processing_at=timezone.now())
    runs.filter(attempt=2).update(first_step=301, last_step=310, processing_at=timezone.now())
    page = open_page(alice, job)
    assert _started_from(page) == [f"step unknown checkpoint {saved.n}, repeated 44 steps", "scratch"]
    assert "step numbers begin again" not in page
    assert "step numbers continue" in page


def test_an_attempt_that_counts_again_after_a_checkpoint_of_unknown_step_is_not_said_to_have_repeated_steps(
    alice: User, open_page: Callable[..., str]
) -> None:
    """makemore loads its weights and counts from 0."""
    job = factories.job(owner=alice, state=State.PROCESSING, attempt=2)
    saved = factories.checkpoint(job, step=None, implicit=True, attempt=1)
    runs, resumed = Learner.objects.filter(job=job), job.attempts.filter(n=2)
    runs.filter(attempt=1).update(first_step=0, last_step=1460, processing_at=timezone.now())
    runs.filter(attempt=2).update(first_step=0, last_step=200, processing_at=timezone.now())
    Progress.objects.filter(job=job).update(step=200)
    resumed.update(resume_from=saved)
    page = open_page(alice, job)
    assert _started_from(page)[0] == f"step unknown checkpoint {saved.n}, step numbers begin again"
    assert "step numbers continue" not in page
    assert not re.search(r"repeated [\d,]+ step", page)
    resumed.update(resume_from=None)
    page = open_page(alice, job)
    assert _started_from(page)[0] == "scratch, repeated 1,461 steps"
    assert "step numbers begin again" not in page
    assert "step numbers continue" not in page


def test_a_metric_that_only_has_an_order_is_at_no_step(alice: User, open_page: Callable[..., str]) -> None:
    job = factories.job(owner=alice, state=State.PROCESSING)
    newest = {"last": 0.25, "step": 60, "rank": 0, "axis": "order"}
    Progress.objects.filter(job=job).update(metrics={"loss": newest})
    strip = open_page(alice, job).split('<dl class="kpis"')[1].split("</dl>")[0]
    assert "position 60" in strip
    assert "step 60" not in strip


def test_a_job_halted_in_the_queue_held_nothing(alice: User, open_page: Callable[..., str]) -> None:
    none = {"step": None, "steps_lost": 0, "seconds": 0.2, "checkpoint": None, "parts": {"released": 0.2}}
    job = factories.job(owner=alice, state=State.HALTED, intent=Intent.HALT, attempt=0, last_halt=none)
    moved(job, State.QUEUED)
    moved(job, State.HALTED)
    page = open_page(alice, job)
    for words in ("Removed from the queue", "it never ran", "none<small>it held no devices"):
        assert words in page
    assert "released 0.2" not in page


def test_the_last_state_shows_when_it_was_reached_not_how_long(
    alice: User, open_page: Callable[..., str]
) -> None:
    job = factories.job(owner=alice, state=State.COMPLETED)
    moved(job, State.PROCESSING)
    moved(job, State.COMPLETED)
    at = JobEvent.objects.filter(job=job).latest("n").at
    last = open_page(alice, job).rpartition('<b>Completed</b><span class="num">')[2]
    assert f">{at:%H:%M}</time>" in last.partition("</li>")[0]


def test_a_failed_job_shows_who_failed_first_and_the_end_of_its_log(
    alice: User, open_page: Callable[..., str]
) -> None:
    job = factories.job(
        owner=alice, state=State.FAILED, learners=2, reason_message="Learner 1 exited with 3."
    )
    store(job, [b"fine\nTraceback (most recent call last):\nValueError: <b>no</b>\n"], rank=1, sealed=True)
    Learner.objects.filter(job=job, rank=1).update(exit_code=3, exited_at=timezone.now())
    page = open_page(alice, job)
    for words in ("Learner 1 exited with 3.", "learner 1", "ValueError: &lt;b&gt;no&lt;/b&gt;"):
        assert words in page


def test_a_failure_is_headed_by_its_diagnosis_and_shows_the_log_around_the_line_that_says_so(
    alice: User, open_page: Callable[..., str]
) -> None:
    why = "Learner 1 ran out of memory: MemoryError (log line 42). Request more memory."
    numbers = {"learner": 1, "attempt": 1, "line": 42, "cause": "out_of_memory", "exit_code": 1}
    job = factories.job(
        owner=alice, state=State.FAILED, learners=2, reason_message=why, reason_numbers=numbers,
        reason_code="out_of_memory",
    )  # fmt: skip
    body = b"".join(b'  File "x.py", line %d\n' % n for n in range(40))
    said = b"Traceback (most recent call last):\n" + body + b"MemoryError\n" + b"a warning at exit\n" * 30
    store(job, [said], rank=1, sealed=True)
    ended = timezone.now()
    Learner.objects.filter(job=job, rank=1).update(exit_code=1, exited_at=ended)
    Learner.objects.filter(job=job, rank=0).update(exit_code=143, exited_at=ended - timedelta(seconds=1))
    page = open_page(alice, job)
    assert f'<h2 id="failure-title" title="out_of_memory">{why}</h2>' in page
    assert page.count('class="log-line error-line"') == 11  # its traceback began above what is shown
    assert page.count("a warning at exit") == 2
    assert "learner 1, attempt 1, line 42" in page
    assert (
        page.count(f'href="/t/vision-lab/jobs/{job.pk}/logs?learner=1&amp;attempt=1#L42"') == 2
    )  # header and card
    assert "<x-log" not in page  # the same lines once


@pytest.mark.parametrize("cause", FailureCause)
def test_every_cause_of_a_failure_has_words(
    alice: User, open_page: Callable[..., str], cause: FailureCause
) -> None:
    numbers = {"learner": 0, "attempt": 1, "line": 1, "cause": cause.value, "exit_code": 1}
    job = factories.job(owner=alice, state=State.FAILED, reason_code=cause.value, reason_numbers=numbers)
    assert CAUSES[cause] in open_page(alice, job)


def test_a_failure_without_a_diagnosis_does_not_invent_one(
    alice: User, open_page: Callable[..., str]
) -> None:
    job = factories.job(owner=alice, state=State.FAILED)
    page = open_page(alice, job)
    assert "The job failed, and its cause was not recorded." in page


def test_canceling_a_halted_job_promises_no_devices(alice: User, open_page: Callable[..., str]) -> None:
    """It holds none; the dialog said that the tenant gets them back."""
    halted = factories.job(owner=alice, state=State.HALTED, intent=Intent.HALT)
    assert "back." not in open_page(alice, halted).split("cancel-title", 1)[1].split("</p>", 1)[0]
    runs = factories.job(owner=alice, state=State.PROCESSING)
    assert "gets its 1 CPU back." in " ".join(open_page(alice, runs).split())


def test_an_event_of_a_later_version_is_shown_with_its_code(
    alice: User, open_page: Callable[..., str]
) -> None:
    job = factories.job(owner=alice, state=State.PROCESSING)
    JobEvent.objects.create(
        job=job, tenant=job.tenant, n=99, code="OF_LATER", source="lifecycle", numbers={"plan": {"new": 1}}
    )
    for tab in ("", "/events"):
        assert "OF_LATER" in open_page(alice, job, tab)


def test_a_stop_for_memory_is_not_shown_as_a_halt(alice: User, open_page: Callable[..., str]) -> None:
    job = factories.job(owner=alice, state=State.STOPPING, stop_reason="learner_failed")
    moved(job, State.PROCESSING)
    moved(
        job, State.STOPPING, reason="out_of_memory", message="Learner 0: Used 252 MiB; limit 128 MiB. Killed."
    )
    for tab in ("", "/events"):
        page = open_page(alice, job, tab)
        assert "Halting" not in page
        assert "Stopping" in page


def test_a_guest_sees_the_job_in_the_shell_of_their_own_tenants(
    alice: User, open_page: Callable[..., str]
) -> None:
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


def test_the_first_paint_has_the_log_s_last_lines_and_the_numbers(
    alice: User, open_page: Callable[..., str]
) -> None:
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


def test_the_title_has_the_percentage_only_while_the_program_runs(
    alice: User, open_page: Callable[..., str]
) -> None:
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
    alice: User, open_page: Callable[..., str], state: State, phases: list[str], words: str
) -> None:
    job = factories.job(owner=alice, state=state, learners=2)
    for rank, phase in enumerate(phases):
        Learner.objects.filter(job=job, rank=rank).update(phase=phase)
    page = open_page(alice, job, "/learners")
    strip = page.split('<dl class="kpis"')[1].split("</dl>")[0]
    assert words in " ".join(re.sub(r"<[^>]*>", " ", strip).split())


def test_an_attempt_after_a_halt_is_its_own_stretch_of_the_timeline(
    alice: User, open_page: Callable[..., str]
) -> None:
    job = factories.job(owner=alice, state=State.PROCESSING, attempt=2)
    for to, attempt in [("DEPLOYING", 1), ("PROCESSING", 1), ("STOPPING", 1), ("HALTED", 1), ("QUEUED", 1),
                        ("DEPLOYING", 2), ("PROCESSING", 2)]:  # fmt: skip
        job.attempt = attempt
        moved(job, State(to), reason="halt_requested" if to == "STOPPING" else "")
    page = open_page(alice, job)
    for words in ("Attempt 1", "Attempt 2", "Halting", "Halted"):
        assert words in page


def test_an_attempt_that_failed_says_its_exit_code_in_the_header_and_the_sentence_in_its_table(
    alice: User, open_page: Callable[..., str]
) -> None:
    job = factories.job(owner=alice, state=State.PROCESSING, attempt=2)
    why = "Learner 0 on node-a exited with code 3. Its log says more."
    for to, attempt in [("PROCESSING", 1), ("STOPPING", 1), ("QUEUED", 1), ("PROCESSING", 2)]:
        job.attempt = attempt
        failed = {"reason": "learner_failed", "message": why, "numbers": {"exit_code": 3}}
        moved(job, State(to), **(failed if to == "STOPPING" else {}))
    Attempt.objects.filter(job=job, n=1).delete()
    Attempt.objects.create(
        job=job, tenant=job.tenant, n=1, cluster="local", slot_type="cpu", slots=1, learners=1, nodes=["node-a"],
        held=False, closed_at=timezone.now(), outcome="learner_failed", message=why,
    )  # fmt: skip
    page = open_page(alice, job)
    assert f'<b>Attempt 1</b><span title="{why}">exit 3</span>' in page
    assert f'A learner failed</span><br><span class="secondary fine-print">{why}</span>' in page


def test_the_attempts_say_where_they_began_and_why_they_failed(
    alice: User, open_page: Callable[..., str]
) -> None:
    job = factories.job(owner=alice, state=State.PROCESSING, attempt=3)
    kept = factories.checkpoint(job, step=1500, n=7)
    Attempt.objects.filter(job=job, n=3).update(resume_from=kept)
    Attempt.objects.filter(job=job, n__lt=3).delete()
    for n in (1, 2):
        Attempt.objects.create(
            job=job, tenant=job.tenant, n=n, cluster="local", slot_type="cpu", slots=1, learners=1, nodes=["node-a"],
            held=False, closed_at=timezone.now(), outcome="learner_failed", message=f"Learner 0, attempt {n}.",
        )  # fmt: skip
    page = open_page(alice, job)
    rows = page.split("Attempts table", 1)[1].split("</table>", 1)[0].split("<tr>")[2:]
    newest, second, first = (re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", row)) for row in rows)
    assert f'<a href="/t/vision-lab/jobs/{job.pk}/checkpoints?files=7#checkpoint-files"' in rows[0]
    assert "step 1,500 checkpoint 7" in newest
    assert "A learner failed Learner 0, attempt 2. from scratch" in second
    assert "A learner failed Learner 0, attempt 1. from scratch" in first


def test_the_page_says_which_image_the_attempts_ran_as_far_as_that_is_known(
    alice: User, open_page: Callable[..., str]
) -> None:
    job = factories.job(owner=alice, state=State.PROCESSING, attempt=2)
    assert "<dt>Image</dt>" not in open_page(alice, job)
    Job.objects.filter(pk=job.pk).update(spec=job.spec | {"image": "team/<b>:1"})
    page = open_page(alice, job)
    assert ("team/&lt;b&gt;:1" in page, "digest unknown" in page) == (True, True)
    digest = f"sha256:{'a' * 64}"
    Attempt.objects.filter(job=job, n=2).update(image="docker.io/team/train:1", image_digests=[digest])
    page = open_page(alice, job)
    assert page.count(f'title="docker.io/team/train:1 {digest}"') == 1
    assert f'<span class="sub">{digest}</span>' in page
    assert "digest unknown" not in page
    Job.objects.filter(pk=job.pk).update(spec=job.spec)
    assert f'<span class="sub">{digest}</span>' in open_page(alice, job), "the image of a framework"


def test_of_more_metrics_than_a_page_shows_the_rest_is_counted_and_found_by_name(
    alice: User, open_page: Callable[..., str]
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
def test_short_use_is_use_too(alice: User, open_page: Callable[..., str], seconds: float, said: str) -> None:
    page = open_page(alice, factories.job(owner=alice, state=State.COMPLETED, slot_seconds=seconds))
    assert f'<span data-value="hours">{said}</span>' in page


def test_step_numbers_are_said_to_continue_only_where_there_are_steps(
    alice: User, open_page: Callable[..., str]
) -> None:
    job = factories.job(owner=alice, state=State.PROCESSING, attempt=2)
    said = "step numbers continue across attempts"
    page = open_page(alice, job)
    assert "Attempts table" in page
    assert said not in page
    runs = Learner.objects.filter(job=job)
    runs.filter(attempt=1).update(first_step=1, last_step=40, processing_at=timezone.now())
    runs.filter(attempt=2).update(first_step=41, last_step=41, processing_at=timezone.now())
    Progress.objects.filter(job=job).update(step=41)
    assert said in open_page(alice, job)


def test_step_numbers_are_not_said_to_continue_before_a_start_from_scratch_has_reported(
    alice: User, open_page: Callable[..., str]
) -> None:
    """The newest step is the halted attempt's."""
    job = factories.job(owner=alice, state=State.PROCESSING, attempt=2)
    runs = Learner.objects.filter(job=job)
    runs.filter(attempt=1).update(first_step=10, last_step=40, processing_at=timezone.now())
    runs.filter(attempt=2).update(processing_at=timezone.now())
    Progress.objects.filter(job=job).update(step=40)
    page = open_page(alice, job)
    assert "Attempts table" in page
    assert "step numbers continue" not in page


def _marks(page: str) -> list[list[object]]:
    return list(json.loads(unescape(page.split('data-marks="', 1)[1].split('"', 1)[0])))


def test_charts_of_points_that_only_have_an_order_mark_where_attempts_began(
    alice: User, open_page: Callable[..., str]
) -> None:
    job = factories.job(owner=alice, state=State.PROCESSING, attempt=2)
    newest = {"last": 0.2, "step": 6, "rank": 0, "axis": "order"}
    Progress.objects.filter(job=job).update(metrics={"loss": newest})
    add(job, {step: 1 / step for step in range(1, 7)})
    assert [7, "attempt 2", "loss"] in _marks(open_page(alice, job)), "where its first point will be"
    add(job, {9: 0.5, 10: 0.4}, attempt=2)
    add(job, {11: 0.5}, attempt=2, rank=1)
    assert [one for one in _marks(open_page(alice, job)) if one[2:]] == [[9, "attempt 2", "loss"]]


def test_of_attempts_that_began_at_one_step_the_newest_is_marked_first(
    alice: User, open_page: Callable[..., str]
) -> None:
    """A chart has room for one label there, and gives it to the first."""
    job = factories.job(owner=alice, state=State.PROCESSING, attempt=3)
    saved = factories.checkpoint(job, step=40, attempt=1)
    assert _marks(open_page(alice, job)) == [[saved.step, ""], [0, "attempt 3"], [0, "attempt 2"]]


def test_the_header_has_room_for_three_attempts(alice: User, open_page: Callable[..., str]) -> None:
    job = factories.job(owner=alice, state=State.PROCESSING, attempt=5)
    for n in range(1, 6):
        job.attempt = n
        moved(job, State.PROCESSING)
    page = open_page(alice, job)
    assert re.findall(r"<b>(Attempt \d)</b>", page) == ["Attempt 3", "Attempt 4", "Attempt 5"]
    assert f'<a href="/t/vision-lab/jobs/{job.pk}#job-attempts">2 earlier</a>' in page


def test_a_segment_is_a_stored_state_with_its_own_time(alice: User) -> None:
    """A later request does not rename the past: halted time is Halted, a second start is Deploying."""
    job, at = factories.job(owner=alice, state=State.PROCESSING, attempt=2), timezone.now()
    for to, attempt, seconds in [("QUEUED", 0, 5), ("DEPLOYING", 1, 3), ("DOWNLOADING", 1, 9), ("PROCESSING", 1, 255),
                                 ("STOPPING", 1, 4), ("HALTED", 1, 384), ("QUEUED", 1, 2), ("DEPLOYING", 2, 3),
                                 ("DOWNLOADING", 2, 8), ("PROCESSING", 2, 62)]:  # fmt: skip
        job.attempt = attempt
        moved(job, State(to), at=at, reason="halt_requested" if to == "STOPPING" else "")
        at += timedelta(seconds=seconds)
    moves = JobEvent.objects.filter(job=job, code=EventCode.MOVED).order_by("n")
    first, second = timeline(list(moves), at)
    assert [(one.phase, one.seconds) for one in first.segments] == [
        ("Queued", 5), ("Deploying", 3), ("Downloading", 9), ("Processing", 255), ("Halting", 4), ("Halted", 384),
    ]  # fmt: skip
    assert [(one.phase, one.seconds) for one in second.segments if not one.ahead] == [
        ("Queued", 2), ("Deploying", 3), ("Downloading", 8), ("Processing", 62),
    ]  # fmt: skip
    assert [one.phase for one in second.segments if one.ahead] == ["Storing", "Completed"]


def test_time_of_a_stopped_platform_is_not_queued(alice: User, open_page: Callable[..., str]) -> None:
    """A job waited for 10 minutes in the whole, 6 of them with the platform stopped."""
    job, minute = factories.job(owner=alice, state=State.DEPLOYING, attempt=1), timedelta(minutes=1)
    at = timezone.now() - 20 * minute
    job.created_at = at
    for to, when in (("QUEUED", at), ("DEPLOYING", at + 10 * minute)):
        job.attempt = int(to != "QUEUED")
        moved(job, State(to), at=when)
    moves = list(JobEvent.objects.filter(job=job, code=EventCode.MOVED).order_by("n"))
    stop = PlatformStop.objects.create(began_at=at + 2 * minute, ended_at=at + 8 * minute)
    later = PlatformStop.objects.create(began_at=at + 12 * minute, ended_at=at + 13 * minute)
    found = stops_between(at, timezone.now())
    assert found == [(stop.began_at, stop.ended_at), (later.began_at, later.ended_at)]
    (stretch,) = timeline(moves, timezone.now(), stops=found)
    assert [(one.phase, one.seconds) for one in stretch.segments[:3]] == [
        ("Queued", 120),
        ("Platform stopped", 360),
        ("Queued", 120),
    ]
    page = open_page(alice, job)
    assert "Platform stopped 6 min" in page
    assert stretch.segments[1].icon == "power-off", "no mark of a state that is over"
    assert "#power-off" in page
    within = timeline(moves[:1], at + 5 * minute, stops=[(at - minute, at + 5 * minute)])[0].segments
    assert [(one.phase, one.seconds) for one in within if not one.ahead] == [
        ("Platform stopped", 300),
        ("Queued", 0),
    ]


def test_time_without_contact_is_no_time_of_a_state(alice: User) -> None:
    """The platform was stopped for an hour: the strip says what "Ran for" says, and why it is less than the clock's."""
    job, at = factories.job(owner=alice, state=State.QUEUED, attempt=0), timezone.now()
    began, back = at + timedelta(seconds=2), at + timedelta(hours=1)
    for to, when in (("DEPLOYING", at), ("PROCESSING", began), ("STOPPING", back), ("QUEUED", back)):
        job.attempt = 1
        moved(job, State(to), at=when)
    moves = list(JobEvent.objects.filter(job=job, code=EventCode.MOVED).order_by("n"))
    first, _ = timeline(moves, back, {1: began + timedelta(seconds=33)})
    assert [(one.phase, one.seconds) for one in first.segments] == [
        ("Deploying", 2),
        ("Processing", 33),
        ("Stopping", 0),
    ]
    assert first.segments[1].why.endswith("59 min without contact do not count.")


def test_the_error_of_a_failed_package_build_is_the_builders_own_words(
    alice: User, open_page: Callable[..., str]
) -> None:
    said = "The job's packages cannot be installed. Because nosuch was not found, the requirements cannot be met."
    why = {"reason_code": "deploy_failed", "reason_message": said, "reason_numbers": {"learner": 0}}
    job = factories.job(owner=alice, state=State.FAILED, attempt=1, **why)
    job.learner_rows.update(cluster_phase="FAILED", failure_details={"reason": "deploy_failed"})
    for state in (State.STOPPING, State.FAILED):
        moved(job, state, reason="deploy_failed", message=said)
    page = open_page(alice, job)
    assert f'href="/t/vision-lab/jobs/{job.pk}#failure-title" data-first-error' in page
    assert said.replace("'", "&#x27;") in page
    learners = open_page(alice, job, "/learners")
    assert "Not started" in learners
    assert ">Lost" not in learners
    assert "Failed: The job&#x27;s packages cannot be installed." in open_page(alice, job, "/events")


def test_a_job_that_failed_while_it_waited_says_why_and_links_nothing_that_is_not_there(
    alice: User, open_page: Callable[..., str]
) -> None:
    said = "The job's packages cannot be installed. Because nosuch was not found, the requirements cannot be met."
    why = {"reason_code": "deploy_failed", "reason_message": said}
    job = factories.job(
        owner=alice, state=State.FAILED, attempt=0, packages={"requirements": ["nosuch"]}, **why
    )
    job.attempts.all().delete()
    job.learner_rows.all().delete()
    moved(job, State.FAILED, from_state=State.QUEUED, reason="deploy_failed", message=said)
    page = open_page(alice, job)
    assert f'href="/t/vision-lab/jobs/{job.pk}#failure-title" data-first-error' in page
    assert said.replace("'", "&#x27;") in page
    assert "1 package required; the versions are not chosen yet" not in page
    for tab in TABS:
        open_page(alice, job, tab)


def test_the_page_says_which_versions_of_its_packages_a_job_has(
    alice: User, open_page: Callable[..., str]
) -> None:
    job = factories.job(owner=alice, packages={"requirements": ["upper", "third; python_version < '3'"]})
    assert "2 packages required; the versions are not chosen yet" in open_page(alice, job)
    Job.objects.filter(pk=job.pk).update(packages=job.packages | {"lock": ["lower==1.0", "upper==1.5"]})
    assert "Versions of 2 packages were chosen: upper==1.5, lower==1.0" in open_page(alice, job)
    Job.objects.filter(pk=job.pk).update(packages=job.packages | {"lock": ["upper==1.5"]})
    assert "Version of 1 package was chosen: upper==1.5" in open_page(alice, job)
    Job.objects.filter(pk=job.pk).update(packages=job.packages | {"lock": []})
    assert "2 packages required; none of them applies here" in open_page(alice, job)
    assert "<dt>Packages</dt>" not in open_page(alice, factories.job(owner=alice))


def test_a_canceled_learner_is_canceled_not_halted(alice: User, open_page: Callable[..., str]) -> None:
    job = factories.job(owner=alice, state=State.CANCELED, attempt=0)
    factories.add_attempt(job, 1, held=True)
    Job.objects.filter(pk=job.pk).update(attempt=1)
    job.attempts.update(held=False, closed_at=timezone.now(), outcome=State.CANCELED)
    job.learner_rows.update(phase="DONE", exited_at=timezone.now(), exit_code=143, halted=True)
    page = open_page(alice, job, "/learners")
    assert "Canceled</" in page
    assert "Halted" not in page


def test_the_log_of_a_job_that_was_halted_in_the_queue_says_so(
    alice: User, open_page: Callable[..., str]
) -> None:
    job = factories.job(owner=alice, state=State.HALTED, intent=Intent.HALT, attempt=0, last_halt={})
    page = open_page(alice, job, "/logs")
    assert "The job was halted before its program started. Resume it to run it." in page
    assert "The program has not started" not in page


def test_what_a_job_made_is_there_to_be_fetched(
    alice: User, open_page: Callable[..., str], client: Client
) -> None:
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


def test_the_log_of_all_attempts_gets_the_text_between_them(
    alice: User, open_page: Callable[..., str]
) -> None:
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
    alice: User, open_page: Callable[..., str], state: State, attempt: int, text: str
) -> None:
    job = factories.job(owner=alice, state=state, attempt=attempt)
    assert text in " ".join(open_page(alice, job, "/logs").split())


def test_points_that_were_not_kept_are_counted_beside_the_charts(
    alice: User, open_page: Callable[..., str]
) -> None:
    job = factories.job(owner=alice, state=State.PROCESSING)
    assert "not kept" not in open_page(alice, job, "/metrics")
    Progress.objects.filter(job=job).update(metric_lost=1_500)
    assert "1,500 points were not kept." in open_page(alice, job, "/metrics")
