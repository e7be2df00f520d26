"""Celery's transport to Valkey, with one client for each pool of connections.

kombu makes a client for each message that it sends, takes or acknowledges: a seventh of what a worker did under a
load of short jobs. A client holds no state of a message, and takes a connection from its pool for each command.
"""

from __future__ import annotations

from typing import Any

from kombu.transport import redis


class Channel(redis.Channel):
    """A channel that keeps its client."""

    _kept: Any = None

    # Both calls are of a method that kombu has and its stubs lack.
    def _create_client(self, asynchronous: bool = False) -> Any:
        if asynchronous:  # it has a connection of its own while it waits for messages
            return super()._create_client(asynchronous)  # type: ignore[misc]
        if self._kept is None or self._kept.connection_pool is not self.pool:
            self._kept = super()._create_client()  # type: ignore[misc]
        return self._kept


class Transport(redis.Transport):
    """Redis's transport with these channels."""

    Channel = Channel
