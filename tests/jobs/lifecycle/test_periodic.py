"""Periodic tasks: orphaned gangs, deleted jobs, old answers."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.db.models.functions import Now
from django.utils import timezone

from gpu_scheduler.clusters.base import ClusterBusy
from jobs import blobs, retention
from jobs.blobs.folder import FolderStore
from jobs.blobs.store import MARK, store
from jobs.lifecycle import periodic
from jobs.models import (
    Blob,
    CheckpointFile,
    IdempotentResponse,
    Job,
    JobEvent,
    Learner,
    LogChunk,
    MetricPoint,
    MetricRollup,
    PeriodicTask,
    PlatformStop,
    ResultFile,
    Upload,
    Worker,
)
from jobs.selectors.installation import AuditSending, audit_sending, unknown_gangs
from jobs.selectors.snapshot import database_now
from jobs.states import State
from tenants import audit, audit_forward, outbox, smtp
from tests import factories
from tests.jobs.lifecycle.world import World, gang
from tests.log_collector import LogCollector

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def unmarked() -> None:
    """The store is that of another test's database no more."""
    place = store()
    assert isinstance(place, FolderStore)
    (place.root / MARK).unlink(missing_ok=True)


def be_due() -> None:
    PeriodicTask.objects.update(next_at=Now() - timedelta(seconds=1))
    periodic.run_due()


def test_a_periodic_task_is_done_by_one_and_not_again_before_its_time(world: World) -> None:
    assert set(periodic.run_due()) == {
        "blobs", "compact", "decisions", "fairness", "forecast", "measure", "notice", "orphans", "purge", "retention",
        "rollups", "seal", "storage", "tidy", "usage", "watch",
    }  # fmt: skip
    assert periodic.run_due() == []
    for slow in ("mail", "forward"):
        assert periodic.run_due(slow) == [slow], "by itself: no other task waits for a server"
    assert periodic.due(PeriodicTask.CYCLE) == {PeriodicTask.CYCLE}


@pytest.mark.parametrize(
    ("name", "module", "work", "longest_s"),
    [
        ("mail", outbox, "send_due", outbox.BATCH_S + smtp.LONGEST_S),
        ("forward", audit_forward, "send_new", audit_forward.SENDS_S + audit_forward.LONGEST_S),
    ],
)
def test_what_waits_for_a_server_is_one_workers_for_as_long_as_its_run_may_take(
    monkeypatch: pytest.MonkeyPatch, name: str, module: Any, work: str, longest_s: float
) -> None:
    def next_in() -> timedelta:
        return PeriodicTask.objects.get(name=name).next_at - database_now()

    def done(*_: object) -> dict[str, Any]:
        assert next_in() > timedelta(seconds=longest_s - 2)
        return {"next_in_s": None}

    monkeypatch.setattr(module, work, done)
    assert periodic.run_due(name) == [name]
    assert next_in() <= timedelta(seconds=module.EVERY_S)


@pytest.mark.parametrize(
    ("name", "module", "work", "done"),
    [
        ("forward", audit_forward, "send_new", {"next_in_s": 0.0, "new": 1}),
        ("retention", retention, "enforce", {"more": True, "new": 1}),
    ],
)
def test_a_task_that_is_due_at_once_is_so_with_its_new_result(
    monkeypatch: pytest.MonkeyPatch, name: str, module: Any, work: str, done: dict[str, Any]
) -> None:
    """Or another worker would begin where this one began."""
    monkeypatch.setattr(module, work, lambda *_: done)
    seen = []
    monkeypatch.setattr(periodic, "fp", lambda at: seen.append((at, name in periodic.due())))
    assert periodic.run_due(name) == [name]
    assert seen == [("periodic.after_claim", False), ("periodic.before_result", False)]
    assert name in periodic.due()
    assert PeriodicTask.objects.get(name=name).result["new"] == 1


def test_what_was_sent_of_the_audit_log_is_known_to_the_next_run(monkeypatch: pytest.MonkeyPatch) -> None:
    audit.record(actor=None, action="job.edit")
    periodic.run_due("seal")
    with LogCollector() as collector:
        monkeypatch.setattr(settings, "LUTHIER_AUDIT_URL", collector.url)
        for _ in range(2):
            PeriodicTask.objects.update(next_at=Now() - timedelta(seconds=1))
            assert periodic.run_due("forward") == ["forward"]
        assert [entry["action"] for entry in collector.entries] == ["job.edit"]
        assert audit_sending() == AuditSending(place=1, problem="", lacked_s=None)
        monkeypatch.setattr(settings, "LUTHIER_AUDIT_URL", "https://another.example")
        assert audit_sending() == AuditSending(place=0, problem="", lacked_s=None)


def test_a_stop_of_the_platform_is_noted_once_when_a_worker_is_back() -> None:
    periodic.run_due()
    be_due()
    assert not PlatformStop.objects.exists(), "seconds between two runs are no stop"
    PeriodicTask.objects.filter(name="notice").update(done_at=Now() - timedelta(minutes=10))
    be_due()
    be_due()
    stop = PlatformStop.objects.get()
    assert timedelta(minutes=10) <= stop.ended_at - stop.began_at < timedelta(minutes=11)


def test_a_gang_of_no_live_attempt_is_removed_the_second_time_it_is_seen(world: World) -> None:
    job = world.running()
    launch = world.cluster.launched(gang(job))
    world.exit(job)
    world.done(job)
    world.settle()
    world.cluster.launch(launch)  # a worker that had frozen goes on
    be_due()
    assert set(world.cluster.listing()) == {f"job-{job.pk}-1"}
    be_due()
    assert not world.cluster.listing()


def test_a_gang_that_the_database_does_not_know_is_left_alone_for_a_quarter_of_an_hour(world: World) -> None:
    """The database was restored from a copy that is older than the job."""
    job, name = world.running(), "job-6fm5m2zq0abc-1"
    world.cluster.launch(replace(world.cluster.launched(gang(job)), name=name))
    for _ in range(3):
        be_due()
    assert set(world.cluster.listing()) == {gang(job), name}
    assert unknown_gangs() == [name]
    found = PeriodicTask.objects.get(name="orphans")
    found.result["unknown"][name] = (timezone.now() - timedelta(minutes=16)).isoformat()
    found.save()
    be_due()
    assert set(world.cluster.listing()) == {gang(job)}


def test_what_is_left_of_a_gang_without_learners_is_removed_likewise(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker was killed in the middle of a launch or a removal, and nothing came back for the rest."""
    ended = world.running()
    world.exit(ended)
    world.done(ended)
    world.settle()
    live = gang(world.running())
    left, removed = {gang(ended), live}, []
    monkeypatch.setattr(world.cluster, "traces", lambda: frozenset(left), raising=False)
    monkeypatch.setattr(world.cluster, "remove", lambda name, uids=None: removed.append((name, uids)))
    be_due()
    assert removed == []
    be_due()
    assert removed == [(gang(ended), None)]


def test_a_live_gang_is_never_an_orphan(world: World) -> None:
    job = world.running()
    for _ in range(3):
        be_due()
    assert set(world.cluster.listing()) == {gang(job)}


def test_a_cluster_that_does_not_answer_keeps_what_was_seen(world: World) -> None:
    job = world.running()
    launch = world.cluster.launched(gang(job))
    world.exit(job)
    world.done(job)
    world.settle()
    world.cluster.launch(launch)
    be_due()
    world.cluster.fail_next("observe", ClusterBusy("later"))
    be_due()
    assert world.cluster.listing()
    be_due()
    assert not world.cluster.listing()


def deleted(world: World, days_ago: float) -> Job:
    """A completed job with a row of everything, deleted some days ago."""
    job = world.submit(state=State.COMPLETED)
    saved = factories.checkpoint(job)
    kept = {
        name: blobs.put(world.tenant.pk, f"{name} of {job.pk}".encode())
        for name in ("code", "model", "result")
    }
    CheckpointFile.objects.create(checkpoint=saved, tenant=world.tenant, path="m", blob=kept["model"])
    ResultFile.objects.create(job=job, tenant=world.tenant, attempt=1, rank=0, path="r", blob=kept["result"])
    place = {"job": job, "tenant": world.tenant, "attempt": 1, "rank": 0, "seq": 1}
    LogChunk.objects.create(**place, offset=0, len=1, first_line=1, lines=0, data=b"x")
    MetricPoint.objects.create(**place, name="loss", step=1, value=0.5, at=job.created_at)
    MetricRollup.objects.create(
        job=job, tenant=world.tenant, attempt=1, rank=0, name="loss", first_seq=1, last_seq=1, points=1, not_finite=0,
        in_order=True, low_step=1, high_step=1, low_at=job.created_at, high_at=job.created_at, last=0.5,
    )  # fmt: skip
    Job.objects.filter(pk=job.pk).update(code=kept["code"], deleted_at=Now() - timedelta(days=days_ago))
    return job


def test_a_deleted_job_is_purged_with_every_row_and_byte_once_its_time_is_over(world: World) -> None:
    old, fresh = deleted(world, settings.LUTHIER_RETENTION_DAYS + 1), deleted(world, 1)
    clone = world.submit(cloned_from=old)
    files = {path for path in Path(settings.LUTHIER_DATA).rglob("blobs/**/*") if path.is_file()}
    be_due()
    assert set(Job.objects.values_list("pk", flat=True)) == {fresh.pk, clone.pk}
    for model in (Learner, JobEvent, LogChunk, MetricPoint, MetricRollup, ResultFile):
        assert not model.objects.filter(job_id=old.pk).exists(), model.__name__
    assert LogChunk.objects.filter(job=fresh).exists()
    assert Blob.objects.count() == 3
    left = {path for path in Path(settings.LUTHIER_DATA).rglob("blobs/**/*") if path.is_file()}
    assert len(files - left) == 3
    clone.refresh_from_db()
    assert clone.cloned_from is None


def test_bytes_that_a_clone_still_uses_outlive_their_first_job(world: World) -> None:
    old = deleted(world, settings.LUTHIER_RETENTION_DAYS + 1)
    code = Blob.objects.get(pk=Job.objects.get(pk=old.pk).code_id)
    clone = world.submit(code=code)
    be_due()
    clone.refresh_from_db()
    assert blobs.read(clone.code, 0, 4) == b"code"


def test_a_job_that_is_not_deleted_is_never_purged(world: World) -> None:
    job = deleted(world, 500)
    Job.objects.filter(pk=job.pk).update(deleted_at=None)
    periodic.purge(job.pk)
    assert Job.objects.filter(pk=job.pk).exists()
    assert LogChunk.objects.filter(job=job).exists()


def test_old_answers_unused_uploads_and_dead_workers_are_forgotten(world: World) -> None:
    day = timedelta(hours=25)
    for key, age in (("old", day), ("new", timedelta(0))):
        IdempotentResponse.objects.create(
            user=world.alice, key=key, request_sha256="a" * 64, created_at=Now() - age
        )
        Upload.objects.create(
            tenant=world.tenant,
            owner=world.alice,
            blob=blobs.put(world.tenant.pk, key.encode()),
            files=1,
            bytes=3,
            created_at=Now() - age,
        )
        Worker.objects.create(name=key, seen_at=Now() - age)
    be_due()
    assert IdempotentResponse.objects.get().key == "new"
    assert Upload.objects.count() == Blob.objects.count() == 1
    assert Worker.objects.get().name == "new"
