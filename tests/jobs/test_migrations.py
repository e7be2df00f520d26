"""A database with rows of an earlier release migrates: rows keep their meaning, triggers stay in place."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection
from django.db.migrations.executor import MigrationExecutor
from django.utils import timezone

from gpu_scheduler.policies.fair_share import FairShare
from jobs import invariants, usage_days
from jobs.models import Checkpoint, Job, JobEvent, Learner, PeriodicTask, SchedulerState, UsageDay, UsageDue
from jobs.states import State
from tests import factories

MIGRATIONS = Path(__file__).parents[2] / "jobs" / "migrations"
pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("latest_again")]


@pytest.fixture
def latest_again() -> Iterator[None]:
    """Leave the shared test database as other tests expect it, even when this one failed."""
    yield
    call_command("migrate", "jobs", verbosity=0)


def models_at(migration: str) -> Any:
    """Migrate jobs to this migration and return the models of that time."""
    call_command("migrate", "jobs", migration, verbosity=0)
    executor = MigrationExecutor(connection)
    return executor.loader.project_state([("jobs", migration)]).apps


def test_a_table_is_rewritten_by_a_migration_that_locks_no_other(capsys: pytest.CaptureFixture[str]) -> None:
    """Each lock is held until the migration ends, and a rewrite takes seconds per million rows."""
    rewrites = []
    for name in sorted(path.stem for path in MIGRATIONS.glob("0*.py")):
        if name[:4] < "0036":
            continue
        call_command("sqlmigrate", "jobs", name)
        statements = capsys.readouterr().out
        if "STORED" in statements:
            rewrites.append(name[:4])
            assert len(set(re.findall(r'ALTER TABLE "(\w+)"', statements))) == 1, name
    assert rewrites == ["0038"]


def test_rows_of_release_1_migrate_to_the_field_s_terms() -> None:
    before = models_at("0009_checkpoints_of_one_step")
    tenant, owner = factories.tenant("vision-lab"), factories.user("alice")
    job = before.get_model("jobs", "Job").objects.create(
        id="3f9k2m7qx4ta",
        tenant_id=tenant.pk,
        owner_id=owner.pk,
        name="train",
        spec=factories.spec(),
        framework="sklearn",
        learners=1,
        gpus=0,
        slots=1,
        placement="pack",
        priority="normal",
        priority_rank=1,
        max_restarts=0,
        attempt=1,
        intent_gen=2,
        event_seq=2,
        reason_code="learner_lost",
        reason_numbers={"learner": 0, "evidence": "launcher_lost"},
    )
    row = {"job_id": job.pk, "tenant_id": tenant.pk}
    event = before.get_model("jobs", "JobEvent").objects
    event.create(**row, n=1, code="SUBMITTED", to_state="QUEUED", numbers={"intent": "RUN", "generation": 1})
    event.create(
        **row, n=2, code="WISHED", reason="run_requested", numbers={"intent": "RUN", "generation": 2}
    )
    before.get_model("jobs", "Attempt").objects.create(
        **row, n=1, cluster="local", slot_type="cpu", slots=1, learners=1, nodes=["node-a"],
        held=False, closed_at=timezone.now(),
    )  # fmt: skip
    before.get_model("jobs", "Learner").objects.create(
        **row, attempt=1, rank=0, node="node-a", secret_sha256="0" * 64, evidence={"peak_memory_mib": 700}
    )
    before.get_model("jobs", "Duty").objects.create(name="cycle", result={"rests_until": None})

    call_command("migrate", "jobs", verbosity=0)

    assert PeriodicTask.objects.get(name="cycle").result == {"rests_until": None}
    assert Learner.objects.get(job=job.pk).failure_details == {"peak_memory_mib": 700}
    assert Job.objects.get(pk=job.pk).reason_numbers == {"learner": 0, "failure_class": "launcher_lost"}
    assert list(JobEvent.objects.order_by("n").values_list("code", flat=True)) == ["SUBMITTED", "REQUESTED"]
    assert invariants.violations() == []
    with pytest.raises(Exception, match="append-only"):
        JobEvent.objects.filter(n=2).update(code="WISHED")


def test_queue_heads_keep_since_when_they_wait_in_both_directions() -> None:
    """0012: the column of a job becomes the state of the policy."""
    before = models_at("0011_orders")
    tenant, owner = factories.tenant("vision-lab"), factories.user("alice")
    since = timezone.now() - timedelta(minutes=12)
    row: dict[str, Any] = {
        "tenant_id": tenant.pk,
        "owner_id": owner.pk,
        "name": "train",
        "spec": factories.spec(),
        "framework": "sklearn",
        "learners": 1,
        "gpus": 0,
        "slots": 1,
        "placement": "pack",
        "priority": "normal",
        "priority_rank": 1,
        "max_restarts": 0,
    }
    jobs = before.get_model("jobs", "Job").objects
    jobs.create(id="queuehead001", head_since=since, **row)
    jobs.create(id="waitsbehind1", **row)

    call_command("migrate", "jobs", "0012_scheduler_state", verbosity=0)
    (kept,) = SchedulerState.objects.all()
    assert (kept.policy, kept.state) == (FairShare.name, {"queuehead001": since.isoformat()})
    assert FairShare().load(kept.state) == {"queuehead001": since}, "as the policy reads it"

    again = models_at("0011_orders").get_model("jobs", "Job").objects
    assert dict(again.values_list("pk", "head_since")) == {"queuehead001": since, "waitsbehind1": None}


def test_without_a_queue_head_no_policy_has_a_state() -> None:
    models_at("0011_orders")
    call_command("migrate", "jobs", "0012_scheduler_state", verbosity=0)
    assert not SchedulerState.objects.exists()


def test_steps_that_were_guessed_for_a_programs_own_checkpoints_are_unknown_afterward() -> None:
    made = factories.job()
    before = models_at("0016_event_source")
    job = {"job_id": made.pk, "tenant_id": made.tenant_id}
    saved = before.get_model("jobs", "Checkpoint").objects
    saved.create(**job, n=1, attempt=1, step=344, implicit=True)
    saved.create(**job, n=2, attempt=2, step=10)
    call_command("migrate", "jobs", verbosity=0)
    assert dict(Checkpoint.objects.values_list("n", "step")) == {1: None, 2: 10}


def test_usage_of_the_past_is_noted_once_and_then_rolled_up() -> None:
    tenant = factories.tenant()
    job = factories.job(of=tenant, state=State.COMPLETED)
    models_at("0027_log_upkeep")
    at = timezone.now() - timedelta(days=3)
    JobEvent.objects.create(job=job, tenant=tenant, n=2, at=at, code="MOVED", to_state="QUEUED", source="x")
    at += timedelta(minutes=1)
    JobEvent.objects.create(
        job=job,
        tenant=tenant,
        n=3,
        at=at,
        code="PLACED",
        from_state="QUEUED",
        to_state="DEPLOYING",
        source="x",
    )
    call_command("migrate", "jobs", verbosity=0)
    call_command(
        "migrate", "jobs", "0028_usage_days", verbosity=0
    )  # as if it was killed before it was recorded
    call_command("migrate", "jobs", verbosity=0)
    assert sorted(UsageDue.objects.values_list("holds", "n")) == [(False, 3), (True, 1)]
    usage_days.roll_up_job(job.pk)
    assert [day.waited for day in UsageDay.objects.filter(day=at.date())] == [pytest.approx(60)]
