"""The log in the spool: segments with records of what the program printed. The launcher writes, the shipper reads.

Bounded: above ``cap`` bytes the head and the newest bytes are kept, the middle is dropped and leaves a gap.
Standard library only, Python 3.8 or newer.
"""

from __future__ import annotations

import os
import struct
import zlib
from dataclasses import dataclass, field
from typing import List, Optional, Tuple, Union

from learner_agent.settings import CAP_BYTES
from learner_agent.spool import Gap, Spool
from learner_agent.untrusted_files import open_regular, unlink

MIB = 1024 * 1024
HEAD_BYTES = 64 * MIB
SEGMENT_BYTES = 8 * MIB
MAX_RECORD = 256 * 1024

_RECORD = struct.Struct(">IQ")
"""Header of a record: bytes that follow, and when the launcher read them in milliseconds since the epoch."""
_SCAN_BYTES = 256 * 1024


@dataclass(frozen=True)
class Piece:
    """Bytes of the log from offset off; reads: (bytes, milliseconds after t0) in order, sizes adding up."""

    off: int
    data: bytes
    t0: int
    reads: List[Tuple[int, int]]


def log_span(spool: Spool) -> Tuple[int, int]:
    """Offsets of the first byte of the log that the spool still holds, and one past the last."""
    starts = spool.segments()
    if starts:
        return starts[0], LogReader(spool).end()
    gap_end = max([gap.to for gap in spool.gaps()], default=0)
    return gap_end, gap_end


@dataclass
class _Segment:
    start: int
    size: int = 0
    lines: int = 0


@dataclass
class LogWriter:
    """Appends what the program prints. Never blocks on the shipper and never raises: a full disk causes a gap.

    size (bytes), lines and crc are of everything printed, kept or not.
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
        try:  # no room: remove the partial record, the reader waits for whole ones
            os.ftruncate(self._handle, before)
            os.lseek(self._handle, before, os.SEEK_SET)
        except OSError:
            pass
        return False

    def _settle_missing(self) -> bool:
        """Write the pending gap; False while there is no room even for that."""
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
        """Drop closed segments between the head and the newest. The one being shipped is kept, so that every gap
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
                unlink(self.spool.segment_path(segment.start))
                self._closed.remove(segment)
                kept -= segment.size


class LogReader:
    """Reads the log by stream offset while it grows. Sequential reads are cheap, jumps scan one segment."""

    def __init__(self, spool: Spool) -> None:
        self.spool = spool
        # The last segment that was read to its end, and the stamp at that time.
        self._idle: Tuple[int, Optional[Tuple[int, int]]] = (-1, None)
        self._start = -1  # the open segment
        self._handle = -1
        self._file_at = 0  # position in the file of a record …
        self._off = 0  # … whose first byte has this stream offset

    @property
    def segment(self) -> int:
        """Where the segment begins from which was read last; -1 before that."""
        return self._start

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
        """Return what follows offset: bytes, a gap that begins there, or None if there is nothing more yet."""
        for _ in range(3):  # a segment may be dropped between listing and opening
            if not self._seek(offset):
                return self._gap_at(offset) or self._hole_at(offset)
            before = self.spool.log_stamp()
            piece = self._take(offset, limit, max_reads)
            if piece is not None:
                return piece
            if before is not None and self._idle == (self._start, before):
                return None  # most reads of a quiet log end here
            gap = self._gap_at(offset)
            if gap is not None:
                return gap
            if not self._has_later_segment():
                self._idle = (self._start, before)
                return None
            self.close()
        return self._hole_at(offset)  # a segment that is followed by another does not grow any more

    def _gap_at(self, offset: int) -> Optional[Gap]:
        """Join the gaps that follow each other from offset on, as far as nothing was kept between them."""
        end, lines = offset, 0
        kept = set(self.spool.segments())
        for gap in sorted(self.spool.gaps(), key=lambda gap: gap.off):
            if gap.off == end and gap.off not in kept:
                end, lines = gap.to, lines + gap.lines
        return Gap(offset, end, lines) if end > offset else None

    def _hole_at(self, offset: int) -> Optional[Gap]:
        """What is missing up to the next segment or gap without a record of it; its lines are not counted."""
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
            self._handle = open_regular(self.spool.segment_path(starts[-1]))
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
