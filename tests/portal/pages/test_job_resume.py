"""The card of a halted job that says what a resume would bring."""

from __future__ import annotations

import re
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.utils import timezone

from jobs import events
from jobs.models import ClusterNode, Job, Progress
from jobs.selectors import what_if
from jobs.selectors.what_if import Preview, preview_resume
from jobs.services.sharing import SharePermission, job_share
from jobs.states import EventCode, Intent, State
from tenants.models import Quota, User
from tests import factories
from tests.markup import markup
from tests.portal.pages.conftest import SignIn

pytestmark = pytest.mark.django_db


def card(user: User, job: Job, signed_in: SignIn) -> str:
    page = markup(signed_in(user).get(f"/t/{job.tenant.slug}/jobs/{job.pk}"))
    part = page.split('<div id="job-resume"', 1)[1].split('<section class="card" id="job-', 1)[0]
    return " ".join(re.sub(r"<[^>]*>", " ", part.split(">", 1)[1]).split())


def halted(owner: User) -> Job:
    return factories.job(owner=owner, state=State.HALTED, intent=Intent.HALT, learners=2, slots=2)


def test_a_resume_that_starts_at_once_says_where_and_what_it_takes(alice: User, signed_in: SignIn) -> None:
    ClusterNode.objects.create(name="node-a", cluster="memory", slot_type="cpu", slots=8)
    Quota.objects.update(used=3, limit=8)
    text = card(alice, halted(alice), signed_in)
    assert "Can start now on node-a" in text
    assert "3 → 7 of 8" in text
    assert "Would run on" not in text, "nothing is known of its steps"


def test_the_rest_is_counted_from_the_checkpoint_at_the_throughput_so_far(
    alice: User, carol: User, signed_in: SignIn
) -> None:
    job = halted(alice)
    Job.objects.filter(pk=job.pk).update(running_s=400)
    Progress.objects.filter(job=job).update(step=200, total=1000, reported_at=timezone.now())
    factories.checkpoint(job, step=100)
    assert "Would run for 30 min" in card(alice, job, signed_in)  # 900 steps of 2 s
    page = markup(signed_in(carol).get(f"/t/vision-lab/jobs/{job.pk}"))
    strip = " ".join(re.sub(r"<[^>]*>", " ", page.split('<dl class="kpis"')[1].split("</dl>")[0]).split())
    assert "Left after resume 30 min at 0.5 steps/s" in strip
    job.checkpoints.update(step=5000)
    assert "Would run on" not in card(alice, job, signed_in), "it reports epochs, and saves by steps"


def test_a_resume_over_quota_says_what_it_would_wait_for(alice: User, signed_in: SignIn) -> None:
    ClusterNode.objects.create(name="node-a", cluster="memory", slot_type="cpu", slots=8)
    Quota.objects.update(used=6, limit=8)
    text = card(alice, halted(alice), signed_in)
    assert "Can start now" not in text
    assert "Would wait in the queue" in text
    assert "quota" in text
    assert "6 → 10 of 8" in text


def test_the_button_says_on_every_tab_that_a_resume_would_wait(alice: User, signed_in: SignIn) -> None:
    ClusterNode.objects.create(name="node-a", cluster="memory", slot_type="cpu", slots=8)
    Quota.objects.update(used=6, limit=8)
    job, client = halted(alice), signed_in(alice)
    for tab in ("", "/logs", "/checkpoints"):
        header = markup(client.get(f"/t/vision-lab/jobs/{job.pk}{tab}")).split('id="job-actions"')[1]
        assert 'aria-describedby="resume-waits"' in header
        assert "Waiting for quota: 6 of 8 CPUs in use, this job needs 4." in header.split('class="tabs"')[0]
    Quota.objects.update(used=0, limit=8)
    other = halted(alice)
    assert "resume-waits" not in markup(client.get(f"/t/vision-lab/jobs/{other.pk}/logs"))


def test_one_that_can_never_start_is_not_shown_as_waiting(alice: User, signed_in: SignIn) -> None:
    ClusterNode.objects.create(name="node-a", cluster="memory", slot_type="cpu", slots=8)
    Quota.objects.update(used=0, limit=3)
    assert "It can&#x27;t start as configured" in card(alice, halted(alice), signed_in)


def test_who_may_not_resume_and_who_need_not_see_no_card(alice: User, carol: User, signed_in: SignIn) -> None:
    assert not card(carol, halted(alice), signed_in)
    assert not card(alice, factories.job(owner=alice, state=State.PROCESSING), signed_in)


def test_twenty_views_are_one_plan_until_the_job_itself_changes(
    alice: User, signed_in: SignIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(what_if, "FRESH_S", 600.0)
    planned: list[str] = []

    def counted(job: Job) -> Preview:
        planned.append(job.pk)
        return preview_resume(job)

    monkeypatch.setattr(what_if, "preview_resume", counted)
    ClusterNode.objects.create(name="node-a", cluster="memory", slot_type="cpu", slots=8)
    job, other = halted(alice), halted(alice)
    texts = {card(alice, job, signed_in) for _ in range(20)}
    assert planned == [job.pk]
    assert len(texts) == 1
    card(alice, other, signed_in)
    assert planned == [job.pk, other.pk], "each job has its own"
    events.append(job_id=job.pk, tenant_id=job.tenant_id, code=EventCode.EDITED, source="user")
    card(alice, job, signed_in)
    assert planned == [job.pk, other.pk, job.pk]
    monkeypatch.setattr(what_if, "FRESH_S", 0.0)
    card(alice, job, signed_in)
    assert planned[3:] == [job.pk]


def test_a_fresh_plan_is_shown_while_another_job_is_planned_for(
    alice: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(what_if, "FRESH_S", 600.0)
    shown, planned_for = halted(alice), halted(alice)
    plans = {job.pk: preview_resume(job) for job in (shown, planned_for)}
    began, may_end = threading.Event(), threading.Event()

    def slow(job: Job) -> Preview:
        if job.pk == planned_for.pk:
            began.set()
            may_end.wait()
        return plans[job.pk]

    monkeypatch.setattr(what_if, "preview_resume", slow)
    what_if.cached_resume_preview(shown)
    with ThreadPoolExecutor() as pool:
        try:
            waiting = pool.submit(what_if.cached_resume_preview, planned_for)
            assert began.wait(60)
            found = pool.submit(what_if.cached_resume_preview, shown).result(60)
        finally:
            may_end.set()
        assert found is plans[shown.pk]
        assert waiting.result(60) is plans[planned_for.pk]


def test_a_guest_who_may_resume_sees_when_it_starts_but_not_the_tenants_quota(
    alice: User, signed_in: SignIn
) -> None:
    ClusterNode.objects.create(name="node-a", cluster="memory", slot_type="cpu", slots=8)
    Quota.objects.update(used=3, limit=8)
    job = halted(alice)
    guest = factories.member(factories.tenant("elsewhere"), "guest")
    job_share(user=alice, job_id=job.pk, username="guest", permission=SharePermission.OPERATE)
    text = card(guest, job, signed_in)
    assert "Can start now on node-a" in text
    assert "of 8" not in text
    assert "Quota" not in text
