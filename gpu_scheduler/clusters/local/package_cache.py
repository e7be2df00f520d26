"""Which environments are removed: those that no job has used for long, and the least recently used above a size.

The time of an environment's ``.luthier-ready`` is its last use; its content is {"base": the runtime below, "bytes"}.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import time
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gpu_scheduler.clusters.local.builder import BUILDING, READY, exclusive_lock

logger = logging.getLogger(__name__)

UNUSED_S = 30 * 24 * 3600.0
MAX_BYTES = 50 * 2**30
"""Of all jobs' packages together, without the runtimes below them."""
FRESH_S = 3600.0
"""Used so recently, an environment is kept whatever the size: a job may be about to start in it."""


@dataclass(frozen=True, slots=True)
class Cached:
    """One finished environment. base: the name of the runtime below it, empty for a runtime itself."""

    folder: Path
    used_at: float
    base: str = ""
    bytes: int = 0


def describe(base: Path, environment: Path) -> str:
    """The content of .luthier-ready for a job's packages."""
    size = sum(
        Path(folder, name).lstat().st_size for folder, _, names in os.walk(environment) for name in names
    )
    return json.dumps({"base": base.name, "bytes": size})


def touch(folder: Path) -> None:
    """Note that an environment is used now."""
    with suppress(OSError):
        os.utime(folder / READY)


def scan(home: Path) -> list[Cached]:
    """The finished environments of a folder."""
    found = []
    for ready in home.glob(f"*/{READY}"):
        with suppress(OSError, ValueError):
            note = _note(ready.read_text())
            used_at = ready.stat().st_mtime
            if BUILDING not in ready.parent.name:
                found.append(
                    Cached(ready.parent, used_at, str(note.get("base", "")), int(str(note.get("bytes", 0))))
                )
    return found


def surplus(
    packages: Iterable[Cached], runtimes: Iterable[Cached], kept: Collection[Path], now: float
) -> list[Cached]:
    """What to remove: packages first, then runtimes below which nothing is left. kept: in use, or of the source tree.

    Pure.
    """
    newest_first = sorted(packages, key=lambda each: each.used_at, reverse=True)
    gone, size, bases = [], 0, set()
    for each in newest_first:
        size += each.bytes
        idle_s = now - each.used_at
        if each.folder not in kept and idle_s > FRESH_S and (idle_s > UNUSED_S or size > MAX_BYTES):
            gone.append(each)
            size -= each.bytes
        else:
            bases.add(each.base)
    for each in runtimes:
        if each.folder not in kept and each.folder.name not in bases and now - each.used_at > UNUSED_S:
            gone.append(each)
    return gone


def remove(unused: Iterable[Cached]) -> None:
    """Remove environments, unless one is being built or was used since."""
    for each in unused:
        with suppress(OSError), exclusive_lock(each.folder, wait=False) as is_ours:
            if not is_ours or (each.folder / READY).stat().st_mtime != each.used_at:
                continue
            leftover = each.folder.with_name(f".{each.folder.name}{BUILDING}removed")
            each.folder.rename(leftover)  # at once: what is half removed must not be taken for complete
            shutil.rmtree(leftover, ignore_errors=True)
            idle_days = round((time.time() - each.used_at) / 86400)
            logger.info("environment removed", extra={"folder": each.folder.name, "idle_days": idle_days})


def _note(text: str) -> dict[str, object]:
    try:
        note = json.loads(text)
    except ValueError:
        return {}
    return note if isinstance(note, dict) else {}
