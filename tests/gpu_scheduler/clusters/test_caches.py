"""What a cache may show, when a missing gang is gone, and what a watch reports after a gap."""

from __future__ import annotations

import json
import socket
import threading
from pathlib import Path

import pytest

from gpu_scheduler.clusters.base import STALE_S, Absences, GangReport, Observation
from gpu_scheduler.clusters.cache import GangCache
from gpu_scheduler.clusters.local import feed
from gpu_scheduler.clusters.local.client import Address
from gpu_scheduler.clusters.local.journal import KEPT, Journal

X, Y = GangReport("job-x-1", ()), GangReport("job-y-1", ())


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def filled(clock: Clock) -> GangCache:
    cache = GangCache(clock)
    cache.replace([X, Y], 7)
    return cache


def test_a_cache_shows_what_it_holds_with_the_time_of_the_last_message() -> None:
    clock = Clock()
    cache = filled(clock)
    clock.now += 2
    cache.update([], [], 7)
    clock.now += 1
    assert cache.observation(None) == Observation({"job-x-1": X, "job-y-1": Y}, 102.0)
    assert cache.observation(["job-y-1"]) == Observation({"job-y-1": Y}, 102.0)


def test_a_missing_name_is_a_matter_for_the_cluster() -> None:
    cache = filled(Clock())
    cache.update([], ["job-x-1"], 8)
    assert cache.observation(["job-x-1"]) is None


def test_a_cache_answers_nothing_once_it_is_stale_or_its_stream_broke() -> None:
    clock = Clock()
    cache = filled(clock)
    clock.now += STALE_S + 0.1
    assert cache.observation(None) is None
    cache.update([], [], 7)
    assert cache.observation(None) is not None
    cache.lose()
    assert cache.observation(None) is None


def test_a_change_does_not_complete_a_lost_or_empty_cache_but_is_reported() -> None:
    for cache in (filled(Clock()), GangCache(Clock())):
        reported: list[set[str]] = []
        cache.watches.add(reported.append)
        cache.lose()
        cache.update([X], ["job-y-1"], 8)
        assert cache.observation(None) is None
        assert cache.observation(["job-x-1"]) is None
        assert reported == [{"job-x-1", "job-y-1"}]


def test_a_feed_waits_longer_after_each_error_up_to_a_bound_until_a_change_arrives(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The daemon answers with an error, then with one change, then with errors again."""
    change = {"all": True, "changed": [], "gone": [], "revision": 1}
    refusal = {"ok": False, "error": "bad_request", "message": "op: 'watch' is unknown"}
    answers = [[refusal]] * 6 + [[change, refusal]] + [[refusal]]
    with socket.socket(socket.AF_UNIX) as daemon:
        daemon.bind(str(tmp_path / "socket"))
        daemon.listen()
        (tmp_path / "key").write_text("the-key-of-a-node-daemon-under-test")
        stream = feed._Stream(Address(tmp_path / "socket", tmp_path / "key"), GangCache())
        pauses: list[float] = []
        monkeypatch.setattr(stream._closed, "wait", pauses.append)
        stream.start()
        for number, lines in enumerate(answers):
            connection, _ = daemon.accept()
            with connection, connection.makefile("rwb") as both:
                both.readline()
                if number == len(answers) - 1:
                    stream._closed.set()
                both.write(b"".join(json.dumps(line).encode() + b"\n" for line in lines))
        stream.join()
    assert pauses[:6] == [0.5, 1, 2, 4, 8, 8]
    assert pauses[6:] == [0.5, 1]


def test_a_cache_that_lags_behind_an_own_effect_answers_nothing() -> None:
    cache = filled(Clock())
    cache.require(9)
    assert cache.observation(["job-x-1"]) is None
    cache.update([X], [], 9)
    assert cache.observation(["job-x-1"]) is not None


def test_after_a_gap_a_watch_reports_every_gang_known_before_or_now() -> None:
    reported: list[set[str]] = []
    cache = filled(Clock())
    cache.watches.add(reported.append)
    cache.lose()
    cache.replace([Y, GangReport("job-z-1", ())], 20)
    assert reported == [{"job-x-1", "job-y-1", "job-z-1"}]


def seen(
    at: float, *gangs: GangReport, complete: bool = True, not_found: tuple[str, ...] = ()
) -> Observation:
    return Observation({gang.name: gang for gang in gangs}, at, complete, frozenset(not_found))


def test_a_direct_answer_proves_an_absence() -> None:
    assert Absences().is_gone("job-x-1", seen(1, not_found=("job-x-1",)))


def test_two_complete_observations_prove_an_absence_if_the_second_is_later_and_soon() -> None:
    absences = Absences()
    assert not absences.is_gone("job-x-1", seen(1))
    assert not absences.is_gone("job-x-1", seen(1)), "the same cache again"
    assert not absences.is_gone("job-x-1", seen(1.1)), "what repeats old answers may do so for a moment"
    assert absences.is_gone("job-x-1", seen(3))
    assert not Absences().is_gone("job-y-1", seen(1))
    assert not absences.is_gone("job-x-1", seen(500)), "the first one was long ago"


def test_an_incomplete_observation_and_a_gang_that_is_seen_again_prove_nothing() -> None:
    absences = Absences()
    assert not absences.is_gone("job-x-1", seen(1, complete=False))
    assert not absences.is_gone("job-x-1", seen(2, complete=False))
    assert not absences.is_gone("job-x-1", seen(3))
    assert not absences.is_gone("job-x-1", seen(4, X))
    assert not absences.is_gone("job-x-1", seen(5))


def test_a_journal_lists_the_newest_changes_first_and_everything_to_who_is_far_behind() -> None:
    lock = threading.RLock()
    journal = Journal(lock)
    start = journal.revision
    with lock:
        assert journal.since(None, 0) is None
        for name in ("a", "b", "a"):
            journal.changed(name)
        assert journal.since(start, 0) == ["a", "b"]
        assert journal.since(journal.revision, 0) == []
        for number in range(KEPT):
            journal.changed(str(number))
        assert journal.since(start, 0) is None
        assert journal.since(journal.revision + 1, 0) is None, "of another daemon"
