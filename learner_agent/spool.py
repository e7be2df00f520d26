"""The directory between launcher and shipper (JOB_STATE_DIR): the interface that outlives either process.

    log/<offset>.seg   what the program printed, in records; the name is the stream offset of its first byte
    log/gaps           "from to lines" per dropped segment: the tombstones, so that offsets stay dense
    log/acked          how many bytes the server has committed (shipper)
    metrics.jsonl      one object a line: {"step", "time", "total"?, name: value …} (program)
    ready | refused    code and data are there, or why they cannot be (shipper)
    phase              what the learner does now, one word (launcher)
    imported           the program imported learner_agent.training, so it looks for "halt" itself
    halt, halt_seen    the wish to halt (shipper), and that the launcher acted on it
    halt_noticed       the program asked halt_requested() and was told yes
    finished           the program's own mark: done
    exit               how the program ended (launcher); whole or not at all, and its word once its lock is free
    lock               held by the living launcher
    bell               a FIFO: "." means more bytes to ship, "!" that one of the other files changed
    checkpoints/       CHECKPOINT_DIR

Bounded: above ``cap`` bytes of log the head and the newest stay, the middle goes. Standard library only.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import stat
import struct
import time
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple, Union

MIB = 1024 * 1024
CAP_BYTES = 1024 * MIB
HEAD_BYTES = 64 * MIB
SEGMENT_BYTES = 8 * MIB
MAX_RECORD = 256 * 1024
SMALL_BYTES, LARGE_BYTES = 64 * 1024, 16 * MIB
"""What a file of the interface may hold; what one with an entry per stored file may."""

_RECORD = struct.Struct(">IQ")
"""Bytes that follow; milliseconds since the epoch at which the launcher read them."""
_SCAN_BYTES = 256 * 1024
_CLOCK_NS = 20_000_000


@dataclass(frozen=True)
class Piece:
    """Bytes of the log from offset off; reads: (bytes, milliseconds after t0) in order, sizes adding up."""

    off: int
    data: bytes
    t0: int
    reads: List[Tuple[int, int]]


@dataclass(frozen=True)
class Gap:
    """Bytes off … to of the log are not kept; lines newlines went with them."""

    off: int
    to: int
    lines: int


class Spool:
    """Names of the files and the small ones' contents. Readers answer None for what is absent or garbled.

    A program can write all of it, so nothing that lies here may raise, block or fill the memory of whoever looks.
    """

    def __init__(self, root: Union[str, Path]) -> None:
        self.root = Path(root)
        self.log_dir = self.root / "log"
        self.metrics = self.root / "metrics.jsonl"
        self.checkpoints = self.root / "checkpoints"
        # Text, not paths: both processes look here many times a second, and joining a Path costs more than the look.
        self._base = "%s%s" % (self.root, os.sep)
        self._log = "%s%s" % (self.log_dir, os.sep)
        self._bell: Optional[int] = None

    def create(self) -> None:
        """Make the directories and the bell; doing it twice, or from both processes at once, is fine."""
        for folder in (self.root, self.log_dir, self.checkpoints, self.root / "shipper"):
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except FileExistsError:
                put_aside(folder)
                folder.mkdir(exist_ok=True)
        bell = self.root / "bell"
        try:
            os.mkfifo(str(bell))
        except FileExistsError:
            if not bell.is_fifo():
                put_aside(bell)
                os.mkfifo(str(bell))

    def write(self, name: str, value: Any) -> None:
        """Replace a small JSON file as a whole, durably."""
        replace_file(self.root / name, json.dumps(value).encode())

    def read(self, name: str, *, most: int = SMALL_BYTES) -> Optional[Dict[str, Any]]:
        return read_object(self._base + name, most=most)

    def has(self, name: str) -> bool:
        return os.path.exists(self._base + name)

    def phase(self) -> str:
        try:
            return read_plain(self._base + "phase").decode(errors="replace").strip()[:40]
        except (OSError, ValueError):
            return ""

    def ring(self, *, state: bool = False) -> None:
        """Tell the shipper to look again; never blocks, and losing it costs half a second.

        state: one of the small files changed, not only the log or the metrics.
        """
        try:
            if self._bell is None:
                self._bell = self.open_bell()
            os.write(self._bell, b"!" if state else b".")
        except OSError:
            pass  # full: it is ringing already; absent: the shipper looks by itself

    def open_bell(self) -> int:
        # Read and write at once: so it opens without a partner and never reports the end of the file.
        return os.open(self._base + "bell", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)

    def hold_lock(self) -> Optional[int]:
        """Take the launcher's lock for as long as this process lives; None if another one has it."""
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        handle = os.open(self._base + "lock", flags, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(handle)
            return None
        return handle

    def is_lock(self, handle: int) -> bool:
        """Say whether this is still the lock that others see: a program may have put another in its place."""
        try:
            seen = os.lstat(self._base + "lock")
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:
            return True  # trouble of the disk's is no reason to end the program
        return os.path.samestat(seen, os.fstat(handle))

    def launcher_lives(self) -> Optional[bool]:
        """Say whether a launcher holds its lock, or None if none was here. The kernel frees it, however it ends."""
        if not self.has("lock"):
            return None
        try:
            handle = self.hold_lock()
        except OSError:
            return False  # something else in its place; the launcher notices and takes a new one
        if handle is None:
            return True
        os.close(handle)
        return False

    def acked(self) -> int:
        try:
            return _offset(read_plain(self._log + "acked").decode()) or 0
        except (OSError, ValueError):
            return 0

    def set_acked(self, offset: int) -> None:
        replace_file(self.log_dir / "acked", str(offset).encode(), durable=False)

    def log_span(self) -> Tuple[int, int]:
        """First and one past the last byte of the log that the spool still holds (records may be under way)."""
        starts = self.segments()
        return (starts[0], LogReader(self).end()) if starts else (self._gap_end(), self._gap_end())

    def _gap_end(self) -> int:
        return max([gap.to for gap in self.gaps()], default=0)

    def segments(self) -> List[int]:
        """Stream offsets at which the kept segments begin, in order."""
        try:
            names = os.listdir(self._log)
        except OSError:
            return []
        starts = [_offset(name[:-4]) for name in names if name.endswith(".seg")]
        return sorted(start for start in starts if start is not None)

    def segment_path(self, start: int) -> str:
        return "%s%020d.seg" % (self._log, start)

    def log_stamp(self) -> Optional[Tuple[int, int]]:
        """Changes whenever a segment or a gap comes. None while the directory's clock is too coarse to tell."""
        try:
            gaps = os.stat(self._log + "gaps").st_size
        except OSError:
            gaps = 0
        try:
            changed = os.stat(self._log).st_mtime_ns
        except OSError:
            return None
        return (changed, gaps) if time.time_ns() - changed > _CLOCK_NS else None

    def gaps(self) -> List[Gap]:
        try:
            lines = read_plain(self._log + "gaps", most=LARGE_BYTES).decode().split("\n")
        except (OSError, ValueError):
            return []
        gaps = []
        for line in lines[:-1]:  # what follows the last newline is being written
            words = [word for word in map(_offset, line.split(" ")) if word is not None]
            if len(words) == 3 and line.count(" ") == 2:
                gaps.append(Gap(words[0], words[1], words[2]))
        return gaps

    def drop_below(self, offset: int, *, keep: int = 0) -> None:
        """Remove segments that lie wholly below offset, newest of them last, keeping that many bytes of them."""
        starts = self.segments()
        done = [(start, end) for start, end in zip(starts, starts[1:]) if end <= offset]
        kept = sum(end - start for start, end in done)
        for start, end in done:
            if kept <= keep:
                return
            _unlink(self.segment_path(start))
            kept -= end - start


def replace_file(path: Path, content: bytes, *, durable: bool = True) -> None:
    """Write content under path so that a reader finds the old bytes or the new ones, never a part."""
    temporary = "%s.%d.tmp" % (path, os.getpid())
    if os.path.lexists(temporary):
        put_aside(temporary)
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        with open(handle, "wb") as target:
            target.write(content)
            if durable:
                target.flush()
                os.fsync(target.fileno())
        try:
            os.replace(temporary, str(path))
        except IsADirectoryError:
            put_aside(path)
            os.replace(temporary, str(path))
    except OSError:
        _unlink(temporary)  # or each try on a full disk would leave one more
        raise


def open_plain(path: str) -> int:
    """Open a file to read it. Raises OSError for a link, a FIFO, a directory, a device; never blocks."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if stat.S_ISREG(os.fstat(handle).st_mode):
        return handle
    os.close(handle)
    raise OSError(errno.EINVAL, "not a plain file", path)


def read_plain(path: str, *, most: int = SMALL_BYTES) -> bytes:
    """The whole of a plain file. Raises OSError if it is none, ValueError above most bytes."""
    with open(open_plain(path), "rb") as source:
        content = source.read(most + 1)
    if len(content) > most:
        raise ValueError("%s holds more than %d bytes" % (path, most))
    return content


def read_object(path: str, *, most: int = SMALL_BYTES) -> Optional[Dict[str, Any]]:
    """A JSON object that a program may have written, or None for anything else."""
    try:
        value = json.loads(read_plain(path, most=most).decode())
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def objects(value: Any) -> List[Dict[str, Any]]:
    """The objects in a list that a program may have written; whatever else it holds, or is, is left out."""
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def sound_number(value: Any, default: float, *, most: float = 2**53) -> float:
    """A number that a program may have written, if it is one from 0 to most, else the default."""
    sound = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= most
    return value if sound else default


def put_aside(path: Union[str, Path]) -> None:
    """Free a name that something else took: a program may have made a folder where a file belongs."""
    try:
        os.rename(path, "%s.%d.odd" % (path, time.time_ns()))
    except FileNotFoundError:
        pass


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass  # it is gone, or a program put a folder in its place


def _offset(text: str) -> Optional[int]:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 20 else None


@dataclass
class _Segment:
    start: int
    size: int = 0
    lines: int = 0


@dataclass
class LogWriter:
    """Appends what the program prints. Never blocks on the shipper and never raises: a full disk makes a gap.

    size, lines and crc describe everything printed, kept or not.
    """

    spool: Spool
    cap: int = CAP_BYTES
    head: int = HEAD_BYTES
    segment_bytes: int = SEGMENT_BYTES
    size: int = 0
    lines: int = 0
    crc: int = 0
    _closed: List[_Segment] = field(default_factory=list)
    _open: Optional[_Segment] = None
    _handle: int = -1
    _missing: Optional[Gap] = None

    def __post_init__(self) -> None:
        self.segment_bytes = max(1, min(self.segment_bytes, self.cap // 8))
        self.head = min(self.head, self.cap // 2)

    def write(self, data: bytes, at_ms: int) -> None:
        """Append one read of the pipe (at most MAX_RECORD bytes)."""
        lines = data.count(b"\n")
        if self._append(data, at_ms) and self._open is not None:
            self._open.size += len(data)
            self._open.lines += lines
        else:
            missing = self._missing or Gap(self.size, self.size, 0)
            self._missing = Gap(missing.off, self.size + len(data), missing.lines + lines)
        self.size += len(data)
        self.lines += lines
        self.crc = zlib.crc32(data, self.crc)

    def close(self) -> None:
        self._settle_missing()
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def _append(self, data: bytes, at_ms: int) -> bool:
        if not self._settle_missing() or not self._ensure_segment():
            return False
        record = _RECORD.pack(len(data), at_ms) + data
        before = os.lseek(self._handle, 0, os.SEEK_CUR)
        try:
            written = os.write(self._handle, record)
            if written == len(record):
                return True
        except OSError:
            pass
        try:  # no room: take the torn record back, the reader waits for whole ones
            os.ftruncate(self._handle, before)
            os.lseek(self._handle, before, os.SEEK_SET)
        except OSError:
            pass
        return False

    def _settle_missing(self) -> bool:
        """Write the pending tombstone down; False while there is still no room even for that."""
        if self._missing is None:
            return True
        if not self._note(self._missing):
            return False
        self._missing = None
        self._rotate()
        return True

    def _note(self, gap: Gap) -> bool:
        line = ("%d %d %d\n" % (gap.off, gap.to, gap.lines)).encode()
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            handle = os.open(str(self.spool.log_dir / "gaps"), flags, 0o644)
        except OSError:
            return False
        try:
            before = os.fstat(handle).st_size
            try:
                if os.write(handle, line) == len(line):
                    return True
            except OSError:
                pass
            os.ftruncate(handle, before)
            return False
        except OSError:
            return False
        finally:
            os.close(handle)

    def _ensure_segment(self) -> bool:
        if self._open is not None and self._open.size >= self.segment_bytes:
            self._rotate()
        if self._open is None:
            try:
                flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
                self._handle = os.open(self.spool.segment_path(self.size), flags, 0o644)
            except OSError:
                return False
            self._open = _Segment(self.size)
        return True

    def _rotate(self) -> None:
        if self._open is None:
            return
        os.close(self._handle)
        self._handle = -1
        self._closed.append(self._open)
        self._open = None
        self._keep_within_cap()

    def _keep_within_cap(self) -> None:
        """Drop closed segments between the head and the newest. The one being shipped stays, so that every gap
        begins where a frame may begin and its count of lines is exact."""
        present = set(self.spool.segments())
        self._closed = [segment for segment in self._closed if segment.start in present]
        kept = sum(segment.size for segment in self._closed)
        acked = self.spool.acked()
        for segment in list(self._closed):
            if kept + self.segment_bytes <= self.cap:
                return
            if segment.start < self.head or segment.start <= acked:
                continue
            if self._note(Gap(segment.start, segment.start + segment.size, segment.lines)):
                _unlink(self.spool.segment_path(segment.start))
                self._closed.remove(segment)
                kept -= segment.size


class LogReader:
    """Reads the log by stream offset while it grows. Sequential reads are cheap, jumps scan one segment."""

    def __init__(self, spool: Spool) -> None:
        self.spool = spool
        # The segment that nothing followed, and the stamp when it was so.
        self._idle: Tuple[int, Optional[Tuple[int, int]]] = (-1, None)
        self._start = -1  # segment that is open
        self._handle = -1
        self._file_at = 0  # position in the file of a record …
        self._off = 0  # … whose first byte has this stream offset

    def close(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)
        self._handle = self._start = -1

    def end(self) -> int:
        """One past the last byte in whole records."""
        starts = self.spool.segments()
        offset = starts[-1] if starts else 0
        while True:
            piece = self.read(offset)
            if piece is None:
                self.close()
                return offset
            offset = piece.to if isinstance(piece, Gap) else piece.off + len(piece.data)

    def read(self, offset: int, *, limit: int = MAX_RECORD, max_reads: int = 1000) -> Union[Piece, Gap, None]:
        """Give what follows offset: bytes, a gap that begins there, or None if nothing more is there yet."""
        for _ in range(3):  # a segment may be dropped between looking and opening
            if not self._seek(offset):
                return self._gap_at(offset) or self._hole_at(offset)
            before = self.spool.log_stamp()
            piece = self._take(offset, limit, max_reads)
            if piece is not None:
                return piece
            if before is not None and self._idle == (self._start, before):
                return None  # most looks at a quiet log end here
            gap = self._gap_at(offset)
            if gap is not None:
                return gap
            if not self._has_later_segment():
                self._idle = (self._start, before)
                return None
            self.close()
        return self._hole_at(offset)  # a segment that is followed by another grows no more

    def _gap_at(self, offset: int) -> Optional[Gap]:
        """Join the tombstones that follow each other from offset on, as far as nothing was kept between them."""
        end, lines = offset, 0
        kept = set(self.spool.segments())
        for gap in sorted(self.spool.gaps(), key=lambda gap: gap.off):
            if gap.off == end and gap.off not in kept:
                end, lines = gap.to, lines + gap.lines
        return Gap(offset, end, lines) if end > offset else None

    def _hole_at(self, offset: int) -> Optional[Gap]:
        """What is gone up to the next segment or tombstone, and nobody counted it."""
        known = [*self.spool.segments(), *(gap.off for gap in self.spool.gaps())]
        later = min((start for start in known if start > offset), default=offset)
        return Gap(offset, later, 0) if later > offset else None

    def _seek(self, offset: int) -> bool:
        if self._handle >= 0 and self._off <= offset:
            return True
        self.close()
        starts = [start for start in self.spool.segments() if start <= offset]
        if not starts:
            return False
        try:
            self._handle = open_plain(self.spool.segment_path(starts[-1]))
        except OSError:
            return False
        self._start, self._off, self._file_at = starts[-1], starts[-1], 0
        return True

    def _has_later_segment(self) -> bool:
        return any(start > self._start for start in self.spool.segments())

    def _take(self, offset: int, limit: int, max_reads: int) -> Optional[Piece]:
        parts: List[bytes] = []
        reads: List[Tuple[int, int]] = []
        t0, size, room = 0, 0, True
        while room:
            block = os.pread(self._handle, _SCAN_BYTES + MAX_RECORD + _RECORD.size, self._file_at)
            at = 0
            while room:
                if len(block) - at < _RECORD.size:
                    break
                length, time_ms = _RECORD.unpack_from(block, at)
                if len(block) - at - _RECORD.size < length:
                    break
                record_end = self._off + length
                if record_end > offset + size:
                    skip = offset + size - self._off
                    take = min(length - skip, limit - size)
                    body = at + _RECORD.size + skip
                    parts.append(block[body : body + take])
                    t0 = t0 or time_ms
                    _add_read(reads, take, max(0, time_ms - t0))
                    size += take
                    room = size < limit and len(reads) < max_reads
                    if take < length - skip:
                        break  # the rest of this record comes with the next read
                self._off = record_end
                at += _RECORD.size + length
            self._file_at += at
            if at == 0 or size >= limit:
                break
        return Piece(offset, b"".join(parts), t0, reads) if parts else None


def _add_read(reads: List[Tuple[int, int]], size: int, after_ms: int) -> None:
    if reads and reads[-1][1] == after_ms:
        size += reads.pop()[0]
    reads.append((size, after_ms))


def now_ms() -> int:
    """This machine's clock in milliseconds since the epoch; for people to read, never for decisions."""
    return int(time.time() * 1000)
