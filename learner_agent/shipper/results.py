"""A job's results: RESULT_DIR, and files of the code folder that its spec keeps. Collected at an attempt's end, however
it ends, and put back before the next one begins.

A file of RESULT_DIR has precedence over a kept one of the same path. Links are never followed.
"""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Any

from msgspec import structs

from learner_agent.settings import ShipperSettings
from learner_agent.shipper.http import Client
from learner_agent.shipper.inputs import NODE_ERRORS, CorruptDownload, InputError, below, download, sha256_of
from learner_agent.shipper.outputs import (
    FileSet,
    LinkedFolder,
    Listing,
    TooMany,
    checked,
    describe,
    entries,
    pack,
)
from learner_agent.wire import Ckpt, WireError
from learner_agent.wire_fields import MAX_FILES, PATH_CHARS, File

EVENT_FILE = "events.out.tfevents."
"""How names of TensorBoard's files begin: kept wherever they are in the code folder."""
MAX_SEARCHED = 200_000
"""Files of the code folder that are compared with the globs; a program may have unpacked a data set there."""
PACKED = "packed-"
SHOWN = 5
TRIES = 3


@dataclass(slots=True)
class Found:
    """What is to be stored; None if there is nothing. notes: code and sentence of what people should know about it."""

    files: FileSet | None = None
    notes: list[tuple[str, str]] = field(default_factory=list)


@dataclass(slots=True)
class _Group:
    """Files of one folder, to be listed one by one, or as an archive of this name if that is too much."""

    folder: Path
    places: list[Path]
    archive_name: str
    listing: Listing | None = None
    archive: Path | None = None

    @property
    def files(self) -> list[File]:
        return self.listing.files if self.listing else []

    @property
    def root(self) -> Path:
        return self.archive.parent if self.archive else self.folder

    def place(self, path: str) -> Path:
        return self.archive or self.folder / path


def collect(
    result_dir: Path,
    code_dir: Path,
    *,
    keep: Sequence[str],
    into: Path,
    world: int,
    stored_before: bool,
    unrestored: Sequence[str] = (),
) -> Found:
    """Describe all results. Too many to list become archives, made below into.

    Raises OSError, TooMany, or LinkedFolder if RESULT_DIR is a link.

    stored_before: the job has results, so that an empty RESULT_DIR means that the program removed them. One that is
    missing means nothing. unrestored: paths of stored results that are missing only because they were not restored.
    """
    found = Found()
    own = _Group(result_dir, list(entries(result_dir)), "results.tar")
    kept = _Group(code_dir, list(_kept(code_dir, keep, found)), "kept.tar")
    _drop_clashes(own, kept, found)
    _remove_archives(into)
    empty = Ckpt("results", what="results", world=world, unrestored=list(unrestored)[:MAX_FILES])
    offer = _listed(own, kept, into, empty, found)
    left_out = []
    for group in (own, kept):
        if group.listing is not None and group.listing.left_out:
            left_out += group.listing.left_out
            message = left_out_message(group.folder.name, group.listing.left_out)
            found.notes.append(("results_left_out", message))
    if offer.files or (stored_before and result_dir.is_dir() and not left_out):
        places = tuple((group.root, group.place(path)) for group in (own, kept) for path, _, _ in group.files)
        found.files = FileSet(result_dir, result_dir, offer, tuple(left_out), places)
    return found


def is_kept(path: str, keep: Sequence[str]) -> bool:
    """Whether a glob names this file of the code folder, or a folder above it, or it is one of TensorBoard's.

    ``*``, ``?`` and ``[…]`` stay within one part of the path; ``**`` is any number of parts.
    """
    parts = path.split("/")
    return parts[-1].startswith(EVENT_FILE) or any(_matches(parts, glob.split("/")) for glob in keep)


def _matches(parts: Sequence[str], glob: Sequence[str]) -> bool:
    """Follow all ways to match at once, so that no glob takes more than parts × glob steps."""
    at = _skipping({0}, glob)
    for part in parts:
        stays = {step for step in at if glob[step] == "**"}
        at = _skipping(stays | {step + 1 for step in at if fnmatchcase(part, glob[step])}, glob)
        if len(glob) in at:
            return True
    return False


def _skipping(at: set[int], glob: Sequence[str]) -> set[int]:
    """The steps of a glob, and those after each ``**``, which may be no part at all."""
    for step in sorted(at):
        while step < len(glob) and glob[step] == "**":
            step += 1
            at.add(step)
    return at


def _kept(code_dir: Path, keep: Sequence[str], found: Found) -> Iterator[Path]:
    searched = 0
    try:
        for place in islice(entries(code_dir), MAX_SEARCHED):
            searched += 1
            if is_kept(place.relative_to(code_dir).as_posix(), keep):
                yield place
    except LinkedFolder as error:
        if keep:
            raise
        found.notes.append(("results_left_out", str(error)))
    if searched == MAX_SEARCHED:
        message = f"Only {MAX_SEARCHED:,} files of the code folder were compared with keep."
        found.notes.append(("keep_not_complete", message))


def _drop_clashes(own: _Group, kept: _Group, found: Found) -> None:
    """Leave out kept files whose path RESULT_DIR has, as a file or a folder, or has a file above."""
    files = {place.relative_to(own.folder) for place in own.places}
    folders = {parent for path in files for parent in path.parents}
    clashes = [
        path
        for path in (place.relative_to(kept.folder) for place in kept.places)
        if path in files or path in folders or not files.isdisjoint(path.parents)
    ]
    if clashes:
        kept.places = [place for place in kept.places if place.relative_to(kept.folder) not in set(clashes)]
        message = f"Not kept from the code folder, because RESULT_DIR has the same path: {_names(clashes)}."
        found.notes.append(("keep_clash", message))


def _listed(own: _Group, kept: _Group, into: Path, empty: Ckpt, found: Found) -> Ckpt:
    """The offer: each file by itself as far as one message can list them, otherwise the larger group as an archive."""
    for group in (own, kept):
        try:
            group.listing = describe(group.folder, group.places)
        except TooMany as error:
            _archive(group, into, str(error), found)
    while True:
        try:
            return _offer(own, kept, empty)
        except TooMany as error:
            unpacked = [group for group in (own, kept) if group.archive is None]
            if not unpacked:
                raise
            _archive(max(unpacked, key=lambda group: len(group.places)), into, str(error), found)


def _offer(own: _Group, kept: _Group, empty: Ckpt) -> Ckpt:
    files = own.files + kept.files
    if len(files) > MAX_FILES:
        raise TooMany(f"RESULT_DIR and keep hold more than {MAX_FILES:,} files.")
    archives = [at for at, group in ((0, own), (len(own.files), kept)) if group.archive is not None]
    try:
        return checked(structs.replace(empty, files=files, in_code_from=len(own.files), archives=archives))
    except WireError as error:
        raise TooMany(f"The results cannot be listed in one message: {error}.") from error


def _archive(group: _Group, into: Path, why: str, found: Found) -> None:
    """Make the group one archive, in a fresh directory below into. Raises OSError."""
    home = Path(tempfile.mkdtemp(prefix=PACKED, dir=into))
    archive = home / group.archive_name
    try:
        left_out = pack(group.folder, group.places, archive)
        group.listing = Listing([(archive.name, archive.stat().st_size, sha256_of(archive))], left_out)
    except OSError:
        shutil.rmtree(home, ignore_errors=True)
        raise
    group.archive = archive
    found.notes.append(("results_packed", f"{why} They are stored as one archive, {archive.name}."))


def _remove_archives(into: Path) -> None:
    """Remove what a crash during an earlier upload left."""
    for stale in into.glob(f"{PACKED}*"):
        shutil.rmtree(stale, ignore_errors=True)


def left_out_message(folder: str, names: Sequence[str]) -> str:
    """What people read about files that cannot be stored."""
    return (
        f"Not stored from {folder}: {_names(names)}. Only readable regular files are stored, with UTF-8 names without"
        f" backslashes of at most {PATH_CHARS} characters."
    )


def _names(names: Sequence[object]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(map(str, names[:SHOWN]))[:600] + more


# --- restoring


async def restore(client: Client, settings: ShipperSettings, files: Sequence[Mapping[str, Any]]) -> list[str]:
    """Put the job's results back where they were: RESULT_DIR, or the code folder. Files that are there are not fetched.

    Returns the paths of those that cannot be restored: the job goes on without them. Raises Unreachable, Refused, or
    OSError if the node is at fault.
    """
    # Archives first: one that could not be restored for an attempt is older than the files stored beside it since.
    ordered = sorted(files, key=lambda file: not file.get("archive"))
    return [str(file["path"]) for file in ordered if not await _restore_file(client, settings, file)]


async def _restore_file(client: Client, settings: ShipperSettings, file: Mapping[str, Any]) -> bool:
    """Fetch one file apart from the others, whose names may be anything, and put it in its place."""
    folder = settings.model_dir if file.get("in_code") else settings.result_dir
    size, sha256 = int(file["size"]), str(file["sha256"])
    fetched = settings.state_dir / "shipper" / f"result-{sha256}"
    try:
        place = None if file.get("archive") else below(folder, str(file["path"]), "The job's results")
        if place is not None and _is_there(place, size, sha256):
            return True
        for _ in range(TRIES):
            with suppress(CorruptDownload):
                await download(client, str(file["url"]), fetched, size=size, sha256=sha256)
                await asyncio.to_thread(_put, fetched, place, folder)
                return True
    except (InputError, tarfile.TarError):
        pass  # it would lie elsewhere, or is no archive
    except OSError as error:
        if error.errno in NODE_ERRORS:
            raise
        # such as a folder in the file's place
    finally:
        fetched.unlink(missing_ok=True)
    return False


def _put(fetched: Path, place: Path | None, folder: Path) -> None:
    """Move a file to its place, or unpack an archive below folder. Raises OSError or tarfile.TarError."""
    if place is None:
        _unpack(fetched, folder)
        return
    place.parent.mkdir(parents=True, exist_ok=True)
    if place.is_dir():  # move would put the file into it
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(place))
    shutil.move(fetched, place)


def _is_there(place: Path, size: int, sha256: str) -> bool:
    return place.is_file() and place.stat().st_size == size and sha256_of(place) == sha256


def _unpack(archive: Path, folder: Path) -> None:
    """Write the files of an archive of results below folder; links in it are left out."""
    with tarfile.open(archive) as packed:
        for member in packed:
            content = packed.extractfile(member) if member.isreg() or member.islnk() else None
            if content is None:
                continue
            with suppress(InputError):
                place = below(folder, PurePosixPath(member.name).as_posix(), "The job's results")
                place.parent.mkdir(parents=True, exist_ok=True)
                with content, place.open("wb") as sink:
                    shutil.copyfileobj(content, sink, 1024 * 1024)
