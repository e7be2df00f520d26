"""Which files are taken of what a program leaves, and which are left out by name."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from learner_agent.shipper.outputs import gather

NOBODY = 65_534


@pytest.fixture
def results() -> Iterator[Path]:
    """A folder that any user can reach: the superuser may read everything, so these tests are somebody else."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@contextmanager
def no_superuser() -> Iterator[None]:
    user = os.geteuid()
    if user == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(user)


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
