"""Celery's transport keeps its client."""

from __future__ import annotations

import pytest
import redis
from kombu import Connection

from portal import celery
from portal.broker import Channel, Transport


@pytest.mark.parametrize(
    "address", ["redis+socket:///nowhere/valkey.sock?virtual_host=1", "redis://127.0.0.1:1/1"]
)
def test_it_is_celerys_transport_to_valkey_by_any_address(address: str) -> None:
    assert celery.app
    assert isinstance(Connection(address).transport, Transport)


def test_a_channel_has_one_client_for_each_pool_and_others_to_wait_with() -> None:
    channel = Channel.__new__(Channel)
    channel.Client = redis.Redis
    channel._pool, channel._async_pool = redis.ConnectionPool(), redis.ConnectionPool()
    with channel.conn_or_acquire() as first, channel.conn_or_acquire() as second:
        assert first is second
        assert first.connection_pool is channel._pool
    waits = channel._create_client(asynchronous=True)
    assert waits is not first
    assert waits.connection_pool is channel._async_pool
    channel._pool = redis.ConnectionPool()
    with channel.conn_or_acquire() as later:
        assert later.connection_pool is channel._pool, "after a broken connection all are new"
