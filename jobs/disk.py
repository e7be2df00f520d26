"""How much is free on the disks of the data and the blob folder, and how much of it the platform keeps free."""

from __future__ import annotations

import errno
import shutil
from dataclasses import dataclass
from pathlib import Path

from django.conf import settings

from jobs.humanize import filesize

DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
"""Of an OSError: there is no room, in contrast to a disk or a folder that does not respond."""
DEFAULT_MINIMUM = 2 * 1024**3
DEFAULT_SHARE = 0.02
"""Without LUTHIER_MIN_FREE_DISK the minimum is DEFAULT_MINIMUM, or this share of a disk for which that is much."""


@dataclass(frozen=True, slots=True)
class Disk:
    """A disk by a folder on it. free and minimum: in bytes."""

    folder: Path
    free: int
    minimum: int

    @property
    def room(self) -> int:
        """Bytes that may still be stored."""
        return max(0, self.free - self.minimum)

    @property
    def is_full(self) -> bool:
        return self.free < self.minimum

    @property
    def text(self) -> str:
        return f"{filesize(self.free)} free, at least {filesize(self.minimum)} required"


def disk_of(folder: Path) -> Disk:
    """The disk that a folder is on, or will be on. Raises OSError."""
    existing = next(each for each in (folder, *folder.parents) if each.exists())
    found = shutil.disk_usage(existing)
    minimum = settings.LUTHIER_MIN_FREE_DISK
    if minimum is None:
        minimum = min(DEFAULT_MINIMUM, int(found.total * DEFAULT_SHARE))
    return Disk(folder, found.free, minimum)


def disks() -> list[Disk]:
    """Those of the data folder and of the blob folder, if blobs are in a folder elsewhere. Raises OSError."""
    place = settings.LUTHIER_BLOBS
    elsewhere = [Path(place)] if place and not place.startswith("s3://") else []
    return [disk_of(folder) for folder in (settings.LUTHIER_DATA, *elsewhere)]


def low_disk() -> Disk | None:
    """One that has less free than its minimum: then nothing new starts. Raises OSError."""
    return next((disk for disk in disks() if disk.is_full), None)
