"""Files that a program may have written, replaced or spoilt: reading and writing them never blocks or fills the memory.

Standard library only, Python 3.8 or newer.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import time
from pathlib import Path
from typing import Any, Dict, List, Optional, Union

SMALL_BYTES, LARGE_BYTES = 64 * 1024, 16 * 1024 * 1024
"""What a file of the spool may hold; what one with an entry per stored file may."""


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
        unlink(temporary)  # or each try on a full disk would leave one more
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


def unlink(path: str) -> None:
    """Remove a file, if that is what is there."""
    try:
        os.unlink(path)
    except OSError:
        pass  # it is gone, or a program put a folder in its place


def now_ms() -> int:
    """This machine's clock in milliseconds since the epoch; for people to read, never for decisions."""
    return int(time.time() * 1000)
