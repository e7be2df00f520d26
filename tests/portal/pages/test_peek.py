"""The part beside the list of jobs: what it shows of a job, to whom, and what the list has to open it."""

from __future__ import annotations

import json
import re
from html import unescape

import pytest

from jobs.models import Job, Progress
from jobs.services.sharing import SharePermission, job_share
from jobs.states import State
from tenants.models import AuditEntry, Tenant, User
from tests import factories
from tests.jobs.test_log_lines import store
from tests.markup import markup
from tests.portal.pages.conftest import SignIn
from tests.portal.pages.job_page import moved

pytestmark = pytest.mark.django_db


def peek(signed_in: SignIn, who: User, job: Job, *, status: int = 200) -> str:
    answer = signed_in(who).get(f"/t/{job.tenant.slug}/jobs/{job.pk}/peek")
    assert answer.status_code == status
    return markup(answer)


@pytest.mark.parametrize("state", list(State))
def test_a_job_in_every_state_says_what_it_went_through(alice: User, signed_in: SignIn, state: State) -> None:
    job = factories.job(owner=alice, state=state, name="resnet", stop_reason="halt_requested")
    moved(job, state, reason="halt_requested")
    shown = peek(signed_in, alice, job)
    states = shown.split('class="peek-line"')[1].split("</ol>")[0]

    assert '<h2 id="peek-title" tabindex="-1">resnet</h2>' in shown
    assert re.search("<b>\\w+</b>", states)
    assert "<html" not in shown
    assert "style=" not in shown


def test_the_last_twenty_lines_are_shown(alice: User, signed_in: SignIn) -> None:
    job = factories.job(owner=alice, state=State.PROCESSING)
    store(job, [b"".join(b"line %d\n" % n for n in range(1, 31))])
    shown = re.findall(r'class="message">(line \d+)<', peek(signed_in, alice, job))
    assert shown == [f"line {n}" for n in range(11, 31)]


def test_the_primary_metric_is_charted_with_its_newest_value(alice: User, signed_in: SignIn) -> None:
    job = factories.job(owner=alice, state=State.PROCESSING)
    values = {"accuracy": {"last": 0.5, "step": 7}, "train/loss": {"last": 1.25, "step": 7}}
    Progress.objects.filter(job=job).update(metrics=values, metric_seq=9)
    shown = peek(signed_in, alice, job)

    assert re.findall(r'<x-chart data-job="\w+" data-name="([^"]+)"', shown) == ["train/loss"]
    (said,) = re.findall('data-metrics="([^"]*)"', shown)
    assert json.loads(unescape(said)) == {"seq": 9, "values": {"train/loss": {"last": 1.25, "step": 7}}}


def test_what_is_not_there_yet_is_said(alice: User, signed_in: SignIn) -> None:
    waits = peek(signed_in, alice, factories.job(owner=alice))
    over = peek(signed_in, alice, factories.job(owner=alice, state=State.FAILED))
    assert ["No metrics yet" in waits, "No logs yet" in waits] == [True, True]
    assert ["No metrics reported" in over, "No log" in over] == [True, True]


def test_only_those_who_may_read_the_job_may_peek_at_it(
    lab: Tenant, alice: User, carol: User, signed_in: SignIn
) -> None:
    job = factories.job(owner=alice, name="secret-llm")
    stranger = factories.member(factories.tenant("nlp-research"), "bob")
    assert "secret-llm" in peek(signed_in, carol, job)
    missing = signed_in(stranger).get("/t/vision-lab/jobs/000000000000/peek")
    foreign = signed_in(stranger).get(f"/t/vision-lab/jobs/{job.pk}/peek")
    assert [missing.status_code, foreign.status_code] == [404, 404]
    assert markup(foreign) == markup(missing)

    job_share(user=alice, job_id=job.pk, username="bob", permission=SharePermission.VIEW)
    assert "secret-llm" in peek(signed_in, stranger, job)


def test_an_admin_s_peek_is_recorded_as_reading_the_job(alice: User, admin: User, signed_in: SignIn) -> None:
    job = factories.job(owner=alice)
    peek(signed_in, admin, job)
    assert AuditEntry.objects.get(actor=admin, target=job.pk).action == "job.read"


def test_each_row_of_the_list_has_a_button_that_names_its_job(alice: User, signed_in: SignIn) -> None:
    job = factories.job(owner=alice, name="resnet")
    page = markup(signed_in(alice).get("/t/vision-lab/jobs"))
    assert f'aria-haspopup="dialog" aria-label="Peek at resnet, {job.pk[-6:]}"' in page
    assert '<dialog id="peek"' in page
