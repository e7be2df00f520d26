"""Ids of jobs: their shape, and that they sort by the time at which they were made."""

from __future__ import annotations

import time

import pytest

from jobs import ids


def test_ids_that_are_made_one_after_the_other_sort_in_that_order() -> None:
    made = [ids.new_id() for _ in range(5_000)]
    assert made == sorted(set(made))
    assert all(ids.is_job_id(each) for each in made)


def test_the_first_six_characters_are_the_seconds_of_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ids, "_last", 0)
    monkeypatch.setattr(time, "time", lambda: ids.EPOCH_S + 32 * 5 + 7.999)
    assert {ids.new_id()[:6] for _ in range(20)} == {"000057"}


def test_ids_increase_although_the_clock_is_set_back_a_little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ids, "_last", 0)
    monkeypatch.setattr(time, "time", lambda: ids.EPOCH_S + 100.0)
    first = ids.new_id()
    monkeypatch.setattr(time, "time", lambda: ids.EPOCH_S + 98.5)
    assert first < ids.new_id() < ids.new_id()


def test_ids_are_by_the_clock_again_after_it_was_far_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ids, "_last", 0)
    monkeypatch.setattr(time, "time", lambda: ids.EPOCH_S + 32.0 * 32 * 32)
    assert ids.new_id()[:6] == "001000"
    monkeypatch.setattr(time, "time", lambda: ids.EPOCH_S + 33.0)
    first = ids.new_id()
    assert first[:6] == "000011"
    assert first < ids.new_id() < ids.new_id()
