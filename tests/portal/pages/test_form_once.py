"""A form that is sent twice acts once, and both times leads to the same place."""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import connections
from django.test import Client
from django.utils import timezone

from jobs import failpoints
from jobs.lifecycle import periodic
from jobs.models import ClusterNode, IdempotentResponse, Job, JobEvent, Runtime
from jobs.spec import to_yaml
from jobs.states import EventCode, Intent, State
from portal.pages.form_once import REPEATED
from tenants.models import QuotaChange, Tenant, Token, User
from tests import factories
from tests.markup import markup
from tests.portal.pages.conftest import SignIn

pytestmark = pytest.mark.django_db
NEW = "/t/vision-lab/jobs/new"
TOKENS = "/t/vision-lab/tokens"
TEMPLATES = Path(__file__).resolve().parents[3] / "templates"
WITHOUT_KEY = {
    "login.html",
    "components/second_factor.html",
    "confirm.html",
    "login_two_factor.html",
    "me/page.html",
    "shell/own.html",
    "welcome/invited.html",
    "welcome/password.html",
}
"""Signing in and out, and settings that may be set twice."""
KEY = re.compile(r'name="form_key" value="([\w-]{20,})"')


@pytest.fixture(autouse=True)
def runtime(db: None) -> None:
    Runtime.objects.create(slug="plain", title="Python alone")


def text(name: str = "mnist-cnn") -> str:
    return to_yaml(factories.spec(name=name, framework="plain"))


def key_of(page: Any) -> str:
    """The key of a page's first form."""
    found = KEY.search(page.content.decode())
    assert found
    return found[1]


def test_every_form_that_acts_has_a_key() -> None:
    without = {
        str(path.relative_to(TEMPLATES))
        for path in TEMPLATES.rglob("*.html")
        if path.read_text().count('method="post"') > path.read_text().count("{% form_key %}")
    }
    assert without == WITHOUT_KEY


def test_each_rendered_page_has_keys_of_its_own(signed_in: SignIn, alice: User) -> None:
    client = signed_in(alice)
    assert key_of(client.get(NEW)) != key_of(client.get(NEW))


def test_a_job_is_submitted_once_and_both_responses_lead_to_it(signed_in: SignIn, alice: User) -> None:
    client = signed_in(alice)
    form = {"spec": text(), "form_key": key_of(client.get(NEW))}
    first, repeat = (client.post(NEW, form) for _ in range(2))
    job = Job.objects.get()
    assert first["Location"] == repeat["Location"] == f"/t/vision-lab/jobs/{job.pk}"
    assert REPEATED in markup(client.get(first["Location"]))


def test_changed_content_another_address_and_another_key_are_other_actions(
    signed_in: SignIn, alice: User
) -> None:
    client = signed_in(alice)
    for form in (
        {"spec": text("one"), "form_key": "k1"},
        {"spec": text("two"), "form_key": "k1"},
        {"spec": text("two"), "form_key": "k2"},
    ):
        client.post(NEW, form)
    client.post(f"{NEW}?from={Job.objects.get(name='one').pk}", {"spec": text("two"), "form_key": "k2"})
    assert Job.objects.count() == 4


def test_the_key_of_another_user_is_another_form(signed_in: SignIn, alice: User, dave: User) -> None:
    for who in (alice, dave):
        signed_in(who).post(NEW, {"spec": text(), "form_key": "k1"})
    assert set(Job.objects.values_list("owner__username", flat=True)) == {"alice", "dave"}


def test_what_was_refused_may_be_sent_again(signed_in: SignIn, alice: User, lab: Tenant) -> None:
    client, form = signed_in(alice), {"spec": text(), "form_key": "k1"}
    Tenant.objects.filter(pk=lab.pk).update(state="suspended")
    assert client.post(NEW, form).status_code == 422
    Tenant.objects.filter(pk=lab.pk).update(state="active")
    assert client.post(NEW, form).status_code == 302
    assert Job.objects.count() == 1


def test_a_key_expires_with_its_day(signed_in: SignIn, alice: User) -> None:
    client, form = signed_in(alice), {"spec": text(), "form_key": "k1"}
    client.post(NEW, form)
    IdempotentResponse.objects.update(created_at=timezone.now() - timedelta(hours=25))
    periodic.tidy({})
    assert not IdempotentResponse.objects.exists()


@pytest.mark.parametrize("point", ["submit.before_commit", "answer.after_work"])
def test_a_death_before_the_commit_leaves_nothing_and_the_repeat_acts(
    signed_in: SignIn, alice: User, point: str
) -> None:
    client, form = signed_in(alice), {"spec": text(), "form_key": "k1"}

    def die(name: str) -> None:
        if name == point:
            raise SystemExit

    failpoints.arm(die)
    try:
        with pytest.raises(SystemExit):
            client.post(NEW, form)
    finally:
        failpoints.arm(None)
    assert not Job.objects.exists()
    client.post(NEW, form)
    assert Job.objects.count() == 1


def test_a_token_is_made_once_and_the_repeat_shows_its_secret(signed_in: SignIn, alice: User) -> None:
    form = {"name": "laptop", "role": "researcher", "days": "90", "bound": "yes", "form_key": "k1"}
    form["password"] = factories.PASSWORD
    first, again = signed_in(alice), signed_in(alice)
    secrets = []
    for client in (first, again):  # of two clicks, the browser never sees the first one's response
        client.post(f"{TOKENS}/new", form)
        secrets.append(re.search(r"lut_\w{20,}", markup(client.get(TOKENS))))
    assert Token.objects.count() == 1
    assert secrets[0]
    assert secrets[1]
    assert secrets[0][0] == secrets[1][0]
    stored = str(list(IdempotentResponse.objects.values()))
    assert secrets[0][0] not in stored
    assert "k1" not in IdempotentResponse.objects.get().key, "the key, which opens it, is not stored either"


def test_a_halt_is_not_repeated_after_a_resume(signed_in: SignIn, alice: User, lab: Tenant) -> None:
    job = factories.job(of=lab, owner=alice, state=State.PROCESSING)
    client, path = signed_in(alice), f"/t/vision-lab/jobs/{job.pk}"
    halt = {"confirmed": "yes", "form_key": "k1"}
    client.post(f"{path}/halt", halt)
    client.post(f"{path}/resume", {"form_key": "k2"})
    assert Job.objects.get().intent == Intent.RUN
    client.post(f"{path}/halt", halt)  # the browser's retry of a request whose response was lost
    assert Job.objects.get().intent == Intent.RUN
    assert REPEATED in markup(client.get(path))


def test_jobs_are_acted_on_once_each_and_an_interrupted_form_goes_on_with_the_rest(
    signed_in: SignIn, alice: User, lab: Tenant
) -> None:
    jobs = [factories.job(of=lab, owner=alice, name=f"job-{n}") for n in range(3)]
    client, form = signed_in(alice), {"job": [job.pk for job in jobs], "form_key": "k1"}
    seen = 0

    def die(name: str) -> None:
        nonlocal seen
        seen += name == "answer.after_work"
        if seen == 2:
            raise SystemExit

    failpoints.arm(die)
    try:
        with pytest.raises(SystemExit):
            client.post("/t/vision-lab/jobs/cancel", form)
    finally:
        failpoints.arm(None)
    assert Job.objects.filter(intent=Intent.CANCEL).count() == 1
    client.post("/t/vision-lab/jobs/cancel", form)
    requests = JobEvent.objects.filter(code=EventCode.REQUESTED)
    assert Counter(requests.values_list("job", flat=True)) == {job.pk: 1 for job in jobs}
    assert "Canceling 3 of 3 jobs." in markup(client.get("/t/vision-lab/jobs"))


def test_limits_are_applied_once(signed_in: SignIn, admin: User, lab: Tenant) -> None:
    ClusterNode.objects.create(name="node-a", cluster="memory", slot_type="cpu", slots=8)
    form = {
        "limit:vision-lab:cpu": "4",
        "reason": "more work",
        "action": "apply",
        "form_key": "k1",
    }
    client = signed_in(admin)
    answers = [client.post("/admin-console/quotas", form) for _ in range(2)]
    assert [answer.get("Location") for answer in answers] == ["/admin-console/quota-history"] * 2
    assert QuotaChange.objects.filter(reason="more work").count() == 1
    assert markup(client.get("/admin-console/quota-history")).count("Quota updated.") == 1


def test_a_tenant_is_created_once(signed_in: SignIn, admin: User, lab: Tenant) -> None:
    form = {"name": "NLP", "slug": "nlp", "manager": "", "reason": "a new team", "form_key": "k1"}
    client = signed_in(admin)
    answers = [client.post("/admin-console/tenants/new", form) for _ in range(2)]
    assert [answer.get("Location") for answer in answers] == ["/admin-console/tenants/nlp"] * 2
    assert Tenant.objects.filter(slug="nlp").count() == 1


@pytest.mark.django_db(transaction=True)
def test_of_two_clicks_at_once_one_acts_and_the_other_waits_for_its_outcome(alice: User) -> None:
    entered, go_on = threading.Event(), threading.Event()
    answers: list[str] = []

    def wait(name: str) -> None:
        if name == "submit.before_commit" and not entered.is_set():
            entered.set()
            assert go_on.wait(60)

    def click() -> None:
        client = Client()
        client.force_login(alice)
        answers.append(client.post(NEW, {"spec": text(), "form_key": "k1"})["Location"])
        connections.close_all()

    clicks: list[Callable[[], None]] = [click, click]
    threads = [threading.Thread(target=one) for one in clicks]
    failpoints.arm(wait)
    try:
        threads[0].start()
        assert entered.wait(60)
        threads[1].start()
        go_on.set()
        for thread in threads:
            thread.join()
    finally:
        failpoints.arm(None)
    assert answers[0] == answers[1]
    assert Job.objects.count() == 1
