"""The overview and the jobs list: what they show, to whom, and what filters and bulk actions do."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from jobs.models import Attempt, Job
from jobs.selectors import jobs as jobs_selectors
from jobs.states import Intent, State
from portal.pages import job_views, jobs
from tenants.models import Tenant, User
from tests import factories
from tests.markup import markup
from tests.portal.pages.conftest import SignIn

pytestmark = pytest.mark.django_db


@pytest.fixture
def lab() -> Tenant:
    return factories.tenant("vision-lab")


@pytest.fixture
def alice(lab: Tenant) -> User:
    return factories.member(lab, "alice", password=factories.PASSWORD)


@pytest.fixture
def browser(client: Client, alice: User) -> Client:
    client.force_login(alice)
    return client


def test_no_page_is_visible_without_signing_in(client: Client, lab: Tenant) -> None:
    answer = client.get("/t/vision-lab/jobs")
    assert answer.status_code == 302
    assert answer["Location"] == "/login?next=/t/vision-lab/jobs"


def test_a_foreign_tenant_looks_exactly_like_a_missing_one(browser: Client) -> None:
    factories.tenant("nlp-research")
    foreign, missing = browser.get("/t/nlp-research/jobs"), browser.get("/t/no-such-lab/jobs")
    assert foreign.status_code == missing.status_code == 404
    assert foreign.content == missing.content


def test_signing_in_lands_in_the_own_tenant(client: Client, alice: User) -> None:
    answer = client.post("/login", {"username": "alice", "password": factories.PASSWORD}, follow=True)
    assert answer.redirect_chain[-1][0] == "/t/vision-lab/"
    assert b"Active jobs" in answer.content


def test_a_wrong_password_and_a_wrong_name_read_the_same(client: Client, alice: User) -> None:
    pages = [client.post("/login", {"username": name, "password": "wrong"}) for name in ("alice", "nobody")]
    texts = [page.context["form"].non_field_errors()[0] for page in pages]
    assert texts[0] == texts[1]


def test_the_list_shows_only_this_tenants_jobs(browser: Client, lab: Tenant, alice: User) -> None:
    factories.job(of=lab, owner=alice, name="mnist-cnn")
    other = factories.tenant("nlp-research")
    factories.job(of=other, owner=factories.member(other, "bob"), name="secret-llm")
    page = markup(browser.get("/t/vision-lab/jobs"))
    assert "mnist-cnn" in page
    assert "secret-llm" not in page


def test_filters_live_in_the_address(browser: Client, lab: Tenant, alice: User) -> None:
    factories.job(of=lab, owner=alice, name="waits", state=State.QUEUED)
    factories.job(of=lab, owner=alice, name="broke", state=State.FAILED)
    page = markup(browser.get("/t/vision-lab/jobs?state=FAILED"))
    assert "broke" in page
    assert "waits" not in page
    assert "Unknown state" in markup(browser.get("/t/vision-lab/jobs?state=NOPE"))


def test_each_view_counts_what_it_holds_whatever_is_shown(
    browser: Client, lab: Tenant, alice: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    bob = factories.member(lab, "bob")
    for owner, state in (
        (alice, State.FAILED),
        (bob, State.FAILED),
        (bob, State.QUEUED),
        (bob, State.HALTED),
    ):
        factories.job(of=lab, owner=owner, state=state)
    factories.job(of=factories.tenant("nlp-research"), owner=factories.user("eve"), state=State.FAILED)
    counts = {"active": "2", "mine": "1", "failed": "2", "all": "4"}
    page = markup(browser.get("/t/vision-lab/jobs?state=FAILED&q=nothing"))
    assert dict(re.findall(r'data-view="(\w+)">([^<]*)<', page)) == counts
    changed = markup(browser.get("/t/vision-lab/jobs?rows="))
    assert dict(re.findall(r'data-view="(\w+)"><td>([^<]*)<', changed)) == counts
    monkeypatch.setattr(job_views, "COUNT_CAP", 2)
    page = markup(browser.get("/t/vision-lab/jobs"))
    assert dict(re.findall(r'data-view="(\w+)">([^<]*)<', page)) == counts | {"all": "2+"}


COPIES = """INSERT INTO jobs_job SELECT copy.* FROM jobs_job job, generate_series(1, 3000) n,
  LATERAL jsonb_populate_record(job, jsonb_build_object(
    'id', lpad(n::text, 12, '0'), 'state', CASE WHEN n %% 100 = 0 THEN 'FAILED' ELSE 'COMPLETED' END)) copy"""


def test_counting_a_view_reads_one_range_of_an_index(browser: Client, lab: Tenant, alice: User) -> None:
    factories.job(of=lab, owner=alice, state=State.COMPLETED)
    with connection.cursor() as cursor:
        cursor.execute(COPIES, [])
        cursor.execute("ANALYZE jobs_job")
    with CaptureQueriesContext(connection) as queries:
        browser.get("/t/vision-lab/jobs?rows=")
    counts = [query["sql"] for query in queries if "COUNT(*)" in query["sql"]]
    assert len(counts) == 4
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_seqscan = off")  # as where there are many
        for sql in counts:
            cursor.execute(f"EXPLAIN (COSTS OFF) {sql}")
            plan = "\n".join(row[0] for row in cursor.fetchall())
            assert "Limit" in plan, plan
            assert "Index" in plan, plan
            assert "Sort" not in plan, plan


@pytest.mark.parametrize(
    "page",
    [
        "/t/vision-lab/jobs", "/t/vision-lab/jobs?rows={ids}", "/t/vision-lab/jobs?find=listed",
        "/t/vision-lab/compare?ids={ids}&choose=1", "/t/vision-lab/", "/t/vision-lab/compare",
        "/t/vision-lab/queue", "/t/vision-lab/usage?of=cpu", "/api/v1/jobs", "/admin-console/tenants/vision-lab",
    ],
)  # fmt: skip
def test_no_list_of_jobs_reads_what_was_submitted(
    signed_in: SignIn, lab: Tenant, alice: User, admin: User, page: str
) -> None:
    """It may hold the code, and a field that is read later takes a query for each job."""
    for state in (State.QUEUED, State.PROCESSING, State.FAILED, State.COMPLETED):
        job = factories.job(of=lab, owner=alice, state=state, name="listed", spec_text="x" * 99)
        Attempt.objects.filter(job=job, held=True).update(opened_at=timezone.now() - timedelta(minutes=1))
    client = signed_in(admin if "admin" in page else alice)
    with CaptureQueriesContext(connection) as queries:
        answer = client.get(page.format(ids=",".join(Job.objects.values_list("pk", flat=True))))
    assert answer.status_code == 200
    assert "listed" in answer.content.decode()
    unread = ('"jobs_job"."spec_text"', '"jobs_job"."packages"')
    assert [each["sql"] for each in queries if any(column in each["sql"] for column in unread)] == []


def test_load_more_continues_where_the_page_ended(browser: Client, lab: Tenant, alice: User) -> None:
    ids = {factories.job(of=lab, owner=alice).pk for _ in range(60)}
    first = browser.get("/t/vision-lab/jobs")
    more = browser.get(f"/t/vision-lab/jobs?before={first.context['next']}")
    seen = [job["id"] for answer in (first, more) for job in answer.context["rows"]]
    assert len(seen) == 60
    assert set(seen) == ids


def test_the_last_page_of_a_search_says_how_many_there_are(
    browser: Client, lab: Tenant, alice: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them have been looked at then, however few of them a count may compare."""
    monkeypatch.setattr(jobs_selectors, "COMPARED", 5)
    for n in range(57):
        factories.job(of=lab, owner=alice, name=f"run-{n}")
    first = browser.get("/t/vision-lab/jobs?q=run-")
    assert first.context["total"] == "51+"
    last = browser.get(f"/t/vision-lab/jobs?q=run-&before={first.context['next']}")
    assert last.context["total"] == "57"
    assert not last.context["next"]


def test_a_middle_page_of_a_search_says_no_fewer_than_were_listed(
    browser: Client, lab: Tenant, alice: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs_selectors, "COMPARED", 5)
    for n in range(107):
        factories.job(of=lab, owner=alice, name=f"run-{n}")
    first = browser.get("/t/vision-lab/jobs?q=run-")
    middle = browser.get(f"/t/vision-lab/jobs?q=run-&before={first.context['next']}")
    assert middle.context["total"] == "101+"
    last = browser.get(f"/t/vision-lab/jobs?q=run-&before={middle.context['next']}")
    assert last.context["total"] == "107"


def test_halting_many_says_what_could_not_be_halted(browser: Client, lab: Tenant, alice: User) -> None:
    waits = factories.job(of=lab, owner=alice, state=State.QUEUED)
    ended = factories.job(of=lab, owner=alice, state=State.COMPLETED)
    answer = browser.post("/t/vision-lab/jobs/halt", {"job": [waits.pk, ended.pk]}, follow=True)
    assert Job.objects.get(pk=waits.pk).intent == Intent.HALT
    text = markup(answer)
    assert "Halting 1 of 2 jobs." in text
    assert ended.pk in text


def test_a_viewer_is_offered_no_new_job(client: Client, lab: Tenant) -> None:
    client.force_login(factories.member(lab, "carol", role="viewer"))
    assert "/jobs/new" not in markup(client.get("/t/vision-lab/jobs"))


@pytest.mark.parametrize(("query", "text"), [("", "No jobs yet"), ("?q=zzz", "No job matches")])
def test_the_two_kinds_of_empty_say_different_things(
    browser: Client, lab: Tenant, alice: User, query: str, text: str
) -> None:
    if query:
        factories.job(of=lab, owner=alice)
    assert text in markup(browser.get(f"/t/vision-lab/jobs{query}"))


def test_what_is_selected_beyond_the_most_at_a_time_is_listed_as_not_done(
    signed_in: SignIn, lab: Tenant, alice: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "BULK_MAX", 2)
    made = [factories.job(of=lab, owner=alice, name=f"job-{n}") for n in range(3)]
    client = signed_in(alice)
    client.post("/t/vision-lab/jobs/cancel", {"job": [job.pk for job in made] + [made[0].pk]})
    page = markup(client.get("/t/vision-lab/jobs"))
    assert "Canceling 2 of 3 jobs." in page
    assert "Not done: at most" in page
    made[2].refresh_from_db()
    assert made[2].intent == "RUN"


def test_the_palette_finds_the_newest_jobs_and_takes_nothing_of_the_page(
    browser: Client, lab: Tenant, alice: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "FOUND", 2)
    found = [factories.job(of=lab, owner=alice, name=f"sweep-{n}").pk for n in range(3)]
    factories.job(of=lab, owner=alice, name="another")
    factories.job(of=factories.tenant("nlp-research"), owner=factories.user("eve"), name="sweep-4")
    session = browser.session
    session[jobs.RESULTS] = {"title": "Halting 1 job", "rows": []}
    session.save()
    with CaptureQueriesContext(connection) as queries:
        text = markup(browser.get("/t/vision-lab/jobs?find=sweep"))
    assert set(re.findall(r'data-job="(\w+)"', text)) == set(sorted(found)[1:])
    assert "<html" not in text
    assert not [query for query in queries if "COUNT(*)" in query["sql"]], "views are not counted for it"
    assert "Halting 1 job" in markup(browser.get("/t/vision-lab/jobs")), "shown once, on the page"
