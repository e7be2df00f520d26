"""A database with rows of an earlier release migrates: rows keep their meaning, triggers stay in place."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime, timedelta
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


@pytest.mark.timeout(600)
def test_rows_of_each_release_keep_their_meaning_on_one_walk_through_all_migrations() -> None:
    """Back to release 1 and forward again, with a stop wherever rows of that time need to be made or looked at.

    One test, not one for each stop: what costs is to cross a migration, and so each is crossed once.
    """
    tenant, owner = factories.tenant("vision-lab"), factories.user("alice")
    whose = {"tenant_id": tenant.pk, "owner_id": owner.pk}

    at = models_at("0009_checkpoints_of_one_step")
    rows_of_release_1(at, whose)

    at = models_at("0011_orders")
    call_command("migrate", "jobs", "0012_scheduler_state", verbosity=0)
    assert not SchedulerState.objects.exists(), "without a queue head, no policy has a state"
    at = models_at("0011_orders")
    since = timezone.now() - timedelta(minutes=12)
    add_job(at, "queuehead001", whose, head_since=since)
    # At noon, so that the minute before it, which the job waited, is of the same day.
    placed = (since - timedelta(days=3)).replace(hour=12)
    add_job(at, "waitsbehind1", whose, submitted=placed - timedelta(minutes=1))
    call_command("migrate", "jobs", "0012_scheduler_state", verbosity=0)
    queue_heads_keep_since_when_they_wait(since)
    at = models_at("0011_orders")
    kept = at.get_model("jobs", "Job").objects.exclude(pk=RELEASE_1).values_list("pk", "head_since")
    assert dict(kept) == {"queuehead001": since, "waitsbehind1": None}

    at = models_at("0016_event_source")
    saved = at.get_model("jobs", "Checkpoint").objects
    of = {"job_id": RELEASE_1, "tenant_id": tenant.pk}
    saved.create(**of, n=1, attempt=1, step=344, implicit=True)
    saved.create(**of, n=2, attempt=2, step=10)

    models_at("0027_log_upkeep")
    was_placed("waitsbehind1", tenant.pk, placed)

    call_command("migrate", "jobs", verbosity=0)
    # Again, as if it was killed before it was recorded.
    call_command("migrate", "jobs", "0028_usage_days", verbosity=0)
    call_command("migrate", "jobs", verbosity=0)
    release_1_has_the_fields_terms()
    assert dict(Checkpoint.objects.values_list("n", "step")) == {1: None, 2: 10}, (
        "guessed for a program's own"
    )
    usage_of_the_past_is_noted_once_and_rolled_up("waitsbehind1", placed)
    assert invariants.violations() == []


RELEASE_1 = "3f9k2m7qx4ta"


def add_job(
    at: Any, pk: str, whose: dict[str, Any], submitted: datetime | None = None, **fields: Any
) -> None:
    """With the columns that a job had at any time, and the event that every job has."""
    at.get_model("jobs", "Job").objects.create(
        id=pk,
        **whose,
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
        event_seq=1,
        **fields,
    )
    at.get_model("jobs", "JobEvent").objects.create(
        job_id=pk, tenant_id=whose["tenant_id"], n=1, code="SUBMITTED", to_state="QUEUED",
        numbers={"intent": "RUN", "generation": 1}, at=submitted or timezone.now(),
    )  # fmt: skip


def rows_of_release_1(at: Any, whose: dict[str, Any]) -> None:
    add_job(
        at,
        RELEASE_1,
        whose,
        attempt=1,
        intent_gen=2,
        reason_code="learner_lost",
        reason_numbers={"learner": 0, "evidence": "launcher_lost"},
    )
    row = {"job_id": RELEASE_1, "tenant_id": whose["tenant_id"]}
    at.get_model("jobs", "JobEvent").objects.create(
        **row, n=2, code="WISHED", reason="run_requested", numbers={"intent": "RUN", "generation": 2}
    )
    at.get_model("jobs", "Job").objects.filter(pk=RELEASE_1).update(event_seq=2)
    at.get_model("jobs", "Attempt").objects.create(
        **row, n=1, cluster="local", slot_type="cpu", slots=1, learners=1, nodes=["node-a"],
        held=False, closed_at=timezone.now(),
    )  # fmt: skip
    at.get_model("jobs", "Learner").objects.create(
        **row, attempt=1, rank=0, node="node-a", secret_sha256="0" * 64, evidence={"peak_memory_mib": 700}
    )
    at.get_model("jobs", "Duty").objects.create(name="cycle", result={"rests_until": None})


def release_1_has_the_fields_terms() -> None:
    assert PeriodicTask.objects.get(name="cycle").result == {"rests_until": None}
    assert Learner.objects.get(job=RELEASE_1).failure_details == {"peak_memory_mib": 700}
    assert Job.objects.get(pk=RELEASE_1).reason_numbers == {"learner": 0, "failure_class": "launcher_lost"}
    codes = JobEvent.objects.filter(job=RELEASE_1).order_by("n").values_list("code", flat=True)
    assert list(codes) == ["SUBMITTED", "REQUESTED"]
    with pytest.raises(Exception, match="append-only"):
        JobEvent.objects.filter(job=RELEASE_1, n=2).update(code="WISHED")


def queue_heads_keep_since_when_they_wait(since: datetime) -> None:
    """0012: the column of a job becomes the state of the policy."""
    (kept,) = SchedulerState.objects.all()
    assert (kept.policy, kept.state) == (FairShare.name, {"queuehead001": since.isoformat()})
    assert FairShare().load(kept.state) == {"queuehead001": since}, "as the policy reads it"


def was_placed(job: str, tenant: int, at: datetime) -> None:
    """And returned to the queue, as it was before usage was rolled up."""
    moves = [("QUEUED", "DEPLOYING"), ("DEPLOYING", "STOPPING"), ("STOPPING", "QUEUED")]
    for n, (before, after) in enumerate(moves, 2):
        JobEvent.objects.create(
            job_id=job,
            tenant_id=tenant,
            n=n,
            at=at,
            code="MOVED",
            from_state=before,
            to_state=after,
            source="x",
        )
    Job.objects.filter(pk=job).update(event_seq=4)


def usage_of_the_past_is_noted_once_and_rolled_up(job: str, placed: datetime) -> None:
    assert sorted(UsageDue.objects.filter(job=job).values_list("holds", "n")) == [(False, 2)]
    assert sorted(UsageDue.objects.filter(job=RELEASE_1).values_list("holds", "n")) == [(True, 1)]
    usage_days.roll_up_job(job)
    assert [day.waited for day in UsageDay.objects.filter(day=placed.date())] == [pytest.approx(60)]
