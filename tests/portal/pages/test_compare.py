"""The comparison of jobs: which jobs it takes, what each view shows, and what its address keeps."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db.models.functions import Now
from django.test import Client

from jobs.models import Attempt, Job, Progress
from jobs.states import State
from portal.pages import compare
from tenants.models import AuditEntry, Tenant, User
from tests import factories
from tests.markup import markup
from tests.portal.pages.conftest import SignIn

pytestmark = pytest.mark.django_db
PAGE = "/t/vision-lab/compare"
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def browser(signed_in: SignIn, alice: User) -> Client:
    return signed_in(alice)


def made(lab: Tenant, owner: User, name: str, **metrics: float) -> Job:
    """A job that was created after those that were made before it."""
    at = BEGIN + timedelta(minutes=Job.objects.count())
    job = factories.job(of=lab, owner=owner, name=name, state=State.COMPLETED, created_at=at)
    newest = {key: {"last": value, "step": 10} for key, value in metrics.items()}
    Progress.objects.update_or_create(job=job, defaults={"metrics": newest})
    return job


def charts(page: str) -> dict[str, list[dict[str, Any]]]:
    """The jobs of each chart, by the name of its metric."""
    found = re.findall(r'<x-chart data-jobs="([^"]*)" data-name="([^"]*)"', page)
    return {name: json.loads(jobs.replace("&quot;", '"')) for jobs, name in found}


def test_a_chart_has_a_line_for_each_job_that_reports_its_metric(
    browser: Client, lab: Tenant, alice: User
) -> None:
    first, second = made(lab, alice, "sgd", loss=0.5, lr=0.1), made(lab, alice, "adam", loss=0.25)
    drawn = charts(browser.get(f"{PAGE}?ids={second.pk},{first.pk}").content.decode())
    assert [one["label"] for one in drawn["loss"]] == ["sgd", "adam"]  # oldest first
    assert drawn["lr"] == [{"id": first.pk, "label": "sgd", "color": 1, "dashed": False, "base": True}]


def test_a_job_that_has_not_ended_may_report_a_metric_yet(browser: Client, lab: Tenant, alice: User) -> None:
    ended = made(lab, alice, "ended", loss=0.5)
    live = factories.job(of=lab, owner=alice, name="live", state=State.PROCESSING)
    drawn = charts(browser.get(f"{PAGE}?ids={ended.pk},{live.pk}").content.decode())
    assert [one["label"] for one in drawn["loss"]] == ["ended", "live"]


def test_a_job_that_runs_has_run_until_now(browser: Client, lab: Tenant, alice: User) -> None:
    ended = made(lab, alice, "ended")
    live = factories.job(of=lab, owner=alice, name="live", state=State.PROCESSING)
    Job.objects.filter(pk=live.pk).update(running_s=60)
    Attempt.objects.filter(job=live).update(processing_at=Now() - timedelta(hours=1), known_at=Now())
    page = markup(browser.get(f"{PAGE}?ids={ended.pk},{live.pk}&tab=values"))
    row = page.split('<th scope="row">Ran for</th>')[1].split("</tr>")[0]
    assert re.findall(r'<span class="cell-text">(.*?)</span>', row) == ["—", "1 h 01 min"]


def test_a_job_keeps_its_color_whichever_is_the_baseline(browser: Client, lab: Tenant, alice: User) -> None:
    jobs = [made(lab, alice, name, loss=1) for name in ("a", "b", "c")]
    ids = ",".join(job.pk for job in jobs)
    with_first = charts(browser.get(f"{PAGE}?ids={ids}").content.decode())
    with_last = charts(browser.get(f"{PAGE}?ids={ids}&base={jobs[2].pk}").content.decode())
    drawn = [
        [(one["id"], one["color"], one["dashed"]) for one in each["loss"]] for each in (with_first, with_last)
    ]
    assert drawn[0] == drawn[1]
    bases = [[one["base"] for one in each["loss"]] for each in (with_first, with_last)]
    assert bases == [[True, False, False], [False, False, True]]
    page = markup(browser.get(f"{PAGE}?ids={ids}&base={jobs[2].pk}"))
    assert "differences are from the baseline, c" in page


def test_no_two_lines_of_a_full_comparison_look_alike(browser: Client, lab: Tenant, alice: User) -> None:
    jobs = [made(lab, alice, f"job-{n}", loss=n) for n in range(compare.MOST + 2)]
    answer = browser.get(f"{PAGE}?ids={','.join(job.pk for job in jobs)}")
    drawn = charts(answer.content.decode())["loss"]
    assert len(drawn) == len({(one["color"], one["dashed"]) for one in drawn}) == compare.MOST
    assert f"At most {compare.MOST} jobs are compared. Left out: job-12, job-13." in markup(answer)


def test_jobs_of_others_are_named_like_missing_ones(browser: Client, lab: Tenant, alice: User) -> None:
    other = factories.tenant("nlp-research")
    secret = factories.job(of=other, owner=factories.member(other, "bob"), name="secret-llm")
    mine = [made(lab, alice, name) for name in ("a", "b")]
    page = markup(browser.get(f"{PAGE}?ids={mine[0].pk},{secret.pk},nonsense,{mine[1].pk}"))
    assert f"Not among the jobs of {lab.name}: {secret.pk}, nonsense." in page
    assert "secret-llm" not in page


@pytest.mark.parametrize("query", ["", "?ids=", "?ids=nonsense", "?ids={a}", "?ids={a},{b}&choose=1"])
def test_jobs_to_choose_from_come_first(browser: Client, lab: Tenant, alice: User, query: str) -> None:
    a, b = made(lab, alice, "first"), made(lab, alice, "second")
    answer = browser.get(PAGE + query.format(a=a.pk, b=b.pk))
    page = answer.content.decode()
    assert f"Choose 2 to {compare.MOST} jobs" in page
    boxes = re.findall(r'name="ids" value="(\w+)"( checked)?', page)
    asked = {job.pk for job in (a, b) if job.pk in query.format(a=a.pk, b=b.pk)}
    assert {pk for pk, checked in boxes if checked} == asked
    assert {pk for pk, _ in boxes} == {a.pk, b.pk}


def test_a_chosen_job_that_is_not_among_the_newest_is_kept(
    browser: Client, lab: Tenant, alice: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compare, "RECENT", 1)
    old, new = sorted((made(lab, alice, name) for name in ("a", "b")), key=lambda job: job.pk)
    page = browser.get(f"{PAGE}?ids={old.pk}").content.decode()
    assert re.findall(r'name="ids" value="(\w+)"( checked)?', page) == [(old.pk, " checked"), (new.pk, "")]


def test_the_selection_of_the_list_becomes_an_address(browser: Client, lab: Tenant, alice: User) -> None:
    a, b = made(lab, alice, "a"), made(lab, alice, "b")
    answer = browser.post("/t/vision-lab/jobs/compare", {"job": [a.pk, "nonsense", b.pk]})
    assert answer["Location"] == f"{PAGE}?ids={a.pk},{b.pk}"
    assert browser.post("/t/vision-lab/jobs/compare")["Location"] == f"{PAGE}?"


def test_values_show_what_differs_or_everything(browser: Client, lab: Tenant, alice: User) -> None:
    a, b = made(lab, alice, "a", loss=0.5, acc=0.9), made(lab, alice, "b", loss=0.25, acc=0.9)
    page = markup(browser.get(f"{PAGE}?ids={a.pk},{b.pk}&tab=values"))
    assert "−0.25 (−50%)" in page
    assert '<th scope="row">acc</th>' not in page
    assert '<th scope="row">Owner</th>' not in page
    whole = markup(browser.get(f"{PAGE}?ids={a.pk},{b.pk}&tab=values&all=1"))
    assert '<th scope="row">acc</th>' in whole
    assert '<th scope="row">Owner</th>' in whole


def test_specs_are_compared_with_the_baselines(browser: Client, lab: Tenant, alice: User) -> None:
    a, b = made(lab, alice, "a"), made(lab, alice, "b")
    Job.objects.filter(pk=b.pk).update(spec=b.spec | {"command": "python other.py"})
    page = markup(browser.get(f"{PAGE}?ids={a.pk},{b.pk}&tab=spec"))
    assert "+command: python other.py" in page
    turned = markup(browser.get(f"{PAGE}?ids={a.pk},{b.pk}&tab=spec&base={b.pk}"))
    assert "-command: python other.py" in turned


def test_many_metrics_are_found_by_name(
    browser: Client, lab: Tenant, alice: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compare, "CHARTS", 2)
    a, b = made(lab, alice, "a", x1=1, x2=1, x3=1), made(lab, alice, "b", x1=1)
    ids = f"{a.pk},{b.pk}"
    assert list(charts(browser.get(f"{PAGE}?ids={ids}").content.decode())) == ["x1", "x2"]
    assert list(charts(browser.get(f"{PAGE}?ids={ids}&m=X3").content.decode())) == ["x3"]
    assert "has “none-such” in its name" in markup(browser.get(f"{PAGE}?ids={ids}&m=none-such"))


def test_links_keep_the_view(browser: Client, lab: Tenant, alice: User) -> None:
    a, b, c = (made(lab, alice, name, loss=1) for name in "abc")
    page = markup(browser.get(f"{PAGE}?ids={a.pk},{b.pk},{c.pk}&base={b.pk}&tab=values&all=1"))
    assert f'href="?ids={a.pk},{b.pk},{c.pk}&amp;base={c.pk}&amp;tab=values&amp;all=1"' in page
    assert (
        f'href="?ids={a.pk},{c.pk}&amp;base={b.pk}&amp;tab=values&amp;all=1"' in page
    )  # without the baseline
    assert f'href="?ids={a.pk},{b.pk},{c.pk}&amp;base={b.pk}&amp;choose=1"' in page


def test_each_job_that_an_admin_compares_is_recorded(
    signed_in: SignIn, admin: User, lab: Tenant, alice: User
) -> None:
    jobs = [made(lab, alice, name) for name in "ab"]
    signed_in(admin).get(f"{PAGE}?ids={jobs[0].pk},{jobs[1].pk}&tab=spec")
    read = AuditEntry.objects.filter(action="job.read").values_list("target", "tenant__slug")
    assert set(read) == {(job.pk, "vision-lab") for job in jobs}
