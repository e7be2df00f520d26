"""The timeline beside the cluster page: what was held on each node when, and why nothing ran in a gap."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.http import QueryDict
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from pytest_django import Settings

from gpu_scheduler.model import WaitReason
from jobs.models import ClusterNode, DecidedPlan, Job, JobEvent, NodeChange, PlatformStop
from jobs.selectors import demand
from jobs.selectors import timeline as selected
from portal.pages import timeline
from tenants.models import Tenant, User
from tests import factories
from tests.jobs.made_history import ended, held, job_of_the_past, waited
from tests.markup import markup
from tests.portal.pages.conftest import SignIn

pytestmark = pytest.mark.django_db

PAGE = "/cluster/timeline"
NOW = datetime(2026, 11, 25, 12, 7, tzinfo=UTC)


@pytest.fixture(autouse=True)
def cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two nodes of 8 CPUs, known for a month; it is seven past twelve."""
    monkeypatch.setattr(timeline, "database_now", lambda: NOW)
    for name in ("node-a", "node-b"):
        ClusterNode.objects.create(name=name, cluster="memory", slot_type="cpu", slots=8)
        change(name, NodeChange.State.READY, NOW - timedelta(days=30))


def change(name: str, state: str, at: datetime) -> None:
    NodeChange.objects.create(name=name, at=at, slot_type="cpu", slots=8, state=state)


def at(hour: float) -> datetime:
    return datetime(2026, 11, 25, tzinfo=UTC) + timedelta(hours=hour)


def ran(of: Tenant, slots: int, since: float, until: float, **fields: Any) -> Job:
    job = job_of_the_past(of, slots, at(since), **fields)
    held(job, at(since), at(until))
    return job


def waits(of: Tenant, reason: WaitReason, since: float, until: float, **fields: Any) -> Job:
    job = job_of_the_past(of, 4, at(since), **fields)
    waited(job, reason, at(since))
    ended(job, at(until))
    return job


def nodes(client: Any, **query: str) -> dict[str, Any]:
    page = client.get(PAGE, query)
    assert page.status_code == 200
    return {node["name"]: node for node in page.context["timeline"]["nodes"]}


def why(client: Any, node: str, since: float, until: float) -> Any:
    times = {"since": f"{at(since):%Y-%m-%dT%H:%M:%SZ}", "until": f"{at(until):%Y-%m-%dT%H:%M:%SZ}"}
    return client.get(PAGE, {"span": "day", "node": node} | times)


def gaps(node: dict[str, Any]) -> list[tuple[datetime, datetime, float]]:
    return [(each.since, each.until, each.idle) for each in node["gaps"]]


def test_the_gaps_are_what_nothing_held(signed_in: SignIn, alice: User, lab: Tenant) -> None:
    """A job filled node-a from 2 to 4, two halves of it from 4 to 6."""
    ran(lab, 8, 2, 4)
    ran(lab, 4, 4, 6)
    client = signed_in(alice)
    found = nodes(client)
    assert gaps(found["node-a"]) == [(at(-11.75), at(2), 8), (at(4), at(6), 4), (at(6), NOW, 8)]
    assert gaps(found["node-b"]) == [(at(-11.75), NOW, 8)]
    assert found["node-a"]["used"] == pytest.approx(100 * (8 * 2 + 4 * 2) / (8 * 24), abs=1)
    html = markup(client.get(PAGE))
    assert found["node-a"]["gaps"][0].link.replace("&", "&amp;") in html
    assert "8 of 8 idle" in html or "8.0 of 8 idle" in html


def test_time_before_the_first_record_of_a_node_counts_as_neither_used_nor_idle(
    signed_in: SignIn, alice: User, lab: Tenant
) -> None:
    """On the first day of a cluster, its nodes were not idle for the hours before it existed."""
    NodeChange.objects.all().delete()
    change("node-a", NodeChange.State.READY, NOW - timedelta(hours=4))
    ran(lab, 8, 9 + 7 / 60, 11 + 7 / 60)
    client = signed_in(alice)
    found = nodes(client)
    assert found["node-a"]["used"] == pytest.approx(50)
    assert found["node-b"]["used"] is None
    page = " ".join(markup(client.get(PAGE)).split())
    assert "8 CPUs, 50% used, as far as known<" in page
    assert ">8 CPUs<" in page


def test_jobs_of_others_are_drawn_apart_and_without_their_names(
    signed_in: SignIn, alice: User, lab: Tenant, admin: User
) -> None:
    other = factories.tenant("nlp-research")
    ran(other, 4, 2, 4, name="hush-project")
    ran(lab, 4, 2, 4)
    waits(other, WaitReason.INSUFFICIENT_CAPACITY, 5, 6, name="hush-plan")
    kinds = [band.kind for band in nodes(signed_in(alice))["node-a"]["bands"]]
    assert kinds == ["part-used", "part-others"]
    page = markup(why(signed_in(alice), "node-a", 5, 6))
    assert "1 job waited for CPUs meanwhile." in page
    assert "another tenant" in page
    assert "hush" not in page
    assert "nlp-research" not in page
    kinds = [band.kind for band in nodes(signed_in(admin))["node-a"]["bands"]]
    assert kinds == ["part-used"]
    assert "hush-plan" in markup(why(signed_in(admin), "node-a", 5, 6))


def test_a_tenants_deleted_jobs_stay_its_own(signed_in: SignIn, alice: User, lab: Tenant) -> None:
    ran(lab, 4, 2, 4)
    waits(lab, WaitReason.INSUFFICIENT_CAPACITY, 5, 6, name="hush-plan")
    Job.objects.update(deleted_at=NOW)
    kinds = [band.kind for band in nodes(signed_in(alice))["node-a"]["bands"]]
    assert kinds == ["part-used"]
    page = markup(why(signed_in(alice), "node-a", 5, 6))
    assert "a deleted job" in page
    assert "of another tenant" not in page
    assert "hush-plan" not in page


def test_a_gap_says_which_jobs_waited_and_for_what(signed_in: SignIn, alice: User, lab: Tenant) -> None:
    waits(lab, WaitReason.QUOTA_GPUS, 3, 9, name="too-much")
    waits(lab, WaitReason.GANG_FRAGMENTED, 1, 2, name="earlier")
    waits(lab, WaitReason.QUOTA_GPUS, 3, 9, name="for-gpus", gpus=4, gpu_type="a100")
    page = why(signed_in(alice), "node-a", 4, 5)
    (shown,) = page.context["timeline"]["why"]["jobs"]
    assert (shown["job"].name, shown["reason"]) == ("too-much", "over quota")
    assert (shown["job"].since, shown["job"].until) == (at(4), at(5))
    assert page.context["timeline"]["why"]["sentences"] == ["1 job waited for CPUs meanwhile."]


def test_a_gap_says_that_nothing_waited_and_what_the_node_and_the_platform_were(
    signed_in: SignIn, alice: User
) -> None:
    change("node-b", NodeChange.State.DOWN, at(4))
    change("node-b", NodeChange.State.READY, at(5))
    PlatformStop.objects.create(began_at=at(5.5), ended_at=at(6.5))
    said = why(signed_in(alice), "node-b", 3, 6).context["timeline"]["why"]["sentences"]
    assert said == [
        "The node was down from 04:00 to 05:00 UTC.",
        "The platform was stopped from 05:30 to 06:00 UTC.",
        "Nothing waited for CPUs.",
    ]
    assert [band.kind for band in nodes(signed_in(alice))["node-b"]["phases"]] == ["part-down"]


def test_what_was_not_recorded_is_unknown(
    signed_in: SignIn, alice: User, lab: Tenant, settings: Settings
) -> None:
    ran(lab, 8, 1, 2)
    NodeChange.objects.filter(name="node-a").update(at=at(6))
    settings.LUTHIER_RETENTION_DAYS = 0
    said = why(signed_in(alice), "node-a", 3, 6).context["timeline"]["why"]["sentences"]
    assert said == [
        "The node was in a state that was not recorded.",
        "Unknown whether anything waited for CPUs.",
        "Jobs that were deleted since may be missing here.",
    ]
    assert [band.kind for band in nodes(signed_in(alice))["node-a"]["phases"]] == ["part-unknown"]
    svg = signed_in(alice).get(PAGE).content.decode().split("timeline-band")[1].split("</svg>")[0]
    assert svg.index("part-unknown") < svg.index("part-used"), "what is known to have run is not covered"


@pytest.mark.parametrize(
    "query",
    [
        {"span": "year"},
        {"node": "node-x", "since": "2026-11-25T01:00:00Z", "until": "2026-11-25T02:00:00Z"},
        {"node": "node-a", "since": "yesterday", "until": "2026-11-25T02:00:00Z"},
        {"node": "node-a", "since": "2026-13-45T01:00:00Z", "until": "2026-11-25T02:00:00Z"},
        {"node": "node-a", "since": "2026-11-25T03:00:00Z", "until": "2026-11-25T02:00:00Z"},
    ],
)
def test_an_address_that_names_no_gap_shows_the_last_day(
    signed_in: SignIn, alice: User, query: dict[str, str]
) -> None:
    page = signed_in(alice).get(PAGE, query)
    assert page.status_code == 200
    assert page.context["timeline"]["why"] is None
    assert page.context["timeline"]["span"] == "day"


def test_more_runs_and_waits_take_no_more_queries(signed_in: SignIn, alice: User, lab: Tenant) -> None:
    client = signed_in(alice)

    def queries() -> int:
        with CaptureQueriesContext(connection) as made:
            why(client, "node-a", 3, 6)
        return len(made)

    ran(lab, 2, 2, 3)
    waits(lab, WaitReason.QUOTA_GPUS, 3, 9)
    before = queries()
    for _ in range(3):
        ran(lab, 2, 2, 3)
        waits(lab, WaitReason.QUOTA_GPUS, 3, 9)
    assert queries() == before <= 35


def test_the_cluster_page_which_is_fetched_with_each_change_reads_no_past(
    signed_in: SignIn, alice: User, lab: Tenant
) -> None:
    client = signed_in(alice)
    with CaptureQueriesContext(connection) as made:
        assert 'href="/cluster/timeline"' in markup(client.get("/cluster"))
    assert not [query for query in made if "jobs_nodechange" in query["sql"] or "AS held" in query["sql"]]


def test_only_attempts_of_the_nodes_that_are_drawn_are_read(lab: Tenant) -> None:
    ran(lab, 4, 2, 4)
    assert len(demand.uses_between(at(0), NOW, ["node-a", "node-b"])) == 1
    assert demand.uses_between(at(0), NOW, ["node-b"]) == []


def test_too_many_attempts_or_waits_are_said_to_be_too_many(
    signed_in: SignIn, alice: User, lab: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran(lab, 2, 2, 3)
    for _ in range(2):
        waits(lab, WaitReason.QUOTA_GPUS, 3, 9)
    monkeypatch.setattr(selected, "MOST", 1)
    page = why(signed_in(alice), "node-a", 4, 5)
    assert "Too many jobs waited in this gap" in markup(page)
    assert len(page.context["timeline"]["nodes"]) == 2
    ran(lab, 2, 2, 3)
    assert "Choose a shorter span" in markup(signed_in(alice).get(PAGE))


def test_what_the_database_does_not_read_in_time_is_too_much(
    signed_in: SignIn, alice: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demand, "USES", "SET LOCAL statement_timeout = '10ms'; SELECT pg_sleep(600)")
    page = signed_in(alice).get(PAGE)
    assert page.status_code == 200
    assert "Choose a shorter span" in markup(page)


@pytest.mark.parametrize(("span", "parts"), [("hour", 60), ("day", 96), ("week", 84)])
def test_parts_begin_at_multiples_of_their_length(span: str, parts: int) -> None:
    now = timezone.now()
    frame = timeline.Frame.read(QueryDict(f"span={span}"), now)
    assert frame.parts == parts
    assert frame.start < now <= frame.end < now + frame.part
    assert (frame.start - timeline.MONDAY) % frame.part == timedelta(0)


def test_a_large_cluster_is_drawn_in_pages(
    signed_in: SignIn, alice: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timeline, "NODES", 1)
    client = signed_in(alice)
    assert list(nodes(client)) == ["node-a"]
    assert list(nodes(client, nodes="2")) == ["node-b"]
    assert "Nodes 2 to 2 of 2" in markup(client.get(PAGE, {"nodes": "2"}))
    for text in ("9", "-1", "two", "9" * 30):
        assert len(nodes(client, nodes=text)) == 1


def test_a_gap_names_the_snapshots_that_its_answer_follows_from(
    signed_in: SignIn, alice: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last before it, and those in it; none after it. Of many, the newest."""
    for n, (hour, kept) in enumerate([(1, True), (2, False), (3.5, True), (4, False), (5, True)]):
        row = DecidedPlan.objects.create(
            digest=f"{n}abcdef" * 9,
            policy="fair_share",
            program="",
            decided={},
            snapshot=b"x" if kept else None,
        )
        DecidedPlan.objects.filter(pk=row.pk).update(at=at(hour))
    page = why(signed_in(alice), "node-a", 3, 5)
    found = page.context["timeline"]["why"]
    assert [each["short"] for each in found["plans"]] == ["3abcdef3abcd", "2abcdef2abcd", "1abcdef1abcd"]
    html = markup(page)
    assert "/help/scheduling#decisions-can-be-made-again" in html
    assert 'id="decisions-can-be-made-again"' in markup(signed_in(alice).get("/help/scheduling"))
    assert html.count("(not kept)") == 2
    assert "no earlier one is stored" not in html
    assert "no earlier one is stored" in markup(why(signed_in(alice), "node-a", 0.5, 2))
    monkeypatch.setattr(selected, "MOST_PLANS", 2)
    found = why(signed_in(alice), "node-a", 3, 5).context["timeline"]["why"]
    assert [each["short"] for each in found["plans"]] == ["3abcdef3abcd", "1abcdef1abcd"]
    assert found["gap"].more_plans == 1
    assert why(signed_in(alice), "node-a", 0, 1).context["timeline"]["why"]["plans"] == []


def test_a_gap_says_what_the_orders_of_its_plans_cost_as_far_as_known(
    signed_in: SignIn, alice: User, admin: User, lab: Tenant
) -> None:
    """Of jobs that the reader may see. Orders on other types say nothing of this node."""
    stopped, leaving = ran(lab, 4, 1, 3), ran(lab, 2, 1, 5)
    foreign = ran(factories.tenant("nlp-research"), 2, 1, 5)
    digest = "0abcdef" * 9
    losses = {
        stopped.pk: {"slot_type": "cpu", "unsaved": 7200.0, "restart": 3600.0},
        leaving.pk: {"slot_type": "cpu", "unsaved": 1800.0, "restart": None},
        foreign.pk: {"slot_type": "cpu", "unsaved": 72_000.0, "restart": 0.0},
        ran(lab, 2, 1, 5).pk: {"slot_type": "a100", "unsaved": 9e9, "restart": None},
    }
    row = DecidedPlan.objects.create(digest=digest, policy="", program="", decided={"losses": losses})
    DecidedPlan.objects.filter(pk=row.pk).update(at=at(3))

    def said(reader: User = alice) -> str:
        return markup(why(signed_in(reader), "node-a", 3, 5))

    assert (
        "stops or resizes 2 jobs that you can see: 3.5 CPU hours and 1 restart never measured at stake then;"
        " none has stopped for it" in said()
    )
    assert "stops or resizes 3 jobs that you can see: 23.5 CPU hours" in said(admin)
    back = {"plan": {"snapshot": digest}, "lost": 5400.0}
    JobEvent.objects.create(job=stopped, tenant=lab, n=90, code="MOVED", to_state="QUEUED", numbers=back)
    assert "; lost 1.5 CPU hours of work, 1 job did not stop for it, or not yet" in said()
    none = back | {"lost": 0}
    JobEvent.objects.create(job=leaving, tenant=lab, n=90, code="MOVED", to_state="QUEUED", numbers=none)
    DecidedPlan.objects.update(decided={"losses": {leaving.pk: losses[leaving.pk]}})
    assert "30 CPU minutes and 1 restart never measured at stake then; lost no work" in said()
    DecidedPlan.objects.update(decided={"losses": {foreign.pk: losses[foreign.pk]}})
    assert "at stake" not in said()
