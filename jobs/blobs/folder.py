"""Bytes in a folder of this machine, or of a file system that all web processes share."""

from __future__ import annotations

import builtins
import errno
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, BinaryIO

from jobs.blobs.store import MARK, MAX_PIECE, number_of
from jobs.disk import disk_of

PART = ".part"
WRITING = "put-"


class FolderStore:
    """A file per key. Pieces are collected next to it, in `<key>.part`.

    A file is moved into place only when it is on disk, and its folder is on disk before anything refers to it.
    """

    receives_pieces = True

    def __init__(self, root: Path) -> None:
        self.root = root

    def check(self) -> None:
        if (self.room() or 0) < MAX_PIECE:  # pieces are refused, and what waits for that is not stalled
            raise OSError(errno.ENOSPC, "the disk is as full as LUTHIER_MIN_FREE_DISK lets it become")
        with self.scratch():
            pass

    def room(self) -> int | None:
        return disk_of(self.root).room

    def put(self, key: str, content: IO[bytes], sha256: str) -> None:
        """content comes from `scratch`, and is moved; a second time it is copied."""
        if not Path(content.name).exists():
            with self.scratch() as copy:
                shutil.copyfileobj(content, copy)
                self.put(key, copy, sha256)
            return
        content.flush()
        os.fsync(content.fileno())
        _move(Path(content.name), self._made(key))

    @contextmanager
    def scratch(self) -> Iterator[IO[bytes]]:
        self.root.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(prefix=WRITING, dir=self.root, delete=False) as file:
            try:
                yield file
            finally:
                Path(file.name).unlink(missing_ok=True)  # it was moved, or is not needed

    @contextmanager
    def partial(self, key: str) -> Iterator[FolderPartial]:
        path = self._made(key).with_suffix(PART)
        with _locked(path) as file:
            yield FolderPartial(file, path, self.path(key))

    def open(self, key: str, start: int = 0, *, streamed: bool = False) -> BinaryIO:
        file = builtins.open(self.path(key), "rb")  # noqa: SIM115 - the caller closes it
        file.seek(start)
        return file

    def exists(self, key: str) -> bool:
        return self.path(key).exists()

    def remove(self, key: str) -> None:
        for path in (self.path(key), self.path(key).with_suffix(PART)):
            path.unlink(missing_ok=True)

    def changed_since(self, key: str, moment: float) -> bool:
        return _was_written_since(self.path(key).with_suffix(PART), moment)

    def older_than(self, moment: float, after: str = "") -> Iterator[tuple[str, int]]:
        for path in _in_order(self.root, after.split("/")):
            whole = path.with_suffix("") if path.suffix == PART else path
            key = whole.relative_to(self.root).as_posix()
            number = 0 if path.parent == self.root and path.name.startswith(WRITING) else number_of(key)
            if (
                number is not None
                and key != after
                and path.is_file()
                and not _was_written_since(path, moment)
            ):
                yield key, number

    def mark(self, new: str = "") -> str:
        path = self.root / MARK
        if new:
            self.root.mkdir(parents=True, exist_ok=True)
            path.write_text(new)
        return path.read_text() if path.exists() else ""

    def path(self, key: str) -> Path:
        return self.root / key

    def _made(self, key: str) -> Path:
        """The path of a key; the folders above it are made, and on disk."""
        path = self.path(key)
        missing = [folder for folder in (path.parent, *path.parent.parents) if not folder.exists()]
        path.parent.mkdir(parents=True, exist_ok=True)
        for folder in missing:
            _sync(folder.parent)
        return path


class FolderPartial:
    """What has arrived of one file; see `Partial`."""

    def __init__(self, file: IO[bytes], path: Path, target: Path) -> None:
        self._file = file
        self._path = path
        self._target = target

    @property
    def size(self) -> int:
        return os.fstat(self._file.fileno()).st_size

    def write(self, offset: int, piece: bytes) -> None:
        self._file.seek(offset)
        self._file.write(piece)
        self._file.truncate()
        self._file.flush()
        os.fsync(self._file.fileno())

    def read(self, offset: int, size: int) -> bytes:
        return os.pread(self._file.fileno(), size, offset)

    def place(self) -> None:
        _move(self._path, self._target)

    def discard(self) -> None:
        self._path.unlink(missing_ok=True)


@contextmanager
def _locked(path: Path) -> Iterator[IO[bytes]]:
    """The file at path, made if it is missing, while no other process has it. A killed process releases its lock."""
    while True:
        with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if _is_at(file, path):  # else it was moved or removed while this one waited
                yield file
                return


def _is_at(file: IO[bytes], path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _in_order(folder: Path, first: Sequence[str]) -> Iterator[Path]:
    """The files of a folder and of those in it, by name, from `first` on: the names of a path in this folder."""
    try:
        paths = sorted(folder.iterdir())
    except FileNotFoundError:
        return
    for path in paths:
        if first and path.name < first[0]:
            continue
        if path.is_dir() and not path.is_symlink():
            yield from _in_order(path, first[1:] if first and path.name == first[0] else ())
        else:
            yield path


def _move(source: Path, target: Path) -> None:
    source.replace(target)
    _sync(target.parent)


def _sync(folder: Path) -> None:
    """A new or moved file survives a power cut once its folder is on disk too."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _was_written_since(path: Path, moment: float) -> bool:
    """True if the file exists and was written to since then; others may remove it at any time."""
    try:
        return path.stat().st_mtime >= moment
    except FileNotFoundError:
        return False
