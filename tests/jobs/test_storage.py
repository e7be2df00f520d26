"""What a tenant stores is counted as rows come and go, and the sums are those of the rows."""

from __future__ import annotations

import hashlib
import json

import pytest

from jobs import blobs, invariants, retention, storage
from jobs.ingest import checkpoints
from jobs.ingest.store import commit
from jobs.lifecycle import log_compaction, periodic
from jobs.models import POINT_BYTES, Blob, Job, LogChunk, StorageChange, StorageKind, StorageUse
from jobs.states import State
from jobs.tokens import Grant, grant_of
from learner_agent.wire import Ckpt, Metric
from tests import factories
from tests.jobs.ended import ended
from tests.jobs.ingest.test_commit import data, submit

pytestmark = pytest.mark.django_db


@pytest.fixture
def job() -> Job:
    return factories.job(state=State.PROCESSING)


def used(tenant_id: int) -> dict[str, int]:
    """Bytes by kind, of those kinds that have any: the same before and after they are added up."""
    before = storage.used_by(tenant_id)
    storage.add_up({})
    assert not StorageChange.objects.exists()
    assert storage.used_by(tenant_id) == before
    assert storage.used_by_all().get(tenant_id, 0) == sum(before.values())
    assert "StorageSum" not in {each.name for each in invariants.violations()}
    return {kind.value: size for kind, size in before.items() if size}


def grant(job: Job) -> Grant:
    found = grant_of(factories.secret(job, 1, 0))
    assert found is not None
    return found


def test_each_kind_counts_for_its_tenant_alone_until_it_is_removed() -> None:
    tenant, other = factories.tenant(), factories.tenant()
    job = ended(factories.member(tenant), 5, log_bytes=1000)
    ended(factories.member(other), 5, log_bytes=7)
    model, result = (len(f"{name} of {job.pk}") for name in ("model", "result"))
    assert used(tenant.pk) == {"logs": 1000, "metrics": POINT_BYTES, "code": model + result}
    assert used(other.pk)["logs"] == 7

    retention.delete_logs(job.pk)
    assert "logs" not in used(tenant.pk)
    Job.objects.filter(pk=job.pk).update(deleted_at=job.created_at)
    periodic.purge(job.pk)
    assert used(tenant.pk) == {"code": model + result}, "files count until they are removed from the store"
    Blob.objects.filter(tenant=tenant).delete()
    assert used(tenant.pk) == {}
    assert StorageUse.objects.filter(tenant=other, kind=StorageKind.LOGS).get().bytes == 7


def test_what_a_learner_sends_counts_once_and_merging_it_changes_nothing(job: Job) -> None:
    submit(job, data(0, b"one\n"))
    submit(job, data(0, b"one\n"), data(4, b"two\n"))
    assert used(job.tenant_id) == {"logs": 8}
    points = Metric("jsonl", 0, 10, [("loss", 1, 0, 0.5), ("loss", 2, 0, 0.4)])
    commit([(grant(job), points), (grant(job), points)])
    assert used(job.tenant_id) == {"logs": 8, "metrics": 2 * POINT_BYTES}

    log_compaction.compact_learner(job.learner_rows.get().pk)
    assert used(job.tenant_id)["logs"] == 8


def test_lines_that_were_not_kept_do_not_count(job: Job, settings: object) -> None:
    settings.LUTHIER_LOG_JOB_MAX_BYTES = 5  # type: ignore[attr-defined]
    submit(job, data(0, b"12345678\n"))
    submit(job, data(9, b"more\n"))
    assert LogChunk.objects.filter(job=job, tombstone=True).exists()
    assert used(job.tenant_id) == {"logs": 5}


def offer(job: Job, what: str, files: dict[str, bytes]) -> Ckpt:
    listed = [(name, len(content), hashlib.sha256(content).hexdigest()) for name, content in files.items()]
    return checkpoints.offer(grant(job), Ckpt(what, what=what, step=None, files=listed))  # type: ignore[arg-type]


def test_files_count_from_the_offer_on_and_once_however_often_they_are_used(job: Job) -> None:
    offer(job, "implicit", {"model": b"weights", "copy": b"weights"})
    assert used(job.tenant_id) == {"checkpoints": 7}, "reserved before a byte has arrived"
    need = offer(job, "results", {"model": b"weights", "report": b"fine"}).need
    assert used(job.tenant_id) == {"checkpoints": 7, "results": 4}
    for _, blob_id, _ in need:
        blobs.append(blob_id, 0, b"fine" if Blob.objects.get(pk=blob_id).size == 4 else b"weights")
    assert used(job.tenant_id) == {"checkpoints": 7, "results": 4}, "pieces that arrive change nothing"


def test_a_size_that_is_declared_again_counts_as_the_new_one(job: Job) -> None:
    sha256 = hashlib.sha256(b"abc").hexdigest()
    blobs.begin(job.tenant_id, sha256, 2**20)
    assert used(job.tenant_id) == {"checkpoints": 2**20}
    blobs.begin(job.tenant_id, sha256, 3)
    assert used(job.tenant_id) == {"checkpoints": 3}


def test_sums_beyond_a_bigint_are_counted(job: Job) -> None:
    for n in range(3):
        Blob.objects.create(tenant=job.tenant, sha256=str(n) * 64, size=2**62)
    assert used(job.tenant_id) == {"checkpoints": 3 * 2**62}


def test_a_spec_counts_as_code_with_what_is_larger_than_usual_of_it(job: Job) -> None:
    assert used(job.tenant_id) == {}, "one of a usual size"
    kept = len(json.dumps(job.spec)) + len(json.dumps(job.packages))
    Job.objects.filter(pk=job.pk).update(spec_text="x" * 10_000)
    assert used(job.tenant_id) == {"code": kept + 10_000 - storage.SPEC_FREE_BYTES}
    Job.objects.filter(pk=job.pk).update(spec_text="", packages={"lock": ["y" * 10_000]})
    assert used(job.tenant_id)["code"] > 10_000 - storage.SPEC_FREE_BYTES
    Job.objects.filter(pk=job.pk).update(packages={})
    assert used(job.tenant_id) == {}
    large = factories.job(of=job.tenant, spec_text="x" * 10_000)
    assert used(job.tenant_id)["code"] > 10_000 - storage.SPEC_FREE_BYTES
    Job.objects.filter(pk=large.pk).update(spec_text="")
    assert used(job.tenant_id) == {}
