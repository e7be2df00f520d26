"""Which files are taken of what a program leaves, and which are left out by name."""

from __future__ import annotations

import os
import shutil
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from learner_agent.shipper.outputs import TooMany, entries, gather, pack
from learner_agent.shipper.results import collect
from tests.nobody import no_superuser


def packed_in(results: Path, into: Path) -> tuple[Path, list[str]]:
    """The archive of a folder, and the names of what it could not hold."""
    archive = into / "results.tar"
    return archive, pack(results, entries(results), archive)


@pytest.fixture
def results() -> Iterator[Path]:
    """A folder that any user can reach: the superuser may read everything, so these tests run as another user."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def test_what_cannot_be_read_is_left_out_by_name(results: Path) -> None:
    (results / "good.txt").write_text("good")
    (results / "closed.txt").write_text("closed")
    (results / "closed.txt").chmod(0)
    for name, mode in (("hidden", 0), ("listed", 0o444)):
        (results / name / "below").mkdir(parents=True)
        (results / name / "file.txt").write_text("file")
        (results / name).chmod(mode)

    with no_superuser():
        found = gather(results, what="results", world=1)

    assert found is not None
    assert [path for path, _, _ in found.offer.files] == ["good.txt"]
    assert sorted(found.left_out) == ["closed.txt", "hidden", "listed/below", "listed/file.txt"]


def test_a_folder_that_is_not_there_holds_nothing(results: Path) -> None:
    assert gather(results / "absent", what="results", world=1) is None


def test_a_folder_that_cannot_be_read_says_so(results: Path) -> None:
    (results / "kept").mkdir(mode=0)

    with no_superuser():
        found = gather(results / "kept", what="results", world=1)

    assert found is not None
    assert (found.offer.files, found.left_out) == ([], (".",))


def test_more_files_than_one_message_names_are_packed_into_the_same_archive_each_time(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("learner_agent.shipper.outputs.MAX_FILES", 1)
    odd = os.fsdecode(b"sub/a\xff")
    (results / "sub").mkdir()
    for name in ("one.txt", "two.txt", odd):
        (results / name).write_text(name.encode("utf-8", "replace").decode())
    (results / "latest").symlink_to("one.txt")
    os.mkfifo(results / "pipe")
    with pytest.raises(TooMany, match="more than 1 files"):
        gather(results, what="results", world=1)

    first = packed_in(results, tmp_path)[0].read_bytes()
    packed, left_out = packed_in(results, tmp_path)

    assert packed.read_bytes() == first
    assert left_out == ["pipe"]
    with tarfile.open(packed) as archive:
        assert sorted(archive.getnames()) == sorted(["latest", "one.txt", odd, "two.txt"])


def test_names_too_long_for_one_message_are_too_many(results: Path, tmp_path: Path) -> None:
    deep = results / "/".join(["d" * 200] * 4)
    deep.mkdir(parents=True)
    for number in range(1_300):
        (deep / f"{number:0200}").touch()
    with pytest.raises(TooMany, match="cannot be listed in one message"):
        gather(results, what="results", world=1)
    found = collect(results, tmp_path / "code", keep=[], into=tmp_path, world=1, stored_before=False)
    assert found.files is not None
    assert len(found.files.offer.files) == 1


def breaks_off(monkeypatch: pytest.MonkeyPatch, broken: str) -> None:
    """Let one file be shorter than it was a moment ago, when it was described."""
    described = tarfile.TarFile.gettarinfo

    def longer(archive: tarfile.TarFile, *of: Any, **more: Any) -> tarfile.TarInfo:
        info = described(archive, *of, **more)
        info.size += 1_000 * (info.name == broken)
        return info

    monkeypatch.setattr(tarfile.TarFile, "gettarinfo", longer)


def files_in(path: Path) -> dict[str, str]:
    """The files of an archive and their text. A second name of a file has the file's."""
    found = {}
    with tarfile.open(path) as archive:
        for member in archive:
            content = archive.extractfile(member)
            assert content is not None
            found[member.name] = content.read().decode()
    return found


def test_a_file_that_breaks_off_takes_no_other_out_of_the_archive(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b", "c"):
        (results / name).write_text(name * 10_000)
    breaks_off(monkeypatch, "b")
    packed, left_out = packed_in(results, tmp_path)

    assert left_out == ["b"]
    assert files_in(packed) == {
        "a": "a" * 10_000,
        "c": "c" * 10_000,
    }


def test_a_second_name_of_a_file_that_broke_off_is_kept_as_the_file(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (results / "a").write_text("a" * 10_000)
    for other in ("b", "c"):
        (results / other).hardlink_to(results / "a")
    breaks_off(monkeypatch, "a")
    packed, left_out = packed_in(results, tmp_path)

    assert left_out == ["a"]
    assert files_in(packed) == {
        "b": "a" * 10_000,
        "c": "a" * 10_000,
    }


def test_names_of_one_file_share_its_bytes_in_the_archive(results: Path, tmp_path: Path) -> None:
    (results / "a").write_text("a" * 100_000)
    (results / "b").hardlink_to(results / "a")
    packed, _ = packed_in(results, tmp_path)
    with tarfile.open(packed) as archive:
        assert [(member.name, member.islnk()) for member in archive] == [("a", False), ("b", True)]


def test_one_archive_stays_however_often_it_is_made(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("learner_agent.shipper.outputs.MAX_FILES", 1)
    for name in ("a", "b"):
        (results / name).write_text(name)
    for _ in range(3):
        found = collect(results, tmp_path / "code", keep=[], into=tmp_path, world=1, stored_before=False)
    assert found.files is not None
    assert list(tmp_path.iterdir()) == [found.files.place(0).parent]


def test_the_group_that_is_too_much_becomes_an_archive_and_the_other_stays_listed(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("learner_agent.shipper.outputs.MAX_FILES", 2)
    monkeypatch.setattr("learner_agent.shipper.results.MAX_FILES", 2)
    code, spool = tmp_path / "code", tmp_path / "spool"
    code.mkdir()
    spool.mkdir()
    (results / "a").write_text("a")
    for number in range(3):
        (code / f"{number}.pt").write_text(str(number))

    found = collect(results, code, keep=["*.pt"], into=spool, world=1, stored_before=False)

    assert found.files is not None
    offer = found.files.offer
    assert [path for path, _, _ in offer.files] == ["a", "kept.tar"]
    assert (offer.in_code_from, offer.archives) == (1, [1])
    assert files_in(found.files.place(1)) == {"0.pt": "0", "1.pt": "1", "2.pt": "2"}
    assert found.notes == [
        ("results_packed", "code holds more than 2 files. They are stored as one archive, kept.tar.")
    ]
