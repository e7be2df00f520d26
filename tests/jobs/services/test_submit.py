"""Submitting, checking, cloning, editing and deleting: what is kept, what is refused, and that nothing half is left."""

from __future__ import annotations

import io
import tarfile
import threading
from typing import Any

import pytest
import yaml
from django.db import connection, transaction
from django.utils import timezone

from gpu_scheduler.model import Range
from jobs import archives, blobs, failpoints
from jobs.drops import after_commit
from jobs.errors import (
    CheckpointNotFound,
    CodeNotStored,
    IllegalTransition,
    JobChanged,
    JobForbidden,
    JobNotFound,
    SpecInvalid,
    TenantSuspended,
    UploadInvalid,
    UploadNotFound,
)
from jobs.models import Blob, Checkpoint, CheckpointFile, ClusterNode, Job, Upload
from jobs.selectors.jobs import etag, job_get, job_list
from jobs.selectors.requests import size_range
from jobs.selectors.serializers import JobSerializer
from jobs.services import clone as clones
from jobs.services import job_check, job_clone, job_delete, job_edit, job_submit
from jobs.services.uploads import upload_store
from jobs.states import EventCode, State
from tenants.models import AuditEntry, Tenant
from tests import factories
from tests.jobs.conftest import People

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("sklearn")]


def codes(error: SpecInvalid) -> dict[str, str]:
    return {problem["path"]: problem["code"] for problem in error.details["errors"]}


def test_a_submitted_job_waits_with_its_code_its_spec_and_its_first_event(people: People) -> None:
    spec = factories.spec(name="digits", resources={"learners": 2}, checkpoint={"grace": "90s"})
    job = job_submit(user=people.alice, tenant=people.vision, source=spec)
    assert (job.state, job.owner, job.tenant, job.learners, job.slots, job.grace_s) == (
        State.QUEUED,
        people.alice,
        people.vision,
        2,
        1,
        90,
    )
    assert job.code is not None
    with tarfile.open(fileobj=io.BytesIO(blobs.read(job.code, 0, job.code.size))) as archive:
        assert archive.getnames() == ["train.py"]
    event = job.events.get()
    assert (event.n, event.code, event.actor, event.to_state) == (
        1,
        EventCode.SUBMITTED,
        people.alice,
        "QUEUED",
    )
    assert job.reason_code
    assert job.next_reconcile_at is not None


def test_yaml_json_and_objects_mean_the_same_job(people: People) -> None:
    spec = factories.spec()
    text = yaml.safe_dump(spec)
    one = job_submit(user=people.alice, tenant=people.vision, source=spec)
    two = job_submit(user=people.alice, tenant=people.vision, source=text, content_type="application/yaml")
    assert one.spec == two.spec
    assert two.spec_text == text
    assert one.code == two.code  # the same bytes are kept once


def test_all_errors_come_at_once_and_nothing_is_written(people: People) -> None:
    spec = factories.spec(framework="pytorhc", priority="urgent", leraners=3)
    with pytest.raises(SpecInvalid) as caught:
        job_submit(user=people.alice, tenant=people.vision, source=spec)
    assert "leraners" in codes(caught.value)
    spec.pop("leraners")
    with pytest.raises(SpecInvalid) as caught:
        job_submit(user=people.alice, tenant=people.vision, source=spec)
    assert set(codes(caught.value)) == {"framework", "priority"}
    assert not Job.objects.exists()


def test_errors_of_the_spec_and_of_the_installation_come_at_once(people: People) -> None:
    wrong = factories.spec(
        name="", framework="absent", leraners=2, priority="urgent", secrets={"KEY": "absent"}
    )
    wrong["code"] = {"upload": "gone"}
    for check in (job_check, job_submit):
        with pytest.raises(SpecInvalid) as error:
            check(user=people.alice, tenant=people.vision, source=wrong)
        assert codes(error.value) == {
            "name": "too_short",
            "leraners": "unknown_field",
            "framework": "runtime_not_found",
            "priority": "priority_not_allowed",
            "secrets.KEY": "secret_not_found",
            "code.upload": "upload_not_found",
        }
    assert not Job.objects.exists()


def test_a_missing_upload_is_named_along_with_wrong_requirements(people: People) -> None:
    wrong = factories.spec(requirements=["--index-url=x"], resources={"memory": "4GB"})
    wrong["code"] = {"upload": "gone"}
    with pytest.raises(SpecInvalid) as error:
        job_check(user=people.alice, tenant=people.vision, source=wrong)
    assert codes(error.value) == {
        "requirements[0]": "bad_requirement",
        "resources.memory": "bad_unit",
        "code.upload": "upload_not_found",
    }


def test_what_the_cluster_can_never_hold_is_refused_and_what_quota_forbids_is_a_warning(
    people: People,
) -> None:
    ClusterNode.objects.create(name="node-a", cluster="memory", slot_type="cpu", slots=16)
    with pytest.raises(SpecInvalid):
        job_check(user=people.alice, tenant=people.vision, source=factories.spec(resources={"cpus": 17}))
    checked = job_check(
        user=people.alice, tenant=people.vision, source=factories.spec(resources={"cpus": 16})
    )
    assert [warning.code for warning in checked.findings.warnings] == ["above_quota"]
    assert not Job.objects.exists()


def test_memory_is_compared_with_the_nodes_of_the_type_once_all_of_them_have_reported_theirs(
    people: People,
) -> None:
    def memory_errors() -> dict[str, str]:
        spec = factories.spec(resources={"memory": "100Gi"})
        try:
            job_check(user=people.alice, tenant=people.vision, source=spec)
        except SpecInvalid as refused:
            return codes(refused)
        return {}

    for name, slot_type, gib in (("node-a", "cpu", 16), ("node-b", "cpu", 24), ("node-c", "a100", 512)):
        ClusterNode.objects.create(
            name=name, cluster="memory", slot_type=slot_type, slots=4, memory_mib=gib * 1024
        )
    assert memory_errors() == {"resources.memory": "exceeds_cluster"}
    ClusterNode.objects.filter(name="node-a").update(memory_mib=None)
    assert memory_errors() == {}


def test_cpus_that_no_node_with_such_gpus_has_are_refused_with_the_most_that_one_has(people: People) -> None:
    for name, cpus in (("node-a", 16.0), ("node-b", 32.0)):
        ClusterNode.objects.create(
            name=name, cluster="memory", slot_type="a100", slots=4, cpus=cpus, learner_cpus=0.5
        )
    source = factories.spec(resources={"gpus": 2, "gpu_type": "a100", "cpus": 32})
    with pytest.raises(SpecInvalid) as refused:
        job_check(user=people.alice, tenant=people.vision, source=source)
    assert codes(refused.value) == {"resources.cpus": "exceeds_cluster"}
    assert refused.value.details["errors"][0]["allowed"] == "at most 31"
    ClusterNode.objects.filter(name="node-a").update(cpus=None)
    assert job_check(user=people.alice, tenant=people.vision, source=source)


def test_only_researchers_of_an_active_tenant_submit(people: People) -> None:
    for person in (people.bob, people.carol):
        with pytest.raises(JobForbidden):
            job_submit(user=person, tenant=people.vision, source=factories.spec())
    Tenant.objects.filter(pk=people.vision.pk).update(state="suspended")
    people.vision.refresh_from_db()
    with pytest.raises(TenantSuspended):
        job_submit(user=people.alice, tenant=people.vision, source=factories.spec())


def test_a_store_that_is_away_refuses_a_submission_and_changes_nothing(
    people: People, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: Any) -> Any:
        raise blobs.StoreUnavailable("no answer")

    monkeypatch.setattr(blobs, "put", away)
    with pytest.raises(CodeNotStored, match="submit again in a moment"), transaction.atomic():
        job_submit(user=people.alice, tenant=people.vision, source=factories.spec())
    assert not Job.objects.exists()


def test_an_upload_serves_its_own_tenant_only(people: People) -> None:
    blob = blobs.put(people.vision.pk, b"archive")
    upload = Upload.objects.create(tenant=people.vision, owner=people.alice, blob=blob, files=1, bytes=7)
    spec = factories.spec(code={"upload": upload.pk})
    assert job_submit(user=people.alice, tenant=people.vision, source=spec).code == blob
    with pytest.raises(UploadNotFound):
        job_submit(user=people.bob, tenant=people.nlp, source=spec)


def test_an_upload_that_is_swept_while_it_is_used_is_not_found(people: People) -> None:
    blob = blobs.put(people.vision.pk, b"archive")
    upload = Upload.objects.create(tenant=people.vision, owner=people.alice, blob=blob, files=1, bytes=7)

    swept: list[str] = []

    def sweep(execute: Any, sql: str, *more: Any) -> Any:
        if 'FROM "jobs_upload"' in sql and "FOR NO KEY UPDATE" in sql and not swept:
            swept.append(sql)
            Upload.objects.all().delete()
            blobs.release([blob.pk])
        return execute(sql, *more)

    spec = factories.spec(code={"upload": upload.pk})
    with pytest.raises(UploadNotFound), connection.execute_wrapper(sweep), transaction.atomic():
        job_submit(user=people.alice, tenant=people.vision, source=spec)
    assert swept, "the upload is read under a lock"
    assert not Job.objects.exists()


def saved(job: Job, people: People, **fields: Any) -> Checkpoint:
    made = factories.checkpoint(job, **fields)
    blob = blobs.put(people.vision.pk, f"weights {made.n}".encode())
    CheckpointFile.objects.create(checkpoint=made, tenant=people.vision, path="model.bin", blob=blob)
    return made


def test_a_source_that_is_purged_meanwhile_is_gone_and_nothing_is_made(
    people: People, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = factories.job(owner=people.alice, state=State.COMPLETED)
    look = clones.checkpoint_of

    def too_late(job: Job, n: int | None, *, keep: bool) -> Checkpoint | None:
        Job.objects.filter(pk=job.pk).update(deleted_at=timezone.now())
        return look(job, n, keep=keep)

    monkeypatch.setattr(clones, "checkpoint_of", too_late)
    with pytest.raises(JobNotFound):
        job_clone(user=people.alice, job_id=source.pk)
    assert Job.objects.filter(cloned_from=source).count() == 0


def test_a_clone_has_the_changes_the_code_and_its_own_copy_of_the_checkpoint(people: People) -> None:
    source = job_submit(user=people.alice, tenant=people.vision, source=factories.spec(env={"LR": "0.1"}))
    kept = saved(source, people, step=40)
    changes = {"env": {"LR": "0.2"}, "resources": {"learners": 2}, "name": "again"}
    clone = job_clone(user=people.dave, job_id=source.pk, changes=changes, checkpoint=1)
    assert (clone.name, clone.owner, clone.learners, clone.cloned_from_id) == (
        "again",
        people.dave,
        2,
        source.pk,
    )
    assert clone.spec["env"] == {"LR": "0.2"}
    assert clone.spec["resources"]["memory"] == "1Gi"
    assert clone.code == source.code
    copy = clone.checkpoints.get()
    assert (copy.n, copy.step, copy.state, clone.resume_from) == (1, 40, "COMMITTED", copy)
    assert copy.files.get().blob == kept.files.get().blob
    assert source.events.filter(code=EventCode.CLONED).get().numbers == {"clone": clone.pk}


def test_a_clone_of_an_elastic_job_with_a_number_of_learners_is_not_elastic(people: People) -> None:
    resources = {"learners": {"min": 1, "max": 4}, "batch": {"min": 8, "max": 64}}
    source = job_submit(user=people.alice, tenant=people.vision, source=factories.spec(resources=resources))
    assert (source.learners, size_range(source)) == (1, Range(1, 4))
    clone = job_clone(user=people.alice, job_id=source.pk, changes={"resources": {"learners": 2}})
    assert (clone.learners, size_range(clone), "batch" in clone.spec["resources"]) == (2, Range(2, 2), False)
    wider = job_clone(user=people.alice, job_id=source.pk, changes={"resources": {"cpus": 2}})
    assert wider.spec["resources"]["batch"] == {"min": 8, "max": 64}


@pytest.mark.django_db(transaction=True)
def test_a_checkpoint_is_not_dropped_while_it_is_cloned(people: People) -> None:
    source = job_submit(
        user=people.alice, tenant=people.vision, source=factories.spec(checkpoint={"keep": 1})
    )
    saved(source, people, step=40)
    saved(source, people, step=50)

    def drop() -> None:
        with transaction.atomic():
            after_commit(source.checkpoints.get(step=50))
        connection.close()

    dropping = threading.Thread(target=drop)

    def meanwhile(point: str) -> None:
        if point == "clone.after_job":
            dropping.start()
            dropping.join(1)

    failpoints.arm(meanwhile)
    try:
        clone = job_clone(user=people.alice, job_id=source.pk, checkpoint=1)
    finally:
        failpoints.arm(None)
    dropping.join()
    assert source.checkpoints.get(n=1).state == Checkpoint.State.DROPPED
    assert clone.checkpoints.get().files.count() == 1


def test_a_clone_is_judged_like_a_new_job(people: People) -> None:
    source = job_submit(user=people.alice, tenant=people.vision, source=factories.spec())
    with pytest.raises(SpecInvalid):
        job_clone(user=people.alice, job_id=source.pk, changes={"comand": "x"})
    with pytest.raises(CheckpointNotFound):
        job_clone(user=people.alice, job_id=source.pk, checkpoint=9)
    with pytest.raises(JobForbidden):
        job_clone(user=people.carol, job_id=source.pk)
    with pytest.raises(JobNotFound):
        job_clone(user=people.bob, job_id=source.pk)
    assert Job.objects.count() == 1


def test_an_ended_job_can_be_cloned(people: People) -> None:
    source = job_submit(user=people.alice, tenant=people.vision, source=factories.spec())
    ended = factories.job(owner=people.alice, state=State.FAILED, spec=source.spec)
    assert job_clone(user=people.alice, job_id=ended.pk).state == State.QUEUED


def test_editing_changes_name_tags_and_priority_with_an_event(people: People) -> None:
    job = job_submit(user=people.alice, tenant=people.vision, source=factories.spec())
    after = job_edit(
        user=people.alice,
        job_id=job.pk,
        name="new",
        tags=["a"],
        priority="high",
        if_match=frozenset({etag(job)}),
    )
    assert (after.name, after.tags, after.priority, after.priority_rank) == ("new", ["a"], "high", 2)
    assert (after.spec["name"], after.spec["priority"]) == ("new", "high")
    assert after.events.filter(code=EventCode.EDITED).get().numbers["priority"] == {
        "from": "normal",
        "to": "high",
    }
    assert etag(after) != etag(job)
    with pytest.raises(JobChanged) as caught:
        job_edit(user=people.alice, job_id=job.pk, name="late", if_match=frozenset({etag(job)}))
    assert caught.value.details == {"etag": etag(after)}


def test_editing_obeys_the_rules_of_a_spec_and_the_tenants_priorities(people: People) -> None:
    job = job_submit(user=people.alice, tenant=people.vision, source=factories.spec())
    for wrong in ({"name": ""}, {"priority": "urgent"}, {"priority": "soon"}, {"tags": ["x" * 500]}):
        with pytest.raises(SpecInvalid) as caught:
            job_edit(user=people.alice, job_id=job.pk, **wrong)  # type: ignore[arg-type]
        assert all(path.startswith(next(iter(wrong))) for path in codes(caught.value))
    assert not job.events.filter(code=EventCode.EDITED).exists()


def test_only_an_ended_job_is_deleted_and_then_it_is_gone(people: People) -> None:
    running = factories.job(owner=people.alice, state=State.PROCESSING)
    with pytest.raises(IllegalTransition):
        job_delete(user=people.alice, job_id=running.pk)
    ended = factories.job(owner=people.alice, state=State.COMPLETED)
    with pytest.raises(JobForbidden):
        job_delete(user=people.carol, job_id=ended.pk)
    job_delete(user=people.alice, job_id=ended.pk)
    assert list(job_list(user=people.alice)) == [running]
    with pytest.raises(JobNotFound):
        job_get(user=people.alice, job_id=ended.pk)
    entry = AuditEntry.objects.get(action="job.delete")  # the job's own history cannot be read any more
    assert (entry.tenant_id, entry.actor, entry.target) == (ended.tenant_id, people.alice, ended.pk)
    assert entry.details == {"name": ended.name, "owner": "alice"}


def test_what_submitting_answers_is_what_reading_shows(people: People) -> None:
    answered = JobSerializer.render(
        job_submit(user=people.alice, tenant=people.vision, source=factories.spec())
    )
    assert answered == JobSerializer.render(job_get(user=people.alice, job_id=answered["id"]))


def archive_of(text: str) -> io.BytesIO:
    return io.BytesIO(archives.pack([("train.py", text)]))


def test_code_beyond_the_storage_limit_is_refused_along_with_everything_else(people: People) -> None:
    Tenant.objects.filter(pk=people.vision.pk).update(storage_limit=100)
    people.vision.refresh_from_db()
    large = factories.spec(code={"files": {"train.py": "#" * 101}}, framework="pytorsch")
    for refusing in (job_check, job_submit):
        with pytest.raises(SpecInvalid) as refused:
            refusing(user=people.alice, tenant=people.vision, source=large)
        assert codes(refused.value) == {"framework": "runtime_not_found", "code": "storage_full"}
    (error,) = (each for each in refused.value.details["errors"] if each["path"] == "code")
    assert error["message"].startswith("101 B more do not fit: the tenant stores 0 B of 100 B. Delete jobs")
    assert not Blob.objects.exists()


def test_a_limit_that_code_meets_only_as_an_archive_refuses_the_code_too(people: People) -> None:
    Tenant.objects.filter(pk=people.vision.pk).update(storage_limit=60)
    people.vision.refresh_from_db()
    spec = factories.spec(code={"files": {"train.py": "print(1)\n"}})
    with pytest.raises(SpecInvalid) as refused:
        job_submit(user=people.alice, tenant=people.vision, source=spec)
    assert codes(refused.value) == {"code": "storage_full"}
    assert not Blob.objects.exists()


def test_an_upload_beyond_the_storage_limit_is_refused_and_a_clone_of_what_is_stored_is_not(
    people: People,
) -> None:
    upload = upload_store(user=people.alice, tenant=people.vision, archive=archive_of("print(1)\n"))
    job = job_submit(
        user=people.alice, tenant=people.vision, source=factories.spec(code={"upload": upload.pk})
    )
    Tenant.objects.filter(pk=people.vision.pk).update(storage_limit=1)
    people.vision.refresh_from_db()
    with pytest.raises(UploadInvalid) as refused:
        upload_store(user=people.alice, tenant=people.vision, archive=archive_of("print(2)\n"))
    assert (refused.value.code, refused.value.details["errors"][0]["path"]) == ("storage_full", "archive")
    assert job_clone(user=people.alice, job_id=job.pk).code == job.code
    assert upload_store(user=people.alice, tenant=people.vision, archive=archive_of("print(1)\n"))
