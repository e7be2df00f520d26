"""Check an uploaded archive while reading it, and pack inline files into the same form.

Nothing is unpacked to disk here: the shipper does that on the learner's node. Accepted are regular files and folders
with safe relative names, and symbolic links that stay inside; complete, unencrypted, and within limits that are
enforced while decompressing, not by what the archive declares.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import IO

from jobs.archive_links import Links
from jobs.humanize import filesize
from jobs.spec.paths import folded, path_fault
from jobs.spec.problems import printable

ZIP = "zip"
TAR_GZ = "tar.gz"
MAX_FAULTS = 50
NOT_PLAIN = "is a hard link, a device or a sparse file; pack regular files and symbolic links only"

_CHUNK = 64 * 1024
_ZIP_METHODS = frozenset({zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED})
_END_OF_ZIP = struct.Struct("<4s4H2LH")
_MAX_TAR_HEADER = 1024 * 1024
_MAX_TARGET_BYTES = 4096  # of a link; Linux itself has no longer path


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of an archive; ratio is unpacked to packed bytes, checked above ratio_free_bytes."""

    packed_bytes: int = 256 * 1024 * 1024
    unpacked_bytes: int = 1024 * 1024 * 1024
    files: int = 10_000
    ratio: int = 100
    ratio_free_bytes: int = 16 * 1024 * 1024

    def unpacked_from(self, packed_bytes: int) -> int:
        """How many bytes an archive of this size may unpack to."""
        return min(self.unpacked_bytes, max(self.ratio_free_bytes, self.ratio * packed_bytes))


DEFAULT_LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class Archive:
    """A valid archive: kind ``zip`` or ``tar.gz``, number of files, their bytes unpacked, its own size and SHA-256."""

    kind: str
    files: int
    bytes: int
    packed_bytes: int
    sha256: str


class ArchiveError(Exception):
    """The archive is refused. code is one of ``archive_*``; entry names the file inside, if it is about one.

    others: further errors of the same archive.
    """

    def __init__(self, code: str, message: str, entry: str | None = None) -> None:
        self.code = code
        self.message = message
        self.entry = None if entry is None else printable(entry)
        self.others: tuple[ArchiveError, ...] = ()
        super().__init__(f"{self.entry}: {message}" if entry else message)


def inspect(stream: IO[bytes], *, limits: Limits = DEFAULT_LIMITS) -> Archive:
    """Read a whole archive from a seekable stream and describe it.

    Raises ArchiveError with the faults of all entries, up to MAX_FAULTS. Memory stays small and time is bounded by
    the limits, whatever the bytes are; the stream is left at its start.
    """
    packed_bytes, sha256 = _digest(stream, limits)
    kind = _kind(stream)
    tally = _Tally(limits, limits.unpacked_from(packed_bytes))
    try:
        _look_through(stream, kind, tally)
    except ArchiveError as error:  # nothing after this one can be read
        tally.faults.append(error)
    tally.check_links()
    if not tally.files and not tally.faults:  # folders alone are not a program
        raise ArchiveError("archive_empty", "the archive holds no file")
    if tally.faults:
        first, *others = tally.faults
        first.others = tuple(others)
        raise first
    stream.seek(0)
    return Archive(kind, tally.files, tally.bytes, packed_bytes, sha256)


def _look_through(stream: IO[bytes], kind: str, tally: _Tally) -> None:
    """Read everything into the tally, which records faulty entries. Raises ArchiveError where reading must stop."""
    try:
        entries = _zip_entries(stream, tally) if kind == ZIP else _tar_entries(stream, tally)
        for _ in entries:
            if len(tally.faults) >= MAX_FAULTS:
                return
    except (zipfile.BadZipFile, tarfile.TarError, gzip.BadGzipFile, zlib.error) as error:
        raise ArchiveError("archive_corrupt", f"the archive is damaged: {printable(str(error))}") from error
    except (EOFError, struct.error) as error:
        raise ArchiveError("archive_corrupt", "the archive ends too early: upload it again") from error
    except (RecursionError, NotImplementedError, ValueError, UnicodeError, OverflowError) as error:
        raise ArchiveError("archive_corrupt", "the archive's headers are inconsistent") from error


def read_file(stream: IO[bytes], path: str, most_bytes: int) -> bytes | None:
    """The first most_bytes of one file of a valid archive; None if it holds no such file, or a link in its place."""
    if _kind(stream) == ZIP:
        with zipfile.ZipFile(stream) as packed:
            for entry in packed.infolist():
                if (
                    entry.filename.removeprefix("./") == path
                    and not entry.is_dir()
                    and not _is_zip_link(entry)
                ):
                    with packed.open(entry) as content:
                        return content.read(most_bytes)
        return None
    with tarfile.open(fileobj=stream, mode="r:gz") as rolled:
        for member in rolled:
            if member.name.removeprefix("./") == path and member.isreg():
                found = rolled.extractfile(member)
                return found.read(most_bytes) if found is not None else None
    return None


def pack(files: Iterable[tuple[str, str]]) -> bytes:
    """Return inline files (path, text) as a tar.gz: the same bytes for the same files in any order."""
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path, text in sorted(files):
            content = text.encode("utf-8")
            entry = tarfile.TarInfo(path)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return gzip.compress(plain.getvalue(), compresslevel=6, mtime=0)


def open_file(stream: IO[bytes], path: str) -> tuple[int, IO[bytes]] | None:
    """Size and content of one regular file of an archive that `inspect` accepted; None if it has none of this path.

    The content is seekable and needs the stream open. Time is that of unpacking what precedes the file.
    """
    if _kind(stream) == ZIP:
        packed = zipfile.ZipFile(stream)
        for entry in packed.infolist():
            if entry.filename.removeprefix("./") == path and not entry.is_dir():
                return entry.file_size, packed.open(entry)
        return None
    rolled = tarfile.open(fileobj=stream, mode="r:gz")  # noqa: SIM115 - its content outlives this call
    for member in rolled:
        if member.name.removeprefix("./") == path and member.isreg():
            content = rolled.extractfile(member)
            return (member.size, content) if content is not None else None
    return None


def kind_of(stream: IO[bytes]) -> str:
    """``zip`` or ``tar.gz``. Raises ArchiveError for anything else."""
    return _kind(stream)


class _Tally:
    """Counts what was actually read, records entries that are refused, and enforces the limits."""

    def __init__(self, limits: Limits, unpacked_limit: int) -> None:
        self.files = 0
        self.bytes = 0
        self.faults: list[ArchiveError] = []
        self._limits = limits
        self._unpacked_limit = unpacked_limit
        self._entries = 0
        self._taken: dict[str, tuple[str, bool]] = {}
        self._links = Links()

    def link(self, name: str, target: str) -> None:
        """Note a symbolic link; where it leads is checked once all are known."""
        if self.name(name, is_folder=False):
            self.files -= 1
            self._links.add(name, target)

    def check_links(self) -> None:
        """Refuse the links that lead out of the archive."""
        for name, message in self._links.faults():
            if len(self.faults) >= MAX_FAULTS:
                return
            self.refuse("archive_link", message, name)

    def name(self, name: str, *, is_folder: bool) -> bool:
        """Check an entry's name; an unsafe or clashing one is recorded: False. Raises ArchiveError for too many."""
        self._entries += 1
        if self._entries > self._limits.files:
            raise ArchiveError("archive_too_many_files", f"more than {self._limits.files:,} entries")
        bare = name.removeprefix("./").rstrip("/")
        if is_folder and bare in ("", "."):
            return True
        if fault := path_fault(bare):
            return self.refuse("archive_unsafe_path", f"the name {fault}", name)
        if clash := self._claim(bare, is_folder):
            if clash in self._links and clash != bare:
                message = f"is inside {printable(clash)}, which is a link; pack it in a folder"
                return self.refuse("archive_link", message, name)
            return self.refuse("archive_name_clash", f"clashes with {printable(clash)}", name)
        self.files += not is_folder
        return True

    def refuse(self, code: str, message: str, entry: str) -> bool:
        """Record what is wrong with an entry; returns False, so it is not read."""
        self.faults.append(ArchiveError(code, message, entry))
        return False

    def add(self, count: int) -> None:
        """Count unpacked bytes. Raises ArchiveError beyond the limit."""
        self.bytes += count
        if self.bytes > self._unpacked_limit:
            raise self.too_large()

    def too_large(self) -> ArchiveError:
        limit = filesize(self._unpacked_limit)
        message = f"the archive unpacks to more than {limit}, the limit for an archive of this size"
        return ArchiveError("archive_too_large", message)

    @property
    def left(self) -> int:
        return self._unpacked_limit - self.bytes

    def _claim(self, name: str, is_folder: bool) -> str | None:
        """The clashing name, if there is one: the same, in another case, or a file used as a folder."""
        parts = name.split("/")
        places = [("/".join(parts[: count + 1]), True) for count in range(len(parts) - 1)]
        for place, folder in [*places, (name, is_folder)]:
            known = self._taken.setdefault(folded(place), (place, folder))
            if known != (place, folder) or (not folder and self._seen_file(place)):
                return known[0]
        return None

    def _seen_file(self, place: str) -> bool:
        mark = "\x00" + place
        seen = mark in self._taken
        self._taken[mark] = (place, False)
        return seen


def _digest(stream: IO[bytes], limits: Limits) -> tuple[int, str]:
    digest, size = hashlib.sha256(), 0
    stream.seek(0)
    while chunk := stream.read(_CHUNK):
        size += len(chunk)
        if size > limits.packed_bytes:
            raise ArchiveError(
                "archive_too_large", f"the archive is larger than {filesize(limits.packed_bytes)}"
            )
        digest.update(chunk)
    return size, digest.hexdigest()


def _kind(stream: IO[bytes]) -> str:
    stream.seek(0)
    magic = stream.read(4)
    stream.seek(0)
    if magic in (b"PK\x03\x04", b"PK\x05\x06"):
        return ZIP
    if magic[:2] == b"\x1f\x8b":
        return TAR_GZ
    raise ArchiveError("archive_unknown", "this is neither a zip nor a tar.gz archive")


def _zip_entries(stream: IO[bytes], tally: _Tally) -> Iterator[str]:
    _refuse_large_directory(stream)
    with zipfile.ZipFile(stream) as archive:
        for entry in archive.infolist():
            if _is_zip_link(entry):
                _note_zip_link(archive, entry, tally)
            elif _zip_entry_is_plain(entry, tally):
                if entry.file_size > tally.left:
                    raise tally.too_large()
                with archive.open(entry) as content:
                    _drain(content.read, tally)
            yield entry.orig_filename


def _is_zip_link(entry: zipfile.ZipInfo) -> bool:
    return stat.S_ISLNK(entry.external_attr >> 16) and not entry.flag_bits & 0x1


def _note_zip_link(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, tally: _Tally) -> None:
    """Read where a link leads: a zip stores it as the link's content."""
    name = entry.orig_filename
    if entry.file_size > _MAX_TARGET_BYTES or entry.is_dir() or entry.compress_type not in _ZIP_METHODS:
        tally.refuse("archive_link", "is a link with an unusable target", name)
        return
    with archive.open(entry) as content:
        target = content.read(_MAX_TARGET_BYTES + 1)
    tally.add(len(target))
    tally.link(name, target.decode("utf-8", "replace"))


def _zip_entry_is_plain(entry: zipfile.ZipInfo, tally: _Tally) -> bool:
    name, mode = entry.orig_filename, entry.external_attr >> 16
    if entry.flag_bits & 0x1:
        return tally.refuse("archive_encrypted", "is encrypted: pack it without a password", name)
    if mode and stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFDIR):
        return tally.refuse("archive_link", NOT_PLAIN, name)
    if entry.compress_type not in _ZIP_METHODS:
        return tally.refuse("archive_unknown", "is compressed by a method other than deflate", name)
    return tally.name(name, is_folder=entry.is_dir())


def _refuse_large_directory(stream: IO[bytes]) -> None:
    """Check the end record first: reading a directory of a million names is slow before any can be refused."""
    size = stream.seek(0, io.SEEK_END)
    stream.seek(max(0, size - _END_OF_ZIP.size - 65_535))
    tail = stream.read()
    found = tail.rfind(b"PK\x05\x06")
    if found < 0 or len(tail) - found < _END_OF_ZIP.size:
        raise ArchiveError("archive_corrupt", "the archive has no directory: it is truncated or damaged")
    _, _, _, _, entries, directory_bytes, start, _ = _END_OF_ZIP.unpack_from(tail, found)
    if entries == 0xFFFF or 0xFFFFFFFF in (directory_bytes, start):
        raise ArchiveError(
            "archive_too_many_files", "ZIP64 archives are not supported; pack fewer or smaller files"
        )
    if directory_bytes > 8 * 1024 * 1024:
        raise ArchiveError("archive_too_many_files", "the archive's directory is larger than 8 MiB")
    stream.seek(0)


def _tar_entries(stream: IO[bytes], tally: _Tally) -> Iterator[str]:
    with gzip.GzipFile(fileobj=stream) as plain:
        guarded = _GuardedTar(plain, tally)
        with tarfile.open(fileobj=guarded, mode="r:", errorlevel=2) as archive:  # type: ignore[call-overload]  # it only reads
            while (entry := archive.next()) is not None:
                if entry.issym():
                    tally.link(entry.name, entry.linkname)
                elif _tar_entry_is_plain(entry, tally):
                    if entry.size > tally.left:
                        raise tally.too_large()
                    content = archive.extractfile(entry)
                    if content is not None:
                        _drain(content.read, tally)
                archive.members = []  # the tally has the names
                yield entry.name
        if any(guarded.last):  # tarfile takes a damaged header for the end; the real end is zeros
            raise ArchiveError("archive_corrupt", "the archive is damaged in the middle")
        while guarded.read(_CHUNK):
            pass  # gzip's checksum is at the very end


def _tar_entry_is_plain(entry: tarfile.TarInfo, tally: _Tally) -> bool:
    if not (entry.isreg() or entry.isdir()) or entry.issparse():
        return tally.refuse("archive_link", NOT_PLAIN, entry.name)
    return tally.name(entry.name, is_folder=entry.isdir())


class _GuardedTar:
    """The uncompressed tar for tarfile, which refuses giant headers and stops at the limit."""

    def __init__(self, plain: gzip.GzipFile, tally: _Tally) -> None:
        self._plain = plain
        self._tally = tally
        self.most = 2 * tally.left + 64 * 1024 * 1024  # headers and padding besides the contents
        self.name = None
        self.last = b""

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= _MAX_TAR_HEADER:
            raise ArchiveError("archive_corrupt", "the archive has a header of more than 1 MiB")
        self._refuse_beyond(self._plain.tell() + size)
        self.last = self._plain.read(size)
        return self.last

    def seek(self, position: int) -> int:
        self._refuse_beyond(position)
        return self._plain.seek(position)

    def tell(self) -> int:
        return self._plain.tell()

    def _refuse_beyond(self, position: int) -> None:
        if position > self.most:
            raise self._tally.too_large()


def _drain(read: Callable[[int], bytes], tally: _Tally) -> None:
    while chunk := read(_CHUNK):
        tally.add(len(chunk))
