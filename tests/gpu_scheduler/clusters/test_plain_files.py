"""What a program may put in place of a file that the node daemon reads: refused, and nothing of it stays open."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpu_scheduler.clusters.local.context import last_output, read_plain


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.parametrize("kind", ["folder", "fifo", "link", "large"])
def test_what_is_no_small_plain_file_is_refused_and_costs_no_handle(tmp_path: Path, kind: str) -> None:
    place = tmp_path / "exit"
    if kind == "folder":
        place.mkdir()
    elif kind == "fifo":
        os.mkfifo(place)
    elif kind == "link":
        place.symlink_to("/etc/hostname")
    else:
        place.write_bytes(b"x" * 101)
    before = open_files()

    for _ in range(20):
        with pytest.raises((OSError, ValueError)):
            read_plain(place, max_bytes=100)
        last_output(place)

    assert open_files() == before


def test_a_small_plain_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "acked").write_bytes(b"7")

    assert read_plain(tmp_path / "acked", max_bytes=100) == b"7"
