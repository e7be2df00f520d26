"""Whether those who watch still may: asked every few seconds, once for all sockets of the same session or token.

The asking has a thread of its own and is spread over the interval, so that hundreds of open sockets neither come
before the lines that are due nor all at once.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from typing import Any, Protocol

from jobs.retries import database_away
from portal.live.errors import StoreDown
from portal.live.identity import Credentials, watchable, who
from portal.live.protocol import parse_channel
from tenants.models import User

logger = logging.getLogger(__name__)

CHECK_S = 5.0
"""Permission is asked again this often; at once after a hint that somebody's rights have changed."""
STEP_S = 0.5


class Watcher(Protocol):
    """A socket with a known owner."""

    known: Credentials

    @property
    def watched(self) -> Collection[str]:
        """Names of the channels it listens to."""
        ...

    def access_checked(self, user: User | None, lost: set[str]) -> None:
        """Take note of who the owner is now (None: nobody any more) and of channels that are no longer his."""
        ...


class Guard:
    """Asks for all watchers, again and again. aside: runs a function beside the loop; raises StoreDown."""

    def __init__(self, watchers: Callable[[], Iterable[Watcher]], in_side_reader: Callable[..., Any]) -> None:
        self._watchers, self._in_side_reader = watchers, in_side_reader
        self._due: dict[Credentials, float] = {}

    def check_soon(self) -> None:
        """Somebody's rights have changed: ask for everybody now."""
        self._due = dict.fromkeys(self._due, 0.0)

    async def run(self) -> None:
        """Whoever comes was asked then and is due CHECK_S later; all who are due are asked within about a second."""
        while True:
            groups: dict[Credentials, list[Watcher]] = defaultdict(list)
            for watcher in self._watchers():
                groups[watcher.known].append(watcher)
            now = time.monotonic()
            self._due = {known: self._due.get(known, now + CHECK_S) for known in groups}
            due = [known for known in groups if self._due[known] <= now]
            for known in due:
                self._due[known] = time.monotonic() + CHECK_S
                await self._ask(known, groups[known])
                await asyncio.sleep(STEP_S / len(due))
            if not due:
                await asyncio.sleep(STEP_S)

    async def _ask(self, known: Credentials, group: list[Watcher]) -> None:
        names = {name for watcher in group for name in watcher.watched}
        try:
            user, allowed = await self._in_side_reader(_check, known, names)
        except StoreDown:
            return  # nobody new comes in meanwhile, and nothing is read
        present = set(self._watchers())
        for watcher in group:
            if watcher in present:
                watcher.access_checked(user, names - allowed)


def _check(known: Credentials, names: Iterable[str]) -> tuple[User | None, set[str]]:
    """In a thread: the owner now, and which of these channels he may watch. Whoever cannot be judged may nothing."""
    try:
        user = who(known)
        if user is None:
            return None, set()
        return user, watchable(user, [channel for name in names if (channel := parse_channel(name))])
    except Exception as error:
        if database_away(error):
            raise  # nothing can be read now, and nobody judged
        logger.exception("a watcher's rights could not be told")
        return None, set()
