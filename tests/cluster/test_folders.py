"""Where the suite's clusters keep their files."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster import folders
from tests.cluster.folders import ROOM
from tools.kube.cluster import MARKER

pytestmark = pytest.mark.cluster
DEAD = 2**22 + 1
"""No process has this id: it is above the kernel's greatest."""


@pytest.mark.parametrize("limit", folders.LIMITS)
def test_what_a_container_has_used_is_no_room(tmp_path: Path, limit: tuple[str, str]) -> None:
    bound, used = (tmp_path / name for name in limit)
    bound.parent.mkdir(exist_ok=True)
    bound.write_text(f"{3 * ROOM}\n")
    used.write_text(f"{3 * ROOM}\n")
    used.with_name("memory.stat").write_text("inactive_anon 7\ninactive_file 5\n")
    assert folders.left_by_limits(tmp_path) == [5]
    assert not folders.has_room(tmp_path, tmp_path)
    used.write_text(f"{ROOM}\n")
    assert folders.left_by_limits(tmp_path) == [2 * ROOM + 5]


def test_a_container_without_a_limit_has_the_machines_memory(tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("1\n")
    assert folders.left_by_limits(tmp_path) == []


def test_a_new_folder_removes_what_a_killed_run_left_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory, disk = tmp_path / "memory", tmp_path / "disk"
    monkeypatch.setattr(folders, "MEMORY", memory)
    monkeypatch.setattr(folders, "DISK", disk)
    for root in (memory, disk):
        abandoned = root / f"{folders.FOLDERS}real-{DEAD}"
        abandoned.mkdir(parents=True)
        (abandoned / MARKER).touch()
    folders.new_folder("suite")
    assert [*memory.iterdir(), *disk.iterdir()] == []
