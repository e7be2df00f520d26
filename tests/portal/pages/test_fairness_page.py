"""The fairness page, its CSV, REST and the tenant's own card say what the command says of a made history."""

from __future__ import annotations

import csv
import re
from datetime import timedelta

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from jobs.models import FairnessHour
from jobs.selectors.fairness import HOUR
from portal.pages.entitlements import FIGURES
from tenants.models import User
from tests import factories
from tests.jobs.made_history import held, job_of_the_past
from tests.jobs.test_fairness import EXPECTED, JAIN, Past, command, past, store
from tests.markup import markup
from tests.portal.api.conftest import Api

__all__ = ["past"]
pytestmark = pytest.mark.django_db

PAGE = "/admin-console/fairness"


@pytest.fixture
def admin() -> User:
    return factories.user("admin", is_superuser=True)


@pytest.fixture
def console(client: Client, admin: User) -> Client:
    client.force_login(admin)
    return client


def test_page_csv_rest_and_command_agree_with_a_reckoning_by_hand(
    past: Past, console: Client, admin: User
) -> None:
    store()
    query = {"from": f"{past.at(0):%Y-%m-%dT%H:%M:%SZ}", "to": f"{past.at(3):%Y-%m-%dT%H:%M:%SZ}"}
    answer = Api(admin).get(f"/fairness?from={query['from']}&to={query['to']}").json()
    assert answer["jain"] == {"cpu": round(JAIN, 6)}
    assert answer["unknown"] == []
    items = {row["tenant"]: row for row in answer["items"]}
    printed = {
        line.split()[1]: line.split()[2:] for line in command(past).splitlines() if line.startswith("cpu")
    }
    page = console.get(PAGE, {"days": "1"})  # nothing else was ever held
    shown = {row["tenant"]: row for row in page.context["pools"][0]["rows"]}
    lines = {row["tenant"]: row for row in csv.DictReader(csv_of(console))}
    for tenant, (guaranteed, share, *others) in EXPECTED.items():
        expected = [guaranteed, share, guaranteed + share, *others]
        assert [items[tenant][name] / 3600 for name in FIGURES] == pytest.approx(expected)
        assert [float(number) for number in printed[tenant]] == pytest.approx(expected)
        assert [shown[tenant][name] for name in FIGURES] == pytest.approx(expected)
        assert [float(lines[tenant][f"slot_hours_{name}"]) for name in FIGURES] == pytest.approx(expected)
    html = markup(page)
    assert f"{JAIN:.3f}" in html
    assert "2 short by" in html
    assert "vision-lab, cpu: received 4.0 of 6.0 device-hours, 2.0 short, 0.0 beyond" in html


def csv_of(console: Client) -> list[str]:
    return console.get(f"{PAGE}.csv", {"days": "1"}).content.decode().splitlines()


def test_a_tenant_reads_its_own_lines_and_nothing_of_others(past: Past) -> None:
    store()
    member = factories.member(past.vision, "vera")
    answer = Api(member).get("/tenants/vision-lab/fairness").json()
    assert [row["tenant"] for row in answer["items"]] == ["vision-lab"]
    assert "jain" not in answer
    assert Api(member).get("/fairness").status_code == 403
    by_interval = Api(member).get("/tenants/vision-lab/fairness/history").json()
    assert {row["tenant"] for row in by_interval["items"]} == {"vision-lab"}
    assert Api(member).get("/tenants/nlp-research/fairness/history").status_code == 404
    assert Api(member).get("/fairness/history").status_code == 403
    browser = Client()
    browser.force_login(member)
    assert browser.get(PAGE).status_code == 404
    page = markup(browser.get("/t/vision-lab/usage", {"month": f"{past.at(0):%Y-%m}"}))
    assert "Entitled and received" in page
    assert "nlp-research" not in page
    assert "Jain" not in page
    assert "on average per" not in page, "the key of a chart that only the console has"


def test_the_chart_its_table_and_rest_say_the_same_of_each_interval(
    past: Past, console: Client, admin: User
) -> None:
    store()
    FairnessHour.objects.filter(at=past.at(2)).delete()
    FairnessHour.objects.create(at=past.at(3))  # so that the hour before stays without a record
    page = console.get(PAGE, {"days": "1"})
    chart = page.context["pools"][0]["chart"]
    assert [plot.tenant for plot in chart.plots] == ["audio", "nlp-research", "vision-lab"][
        -len(chart.plots) :
    ]
    column = [plot.tenant for plot in chart.plots].index("vision-lab")
    shown = {row["since"]: row["cells"][column] for row in chart.rows}
    assert [shown[past.at(n)] for n in range(3)] == [(0, 0), (2, 4), None]
    html = markup(page)
    assert "vision-lab, cpu: received 2.0 of 4.0 device-hours, 2.0 short; 1 of 2" in html
    assert html.count('class="part-unrecorded" x=') == len(chart.plots) * len(chart.unknown) > 0
    assert ">unknown</td>" in re.sub(r"\s+(?=[<u])|(?<=[n>])\s+", "", html)
    span = f"from={past.at(0):%Y-%m-%dT%H:%M:%SZ}&to={past.at(3):%Y-%m-%dT%H:%M:%SZ}"
    answer = Api(admin).get(f"/fairness/history?{span}").json()
    rows = [row for row in answer["items"] if row["tenant"] == "vision-lab"]
    assert [row["received"] for row in rows] == [0, 7200, None]
    assert [row["entitled"] for row in rows] == [0, 14400, None]
    assert [row["unknown_s"] for row in rows] == [0, 0, 3600]
    assert answer["interval_s"] == 3600
    first = Api(admin).get(f"/fairness/history?{span}&page_size=2").json()
    rest = Api(admin).get(f"/fairness/history?{span}&page_size=200&cursor={first['next']}").json()
    assert first["items"] + rest["items"] == answer["items"]


def test_without_facts_it_says_so(past: Past, console: Client) -> None:
    assert "Nothing is known of this period" in markup(console.get(PAGE, {"days": "1"}))
    store()
    assert "Unknown, so not counted:" in markup(console.get(PAGE, {"days": "30"}))
    assert csv_of(console)[-1].startswith("cpu")
    assert console.get(f"{PAGE}.csv", {"days": "30"}).content.decode().splitlines()[-1].startswith("unknown,")


def test_without_demand_it_says_so(console: Client, past: Past) -> None:
    store()
    days = {
        "from": f"{past.now - timedelta(days=9):%Y-%m-%d}",
        "to": f"{past.now + timedelta(days=1):%Y-%m-%d}",
    }
    assert console.get(PAGE, days).status_code == 200
    hour = past.at(-4)
    empty = Api(factories.user("root", is_superuser=True)).get(
        f"/fairness?from={hour:%Y-%m-%dT%H:%M:%SZ}&to={hour + HOUR:%Y-%m-%dT%H:%M:%SZ}"
    )
    assert (empty.json()["items"], empty.json()["unknown"], empty.json()["jain"]) == ([], [], {})


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ({"from": "2026-11-25"}, "Give both dates, such as 2026-11-25."),
        ({"from": "25.11.2026", "to": "2026-11-26"}, "Give both dates, such as 2026-11-25."),
        ({"from": "2026-11-26", "to": "2026-11-25"}, "The first day must be before the last one"),
    ],
)
def test_a_wrong_period_is_said_beside_its_dates(console: Client, query: dict[str, str], said: str) -> None:
    answer = console.get(PAGE, query)
    assert answer.status_code == 422
    assert said in markup(answer)


@pytest.mark.parametrize(
    "query",
    [
        "from=0001-01-01T00:00:00Z&to=0001-01-02T00:00:00%2B14:00",
        "from=9999-01-01T00:00:00Z&to=9999-12-31T23:59:59Z",
    ],
)
def test_times_at_the_ends_of_the_calendar_are_no_error(admin: User, past: Past, query: str) -> None:
    assert Api(admin).get(f"/fairness?{query}").json()["items"] == []


@pytest.mark.parametrize("day", ["0001-01-01", "9999-12-31", "2130-01-01"])
def test_days_of_the_future_and_at_the_ends_of_the_calendar_are_empty(
    console: Client, past: Past, day: str
) -> None:
    store()
    held(job_of_the_past(past.vision, 2, past.at(3)), past.at(3), None)
    assert console.get(PAGE, {"from": day, "to": day}).context["pools"] == []
    assert len(console.get(f"{PAGE}.csv", {"from": day, "to": day}).content.decode().splitlines()) == 1


def test_more_jobs_and_tenants_take_no_more_queries(past: Past, console: Client) -> None:
    store()

    def queries() -> int:
        with CaptureQueriesContext(connection) as made:
            assert console.get(PAGE).status_code == 200
        return len(made)

    before = queries()
    for _ in range(3):
        more = factories.tenant()
        held(job_of_the_past(more, 2, past.at(3)), past.at(3), past.now)
    assert queries() == before <= 30
