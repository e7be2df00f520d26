"""Whether those who watch still may: asked every few seconds, once for all sockets of the same session or token.

The asking has a thread of its own and is spread over the interval, so that hundreds of open sockets neither come
before the lines that are due nor all at once.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from typing import Any, Protocol

from portal.live.errors import StoreDown
from portal.live.identity import Credentials, watchable, who
from portal.live.names import parse_channel
from tenants.models import User

LOOK_S = 5.0  # permission is asked again this often


class Watcher(Protocol):
    """A socket with a known owner."""

    known: Credentials

    @property
    def watched(self) -> Collection[str]:
        """Names of the channels it listens to."""
        ...

    def judged(self, user: User | None, lost: set[str]) -> None:
        """Take note of who the owner is now (None: nobody any more) and of channels that are no longer his."""
        ...


async def look_again(watchers: Callable[[], Iterable[Watcher]], aside: Callable[..., Any]) -> None:
    """Ask for all watchers, again and again. aside: runs a function beside the loop; raises StoreDown."""
    while True:
        groups: dict[Credentials, list[Watcher]] = defaultdict(list)
        for watcher in watchers():
            groups[watcher.known].append(watcher)
        for known, group in groups.items():
            await asyncio.sleep(LOOK_S / len(groups))
            names = {name for watcher in group for name in watcher.watched}
            try:
                user, allowed = await aside(_judge, known, names)
            except StoreDown:
                continue  # nobody new comes in meanwhile, and nothing is read
            present = set(watchers())
            for watcher in group:
                if watcher in present:
                    watcher.judged(user, names - allowed)
        if not groups:
            await asyncio.sleep(LOOK_S)


def _judge(known: Credentials, names: Iterable[str]) -> tuple[User | None, set[str]]:
    """In a thread: the owner now, and which of these channels he may watch."""
    user = who(known)
    if user is None:
        return None, set()
    return user, watchable(user, [channel for name in names if (channel := parse_channel(name))])
