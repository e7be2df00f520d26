"""Who may send a file, and see what has arrived of it: learners of the jobs that were asked for it, no others."""

from __future__ import annotations

import hashlib
import os
from collections import OrderedDict
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.db.models.functions import Now
from django.test import Client
from django.test.utils import CaptureQueriesContext

from jobs import blobs
from jobs.blobs import arrival, direct
from jobs.blobs.store import key_of, store
from jobs.ingest import checkpoints
from jobs.models import Blob, Job
from jobs.states import State
from jobs.tokens import grant_of
from learner_agent.wire import Ckpt
from tests import factories
from tests.portal.agent_files.test_agent_files import ask, put

pytestmark = pytest.mark.django_db

CONTENT = b"abcdef"
LARGE = 50_000_000
REQUESTS = [
    ("put", "uploads/{}", {"content_type": "application/octet-stream", "headers": {"Content-Range": "bytes */6"}}),
    ("get", "uploads/{}/parts", {}),
    ("post", "uploads/{}/parts", {"data": {"number": 1}, "content_type": "application/json"}),
    ("post", "uploads/{}/finish", {"data": {"parts": []}, "content_type": "application/json"}),
]  # fmt: skip


class Parts:
    """A store that takes parts, in memory."""

    receives_pieces = False

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.arrived: list[direct.Part] = []
        self.ended = ""
        """The upload that a rule of the bucket has ended."""

    def room(self) -> None:
        return None

    def start(self, key: str) -> str:
        self.begun.append(key)
        return f"upload {len(self.begun)}"

    def parts(self, _: str, upload: str) -> list[direct.Part]:
        if upload == self.ended:
            raise FileNotFoundError
        return self.arrived

    def size(self, _: str) -> None:
        """Of the whole file: it has not arrived."""

    def take(self, number: int, size: int) -> None:
        self.arrived = [*self.arrived, direct.Part(number, size, "0" * 64)]


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> Parts:
    place = Parts()
    monkeypatch.setattr(direct, "direct", lambda: place)
    monkeypatch.setattr(direct, "_seen", OrderedDict())
    monkeypatch.setattr(arrival, "store", lambda: place)
    return place


@pytest.fixture
def job() -> Job:
    return factories.job(state=State.STORING, learners=2)


@pytest.fixture
def stranger(job: Job) -> Job:
    """Another job of the tenant."""
    return factories.job(of=job.tenant, state=State.STORING)


def secret(job: Job, rank: int = 0) -> str:
    return factories.secret(job, job.attempt, rank)


def offer(job: Job, size: int = len(CONTENT), *, what: Any = "results", rank: int = 0) -> Blob:
    """What a learner of this job is asked for, once it has offered a file."""
    grant = grant_of(secret(job, rank))
    assert grant is not None
    sha256 = hashlib.sha256(CONTENT).hexdigest()
    ((_, number, _),) = checkpoints.offer(grant, Ckpt("end", what=what, files=[("file", size, sha256)])).need
    return Blob.objects.get(pk=number)


def stored(job: Job) -> bool:
    """Whether progress of a learner of this job was noted since the last call."""
    rows = job.learner_rows.exclude(stored_at=None)
    return bool(rows.update(stored_at=None))


@pytest.mark.parametrize(("method", "path", "options"), REQUESTS)
@pytest.mark.parametrize("is_verified", [False, True])
def test_for_another_jobs_learner_a_file_is_as_one_that_does_not_exist(
    client: Client, job: Job, stranger: Job, parts: Parts, method: str, path: str, options: Any, is_verified: bool
) -> None:  # fmt: skip
    """Neither that it is there, nor that it arrives; numbers of files can be guessed."""
    blob = offer(job, LARGE)
    Blob.objects.filter(pk=blob.pk).update(verified=is_verified)
    before = Blob.objects.filter(pk=blob.pk).values().get()

    none = ask(client, method, path.format(blob.pk + 1), secret(stranger), **options)
    foreign = ask(client, method, path.format(blob.pk), secret(stranger), **options)

    assert foreign.status_code == none.status_code == 404
    assert foreign.json() | {"request_id": ""} == none.json() | {"request_id": ""}
    assert Blob.objects.filter(pk=blob.pk).values().get() == before
    assert parts.begun == []
    assert not stored(stranger)


def test_what_arrives_for_another_job_is_no_progress_and_none_is_taken_from_it(
    client: Client, job: Job, stranger: Job, parts: Parts
) -> None:
    """A learner that sends nothing could hold its devices by it, and the one that sends would seem stuck."""
    blob = offer(job, LARGE)
    path, size = f"uploads/{blob.pk}/parts", direct.part_bytes(LARGE)
    ask(client, "get", path, secret(job))
    parts.take(1, size)

    assert ask(client, "get", path, secret(stranger)).status_code == 404
    assert not stored(stranger)
    assert ask(client, "get", path, secret(job)).status_code == 200
    assert stored(job)


def test_of_two_jobs_that_send_the_same_file_neither_takes_the_others_progress(
    client: Client, job: Job, stranger: Job, parts: Parts
) -> None:
    blob = offer(job, LARGE)
    assert offer(stranger, LARGE) == blob, "bytes are stored once for a tenant"
    path = f"uploads/{blob.pk}/parts"
    for each in (job, stranger):
        ask(client, "get", path, secret(each))
    parts.take(1, direct.part_bytes(LARGE))

    noted = []
    for each in (stranger, job, stranger, job):
        assert ask(client, "get", path, secret(each)).status_code == 200
        noted.append(stored(each))

    assert noted == [True, True, False, False]


@pytest.mark.parametrize("what", ["results", "checkpoint"])
def test_all_learners_and_later_attempts_of_a_job_continue_what_one_has_begun(
    client: Client, job: Job, what: str
) -> None:
    """Learners that save the same bytes replace each other's offers, and a shipper may be another one by then."""
    blob = offer(job, what=what)

    assert put(client, secret(job, 1), blob, b"abc", "bytes 0-2/6").status_code == 200
    assert put(client, secret(job, 0), blob, b"def", "bytes 3-5/6").json()["verified"]
    again = put(client, secret(job, 1), blob, b"", "bytes */6")
    assert (again.status_code, again.json()["verified"]) == (200, True), "it is whole by then"


def test_a_stranger_does_not_keep_from_removal_what_was_left_behind(
    client: Client, job: Job, stranger: Job
) -> None:
    """What was written to recently is not swept: its bytes may still arrive."""
    day, blob = timedelta(days=1), offer(job)
    put(client, secret(job), blob, b"abc", "bytes 0-2/6")
    job.attempts.update(held=False, closed_at=Now())
    stranger.attempts.update(opened_at=Now())
    Blob.objects.update(created_at=Now() - 2 * day)
    folder: Any = store()
    partial = folder.path(key_of(blob.tenant_id, blob.pk)).with_suffix(".part")
    past = partial.stat().st_mtime - 3 * day.total_seconds()
    os.utime(partial, (past, past))

    assert put(client, secret(stranger), blob, b"def", "bytes 3-5/6").status_code == 404

    assert blobs.sweep(day) == 1
    assert not Blob.objects.exists()


def test_what_the_version_before_has_asked_for_is_still_taken(client: Client, job: Job) -> None:
    """It notes no job, and runs beside this one during an upgrade."""
    blob = offer(job)
    Blob.objects.update(requested_from=None)

    assert put(client, secret(job), blob, b"abc", "bytes 0-2/6").status_code == 200
    assert offer(job).requested_from is None


@pytest.mark.parametrize("what", ["results", "checkpoint"])
def test_who_is_asked_is_noted_with_the_row_of_the_file(job: Job, stranger: Job, what: str) -> None:
    """An offer takes no statement more for it, and no commit, unless another job was asked for the same bytes."""

    def writes(of: Job) -> list[str]:
        with CaptureQueriesContext(connection) as made:
            offer(of, what=what)
        sent = [query["sql"].split() for query in made.captured_queries]
        return [words[0] for words in sent if words[0] != "SELECT" and "jobs_blob" in words[:3]]

    assert [writes(each) for each in (job, job, stranger, stranger, job)] == [
        ["INSERT"],
        [],
        ["UPDATE"],
        [],
        [],
    ]
    assert Blob.objects.get().requested_from == [job.pk, stranger.pk]


def test_an_upload_that_the_store_has_ended_begins_again_and_what_arrives_of_it_counts(
    client: Client, job: Job, parts: Parts
) -> None:
    blob = offer(job, LARGE)
    path, size = f"uploads/{blob.pk}/parts", direct.part_bytes(LARGE)
    ask(client, "get", path, secret(job))
    parts.take(1, size)
    parts.take(2, size)
    ask(client, "get", path, secret(job))
    assert stored(job)
    parts.ended, parts.arrived = "upload 1", []
    ask(client, "get", path, secret(job))
    assert Blob.objects.get(pk=blob.pk).received == 0
    stored(job)
    parts.take(1, size)
    ask(client, "get", path, secret(job))
    assert stored(job), "less than of the one before, but of this one it is new"
