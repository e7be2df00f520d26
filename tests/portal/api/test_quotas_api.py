"""Limits change all or none, never above what may be promised; a dry run shows the effects; usage adds up."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction
from django.utils import timezone

from jobs.models import Attempt, ClusterNode, Job, JobEvent
from jobs.selectors import quota_effects, what_if
from jobs.services import quotas as quota_services
from jobs.states import State
from portal.api.quotas import CHANGE_SETS_A_MINUTE
from tenants.errors import FieldsInvalid
from tenants.models import AuditEntry, Quota, QuotaChange
from tenants.services.quotas import Change
from tests import factories
from tests.jobs.conftest import People
from tests.portal.api.conftest import Api

QUOTAS = "/tenants/vision-lab/quotas"


@pytest.fixture(autouse=True)
def cluster(people: People) -> None:
    """16 CPU slots; both tenants are promised 8 of them."""
    for name in ("node-a", "node-b"):
        ClusterNode.objects.create(name=name, cluster="memory", slot_type="cpu", slots=8)


def change(tenant: str, limit: int, **more: Any) -> dict[str, Any]:
    return {"tenant": tenant, "gpu_type": "cpu", "limit": limit, **more}


def limits() -> dict[str, int]:
    return dict(Quota.objects.values_list("tenant__slug", "limit"))


def test_quotas_show_limit_use_and_what_waits(alice: Api, people: People) -> None:
    factories.job(owner=people.alice, state=State.PROCESSING, slots=2)
    factories.job(owner=people.alice, learners=3)
    factories.job(owner=people.alice, intent="HALT")
    row = alice.get(QUOTAS).json()["items"][0]
    assert (row["gpu_type"], row["limit"], row["used"], row["waiting"]) == ("cpu", 8, 2, 3)


def test_a_short_list_comes_at_once_or_in_the_pages_asked_for(alice: Api, people: People) -> None:
    for gpu_type in ("a100", "h100", "l4"):
        Quota.objects.create(tenant=people.vision, gpu_type=gpu_type, limit=1)
    everything = alice.get(QUOTAS).json()
    assert (len(everything["items"]), everything["next"]) == (4, None)
    first = alice.get(f"{QUOTAS}?page_size=2").json()
    Quota.objects.create(tenant=people.vision, gpu_type="b200", limit=1)
    second = alice.get(f"{QUOTAS}?page_size=2&cursor={first['next']}").json()
    types = [row["gpu_type"] for page in (first, second) for row in page["items"]]
    assert len(types) == len(set(types)) == 4
    assert second["next"] is None
    assert alice.get(f"{QUOTAS}?cursor={first['next']}x").json()["code"] == "cursor_invalid"
    assert alice.get(f"{QUOTAS}?page_size=0").status_code == 400


def test_setting_a_limit_leaves_a_line_of_history(admin: Api, alice: Api, people: People) -> None:
    factories.job(of=people.vision, owner=people.alice, state=State.PROCESSING, slots=3)
    answer = admin.put(f"{QUOTAS}/cpu", {"limit": 10, "reason": "Grant"})
    assert (answer.status_code, answer.json()["limit"]) == (200, 10)
    line = alice.get("/tenants/vision-lab/quota-changes").json()["items"][0]
    assert (line["old_limit"], line["new_limit"], line["reason"], line["actor"]) == (8, 10, "Grant", "admin")
    assert line["used_then"] == 3


def test_history_cannot_be_rewritten(admin: Api) -> None:
    admin.put(f"{QUOTAS}/cpu", {"limit": 10, "reason": "Grant"})
    for tamper in (
        lambda: QuotaChange.objects.update(reason="x"),
        lambda: QuotaChange.objects.all().delete(),
    ):
        with pytest.raises(IntegrityError), transaction.atomic():
            tamper()


def test_a_limit_needs_its_reason_and_a_number_in_range(admin: Api) -> None:
    for body in (
        {"limit": 9},
        {"limit": -1, "reason": "x"},
        {"limit": 9, "reason": " "},
        {"limit": 1.5, "reason": "x"},
    ):
        assert admin.put(f"{QUOTAS}/cpu", body).status_code == 400, body
    assert limits()["vision-lab"] == 8


def test_a_change_is_in_the_audit_log_with_its_address_and_a_change_of_nothing_is_not(
    admin: Api, people: People
) -> None:
    admin.put(f"{QUOTAS}/cpu", {"limit": 10, "lending_limit": 2, "reason": "Grant"})
    entry = AuditEntry.objects.get(action="quota.set")
    assert (entry.actor, entry.tenant, entry.target) == (people.admin, people.vision, "cpu")
    assert (entry.reason, entry.address) == ("Grant", "127.0.0.1")
    assert entry.details["limit"] == {"from": 8, "to": 10}
    assert entry.details["lending_limit"]["to"] == 2
    admin.put(f"{QUOTAS}/cpu", {"limit": 10, "reason": "Again"})
    assert AuditEntry.objects.filter(action="quota.set").count() == 1


def test_an_unknown_type_has_no_quota(admin: Api) -> None:
    answer = admin.put(f"{QUOTAS}/h9000", {"limit": 1, "reason": "x"})
    assert (answer.status_code, answer.json()["errors"][0]["code"]) == (400, "gpu_type_not_found")


def test_promises_stay_within_what_most_allocatable(admin: Api) -> None:
    assert admin.put(f"{QUOTAS}/cpu", {"limit": 12, "reason": "x"}).status_code == 200  # 20 = 1.25 x 16
    answer = admin.put(f"{QUOTAS}/cpu", {"limit": 13, "reason": "x"})
    assert (answer.status_code, answer.json()["code"]) == (409, "overcommitted")
    assert limits() == {"vision-lab": 12, "nlp-research": 8}


def test_lowering_is_always_possible_even_where_too_much_is_promised(admin: Api) -> None:
    Quota.objects.filter(tenant__slug="vision-lab").update(limit=100)
    assert admin.put(f"{QUOTAS}/cpu", {"limit": 90, "reason": "less"}).status_code == 200


def test_a_limit_below_the_use_stops_nothing(admin: Api, people: People) -> None:
    job = factories.job(owner=people.alice, state=State.PROCESSING, slots=6)
    assert admin.put(f"{QUOTAS}/cpu", {"limit": 2, "reason": "x"}).status_code == 200
    job.refresh_from_db()
    assert (job.state, Quota.objects.get(tenant=people.vision).used) == (State.PROCESSING, 6)


def test_a_stale_version_is_refused(admin: Api) -> None:
    etag = admin.get(QUOTAS).json()["items"][0]["etag"]
    assert admin.put(f"{QUOTAS}/cpu", {"limit": 9, "reason": "x"}, If_Match=etag).status_code == 200
    stale = admin.put(f"{QUOTAS}/cpu", {"limit": 7, "reason": "x"}, If_Match=etag)
    assert (stale.status_code, stale["ETag"]) == (412, '"limit-9"')


def test_a_change_set_is_applied_whole_or_not_at_all(admin: Api) -> None:
    good, bad = change("vision-lab", 12), change("nlp-research", 20)
    answer = admin.post("/quota-changes", {"changes": [good, bad], "reason": "x"})
    assert answer.json()["code"] == "overcommitted"
    assert limits() == {"vision-lab": 8, "nlp-research": 8}
    both = admin.post("/quota-changes", {"changes": [good, change("nlp-research", 4)], "reason": "x"})
    assert both.status_code == 200
    assert limits() == {"vision-lab": 12, "nlp-research": 4}
    assert QuotaChange.objects.values("change_set").distinct().count() == 1


def test_every_wrong_change_of_a_set_is_named(admin: Api) -> None:
    changes = [
        change("nobody", 1),
        change("vision-lab", 1),
        change("vision-lab", 2),
        {"tenant": "nlp-research", "gpu_type": "x", "limit": 1},
    ]
    answer = admin.post("/quota-changes", {"changes": changes, "reason": "x"})
    paths = {error["path"] for error in answer.json()["errors"]}
    assert paths == {"changes[0].tenant", "changes[2]", "changes[3].gpu_type"}


def test_missing_tenants_and_types_are_named_along_with_malformed_changes(admin: Api) -> None:
    changes: list[Any] = [
        change("nobody", 1),
        change("vision-lab", -1),
        change("vision-lab", 2),
        {"tenant": "nlp-research", "gpu_type": "x", "limit": "1", "limits": 3},
        {"tenant": "n" * 41, "gpu_type": 7, "limit": 1},
        "nobody",
        {"tenant": " absent ", "gpu_type": "cpu"},
    ]
    answer = admin.post("/quota-changes", {"changes": changes})
    assert answer.status_code == 400
    found = sorted((error["path"], error["code"]) for error in answer.json()["errors"])
    assert [each for each in found if each[1].endswith("_not_found") or each[1] == "repeated"] == [
        ("changes[0].tenant", "tenant_not_found"),
        ("changes[2]", "repeated"),
        ("changes[3].gpu_type", "gpu_type_not_found"),
        ("changes[6].tenant", "tenant_not_found"),
    ]
    assert {path for path, _ in found} == {
        "reason", "changes[0].tenant", "changes[1].limit", "changes[2]", "changes[3].gpu_type", "changes[3].limit",
        "changes[3].limits", "changes[4].tenant", "changes[4].gpu_type", "changes[5]", "changes[6].limit",
        "changes[6].tenant",
    }  # fmt: skip
    for many in ([change("nobody", -1)] * 50, [change("nobody", 1)] * 500 + [change("nobody", -1)]):
        answer = admin.post("/quota-changes", {"changes": many, "reason": "x"})
        codes = {error["code"] for error in answer.json()["errors"]}
        assert not codes & {"tenant_not_found", "repeated"}, "nothing is looked up that would not be shown"
    for body in ({"changes": 1}, {"changes": {}}, {"changes": [change("nobody", 1)] * 501, "reason": "x"}):
        assert {error["path"] for error in admin.post("/quota-changes", body).json()["errors"]} <= {
            "changes",
            "reason",
        }


def test_the_service_names_missing_tenants_along_with_limits_out_of_range(people: People) -> None:
    changes = [Change("nobody", "cpu", 1), Change("vision-lab", "x", -1)]
    with pytest.raises(FieldsInvalid) as refused:
        quota_services.quotas_change(user=people.admin, changes=changes, reason="")
    assert [error["path"] for error in refused.value.details["errors"]] == [
        "reason",
        "changes[1].limit",
        "changes[0].tenant",
        "changes[1].gpu_type",
    ]


def test_a_change_made_for_another_limit_refuses_the_set(admin: Api) -> None:
    changes = [change("vision-lab", 9, if_limit=8), change("nlp-research", 7, if_limit=5)]
    answer = admin.post("/quota-changes", {"changes": changes, "reason": "x"})
    assert (answer.status_code, answer.json()["code"]) == (409, "limit_changed")
    assert answer.json()["errors"][0]["path"] == "changes[1].if_limit"
    assert limits() == {"vision-lab": 8, "nlp-research": 8}


def test_a_dry_run_shows_the_effects_and_changes_nothing(admin: Api, people: People) -> None:
    factories.job(owner=people.bob, state=State.PROCESSING, slots=6)
    waiting = factories.job(owner=people.alice, slots=8, learners=1, name="big")
    Quota.objects.filter(tenant=people.vision).update(limit=4)
    body = {"changes": [change("vision-lab", 8), change("nlp-research", 2)], "reason": "x", "dry_run": True}
    answered = admin.post("/quota-changes", body).json()
    assert answered["change_set"] is None
    assert answered["effects"]["over"] == [
        {"tenant": "nlp-research", "gpu_type": "cpu", "limit": 2, "used": 6, "over": 4}
    ]
    assert [each["job"] for each in answered["effects"]["starts"]] == [waiting.pk]
    assert answered["effects"]["totals"] == [{"gpu_type": "cpu", "limits": 10, "capacity": 16, "allowed": 20}]
    assert limits() == {"vision-lab": 4, "nlp-research": 8}
    back = {"changes": [change("vision-lab", 2)], "reason": "x", "dry_run": True}
    Quota.objects.filter(tenant=people.vision).update(limit=8)
    assert [each["job"] for each in admin.post("/quota-changes", back).json()["effects"]["waits"]] == [
        waiting.pk
    ]


def test_an_applied_set_shows_the_same_effects_as_its_dry_run(admin: Api, people: People) -> None:
    factories.job(owner=people.alice, slots=8)
    Quota.objects.filter(tenant=people.vision).update(limit=4)
    body = {"changes": [change("vision-lab", 8)], "reason": "x"}
    dry = admin.post("/quota-changes", body | {"dry_run": True}).json()
    done = admin.post("/quota-changes", body).json()
    assert done["effects"] == dry["effects"]
    assert done["change_set"]


def ran(people: People, owner: Any, *, start_h: float, hours: float, outcome: str, slots: int = 2) -> Any:
    """A job that waited one hour, then held its slots so long; times count back from midnight UTC today."""
    midnight = timezone.now().replace(hour=0, minute=0, second=0, microsecond=0)
    job = factories.job(owner=owner, state=State.FAILED, slots=slots)
    opened = midnight - timedelta(hours=start_h)
    JobEvent.objects.create(
        job=job, tenant=job.tenant, n=2, code="MOVED", from_state="QUEUED", to_state="DEPLOYING", at=opened
    )
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(
            "SET LOCAL session_replication_role = replica"
        )  # the guards of the past are not the subject
        Attempt.objects.filter(job=job).update(
            opened_at=opened, closed_at=opened + timedelta(hours=hours), outcome=outcome
        )
        JobEvent.objects.filter(job=job, n=1).update(at=opened - timedelta(hours=1), to_state="QUEUED")
        cursor.execute("SET LOCAL session_replication_role = DEFAULT")
    return job


def test_usage_adds_up_by_user_type_and_day(alice: Api, people: People) -> None:
    ran(people, people.alice, start_h=30, hours=12, outcome="COMPLETED")  # from 18:00 to 06:00: two days
    ran(people, people.dave, start_h=10, hours=2, outcome="learner_failed", slots=3)
    rows = {
        by: alice.get(f"/tenants/vision-lab/usage?by={by}").json()["items"]
        for by in ("user", "gpu_type", "day")
    }
    users = {row["user"]: (row["used"], row["waited"], row["lost"]) for row in rows["user"]}
    assert users == {"alice": (12 * 7200, 7200, 0), "dave": (2 * 3600 * 3, 3600 * 3, 2 * 3600 * 3)}
    assert [row["used"] for row in rows["day"]] == [6 * 7200, 6 * 7200 + 6 * 3600]
    assert [(row["gpu_type"], row["used"]) for row in rows["gpu_type"]] == [("cpu", 12 * 7200 + 6 * 3600)]


def test_work_that_a_checkpoint_kept_is_not_lost(alice: Api, people: People) -> None:
    job = ran(people, people.alice, start_h=10, hours=2, outcome="node_lost")
    attempt = Attempt.objects.get(job=job)
    factories.checkpoint(job, committed_at=attempt.opened_at + timedelta(minutes=90))
    row = alice.get("/tenants/vision-lab/usage").json()["items"][0]
    assert (row["used"], row["lost"]) == (4 * 3600, 3600)


@pytest.mark.parametrize(("offered_after_s", "lost"), [(1, 0), (-1, 1200)])
def test_what_a_program_saved_when_it_was_asked_to_is_not_lost(
    alice: Api, people: People, offered_after_s: int, lost: int
) -> None:
    """Ten minutes before its end it was asked to stop for another job. A save that was under way by then is older."""
    job = ran(people, people.alice, start_h=10, hours=2, outcome="preempted")
    attempt = Attempt.objects.get(job=job)
    assert attempt.closed_at is not None
    asked = attempt.closed_at - timedelta(minutes=10)
    JobEvent.objects.create(
        job=job, tenant=job.tenant, n=3, code="MOVED", from_state="PROCESSING", to_state="STOPPING", at=asked,
        attempt=attempt.n,
    )  # fmt: skip
    offered = asked + timedelta(seconds=offered_after_s)
    factories.checkpoint(job, created_at=offered, committed_at=asked)
    row = alice.get("/tenants/vision-lab/usage").json()["items"][0]
    assert (row["used"], row["lost"]) == (4 * 3600, lost)


@pytest.mark.parametrize(
    ("outcome", "lost"),
    [
        ("CANCELED", False), ("HALTED", False), ("COMPLETED", False), ("halt_requested", False),
        ("FAILED", True), ("learner_failed", True), ("learner_lost", True), ("node_lost", True),
        ("preempted", True), ("reclaimed", True), ("moved", True), ("rescaled", True), ("budget_exhausted", True),
        ("platform_stopped", True),
    ],
)  # fmt: skip
def test_what_its_owner_ends_is_not_lost_and_everything_else_is(
    alice: Api, people: People, outcome: str, lost: bool
) -> None:
    """A job that its owner canceled is no failure, however long it had run."""
    ran(people, people.alice, start_h=10, hours=2, outcome=outcome)
    (row,) = alice.get("/tenants/vision-lab/usage").json()["items"]
    assert (row["used"], row["lost"]) == (4 * 3600, 4 * 3600 if lost else 0)


def test_usage_takes_a_period_and_refuses_a_wrong_one(alice: Api, people: People) -> None:
    ran(people, people.alice, start_h=30, hours=12, outcome="COMPLETED")
    midnight = timezone.now().replace(hour=0, minute=0, second=0, microsecond=0)
    start, end = (midnight - timedelta(hours=20)).isoformat(), (midnight - timedelta(hours=19)).isoformat()
    query = f"from={start}&to={end}".replace("+", "%2B")
    assert alice.get(f"/tenants/vision-lab/usage?{query}").json()["items"][0]["used"] == 7200
    for wrong in (f"from={end}&to={start}", "from=2001-01-01T00:00:00Z", "from=yesterday", "by=owner"):
        answer = alice.get(f"/tenants/vision-lab/usage?{wrong}".replace("+", "%2B"))
        assert answer.status_code == 400, wrong


@pytest.mark.parametrize("by", ["user", "day"])
@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("to=9999-12-31T23:59:59.999999Z", 200),
        ("from=9999-12-31T00:00:00Z&to=9999-12-31T23:59:59Z", 200),
        ("from=0001-01-01T00:00:00Z&to=0001-01-02T00:00:00Z", 200),
        ("to=0001-01-03T00:00:00Z", 200),
        ("to=0001-01-01T00:00:00Z", 400),
        ("to=0001-01-01T00:00:00%2B14:00", 400),
        ("to=9999-12-31T23:59:59-14:00", 400),
        ("from=9999-12-31T00:00:00Z", 400),
        ("from=0001-01-01T00:00:00Z&to=9999-12-31T00:00:00Z", 400),
    ],
)
def test_usage_at_the_ends_of_time_is_shown_or_refused(alice: Api, by: str, query: str, status: int) -> None:
    answer = alice.get(f"/tenants/vision-lab/usage?{query}&by={by}")
    assert answer.status_code == status, answer.content
    if status == 200:
        assert answer.json()["items"] == []


def changed_events(job: Job) -> list[dict[str, Any]]:
    found = JobEvent.objects.filter(job=job, code="QUOTA_CHANGED").order_by("n")
    return [dict(each) for event in found for each in event.numbers["changes"]]


def test_a_job_that_waits_for_a_limit_gets_an_event_when_it_changes(
    admin: Api, alice: Api, people: People
) -> None:
    waits, any_gpu = factories.job(owner=people.alice), factories.job(owner=people.alice, gpus=1)
    runs, foreign = (
        factories.job(owner=people.alice, state=State.PROCESSING),
        factories.job(owner=people.bob),
    )
    halted = factories.job(owner=people.alice, state=State.HALTED, intent="HALT")
    admin.put(f"{QUOTAS}/cpu", {"limit": 10, "reason": "Grant"})
    assert changed_events(waits) == [{"gpu_type": "cpu", "from": 8, "to": 10, "used": 1}]
    assert [changed_events(job) for job in (any_gpu, runs, foreign, halted)] == [[], [], [], []]
    answered = alice.get(f"/jobs/{waits.pk}/events").json()["items"][-1]
    assert (answered["code"], answered["actor"]) == ("QUOTA_CHANGED", "admin")
    assert answered["message"] == "Limit of cpu changed from 8 to 10 by admin: Grant"
    waits.refresh_from_db()
    assert waits.event_seq == answered["n"]


def test_a_limit_that_stays_and_a_dry_run_create_no_event(admin: Api, people: People) -> None:
    waits = factories.job(owner=people.alice)
    admin.put(f"{QUOTAS}/cpu", {"limit": 8, "reason": "Same"})
    body = {"changes": [change("vision-lab", 4)], "reason": "What if", "dry_run": True}
    assert admin.post("/quota-changes", body).status_code == 200
    assert changed_events(waits) == []


def test_one_limit_s_errors_name_the_fields_that_were_sent(admin: Api) -> None:
    above = admin.put(f"{QUOTAS}/cpu", {"limit": 500, "reason": "x"})
    unknown = admin.put(f"{QUOTAS}/h900", {"limit": 1, "reason": "x"})
    assert (above.status_code, above.json()["errors"][0]["path"]) == (409, "limit")
    assert (unknown.status_code, unknown.json()["errors"][0]["path"]) == (400, "gpu_type")


def test_a_limit_of_nothing_that_stays_nothing_is_answered(admin: Api, people: People) -> None:
    Quota.objects.filter(tenant=people.vision).delete()
    answer = admin.put(f"{QUOTAS}/cpu", {"limit": 0, "reason": "x"}, If_Match='"limit-0"')
    assert (answer.status_code, answer.json()["limit"], answer["ETag"]) == (200, 0, '"limit-0"')


@pytest.mark.parametrize("seen", ['"limit-7"', '"7"', "limit-8", '"x"'])
def test_a_stale_limit_is_refused_with_the_present_one(admin: Api, seen: str) -> None:
    answer = admin.put(f"{QUOTAS}/cpu", {"limit": 1, "reason": "x"}, If_Match=seen)
    assert (answer.status_code, answer["ETag"]) == (412, '"limit-8"')
    assert limits()["vision-lab"] == 8


def test_usage_keeps_cpu_slots_and_gpus_apart(alice: Api, people: People) -> None:
    start = timezone.now() - timedelta(hours=1)
    for slot_type, gpus in (("cpu", 0), ("a100", 1), ("v100", 1)):
        job = factories.job(owner=people.alice, state=State.COMPLETED, gpus=gpus)
        Attempt.objects.filter(job=job).delete()
        Attempt.objects.create(
            job=job,
            tenant=people.vision,
            n=1,
            cluster="memory",
            slot_type=slot_type,
            nodes=["node-a"],
            held=False,
            slots=1,
            learners=1,
            opened_at=start,
            closed_at=start + timedelta(seconds=100),
            outcome="COMPLETED",
        )
    for by in ("user", "day", "gpu_type"):
        found = alice.get(f"/tenants/vision-lab/usage?by={by}").json()["items"]
        used = [(row["gpu_type"], round(row["used"])) for row in found if row["used"]]
        assert sorted(used) == [("a100", 100), ("cpu", 100), ("v100", 100)], by


def test_change_sets_have_a_budget_per_admin_which_repeats_of_a_key_do_not_spend(
    admin: Api, people: People
) -> None:
    body = {"changes": [change("vision-lab", 7)], "reason": "r", "dry_run": True}
    for _ in range(CHANGE_SETS_A_MINUTE + 5):
        assert admin.post("/quota-changes", body, Idempotency_Key="k1").status_code == 200
    for _ in range(CHANGE_SETS_A_MINUTE - 1):
        assert admin.post("/quota-changes", body).status_code == 200
    for headers in ({}, {"Idempotency_Key": "k2"}):
        held = admin.post("/quota-changes", body | {"dry_run": False}, **headers)
        assert (held.status_code, held["Retry-After"], held.json()["code"]) == (
            429,
            "60",
            "too_many_requests",
        )
    assert admin.post("/quota-changes", body, Idempotency_Key="k1").status_code == 200
    assert not QuotaChange.objects.exists()


def test_a_refused_set_is_not_planned_and_a_set_is_planned_before_it_is_applied_under_the_lock(
    admin: Api, people: People, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request with an Idempotency-Key holds the lock of all quotas until its answer."""
    order: list[str] = []
    apply, plan = quota_services.quota_changes_apply, what_if.plan

    def applied(**given: Any) -> Any:
        order.append("try" if given["dry_run"] else "apply")
        return apply(**given)

    monkeypatch.setattr(quota_services, "quota_changes_apply", applied)
    monkeypatch.setattr(what_if, "plan", lambda snapshot: (order.append("plan"), plan(snapshot))[1])
    for wrong in (change("vision-lab", 99), change("vision-lab", 9, if_limit=1), change("none", 1)):
        assert admin.post("/quota-changes", {"changes": [wrong], "reason": "r"}).status_code in (400, 409)
    assert order == ["try"] * 3
    order.clear()
    body = {"changes": [change("vision-lab", 7)], "reason": "r"}
    made = admin.post("/quota-changes", body, Idempotency_Key="k1")
    assert (made.status_code, order) == (200, ["try", "plan", "plan", "apply"])
    order.clear()
    assert admin.post("/quota-changes", body, Idempotency_Key="k1").json() == made.json()
    assert order == [], "a repeat is not tried again"
    assert admin.post("/quota-changes", body).status_code == 200
    assert order == ["try", "apply"], "it changes nothing"


def test_effects_are_those_of_the_set_as_it_is_applied(
    admin: Api, people: People, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another set came between the look at this one and its lock."""
    factories.job(owner=people.alice, learners=6)
    Quota.objects.filter(tenant=people.vision).update(limit=4)
    tried = quota_effects.tried

    def meanwhile(made: Any) -> Any:
        found = tried(made)
        Quota.objects.filter(tenant=people.vision).update(limit=7)
        return found

    monkeypatch.setattr(quota_effects, "tried", meanwhile)
    made = admin.post("/quota-changes", {"changes": [change("vision-lab", 8)], "reason": "r"}).json()
    assert made["changes"][0]["old_limit"] == 7
    assert len(made["effects"]["starts"]) == 1, "what was seen had 4"
