"""What is granted around places that the platform keeps to itself.

A rule of Landlock holds for all that is below its path, and nothing takes a part of it back. So a folder that contains
such a place, as `/opt` does with an installation in it, is granted entry by entry without that place. An entry that is
made while a program runs is not granted to it. No program can write in these folders, so none of it is a race.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Iterable, Iterator, List, Optional, Set, Tuple

PYTHON = ("bin", "lib", "lib64", "include", "share")
"""What a Python has in its prefix."""
Identity = Tuple[int, int]
"""Device and inode, which a folder has by each of its names, be they links or mounts."""


class Private:
    """The places, wherever they are, and the folders that contain them."""

    def __init__(self, paths: Iterable[str]) -> None:
        self.paths: List[str] = []
        self._own: Set[Optional[Identity]] = set()
        self._above: Set[Optional[Identity]] = set()
        for path in map(os.path.realpath, paths):
            self.paths.append(path)
            self._own.add(_identity(path))
            while path != os.sep:
                path = os.path.dirname(path)
                self._above.add(_identity(path))
        for known in (self._own, self._above):
            known.discard(None)

    def around(self, paths: Iterable[str]) -> List[str]:
        """The paths; in place of one that contains something private, what is in it without that. One that is private
        itself is left out; one below something private was named for what it is and stays."""
        return [part for path in paths for part in self._around(path)]

    def of_python(self, prefix: str) -> List[str]:
        """What to read of a Python in this prefix: only its own if that has something private, as a home folder."""
        if _identity(prefix) not in self._own | self._above:
            return [prefix]
        return self.around(os.path.join(prefix, name) for name in PYTHON)

    def _around(self, path: str) -> Iterator[str]:
        found = _identity(path)
        if found in self._own:
            return
        if found not in self._above:
            yield path
            return
        with suppress(OSError), os.scandir(path) as entries:
            # What a link leads to is not in the folder: it has been granted by another name, or has not.
            inside = sorted(entry.path for entry in entries if not entry.is_symlink())
            yield from self.around(inside)


def _identity(path: str) -> Optional[Identity]:
    """None if there is no such path, or it cannot be seen: then nothing of it can be granted either."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino
