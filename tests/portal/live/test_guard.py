"""Those who watch are asked again whether they may: soon after a change, and never let in by an error."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from django.db import OperationalError

from portal.live import guard
from portal.live.frames import StoreDown
from portal.live.guard import Guard
from tenants.models import User


class Socket:
    """A watcher that records what it received."""

    watched = ("cluster",)

    def __init__(self, known: Any, *, broken: bool = False) -> None:
        self.known, self.broken = known, broken
        self.received: list[User | None] = []

    def access_checked(self, user: User | None, lost: set[str]) -> None:
        self.received.append(user)
        if self.broken:
            raise RuntimeError("broken")


async def in_side_reader(function: Callable[..., Any], *arguments: Any) -> Any:
    return function(*arguments)


async def for_a_while(kept: Guard, seconds: float) -> None:
    """Keep watch although nothing is to happen."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await kept.run()


async def until(kept: Guard, claim: Callable[[], bool]) -> None:
    """Keep watch until this has come true."""
    watch = asyncio.create_task(kept.run())
    async with asyncio.timeout(60):
        while not claim():
            await asyncio.sleep(0.01)
    watch.cancel()
    with suppress(asyncio.CancelledError):
        await watch


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "STEP_S", 0.01)
    monkeypatch.setattr(guard, "watchable", lambda user, channels: {channel.name for channel in channels})


async def test_a_failed_access_check_grants_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(known: Any) -> User:
        raise LookupError("no such column")

    monkeypatch.setattr(guard, "who", broken)
    monkeypatch.setattr(guard, "CHECK_S", 0.05)
    socket = Socket("alice")
    await until(Guard(lambda: {socket}, in_side_reader), lambda: len(socket.received) > 1)  # type: ignore[arg-type]
    assert set(socket.received) == {None}


async def test_nothing_is_checked_while_the_database_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    async def away(function: Callable[..., Any], *arguments: Any) -> Any:
        asked.append(function)
        raise StoreDown

    asked: list[object] = []
    monkeypatch.setattr(guard, "CHECK_S", 0.05)
    socket = Socket("alice")
    await until(Guard(lambda: {socket}, away), lambda: len(asked) > 1)  # type: ignore[arg-type]
    assert socket.received == []


async def test_a_connection_that_broke_says_nothing_about_rights(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(known: Any) -> User:
        raise OperationalError("server closed the connection unexpectedly")

    monkeypatch.setattr(guard, "who", broken)
    with pytest.raises(OperationalError):
        guard._check("alice", ["cluster"])  # type: ignore[arg-type]


async def test_a_change_of_access_is_checked_at_once_and_otherwise_when_due(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    alice = User(username="alice")
    monkeypatch.setattr(guard, "who", lambda known: alice)
    monkeypatch.setattr(guard, "CHECK_S", 60.0)
    sockets = {Socket("alice"), Socket("bob")}
    kept = Guard(lambda: sockets, in_side_reader)  # type: ignore[arg-type]
    await for_a_while(kept, 0.2)
    assert [socket.received for socket in sockets] == [[], []]
    kept.check_soon()
    await until(kept, lambda: all(socket.received for socket in sockets))
    assert [socket.received for socket in sockets] == [[alice], [alice]]
