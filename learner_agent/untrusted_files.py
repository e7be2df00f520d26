"""Files that a program may have written, replaced or damaged: using them never blocks or exhausts memory.

Standard library only, Python 3.8 or newer.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import time
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple, Union

SMALL_BYTES, LARGE_BYTES = 64 * 1024, 16 * 1024 * 1024
"""Limits in bytes: of a file of the spool, and of one with an entry for each stored file."""


def replace_file(path: Path, content: bytes, *, durable: bool = True) -> None:
    """Write content to path so that a reader finds the old bytes or the new ones, never a part. Raises OSError."""
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
        unlink(temporary)  # otherwise each attempt on a full disk would leave another
        raise


OWN_STEPS = 2
"""Of a folder of the job's, its own name and its parent's may have been replaced by links; what is above is ours."""
_PASS = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def open_regular(path: str) -> int:
    """Open a regular file of the spool for reading. Raises OSError for a FIFO, directory or device, and for a link in
    its place or in that of one of the two folders above; never blocks."""
    parts = path.split(os.sep)
    above = os.sep.join(parts[: -1 - OWN_STEPS]) or (os.sep if os.path.isabs(path) else os.curdir)
    return _open_regular(above, [step for step in parts[-1 - OWN_STEPS :] if step])


def open_below(folder: Path, *steps: str) -> int:
    """Open a regular file below a folder of the job's, as open_regular does. No step is a link, nor the folder."""
    return _open_regular(*_from_ours(folder, steps))


def open_folder(folder: Path, *steps: str) -> int:
    """Open a folder of the job's, or one below it, to list it. Raises OSError if it or a step to it is a link."""
    above, names = _from_ours(folder, steps)
    return _open(above, names, os.O_RDONLY | os.O_DIRECTORY)


def is_linked(folder: Path) -> bool:
    """True if a folder of the job's has been replaced by a link."""
    return folder.is_symlink() or folder.parent.is_symlink()


def _from_ours(folder: Path, steps: Sequence[str]) -> Tuple[str, List[str]]:
    return str(folder.parents[OWN_STEPS - 1]), [*folder.parts[-OWN_STEPS:], *steps]


def _open_regular(above: str, steps: Sequence[str]) -> int:
    handle = _open(above, steps, os.O_RDONLY | os.O_NONBLOCK)
    if stat.S_ISREG(os.fstat(handle).st_mode):
        return handle
    os.close(handle)
    raise OSError(errno.EINVAL, "not a regular file", steps[-1])


def _open(above: str, steps: Sequence[str], flags: int) -> int:
    """Go down step by step, so that a folder that is replaced by a link meanwhile leads nowhere."""
    at = os.open(above, _PASS & ~os.O_NOFOLLOW)
    try:
        for step in steps[:-1]:
            below = os.open(step, _PASS, dir_fd=at)
            os.close(at)
            at = below
        return os.open(steps[-1], flags | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
    finally:
        os.close(at)


def read_regular(path: str, *, most: int = SMALL_BYTES) -> bytes:
    """Return all bytes of a regular file. Raises OSError if it is none, ValueError above most bytes."""
    with open(open_regular(path), "rb") as source:
        content = source.read(most + 1)
    if len(content) > most:
        raise ValueError("%s holds more than %d bytes" % (path, most))
    return content


def read_object(path: str, *, most: int = SMALL_BYTES) -> Optional[Dict[str, Any]]:
    """Return a JSON object that a program may have written, or None for anything else."""
    try:
        value = json.loads(read_regular(path, most=most).decode())
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def objects(value: Any) -> List[Dict[str, Any]]:
    """Return the objects in a list that a program may have written, without anything else that is in it."""
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def number_or(value: Any, default: float, *, most: float = 2**53) -> float:
    """Return what a program may have written if it is a number from 0 to most, else the default."""
    is_valid = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= most
    return value if is_valid else default


def put_aside(path: Union[str, Path]) -> None:
    """Free a path for a new file: a program may have made a folder in its place."""
    try:
        os.rename(path, "%s.%d.odd" % (path, time.time_ns()))
    except FileNotFoundError:
        pass


def unlink(path: str) -> None:
    """Remove a file if there is one."""
    try:
        os.unlink(path)
    except OSError:
        pass  # it is gone, or a program put a folder in its place


def now_ms() -> int:
    """Milliseconds since the epoch by this machine's clock; for people to read, never for decisions."""
    return int(time.time() * 1000)
