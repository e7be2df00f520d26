"""Places for calls to a store on other machines: one that hangs holds only so many threads of this process.

A call has deadlines of its own (`jobs.blobs.s3`), which are far longer than a request may wait for another one. While
the store does not respond, one call at a time finds out whether it does again; all others are refused at once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from jobs.blobs.errors import StoreSilent, StoreUnavailable

WAIT_S = 2.0
"""How long a call waits for a place while the store responds."""
SLOW_S = 2.0
"""While a call takes longer, no other one waits for a place."""
BUSY = "The blob store is slow or does not respond, and other requests wait for it."


class Places:
    """So many calls at once; a call within another one of its thread needs no place of its own."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._silent = False
        self._began: dict[int, float] = {}  # thread -> when its call began
        self._changed = threading.Condition()

    def resize(self, most: int) -> None:
        with self._changed:
            self._most = most
            self._changed.notify_all()

    @contextmanager
    def one(self) -> Iterator[None]:
        """Raises StoreUnavailable if there is none."""
        me = threading.get_ident()
        if me in self._began:
            yield
            return
        self._take(me)
        silent = False
        try:
            yield
        except StoreSilent:
            silent = True
            raise
        finally:
            self._leave(me, silent)

    def _take(self, me: int) -> None:
        with self._changed:
            if not self._changed.wait_for(self._is_free, WAIT_S if self._responds() else 0):
                raise StoreUnavailable(BUSY)
            self._began[me] = time.monotonic()

    def _leave(self, me: int, silent: bool) -> None:
        with self._changed:
            del self._began[me]
            self._silent = silent
            self._changed.notify_all()

    def _is_free(self) -> bool:
        return len(self._began) < (1 if self._silent else self._most)

    def _responds(self) -> bool:
        oldest = min(self._began.values(), default=None)
        return not self._silent and (oldest is None or time.monotonic() - oldest < SLOW_S)


places = Places(4)
"""Of this process. A web process gives them a part of its threads for requests (`portal.asgi_handler`)."""
