"""Every rule is silent on a sound database and speaks when it is broken."""

from __future__ import annotations

import pytest
from django.core.management import call_command
from django.db import connection

from jobs import events, invariants
from jobs.models import Blob, CheckpointFile, Job
from jobs.states import EventCode, Intent, State
from tenants import audit, audit_chain
from tests import factories

pytestmark = pytest.mark.django_db

BREAKS = {
    "QuotaSum": "UPDATE tenants_quota SET used = used + 1",
    "JobsSum": "UPDATE tenants_tenant SET jobs_used = jobs_used + 1",
    "StorageSum": "UPDATE jobs_blob SET size = size + 1",
    "PromiseSum": (
        "INSERT INTO jobs_promise (job_id, bytes, files, measured_from) SELECT id, 1, 1, 1 FROM jobs_job LIMIT 1"
    ),
    "Guards": "SET CONSTRAINTS ALL IMMEDIATE; ALTER TABLE tenants_quota DISABLE TRIGGER quota_guard",
    "HeldIffLive": "UPDATE jobs_job SET state = 'HALTED', last_halt = '{}' WHERE state = 'PROCESSING'",
    "AttemptDense": "UPDATE jobs_job SET attempt = 2 WHERE state = 'COMPLETED'",
    "GangWhole": "DELETE FROM jobs_learner WHERE rank = 1",
    "SeqDense": "UPDATE jobs_job SET event_seq = event_seq + 1",
    "Legal": "UPDATE jobs_jobevent SET from_state = 'STORING' WHERE code = 'MOVED'",
    "Fold": "UPDATE jobs_job SET state = 'FAILED' WHERE state = 'COMPLETED'",
    "NotForgotten": "UPDATE jobs_job SET settled = true WHERE state = 'QUEUED'",
    "OrderLive": "UPDATE jobs_job SET order_reason = 'preempted' WHERE state = 'QUEUED'",
    "HaltTruth": "UPDATE jobs_job SET last_halt = NULL",
    "RetryBound": "UPDATE jobs_job SET restarts_used = max_restarts + 1",
    "ResumeFrom": "UPDATE jobs_attempt SET resume_from_id = (SELECT min(id) FROM jobs_checkpoint)",
    "CkptValid": "UPDATE jobs_blob SET verified = false",
    "CkptUnfinished": "UPDATE jobs_checkpoint SET state = 'UPLOADING'; INSERT INTO jobs_periodictask"
    """ (name, result, done_at) VALUES ('tidy', '{"given_up": 0, "more": false}', now() + interval '2 hours')""",
    "CkptReleased": "UPDATE jobs_checkpoint SET state = 'DROPPED'",
    "AuditChain": "UPDATE tenants_auditentry SET target = 'another'",
    "GapFree": "UPDATE jobs_learner SET log_bytes = 7",
    "TenantClosed": "UPDATE jobs_learner SET tenant_id = (SELECT max(id) FROM tenants_tenant)",
}


@pytest.fixture
def sound(db: None) -> None:
    """Jobs of every state, as factories build them, with their histories."""
    tenant = factories.tenant(quotas={"cpu": 64})
    owner = factories.member(tenant)
    for state in State:
        halted = state == State.HALTED
        job = factories.job(
            owner=owner,
            of=tenant,
            state=state,
            learners=2,
            intent=Intent.HALT if halted else Intent.RUN,
            last_halt={} if halted else None,
            stop_reason="preempted" if state == State.STOPPING else "",
        )
        if state == State.COMPLETED:
            saved = factories.checkpoint(job)
            blob = Blob.objects.create(tenant=tenant, sha256="0" * 64, size=1, received=1, verified=True)
            CheckpointFile.objects.create(checkpoint=saved, tenant=tenant, path="a", blob=blob)
    moved = factories.job(owner=owner, of=tenant)
    events.append(
        source="user",
        job_id=moved.pk,
        tenant_id=tenant.pk,
        code=EventCode.MOVED,
        from_state="QUEUED",
        to_state="CANCELED",
    )
    Job.objects.filter(pk=moved.pk).update(state=State.CANCELED)
    factories.tenant()
    audit.record(actor=owner, action="job.edit", tenant_id=tenant.pk, target=moved.pk)
    audit_chain.seal_new()


def test_a_rule_exists_for_every_break_and_a_break_for_every_rule() -> None:
    assert set(BREAKS) == {rule.name for rule in invariants.RULES}


def test_a_sound_database_breaks_no_rule(sound: None) -> None:
    assert invariants.violations() == []


@pytest.mark.parametrize("name", BREAKS)
def test_a_broken_rule_is_named(sound: None, name: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SET session_replication_role = replica")  # no trigger prevents the damage
        cursor.execute(BREAKS[name])
        cursor.execute("SET session_replication_role = origin")
    assert name in {violation.name for violation in invariants.violations()}


@pytest.mark.parametrize(
    ("trigger", "table"),
    [
        ("quota_guard", "tenants_quota"),
        ("jobs_guard", "tenants_tenant"),
        ("append_only", "tenants_quotachange"),
        ("append_only", "tenants_auditentry"),
        ("append_only", "tenants_auditseal"),
        ("legal_move", "jobs_job"),
        ("append_only", "jobs_jobevent"),
        ("closed", "jobs_attempt"),
    ],
)
def test_each_trigger_that_is_gone_is_named(trigger: str, table: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"DROP TRIGGER {trigger} ON {table}")
    (found,) = (each for each in invariants.violations() if each.name == "Guards")
    assert found.found == (f"{trigger} on {table} is missing or off",)


def test_no_trigger_of_the_database_is_left_out_of_the_rule() -> None:
    (rule,) = (each for each in invariants.RULES if each.name == "Guards")
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT tgname, tgrelid::regclass::text FROM pg_trigger"
            " WHERE NOT tgisinternal AND (tgtype & 2) = 2"  # those that run before a change can refuse it
        )
        found = cursor.fetchall()
    assert found
    assert [pair for pair in found if f"('{pair[0]}', '{pair[1]}')" not in rule.sql] == []


def test_a_gang_of_no_live_attempt_is_an_orphan() -> None:
    job = factories.job(state=State.PROCESSING)
    shown = {f"job-{job.pk}-1": None, f"job-{job.pk}-2": None}
    (found,) = invariants.orphans(shown)  # type: ignore[arg-type]
    assert found.found == (f"job-{job.pk}-2",)


def test_the_command_says_what_holds_and_fails_when_something_does_not(
    sound: None, capsys: pytest.CaptureFixture[str]
) -> None:
    call_command("invariants")
    assert "rules hold" in capsys.readouterr().out
    Job.objects.filter(state=State.PROCESSING).update(restarts_used=5)
    with pytest.raises(SystemExit):
        call_command("invariants")
    assert "BROKEN RetryBound" in capsys.readouterr().out
