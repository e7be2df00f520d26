"""Uploads of checkpoints that no learner continues: they hold no room, and nothing of them stays."""

from __future__ import annotations

import hashlib
import os
from datetime import timedelta

import pytest
from django.db import connection
from django.db.models.functions import Now
from django.utils import timezone
from msgspec.structs import replace

from jobs import blobs, storage
from jobs.blobs.folder import FolderStore
from jobs.blobs.store import key_of, store
from jobs.ingest import checkpoints
from jobs.invariants import violations
from jobs.lifecycle import periodic
from jobs.models import Attempt, Blob, Checkpoint, CheckpointFile, Job, PeriodicTask
from jobs.states import State
from learner_agent.wire import Ckpt
from tests import factories
from tests.jobs.ingest.test_checkpoints import at, grant, send

pytestmark = pytest.mark.django_db
KIB = 1024


@pytest.fixture
def own() -> None:
    """The store is marked as this database's, as after the first run of tidy."""
    PeriodicTask.objects.create(name="tidy", result={"store": store().mark(new="own")})


def offered(step: int, *contents: bytes, part: int = 0, of: int = 1) -> Ckpt:
    files = [(f"w-{n}", len(one), hashlib.sha256(one).hexdigest()) for n, one in enumerate(contents)]
    return Ckpt(f"{step}-{part}", step=step, part=part, of=of, files=files, saved_ns=step)


def half_sent(job: Job, step: int, content: bytes, *, rank: int = 0, part: int = 0, of: int = 1) -> int:
    """Half of a checkpoint's file arrives; returns its blob."""
    ((_, blob, _),) = checkpoints.offer(grant(job, rank), offered(step, content, part=part, of=of)).need
    blobs.append(blob, 0, content[: len(content) // 2])
    return blob


def states(job: Job) -> dict[int | None, str]:
    return dict(job.checkpoints.values_list("step", "state"))


def end_attempt(job: Job) -> None:
    Attempt.objects.filter(job=job, held=True).update(held=False, closed_at=Now())


def has_bytes(job: Job, blob: int) -> bool:
    place = store()
    assert isinstance(place, FolderStore)
    return place.path(key_of(job.tenant_id, blob)).with_suffix(".part").exists()


def test_a_save_that_gave_way_to_the_next_one_holds_no_room(own: None) -> None:
    """Its program saved again before it was sent: the learner offers the newer one, and says nothing of this one."""
    job = factories.job(of=factories.tenant(storage_limit=10 * KIB), state=State.PROCESSING)
    sent = [half_sent(job, step, os.urandom(6 * KIB)) for step in (1, 2, 3)]

    assert states(job) == {1: "DROPPED", 2: "DROPPED", 3: "UPLOADING"}
    assert [blob.size for blob in Blob.objects.all()] == [6 * KIB]
    assert sum(storage.used_by(job.tenant_id).values()) == 6 * KIB
    assert [has_bytes(job, blob) for blob in sent] == [False, False, True]


def test_what_has_arrived_of_a_file_that_the_next_save_has_too_is_not_sent_again(own: None) -> None:
    """Else a program that saves faster than its largest file is sent, which stays the same, would never store one."""
    job = factories.job(state=State.PROCESSING)
    same = os.urandom(KIB)
    half_sent(job, 1, same)

    again = offered(2, same, b"another")
    need = checkpoints.offer(grant(job), again).need

    assert [received for _, _, received in need] == [KIB // 2, 0]
    for (_, blob, received), content in zip(need, (same, b"another"), strict=True):
        blobs.append(blob, received, content[received:])
    assert checkpoints.offer(grant(job), again).state == "COMMITTED"
    assert states(job) == {1: "DROPPED", 2: "COMMITTED"}


def test_files_that_arrived_whole_or_are_asked_for_elsewhere_go_with_the_sweep(own: None) -> None:
    tenant = factories.tenant()
    job, other = (factories.job(of=tenant, state=State.PROCESSING) for _ in range(2))
    whole, shared = os.urandom(KIB), os.urandom(KIB)
    need = checkpoints.offer(grant(job), offered(1, whole, shared)).need
    blobs.append(need[0][1], 0, whole)
    checkpoints.offer(grant(other), offered(1, shared))

    checkpoints.offer(grant(job), offered(2, b"next"))

    left = {blob.sha256: blob.released_at is not None for blob in Blob.objects.filter(size=KIB)}
    assert left == {hashlib.sha256(whole).hexdigest(): True, hashlib.sha256(shared).hexdigest(): False}
    assert send(grant(other), offered(1, shared), shared).state == "COMMITTED"


def test_nothing_is_removed_at_once_from_a_store_that_may_be_anothers() -> None:
    """As of a restored copy that was given the store of its original."""
    job = factories.job(state=State.PROCESSING)
    blob = half_sent(job, 1, os.urandom(KIB))
    store().mark(new="another")

    checkpoints.offer(grant(job), offered(2, b"next"))

    assert Blob.objects.get(pk=blob).released_at is not None
    assert has_bytes(job, blob)


def test_a_save_that_is_offered_again_is_begun_again(own: None) -> None:
    """A shipper that was restarted sends the newest save first, and then the one that it was at."""
    job = factories.job(state=State.PROCESSING)
    older = os.urandom(KIB)
    half_sent(job, 1, older)
    assert send(grant(job), offered(2, b"newer"), b"newer").state == "COMMITTED"

    assert send(grant(job), offered(1, older), older).state == "COMMITTED"

    assert states(job) == {1: "COMMITTED", 2: "COMMITTED"}
    assert blobs.read(CheckpointFile.objects.get(checkpoint__step=1).blob, 0, KIB) == older


def test_a_save_that_would_be_dropped_at_once_is_not_asked_for_again(own: None) -> None:
    job = factories.job(state=State.PROCESSING)  # keeps 3
    older = os.urandom(KIB)
    half_sent(job, 1, older)
    for step in (2, 3, 4):
        send(grant(job), *at(step, step))

    answer = checkpoints.offer(grant(job), offered(1, older))

    assert (answer.state, answer.need, states(job)[1]) == ("COMMITTED", [], "DROPPED")


def test_what_stayed_for_a_save_that_is_refused_holds_no_room(own: None) -> None:
    """It is not offered again, and the results need the room."""
    job = factories.job(of=factories.tenant(storage_limit=10 * KIB), state=State.PROCESSING)
    same = os.urandom(8 * KIB)
    blob = half_sent(job, 1, same)

    assert checkpoints.offer(grant(job), offered(2, same, os.urandom(4 * KIB))).state == "REFUSED"

    assert not Blob.objects.filter(pk=blob).exists()
    assert not has_bytes(job, blob)
    assert violations() == []


def test_a_save_of_a_backlog_that_would_be_dropped_at_once_is_not_asked_for() -> None:
    """The newest is sent first. A job that ends holds its devices until all that is asked for is stored."""
    job = factories.job(state=State.PROCESSING)  # keeps 3
    for step in (9, 8):
        send(grant(job), *at(step, step))
    assert checkpoints.offer(grant(job), offered(1, b"older")).state == "UPLOADING"
    send(grant(job), *at(7, 7))
    half_sent(job, 10, b"a store that was full refused the rest")

    answer = checkpoints.offer(grant(job), offered(2, b"older, too"))

    assert (answer.state, answer.need) == ("COMMITTED", [])
    assert states(job) == dict.fromkeys((1, 10), "DROPPED") | dict.fromkeys((7, 8, 9), "COMMITTED")
    assert send(grant(job), *at(11, 11)).state == "COMMITTED"


def test_a_save_of_parts_is_given_up_once_as_many_later_ones_are_stored_as_the_job_keeps(own: None) -> None:
    job = factories.job(state=State.PROCESSING, learners=2)  # keeps 3
    half_sent(job, 1, os.urandom(KIB), of=2)
    half_sent(job, 2, os.urandom(KIB), rank=1, part=1, of=2)  # of which part 0 is never offered
    now_ns = int(timezone.now().timestamp() * 10**9) + 10**12
    for n, step in enumerate((3, 4, 5)):
        assert states(job)[1] == states(job)[2] == "UPLOADING", "it would be kept"
        for rank in (0, 1):
            offer, content = at(step, now_ns + n, part=rank, of=2)
            send(grant(job, rank), offer, content)

    assert states(job) == {1: "DROPPED", 2: "DROPPED", 3: "COMMITTED", 4: "COMMITTED", 5: "COMMITTED"}
    assert not Blob.objects.filter(size=KIB, released_at=None).exists()
    again = offered(1, b"late", part=1, of=2)
    assert checkpoints.offer(grant(job, 1), again).state == "COMMITTED", "nothing more of it is needed"


def test_a_newer_save_of_parts_is_kept_while_older_ones_are_completed(own: None) -> None:
    """Learner 1 is ahead: it offers its part of step 9 while learner 0 still sends its parts of the steps before."""
    job = factories.job(state=State.PROCESSING, learners=2)
    mine, theirs = b"part 0", b"part 1"
    send(grant(job, 1), offered(9, theirs, part=1, of=2), theirs)
    for step in (3, 4, 5, 6):
        for rank in (1, 0):
            send(grant(job, rank), *at(step, step, part=rank, of=2))

    assert states(job)[9] == "UPLOADING"
    assert send(grant(job, 0), offered(9, mine, part=0, of=2), mine).state == "COMMITTED"


def test_what_an_attempt_left_is_given_up_by_the_next_one(own: None) -> None:
    job = factories.job(state=State.PROCESSING)
    half_sent(job, 1, os.urandom(KIB))
    end_attempt(job)
    Job.objects.filter(pk=job.pk).update(attempt=2)
    job.refresh_from_db()
    factories.add_attempt(job, 2, held=True)

    checkpoints.offer(grant(job), offered(5, b"next"))

    assert states(job) == {1: "DROPPED", 5: "UPLOADING"}
    assert not Blob.objects.filter(size=KIB).exists()


def test_tidy_gives_up_what_attempts_left_that_are_over(own: None) -> None:
    over, running = (factories.job(state=State.PROCESSING) for _ in range(2))
    left, sent = (half_sent(job, 1, os.urandom(KIB)) for job in (over, running))
    end_attempt(over)

    assert periodic.tidy(PeriodicTask.objects.get(name="tidy").result)["given_up"] == 1

    assert (states(over), states(running)) == ({1: "DROPPED"}, {1: "UPLOADING"})
    assert not Blob.objects.filter(tenant=over.tenant).exists()
    assert (has_bytes(over, left), has_bytes(running, sent)) == (False, True)


def test_the_files_of_a_damaged_checkpoint_go_once_it_would_not_be_kept() -> None:
    job = factories.job(state=State.PROCESSING)
    contents = [os.urandom(KIB), os.urandom(KIB)]
    offer = offered(1, *contents)
    for index, blob, _ in checkpoints.offer(grant(job), offer).need:
        blobs.append(blob, 0, contents[index])
    assert checkpoints.offer(grant(job), offer).state == "COMMITTED"
    entry = job.checkpoints.get().files.select_related("blob").order_by("path")[0]
    place = store()
    assert isinstance(place, FolderStore)
    place.path(key_of(entry.blob.tenant_id, entry.blob.pk)).write_bytes(bytes(KIB))
    assert not checkpoints._verify_file(entry)
    for step in (2, 3):
        send(grant(job), *at(step, step))
    assert Checkpoint.objects.get(step=1).files.count() == 2, "it would be kept"

    send(grant(job), *at(4, 4))

    assert states(job)[1] == "CORRUPT"
    Blob.objects.filter(released_at__isnull=False).update(released_at=Now() - timedelta(days=1))
    os.utime(place.path(key_of(entry.blob.tenant_id, entry.blob.pk + 1)), (1, 1))
    blobs.sweep(timedelta(days=1))
    assert not Blob.objects.filter(size=KIB).exists()


def test_results_that_a_lost_attempt_half_sent_go_though_another_job_of_the_tenant_runs() -> None:
    tenant = factories.tenant()
    long, lost = (factories.job(of=tenant, state=State.PROCESSING) for _ in range(2))
    Attempt.objects.filter(job=long).update(opened_at=Now() - timedelta(days=60))
    Attempt.objects.filter(job=lost).update(opened_at=Now() - timedelta(days=40))
    answer = checkpoints.offer(grant(lost), replace(offered(1, os.urandom(KIB)), what="results"))
    ((_, blob, _),) = answer.need
    blobs.append(blob, 0, b"half")
    Blob.objects.update(created_at=Now() - timedelta(days=30))
    place = store()
    assert isinstance(place, FolderStore)
    for path in place.root.rglob("*.part"):
        os.utime(path, (1, 1))
    blobs.sweep(timedelta(days=1))
    assert Blob.objects.filter(pk=blob).exists(), "its attempt may still send the rest"

    end_attempt(lost)
    blobs.sweep(timedelta(days=1))

    assert not Blob.objects.filter(pk=blob).exists()


def test_what_was_not_given_up_breaks_a_rule() -> None:
    job = factories.job(state=State.PROCESSING)
    half_sent(job, 1, os.urandom(KIB))
    end_attempt(job)

    def broken() -> list[str]:
        return [rule.name for rule in violations() if rule.name.startswith("Ckpt")]

    PeriodicTask.objects.create(name="tidy", result={"store": ""}, done_at=Now() + timedelta(hours=2))
    assert broken() == [], "by a version that gave none up"
    PeriodicTask.objects.update(result={"given_up": 0, "more": False})
    assert broken() == ["CkptUnfinished"]

    Checkpoint.objects.update(state="DROPPED")
    assert broken() == ["CkptReleased"]
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM jobs_checkpointfile")
    assert broken() == []
