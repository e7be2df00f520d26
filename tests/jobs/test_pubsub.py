"""Hints: at once within the process, through Valkey to others, and never in anybody's way."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator

import pytest
from channels.layers import channel_layers

from jobs import pubsub
from jobs.pubsub import Hint, Subject


@pytest.fixture
def received() -> Iterator[list[Hint]]:
    hints: list[Hint] = []
    pubsub.subscribe(hints.append)
    yield hints
    pubsub.unsubscribe(hints.append)


@contextlib.contextmanager
def layer_at(url: str) -> Iterator[None]:
    """The process's channel layer on this address, and a publisher that has not rung yet."""
    from channels_redis.pubsub import RedisPubSubChannelLayer

    before = channel_layers.set("default", RedisPubSubChannelLayer(hosts=[url], prefix=f"t{time.time_ns()}"))
    publisher, pubsub._publisher = (
        pubsub._publisher,
        pubsub._Publisher(),
    )  # the old one's thread goes on undisturbed
    try:
        yield
    finally:
        channel_layers.set("default", before)
        pubsub._publisher = publisher


def test_a_listener_in_the_same_process_is_called_at_once(received: list[Hint]) -> None:
    pubsub.job_changed("3f9k2m7qx4ta", 7, 12)
    assert received == [Hint(Subject.JOB, job_id="3f9k2m7qx4ta", tenant_id=7, upto=12)]


def test_a_listener_that_fails_disturbs_neither_the_caller_nor_the_next_listener(
    received: list[Hint],
) -> None:
    def broken(hint: Hint) -> None:
        raise RuntimeError("broken")

    pubsub._listeners.insert(0, (broken, tuple(pubsub.Subject)))
    try:
        pubsub.cluster_changed()
    finally:
        pubsub.unsubscribe(broken)
    assert received == [Hint(Subject.CLUSTER)]


@pytest.fixture
def senders(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The threads that spoke with Valkey, by name: a caller is never kept if it is none of them."""
    names: list[str] = []
    began, send = threading.Event(), pubsub._Publisher._send

    async def noted(publisher: pubsub._Publisher, hints: list[Hint]) -> None:
        names.append(threading.current_thread().name)
        began.set()
        await send(publisher, hints)

    monkeypatch.setattr(pubsub._Publisher, "_send", noted)
    yield names
    assert began.wait(60)
    assert set(names) == {"publisher"}


def test_an_absent_valkey_costs_the_caller_nothing(received: list[Hint], senders: list[str]) -> None:
    with layer_at("unix:///nowhere/valkey.sock"):
        for n in range(1_000):
            pubsub.job_changed("3f9k2m7qx4ta", 7, n)
    assert len(received) == 1_000


def test_a_valkey_that_accepts_and_never_answers_costs_the_caller_nothing(senders: list[str]) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as mute,
        layer_at(f"redis://127.0.0.1:{mute.getsockname()[1]}/0"),
    ):
        for n in range(1_000):
            pubsub.logs_grew("3f9k2m7qx4ta", attempt=1, rank=0, upto=n)


async def test_another_process_receives_through_valkey() -> None:
    received: list[Hint] = []
    with layer_at(os.environ["REDIS_URL"]):
        async with pubsub.subscribed(received.append):
            elsewhere = pubsub._Publisher()
            elsewhere.name = "elsewhere"
            deadline = time.monotonic() + 60
            while not received and time.monotonic() < deadline:
                elsewhere.enqueue(Hint(Subject.METRICS, job_id="3f9k2m7qx4ta", upto=3))
                await asyncio.sleep(0.05)
    assert received[0] == Hint(Subject.METRICS, job_id="3f9k2m7qx4ta", upto=3)


def test_hints_that_wait_melt_into_the_newest() -> None:
    publisher = pubsub._Publisher()
    with layer_at("unix:///nowhere/valkey.sock"):
        publisher._thread = object()  # type: ignore[assignment]  # no thread takes them away
        for n in range(5):
            publisher.enqueue(Hint(Subject.LOGS, job_id="3f9k2m7qx4ta", attempt=1, upto=n))
    assert publisher._take() == [Hint(Subject.LOGS, job_id="3f9k2m7qx4ta", attempt=1, upto=4)]


async def test_a_subscription_that_swallows_its_cancellation_ends_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A layer that is cancelled while it subscribes may raise another error; unsubscribing must not hang."""
    swallowed = []

    async def stubborn() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if not swallowed:
                swallowed.append(True)
                raise KeyError("channel") from None
            raise

    monkeypatch.setattr(pubsub, "_receive_once", stubborn)
    async with asyncio.timeout(60):
        async with pubsub.subscribed(lambda hint: None):
            await asyncio.sleep(0.01)
    assert swallowed
