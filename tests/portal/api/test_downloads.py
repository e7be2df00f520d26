"""Everything of a job can be fetched: its results, also of one that was halted, failed or canceled, and its code."""

from __future__ import annotations

import io
import tempfile
import tracemalloc
import zipfile
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import pytest

from jobs import archives, blobs
from jobs.blobs.store import store
from jobs.models import Blob, Job, ResultFile
from jobs.states import State
from tests import factories
from tests.portal.api.conftest import Api, People

pytestmark = pytest.mark.django_db

CODE = [("train.py", "print(1)\n"), ("lib/model.py", "x = 1\n")]


def content(answer: Any) -> bytes:
    return b"".join(answer.streaming_content)


def leaves(job: Job, rank: int, path: str, text: bytes) -> None:
    blob = blobs.put(job.tenant_id, text)
    ResultFile.objects.create(job=job, tenant=job.tenant, attempt=1, rank=rank, path=path, blob=blob)


def large_blob(tenant_id: int, size: int) -> Blob:
    """size zeros, made without holding them."""
    with tempfile.TemporaryFile() as file:
        file.truncate(size)
        file.seek(0)
        return blobs.put(tenant_id, file)


def most_memory(answer: Any, size: int) -> int:
    """The most bytes of Python's memory while a download of at least this size is read block by block."""
    received = 0
    tracemalloc.start()
    try:
        for block in answer.streaming_content:
            received += len(block)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert received >= size
    return most


def zipped(files: list[tuple[str, str]]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, text in files:
            archive.writestr(path, text)
    return buffer.getvalue()


@pytest.mark.parametrize(
    "state", [State.HALTED, State.FAILED, State.CANCELED, State.COMPLETED, State.PROCESSING]
)
def test_results_are_there_in_every_state(alice: Api, people: People, state: State) -> None:
    job = factories.job(owner=people.alice, state=state)
    leaves(job, 0, "plots/loss.txt", b"falling")

    (listed,) = alice.get(f"/jobs/{job.pk}/results").json()["items"]

    assert (listed["path"], listed["attempt"], listed["size"]) == ("plots/loss.txt", 1, 7)
    assert content(alice.get(f"/jobs/{job.pk}/results/plots/loss.txt")) == b"falling"


def test_all_results_come_as_one_zip(alice: Api, people: People) -> None:
    job = factories.job(owner=people.alice, state=State.HALTED, name="a/b")
    assert alice.get(f"/jobs/{job.pk}/results.zip").status_code == 404
    leaves(job, 0, "plots/loss.txt", b"falling")
    leaves(job, 1, "large.bin", b"12345678" * 400_000)

    answer = alice.get(f"/jobs/{job.pk}/results.zip")

    with zipfile.ZipFile(io.BytesIO(content(answer))) as archive:
        assert archive.testzip() is None
        assert archive.namelist() == ["plots/loss.txt", "learner-1/large.bin"]
        assert archive.read("plots/loss.txt") == b"falling"
        assert archive.getinfo("learner-1/large.bin").file_size == 3_200_000
    assert answer["Content-Disposition"] == 'attachment; filename="a-b-results.zip"'
    assert answer["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize("path", ["results.zip", "results/large.bin", "code"])
def test_a_download_takes_the_memory_of_a_few_blocks_however_large_it_is(
    alice: Api, people: People, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("portal.api.files.kind_of", lambda source: "zip")
    job = factories.job(owner=people.alice, state=State.COMPLETED)
    blob = large_blob(job.tenant_id, 64 * blobs.BLOCK)
    ResultFile.objects.create(job=job, tenant=job.tenant, attempt=1, rank=0, path="large.bin", blob=blob)
    Job.objects.filter(pk=job.pk).update(code=blob)

    assert most_memory(alice.get(f"/jobs/{job.pk}/{path}"), blob.size) < 8 * blobs.BLOCK


def test_a_file_whose_bytes_are_gone_is_an_error_alone_and_is_left_out_of_a_zip(
    alice: Api, people: People
) -> None:
    job = factories.job(owner=people.alice, state=State.HALTED)
    for path in ("a", "b", "c"):
        leaves(job, 0, path, path.encode())
    for entry in ResultFile.objects.filter(job=job, path__in=("a", "c")).select_related("blob"):
        store().remove(blobs.key_of(entry.blob.tenant_id, entry.blob.pk))

    gone = alice.get(f"/jobs/{job.pk}/results/a")
    assert (gone.status_code, gone.json()["code"]) == (410, "blob_gone")
    with zipfile.ZipFile(io.BytesIO(content(alice.get(f"/jobs/{job.pk}/results.zip")))) as archive:
        assert archive.namelist() == ["b"]


@pytest.mark.parametrize(("packed", "kind"), [(archives.pack, "tar.gz"), (zipped, "zip")])
def test_the_code_comes_whole_or_file_by_file(
    alice: Api, people: People, packed: Callable[[list[tuple[str, str]]], bytes], kind: str
) -> None:
    job = factories.job(owner=people.alice, state=State.COMPLETED, name="net")
    assert alice.get(f"/jobs/{job.pk}/code").status_code == 404  # its image has it
    archive = packed(CODE)  # once: it holds the time
    job.code = blobs.put(job.tenant_id, archive)
    job.save(update_fields=["code"])

    whole = alice.get(f"/jobs/{job.pk}/code")

    assert content(whole) == archive
    assert whole["Content-Disposition"] == f'attachment; filename="net-code.{kind}"'
    assert content(alice.get(f"/jobs/{job.pk}/code/lib/model.py")) == b"x = 1\n"
    part = alice.get(f"/jobs/{job.pk}/code/train.py", Range="bytes=6-7")
    assert (part.status_code, content(part)) == (206, b"1)")
    for path in ("lib", "lib/", "none.py", "../train.py", "./train.py", "lib%2f..%2ftrain.py"):
        assert alice.get(f"/jobs/{job.pk}/code/{path}").status_code == 404


def test_a_name_that_is_no_plain_word_stays_one_parameter_of_its_header(alice: Api, people: People) -> None:
    job = factories.job(owner=people.alice)
    name = 'a"; filename=x.html;\\ b’s.txt'
    leaves(job, 0, f"dir/{name}", b"1")
    answer = alice.get(f"/jobs/{job.pk}/results/{quote(f'dir/{name}')}")
    assert content(answer) == b"1"
    kind, _, given = answer["Content-Disposition"].partition("; ")
    assert (kind, given) == ("attachment", f"filename*=utf-8''{quote(name)}")
    leaves(job, 0, 'b"c.txt', b"2")
    plain = alice.get(f"/jobs/{job.pk}/results/b%22c.txt")["Content-Disposition"]
    assert plain == 'attachment; filename="b\\"c.txt"'


def test_a_path_is_decoded_once(alice: Api, people: People) -> None:
    job = factories.job(owner=people.alice)
    leaves(job, 0, "a%2Fb.txt", b"literal")
    leaves(job, 0, "a/b.txt", b"folder")
    assert content(alice.get(f"/jobs/{job.pk}/results/a%252Fb.txt")) == b"literal"
    assert content(alice.get(f"/jobs/{job.pk}/results/a%2Fb.txt")) == b"folder"
    for path in ("%252e%252e%252fa%252Fb.txt", "..%252fa/b.txt", "a%25252Fb.txt"):
        assert alice.get(f"/jobs/{job.pk}/results/{path}").status_code == 404, path
