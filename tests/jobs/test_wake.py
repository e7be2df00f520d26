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
    monkeypatch.setattr(wake, "APART_S", 2.0)
    notifier = wake._CycleNotifier()
    for _ in range(50):
        notifier.notify()
    assert sent == ["jobs.tasks.run_cycle"]
    deadline = time.monotonic() + 60
    while len(sent) < 2:
        assert time.monotonic() < deadline, "the others were forgotten"
        time.sleep(0.01)
    assert len(sent) == 2


def test_a_broker_that_does_not_answer_is_asked_once_and_then_left_in_peace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A request that waited for it, or asked it again for each hint, would keep a person."""
    asked: list[dict[str, object]] = []

    def away(task: str, **options: object) -> None:
        asked.append(options)
        raise OSError("connection refused")

    monkeypatch.setattr(wake, "_silent_until", 0.0)
    monkeypatch.setattr(wake, "SILENCE_S", 600.0)
    monkeypatch.setattr(wake.current_app, "send_task", away)
    for _ in range(3):
        wake._send("jobs.tasks.run_cycle", ())
    assert [options["retry"] for options in asked] == [False]


def test_requests_apart_are_sent_at_once(sent: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wake, "APART_S", 0.0)
    notifier = wake._CycleNotifier()
    notifier.notify()
    notifier.notify()
    assert len(sent) == 2
