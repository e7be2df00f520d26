"""Files that a program leaves: checkpoints with a manifest, and folders as they are.

Links are never followed. The program may replace a file or a folder by one at any time, so each file is opened step by
step from the job's folder, and what is hashed and sent is read from what was opened.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import tarfile
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path

from learner_agent.untrusted_files import LARGE_BYTES, is_linked, open_below, open_folder
from learner_agent.wire import Ckpt, WireError, decode, encode
from learner_agent.wire_fields import MAX_FILES, File, FileSetKind, is_path


class NotWhole(Exception):
    """These files cannot be stored as they are; the message says which and why."""


class TooMany(NotWhole):
    """More files than can be named in one message."""


@dataclass(frozen=True, slots=True)
class FileSet:
    """Files that are stored together: folder has them, offer is their description for the server.

    root: the job's folder, from which on no step to them may be a link.
    """

    root: Path
    folder: Path
    offer: Ckpt
    left_out: tuple[str, ...] = ()
    """Names of what cannot be stored: links, special files, invalid names, unreadable files."""
    places: tuple[tuple[Path, Path], ...] = ()
    """The root of each file of the offer, and where it is, if they are not all in the one folder."""

    def place(self, index: int) -> Path:
        """Where the file with this index in the offer is."""
        return self.places[index][1] if self.places else self.folder / self.offer.files[index][0]

    def open(self, index: int) -> BufferedReader:
        """Open the file with this index for reading. Raises OSError."""
        root = self.places[index][0] if self.places else self.root
        return open_file(root, self.place(index))

    @property
    def key(self) -> str:
        return self.offer.key


class LinkedFolder(NotWhole):
    """A folder whose files are to be stored is a link."""

    def __init__(self, folder: Path) -> None:
        super().__init__(
            f"Not stored: {folder.name} is a link, or in one. The program must write into the folder itself"
            " or copy its files there at its end."
        )


def open_file(root: Path, place: Path) -> BufferedReader:
    """Open a regular file below one of the job's folders. Raises OSError if a step to it is a link."""
    return open(open_below(root, *place.relative_to(root).parts), "rb")


def sha256_from(source: BufferedReader) -> str:
    """Hash an open file from its beginning. Raises OSError."""
    source.seek(0)
    return hashlib.file_digest(source, "sha256").hexdigest()


def find_checkpoints(base: Path) -> list[Path]:
    """Manifests that programs have written, oldest first."""
    if is_linked(base):
        return []
    try:
        steps = [entry for entry in base.iterdir() if entry.name.startswith("step-") and entry.is_dir()]
    except OSError:
        return []
    found = []
    for step in steps:
        for manifest in (step / "manifest.json", *step.glob("part-*/manifest.json")):
            try:
                found.append((manifest.stat().st_mtime_ns, manifest))
            except OSError:
                continue
    return [manifest for _, manifest in sorted(found)]


def read_checkpoint(manifest: Path, base: Path) -> FileSet | None:
    """Read one manifest; None for a restored one. Raises NotWhole if it or its files are invalid."""
    name = manifest.parent.relative_to(base).as_posix()
    try:
        content = json.loads(_read(manifest, base))
        if content.get("restored"):
            return None
        files: list[File] = [(entry["path"], entry["size"], entry["sha256"]) for entry in content["files"]]
        offer = Ckpt(
            key=key_of(manifest, base),
            step=content["step"],
            ordinal=content.get("ordinal"),
            part=content.get("part", 0),
            of=content.get("of", 1),
            world=content.get("world_size", 1),
            files=files,
        )
        offer = checked(offer)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, WireError) as error:
        raise NotWhole(f"{name}/manifest.json is not a manifest: {error}") from error
    for path, size, _ in files:
        if _size(base, manifest.parent / path) != size:
            raise NotWhole(f"{name}/{path} is not the file of {size} bytes that the manifest lists")
    return FileSet(base, manifest.parent, offer)


def _read(manifest: Path, base: Path) -> bytes:
    """Raises OSError, and ValueError if it is too large."""
    with open_file(base, manifest) as source:
        content = source.read(LARGE_BYTES + 1)
    if len(content) > LARGE_BYTES:
        raise ValueError(f"it has more than {LARGE_BYTES:,} bytes")
    return content


def _size(root: Path, place: Path) -> int | None:
    """The size of a regular file; None for anything else."""
    try:
        with open_file(root, place) as source:
            return os.fstat(source.fileno()).st_size
    except OSError:
        return None


def checked(offer: Ckpt) -> Ckpt:
    """The offer as the server will read it. Raises WireError if it would refuse it."""
    read = decode(encode(offer))
    assert isinstance(read, Ckpt)
    return read


def key_of(manifest: Path, base: Path) -> str:
    """Identify one save, unlike any other of the same step. Raises OSError, and ValueError if it is too large."""
    digest = hashlib.sha256(_read(manifest, base)).hexdigest()
    return f"{manifest.parent.relative_to(base).as_posix()}:{digest}"[-200:]


@dataclass(frozen=True, slots=True)
class Listing:
    """Files below a folder, described, and the names of those that cannot be stored."""

    files: list[File]
    left_out: list[str]


def describe(folder: Path, places: Iterable[Path]) -> Listing:
    """Describe files below a folder. Raises TooMany for more than MAX_FILES of them."""
    files: list[File] = []
    left_out: list[str] = []
    for place in places:
        name = place.relative_to(folder).as_posix()
        try:
            if not is_path(name):
                raise OSError(errno.EINVAL, "cannot be stored")
            with open_file(folder, place) as source:
                digest = sha256_from(source)
                files.append((name, source.tell(), digest))
        except OSError:  # or unreadable
            left_out.append(_shown(name))
        if len(files) > MAX_FILES:
            raise TooMany(f"{folder.name} holds more than {MAX_FILES:,} files.")
    return Listing(files, left_out)


def restored_folders(base: Path) -> list[Path]:
    """The folders of a checkpoint with manifests that this attempt began with."""
    return [manifest.parent for manifest in find_checkpoints(base) if _is_restored(manifest, base)]


def _is_restored(manifest: Path, base: Path) -> bool:
    with suppress(OSError, ValueError, AttributeError, RecursionError):  # a program may have written anything
        return bool(json.loads(_read(manifest, base)).get("restored"))
    return False


def gather(folder: Path, *, what: FileSetKind, world: int, without: Iterable[Path] = ()) -> FileSet | None:
    """Describe a directory as it is, but for these folders in it; None if it is empty. Raises TooMany for more files
    than MAX_FILES."""
    places = (place for place in entries(folder) if not any(place.is_relative_to(one) for one in without))
    found = describe(folder, places)
    if not found.files and not found.left_out:
        return None
    try:
        offer = checked(Ckpt(key=what, what=what, world=world, files=found.files))
    except WireError as error:
        raise TooMany(f"The files of {folder.name} cannot be listed in one message: {error}.") from error
    return FileSet(folder, folder, offer, tuple(found.left_out))


def pack(folder: Path, places: Iterable[Path], archive: Path) -> list[str]:
    """Write these files and links below a folder into an archive; return what could not be read. Raises OSError.

    The same files give the same archive, so after a crash during the upload nothing is sent twice.
    """
    left_out: list[str] = []
    lost: set[str] = set()
    with open(archive, "wb") as out, tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as packed:
        for place in places:
            name, begins_at = place.relative_to(folder).as_posix(), out.tell()
            try:
                if place.is_symlink():
                    packed.addfile(packed.gettarinfo(place, arcname=name))
                    continue
                with open_file(folder, place) as content:
                    member = packed.gettarinfo(arcname=name, fileobj=content)
                    if member.islnk() and member.linkname in lost:
                        # A hard link to a file that is not in the archive.
                        size = os.fstat(content.fileno()).st_size
                        member.type, member.linkname, member.size = tarfile.REGTYPE, "", size
                    packed.addfile(member, content if member.isreg() else None)
            except OSError as error:
                if error.errno in {errno.ENOSPC, errno.EDQUOT}:
                    raise
                # A file that fails in the middle must not damage those after it.
                out.seek(begins_at)
                out.truncate()
                packed.offset = begins_at
                lost.add(name)
                left_out.append(_shown(name))
    return left_out


def _shown(name: str) -> str:
    return name.encode("utf-8", "backslashreplace").decode()


def entries(folder: Path) -> Iterator[Path]:
    """Everything below a folder but directories, and of these only links and those that cannot be read.

    Raises LinkedFolder.
    """
    if is_linked(folder):
        raise LinkedFolder(folder)
    closed: list[Path] = []
    waiting: list[tuple[str, ...]] = [()]
    while waiting:
        steps = waiting.pop()
        try:
            folders, others = _names(folder, steps)
        except FileNotFoundError:
            continue
        except OSError as error:
            if not steps and is_linked(folder):
                raise LinkedFolder(folder) from error  # since the check above
            closed.append(folder.joinpath(*steps))
            continue
        yield from (folder.joinpath(*steps, name) for name in sorted(others))
        waiting += [(*steps, name) for name in sorted(folders, reverse=True)]
    yield from closed


def _names(folder: Path, steps: tuple[str, ...]) -> tuple[list[str], list[str]]:
    """The folders in a folder, but those of a save under way, and everything else. Raises OSError."""
    handle = open_folder(folder, *steps)
    try:
        with os.scandir(handle) as found:
            kinds = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in found]
    finally:
        os.close(handle)
    folders = [name for name, is_folder in kinds if is_folder and not name.startswith((".saving-", ".old-"))]
    return folders, [name for name, is_folder in kinds if not is_folder]


def prune(base: Path, committed: Iterable[str], *, keep: int) -> None:
    """Remove this machine's copies of checkpoints that the server has, except the newest.

    By key and not by name: a step that was saved again has the name of the one that the server has.
    """
    known = set(committed)

    def is_safe(manifest: Path) -> bool:
        with suppress(OSError, ValueError):  # gone or changed since: keep it
            return key_of(manifest, base) in known
        return False

    safe = [manifest for manifest in find_checkpoints(base) if is_safe(manifest)]
    for manifest in safe[: max(0, len(safe) - keep)]:
        if is_safe(manifest):  # again, because removing the one before took time
            _remove(manifest.parent, base)


def _remove(place: Path, base: Path) -> None:
    """Remove a folder below base, unless a step to it is a link."""
    *steps, name = place.relative_to(base).parts
    with suppress(OSError):
        above = open_folder(base, *steps)
        try:
            shutil.rmtree(name, ignore_errors=True, dir_fd=above)
        finally:
            os.close(above)
