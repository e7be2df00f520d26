"""Steps of reports and event files that begin again, and what a restarted or later shipper makes of them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from learner_agent.spool import Spool
from tests.learner_agent.metrics.sources import (
    EPOCH_S,
    TWELVE,
    Notes,
    drain,
    event,
    event_files,
    iter_frames,
    lines,
    places,
    record,
    reported,
    simple,
    write_events,
)


def test_steps_that_are_reported_from_the_beginning_again_draw_every_point_in_order(spool: Spool) -> None:
    spool.metrics.write_text(lines(*TWELVE))
    notes: Notes = []

    frames = list(iter_frames(reported(spool, notes)))

    points = [point for frame in frames for point in frame.points]
    assert places(points) == list(range(60))
    assert [value for _, _, _, value in points][-1] == 1.0
    assert [(frame.in_order, frame.steps, frame.fell_ms) for frame in frames] == [
        (["loss"], (0, 4), (EPOCH_S + 110) * 1000)
    ]
    assert [code for code, _ in notes] == ["step_fell_back"]
    assert "of loss in metrics.jsonl fell back from 4 to 0" in notes[0][1]


def test_event_files_whose_steps_begin_again_draw_every_point_in_order(spool: Spool) -> None:
    """In one file, and in a new one as each call of Keras' fit writes it."""
    write_events(spool, TWELVE[:30])
    write_events(spool, TWELVE[30:], "events.out.tfevents.2.host")
    notes: Notes = []

    frames = list(iter_frames(event_files(spool, notes)))

    assert places([point for frame in frames for point in frame.points]) == list(range(60))
    assert all(frame.in_order == ["loss"] and frame.fell_ms for frame in frames)
    assert [code for code, _ in notes] == ["step_fell_back"]
    assert "of loss in TensorBoard files fell back from 4 to 0" in notes[0][1]


def test_several_processes_that_write_the_same_steps_have_each_once(spool: Spool) -> None:
    """As torchrun's ranks do, each with a file of its own: they are read one after the other."""
    for rank in range(3):
        folder = spool.root.parent / "tb"
        folder.mkdir(exist_ok=True)
        with (folder / f"events.out.tfevents.{rank}.host").open("wb") as out:
            for step in range(50):
                out.write(record(event(step, simple("loss", 1.0 + rank), at=EPOCH_S + step + rank / 10)))
    notes: Notes = []
    source = event_files(spool, notes)
    frames = list(iter_frames(source))
    source.end()
    assert places([point for frame in frames for point in frame.points]) == list(range(50))
    assert not any(frame.in_order or frame.fell_ms for frame in frames)
    assert {code for code, _ in notes} == {"points_not_stored"}


@pytest.mark.parametrize("save_bytes", [0, 200, 10**9])
@pytest.mark.parametrize("cut", [1, 4, 5, 6, 33])
def test_a_restarted_shipper_sends_reports_to_the_same_places(
    spool: Spool, cut: int, save_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server's cursor says what it has; whether the response was received, or the state was saved, is all one."""
    monkeypatch.setattr("learner_agent.shipper.metrics.reported.SAVE_BYTES", save_bytes)
    spool.metrics.write_text(lines(*TWELVE[:cut]))
    before = reported(spool)
    first = drain(before)
    with spool.metrics.open("a") as more:
        more.write(lines(*TWELVE[cut : cut + 7]))
    unanswered = before.read()
    assert unanswered is not None
    with spool.metrics.open("a") as more:
        more.write(lines(*TWELVE[cut + 7 :]))

    again = reported(spool)
    again.rewind(before.cursor)
    assert places(first + drain(again)) == list(range(60)), "the server has not stored the last frame"

    again = reported(spool)
    again.rewind(unanswered.next)
    assert places(first + unanswered.points + drain(again)) == list(range(60)), "it has"

    again.rewind(0)
    assert places(drain(again)) == list(range(60)), "it was restored from a backup"


@pytest.mark.parametrize("cut", [1, 4, 5, 6, 33])
def test_a_restarted_shipper_sends_events_to_the_same_places(spool: Spool, cut: int) -> None:
    write_events(spool, TWELVE[:cut])
    before = event_files(spool)
    first = drain(before)
    write_events(spool, TWELVE[cut:])
    unanswered = before.read()

    assert places(first + drain(event_files(spool))) == list(range(60))
    assert unanswered is not None
    assert places(first + unanswered.points) == list(range(60)), "the repeat has the same places"
    assert drain(event_files(spool)) == []


def test_what_a_shipper_of_the_version_before_knew_of_event_files_is_read(spool: Spool) -> None:
    write_events(spool, TWELVE[:3])
    path = spool.root.parent / "tb" / "events.out.tfevents.1.host"
    spool.write("shipper/tensorboard.json", {str(path): path.stat().st_size})
    write_events(spool, TWELVE[3:5])
    assert places(drain(event_files(spool))) == [3, 4]


@pytest.mark.parametrize(
    "damage",
    [{"axes": 3}, {"at": -1}, [1], {"axes": {"of": {"loss": {"place": 2**63}}}}, {"offsets": 7, "axes": []}],
)
def test_a_damaged_state_of_a_source_is_made_again(spool: Spool, damage: Any) -> None:
    for name in ("reported", "tensorboard"):
        (spool.root / "shipper").mkdir(exist_ok=True)
        (spool.root / "shipper" / f"{name}.json").write_text(json.dumps(damage))
    spool.metrics.write_text(lines(*TWELVE))
    write_events(spool, TWELVE)
    assert places(drain(reported(spool))) == list(range(60))
    assert places(drain(event_files(spool))) == list(range(60))


def test_steps_that_count_up_stay_the_programs_steps(spool: Spool) -> None:
    rows = [{"step": 10, "loss": 1}, {"step": 1, "val": 1}, {"step": 20, "loss": 1}, {"step": 2, "val": 1}]
    spool.metrics.write_text(lines(*rows))
    (frame,) = iter_frames(reported(spool))
    assert [point[:2] for point in frame.points] == [("loss", 10), ("val", 1), ("loss", 20), ("val", 2)]
    assert (frame.in_order, frame.steps, frame.fell_ms) == ([], None, None), (
        "each metric has a counter of its own"
    )


def test_a_metric_of_the_end_of_each_epoch_has_a_point_of_each(spool: Spool) -> None:
    """At the same step each time: that others began again in between says that it is another one."""
    rows = [
        {"step": step} | ({"loss": epoch + step} if step < 4 else {"val": 0.5})
        for epoch in range(3) for step in range(5)
    ]  # fmt: skip
    spool.metrics.write_text(lines(*rows))
    points = drain(reported(spool))
    assert len(places(points, "val")) == len(set(places(points, "val"))) == 3
    assert places(points) == list(range(12))


def test_another_value_of_a_step_is_counted_and_reported(spool: Spool) -> None:
    """As when each process of a learner reports: the first one counts, and the step stays a step."""
    notes: Notes = []
    spool.metrics.write_text(
        lines(*({"step": n, "loss": n + rank} for n in range(4) for rank in (0, 1, 1, 3)))
    )
    write_events(spool, [{"step": 1, "loss": value} for value in (1.0, 2.0, 1.0)])
    sources = reported(spool, notes), event_files(spool, notes)

    for source in sources:
        frames = list(iter_frames(source))
        assert not any(frame.in_order or frame.fell_ms for frame in frames)
        source.end()

    assert [code for code, _ in notes] == ["points_not_stored"] * 2
    assert "Of metrics.jsonl, 12 points were not stored, because there is another value" in notes[0][1]
    assert "Of TensorBoard files, 1 point was not stored" in notes[1][1]


def test_reports_of_a_later_attempt_go_on_after_those_in_order(spool: Spool) -> None:
    spool.metrics.write_text(lines(*({"step": n, "loss": n, "acc": n} for n in (501, 502))))
    write_events(spool, [{"step": n, "loss": n} for n in (501, 502)])
    (frame,) = iter_frames(reported(spool, ends={"loss": 60}))
    assert places(frame.points) == [561, 562]
    assert places(frame.points, "acc") == [501, 502]
    assert (frame.in_order, frame.steps, frame.fell_ms) == (["loss"], (501, 502), None)
    assert places(drain(event_files(spool, ends={"loss": 60}))) == [561, 562]
