"""Whether the symbolic links of an archive stay inside it: each is followed as Linux would, through other links. Pure.

Only names decide: an archive has no entry below a link (``jobs.archives`` refuses those), so a link's own folder is a
real one, and what a target names but the archive does not hold counts as a folder that may be made later.
"""

from __future__ import annotations

from collections.abc import Iterator

from jobs.spec.paths import MAX_PATH_CHARS, MAX_PATH_DEPTH

MAX_HOPS = 40
"""Linux follows at most so many links to resolve one name."""

Place = tuple[str, ...]


class Links:
    """The links of one archive by their place: parts of the path below its top."""

    def __init__(self) -> None:
        self._targets: dict[Place, str] = {}
        self._known: dict[Place, tuple[Place, int]] = {}

    def add(self, name: str, target: str) -> None:
        self._targets[_place(name)] = target

    def __contains__(self, name: str) -> bool:
        return _place(name) in self._targets

    def faults(self) -> Iterator[tuple[str, str]]:
        """Each link that must not be unpacked, with what is wrong with it."""
        for place in self._targets:
            try:
                self._end_of(place, 1)
            except _Outside as fault:
                yield "/".join(place), str(fault)

    def _end_of(self, link: Place, hops: int) -> tuple[Place, int]:
        """Where a link leads, and through how many links, itself included. Raises _Outside."""
        if link in self._known:
            return self._known[link]
        if hops > MAX_HOPS:
            raise _Outside(f"leads through more than {MAX_HOPS} links, or back to itself")
        target = self._targets[link]
        if fault := _target_fault(target):
            raise _Outside(fault)
        place, passed = link[:-1], 1
        for part in target.split("/"):
            if part in ("", "."):
                continue
            if part == "..":
                if not place:
                    raise _Outside(f"leads out of the archive, to {target}")
                place = place[:-1]
                continue
            place = (*place, part)
            if len(place) > MAX_PATH_DEPTH:
                raise _Outside(f"leads deeper than {MAX_PATH_DEPTH} folders")
            if place in self._targets:
                place, more = self._end_of(place, hops + passed)
                passed += more
        if hops + passed > MAX_HOPS + 1:
            raise _Outside(f"leads through more than {MAX_HOPS} links")
        self._known[link] = place, passed
        return place, passed


class _Outside(Exception):
    """The link is refused; the message says why."""


def _place(name: str) -> Place:
    return tuple(part for part in name.split("/") if part not in ("", "."))


def _target_fault(target: str) -> str | None:
    if not target or len(target) > MAX_PATH_CHARS:
        return f"has a target that is empty or longer than {MAX_PATH_CHARS} characters"
    if not target.isprintable() or "\\" in target:
        return "has a target with a backslash or an invisible character"
    if target.startswith("/"):
        return f"leads out of the archive, to the absolute path {target}"
    return None
