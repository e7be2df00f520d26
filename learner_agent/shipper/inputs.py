"""What a program needs before it can start: its code, its data, and the checkpoint to resume from."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import errno
import hashlib
import io
import json
import os
import stat
import tarfile
import zipfile
from collections import deque
from collections.abc import AsyncGenerator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from learner_agent.settings import ShipperSettings
from learner_agent.shipper.http import PIECE_BYTES, Client, Refused, Unreachable

MAX_CODE_BYTES = 1024**3
MAX_CODE_FILES = 20_000
MAX_TARGET_BYTES = 4096
BLOCK = 1024 * 1024
AT_ONCE = 3
"""Pieces of one file that a store is asked for at the same time."""
NODE_ERRORS = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.ENOMEM, errno.EMFILE, errno.ENFILE}
)
"""What is wrong with the node while the inputs are written; any other error is the inputs' own."""


class InputError(Exception):
    """The program cannot start: code is data_error (the job's inputs are wrong) or not_prepared (another attempt may
    succeed)."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Interrupted(Unreachable):
    """A download stopped where the other side was unavailable: at the file of this path, with so many bytes of it."""

    def __init__(self, message: str, path: str, place: tuple[str, int]) -> None:
        super().__init__(message)
        self.path = path
        self.place = place


class CorruptDownload(Exception):
    """The bytes received are not those that the server declared, or the server lacks them."""


async def fetch_code(client: Client, settings: ShipperSettings, code: Mapping[str, Any] | None) -> None:
    """Put the job's code into MODEL_DIR; a job without code (an image has its own) gets an empty directory.

    Raises InputError, Unreachable, Refused, CorruptDownload or OSError.
    """
    settings.model_dir.mkdir(parents=True, exist_ok=True)
    if code is None:
        return
    content = _came_along(code)
    if content is not None:
        unpack_from(io.BytesIO(content), settings.model_dir)
        return
    archive = settings.state_dir / "shipper" / "code.archive"
    await download(client, str(code["url"]), archive, size=int(code["size"]), sha256=str(code["sha256"]))
    try:
        unpack(archive, settings.model_dir)
    finally:
        archive.unlink(missing_ok=True)


def _came_along(code: Mapping[str, Any]) -> bytes | None:
    """The archive, if the description of the job has it whole; else it is downloaded."""
    try:
        content = base64.b64decode(code.get("content", ""), validate=True)
    except (ValueError, TypeError):
        return None
    return content if hashlib.sha256(content).hexdigest() == code["sha256"] else None


async def download(client: Client, path: str, target: Path, *, size: int, sha256: str) -> None:
    """Fetch a file of size bytes in pieces, continuing an earlier try.

    Hashes and writes each piece in a thread while later ones are under way: the heartbeats of a learner that fetches
    gigabytes do not wait for them. Raises CorruptDownload, Interrupted, Refused or OSError.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(target.name + ".part")
    with part.open("ab+") as sink:
        digest, have = await asyncio.to_thread(_hashed, sink)
        async with contextlib.aclosing(_pieces(client, path, have, size)) as pieces:
            try:
                async for piece in pieces:
                    await asyncio.to_thread(_keep, piece, sink, digest)
                    have += len(piece)
            except Refused as refusal:
                if refusal.code == "blob_gone":
                    raise CorruptDownload(str(refusal)) from refusal
                raise
            except Unreachable as error:
                raise Interrupted(str(error), path, (str(target), have)) from error
    if digest.hexdigest() != sha256:
        part.unlink()
        raise CorruptDownload(f"{target.name}: the {size} bytes received do not match the declared SHA-256")
    os.replace(part, target)


async def _pieces(client: Client, path: str, start: int, size: int) -> AsyncGenerator[bytes, None]:
    """The bytes from start on, in order. A store of its own gives AT_ONCE pieces at a time, the server only one: its
    web processes hold each in memory."""
    under_way: deque[asyncio.Task[bytes]] = deque()
    try:
        while start < size or under_way:
            most = AT_ONCE if client.link_of(path) else 1
            while start < size and len(under_way) < most:
                length = min(PIECE_BYTES, size - start)
                under_way.append(asyncio.create_task(client.piece(path, start, length)))
                start += length
            yield await under_way.popleft()
    finally:
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)


def _hashed(file: IO[bytes]) -> tuple[Any, int]:
    """The SHA-256 of what an earlier try has left, to be continued, and its size."""
    file.seek(0)
    digest = hashlib.sha256()
    while block := file.read(BLOCK):
        digest.update(block)
    return digest, file.tell()


def _keep(piece: bytes, sink: IO[bytes], digest: Any) -> None:
    digest.update(piece)
    sink.write(piece)


def sha256_of(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as source:
        while block := source.read(BLOCK):
            digest.update(block)
    return digest.hexdigest()


@dataclass(frozen=True)
class _Member:
    """One entry of an archive. content: None for a folder; target: where a symbolic link leads, None for others."""

    name: str
    size: int = 0
    mode: int = 0
    content: IO[bytes] | None = None
    target: str | None = None


def unpack(archive: Path, target: Path) -> None:
    """Unpack a zip or tar archive: regular files, directories, and symbolic links, all of them below target.

    Raises InputError naming the member that is anything else, or a link that leads out.
    """
    with archive.open("rb") as source:
        unpack_from(source, target)


def unpack_from(source: IO[bytes], target: Path) -> None:
    """As `unpack`, of an open file."""
    try:
        magic = source.read(4)
        source.seek(0)
        if magic.startswith(b"PK"):
            with zipfile.ZipFile(source) as packed:
                _write_members(_zip_members(packed), target)
        else:
            with tarfile.open(fileobj=source) as rolled:
                _write_members(_tar_members(rolled), target)
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, RuntimeError) as error:
        raise InputError("data_error", f"The code archive cannot be read: {error}") from error


def _zip_members(packed: zipfile.ZipFile) -> Iterator[_Member]:
    for member in packed.infolist():
        mode = member.external_attr >> 16
        if stat.S_ISLNK(mode):
            with packed.open(member) as content:
                yield _Member(
                    member.filename, target=content.read(MAX_TARGET_BYTES).decode("utf-8", "replace")
                )
            continue
        if mode and stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFDIR):
            raise _not_regular(member.filename)
        stream = None if member.is_dir() else packed.open(member)
        yield _Member(member.filename, member.file_size, mode & 0o777, stream)


def _tar_members(rolled: tarfile.TarFile) -> Iterator[_Member]:
    for member in rolled:
        if member.issym():
            yield _Member(member.name, target=member.linkname)
            continue
        if not (member.isreg() or member.isdir()):
            raise _not_regular(member.name)
        stream = None if member.isdir() else rolled.extractfile(member)
        yield _Member(member.name, member.size, member.mode & 0o777, stream)


def _not_regular(name: str) -> InputError:
    return InputError("data_error", f"The code archive holds {name[:200]!r}, which is not a regular file")


def _write_members(members: Iterator[_Member], target: Path) -> None:
    total, links = 0, []
    for count, member in enumerate(members):
        total += member.size
        if count >= MAX_CODE_FILES or total > MAX_CODE_BYTES:
            raise InputError(
                "data_error",
                f"The code archive has more than {MAX_CODE_FILES:,} files or unpacks to more than 1 GiB",
            )
        place = below(target, member.name, "The code archive")
        if place.is_symlink():  # of an earlier try; nothing is written through a link
            place.unlink()
        if member.target is not None:
            links.append((place, member.target))
            continue
        if member.content is None:
            place.mkdir(parents=True, exist_ok=True)
            continue
        place.parent.mkdir(parents=True, exist_ok=True)
        with member.content as content, place.open("wb") as sink:
            _copy(content, sink, member.size)
        place.chmod(0o644 | (member.mode & 0o111))
    _make_links(links, target)


def _make_links(links: list[tuple[Path, str]], root: Path) -> None:
    """Make the links after all files, then see where they lead, through each other: none may stay if one leads out."""
    made: list[Path] = []
    try:
        for place, leads_to in links:
            place.parent.mkdir(parents=True, exist_ok=True)
            try:
                place.symlink_to(leads_to)
            except (FileExistsError, ValueError) as error:
                raise InputError(
                    "data_error", f"The code archive: {place.name!r} cannot be a link"
                ) from error
            made.append(place)
        top = os.path.realpath(root)
        for place in made:
            if os.path.commonpath([top, os.path.realpath(place)]) != top:
                raise InputError("data_error", f"The code archive: the link {place.name!r} leads out of it")
    except InputError:
        for place in made:
            place.unlink(missing_ok=True)
        raise


def _copy(stream: IO[bytes], sink: IO[bytes], size: int) -> None:
    """Copy at most as many bytes as the archive's index declares, so that a zip bomb stays as small as it claims."""
    while size > 0:
        block = stream.read(min(1024 * 1024, size))
        if not block:
            return
        sink.write(block)
        size -= len(block)


def below(root: Path, name: str, what: str) -> Path:
    """The place of a name below root. Raises InputError, which begins with what, for one that leads elsewhere."""
    steps = [step for step in name.replace("\\", "/").split("/") if step not in ("", ".")]
    if name.startswith(("/", "\\")) or ".." in steps or (not steps and name.strip("./")):
        raise InputError("data_error", f"{what}: {name[:200]!r} is outside of its folder")
    place = root.joinpath(*steps)
    for parent in [*place.parents][: len(steps)]:
        if parent != root and parent.is_symlink():
            raise InputError("data_error", f"{what}: {parent.name!r} is a link")
    return place


def link_data(settings: ShipperSettings, mounts: list[Mapping[str, str]]) -> None:
    """Link each data set as $DATA_DIR/<name> to <path> below the installation's data root.

    Raises InputError (data_error) naming the data set and what is wrong with it.
    """
    settings.data_dir.mkdir(parents=True, exist_ok=True)
    for mount in mounts:
        name, path = str(mount.get("name", "")), str(mount.get("path", ""))
        if settings.data_root is None:
            raise InputError("data_error", f"data {name!r}: this installation has no data root")
        root = settings.data_root.resolve()
        source = (root / path.lstrip("/")).resolve()
        if source != root and root not in source.parents:
            raise InputError("data_error", f"data {name!r}: {path!r} is outside the installation's data root")
        if not source.exists():
            raise InputError("data_error", f"data {name!r}: {path!r} does not exist below the data root")
        link = below(settings.data_dir, name, "The job's data")
        link.parent.mkdir(parents=True, exist_ok=True)
        if link.is_symlink():
            link.unlink()
        if not link.exists():
            link.symlink_to(source)


async def restore(
    client: Client, settings: ShipperSettings, saved: Mapping[str, Any] | None, *, world: int
) -> str | None:
    """Restore a checkpoint and return the path for RESUME_FROM; None if there is none to resume from.

    An implicit one is restored to its place in CHECKPOINT_DIR; one with a manifest to step-<n> (for parts:
    step-<n>/part-<k>, and RESUME_FROM is this learner's own part; where the gang has another number of learners (world)
    than the checkpoint has parts, it is step-<n> with all of them). Raises CorruptDownload, Unreachable or Refused.
    """
    if saved is None:
        return None
    base = settings.checkpoint_dir
    base.mkdir(parents=True, exist_ok=True)
    implicit, parts = bool(saved["implicit"]), int(saved["parts"])
    top = base if implicit else base / f"step-{saved['step']}"
    places = set()
    for entry in saved["files"]:
        place = top / f"part-{entry['part']}" if parts > 1 else top
        places.add(place)
        target = below(place, str(entry["path"]), "The checkpoint")
        size, sha256 = int(entry["size"]), str(entry["sha256"])
        if not (target.exists() and target.stat().st_size == size and sha256_of(target) == sha256):
            await download(client, str(entry["url"]), target, size=size, sha256=sha256)
    if not implicit:
        for place in places:  # marked as restored, so that it is not uploaded again
            note = {"step": saved["step"], "restored": True, "of": parts}
            (place / "manifest.json").write_text(json.dumps(note))
    own = top / f"part-{settings.rank}"
    return str(own if parts == world > 1 and own in places else top)
