"""Folders in which services keep their sockets, and what of them a program still needs.

A user's systemd, bus, terminals and agents, Docker and others trust the platform's user, and Landlock denies no
connection to a socket that has a path. So these folders are covered by empty ones; what is granted is put back.
"""

from __future__ import annotations

import os
import pwd
import stat
from collections import deque
from contextlib import suppress
from typing import Iterable, Iterator, List, Sequence, Tuple

FOLDERS = ("/run", "/var", "/tmp")  # noqa: S108 (to be covered)
NAMES = ("/run/systemd/resolve/io.systemd.Resolve", "/run/avahi-daemon/socket", "/var/lib/sss/pipes/nss")
"""Sockets by which names are looked up, and nothing else is done: not nscd's, nslcd's, winbind's and userdb's, at which
users also sign in, or are asked for by who is root."""
_ROOT, _UNKNOWN = 0, 65534
"""The latter is who owns it outside of the user namespace that a container may be in."""
_LINKS_MAX = 40  # as the kernel follows


def folders(granted: Iterable[str], private: Iterable[str] = ()) -> List[str]:
    """What to cover, with the home folder of the user: no folder that is granted as a whole, unless it is private, and
    none that is in another one."""
    named = [os.path.realpath(path) for path in (*FOLDERS, *_home())]
    found = sorted({path for path in named if path != os.sep and os.path.isdir(path)})
    whole = [os.path.realpath(path) for path in granted]
    open_ones = {path for path in found if any(is_below(path, other) for other in whole)}
    return outermost(sorted({*found, *filter(os.path.isdir, private)} - open_ones))


def names() -> List[str]:
    """The sockets of NAMES that a program may use. None is for root, to which a service may do what it does for no one
    else, and none is root's or process 1's. Called before a user namespace is entered, in which owners look alike."""
    return [path for path in NAMES if os.geteuid() != 0 and _is_a_socket_of_an_ordinary_user(path)]


def _is_a_socket_of_an_ordinary_user(path: str) -> bool:
    try:
        found = os.stat(path)
    except OSError:
        return False
    return stat.S_ISSOCK(found.st_mode) and found.st_uid not in (_ROOT, _UNKNOWN)


def _home() -> List[str]:
    try:
        return [pwd.getpwuid(os.getuid()).pw_dir]
    except KeyError:
        return []


def below(places: Sequence[str], paths: Iterable[str]) -> List[str]:
    """Those of the paths that lie in the places, where they really are, none within another one."""
    real = {os.path.realpath(path) for path in paths}
    return outermost(
        sorted(
            path for path in real if os.path.exists(path) and any(is_below(path, place) for place in places)
        )
    )


def links(places: Sequence[str], paths: Iterable[str]) -> "dict[str, str]":
    """The symbolic links in the places that lead to the paths, and those directly in a place: where each leads."""
    found = {step: to for path in paths for step, to in _followed(path)}
    for place in places:
        with suppress(OSError), os.scandir(place) as entries:  # a home folder may be closed to its user
            for entry in entries:
                with suppress(OSError):  # gone since
                    if entry.is_symlink():
                        found[entry.path] = os.readlink(entry.path)
    return {step: to for step, to in found.items() if any(is_below(step, place) for place in places)}


def _followed(path: str) -> Iterator[Tuple[str, str]]:
    at, left, links_left = os.sep, deque(os.path.abspath(path).split(os.sep)), _LINKS_MAX
    while left and links_left:
        name = left.popleft()
        if name == os.pardir:
            at = os.path.dirname(at)
        elif name and name != os.curdir:
            step = os.path.join(at, name)
            try:
                to = os.readlink(step)
            except OSError:  # no link, or gone since
                at = step
                continue
            yield step, to
            links_left -= 1
            at = os.sep if to.startswith(os.sep) else at
            left.extendleft(reversed(to.split(os.sep)))


def outermost(paths: Iterable[str]) -> List[str]:
    """The sorted paths without those below another one."""
    kept: List[str] = []
    for path in paths:
        if not any(is_below(path, other) for other in kept):
            kept.append(path)
    return kept


def is_below(path: str, root: str) -> bool:
    """Whether path is root or below it; both are absolute and normal."""
    return path == root or path.startswith(root.rstrip(os.sep) + os.sep)
