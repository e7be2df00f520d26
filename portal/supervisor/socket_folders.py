"""The folders of sockets that platforms leave behind: one per data folder; once that is deleted, nothing uses it."""

import errno
import os
import shutil
import socket
import stat
import time
from collections.abc import Iterator
from pathlib import Path

YOUNG_S = 3600.0
"""A folder that changed within this time may belong to a platform that is starting."""


def remove_dead(parent: Path, keep: Path) -> list[str]:
    """Remove the folders beside `keep` that have been old for long and in which nothing listens; returns their names.

    A platform that is only stopped gets a new one when it starts. What cannot be judged stays.
    """
    gone = []
    for folder in sorted(parent.iterdir()):
        try:
            if folder != keep and _is_dead(folder):
                shutil.rmtree(folder)
                gone.append(folder.name)
        except OSError:  # another process removes it, too, or it is not ours
            continue
    return gone


def _is_dead(folder: Path) -> bool:
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        return False
    files = list(_files(folder))
    newest = max(path.lstat().st_mtime for path in (folder, *files))
    return time.time() - newest > YOUNG_S and not any(_listens(path) for path in files)


def _files(folder: Path) -> Iterator[Path]:
    """Everything below, without following links."""
    for place, folders, names in os.walk(folder):
        yield from (Path(place) / name for name in (*folders, *names))


def _listens(path: Path) -> bool:
    """False only if certainly no process accepts connections there."""
    if not stat.S_ISSOCK(path.lstat().st_mode):
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.setblocking(False)
        return client.connect_ex(str(path)) != errno.ECONNREFUSED
