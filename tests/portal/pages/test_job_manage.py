"""Changing a job from its page, and many at once from the list, with a result for each."""

from __future__ import annotations

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from guardian.shortcuts import assign_perm

from jobs.models import Job
from jobs.services.sharing import shares_of
from jobs.spec.definition import MAX_NAME_CHARS
from jobs.states import Intent, State
from portal.pages import me
from tenants.models import User
from tests import factories
from tests.markup import markup
from tests.portal.pages.conftest import SignIn

pytestmark = pytest.mark.django_db


@pytest.fixture
def browser(alice: User, signed_in: SignIn) -> Client:
    return signed_in(alice)


def address(job: Job, more: str = "") -> str:
    return f"/t/{job.tenant.slug}/jobs/{job.pk}{more}"


def test_a_job_is_renamed_tagged_and_given_another_priority_on_its_page(browser: Client, alice: User) -> None:
    job = factories.job(owner=alice, tags=["old"])
    assert f'href="{address(job, "/edit")}"' in markup(browser.get(address(job)))
    form = markup(browser.get(address(job, "/edit")))
    assert 'value="train"' in form
    assert 'value="old"' in form
    assert f'maxlength="{MAX_NAME_CHARS}"' in form
    typed = {"name": "mnist", "tags": "sweep, old, sweep", "priority": "low"}
    answer = browser.post(address(job, "/edit"), typed, follow=True)
    assert answer.redirect_chain[-1][0] == address(job)
    job.refresh_from_db()
    assert (job.name, job.tags, job.priority) == ("mnist", ["sweep", "old"], "low")


def test_what_was_typed_stays_where_something_is_wrong(browser: Client, alice: User) -> None:
    job = factories.job(owner=alice)
    answer = browser.post(address(job, "/edit"), {"name": "x" * 500, "tags": "a", "priority": "sometime"})
    assert answer.status_code == 422
    page = markup(answer)
    assert "x" * 500 in page
    assert 'role="alert"' in page
    job.refresh_from_db()
    assert (job.name, job.tags) == ("train", [])


def test_an_ended_job_keeps_its_priority_and_can_be_renamed_and_deleted(browser: Client, alice: User) -> None:
    job = factories.job(owner=alice, state=State.COMPLETED)
    browser.post(address(job, "/edit"), {"name": "kept", "tags": ""})
    job.refresh_from_db()
    assert job.name == "kept"
    answer = browser.post(address(job, "/delete"), follow=True)
    assert "Deleted kept." in markup(answer)
    assert browser.get(address(job)).status_code == 404
    runs = factories.job(owner=alice, state=State.PROCESSING)
    assert "Delete job" not in markup(browser.get(address(runs, "/edit")))
    browser.post(address(runs, "/delete"))
    assert Job.objects.get(pk=runs.pk).deleted_at is None


def test_who_a_job_is_shared_with_finds_it(browser: Client, alice: User, signed_in: SignIn) -> None:
    bob = factories.member(factories.tenant("nlp"), "bob")
    job = factories.job(owner=alice, name="mnist")
    link = f'<a href="{address(job)}">mnist</a>'
    browser.post(address(job, "/share"), {"username": "bob", "permission": "view"})
    assert link not in markup(browser.get("/me")), "in one's own tenant it is in the list of jobs"
    assert link in markup(signed_in(bob).get("/me"))
    browser.post(address(job, "/unshare"), {"username": "bob"})
    assert link not in markup(signed_in(bob).get("/me"))


def test_the_list_of_shared_jobs_has_an_end_and_reads_no_spec(
    alice: User, signed_in: SignIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    bob = factories.member(factories.tenant("nlp"), "bob")
    for n in range(3):
        assign_perm("jobs.view_job", bob, factories.job(owner=alice, name=f"run-{n}"))
    profile = signed_in(bob)
    with CaptureQueriesContext(connection) as queries:
        page = markup(profile.get("/me"))
    assert ">run-0</a>" in page
    assert "older</p>" not in page
    reads = [one["sql"] for one in queries.captured_queries if '"jobs_job"."name"' in one["sql"]]
    assert reads
    assert not any("spec" in sql for sql in reads)
    monkeypatch.setattr(me, "SHARED_SHOWN", 1)
    page = markup(profile.get("/me"))
    assert ">run-2</a>" in page
    assert ">run-1</a>" not in page
    assert '<p class="secondary">and 2 older</p>' in page


def test_a_job_is_shared_and_no_longer_shared_on_its_page(browser: Client, alice: User) -> None:
    factories.member(factories.tenant("nlp-research"), "bob")
    job = factories.job(owner=alice)
    page = markup(
        browser.post(address(job, "/share"), {"username": "bob", "permission": "operate"}, follow=True)
    )
    assert "Shared with bob, if there is such a user." in page
    assert [(one.username, one.permission) for one in shares_of(user=alice, job_id=job.pk)] == [
        ("bob", "operate")
    ]
    unknown = markup(browser.post(address(job, "/share"), {"username": "eve"}, follow=True))
    assert "Shared with eve, if there is such a user." in unknown
    browser.post(address(job, "/unshare"), {"username": "eve"})
    browser.post(address(job, "/unshare"), {"username": "bob"})
    assert shares_of(user=alice, job_id=job.pk) == []


def test_who_may_not_manage_a_job_is_offered_no_edit(carol: User, alice: User, signed_in: SignIn) -> None:
    job, client = factories.job(owner=alice), signed_in(carol)
    assert "/edit" not in markup(client.get(address(job)))
    assert client.get(address(job, "/edit")).status_code == 403
    assert client.post(address(job, "/edit"), {"name": "x"}).status_code == 403


@pytest.mark.parametrize(
    ("verb", "form", "title", "words"),
    [
        ("halt", {}, "Halting 1 of 3 jobs.", "Halting."),
        ("resume", {}, "Resuming 1 of 3 jobs.", "Resuming."),
        ("cancel", {}, "Canceling 2 of 3 jobs.", "Canceling."),
        ("delete", {}, "Deleted 1 of 3 jobs.", "Deleted."),
        ("tag", {"new_tags": "sweep, b"}, "Tagged 3 of 3 jobs.", "Tagged."),
    ],
)
def test_an_action_on_many_jobs_has_a_result_for_each(
    browser: Client, alice: User, verb: str, form: dict[str, str], title: str, words: str
) -> None:
    """Only halting was possible, and it said nothing of the jobs that it had halted."""
    jobs = [
        factories.job(owner=alice, name="waits", tags=["a"]),
        factories.job(owner=alice, name="halted", state=State.HALTED, intent=Intent.HALT, tags=["a"]),
        factories.job(owner=alice, name="ended", state=State.COMPLETED, tags=["a"]),
    ]
    answer = browser.post(
        f"/t/vision-lab/jobs/{verb}", {"job": [job.pk for job in jobs], "state": "", **form}, follow=True
    )
    page = markup(answer)
    assert title in page
    rows = page.split('id="bulk-results"', 1)[1].split("</ul>", 1)[0].split("<li>")[1:]
    assert len(rows) == 3
    done = int(title.split()[1])
    assert (
        sum(words in row.split("<p>")[1].split("</p>")[0] for row in rows if "octagon-alert" not in row)
        == done
    )
    assert "bulk-results" not in markup(browser.get("/t/vision-lab/jobs")), "they are shown once"
    if verb == "tag":
        assert set(map(tuple, Job.objects.values_list("tags", flat=True))) == {("a", "sweep", "b")}


def test_without_a_selection_nothing_is_done(browser: Client) -> None:
    assert "Choose at least one job first." in markup(browser.post("/t/vision-lab/jobs/cancel", follow=True))
