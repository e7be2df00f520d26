"""The directory between launcher and shipper (JOB_STATE_DIR), which survives the death of either process.

    log/<offset>.seg   what the program printed, in records; the name is the stream offset of its first byte
    log/gaps           "from to lines" per run of bytes that are not kept: the tombstones, so that offsets stay dense
    log/acked          how many bytes the server has committed (shipper)
    metrics.jsonl      one object per line: {"step", "time", "total"?, name: value …} (program)
    ready | refused    code and data are in place, or why they cannot be (shipper)
    phase              SETUP while setup commands run, PROCESSING once the program was started (launcher)
    imported           the program imported learner_agent.training, so it checks for "halt" itself
    checks_halt        the program called halt_requested() at least once
    checks_save        the program called checkpoint_due() at least once
    save               {"n"}: the newest request for a checkpoint while it runs (shipper)
    saved              {"n"}: the newest request that came before a save that succeeded (program)
    halt, halt_seen    the request to halt (shipper), and that the launcher acted on it
    halt_noticed       halt_requested() returned True to the program
    saves-<part>       "step count" per save of this part by learner_agent.training (program)
    finished           training is complete (program)
    exit               how the program ended (launcher); written whole, and final once the lock is free
    lock               held by the launcher while it lives
    notify             a FIFO: "." means more bytes to ship, "!" that one of the other files changed
    checkpoints/       CHECKPOINT_DIR
    shipper/           the shipper's own state; done.json: everything is delivered

The log's records: ``log_segments``. Standard library only, Python 3.8 or newer.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple, Union

from learner_agent.untrusted_files import (
    LARGE_BYTES,
    SMALL_BYTES,
    put_aside,
    read_object,
    read_regular,
    replace_file,
    unlink,
)

_CLOCK_NS = 20_000_000
TORN = b"#torn"
"""Ends a line of metrics.jsonl that a full disk cut off; readers skip it without a report."""


@dataclass(frozen=True)
class Gap:
    """Bytes off to `to` (exclusive) of the log are not kept, with lines newlines in them."""

    off: int
    to: int
    lines: int


class Spool:
    """Paths of the files, and the contents of small ones. Readers return None for what is absent or invalid.

    A program can write all of it, so nothing in here may make a reader raise, block or exhaust its memory.
    """

    def __init__(self, root: Union[str, Path]) -> None:
        self.root = Path(root)
        self.log_dir = self.root / "log"
        self.metrics = self.root / "metrics.jsonl"
        self.checkpoints = self.root / "checkpoints"
        # Strings: both processes check these files many times a second, and joining a Path costs more than the check.
        self._base = "%s%s" % (self.root, os.sep)
        self._log = "%s%s" % (self.log_dir, os.sep)
        self._notify: Optional[int] = None

    def create(self) -> None:
        """Make the directories and the FIFO; may be called twice, or by both processes at once. Raises OSError."""
        for folder in (self.root, self.log_dir, self.checkpoints, self.root / "shipper"):
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except FileExistsError:
                put_aside(folder)
                folder.mkdir(exist_ok=True)
        fifo = self.root / "notify"
        try:
            os.mkfifo(str(fifo))
        except FileExistsError:
            if not fifo.is_fifo():
                put_aside(fifo)
                os.mkfifo(str(fifo))

    def write(self, name: str, value: Any) -> None:
        """Replace a small JSON file as a whole, durably. Raises OSError."""
        replace_file(self.root / name, json.dumps(value).encode())

    def read(self, name: str, *, most: int = SMALL_BYTES) -> Optional[Dict[str, Any]]:
        return read_object(self._base + name, most=most)

    def has(self, name: str) -> bool:
        return os.path.exists(self._base + name)

    def phase(self) -> str:
        try:
            return read_regular(self._base + "phase").decode(errors="replace").strip()[:40]
        except (OSError, ValueError):
            return ""

    def notify(self, *, state: bool = False) -> None:
        """Notify the shipper of a change. Never blocks; a lost notification costs half a second.

        state: one of the small files changed, not only the log or the metrics.
        """
        try:
            if self._notify is None:
                self._notify = self.open_fifo()
            os.write(self._notify, b"!" if state else b".")
        except OSError:
            pass  # full: a notification is pending; absent: the shipper polls

    def open_fifo(self) -> int:
        # For reading and writing: so it opens without the other side and never reports the end of the file.
        return os.open(self._base + "notify", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)

    def hold_lock(self) -> Optional[int]:
        """Take the launcher's lock for the life of this process; None if another process has it. Raises OSError."""
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        handle = os.open(self._base + "lock", flags, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(handle)
            return None
        return handle

    def is_lock(self, handle: int) -> bool:
        """True if this is still the lock that others see: a program may have replaced the file."""
        try:
            seen = os.lstat(self._base + "lock")
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:
            return True  # an error of the disk is no reason to end the program
        return os.path.samestat(seen, os.fstat(handle))

    def launcher_lives(self) -> Optional[bool]:
        """Whether a launcher holds its lock; None if none was started. The kernel frees the lock, however it ends."""
        if not self.has("lock"):
            return None
        try:
            handle = self.hold_lock()
        except OSError:
            return False  # the file was replaced; the launcher notices and takes a new lock
        if handle is None:
            return True
        os.close(handle)
        return False

    def acked(self) -> int:
        try:
            return _offset(read_regular(self._log + "acked").decode()) or 0
        except (OSError, ValueError):
            return 0

    def set_acked(self, offset: int) -> None:
        replace_file(self.log_dir / "acked", str(offset).encode(), durable=False)

    def segments(self) -> List[int]:
        """Stream offsets at which the kept segments begin, ascending."""
        try:
            names = os.listdir(self._log)
        except OSError:
            return []
        starts = [_offset(name[:-4]) for name in names if name.endswith(".seg")]
        return sorted(start for start in starts if start is not None)

    def segment_path(self, start: int) -> str:
        return "%s%020d.seg" % (self._log, start)

    def log_stamp(self) -> Optional[Tuple[int, int]]:
        """A value that changes with each new segment or gap. None while the file system's clock is too coarse."""
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
            lines = read_regular(self._log + "gaps", most=LARGE_BYTES).decode().split("\n")
        except (OSError, ValueError):
            return []
        gaps = []
        for line in lines[:-1]:  # what follows the last newline is still being written
            words = [word for word in map(_offset, line.split(" ")) if word is not None]
            if len(words) == 3 and line.count(" ") == 2:
                gaps.append(Gap(words[0], words[1], words[2]))
        return gaps

    def drop_below(self, offset: int, *, keep: int = 0) -> None:
        """Remove segments that end at or below offset, oldest first, but keep that many bytes of them."""
        starts = self.segments()
        done = [(start, end) for start, end in zip(starts, starts[1:]) if end <= offset]
        kept = sum(end - start for start, end in done)
        for start, end in done:
            if kept <= keep:
                return
            unlink(self.segment_path(start))
            kept -= end - start


def _offset(text: str) -> Optional[int]:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 20 else None
