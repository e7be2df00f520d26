"""Folders of sockets of platforms that are gone are removed when another one starts; those of living ones stay."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

import pytest

from portal.settings.embedded import Layout
from portal.supervisor.folders import make_folders
from portal.supervisor.socket_folders import YOUNG_S


@pytest.fixture
def short(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that sockets are reached in by a short path, however long the test's own is."""
    folder = tmp_path_factory.mktemp("sockets")
    monkeypatch.chdir(folder)
    return folder


def folder_of(parent: Path, name: str, *, listens: bool, age_s: float = YOUNG_S + 60) -> socket.socket:
    """As a platform's: a socket in a folder below. Not listening: its process died without removing it."""
    place = parent / name / "pg"
    place.mkdir(parents=True)
    server = socket.socket(socket.AF_UNIX)
    server.bind(os.path.relpath(place / "s"))
    if listens:
        server.listen()
    else:
        server.close()
    when = time.time() - age_s
    for path in (place / "s", place, parent / name):
        os.utime(path, (when, when))
    return server


def test_a_start_removes_the_folders_of_dead_platforms_alone(short: Path) -> None:
    alive = folder_of(short, "alive", listens=True)
    folder_of(short, "dead", listens=False)
    folder_of(short, "starting", listens=False, age_s=5)
    own = folder_of(short, "own", listens=False)
    (short / "empty").mkdir()
    os.utime(short / "empty", (0, 0))
    make_folders(Layout(data=short.parent / "data", runtime=short / "own"))
    assert {path.name for path in short.iterdir()} == {"alive", "starting", "own"}
    alive.close()
    own.close()


def test_what_is_not_a_folder_of_this_user_is_left_alone(short: Path) -> None:
    (short / "file").touch()
    os.utime(short / "file", (0, 0))
    (short / "link").symlink_to(short.parent)
    make_folders(Layout(data=short.parent / "data", runtime=short / "own"))
    assert {path.name for path in short.iterdir()} == {"file", "link", "own"}
