"""Operations of people, learners and periodic tasks that have several effects: each may be killed between any two and
repeated.

An operation is built in committed rows, done (again after a kill, as its caller would), and checked to have happened
once. Together they pass every failpoint that the lives of tests/jobs/lifecycle do not.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db.models.functions import Now
from django.utils import timezone

from jobs import archives, blobs, retention
from jobs.blobs.store import MARK
from jobs.errors import JobNotFound
from jobs.ingest import checkpoints
from jobs.ingest.writer import Item, Writer
from jobs.lifecycle import periodic
from jobs.models import (
    Blob,
    Checkpoint,
    CheckpointFile,
    Job,
    LogChunk,
    MetricPoint,
    PeriodicTask,
    ResultFile,
    Upload,
)
from jobs.services import (
    answer_once,
    clone_accept,
    clone_prepare,
    job_accept,
    job_cancel,
    job_delete,
    job_halt,
    job_prepare,
    job_resume,
    job_submit,
)
from jobs.services.uploads import upload_store
from jobs.states import EventCode, Intent, State
from jobs.tokens import Grant, grant_of
from learner_agent.wire import Ckpt, Data, Event, Metric
from tenants.models import AuditEntry, RetentionRule
from tenants.retention import OF_JOBS, OF_TENANTS
from tests import factories
from tests.jobs.ingest.test_commit import log_of
from tests.jobs.lifecycle.world import World, gang

DAY = timedelta(days=2)
Do = Callable[[], object]
Operation = Callable[[World], tuple[Do, Do]]
"""Builds, and returns how to do it and how to check that it was done once."""


def keyed(world: World, prepare: Callable[[], Any], accept: Callable[[Any], Job]) -> Do:
    """As a client does it: under an Idempotency-Key, and again with the same one."""
    prepared: list[Any] = []

    def once() -> tuple[int, dict[str, Any]]:
        return 201, {"id": accept(prepared[-1]).pk}

    def do() -> object:
        return answer_once(
            user=world.alice,
            key="k",
            request_sha256="a" * 64,
            work=once,
            prepare=lambda: prepared.append(prepare()),
        )

    return do


def submit(world: World) -> tuple[Do, Do]:
    spec = factories.spec()

    def check() -> None:
        job = Job.objects.get()
        assert (job.state, job.event_seq, job.code.verified) == (State.QUEUED, 1, True)
        assert Blob.objects.count() == 1

    prepare = partial(job_prepare, user=world.alice, tenant=world.tenant, source=spec)
    return keyed(world, prepare, job_accept), check


def request(verb: Callable[..., Job], requested: Intent, **fields: Any) -> Operation:
    def build(world: World) -> tuple[Do, Do]:
        job = world.submit(**fields)

        def check() -> None:
            job.refresh_from_db()
            assert (job.intent, job.intent_gen, job.settled) == (requested, 2, False)
            assert job.events.filter(reason=f"{requested.lower()}_requested").count() == 1

        return lambda: verb(user=world.alice, job_id=job.pk), check

    build.__name__ = verb.__name__
    return build


def clone(world: World) -> tuple[Do, Do]:
    spec = factories.spec()
    source = job_submit(user=world.alice, tenant=world.tenant, source=spec)
    saved = factories.checkpoint(source, step=7)
    kept = blobs.put(world.tenant.pk, b"weights")
    CheckpointFile.objects.create(checkpoint=saved, tenant_id=world.tenant.pk, part=0, path="w", blob=kept)

    def check() -> None:
        made = Job.objects.get(cloned_from=source)
        assert (made.resume_from.step, made.code_id) == (7, source.code_id)
        assert made.resume_from.files.get().blob_id == kept.pk
        assert source.events.filter(numbers__clone=made.pk).count() == 1

    prepare = partial(clone_prepare, user=world.alice, job_id=source.pk, checkpoint=saved.n)
    return keyed(world, prepare, clone_accept), check


def upload(world: World) -> tuple[Do, Do]:
    content = archives.pack([("main.py", "print(1)\n")])

    def do() -> object:
        return upload_store(user=world.alice, tenant=world.tenant, archive=BytesIO(content))

    def check() -> None:
        assert Upload.objects.latest("created_at").blob.verified
        assert Blob.objects.count() == 1

    return do, check


def delete(world: World) -> tuple[Do, Do]:
    job = world.submit(state=State.COMPLETED, settled=True, next_reconcile_at=None)

    def do() -> None:
        with suppress(JobNotFound):
            job_delete(user=world.alice, job_id=job.pk)

    def check() -> None:
        job.refresh_from_db()
        assert job.deleted_at
        assert job.events.count() == 2

    return do, check


def learner_of(world: World, *, attempt: int = 1, **fields: Any) -> tuple[Job, Grant]:
    job = world.submit(state=State.PROCESSING, attempt=attempt, **fields)
    found = grant_of(factories.secret(job, attempt, 0))
    assert found is not None
    return job, found


def send_files(grant: Grant, asked: Ckpt, contents: dict[str, bytes]) -> Ckpt:
    """As a shipper does it: offer, send what is asked for in pieces, offer again."""
    for _ in range(3):
        answer = checkpoints.offer(grant, asked)
        if answer.state != "UPLOADING":
            return answer
        for index, blob_id, start in answer.need:
            content = contents[asked.files[index][0]]
            while start < len(content):
                with suppress(blobs.WrongOffset):
                    start = blobs.append(blob_id, start, content[start : start + 4]).received
                    continue
                start = 0  # its last piece was placed by one that died before it could say so
    raise AssertionError(f"never kept: {answer}")


def offer_of(what: str, step: int | None, contents: dict[str, bytes]) -> Ckpt:
    listed = [(path, len(data), hashlib.sha256(data).hexdigest()) for path, data in contents.items()]
    return Ckpt(f"{what}-{step}", what=what, step=step, files=listed)


def checkpoint(world: World) -> tuple[Do, Do]:
    job, grant = learner_of(
        world, spec=factories.spec(checkpoint={"keep": 1, "every": "10m", "grace": "60s"})
    )
    send_files(grant, offer_of("checkpoint", 1, {"w": b"step one"}), {"w": b"step one"})
    contents = {"w": b"step two", "same": b"the same bytes"}

    def do() -> None:
        assert send_files(grant, offer_of("checkpoint", 2, contents), contents).state == "COMMITTED"

    def check() -> None:
        assert list(job.checkpoints.order_by("n").values_list("step", "state")) == [
            (1, "DROPPED"),
            (2, "COMMITTED"),
        ]
        assert job.events.filter(numbers__checkpoint=2).count() == 1
        newest = job.checkpoints.get(n=2)
        assert {file.path: blobs.read(file.blob, 0, 99) for file in newest.files.all()} == contents

    return do, check


def results(world: World) -> tuple[Do, Do]:
    job, grant = learner_of(world)
    contents = {"model.bin": b"a model of bytes"}

    def do() -> None:
        assert send_files(grant, offer_of("results", None, contents), contents).state == "COMMITTED"

    def check() -> None:
        kept = ResultFile.objects.get(job=job)
        assert blobs.read(kept.blob, 0, 99) == contents[kept.path]

    return do, check


def damaged_checkpoint(world: World) -> tuple[Do, Do]:
    """Two checkpoints of one job share the file that is damaged; its second attempt resumes from it."""
    job, grant = learner_of(world, attempt=2)
    kept = blobs.put(world.tenant.pk, b"weights")
    for step in (1, 2):
        saved = factories.checkpoint(job, step=step, attempt=1)
        CheckpointFile.objects.create(
            checkpoint=saved, tenant_id=world.tenant.pk, part=0, path="w", blob=kept
        )
    job.attempts.filter(n=2).update(resume_from=saved)
    factories.bytes_of(kept).write_bytes(b"weightX")

    def check() -> None:
        assert set(job.checkpoints.values_list("state", flat=True)) == {Checkpoint.State.CORRUPT}
        assert job.events.count() == 3
        assert not factories.bytes_of(kept).exists()

    return lambda: checkpoints.verify(grant, saved.n), check


def frames(world: World) -> tuple[Do, Do]:
    job, grant = learner_of(world)
    sent = b"line 1\nline 2\n"
    spoken = [
        Event(1, "phase", 0, {"phase": "PROCESSING"}),
        Data(0, sent, 1000, [(len(sent), 0)], zlib.crc32(sent)),
        Metric("jsonl", 0, 10, [("loss", 1, 5000, 0.5), ("loss", 2, 6000, 0.25)]),
    ]

    def do() -> None:
        answers: list[Any] = []
        writer = Writer()
        writer._settle([Item(grant, frame, lambda count, answer: answers.append(answer)) for frame in spoken])
        writer.stop()
        assert [ack.log for answer in answers for ack in answer] == [len(sent)] * len(answers)
        assert answers

    def check() -> None:
        assert log_of(job) == sent
        assert LogChunk.objects.filter(job=job).count() == 1
        assert MetricPoint.objects.filter(job=job).count() == 2

    return do, check


def purge(world: World) -> tuple[Do, Do]:
    job, grant = learner_of(world)
    contents = {"w": b"step one"}
    send_files(grant, offer_of("checkpoint", 1, contents), contents)
    frames_of = Writer()
    frames_of._settle([Item(grant, Data(0, b"x\n", 1, [(2, 0)], zlib.crc32(b"x\n")), lambda *_: None)])
    frames_of.stop()
    job_cancel(user=world.alice, job_id=job.pk)
    world.settle()
    Job.objects.filter(pk=job.pk).update(deleted_at=Now())

    def check() -> None:
        assert not Job.objects.exists()
        assert not LogChunk.objects.exists()
        assert not Blob.objects.exists()
        assert not left_on_disk()

    return lambda: periodic.purge(job.pk), check


def periodical(world: World) -> tuple[Do, Do]:
    """An orphaned gang, an upload that no job used within a day, and a checkpoint that its learner left unfinished."""
    job = world.running()
    unfinished = factories.checkpoint(job, step=1, state=Checkpoint.State.UPLOADING)
    launch = world.cluster.launched(gang(job))
    world.exit(job)
    world.done(job)
    world.settle()
    world.cluster.launch(launch)
    upload(world)[0]()
    Upload.objects.update(created_at=Now() - DAY)
    world.elapse(31)

    def do() -> None:
        for _ in range(3):
            PeriodicTask.objects.update(next_at=Now() - DAY)
            periodic.run_due()

    def check() -> None:
        assert not world.cluster.listing()
        unfinished.refresh_from_db()
        assert unfinished.state == Checkpoint.State.DROPPED
        assert not Upload.objects.exists()
        assert not Blob.objects.exists()

    return do, check


def retain(world: World) -> tuple[Do, Do]:
    """A job that ended long ago, of which each kind of data is removed by age, and an old entry of the audit log."""
    job, grant = learner_of(world)
    for what, step in (("checkpoint", 1), ("results", None)):
        contents = {"w": what.encode()}
        send_files(grant, offer_of(what, step, contents), contents)
    writer = Writer()
    for frame in (
        Data(0, b"x\n", 1, [(2, 0)], zlib.crc32(b"x\n")),
        Metric("jsonl", 0, 10, [("loss", 1, 5000, 0.5)]),
    ):
        writer._settle([Item(grant, frame, lambda *_: None)])
    writer.stop()
    job_cancel(user=world.alice, job_id=job.pk)
    world.settle()
    Job.objects.filter(pk=job.pk).update(finished_at=Now() - timedelta(days=40))
    for kind in OF_TENANTS:
        RetentionRule.objects.create(tenant=world.tenant, kind=kind, days=30)
    AuditEntry.objects.create(tenant=world.tenant, action="job.read", at=timezone.now() - timedelta(days=40))

    def check() -> None:
        said = job.events.filter(code=EventCode.DATA_REMOVED)
        assert sorted(said.values_list("reason", flat=True)) == sorted(
            f"retention_{kind}" for kind in OF_JOBS
        )
        for model in (LogChunk, MetricPoint, CheckpointFile, ResultFile):
            assert not model.objects.exists(), model.__name__
        assert not Blob.objects.exists()
        assert job.events.filter(to_state=State.CANCELED).exists()
        noted = [
            entry.details for entry in world.tenant.audit.filter(action="retention.remove").order_by("pk")
        ]
        assert sum(kind["jobs"] for details in noted for kind in details.values()) == len(OF_JOBS)
        removed = world.tenant.audit.get(action="retention.audit")
        assert removed.details["entries"] == 1

    return lambda: retention.enforce(float("inf")), check


OPERATIONS: tuple[Operation, ...] = (
    submit,
    request(job_halt, Intent.HALT),
    request(job_cancel, Intent.CANCEL),
    request(
        job_resume,
        Intent.RUN,
        state=State.HALTED,
        intent=Intent.HALT,
        last_halt={},
        settled=True,
        next_reconcile_at=None,
    ),
    clone,
    upload,
    delete,
    checkpoint,
    results,
    damaged_checkpoint,
    frames,
    purge,
    retain,
    periodical,
)


def left_on_disk() -> list[Path]:
    """Bytes of blobs: all but the mark of the place."""
    files = (path for path in (Path(settings.LUTHIER_DATA) / "blobs").rglob("*") if path.is_file())
    return [path for path in files if path.name != MARK]


def store_agrees() -> bool:
    """Every verified blob has its file, and every file its blob."""
    whole = {factories.bytes_of(blob) for blob in Blob.objects.filter(verified=True)}
    known = whole | {factories.bytes_of(blob).with_suffix(".part") for blob in Blob.objects.all()}
    return whole <= set(left_on_disk()) <= known
