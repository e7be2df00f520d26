"""Retention by REST: a tenant's rules, what they would remove, and what is said of data that is gone."""

from __future__ import annotations

import time
from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from jobs import retention
from jobs.models import Job, JobEvent, LogChunk
from jobs.selectors.retention import KEPT_EVENT
from jobs.states import EventCode, State
from tenants.models import AuditEntry, Session
from tenants.retention import OF_JOBS, Kind, Rule
from tests import factories
from tests.jobs.conftest import People
from tests.jobs.ended import ended
from tests.portal.api.conftest import Api

PATH = "/tenants/vision-lab/retention"
REASON = {"reason": "The disk is full"}


def preview(admin: Api, rules: dict[str, Any] | None = None) -> dict[str, dict[str, Any]]:
    answer = admin.post(f"{PATH}:preview", {} if rules is None else {"rules": rules})
    assert answer.status_code == 200, answer.json()
    return {each["kind"]: each for each in answer.json()["kinds"]}


def test_a_tenant_keeps_everything_until_a_rule_says_otherwise(admin: Api, people: People) -> None:
    ended(people.alice, 4000)
    assert {each["days"] for each in admin.get(PATH).json()["applies"]} == {None}
    assert retention.enforce()["jobs"] == 0


def test_rules_are_replaced_as_a_whole_and_not_if_they_changed_meanwhile(admin: Api, carol: Api) -> None:
    seen = carol.get(PATH)
    assert seen.json()["rules"] == {}
    rules = {"logs": {"days": 90, "bytes": None}, "audit": {"days": 400, "bytes": None}}
    sent = {"logs": {"days": 90}, "audit": {"days": 400}}
    set_once = admin.put(PATH, {"rules": sent, **REASON}, If_Match=seen["ETag"])
    assert set_once.status_code == 200
    assert set_once.json()["rules"] == rules
    applied = {each["kind"]: each for each in set_once.json()["applies"]}
    assert (applied["logs"]["days"], applied["logs"]["source"]) == (90, "tenant")
    assert (applied["metrics"]["days"], applied["metrics"]["source"]) == (None, "installation")
    stale = admin.put(PATH, {"rules": {}, **REASON}, If_Match=seen["ETag"])
    assert (stale.status_code, stale.json()["etag"]) == (412, set_once["ETag"])
    entry = AuditEntry.objects.get(action="retention.change")
    assert (entry.details["to"], entry.reason) == (rules, REASON["reason"])


def test_the_installations_rules_count_where_a_tenant_has_none(
    admin: Api, settings: Any, people: People
) -> None:
    settings.LUTHIER_RETENTION_RULES = {Kind.LOGS: Rule(days=30), Kind.RESULTS: Rule(days=30)}
    admin.put(PATH, {"rules": {"results": {}}, **REASON})
    applied = {each["kind"]: (each["days"], each["source"]) for each in admin.get(PATH).json()["applies"]}
    assert applied["logs"] == (30, "installation")
    assert applied["results"] == (None, "tenant")


def test_all_that_is_wrong_with_rules_is_said_at_once(admin: Api) -> None:
    wrong = {"logs": {"days": 0}, "audit": {"days": 3}, "results": {"bytes": 0}}
    errors = admin.put(PATH, {"rules": wrong, **REASON}).json()["errors"]
    assert {each["path"] for each in errors} == {"rules.logs.days", "rules.audit.days", "rules.results.bytes"}
    unknown = admin.post(f"{PATH}:preview", {"rules": {"log": {"days": 9}, "audit": {"bytes": 9}}})
    assert {each["path"] for each in unknown.json()["errors"]} == {"rules.log", "rules.audit.bytes"}


def test_a_preview_counts_what_would_go_and_names_what_is_exempt_and_removes_nothing(
    admin: Api, people: People
) -> None:
    ended(people.alice, 100)
    ended(people.alice, 95, state=State.FAILED)
    ended(people.alice, 10)
    ended(people.alice, 0.2)
    ended(people.alice, 100, state=State.HALTED)
    found = preview(admin, {"logs": {"days": 90}, "events": {"days": 90}})
    logs = found["logs"]
    assert (logs["jobs"], logs["rows"], logs["unit"], logs["bytes"]) == (2, 2, "lines", 2000)
    assert logs["oldest"] < logs["newest"]
    assert logs["left_bytes"] == 3000
    assert {each["code"]: each["jobs"] for each in logs["exempt"]} == {"not_ended": 1, "just_ended": 1}
    assert (found["events"]["jobs"], found["events"]["rows"]) == (2, 2)
    assert found["metrics"]["rows"] == 0
    assert LogChunk.objects.count() == 5
    assert preview(admin)["logs"]["jobs"] == 0


def test_a_preview_counts_the_events_that_go(admin: Api, people: People) -> None:
    """Of one job the end is the last event, of the other what was edited afterwards."""
    edited, last = (ended(people.alice, days) for days in (100, 110))
    JobEvent.objects.create(
        job=last, tenant=last.tenant, n=4, source="lifecycle", code=EventCode.MOVED, to_state=State.COMPLETED
    )
    Job.objects.filter(pk=last.pk).update(event_seq=4)
    before = JobEvent.objects.count()
    rules = {"events": {"days": 90}, "logs": {"days": 90}}
    admin.put(PATH, {"rules": {"logs": rules["logs"]}, **REASON})
    retention.enforce(float("inf"))
    counted = preview(admin, rules)["events"]["rows"]
    assert counted == 3, "the wait of the first one; the wait and the edit of the other"
    admin.put(PATH, {"rules": rules, **REASON})
    retention.enforce(float("inf"))
    assert JobEvent.objects.exclude(code=EventCode.DATA_REMOVED).count() == before - counted
    assert edited.events.filter(code=EventCode.EDITED).exists()


def test_a_size_rule_removes_the_data_of_the_jobs_that_ended_first(admin: Api, people: People) -> None:
    oldest, middle, newest = (ended(people.alice, days) for days in (30, 20, 10))
    live = ended(people.alice, 40, state=State.HALTED)
    rules = {"logs": {"bytes": 2500}}
    assert preview(admin, rules)["logs"]["jobs"] == 2
    admin.put(PATH, {"rules": rules, **REASON})
    retention.enforce(float("inf"))
    assert set(LogChunk.objects.values_list("job", flat=True)) == {newest.pk, live.pk}
    said = oldest.events.get(code=EventCode.DATA_REMOVED)
    assert said.message == "Logs of the tenant beyond 2.4 KiB, the oldest first were removed: 1000 B."
    assert middle.events.filter(code=EventCode.DATA_REMOVED).exists()
    assert retention.enforce(float("inf"))["jobs"] == 0


def test_what_was_removed_is_said_in_the_history_and_answers_410(
    admin: Api, alice: Api, people: People
) -> None:
    job = ended(people.alice, 100)
    rules = {kind: {"days": 90} for kind in ("logs", "metrics", "checkpoints", "results", "events")}
    admin.put(PATH, {"rules": rules, **REASON})
    retention.enforce(float("inf"))
    gone = ("logs", "logs/raw", "metrics", "results", "results/r", "results.zip", "checkpoints/1/files/m")
    for path in gone:
        answer = alice.get(f"/jobs/{job.pk}/{path}")
        assert (path, answer.status_code) == (path, 410)
        assert answer.json()["code"] == "removed_by_retention"
        assert answer.json()["removed_at"]
    assert alice.get(f"/jobs/{job.pk}/logs").json()["detail"] == (
        "Logs older than 90 days were removed: 1000 B."
    )
    assert alice.get(f"/jobs/{job.pk}/checkpoints").json()["items"][0]["state"] == "DROPPED"
    events = alice.get(f"/jobs/{job.pk}/events").json()["items"]
    stays = [event["code"] for event in events if event["code"] != "DATA_REMOVED"]
    assert stays == ["SUBMITTED", "EDITED"], "its end and the newest one"
    entry = AuditEntry.objects.get(action="retention.remove")
    assert entry.details["logs"] == {"jobs": 1, "rows": 1, "bytes": 1000}


def test_checkpoints_stay_while_an_unfinished_job_would_resume_from_one(admin: Api, people: People) -> None:
    job = ended(people.alice, 100)
    user = factories.job(owner=people.alice, resume_from=job.checkpoints.get())
    rules = {"checkpoints": {"days": 90}}
    assert preview(admin, rules)["checkpoints"]["exempt"][0]["code"] == "in_use"
    admin.put(PATH, {"rules": rules, **REASON})
    retention.enforce(float("inf"))
    assert job.checkpoints.get().state == "COMMITTED"
    Job.objects.filter(pk=user.pk).update(deleted_at=timezone.now())
    retention.enforce(float("inf"))
    assert job.checkpoints.get().state == "DROPPED"


def test_a_checkpoint_that_came_into_use_after_it_was_chosen_stays(people: People) -> None:
    job = ended(people.alice, 100)
    [one] = retention.chosen(people.vision.pk, Kind.CHECKPOINTS, Rule(days=90), 9)
    factories.job(owner=people.alice, resume_from=job.checkpoints.get())
    assert retention.remove(one, Kind.CHECKPOINTS, Rule(days=90)) == 0
    assert job.checkpoints.get().state == "COMMITTED"
    assert not job.removals.exists()


def test_what_always_stays_of_a_history_is_its_end_and_what_says_what_was_removed() -> None:
    assert all(f"'{state}'" in KEPT_EVENT for state in ("COMPLETED", "FAILED", "CANCELED", "DATA_REMOVED"))


def test_the_audit_log_is_shortened_by_its_own_rule_alone(admin: Api, people: People) -> None:
    old = timezone.now() - timedelta(days=100)
    AuditEntry.objects.create(tenant=people.vision, action="job.read", at=old)
    admin.put(PATH, {"rules": {"logs": {"days": 90}, "events": {"days": 90}}, **REASON})
    retention.enforce(float("inf"))
    assert AuditEntry.objects.filter(action="job.read").exists()
    assert preview(admin, {"audit": {"days": 90}})["audit"]["rows"] == 1
    admin.put(PATH, {"rules": {"audit": {"days": 90}}, **REASON})
    retention.enforce(float("inf"))
    assert not AuditEntry.objects.filter(action="job.read").exists()
    assert AuditEntry.objects.get(action="retention.audit").details["entries"] == 1


def test_a_run_whose_time_is_over_judges_no_jobs_and_says_that_more_may_be_left(
    people: People, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To judge the jobs of a large tenant may take minutes."""
    judged: list[Kind] = []
    monkeypatch.setattr(retention, "chosen", lambda tenant, kind, *rest: judged.append(kind) or [])
    assert retention.enforce(time.monotonic() - 1)["more"]
    assert judged == []
    assert not retention.enforce(float("inf"))["more"]
    assert set(judged) == set(OF_JOBS)


def test_the_command_previews_and_then_removes_all_at_once(admin: Api, people: People) -> None:
    ended(people.alice, 100)
    admin.put(PATH, {"rules": {"logs": {"days": 90}}, **REASON})
    said = StringIO()
    call_command("retention", "vision-lab", "--preview", stdout=said)
    assert "logs (90 days): removes 1 line of 1 job, 1000 B" in said.getvalue()
    assert "metrics: kept forever" in said.getvalue()
    assert LogChunk.objects.exists()
    call_command("retention", stdout=said)
    assert not LogChunk.objects.exists()
    with pytest.raises(CommandError, match="no such tenant: no-team"):
        call_command("retention", "no-team")


def test_sessions_end_by_the_installations_rule_and_expired_ones_are_collected(
    db: None, settings: Any
) -> None:
    lasts = timedelta(seconds=settings.SESSION_COOKIE_AGE)
    begun = {"expired": lasts + timedelta(hours=1), "old": timedelta(days=8), "new": timedelta(days=1)}
    for name, ago in begun.items():
        now = timezone.now()
        Session.objects.create(
            session_key=name,
            session_data="",
            expire_date=now + lasts - ago,
            started_at=now - ago,
            seen_at=now,
        )
    retention.enforce()
    assert set(Session.objects.values_list("pk", flat=True)) == {"old", "new"}
    settings.LUTHIER_RETENTION_RULES = {Kind.SESSIONS: Rule(days=7)}
    retention.enforce()
    assert set(Session.objects.values_list("pk", flat=True)) == {"new"}
