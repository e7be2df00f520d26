"""Blobs in a real S3-compatible store: what web processes put there, and what learners exchange with it directly."""

from __future__ import annotations

import base64
import hashlib
import os
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from django.db.models.functions import Now
from django.test import Client

from jobs import blobs
from jobs.blobs import arrival, direct
from jobs.blobs.folder import FolderStore
from jobs.blobs.s3 import S3Store
from jobs.blobs.store import Part, Store, store
from jobs.models import Blob, Checkpoint, Job, ResultFile
from tests import factories
from tests.learner_agent.conftest import rig, server
from tests.learner_agent.harness import Rig, make_job, until
from tests.learner_agent.test_end_to_end import next_attempt
from tools.kube import binaries
from tools.kube.s3 import S3Server

__all__ = ["rig", "server"]

pytestmark = pytest.mark.cluster

SAVER = """
import os, random
from learner_agent import training
with training.checkpoint(1) as folder:
    (folder / "weights").write_bytes(random.Random(1).randbytes({size}))
    (folder / "small").write_bytes(b"a few bytes")
"""
WEIGHTS = 40_000_001
READER = 'sha256sum < "$RESUME_FROM/weights"; cat "$RESUME_FROM/small"'


@pytest.fixture
def s3(tmp_path: Path, settings: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    """A store of the test's own, which the platform uses."""
    folder = tmp_path / "s3"
    folder.mkdir()
    running = S3Server(folder, binaries.build())
    running.start()
    for name, value in running.environment.items():
        monkeypatch.setenv(name, value)
    # Each test's server has a port of its own, and the store is made once for each place.
    settings.LUTHIER_BLOBS = f"{running.place}/{tmp_path.name}"
    yield running
    running.stop()


@pytest.fixture
def web_pieces(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes of the pieces that came through the web process."""
    sizes: list[int] = []

    def watched(blob_id: int, offset: int, piece: bytes) -> Blob:
        sizes.append(len(piece))
        return arrival.append(blob_id, offset, piece)

    monkeypatch.setattr(blobs, "append", watched)
    return sizes


@pytest.fixture(params=["folder", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "folder":
        return FolderStore(tmp_path / "blobs")
    return S3Store(request.getfixturevalue("s3").place)


def put(place: Store, key: str, content: bytes) -> None:
    with place.scratch() as file:
        file.write(content)
        file.seek(0)
        place.put(key, file, hashlib.sha256(content).hexdigest())


def test_every_store_gives_back_what_was_put_there(place: Store) -> None:
    for content in (b"first", b"second"):
        put(place, "1/000000/7", content)
    put(place, "1/000000/8", b"")

    assert place.exists("1/000000/7")
    assert not place.exists("1/000000/9")
    for start, expected in ((0, b"second"), (3, b"ond"), (6, b"")):
        with place.open("1/000000/7", start) as source:
            assert source.read() == expected
    with place.open("1/000000/7") as source:
        assert [source.read(2), source.seek(-3, os.SEEK_END), source.read(2), source.seek(1), source.read()] == [
            b"se", 3, b"on", 1, b"econd",
        ]  # fmt: skip
    with place.open("1/000000/8") as source:
        assert source.read() == b""
    with pytest.raises(FileNotFoundError):
        place.open("1/000000/9")
    assert sorted(place.older_than(time.time() + 60)) == [("1/000000/7", 7), ("1/000000/8", 8)]
    assert list(place.older_than(time.time() - 60)) == []
    if isinstance(place, S3Store):
        place.start("1/000000/75")
        assert [key for key, _ in place.older_than(time.time() + 60)] == [
            f"1/000000/{number}" for number in (7, 75, 8)
        ]
    for after, behind in (("1/000000/7", 8), ("1/000000/75", 8)):
        assert [number for _, number in place.older_than(time.time() + 60, after)][-1:] == [behind]
    assert list(place.older_than(time.time() + 60, "1/000000/8")) == []
    for _ in range(2):
        place.remove("1/000000/7")
    assert not place.exists("1/000000/7")
    assert not place.changed_since("1/000000/7", 0)


def test_a_link_takes_the_bytes_that_it_was_signed_for_and_no_others(s3: S3Server) -> None:
    there, content = S3Store(s3.place), b"weights"
    upload = there.start("1/000000/1")
    link = there.sign_part("1/000000/1", upload, Part(1, 7, hashlib.sha256(content).hexdigest()))

    def send(body: bytes, headers: dict[str, str]) -> bool:
        request = urllib.request.Request(link.url, data=body, headers=headers, method="PUT")
        try:
            with urllib.request.urlopen(request) as response:
                return bool(response.status == 200)
        except urllib.error.URLError:
            return False

    forged = base64.b64encode(hashlib.sha256(b"weightX").digest()).decode()
    assert not send(b"weightX", link.headers)
    assert not send(b"weightX", {"x-amz-checksum-sha256": forged})
    assert not send(content, {})
    assert there.parts("1/000000/1", upload) == []
    assert send(content, link.headers)
    assert there.parts("1/000000/1", upload) == [Part(1, 7, hashlib.sha256(content).hexdigest())]


def bearer(job: Job) -> dict[str, str]:
    return {"Authorization": f"Bearer {factories.secret(job, 1, 0)}"}


@pytest.mark.django_db
def test_small_files_come_whole_and_large_ones_are_sent_elsewhere(s3: S3Server) -> None:
    tenant = factories.tenant()
    small = blobs.begin(tenant.pk, hashlib.sha256(b"abc").hexdigest(), 3)
    large = blobs.begin(tenant.pk, "0" * 64, 50_000_000)

    with pytest.raises(blobs.SendDirectly):
        blobs.append(small.pk, 0, b"ab")
    with pytest.raises(blobs.HashMismatch):
        blobs.append(small.pk, 0, b"abX")
    with pytest.raises(blobs.SendDirectly):
        blobs.append(large.pk, 0, b"abc")
    assert blobs.append(small.pk, 0, b"abc").verified
    assert blobs.read(small, 1, 9) == b"bc"
    assert blobs.is_sound(small)
    code = blobs.put(tenant.pk, BytesIO(b"code" * 2_000_000))
    assert blobs.read(code, 7_999_996, 9) == b"code"
    blobs.discard(code)
    assert not blobs.is_sound(code)


@pytest.mark.django_db
def test_what_nothing_refers_to_is_removed_with_the_parts_that_had_arrived(s3: S3Server) -> None:
    tenant, there = factories.tenant(), store()
    assert isinstance(there, S3Store)
    left = blobs.begin(tenant.pk, "1" * 64, 50_000_000)
    direct.arrived(there, left)
    released = blobs.put(tenant.pk, b"released")
    blobs.release([released.pk])
    Blob.objects.filter(pk=left.pk).update(created_at=Now() - timedelta(days=2))

    assert blobs.sweep(timedelta(days=1)) == 1, "an upload that goes on is spared"
    assert not there.exists(blobs.key_of(tenant.pk, released.pk))
    assert blobs.sweep(timedelta(seconds=-60)) == 1
    assert there._uploads("") == []
    assert not Blob.objects.exists()


def saved(job: Job) -> Checkpoint:
    return Checkpoint.objects.get(job=job)


def run(rig: Callable[..., Rig], job: Job, command: str) -> Rig:
    learner = rig(job)
    learner.launch(command)
    learner.ship()
    return learner


def test_a_checkpoint_goes_to_the_store_and_back_past_the_web_process(
    s3: S3Server, rig: Callable[..., Rig], web_pieces: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = make_job({"train.py": SAVER.format(size=WEIGHTS)})
    assert run(rig, job, "python3 train.py").wait() == (0, 0)

    assert saved(job).state == Checkpoint.State.COMMITTED
    assert web_pieces == [11], "only the small file"
    weights = Blob.objects.get(size=WEIGHTS)
    assert (weights.verified, weights.upload_id, blobs.is_sound(weights)) == (True, "", True)

    monkeypatch.setattr(blobs, "read", small_only(blobs.read))
    next_attempt(job, saved(job))
    again = run(rig, job, READER)
    assert again.wait() == (0, 0)
    assert again.stored_log() == f"{weights.sha256}  -\na few bytes".encode()


def small_only(read: Callable[[Blob, int, int], bytes]) -> Callable[[Blob, int, int], bytes]:
    def watched(blob: Blob, start: int, size: int) -> bytes:
        assert blob.size < direct.LARGE, "the web process reads a large file"
        return read(blob, start, size)

    return watched


def test_a_shipper_that_is_killed_sends_only_what_the_store_lacks(
    s3: S3Server, rig: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    asked_for: list[int] = []
    link, go_on = direct.link, threading.Event()
    request.addfinalizer(go_on.set)

    def two_at_first(place: S3Store, blob: Blob, part: Part) -> Any:
        asked_for.append(part.number)
        assert part.number <= 2 or go_on.wait(60)
        return link(place, blob, part)

    looks: list[tuple[int, bool]] = []
    note = direct.note_arrived

    def watched(blob: Blob, parts: Sequence[Part], learner_id: int) -> bool:
        looks.append((len(parts), note(blob, parts, learner_id)))
        return looks[-1][1]

    monkeypatch.setattr(direct, "link", two_at_first)
    monkeypatch.setattr(direct, "note_arrived", watched)
    monkeypatch.setattr(direct, "PART_BYTES", 5 * 1024 * 1024)
    job = make_job({"train.py": SAVER.format(size=WEIGHTS)})
    learner = run(rig, job, "python3 train.py")
    there = store()
    assert isinstance(there, S3Store)

    def arrived() -> int:
        blob = Blob.objects.filter(size=WEIGHTS).exclude(upload_id="").first()
        return len(there.parts(blobs.key_of(blob.tenant_id, blob.pk), blob.upload_id)) if blob else 0

    until(lambda: arrived() == 2, "two parts are in the store")
    learner.kill_shipper()
    asked_for.clear()
    go_on.set()
    learner.ship()

    assert learner.wait() == (0, 0)
    assert saved(job).state == Checkpoint.State.COMMITTED
    assert set(asked_for) == {3, 4, 5, 6, 7, 8}
    assert looks == [(0, False), (2, True)], "what had arrived counts as progress"
    assert blobs.is_sound(Blob.objects.get(size=WEIGHTS))


def test_two_learners_that_send_the_same_large_file_both_store_it(
    s3: S3Server, rig: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that finishes first ends the upload of the other, whose parts nothing expects any more."""
    monkeypatch.setattr(direct, "PART_BYTES", 5 * 1024 * 1024)
    program = """
import os, pathlib, random
(pathlib.Path(os.environ["RESULT_DIR"]) / "weights").write_bytes(random.Random(1).randbytes(25_000_000))
"""
    learners = [run(rig, make_job({"train.py": program}), "python3 train.py") for _ in range(2)]
    jobs = [learner.job for learner in learners]
    Job.objects.filter(pk=jobs[1].pk).update(tenant=jobs[0].tenant)
    for learner in learners:
        assert learner.wait() == (0, 0)
        assert ResultFile.objects.filter(job=learner.job, path="weights").exists(), learner.row.message


def test_a_sender_whose_upload_was_ended_asks_again_what_has_arrived(
    s3: S3Server, rig: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    link, ended = direct.link, []

    def end_it_first(place: S3Store, blob: Blob, part: Part) -> Any:
        signed = link(place, blob, part)
        if not ended:
            ended.append(place.abort(blobs.key_of(blob.tenant_id, blob.pk), blob.upload_id))
        return signed

    monkeypatch.setattr(direct, "link", end_it_first)
    job = make_job({"train.py": SAVER.format(size=WEIGHTS)})
    assert run(rig, job, "python3 train.py").wait() == (0, 0)
    assert ended
    assert saved(job).state == Checkpoint.State.COMMITTED


@pytest.mark.django_db
def test_a_file_that_is_offered_with_another_size_begins_again(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No part can be taken from an upload, so one with parts beyond the file's end would never be the file."""
    monkeypatch.setattr(direct, "PART_BYTES", 5 * 1024 * 1024)
    content = bytes(6_000_000)
    tenant, there = factories.tenant(), store()
    sha256 = hashlib.sha256(content).hexdigest()
    assert isinstance(there, S3Store)

    def send(blob: Blob, number: int, content: bytes) -> str:
        digest = hashlib.sha256(content).hexdigest()
        link = direct.link(there, blob, Part(number, len(content), digest))
        urllib.request.urlopen(urllib.request.Request(link.url, content, link.headers, method="PUT"))
        return digest

    larger = blobs.begin(tenant.pk, sha256, 17_000_000)
    assert direct.arrived(there, larger) == []
    for number in (1, 2, 3):
        send(larger, number, bytes(direct.PART_BYTES))
    assert len(direct.arrived(there, larger)) == 3

    blob = blobs.begin(tenant.pk, sha256, len(content))
    assert there._uploads("") == []
    assert direct.arrived(there, blob) == []
    first, rest = content[: direct.PART_BYTES], content[direct.PART_BYTES :]
    assert direct.finish(there, blob, [send(blob, 1, first), send(blob, 2, rest)]).verified
    assert blobs.is_sound(blob)


@pytest.mark.django_db
def test_an_object_that_the_gateway_is_still_making_is_not_verified(s3: S3Server, tmp_path: Path) -> None:
    """This gateway answers a second request at once, as if the first were done, and lists the upload no more."""
    there, blob = store(), blobs.begin(factories.tenant().pk, "1" * 64, 5_000_000)
    assert isinstance(there, S3Store)
    direct.arrived(there, blob)
    content = bytes(blob.size)
    sha256 = hashlib.sha256(content).hexdigest()
    link = direct.link(there, blob, Part(1, blob.size, sha256))
    urllib.request.urlopen(urllib.request.Request(link.url, content, link.headers, method="PUT"))
    [part] = there._list(blobs.key_of(blob.tenant_id, blob.pk), blob.upload_id)
    claim = hashlib.md5(bytes.fromhex(part["ETag"].strip('"'))).hexdigest()
    [upload] = tmp_path.glob(f"s3/root/*/.sgwtmp/multipart/*/{blob.upload_id}")
    claimed = upload.rename(f"{upload}.{claim}-1.inprogress")
    Blob.objects.filter(pk=blob.pk).update(finishing_at=Now())

    there._once.complete_multipart_upload(
        UploadId=blob.upload_id,
        MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]},
        **there._at(blobs.key_of(blob.tenant_id, blob.pk)),
    )
    with pytest.raises(blobs.BeingFinished):
        direct.finish(there, blob, [sha256])
    claimed.rename(upload)
    assert direct.finish(there, blob, [sha256]).verified
    assert blobs.read(blob, 0, 3) == bytes(3)


def test_an_object_that_is_gone_is_a_damaged_checkpoint_and_no_end_of_the_attempt(
    s3: S3Server, rig: Callable[..., Rig]
) -> None:
    job = make_job({"train.py": SAVER.format(size=WEIGHTS)})
    assert run(rig, job, "python3 train.py").wait() == (0, 0)
    weights = Blob.objects.get(size=WEIGHTS)
    store().remove(blobs.key_of(weights.tenant_id, weights.pk))
    next_attempt(job, saved(job))
    again = run(rig, job, READER)
    until(lambda: again.row.error_code, "it is refused")
    assert "no valid checkpoint" in again.row.message, "the only one"
    assert saved(job).state == Checkpoint.State.CORRUPT


def test_a_store_that_is_away_delays_a_checkpoint_and_loses_nothing(
    s3: S3Server, rig: Callable[..., Rig]
) -> None:
    job = make_job({"train.py": SAVER.format(size=WEIGHTS) + "import time\ntime.sleep(1)"})
    learner = rig(job)
    learner.launch("python3 train.py")
    learner.ship()
    until(lambda: learner.row.phase in ("READY", "PROCESSING"), "it has its code")
    s3.stop()
    until(lambda: Checkpoint.objects.filter(job=job).exists(), "the checkpoint is offered")
    until(
        lambda: learner.launcher is not None and learner.launcher.poll() is not None, "the program has ended"
    )
    assert saved(job).state == Checkpoint.State.UPLOADING
    s3.start()

    assert learner.wait() == (0, 0)
    assert saved(job).state == Checkpoint.State.COMMITTED


@pytest.mark.django_db
def test_a_request_while_the_store_is_away_says_so(s3: S3Server, client: Client) -> None:
    job = make_job({"train.py": "pass"})
    s3.stop()
    response = client.get("/agent/v1/code", headers=bearer(job))
    assert (response.status_code, response.json()["code"]) == (503, "store_unavailable")
    assert int(response["Retry-After"]) > 0


@pytest.mark.django_db
def test_requests_about_parts_are_checked(s3: S3Server, client: Client) -> None:
    job = make_job({"train.py": "pass"})
    blob = blobs.begin(job.tenant_id, "2" * 64, 20 * 1024 * 1024, job_id=job.pk)
    url, headers = f"/agent/v1/uploads/{blob.pk}", bearer(job)

    def post(path: str, body: Any) -> tuple[int, str]:
        response = client.post(f"{url}/{path}", body, content_type="application/json", headers=headers)
        return response.status_code, response.json().get("code", "")

    part = {"number": 1, "size": direct.PART_BYTES, "sha256": "0" * 64}
    assert post("parts", part) == (409, "parts_wrong"), "before an upload has begun"
    known = client.get(f"{url}/parts", headers=headers).json()
    assert known == {"part_bytes": direct.PART_BYTES, "parts": [], "verified": False}
    assert post("parts", part) == (200, "")
    for wrong in ({"number": 3}, {"number": 0}, {"size": 5}, {"number": 2}):
        assert post("parts", part | wrong) == (409, "parts_wrong"), wrong
    for wrong in ({"number": "1"}, {"size": None}, {"sha256": "0" * 63}, {"sha256": 5}, {"number": True}):
        assert post("parts", part | wrong) == (400, "part_invalid"), wrong
    assert post("parts", []) == (400, "part_invalid")
    assert post("finish", {"parts": ["0" * 64]}) == (409, "parts_wrong"), "none has arrived"
    assert post("finish", {"parts": "0" * 64}) == (400, "parts_invalid")
    other = factories.job()
    foreign = blobs.begin(other.tenant_id, "3" * 64, 20 * 1024 * 1024)
    response = client.get(f"/agent/v1/uploads/{foreign.pk}/parts", headers=headers)
    assert response.status_code == 404


def test_part_sizes_stay_within_what_s3_allows() -> None:
    assert direct.part_bytes(1) == direct.PART_BYTES
    for size in (10 * 2**30, 200 * 2**30, 4 * 2**40):
        assert -(-size // direct.part_bytes(size)) <= 10_000
        assert direct.part_bytes(size) % 2**20 == 0


def test_no_library_of_s3_is_loaded_without_a_bucket() -> None:
    """It takes 40 MiB and most of a second."""
    code = "import django; django.setup(); import jobs.tasks, portal.urls, sys; print('boto3' in sys.modules)"
    env = os.environ | {"DJANGO_SETTINGS_MODULE": "portal.settings.test"}
    assert subprocess.check_output([sys.executable, "-c", code], env=env, text=True).strip() == "False"
