"""Which bytes of the log may be sent now: the window, what is unacknowledged, and the end of the stream. No socket."""

from __future__ import annotations

import contextlib
import time
import zlib
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from msgspec.structs import replace

from learner_agent.log_segments import LogReader, Piece, log_span
from learner_agent.spool import Gap, Spool
from learner_agent.wire import Ack, Data, Final, Nack, Welcome

READS_PER_FRAME = 1_000
KEPT_BYTES = 64 * 1024 * 1024
"""Acknowledged log that the spool keeps, so that it can be sent again if the checksum of the whole disagrees."""
TIDY_S = 2.0


@dataclass(frozen=True, slots=True)
class _Sent:
    """The end of a frame that was sent, and the newlines before it in the segment that begins at start."""

    end: int
    start: int
    lines: int


class LogSender:
    """The log of one learner, from the server's cursor on. Offsets are bytes of the stream.

    acked: committed by the server. sealed: the server has the whole stream and wants no more.
    With nothing in flight a frame is sent at once; otherwise bytes accumulate until the ACK returns or a frame is full.
    """

    def __init__(self, spool: Spool) -> None:
        self.acked = self._recorded = spool.acked()
        self.sealed = False
        self._spool = spool
        self._reader = LogReader(spool)
        self._sent = self.acked
        self._is_bulk = False
        self._marks: deque[_Sent] = deque()  # of unacknowledged frames, and of the last acknowledged one
        self._window = self._max_data = 0
        self._final: Final | None = None
        self._is_final_sent = False
        self._tidied_at = 0.0

    def finish(self, final: Final) -> None:
        """Declare the log complete; that is sent once everything before it is acknowledged."""
        self._final = final

    def restart(self, welcome: Welcome) -> None:
        """Continue from the server's cursor on a new connection."""
        self.acked = self._sent = welcome.log
        self._window, self._max_data = welcome.window, welcome.max_data
        self._is_bulk = self._is_final_sent = False
        self._forget_marks()
        self.sealed = self.sealed or welcome.sealed

    def frames(self) -> Iterator[Data]:
        """Yield what may be sent now. Acknowledgments may arrive between two frames."""
        while not self.sealed and self._sent - self.acked < self._window:
            in_flight = self._sent - self.acked
            if in_flight and not self._is_bulk:
                return
            found = self._next()
            is_full = found is not None and (
                found.size >= self._max_data or len(found.reads) >= READS_PER_FRAME
            )
            if found is None or (in_flight and not is_full):
                self._is_bulk = False
                return
            self._is_bulk = is_full
            self._sent += found.size
            yield found

    def final(self) -> Final | None:
        """The frame that ends the stream, once, as soon as it may be sent."""
        final = self._final
        if final is None or self._is_final_sent or self.sealed or self.acked < final.size:
            return None
        self._is_final_sent = True
        first, _ = log_span(self._spool)  # segments may have been dropped since the end was declared
        return replace(final, log_from=first)

    def take_ack(self, ack: Ack) -> None:
        self.acked = max(self.acked, ack.log)
        self._sent = max(self._sent, self.acked)
        self._forget_marks()
        self.sealed = self.sealed or ack.sealed

    def take_nack(self, nack: Nack) -> None:
        self.sealed = self.sealed or nack.code == "SEALED"
        self.acked = self._sent = nack.next
        self._forget_marks()
        self._is_bulk = self._is_final_sent = False

    def tidy_if_due(self, *, needed_from: int) -> None:
        if time.monotonic() - self._tidied_at > TIDY_S:
            self.tidy(needed_from=needed_from)

    def tidy(self, *, needed_from: int) -> None:
        """Record in the spool what the server has, and remove segments that end below that and below needed_from."""
        self._tidied_at = time.monotonic()
        if self.acked != self._recorded:
            with contextlib.suppress(OSError):  # a full disk must not cost the connection
                self._spool.set_acked(self.acked)
                self._recorded = self.acked
        self._spool.drop_below(min(self.acked, needed_from), keep=KEPT_BYTES)

    def _next(self) -> Data | None:
        found: Piece | Gap | None = self._reader.read(
            self._sent, limit=self._max_data, max_reads=READS_PER_FRAME
        )
        if isinstance(found, Piece):
            self._mark(found)
            crc = zlib.crc32(found.data)
            return Data(found.off, payload=found.data, t0=found.t0, reads=found.reads, crc=crc)
        if found is None:
            return None
        return Data(found.off, gone=found.to - found.off, lines=found.lines or self._lines_left(found))

    def _mark(self, piece: Piece) -> None:
        """Remember how many lines of its segment were sent with this frame, unless its segment was joined midway."""
        before = self._marks[-1] if self._marks else None
        if piece.off == self._reader.segment:
            lines = 0
        elif before is not None and before.end == piece.off and before.start == self._reader.segment:
            lines = before.lines
        else:
            return
        end = piece.off + len(piece.data)
        self._marks.append(_Sent(end, self._reader.segment, lines + piece.data.count(b"\n")))

    def _forget_marks(self) -> None:
        """Forget frames before the last acknowledged one, and those that will be sent again."""
        while self._marks and self._marks[-1].end > self._sent:
            self._marks.pop()
        while len(self._marks) > 1 and self._marks[1].end <= self.acked:
            self._marks.popleft()

    def _lines_left(self, hole: Gap) -> int:
        """The lines of the rest of a segment that was dropped after the server had received its beginning; 0 if it is
        not known how many of its lines were sent."""
        sent = next((mark for mark in self._marks if mark.end == hole.off), None)
        dropped = next((gap for gap in self._spool.gaps() if gap.off < hole.off and gap.to == hole.to), None)
        if sent is None or dropped is None or sent.start != dropped.off:
            return 0
        return max(0, dropped.lines - sent.lines)
