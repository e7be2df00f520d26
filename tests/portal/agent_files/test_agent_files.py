"""A learner's HTTP requests: only the bytes of its own job."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from jobs import blobs
from jobs.blobs import arrival, direct
from jobs.models import Blob, Checkpoint, CheckpointFile, Job, ResultFile
from jobs.selectors.checkpoints import checkpoint_for
from jobs.states import State
from tests import factories

pytestmark = pytest.mark.django_db


@pytest.fixture
def job() -> Job:
    made = factories.job(state=State.DOWNLOADING)
    made.code = blobs.put(made.tenant_id, b"archive of code")
    made.save(update_fields=["code"])
    return made


def ask(client: Client, method: str, path: str, secret: str | None, **options: Any) -> Any:
    headers = dict(options.pop("headers", {}))
    if secret is not None:
        headers["Authorization"] = f"Bearer {secret}"
    call = getattr(client, method)
    return call(f"/agent/v1/{path}", headers=headers, **options)


PATHS = [
    ("get", "job"), ("get", "code"), ("get", "checkpoints/1/files/1"), ("post", "checkpoints/1/verify"),
    ("put", "uploads/1"), ("get", "uploads/1/parts"), ("post", "uploads/1/parts"), ("post", "uploads/1/finish"),
    ("get", "results/1"),
]  # fmt: skip


@pytest.mark.parametrize(("method", "path"), PATHS)
@pytest.mark.parametrize("secret", [None, "", "wrong", "lut_someone"])
def test_without_a_learners_secret_nothing_answers(
    client: Client, method: str, path: str, secret: str | None
) -> None:
    answer = ask(client, method, path, secret)

    assert answer.status_code == 401
    assert answer["Content-Type"] == "application/problem+json"
    assert answer.json()["code"] == "unauthorized"


def test_a_path_that_does_not_exist_is_answered_for_a_program(client: Client) -> None:
    answer = ask(client, "get", "nothing", None)
    assert (answer.status_code, answer["Content-Type"]) == (404, "application/problem+json")
    assert answer.json()["code"] == "not_found"


@pytest.mark.parametrize(("method", "path"), PATHS)
def test_a_closed_attempt_is_fenced_off(client: Client, job: Job, method: str, path: str) -> None:
    job.attempts.update(held=False, closed_at=timezone.now())

    answer = ask(client, method, path, factories.secret(job, 1, 0))

    assert (answer.status_code, answer.json()["code"]) == (409, "fenced")


def test_the_answer_says_what_to_run_and_with_what(client: Client, job: Job) -> None:
    job.spec |= {"metrics": [{"pattern": "a(?P<b>.)"}], "data": [{"name": "x", "path": "y"}]}
    job.save(update_fields=["spec"])

    answer = ask(client, "get", "job", factories.secret(job, 1, 0)).json()

    assert (answer["job"], answer["attempt"], answer["rank"], answer["restore"]) == (job.pk, 1, 0, None)
    assert answer["code"]["sha256"] == hashlib.sha256(b"archive of code").hexdigest()
    assert answer["metrics"] == [{"pattern": "a(?P<b>.)"}]
    assert answer["data"] == [{"name": "x", "path": "y"}]


def test_code_comes_by_pieces(client: Client, job: Job) -> None:
    secret = factories.secret(job, 1, 0)

    whole = ask(client, "get", "code", secret)
    piece = ask(client, "get", "code", secret, headers={"Range": "bytes=3-6"})
    beyond = ask(client, "get", "code", secret, headers={"Range": "bytes=99-100"})

    assert whole.content == b"archive of code"
    assert (piece.status_code, piece.content, piece["Content-Range"]) == (206, b"hive", "bytes 3-6/15")
    assert beyond.status_code == 416


def saved_by(job: Job, content: bytes) -> Checkpoint:
    made = factories.checkpoint(job, step=5)
    CheckpointFile.objects.create(
        checkpoint=made, tenant=job.tenant, path="model", blob=blobs.put(job.tenant_id, content)
    )
    return made


def test_a_checkpoint_is_given_only_to_the_attempt_that_resumes_from_it(client: Client, job: Job) -> None:
    saved = saved_by(job, b"weights")
    other = factories.job(of=job.tenant, state=State.DOWNLOADING)
    job.attempts.update(resume_from=saved)

    entry = ask(client, "get", "job", factories.secret(job, 1, 0)).json()["restore"]
    path = entry["files"][0]["url"].removeprefix("/agent/v1/")

    assert (entry["n"], entry["step"], entry["implicit"]) == (saved.n, 5, False)
    assert ask(client, "get", path, factories.secret(job, 1, 0)).content == b"weights"
    assert ask(client, "get", path, factories.secret(other, 1, 0)).status_code == 404


def test_a_job_that_cannot_go_on_says_so(client: Client, job: Job) -> None:
    saved = factories.checkpoint(job, state=Checkpoint.State.CORRUPT)
    job.attempts.update(resume_from=saved)

    answer = ask(client, "get", "job", factories.secret(job, 1, 0))

    assert (answer.status_code, answer.json()["code"]) == (422, "no_valid_checkpoint")


def test_all_learners_of_an_attempt_get_one_checkpoint_or_none(client: Client, job: Job) -> None:
    """Learner 0 has restored step 20; then learner 1 finds it damaged. It must not resume from step 10."""
    older, newer = factories.checkpoint(job, step=10), factories.checkpoint(job, step=20)
    job.attempts.update(resume_from=newer)
    secret = factories.secret(job, 1, 0)
    assert ask(client, "get", "job", secret).json()["restore"]["n"] == newer.n

    Checkpoint.objects.filter(pk=newer.pk).update(state=Checkpoint.State.CORRUPT)
    answer = ask(client, "get", "job", secret)

    assert (answer.status_code, answer.json()["code"]) == (422, "checkpoint_invalid")
    assert checkpoint_for(job) == older, "the next attempt's"
    verified = ask(client, "post", f"checkpoints/{newer.n}/verify", secret)
    assert verified.json() == {"sound": False}


def put(client: Client, secret: str, blob: Blob, content: bytes, span: str) -> Any:
    return ask(
        client, "put", f"uploads/{blob.pk}", secret, data=content, content_type="application/octet-stream",
        headers={"Content-Range": span},
    )  # fmt: skip


def test_a_file_is_taken_in_pieces(client: Client, job: Job) -> None:
    secret = factories.secret(job, 1, 0)
    blob = blobs.begin(job.tenant_id, hashlib.sha256(b"abcdef").hexdigest(), 6, job_id=job.pk)

    first = put(client, secret, blob, b"abc", "bytes 0-2/6").json()
    wrong = put(client, secret, blob, b"f", "bytes 5-5/6")
    last = put(client, secret, blob, b"def", "bytes 3-5/6").json()

    assert first == {"received": 3, "verified": False}
    assert (wrong.status_code, wrong.json()["received"]) == (409, 3)
    assert last == {"received": 6, "verified": True}


def test_only_bytes_that_arrive_count_as_progress_of_an_upload(client: Client, job: Job) -> None:
    secret = factories.secret(job, 1, 0)
    blob = blobs.begin(job.tenant_id, hashlib.sha256(b"abcdef").hexdigest(), 6, job_id=job.pk)

    def stored() -> bool:
        noted = job.learner_rows.get().stored_at is not None
        job.learner_rows.update(stored_at=None)
        return noted

    put(client, secret, blob, b"f", "bytes 5-5/6")
    assert not stored(), "a piece that is not expected"
    put(client, secret, blob, b"abc", "bytes 0-2/6")
    assert stored()
    put(client, secret, blob, b"abc", "bytes 0-2/6")
    assert not stored(), "a repeated piece"
    put(client, secret, blob, b"def", "bytes 3-5/6")
    assert stored()
    put(client, secret, blob, b"def", "bytes 3-5/6")
    assert not stored(), "it is whole already"


def test_asking_again_for_the_link_of_a_part_is_no_progress_of_an_upload(
    client: Client, job: Job, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent that the store refuses asks for a day; its job would hold its devices as long. Links need no network."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "of a test")
    settings.LUTHIER_BLOBS = "s3://parts-of-a-test"
    blob = blobs.begin(job.tenant_id, "0" * 64, 50_000_000, job_id=job.pk)
    Blob.objects.filter(pk=blob.pk).update(upload_id=f"upload {blob.pk}")
    secret, size = factories.secret(job, 1, 0), direct.part_bytes(blob.size)

    def stored(number: int) -> bool:
        job.learner_rows.update(stored_at=None)
        part = {"number": number, "size": size, "sha256": "0" * 64}
        answer = ask(
            client, "post", f"uploads/{blob.pk}/parts", secret, data=part, content_type="application/json"
        )
        assert answer.status_code == 200
        return job.learner_rows.get().stored_at is not None

    assert [stored(number) for number in (1, 2, 1, 2, 2)] == [True, True, False, False, False]


def test_parts_that_have_arrived_since_are_progress_of_an_upload(
    client: Client, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the store says so, and of each part once: the learner claims a size, and then another one."""
    blob = blobs.begin(job.tenant_id, "0" * 64, 50_000_000, job_id=job.pk)
    secret, size = factories.secret(job, 1, 0), direct.part_bytes(blob.size)

    class Place:
        receives_pieces = False
        begun = 0
        numbers: tuple[int, ...] = ()

        def room(self) -> None:
            return None

        def start(self, _: str) -> str:
            self.begun, self.numbers = self.begun + 1, ()
            return f"upload {self.begun}"

        def parts(self, _: str, upload: str) -> list[direct.Part]:
            assert upload == f"upload {self.begun}"
            return [direct.Part(number, size, "0" * 64) for number in self.numbers]

        def abort(self, _: str, upload: str) -> None:
            aborted.append(upload)
            raise blobs.StoreUnavailable("It ends nothing now.")

    place, aborted = Place(), list[str]()
    monkeypatch.setattr(direct, "direct", lambda: place)
    monkeypatch.setattr(arrival, "store", lambda: place)

    def look(*numbers: int) -> tuple[bool, int]:
        """Whether it counts, and what is noted, once the store has these parts."""
        place.numbers = numbers
        job.learner_rows.update(stored_at=None)
        assert len(ask(client, "get", f"uploads/{blob.pk}/parts", secret).json()["parts"]) == len(numbers)
        blob.refresh_from_db()
        return job.learner_rows.get().stored_at is not None, blob.received

    assert look() == (False, 0)
    assert look(2) == (True, size)
    assert look(2) == (False, size)
    assert look(1, 2) == (True, 2 * size)
    assert not blob.verified
    for declared in (49_000_000, 50_000_000):
        assert blobs.begin(job.tenant_id, "0" * 64, declared).received == 0
        assert ask(client, "get", f"uploads/{blob.pk}/parts", secret).json()["parts"] == []
        assert look() == (False, 0)
    assert aborted == ["upload 1", "upload 2"]
    assert look(1) == (True, size)


def test_a_store_that_makes_one_object_of_the_parts_is_waited_for_as_for_one_that_takes_them(
    client: Client, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    blob = blobs.begin(job.tenant_id, "0" * 64, 50_000_000, job_id=job.pk)

    def not_yet(*_: Any) -> Blob:
        raise blobs.BeingFinished("Not yet.")

    monkeypatch.setattr(direct, "direct", lambda: "the store")
    monkeypatch.setattr(direct, "finish", not_yet)
    secret = factories.secret(job, 1, 0)
    job.learner_rows.update(stored_at=None)

    answer = ask(
        client,
        "post",
        f"uploads/{blob.pk}/finish",
        secret,
        data={"parts": ["0" * 64]},
        content_type="application/json",
    )

    assert (answer.status_code, answer.json()["code"]) == (503, "being_finished")
    assert answer["Retry-After"]
    assert job.learner_rows.get().stored_at is not None


def test_another_tenants_upload_does_not_exist(client: Client, job: Job) -> None:
    foreign = blobs.begin(factories.tenant().pk, hashlib.sha256(b"abc").hexdigest(), 3)

    answer = put(client, factories.secret(job, 1, 0), foreign, b"abc", "bytes 0-2/3")

    assert answer.status_code == 404
    assert not Blob.objects.get(pk=foreign.pk).received


@pytest.mark.parametrize("span", ["", "bytes", "bytes a-b/c", "bytes 0-2", "bytes -1-2/3"])
def test_a_piece_must_say_where_it_belongs(client: Client, job: Job, span: str) -> None:
    blob = blobs.begin(job.tenant_id, hashlib.sha256(b"abc").hexdigest(), 3, job_id=job.pk)

    answer = put(client, factories.secret(job, 1, 0), blob, b"abc", span)

    assert (answer.status_code, answer.json()["code"]) == (400, "content_range_invalid")


def test_a_damaged_piece_is_refused_and_recorded_in_the_jobs_events(client: Client, job: Job) -> None:
    blob = blobs.begin(job.tenant_id, hashlib.sha256(b"abc").hexdigest(), 3, job_id=job.pk)
    saved = factories.checkpoint(job, state=Checkpoint.State.UPLOADING, committed_at=None)
    CheckpointFile.objects.create(checkpoint=saved, tenant=job.tenant, path="model", blob=blob)

    answer = put(client, factories.secret(job, 1, 0), blob, b"abX", "bytes 0-2/3")

    assert (answer.status_code, answer.json()["code"]) == (422, "hash_mismatch")
    assert job.events.filter(code="CHECKPOINT_CORRUPT").count() == 1


def test_a_learner_fetches_its_own_results_and_no_others(client: Client, job: Job) -> None:
    other = factories.job(state=State.DOWNLOADING, of=job.tenant)
    mine, theirs = (
        ResultFile.objects.create(
            job=owner,
            tenant=owner.tenant,
            attempt=1,
            rank=0,
            path="a",
            blob=blobs.put(owner.tenant_id, content),
        )
        for owner, content in ((job, b"mine"), (other, b"theirs"))
    )
    secret = factories.secret(job, 1, 0)

    (listed,) = ask(client, "get", "job", secret).json()["results"]
    found = ask(client, "get", listed["url"].removeprefix("/agent/v1/"), secret)

    assert (listed["path"], listed["size"], listed["in_code"], listed["archive"]) == ("a", 4, False, False)
    assert listed["url"] == f"/agent/v1/results/{mine.pk}"
    assert (found.status_code, found.content) == (206, b"mine")
    assert ask(client, "get", f"results/{theirs.pk}", secret).status_code == 404
