"""Searches by REST: of the audit log by who, what, of what and when, and of a tenant's members."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from portal.api import paging
from tenants.models import AuditEntry, Membership, Tenant, User
from tenants.roles import Role
from tests import factories
from tests.jobs.conftest import People
from tests.portal.api.conftest import Api
from tests.reads import pages_read

LAB = "/tenants/vision-lab"
NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)


def entry(
    tenant: Tenant | None, actor: User | None, action: str, target: str = "", minutes: int = 0
) -> AuditEntry:
    at = NOON + timedelta(minutes=minutes)
    return AuditEntry.objects.create(tenant=tenant, actor=actor, action=action, target=target, at=at)


def found(caller: Api, path: str, query: str) -> list[str]:
    answer = caller.get(f"{path}?{query}")
    assert answer.status_code == 200, answer.content
    return [f"{each['action']} {each['target']}" for each in answer.json()["items"]]


@pytest.fixture
def log(people: People) -> People:
    entry(people.vision, people.dave, "member.add", "carol", 0)
    entry(people.vision, people.admin, "job.read", "3f9k2m7qx4ta", 10)
    entry(people.vision, people.dave, "member.change", "carol", 20)
    entry(people.nlp, people.admin, "member.add", "carol", 30)
    entry(None, None, "membership.odd", "carol", 40)
    return people


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("actor=dave", ["member.change carol", "member.add carol"]),
        ("actor=Dave", []),
        ("action=member", ["member.change carol", "member.add carol"]),
        ("action=member.add", ["member.add carol"]),
        ("object=3f9k2m7qx4ta", ["job.read 3f9k2m7qx4ta"]),
        ("from=2026-11-20T12:10:00Z", ["member.change carol", "job.read 3f9k2m7qx4ta"]),
        ("from=2026-11-20T12:10:00&to=2026-11-20T13:20:00%2B01:00", ["job.read 3f9k2m7qx4ta"]),
        ("actor=dave&action=member&object=carol&to=2026-11-20T12:20:00Z", ["member.add carol"]),
        ("actor=no-such-user", []),
    ],
)
def test_a_manager_finds_what_fits_all_conditions_in_their_tenant(
    dave: Api, log: People, query: str, expected: list[str]
) -> None:
    assert found(dave, f"{LAB}/audit", query) == expected


def test_an_admin_searches_all_tenants(admin: Api, dave: Api, log: People) -> None:
    assert found(admin, "/audit", "action=member&object=carol") == [
        "member.add carol",
        "member.change carol",
        "member.add carol",
    ]
    assert dave.get("/audit?actor=dave").status_code == 403


@pytest.mark.parametrize(
    ("query", "path"),
    [
        ("from=yesterday", "from"),
        ("user=dave", "user"),
        (f"actor={'x' * 151}", "actor"),
        ("actor=", "actor"),
        ("actor=%00", "actor"),
        ("actor=dave&actor=alice", "actor"),
    ],
)
def test_a_condition_that_makes_no_sense_is_refused_by_name(
    dave: Api, people: People, query: str, path: str
) -> None:
    answer = dave.get(f"{LAB}/audit?{query}")
    assert (answer.status_code, [each["path"] for each in answer.json()["errors"]]) == (400, [path])


def test_a_search_looks_at_a_bounded_part_and_the_next_page_at_the_next(
    dave: Api, log: People, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(30):
        entry(log.nlp if n % 2 else log.vision, log.admin, "job.read", f"job{n}")
    monkeypatch.setattr(paging, "SEARCHED", 4)
    pages, items, cursor = 0, [], ""
    while cursor is not None and pages < 20:
        body = dave.get(f"{LAB}/audit?actor=dave&page_size=1&cursor={cursor}".removesuffix("&cursor=")).json()
        items += [each["action"] for each in body["items"]]
        pages, cursor = pages + 1, body["next"]
    assert (items, pages) == (["member.change", "member.add"], 5)
    first = dave.get(f"{LAB}/audit?actor=dave").json()["next"]
    answer = dave.get(f"{LAB}/audit?actor=alice&cursor={first}")
    assert (answer.status_code, answer.json()["code"]) == (400, "cursor_invalid"), "another search's cursor"


def test_a_rare_match_in_a_long_log_is_sought_in_a_part_of_it_only(
    dave: Api, people: People, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry(people.vision, people.dave, "member.add", "rare")
    AuditEntry.objects.bulk_create(
        AuditEntry(tenant=people.vision, actor=people.admin, action="job.read", target=f"job{n}")
        for n in range(6000)
    )
    monkeypatch.setattr(paging, "SEARCHED", 100)
    assert pages_read(lambda: dave.get(f"{LAB}/audit?object=rare")) < 200
    assert len(dave.get(f"{LAB}/audit?page_size=200").json()["items"]) == 200, (
        "without conditions nothing is sought"
    )


def names(answer: Any) -> list[str]:
    assert answer.status_code == 200
    return [each["username"] for each in answer.json()["items"]]


def test_members_are_searched_as_on_the_page(alice: Api, people: People) -> None:
    User.objects.filter(username="carol").update(
        first_name="Caroline", last_name="Berg", email="c@berg.example"
    )
    path = f"{LAB}/members"
    assert names(alice.get(f"{path}?search=CAR")) == ["carol"]
    assert names(alice.get(f"{path}?search=berg")) == ["carol"]
    assert names(alice.get(f"{path}?search=manager")) == ["dave"]
    assert names(alice.get(f"{path}?search=c%40berg")) == [], "addresses are not searched"
    assert names(alice.get(f"{path}?search=%25")) == [], "no pattern of the database"
    assert alice.get(f"{path}?search={'x' * 121}").status_code == 400
    everyone = Membership.objects.filter(tenant=people.vision).order_by("user__username")
    assert names(alice.get(path)) == [row.user.username for row in everyone]


def test_a_search_of_members_goes_on_page_by_page_and_finds_no_others(
    alice: Api, bob: Api, people: People
) -> None:
    for n in range(3):
        factories.member(people.vision, f"zoe{n}", role=Role.VIEWER)
    factories.member(people.nlp, "zoe-there", role=Role.VIEWER)
    first = alice.get(f"{LAB}/members?search=zoe&page_size=2")
    assert names(first) == ["zoe0", "zoe1"]
    assert names(alice.get(f"{LAB}/members?search=zoe&page_size=2&cursor={first.json()['next']}")) == ["zoe2"]
    assert bob.get(f"{LAB}/members?search=zoe").status_code == 404
