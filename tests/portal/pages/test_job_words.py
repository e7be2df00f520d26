"""The job page uses words: its text contains no codes, the past tense for what ended, and one format for time."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from django.contrib.messages import constants
from django.db.models.functions import Now
from django.test import Client
from django.utils import timezone

from gpu_scheduler.model import StartReason
from jobs.humanize import devices, duration, past
from jobs.models import Attempt, Job, JobEvent, Learner, Progress
from jobs.selectors.start_reasons import WORDS
from jobs.states import EventCode, Intent, State
from portal.pages.badges import STOPPED
from portal.pages.job_events import TITLES, lines
from portal.templatetags.ui import ACTION_LABELS, metric
from tenants.models import User
from tests import factories
from tests.markup import markup
from tests.platform import ROOT

pytestmark = pytest.mark.django_db
CODES = re.compile(r"\b([A-Z]+_[A-Z_]+|[a-z]+_(requested|failed|lost|error|limit|exhausted))\b")


@pytest.fixture
def alice() -> User:
    return factories.member(factories.tenant("vision-lab"), "alice")


def happened(job: Job, code: EventCode = EventCode.MOVED, to: State | str = "", **fields: object) -> None:
    job.event_seq += 1
    job.save()
    JobEvent.objects.create(
        job=job, tenant=job.tenant, n=job.event_seq, code=code, to_state=to, attempt=job.attempt, **fields
    )


def text_of(client: Client, job: Job, tab: str = "") -> str:
    page = markup(client.get(f"/t/vision-lab/jobs/{job.pk}{tab}"))
    return " ".join(re.sub("<[^>]*>", " ", page.split("<main", 1)[1]).split())


FAILED = "Learner 0 on node-a exited with code 1. Its log says more."


def failed_twice(alice: User) -> Job:
    job = factories.job(
        owner=alice, state=State.FAILED, reason_code="learner_failed", reason_message=FAILED, max_restarts=1
    )
    happened(job, to=State.STOPPING, reason="learner_failed", message=FAILED)
    returned = {"slots": 1, "slot_type": "cpu", "seconds": 272.0}
    happened(job, EventCode.GPUS_RETURNED, message="Released 1 CPU after 4 min 32 s.", numbers=returned)
    happened(job, to=State.FAILED, reason="learner_failed", message=f"{FAILED} Its 1 restart is used up.")
    Attempt.objects.create(
        job=job, tenant=job.tenant, n=7, cluster="local", slot_type="cpu", slots=1, learners=1,
        nodes=["node-a"], held=False, closed_at=timezone.now(), outcome="learner_failed",
    )  # fmt: skip
    return job


@pytest.mark.parametrize("tab", ["", "/events", "/learners", "/checkpoints", "/metrics", "/logs"])
def test_the_text_of_a_job_contains_no_codes(alice: User, client: Client, tab: str) -> None:
    client.force_login(alice)
    assert CODES.findall(text_of(client, failed_twice(alice), tab).replace("CHECKPOINT_DIR", "")) == []


def test_the_codes_are_in_the_tooltip(alice: User, client: Client) -> None:
    client.force_login(alice)
    page = markup(client.get(f"/t/vision-lab/jobs/{failed_twice(alice).pk}/events"))
    assert 'title="GPUS_RETURNED"' in page
    assert 'title="FAILED, learner_failed"' in page


def test_every_code_has_its_word() -> None:
    assert set(TITLES) == set(EventCode)
    for word in (*TITLES.values(), *STOPPED.values()):
        assert "_" not in word
        assert not word.isupper()


def test_an_exit_is_shown_once_and_a_stop_says_what_for(alice: User, client: Client) -> None:
    client.force_login(alice)
    text = text_of(client, failed_twice(alice), "/events")
    assert text.count(FAILED) == 1
    assert "Its 1 restart is used up." in text
    assert "CPUs released" in text
    job = factories.job(owner=alice, state=State.STOPPING, stop_reason="halt_requested")
    happened(job, to=State.STOPPING, reason="halt_requested", message="Halting: its learners save.")
    assert "Halting Halting: its learners save." in text_of(client, job, "/events")


def test_checkpoints_in_a_row_are_one_line(alice: User) -> None:
    job = factories.job(owner=alice, state=State.PROCESSING)
    for n in range(1, 8):
        numbers = {"checkpoint": n, "step": 50 * n}
        happened(job, EventCode.CHECKPOINT_STORED, message=f"Checkpoint {n}.", numbers=numbers)
    happened(job, EventCode.REQUESTED, message="Halt asked for by alice")
    shown = lines(list(JobEvent.objects.filter(job=job, n__gt=job.event_seq - 8).order_by("-n")))
    assert [line.words for line in shown] == [
        "Halt asked for by alice",
        "Checkpoints 1 to 7, at steps 50 to 350, are stored and verified.",
    ]
    assert shown[1].first == shown[1].event.n - 6


def test_a_run_of_checkpoints_names_its_least_and_greatest_step(alice: User) -> None:
    job = factories.job(owner=alice, state=State.PROCESSING)
    for n, step in ((14, 650), (15, 702), (16, 700)):
        happened(job, EventCode.CHECKPOINT_STORED, numbers={"checkpoint": n, "step": step})
    (line,) = lines(list(JobEvent.objects.filter(job=job, n__gt=1).order_by("-n")))
    assert line.words == "Checkpoints 14 to 16, at steps 650 to 702, are stored and verified."


def test_between_attempts_the_text_says_how_the_earlier_ended(alice: User, client: Client) -> None:
    client.force_login(alice)
    job = factories.job(owner=alice, state=State.PROCESSING)
    Attempt.objects.filter(job=job, n=1).update(outcome="learner_failed")
    happened(job, to=State.QUEUED, message="It is waiting to restart.")
    job.attempt = 2
    happened(job, EventCode.PLACED, message="Placed on node-b.")
    happened(job, to=State.PROCESSING, message="Learners ran.")
    text = text_of(client, job, "/events")
    assert text.count("follows.") == 1
    border = "Attempt 1 ended: a learner failed. Attempt 2 follows."
    assert text.index("Placed on node-b.") < text.index(border) < text.index("It is waiting to restart.")


def test_attempts_that_a_search_passes_over_are_not_said_away(alice: User, client: Client) -> None:
    client.force_login(alice)
    job = factories.job(owner=alice, state=State.PROCESSING)
    Attempt.objects.filter(job=job, n=1).update(outcome="learner_failed")
    for job.attempt in (1, 2, 3):
        happened(job, EventCode.PLACED, message=f"Placed on node-{job.attempt % 2}.")
    text = text_of(client, job, "/events?q=node-1")
    assert "Attempt 1 ended: a learner failed. Attempts 2 to 3 follow." in text


@pytest.mark.parametrize(
    ("asked", "shown", "hidden"),
    [
        ("show=checkpoint", ["Checkpoint 3."], ["Halt asked for by alice", "Learners ran."]),
        ("show=people", ["Halt asked for by alice"], ["Checkpoint 3.", "Learners ran."]),
        ("show=state", ["Learners ran."], ["Checkpoint 3.", "Halt asked for by alice"]),
        ("q=ASKED", ["Halt asked for by alice"], ["Checkpoint 3.", "Learners ran."]),
        ("q=checkpoint_stored", ["Checkpoint 3."], ["Halt asked for by alice", "Learners ran."]),
        ("show=people&q=ran", ["No matching events"], ["Checkpoint 3.", "Learners ran."]),
    ],
)
def test_events_can_be_narrowed_and_searched(
    alice: User, client: Client, asked: str, shown: list[str], hidden: list[str]
) -> None:
    client.force_login(alice)
    job = factories.job(owner=alice, state=State.PROCESSING)
    happened(job, EventCode.CHECKPOINT_STORED, message="Checkpoint 3.")
    happened(job, to=State.PROCESSING, message="Learners ran.")
    happened(job, EventCode.REQUESTED, message="Halt asked for by alice", actor=alice)
    text = text_of(client, job, f"/events?{asked}")
    assert [words for words in shown if words not in text] == []
    assert [words for words in hidden if words in text] == []


@pytest.mark.parametrize(
    ("reason", "icon"),
    [("EXCEEDS_MAX_QUOTA", "wrench"), ("TENANT_SUSPENDED", "user-cog"), ("QUOTA_GPUS", "hourglass")],
)
def test_an_hourglass_is_shown_only_where_waiting_helps(alice: User, reason: str, icon: str) -> None:
    job = factories.job(owner=alice)
    happened(job, EventCode.WAITING, reason=reason)
    assert lines(list(JobEvent.objects.filter(job=job, code="WAITING")))[0].icon == icon


def test_events_beyond_a_page_are_one_link_away(alice: User, client: Client) -> None:
    client.force_login(alice)
    job = factories.job(owner=alice, state=State.PROCESSING)
    for n in range(210):
        happened(job, EventCode.EDITED, message=f"Edit {n}.")
    page = markup(client.get(f"/t/vision-lab/jobs/{job.pk}/events"))
    before = re.search(r'href="\?before=(\d+)"', page)
    assert before
    older = text_of(client, job, f"/events?before={before.group(1)}")
    assert "Edit 0." in older
    assert "Edit 209." not in older
    older_page = client.get(f"/t/vision-lab/jobs/{job.pk}/events?before={before.group(1)}").content.decode()
    assert "data-metrics" not in older_page, "scripts read metric values there, and this page has none"


def test_an_ended_job_has_nothing_more_to_come(alice: User, client: Client) -> None:
    client.force_login(alice)
    job = factories.job(owner=alice, state=State.COMPLETED, running_s=272.4)
    shown = {tab: text_of(client, job, tab) for tab in ("", "/metrics", "/checkpoints")}
    for text in shown.values():
        assert not re.search(r"\byet\b", text, re.IGNORECASE), text
    assert "No metrics reported" in shown[""]
    assert "No metrics reported" in shown["/metrics"]
    assert "No checkpoints" in shown["/checkpoints"]
    assert "Ran for 4 min 32 s" in shown[""]
    assert "No metrics yet" in text_of(client, factories.job(owner=alice, state=State.PROCESSING), "/metrics")


@pytest.mark.parametrize("tab", ["", "/metrics"])
def test_a_job_whose_rules_found_no_point_is_not_advised_to_add_some(
    tab: str, alice: User, client: Client
) -> None:
    client.force_login(alice)
    has, advice = "The rules under metrics: in the spec found no point", re.compile("add a rule|In Python:")
    rules = factories.spec(metrics=[{"pattern": r"loss=(?P<loss>\S+)"}])
    lost, never_ran = (factories.job(owner=alice, state=State.COMPLETED, spec=rules) for _ in range(2))
    Progress.objects.filter(job=lost).update(metric_lost=1)
    cases = (
        (factories.job(owner=alice, state=State.COMPLETED, spec=rules), True),
        (factories.job(owner=alice, state=State.COMPLETED), False),
        (factories.job(owner=alice, state=State.PROCESSING, spec=rules), False),
        (lost, False),
        (never_ran, False),
    )
    Learner.objects.exclude(job=never_ran).update(processing_at=Now())
    for job, found in cases:
        text = " ".join(text_of(client, job, tab).split())
        assert (has in text) == found
        assert not (found and advice.search(text))


def test_a_kept_checkpoint_beyond_the_newest_says_why(alice: User, client: Client) -> None:
    client.force_login(alice)
    job = factories.job(owner=alice, state=State.PROCESSING)
    first, *_ = [factories.checkpoint(job, step=100 * n, n=n) for n in range(1, 5)]
    gone = factories.checkpoint(job, step=50, n=9)
    type(gone).objects.filter(pk=gone.pk).update(state="DROPPED")
    Attempt.objects.filter(job=job).update(resume_from=first)
    text = text_of(client, job, "/checkpoints")
    assert "4 kept" in text
    assert "and those that an attempt started from" in text
    assert "attempt 1 started here" in text
    assert "Deleted by retention: 3" in text
    assert "4 kept" in text_of(client, job)


def test_the_state_filter_speaks_words(alice: User, client: Client) -> None:
    client.force_login(alice)
    factories.job(owner=alice)
    page = markup(client.get("/t/vision-lab/jobs?state=HALTED"))
    assert '<option value="HALTED" selected>Halted</option>' in page
    assert "PROCESSING<" not in page


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0 s"), (0.02, "0 s"), (1.78, "1.8 s"), (9.96, "9 s"), (9, "9 s"), (12.7, "12 s"),
        (272, "4 min 32 s"), (5460.2, "1 h 31 min"), (270_000, "3 d 3 h"),
    ],
)  # fmt: skip
def test_one_way_to_say_how_long(seconds: float, words: str) -> None:
    assert duration(seconds) == words


def test_one_way_to_say_what_is_held() -> None:
    assert devices(1, "cpu") == "1 CPU"
    assert devices(2, "cpu", each=4) == "2 × 4 CPUs"
    assert devices(2, "cpu", each=1) == "2 × 1 CPU"
    assert devices(1, "h100", each=8) == "8 h100 GPUs"
    assert devices(1, "") == "1 GPU"


def test_the_header_and_the_receipt_say_the_time_alike(alice: User, client: Client) -> None:
    client.force_login(alice)
    halt = {"step": 5, "steps_lost": 0, "seconds": 1.78, "checkpoint": 1, "parts": {"saved": 1.2}}
    job = factories.job(owner=alice, state=State.PROCESSING, last_halt=halt)
    asked = timezone.now() + timedelta(seconds=60)
    end = asked + timedelta(seconds=1.2)
    happened(job, to=State.STOPPING, reason="halt_requested", at=asked)
    happened(job, to=State.HALTED, reason="halt_requested", at=end)
    Attempt.objects.filter(job=job).update(held=False, closed_at=end, known_at=end)
    for state in (State.STOPPING, State.HALTED):
        Job.objects.filter(pk=job.pk).update(state=state, intent=Intent.HALT)
    text = text_of(client, job)
    assert "Halting 1.2 s" in text
    assert "1.8 s" in text
    assert "saved 1.2 s" in text


def test_a_metric_rule_that_was_switched_off_is_reported_on_the_pages_with_metrics(
    alice: User, client: Client
) -> None:
    client.force_login(alice)
    job = factories.job(owner=alice, state=State.PROCESSING, attempt=2)
    said = r"The rule (a+)+(?P<x>b) took too long on a printed line and is disabled in this attempt."
    slow = Learner.objects.filter(job=job, attempt=2)
    for tab in ("", "/metrics"):
        slow.update(error_code="", message="")
        assert "rule was disabled" not in text_of(client, job, tab)
        slow.update(error_code="rule_too_slow", message=said)
        text = text_of(client, job, tab)
        assert "A metric rule was disabled." in text
        assert "Learner 0: The rule (a+)+(?P&lt;x&gt;b) took too long" in text
        assert "Fix the rule and resubmit" in text
    Learner.objects.filter(job=job).update(error_code="", message="")
    Learner.objects.filter(job=job, attempt=1).update(error_code="rule_too_slow", message=said)
    assert "rule was disabled" not in text_of(client, job, "/metrics")


@pytest.mark.parametrize(
    ("state", "text"),
    [
        (State.QUEUED, "None yet Save with"),
        (
            State.PROCESSING,
            "None yet Unless the program saves when it is halted, a resume starts from scratch. Save with",
        ),
        (State.HALTED, "None yet A resume would start from scratch. Save with"),
        (State.FAILED, "No checkpoints Next time, save with"),
    ],
)
def test_a_job_without_checkpoints_shows_what_applies_to_its_state(
    alice: User, client: Client, state: State, text: str
) -> None:
    client.force_login(alice)
    job = factories.job(owner=alice, state=state, intent=Intent.HALT if state == State.HALTED else Intent.RUN)
    assert text in text_of(client, job)


def test_one_of_a_kind_is_said_in_the_singular(alice: User, client: Client) -> None:
    client.force_login(alice)
    job = factories.job(owner=alice, state=State.PROCESSING)
    Progress.objects.filter(job=job).update(step=1)
    assert "It has no checkpoint: its 1 step is lost." in text_of(client, job, "/cancel")
    factories.checkpoint(job, step=0)
    assert "; 1 step since the newest one is lost." in text_of(client, job, "/cancel")
    Progress.objects.filter(job=job).update(step=2)
    assert "; 2 steps since the newest one are lost." in text_of(client, job, "/cancel")
    last = {"step": 1, "steps_lost": 1, "seconds": 1.0, "checkpoint": 1, "parts": {}}
    halted = factories.job(owner=alice, state=State.HALTED, intent=Intent.HALT, last_halt=last)
    assert "Halted, 1 step to repeat" in text_of(client, halted)
    queued = factories.job(owner=alice)
    client.force_login(factories.user("admin", is_superuser=True))
    console = " ".join(markup(client.get("/admin-console/")).split())
    assert "1 device requested<" in console
    client.force_login(alice)
    answer = markup(client.post("/t/vision-lab/jobs/halt", {"job": queued.pk}, follow=True))
    assert "Halting 1 of 1 job." in answer


@pytest.mark.parametrize(
    ("level", "kind", "icon", "role"),
    [
        (constants.SUCCESS, "success", "circle-check", "status"),
        (constants.ERROR, "error", "octagon-alert", "alert"),
        (constants.WARNING, "warning", "triangle-alert", "status"),
        (constants.INFO, "info", "#info", "status"),
    ],
)
def test_a_message_has_the_color_and_icon_of_its_kind(level: int, kind: str, icon: str, role: str) -> None:
    from django.contrib.messages.storage.base import Message
    from django.template.loader import render_to_string

    shown = markup(render_to_string("shell/messages.html", {"messages": [Message(level, "Saved.")]}))
    assert f'class="banner {kind}" role="{role}"' in shown
    assert icon in shown


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(-3, "0 s ago"), (59.9, "59 s ago"), (137, "2 min ago"), (3600, "1 h ago"), (190_000, "2 d ago")],
)
def test_how_long_ago_is_said_in_one_unit(seconds: float, said: str) -> None:
    assert past(seconds) == said


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (41_234, "41,234"),
        (6000.0, "6,000"),
        (0.123456, "0.1235"),
        (3e-9, "3e-9"),
        (0.0000348612, "3.486e-5"),
        (0.0004115, "0.0004115"),
        (1e18, "1e+18"),
        ("NaN", "NaN"),
    ],
)
def test_a_large_metric_is_written_in_full(value: float | str, said: str) -> None:
    assert metric(value) == said


def test_every_action_of_the_audit_log_has_words() -> None:
    """Every action that the code names; resources of permissions and files look alike and are left out."""
    code = "".join(
        path.read_text()
        for room in ("tenants", "jobs", "portal")
        for path in (ROOT / room).rglob("*.py")
        if path.name != "notices.py"  # names what happens to an account, beside actions
    )
    code = re.sub(r'source="[^"]*"', "", code)  # where a serializer reads its fields
    named = set(
        re.findall(
            r'"((?:groups|images|job|login(?!.html)|logout|member|passkey|password|project|quota|retention|runtime|secret|service_account|session'
            r'|storage|tenant|token|two_factor|user|view)\.[a-z]+|login\.one_time|[a-z]+\.download)"',
            code,
        )
    )
    of_old = {"staff.edit"}  # by the former database admin; its entries stay
    assert named | of_old == set(ACTION_LABELS)


def test_a_start_says_why_it_came_then(alice: User) -> None:
    job = factories.job(owner=alice)

    def said(numbers: dict[str, object]) -> str:
        event = JobEvent(
            job=job, n=1, code=EventCode.PLACED, message="Attempt 1: 1 learner on node-a", numbers=numbers
        )
        return lines([event])[0].words

    beyond = {"why": "borrowed", "borrowed": 3, "slot_type": "cpu"}
    assert said(beyond) == (
        "Attempt 1: 1 learner on node-a. It goes beyond its tenant's own limit;"
        " 3 CPUs are lent by other tenants."
    )
    assert said(beyond | {"why": "backfilled", "borrowed": 1}).endswith("; 1 CPU is lent by other tenants.")
    assert said(beyond | {"why": "guaranteed", "borrowed": 0}).endswith(
        ". It is within its tenant's own limit."
    )
    for plain in ({}, {"why": "of a later version"}):
        assert said(dict(plain)) == "Attempt 1: 1 learner on node-a"


def test_every_reason_of_a_start_has_words() -> None:
    assert WORDS.keys() == set(StartReason)
