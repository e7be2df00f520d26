"""Asking for the scheduler's look: at once for the first, once more for all that follow closely."""

from __future__ import annotations

import time

import pytest

from jobs import wake


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    tasks: list[str] = []
    monkeypatch.setattr(wake, "_send", lambda task, args: tasks.append(task))
    return tasks


def test_many_requests_are_two_messages(sent: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wake, "APART_S", 0.5)
    bell = wake._CycleBell()
    for _ in range(50):
        bell.ring()
    assert sent == ["jobs.tasks.run_cycle"]
    deadline = time.monotonic() + 20
    while len(sent) < 2:
        assert time.monotonic() < deadline, "the others were forgotten"
        time.sleep(0.01)
    assert len(sent) == 2


def test_requests_apart_are_sent_at_once(sent: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wake, "APART_S", 0.0)
    bell = wake._CycleBell()
    bell.ring()
    bell.ring()
    assert len(sent) == 2
