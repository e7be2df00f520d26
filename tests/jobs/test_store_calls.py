"""Calls to a store on other machines: how many at once, and which are refused while it does not respond."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from jobs import blobs
from jobs.blobs import calls
from jobs.blobs.calls import Places
from jobs.blobs.errors import StoreSilent, StoreUnavailable

WITHIN_S = 60


@contextmanager
def under_way(places: Places, count: int) -> Iterator[None]:
    """So many calls in threads of their own, until the end of the block."""
    began, ends = threading.Barrier(count + 1), threading.Event()

    def call() -> None:
        with places.one():
            began.wait(WITHIN_S)
            ends.wait(WITHIN_S)

    threads = [threading.Thread(target=call) for _ in range(count)]
    for thread in threads:
        thread.start()
    began.wait(WITHIN_S)
    yield
    ends.set()
    for thread in threads:
        thread.join()


def is_refused(places: Places) -> bool:
    try:
        with places.one():
            return False
    except StoreUnavailable:
        return True


def falls_silent(places: Places) -> None:
    with pytest.raises(StoreSilent), places.one():
        raise StoreSilent


def test_a_call_beyond_the_places_is_refused_at_once_while_one_takes_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(calls, "SLOW_S", 0)
    monkeypatch.setattr(calls, "WAIT_S", WITHIN_S)
    places = Places(2)
    with under_way(places, 1):
        assert not is_refused(places)
    with under_way(places, 2):
        assert is_refused(places)
    assert not is_refused(places)


def test_a_call_waits_for_a_place_while_the_store_responds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "SLOW_S", WITHIN_S)
    monkeypatch.setattr(calls, "WAIT_S", WITHIN_S)
    places, refused = Places(1), []
    with under_way(places, 1):
        waiting = threading.Thread(target=lambda: refused.append(is_refused(places)))
        waiting.start()
    waiting.join(WITHIN_S)
    assert refused == [False]


def test_while_the_store_is_silent_one_call_at_a_time_finds_out_whether_it_is_back() -> None:
    places = Places(3)
    falls_silent(places)
    with under_way(places, 1):
        assert is_refused(places)
        assert is_refused(places)
    with under_way(places, 3):
        pass  # it responded


def test_a_refusal_of_the_store_is_a_response() -> None:
    places = Places(2)
    falls_silent(places)
    with pytest.raises(FileNotFoundError), places.one():
        raise FileNotFoundError
    with under_way(places, 2):
        pass


def test_a_call_within_another_one_needs_no_place() -> None:
    places = Places(1)
    with places.one(), places.one():
        pass
    with under_way(places, 1):
        pass


def test_a_web_process_keeps_half_of_its_threads_for_other_requests() -> None:
    from portal.asgi_handler import AT_ONCE, ThreadedHandler

    ThreadedHandler()
    with under_way(blobs.places, AT_ONCE // 2):
        assert AT_ONCE > 2
