"""Periodic access checks of open sockets, once for all sockets of the same session or token.

The checks run in side readers. Those that fall due together are spread over STEP_S, so that hundreds of open sockets
neither delay log lines nor are checked all at once.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from typing import Any, Protocol

from jobs.retries import database_away
from portal.live.frames import StoreDown
from portal.live.identity import Credentials, watchable, who
from portal.live.protocol import parse_channel
from tenants.models import User

logger = logging.getLogger(__name__)

CHECK_S = 5.0
"""Interval of the checks; a hint that access has changed triggers one at once."""
STEP_S = 0.5


class Watcher(Protocol):
    """A socket with credentials."""

    known: Credentials

    @property
    def watched(self) -> Collection[str]:
        """Names of its subscribed channels."""
        ...

    def access_checked(self, user: User | None, lost: set[str]) -> None:
        """Receive the current user (None: the credentials are no longer valid) and the channels to end."""
        ...


class Guard:
    """Checks all watchers periodically. in_side_reader: runs a function in a thread; raises StoreDown."""

    def __init__(self, watchers: Callable[[], Iterable[Watcher]], in_side_reader: Callable[..., Any]) -> None:
        self._watchers, self._in_side_reader = watchers, in_side_reader
        self._due: dict[Credentials, float] = {}

    def check_soon(self) -> None:
        """Check all watchers now, because access has changed."""
        self._due = dict.fromkeys(self._due, 0.0)

    async def run(self) -> None:
        """Check each watcher CHECK_S after it connected and then every CHECK_S."""
        while True:
            groups: dict[Credentials, list[Watcher]] = defaultdict(list)
            for watcher in self._watchers():
                groups[watcher.known].append(watcher)
            now = time.monotonic()
            self._due = {known: self._due.get(known, now + CHECK_S) for known in groups}
            due = [known for known in groups if self._due[known] <= now]
            for known in due:
                self._due[known] = time.monotonic() + CHECK_S
                await self._check_group(known, groups[known])
                await asyncio.sleep(STEP_S / len(due))
            if not due:
                await asyncio.sleep(STEP_S)

    async def _check_group(self, known: Credentials, group: list[Watcher]) -> None:
        names = {name for watcher in group for name in watcher.watched}
        try:
            user, allowed = await self._in_side_reader(_check, known, names)
        except StoreDown:
            return  # meanwhile no new watcher is admitted and nothing is read
        present = set(self._watchers())
        for watcher in group:
            if watcher in present:
                watcher.access_checked(user, names - allowed)


def _check(known: Credentials, names: Iterable[str]) -> tuple[User | None, set[str]]:
    """In a thread: the current user and the channels that they may watch; none if the check fails."""
    try:
        user = who(known)
        if user is None:
            return None, set()
        return user, watchable(user, [channel for name in names if (channel := parse_channel(name))])
    except Exception as error:
        if database_away(error):
            raise  # nothing can be read now, so nothing is checked
        logger.exception("access check failed")
        return None, set()
