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

from jobs import announce
from jobs.announce import Hint, Kind


@pytest.fixture
def heard() -> Iterator[list[Hint]]:
    hints: list[Hint] = []
    announce.listen(hints.append)
    yield hints
    announce.unlisten(hints.append)


@contextlib.contextmanager
def layer_at(url: str) -> Iterator[None]:
    """The process's channel layer on this address, and a bell that has not rung yet."""
    from channels_redis.pubsub import RedisPubSubChannelLayer

    before = channel_layers.set("default", RedisPubSubChannelLayer(hosts=[url], prefix=f"t{time.time_ns()}"))
    bell, announce._bell = announce._bell, announce._Bell()  # the old one's thread goes on undisturbed
    try:
        yield
    finally:
        channel_layers.set("default", before)
        announce._bell = bell


def test_a_listener_in_the_same_process_hears_at_once(heard: list[Hint]) -> None:
    announce.job_changed("3f9k2m7qx4ta", 7, 12)
    assert heard == [Hint(Kind.JOB, job_id="3f9k2m7qx4ta", tenant_id=7, upto=12)]


def test_a_listener_that_fails_disturbs_neither_the_caller_nor_the_next_listener(heard: list[Hint]) -> None:
    def broken(hint: Hint) -> None:
        raise RuntimeError("broken")

    announce._listeners.insert(0, broken)
    try:
        announce.cluster_changed()
    finally:
        announce.unlisten(broken)
    assert heard == [Hint(Kind.CLUSTER)]


@pytest.fixture
def senders(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The threads that spoke with Valkey, by name: a caller is never kept if it is none of them."""
    names: list[str] = []
    began, send = threading.Event(), announce._Bell._send

    async def noted(bell: announce._Bell, hints: list[Hint]) -> None:
        names.append(threading.current_thread().name)
        began.set()
        await send(bell, hints)

    monkeypatch.setattr(announce._Bell, "_send", noted)
    yield names
    assert began.wait(60)
    assert set(names) == {"doorbell"}


def test_an_absent_valkey_costs_the_caller_nothing(heard: list[Hint], senders: list[str]) -> None:
    with layer_at("unix:///nowhere/valkey.sock"):
        for n in range(1_000):
            announce.job_changed("3f9k2m7qx4ta", 7, n)
    assert len(heard) == 1_000


def test_a_valkey_that_accepts_and_never_answers_costs_the_caller_nothing(senders: list[str]) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as mute,
        layer_at(f"redis://127.0.0.1:{mute.getsockname()[1]}/0"),
    ):
        for n in range(1_000):
            announce.logs_grew("3f9k2m7qx4ta", attempt=1, rank=0, upto=n)


async def test_another_process_hears_through_valkey() -> None:
    heard: list[Hint] = []
    with layer_at(os.environ["REDIS_URL"]):
        async with announce.listening(heard.append):
            elsewhere = announce._Bell()
            elsewhere.name = "elsewhere"
            deadline = time.monotonic() + 60
            while not heard and time.monotonic() < deadline:
                elsewhere.pass_on(Hint(Kind.METRICS, job_id="3f9k2m7qx4ta", upto=3))
                await asyncio.sleep(0.05)
    assert heard[0] == Hint(Kind.METRICS, job_id="3f9k2m7qx4ta", upto=3)


def test_hints_that_wait_melt_into_the_newest() -> None:
    bell = announce._Bell()
    with layer_at("unix:///nowhere/valkey.sock"):
        bell._thread = object()  # type: ignore[assignment]  # nobody takes them away
        for n in range(5):
            bell.pass_on(Hint(Kind.LOGS, job_id="3f9k2m7qx4ta", attempt=1, upto=n))
    assert bell._take() == [Hint(Kind.LOGS, job_id="3f9k2m7qx4ta", attempt=1, upto=4)]


async def test_an_ear_that_swallows_its_cancellation_ends_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A layer that is cancelled while it subscribes may raise another error; whoever stops listening must not hang."""
    swallowed = []

    async def stubborn() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if not swallowed:
                swallowed.append(True)
                raise KeyError("channel") from None
            raise

    monkeypatch.setattr(announce, "_hear_once", stubborn)
    async with asyncio.timeout(60):
        async with announce.listening(lambda hint: None):
            await asyncio.sleep(0.01)
    assert swallowed
