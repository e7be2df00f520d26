"""A tenant at its storage limit: nothing more of it is stored, its jobs say so once, and others notice nothing."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.db.models.functions import Now
from django.test import Client
from django.test.utils import CaptureQueriesContext

from jobs import blobs, invariants, storage
from jobs.blobs import arrival
from jobs.blobs import promised as promised_module
from jobs.blobs.folder import FolderStore
from jobs.blobs.promised import LAPSES_S, Promised
from jobs.ingest import checkpoints, store
from jobs.ingest.store import commit
from jobs.models import (
    POINT_BYTES,
    Attempt,
    Blob,
    Job,
    JobEvent,
    LogChunk,
    MetricPoint,
    Progress,
    Promise,
    StorageKind,
)
from jobs.states import EventCode, Intent, State
from jobs.tokens import Grant, grant_of
from learner_agent.wire import Ckpt, Data, Event, Metric
from learner_agent.wire_fields import MAX_POINTS
from tenants.models import Tenant
from tests import factories
from tests.jobs.ingest.test_commit import data, log_of, submit

pytestmark = pytest.mark.django_db
MIB = 1024**2


@pytest.fixture
def job() -> Job:
    return factories.job(of=factories.tenant(storage_limit=10 * MIB), state=State.PROCESSING)


@pytest.fixture
def gang() -> Job:
    """Of two learners several saves are under way at once, each of which holds its room."""
    return factories.job(of=factories.tenant(storage_limit=10 * MIB), state=State.PROCESSING, learners=2)


def grant(job: Job, rank: int = 0) -> Grant:
    found = grant_of(factories.secret(job, 1, rank))
    assert found is not None
    return found


def offered(size: int, what: str = "checkpoint", step: int | None = 1, name: str = "model") -> Ckpt:
    sha256 = hashlib.sha256(f"{what} {step} {name} {size}".encode()).hexdigest()
    return Ckpt(f"{what}-{step}", what=what, step=step, files=[(name, size, sha256)])  # type: ignore[arg-type]


def noted(job: Job) -> list[tuple[str, str]]:
    """Reason and kind of each condition in the job's history, in order."""
    found = JobEvent.objects.filter(job=job, code=EventCode.CONDITION).order_by("n")
    return [(event.reason, event.numbers.get("kind", "")) for event in found]


def test_an_offer_beyond_the_limit_is_refused_before_a_byte_and_said_once(gang: Job) -> None:
    other = factories.job(state=State.PROCESSING)
    assert checkpoints.offer(grant(gang), offered(8 * MIB)).state == "UPLOADING"

    refused = checkpoints.offer(grant(gang), offered(3 * MIB, step=2))
    assert (refused.state, refused.need) == ("REFUSED", [])
    assert refused.message == (
        "Not kept (3.0 MiB): 3.0 MiB more do not fit: the tenant stores 8.0 MiB of 10.0 MiB. Delete jobs that are no"
        " longer needed, or ask a platform admin for a higher limit."
    )
    checkpoints.offer(grant(gang), offered(4 * MIB, step=3))
    assert noted(gang) == [("storage_full", "checkpoints")]
    event = JobEvent.objects.get(job=gang, reason="storage_full")
    assert event.message.startswith("A checkpoint is not kept: 3.0 MiB more do not fit")
    assert event.numbers == {
        "kind": "checkpoints",
        "used_bytes": 8 * MIB,
        "limit_bytes": 10 * MIB,
        "needed_bytes": 3 * MIB,
    }
    assert checkpoints.offer(grant(gang), offered(3 * MIB, "results")).state == "REFUSED"
    assert noted(gang) == [("storage_full", "checkpoints"), ("storage_full", "results")]

    assert checkpoints.offer(grant(gang), offered(8 * MIB)).state == "UPLOADING", "what was reserved stays so"
    assert checkpoints.offer(grant(gang), offered(2 * MIB, step=4)).state == "UPLOADING", "it fits exactly"
    assert checkpoints.offer(grant(other), offered(3 * MIB)).state == "UPLOADING"
    assert Blob.objects.filter(tenant=gang.tenant).count() == 2


def test_a_shippers_error_about_the_same_refusal_is_not_a_second_condition(job: Job) -> None:
    refused = checkpoints.offer(grant(job), offered(11 * MIB, "results"))
    error = Event(1, "error", 0, {"code": "results_not_kept", "message": refused.message})
    commit([(grant(job), error)])
    assert noted(job) == [("storage_full", "results")]
    learner = job.learner_rows.get()
    assert (learner.error_code, learner.message) == ("results_not_kept", refused.message)


def test_room_that_was_made_is_used(gang: Job) -> None:
    checkpoints.offer(grant(gang), offered(8 * MIB))
    assert checkpoints.offer(grant(gang), offered(3 * MIB, step=2)).state == "REFUSED"
    Tenant.objects.filter(pk=gang.tenant_id).update(storage_limit=11 * MIB)
    assert checkpoints.offer(grant(gang), offered(3 * MIB, step=2)).state == "UPLOADING"


@pytest.mark.parametrize(
    ("state", "intent", "is_kept"),
    [
        (State.PROCESSING, Intent.RUN, False),
        (State.PROCESSING, Intent.HALT, True),
        (State.STOPPING, Intent.RUN, True),  # preempted: it continues from this checkpoint
        (State.STOPPING, Intent.CANCEL, False),
    ],
)
def test_the_checkpoint_of_a_halt_may_exceed_the_limit_by_a_tenth(
    state: State, intent: Intent, is_kept: bool
) -> None:
    tenant = factories.tenant(storage_limit=10 * MIB)
    job = factories.job(of=tenant, state=state, intent=intent, stop_reason="preempted", learners=2)
    blobs.begin(tenant.pk, "0" * 64, 10 * MIB)
    assert checkpoints.offer(grant(job), offered(MIB, "results")).state == "REFUSED"
    expected = "UPLOADING" if is_kept else "REFUSED"
    assert checkpoints.offer(grant(job), offered(MIB)).state == expected
    assert checkpoints.offer(grant(job), offered(1, step=2)).state == "REFUSED", "a tenth, not more"


def test_no_bytes_are_asked_of_a_program_that_offers_more_than_there_can_be() -> None:
    job = factories.job(state=State.PROCESSING)
    for step in range(3):
        files = [(f"f{n}", 2**62, hashlib.sha256(f"{step} {n}".encode()).hexdigest()) for n in range(50)]
        refused = checkpoints.offer(grant(job), Ckpt(f"step-{step}", step=step, files=files))
        assert (refused.state, refused.need) == ("REFUSED", [])
    assert noted(job) == [("disk_full", "checkpoints")]
    assert not Blob.objects.exists()
    assert sum(storage.used_by(job.tenant_id).values()) == 0


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """What the disk has room for, and a process that has just started."""
    now = {"bytes": 9 * MIB}
    monkeypatch.setattr(FolderStore, "room", lambda self: now["bytes"])
    monkeypatch.setattr(arrival, "promised", Promised())
    return now


def test_room_on_the_disk_is_given_once_to_the_jobs_of_all_tenants(
    room: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = [factories.job(state=State.PROCESSING) for _ in range(3)]
    content = b"x" * 8 * MIB
    digest = hashlib.sha256(content).hexdigest()
    first = Ckpt("step-1", step=1, files=[("model", len(content), digest)])
    assert checkpoints.offer(grant(jobs[0]), first).state == "UPLOADING"
    for job in jobs[1:]:
        monkeypatch.setattr(arrival, "promised", Promised())  # as another web process
        refused = checkpoints.offer(grant(job), offered(8 * MIB, name="other"))
        assert refused.state == "REFUSED"
        assert "the platform's disk has room for 1.0 MiB" in refused.message
    blob = blobs.append(Blob.objects.get().pk, 0, content[: 6 * MIB])
    room["bytes"] -= 6 * MIB
    assert checkpoints.offer(grant(jobs[1]), offered(2 * MIB)).state == "REFUSED", "the rest is still to come"
    assert checkpoints.offer(grant(jobs[1]), offered(MIB)).state == "UPLOADING"
    room["bytes"] += MIB
    assert blobs.append(blob.pk, 6 * MIB, content[6 * MIB :]).verified


def test_the_rows_are_looked_at_only_where_that_could_matter(room: dict[str, int]) -> None:
    room["bytes"] = 1600 * MIB
    job = factories.job(state=State.PROCESSING)

    def looks(step: int, size: int) -> int:
        with CaptureQueriesContext(connection) as asked:
            assert checkpoints.offer(grant(job), offered(size, step=step)).state == "UPLOADING"
        return sum("sum(p.bytes)" in each["sql"] for each in asked)

    assert looks(0, MIB) == 1, "a process that has just started"
    assert [looks(step, MIB) for step in range(1, 20)] == [0] * 19
    assert looks(20, 100 * MIB) == 1


def test_what_a_lost_learner_left_half_sent_is_promised_no_more(room: dict[str, int]) -> None:
    lost, other = (factories.job(state=State.PROCESSING) for _ in range(2))
    assert checkpoints.offer(grant(lost), offered(8 * MIB)).state == "UPLOADING"
    assert checkpoints.offer(grant(other), offered(8 * MIB, name="other")).state == "REFUSED"
    Attempt.objects.filter(job=lost).update(held=False, closed_at=Now())
    assert checkpoints.offer(grant(other), offered(8 * MIB, name="other")).state == "UPLOADING"


def silent(job: Job) -> None:
    """As if nothing of the job's files had arrived for as long as a promise lasts."""
    Promise.objects.filter(job=job).update(renewed_at=Now() - timedelta(seconds=LAPSES_S + 60))


def sums_are_right() -> bool:
    return not {"PromiseSum", "StorageSum"} & {each.name for each in invariants.violations()}


def renewed(job: Job) -> bool:
    return Promise.objects.filter(job=job, renewed_at__gt=Now() - timedelta(seconds=LAPSES_S)).exists()


def test_what_a_job_offers_and_does_not_send_is_kept_from_others_for_minutes_only(
    room: dict[str, int],
) -> None:
    idle, other = (factories.job(of=factories.tenant(), state=State.PROCESSING, learners=2) for _ in range(2))
    for step, size in enumerate((8 * MIB, MIB)):
        assert checkpoints.offer(grant(idle), offered(size, step=step)).state == "UPLOADING"
    refused = checkpoints.offer(grant(other), offered(MIB, name="other"))
    assert "room for 0 B beside 9.0 MiB that other files are still to fill" in refused.message
    silent(idle)
    assert checkpoints.offer(grant(other), offered(8 * MIB, name="other")).state == "UPLOADING"
    offer = checkpoints.offer(grant(idle), offered(MIB, step=7))
    assert offer.state == "UPLOADING", "there is room for it"
    assert not renewed(idle), "an offer renews nothing"


def test_a_large_file_that_arrives_keeps_its_room_and_a_byte_keeps_none(room: dict[str, int]) -> None:
    job = factories.job(state=State.PROCESSING)
    assert checkpoints.offer(grant(job), offered(8 * MIB)).state == "UPLOADING"
    row, blob = Promise.objects.filter(job=job), Blob.objects.get()

    def arrives(at: int, size: int) -> bool:
        """Whether the promise is renewed by it, short of its end."""
        row.update(renewed_at=Now() - timedelta(seconds=LAPSES_S - 1))
        before = row.get().renewed_at
        blobs.append(blob.pk, at, bytes(size))
        return row.get().renewed_at > before

    assert not arrives(0, 1)
    assert not arrives(1, 1000)
    assert arrives(1001, MIB), "a hundredth, of all since it was renewed"
    assert (row.get().bytes, row.get().files) == (8 * MIB - 1001 - MIB, 1)
    assert sums_are_right()


def test_what_a_silent_job_sends_after_all_takes_no_room_that_others_were_promised(
    room: dict[str, int],
) -> None:
    slow, other = (factories.job(of=factories.tenant(), state=State.PROCESSING) for _ in range(2))
    assert checkpoints.offer(grant(slow), offered(8 * MIB)).state == "UPLOADING"
    blob = Blob.objects.get()
    silent(slow)
    assert checkpoints.offer(grant(other), offered(8 * MIB, name="other")).state == "UPLOADING"
    blobs.append(blob.pk, 0, bytes(MIB))
    room["bytes"] -= MIB
    assert not renewed(slow), "it does not fit whole"
    with pytest.raises(OSError, match="promised to files that arrive"):
        blobs.append(blob.pk, MIB, bytes(MIB))
    Attempt.objects.filter(job=other).update(held=False, closed_at=Now())
    blobs.append(blob.pk, MIB, bytes(MIB))
    assert renewed(slow), "there is room again, and it sends"
    assert sums_are_right()


def test_a_file_that_no_job_was_asked_for_is_promised_to_the_first_that_offers_it(
    room: dict[str, int],
) -> None:
    """As after a restore from a backup that lacks it, and while a user uploads the same bytes as code."""
    job, other = (factories.job(of=factories.tenant(), state=State.PROCESSING, learners=2) for _ in range(2))
    content = bytes(4 * MIB)
    digest = hashlib.sha256(content).hexdigest()
    blob = blobs.begin(job.tenant_id, digest, len(content), StorageKind.CODE)
    assert checkpoints.offer(grant(job), offered(3 * MIB, step=1)).state == "UPLOADING"
    again = Ckpt("step-2", step=2, files=[("model", len(content), digest)])
    assert checkpoints.offer(grant(job), again).state == "UPLOADING"
    assert sums_are_right()
    blobs.append(blob.pk, 0, content)
    assert sums_are_right()
    room["bytes"] -= len(content)
    refused = checkpoints.offer(grant(other), offered(3 * MIB, name="other"))
    assert refused.state == "REFUSED", "the job's other file is still to come"


def test_others_wait_for_no_sum_over_files_that_were_offered(room: dict[str, int]) -> None:
    """The time of the sum is that of the jobs, whatever they offer."""
    room["bytes"] = 10**12
    many, other = (factories.job(of=factories.tenant(), state=State.PROCESSING) for _ in range(2))
    with connection.cursor() as cursor:
        cursor.execute(
            """INSERT INTO jobs_blob (tenant_id, sha256, size, kind, received, verified, requested_from)
               SELECT %s, encode(sha256(n::text::bytea), 'hex'), 1, 'checkpoints', 0, false, %s
               FROM generate_series(1, 20000) n""",
            [many.tenant_id, json.dumps([many.pk])],
        )
        assert checkpoints.offer(grant(other), offered(10**11)).state == "UPLOADING"
        cursor.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {promised_module.SUM}")
        plan = json.dumps(cursor.fetchone()[0])
    assert "jobs_blob" not in plan
    assert Promise.objects.get(job=many).files == 20_000
    assert sums_are_right()


def test_a_job_has_so_many_files_under_way_and_no_more(
    room: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(promised_module, "MOST_FILES", 3)
    monkeypatch.setattr(promised_module, "FILES_OF_A_LEARNER", 1)
    job, other = (factories.job(state=State.PROCESSING, learners=2) for _ in range(2))
    files = [(f"f{n}", 3, hashlib.sha256(f"{n}".encode()).hexdigest()) for n in range(4)]
    refused = checkpoints.offer(grant(job), Ckpt("many", step=1, files=files))
    assert refused.message.endswith("the most allowed. Save fewer, larger files.")
    assert noted(job) == [("too_many_files", "checkpoints")]
    content = b"abc"
    sent = ("f", 3, hashlib.sha256(content).hexdigest())
    assert checkpoints.offer(grant(job), Ckpt("few", step=2, files=[sent, *files[:2]])).state == "UPLOADING"
    assert checkpoints.offer(grant(job), Ckpt("one", step=3, files=files[2:3])).state == "REFUSED"
    assert checkpoints.offer(grant(other), offered(3)).state == "UPLOADING"
    blobs.append(Blob.objects.get(sha256=sent[2]).pk, 0, content)
    assert checkpoints.offer(grant(job), Ckpt("one", step=3, files=files[2:3])).state == "UPLOADING"


def test_learners_that_end_at_once_may_each_have_as_many_results_as_one_may(
    room: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A refusal of them is for good: a job that had done its work would fail."""
    monkeypatch.setattr(promised_module, "MOST_FILES", 3)
    job = factories.job(state=State.PROCESSING, learners=3)
    for rank in range(3):
        digests = [hashlib.sha256(f"{rank}-{n}".encode()).hexdigest() for n in range(3)]
        results = Ckpt("results", what="results", files=[(f"f{n}", 3, one) for n, one in enumerate(digests)])
        assert checkpoints.offer(grant(job, rank), results).state == "UPLOADING"
    assert Promise.objects.get(job=job).files == 9


def test_pieces_of_accepted_files_do_not_take_the_minimum_of_free_space(room: dict[str, int]) -> None:
    job = factories.job(state=State.PROCESSING)
    assert checkpoints.offer(grant(job), offered(2 * MIB)).state == "UPLOADING"
    blob = Blob.objects.get()
    room["bytes"] = MIB - 1
    with pytest.raises(OSError, match="LUTHIER_MIN_FREE_DISK"):
        blobs.append(blob.pk, 0, bytes(MIB))
    headers = {
        "Authorization": f"Bearer {factories.secret(job, 1, 0)}",
        "Content-Range": f"bytes 0-{MIB - 1}/{2 * MIB}",
    }
    path, kind = f"/agent/v1/uploads/{blob.pk}", "application/octet-stream"
    answer = Client().put(path, bytes(MIB), content_type=kind, headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (503, "store_full")
    blob.refresh_from_db()
    assert blob.received == 0
    room["bytes"] = MIB
    assert blobs.append(blob.pk, 0, bytes(MIB)).received == MIB, "once there is room"


def test_where_the_store_has_no_end_the_offer_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FolderStore, "room", lambda self: None)  # as that of a bucket
    job = factories.job(state=State.PROCESSING)
    assert checkpoints.offer(grant(job), offered(2**60)).state == "REFUSED"
    assert noted(job) == [("storage_full", "checkpoints")]


def test_lines_beyond_the_limit_are_counted_as_lost_and_the_program_trains_on(job: Job) -> None:
    Tenant.objects.filter(pk=job.tenant_id).update(storage_limit=10)
    other = factories.job(state=State.PROCESSING)
    submit(job, data(0, b"one\ntwo\n"))
    (ack,) = submit(job, data(8, b"three\nfour\n"))
    assert ack.log == 19, "everything is acknowledged, so the learner keeps nothing back"
    submit(job, data(19, b"five\n"))
    submit(other, data(0, b"one\ntwo\nthree\n"))
    assert log_of(job) == b"one\ntwo\nth"
    lost = LogChunk.objects.get(job=job, tombstone=True)
    assert (lost.len, lost.lines) == (14, 3)
    assert noted(job) == [("storage_full", "logs")]
    assert log_of(other) == b"one\ntwo\nthree\n"
    assert noted(other) == []

    Tenant.objects.filter(pk=job.tenant_id).update(storage_limit=15)
    submit(job, data(24, b"six\n"))
    assert log_of(job).endswith(b"thsix\n"), "room that was made is used"


def points(*steps: int, off: int = 0) -> Metric:
    return Metric("jsonl", off, off + 10, [("loss", step, 0, 0.5) for step in steps])


def test_points_beyond_the_limit_are_dropped_and_counted(job: Job) -> None:
    Tenant.objects.filter(pk=job.tenant_id).update(storage_limit=3 * POINT_BYTES)
    other = factories.job(state=State.PROCESSING)
    commit([(grant(job), points(1, 2)), (grant(other), points(1, 2, 3, 4))])
    commit([(grant(job), points(3, 4, 5, off=10))])
    commit([(grant(job), points(6, off=20))])
    assert sorted(MetricPoint.objects.filter(job=job).values_list("step", flat=True)) == [1, 2, 3]
    progress = Progress.objects.get(job=job)
    assert (progress.metric_lost, progress.metric_seq, progress.step) == (3, 3, 6), "the step is still known"
    assert noted(job) == [("storage_full", "metrics")]
    assert MetricPoint.objects.filter(job=other).count() == 4


def test_a_program_that_makes_a_metric_of_each_step_has_so_many_and_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(store, "MAX_METRICS", 300)
    job, other = factories.job(state=State.PROCESSING), factories.job(state=State.PROCESSING)
    for batch in range(5):
        named = [(f"loss of step {n}", n, 0, 0.5) for n in range(100 * batch, 100 * batch + 100)]
        frame = Metric("jsonl", 10 * batch, 10 * batch + 10, named)  # type: ignore[arg-type]
        commit([(grant(job), frame), (grant(other), points(batch, off=10 * batch))])
    again = Metric("jsonl", 50, 60, [("loss of step 250", 900, 0, 0.5), ("one more", 900, 0, 0.5)])
    commit([(grant(job), again)])
    assert MetricPoint.objects.filter(job=job).values("name").distinct().count() == 300
    assert MetricPoint.objects.filter(job=job, step=900).count() == 1, "those that it has go on"
    progress = Progress.objects.get(job=job)
    assert (progress.metric_names, progress.metric_lost) == (300, 201)
    assert noted(job) == [("too_many_metrics", "")]
    assert MetricPoint.objects.filter(job=other).count() == 5


def test_a_hundred_thousand_metrics_are_limited_at_the_same_cost_per_frame_and_the_page_loads() -> None:
    job, other = factories.job(state=State.PROCESSING), factories.job(state=State.PROCESSING)
    statements, seconds = [], []
    for n in range(100_000 // MAX_POINTS):
        named = [(f"loss of step {n * MAX_POINTS + k}", n, 0, 0.5) for k in range(MAX_POINTS)]
        began = time.perf_counter()
        with CaptureQueriesContext(connection) as made:
            commit([(grant(job), Metric("jsonl", n, n + 1, named)), (grant(other), points(n, off=10 * n))])
        seconds.append(time.perf_counter() - began)
        statements.append(len(made))
    print(f"\nms per frame of {MAX_POINTS} points: {[round(1000 * one) for one in seconds]}")

    progress = Progress.objects.get(job=job)
    assert (progress.metric_names, progress.metric_lost) == (store.MAX_METRICS, 100_000 - store.MAX_METRICS)
    assert len(progress.metrics) == store.MAX_NAMES
    assert MetricPoint.objects.filter(job=job).count() == store.MAX_METRICS
    assert noted(job) == [("too_many_metrics", "")]
    assert len(set(statements[5:])) == 1
    assert MetricPoint.objects.filter(job=other).count() == 50
    assert noted(other) == []

    client = Client()
    client.force_login(job.owner)
    page = f"/t/{job.tenant.slug}/jobs/{job.pk}"
    for path in (page, f"{page}/metrics", f"{page}/events", f"/api/v1/jobs/{job.pk}"):
        answer = client.get(path)
        assert answer.status_code == 200
        assert len(answer.content) < MIB
    found = client.get(f"/api/v1/jobs/{job.pk}/metrics").json()
    assert (len(found["series"]), found["total"], found["lost"]) == (200, 5_000, 95_000)


def test_an_offer_of_2_60_bytes_reserves_none_and_is_said_once() -> None:
    job, other = factories.job(state=State.PROCESSING), factories.job(state=State.PROCESSING)
    for step in range(3):
        assert checkpoints.offer(grant(job), offered(2**60, step=step)).state == "REFUSED"
    assert noted(job) == [("disk_full", "checkpoints")]
    assert not Blob.objects.filter(tenant=job.tenant).exists()
    assert checkpoints.offer(grant(other), offered(MIB)).state == "UPLOADING"

    lost = Data(0, gone=2**60, lines=2**60)
    assert commit([(grant(job), lost), (grant(other), data(0, b"mine\n"))]).bytes == 5
    assert log_of(other) == b"mine\n"
    assert list(LogChunk.objects.filter(job=job).values_list("tombstone", "len")) == [(True, 2**60)]


@pytest.mark.django_db(transaction=True)
def test_two_offers_at_once_do_not_both_take_the_last_bytes() -> None:
    tenant = factories.tenant(storage_limit=10)
    outcomes: list[Any] = []
    together = threading.Barrier(4)

    def begin(n: int) -> None:
        try:
            together.wait()
            outcomes.append(blobs.begin(tenant.pk, str(n) * 64, 4).size)
        except storage.StorageFull:
            outcomes.append(None)
        finally:
            connection.close()

    threads = [threading.Thread(target=begin, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes, key=str) == [4, 4, None, None]
    assert sum(storage.used_by(tenant.pk).values()) == 8
