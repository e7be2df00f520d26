"""The fingerprint of the installed agent, by which what was started from other code is replaced."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpu_scheduler.clusters.local import shipper
from gpu_scheduler.clusters.local.shipper import code_version


@pytest.fixture
def package(tmp_path: Path) -> Path:
    (tmp_path / "inner").mkdir()
    (tmp_path / "main.py").write_text("one = 1\n")
    (tmp_path / "inner" / "part.py").write_text("two = 2\n")
    return tmp_path


def test_code_that_looks_unchanged_is_read_once(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = code_version(package)
    monkeypatch.setattr(shipper, "_fingerprint", None)
    (package / "__pycache__").mkdir()
    (package / "__pycache__" / "main.pyc").write_bytes(b"")
    assert code_version(package) == known


def test_a_change_that_keeps_size_and_time_is_seen(package: Path) -> None:
    """An upgrade may set the times that its archive has."""
    place = package / "inner" / "part.py"
    known, times = code_version(package), place.stat()
    place.write_text("two = 3\n")
    os.utime(place, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert place.stat().st_size == times.st_size
    assert code_version(package) != known


def test_a_new_file_and_a_removed_one_are_seen(package: Path) -> None:
    known = code_version(package)
    (package / "inner" / "new.py").write_text("")
    grown = code_version(package)
    (package / "inner" / "new.py").unlink()
    assert known != grown
    assert code_version(package) == known
