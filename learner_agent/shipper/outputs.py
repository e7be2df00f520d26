"""Files that a program leaves: checkpoints with a manifest, and folders as they are. Links are never followed."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import tarfile
from collections.abc import Iterable
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

from learner_agent.shipper.inputs import sha256_of
from learner_agent.untrusted_files import LARGE_BYTES, read_regular
from learner_agent.wire import Ckpt, WireError, decode, encode
from learner_agent.wire_fields import MAX_FILES, File, FileSetKind, is_path


class NotWhole(Exception):
    """These files cannot be stored as they are; the message says which and why."""


class TooMany(NotWhole):
    """More files than can be named in one message."""


@dataclass(frozen=True, slots=True)
class FileSet:
    """Files that are stored together: folder has them, offer is their description for the server."""

    folder: Path
    offer: Ckpt
    left_out: tuple[str, ...] = ()
    """Names of what cannot be stored: links, special files, invalid names, unreadable files."""
    places: tuple[Path, ...] = ()
    """Where each file of the offer is, if they are not all in the one folder."""

    def place(self, index: int) -> Path:
        """Where the file with this index in the offer is."""
        return self.places[index] if self.places else self.folder / self.offer.files[index][0]

    @property
    def key(self) -> str:
        return self.offer.key


def find_checkpoints(base: Path) -> list[Path]:
    """Manifests that programs have written, oldest first."""
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
        content = json.loads(read_regular(str(manifest), most=LARGE_BYTES))
        if content.get("restored"):
            return None
        files: list[File] = [(entry["path"], entry["size"], entry["sha256"]) for entry in content["files"]]
        offer = Ckpt(
            key=_key(manifest, base),
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
        place = manifest.parent / path
        if place.is_symlink() or not place.is_file() or place.stat().st_size != size:
            raise NotWhole(f"{name}/{path} is not the file of {size} bytes that the manifest lists")
    return FileSet(manifest.parent, offer)


def checked(offer: Ckpt) -> Ckpt:
    """The offer as the server will read it. Raises WireError if it would refuse it."""
    read = decode(encode(offer))
    assert isinstance(read, Ckpt)
    return read


def _key(manifest: Path, base: Path) -> str:
    """Identify one save, unlike any other of the same step. Raises OSError, and ValueError if it is too large."""
    digest = hashlib.sha256(read_regular(str(manifest), most=LARGE_BYTES)).hexdigest()
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
            if place.is_symlink() or not place.is_file() or not is_path(name):
                raise OSError(errno.EINVAL, "cannot be stored")
            files.append((name, place.stat().st_size, sha256_of(place)))
        except OSError:  # or unreadable
            left_out.append(_shown(name))
        if len(files) > MAX_FILES:
            raise TooMany(f"{folder.name} holds more than {MAX_FILES:,} files.")
    return Listing(files, left_out)


def gather(folder: Path, *, what: FileSetKind, world: int) -> FileSet | None:
    """Describe a directory as it is; None if it is empty. Raises TooMany for more files than MAX_FILES."""
    found = describe(folder, entries(folder))
    if not found.files and not found.left_out:
        return None
    try:
        offer = checked(Ckpt(key=what, what=what, world=world, files=found.files))
    except WireError as error:
        raise TooMany(f"The files of {folder.name} cannot be listed in one message: {error}.") from error
    return FileSet(folder, offer, tuple(found.left_out))


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
                if not (place.is_symlink() or place.is_file()):
                    raise OSError(errno.EINVAL, "cannot be stored")
                member = packed.gettarinfo(place, arcname=name)
                if (
                    member.islnk() and member.linkname in lost
                ):  # a hard link to a file that is not in the archive
                    member.type, member.linkname, member.size = tarfile.REGTYPE, "", place.stat().st_size
                with open(place, "rb") if member.isreg() else nullcontext() as content:
                    packed.addfile(member, content)
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


def entries(folder: Path) -> Iterable[Path]:
    """Everything below a folder but directories, and of these only links and those that cannot be read."""
    closed: list[OSError] = []
    for base, folders, names in os.walk(folder, onerror=closed.append):
        kept = [name for name in folders if not name.startswith((".saving-", ".old-"))]
        links = [name for name in kept if os.path.islink(os.path.join(base, name))]
        folders[:] = sorted(set(kept) - set(links))
        yield from (Path(base, name) for name in sorted([*names, *links]))
    yield from (Path(error.filename) for error in closed if not isinstance(error, FileNotFoundError))


def prune(base: Path, committed: Iterable[str], *, keep: int) -> None:
    """Remove this machine's copies of checkpoints that the server has, except the newest.

    By key and not by name: a step that was saved again has the name of the one that the server has.
    """
    known = set(committed)

    def is_safe(manifest: Path) -> bool:
        with suppress(OSError, ValueError):  # gone or changed since: keep it
            return _key(manifest, base) in known
        return False

    safe = [manifest for manifest in find_checkpoints(base) if is_safe(manifest)]
    for manifest in safe[: max(0, len(safe) - keep)]:
        if is_safe(manifest):  # again, because removing the one before took time
            shutil.rmtree(manifest.parent, ignore_errors=True)
