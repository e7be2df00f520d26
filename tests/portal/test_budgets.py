"""Budgets hold for all web processes together, and for each on its own while Valkey is away."""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context
from typing import Any

import pytest
from django.conf import LazySettings
from django.conf import settings as configured
from django.core.cache import cache
from django.test import RequestFactory
from redis.connection import AbstractConnection

from portal import budgets
from portal.budgets import budget_address, within
from portal.counting_cache import CountingCache

REDIS = "portal.counting_cache.CountingCache"


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch, fresh_budgets: None) -> None:
    cache.clear()
    monkeypatch.setattr(budgets, "_away_until", 0.0)


@pytest.fixture
def valkey(settings: LazySettings) -> None:
    """Both caches as in production, in a name space of this test's own."""
    local = configured.CACHES["default"]
    shared = {"BACKEND": REDIS, "LOCATION": configured.REDIS_URL, "KEY_PREFIX": uuid.uuid4().hex}
    settings.CACHES = {"default": local, "shared": shared}


def test_web_processes_spend_one_budget(valkey: None) -> None:
    spent = []
    for _ in range(3):
        cache.clear()  # another process has counted nothing on its own
        spent += [within("guesses", 10) for _ in range(5)]
    assert spent == [True] * 10 + [False] * 5


def test_what_comes_at_once_is_counted_once_each(valkey: None) -> None:
    with ThreadPoolExecutor(8) as threads:
        spent = list(threads.map(lambda _: within("guesses", 10), range(40)))
    assert spent.count(True) == 10


def test_requests_share_connections_and_count_with_one_trip(
    valkey: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    trips: list[AbstractConnection] = []
    send = AbstractConnection.send_packed_command

    def sent(one: AbstractConnection, *what: Any, **more: Any) -> None:
        trips.append(one)
        send(one, *what, **more)

    assert within("guesses", 10)  # opens the connection
    monkeypatch.setattr(AbstractConnection, "send_packed_command", sent)
    for _ in range(5):
        assert Context().run(within, "guesses", 10)  # as the web server runs requests
    assert len(trips) == 5
    assert len({id(one) for one in trips}) == 1


def test_a_count_ends_with_its_window(valkey: None) -> None:
    for _ in range(3):
        within("guesses", 10, window_s=40)
    store = budgets._shared()
    assert isinstance(store, CountingCache)
    name = store.make_key("budget:guesses")
    assert 30 < store._cache.get_client(name).ttl(name) <= 40


def test_a_count_that_was_given_back_at_the_end_of_its_window_ends_as_well(valkey: None) -> None:
    """Valkey makes it then, without an end, as Django looks first and counts down after that."""
    store = budgets._shared()
    assert isinstance(store, CountingCache)
    name = store.make_key("budget:guesses")
    client = store._cache.get_client(name)
    client.decr(name)
    assert within("guesses", 10, window_s=40)
    assert 30 < client.ttl(name) <= 40


def test_without_valkey_each_process_keeps_the_budget(settings: LazySettings, caplog: Any) -> None:
    shared = {"BACKEND": REDIS, "LOCATION": "redis://127.0.0.1:9"}
    settings.CACHES = {"default": configured.CACHES["default"], "shared": shared}
    assert [within("guesses", 10) for _ in range(15)] == [True] * 10 + [False] * 5
    assert caplog.text.count("no Valkey") == 1  # tried once, then left alone for a while


@pytest.mark.parametrize(
    ("address", "shared_with"),
    [
        ("10.0.0.7", "10.0.0.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::"),
        ("2001:db8:1:2::9", "2001:db8:1:2::"),
        ("::ffff:10.0.0.7", "10.0.0.7"),
        ("", None),
    ],
)
def test_an_ipv6_network_is_one_client(address: str, shared_with: str | None) -> None:
    assert budget_address(RequestFactory().get("/", REMOTE_ADDR=address)) == shared_with
