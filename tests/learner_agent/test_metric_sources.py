"""Where points come from: reports, rules over the log, TensorBoard files; whatever else is in them is skipped."""

from __future__ import annotations

import json
import math
import struct
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learner_agent.log_segments import LogWriter
from learner_agent.shipper.metrics import PointSource
from learner_agent.shipper.metrics.event_files import NotAnEventFile, Scalar, records, scalars
from learner_agent.shipper.metrics.log_rules import DRAWINGS, NOT_STORED, LogRules
from learner_agent.shipper.metrics.reported import ReportedMetrics
from learner_agent.shipper.metrics.tensorboard import TensorBoard
from learner_agent.spool import Spool
from learner_agent.wire import Metric, decode, encode
from learner_agent.wire_fields import MAX_POINTS, Point


def iter_frames(source: PointSource) -> Iterator[Metric]:
    """The frames of all that a source has."""
    while (frame := source.read()) is not None:
        assert frame.next >= frame.off
        assert len(frame.points) <= MAX_POINTS
        assert decode(encode(frame)) == frame
        source.confirm(frame)
        yield frame


def drain(source: PointSource) -> list[Point]:
    """All points a source has, frame by frame."""
    return [point for frame in iter_frames(source) for point in frame.points]


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    made = Spool(tmp_path / "state")
    made.root.mkdir()
    made.create()
    return made


# --- metrics.jsonl


@pytest.mark.parametrize(
    ("written", "at_ms"),
    [
        (1_700_000_000.5, 1_700_000_000_500),
        (253_402_300_798, 253_402_300_798_000),
        (1_700_000_000_500, 0),  # milliseconds: the year 55,000, which Python does not read
        (0, 0),
        (-1, 0),
        (float("nan"), 0),
        ("1700000000", 0),
    ],
)
def test_a_time_that_is_none_is_unknown(spool: Spool, written: Any, at_ms: int) -> None:
    spool.metrics.write_text(json.dumps({"step": 1, "time": written, "loss": 0.5}) + "\n")
    assert drain(ReportedMetrics(spool)) == [("loss", 1, at_ms, 0.5)]


def test_any_program_may_write_reports_and_what_is_no_report_is_skipped(spool: Spool) -> None:
    lines = [
        '{"step": 1, "time": 1700000000.5, "loss": 0.5, "acc": 1}', "not json", "[1]", '{"loss": 1}',
        '{"step": -1, "loss": 1}', '{"step": 2.0, "loss": "NaN", "name": "text", "ok": true, "nested": {}}',
        '{"step": 3, "loss": "-Infinity", "total": 9}', '{"step": "4", "loss": 1}', "[" * 5000, "",
    ]  # fmt: skip
    spool.metrics.write_text("\n".join(lines) + "\n" + '{"step": 5, "loss"')
    source = ReportedMetrics(spool)

    points = drain(source)

    assert [(name, step) for name, step, _, _ in points] == [
        ("loss", 1),
        ("acc", 1),
        ("loss", 2),
        ("loss", 3),
    ]
    assert points[0][2] == 1_700_000_000_500
    assert math.isnan(points[2][3])
    assert points[3][3] == -math.inf
    with spool.metrics.open("a") as more:
        more.write(": 7}\n")
    assert [(step, value) for _, step, _, value in drain(source)] == [(5, 7.0)]


def test_a_million_bytes_of_reports_come_in_batches_and_once(spool: Spool) -> None:
    spool.metrics.write_text("".join(json.dumps({"step": n, "loss": n / 2}) + "\n" for n in range(30_000)))

    points = drain(ReportedMetrics(spool))

    assert [step for _, step, _, _ in points] == list(range(30_000))


def test_a_line_without_end_does_not_stop_what_follows(spool: Spool) -> None:
    spool.metrics.write_bytes(b"x" * 700_000 + b"\n" + b'{"step": 1, "loss": 1}\n')

    assert [point[1] for point in drain(ReportedMetrics(spool))] == [1]


def test_lines_of_many_metrics_lose_none_and_too_long_ones_are_reported(spool: Spool) -> None:
    reported: list[str] = []
    lines = [json.dumps({"step": step, **{f"m{n}": 1.0 for n in range(900)}}) for step in range(5)]
    spool.metrics.write_text("\n".join(lines) + "\n")

    assert len(drain(ReportedMetrics(spool, reported.append))) == 4500
    assert reported == []
    for junk, says in (
        ({f"m{n}": 1 for n in range(MAX_POINTS + 1)}, "has more than 2,000 metrics"),
        ({"m" * 70_000: 1}, "is longer than 64 KiB"),
        ({"m" * 700_000: 1}, "is longer than 64 KiB"),
    ):
        spool.metrics.write_text(json.dumps({"step": 1, **junk}) + "\n")
        reported.clear()
        drain(ReportedMetrics(spool, reported.append))
        assert [says in one for one in reported] == [True]


def test_steps_without_a_number_are_reports_too(spool: Spool) -> None:
    lines = ['{"step": 4, "time": 1}', '{"step": 5}', '{"step": 9, "total": 50}', '{"step": 30, "loss": 1}']
    spool.metrics.write_text(
        "\n".join([*lines, '{"step": -1}', '{"step": true}', '{"step": 99, "loss": "x"}', ""])
    )
    skipped: list[str] = []
    frame = ReportedMetrics(spool, skipped.append).read()
    assert frame is not None
    assert (frame.steps, frame.total, [point[:2] for point in frame.points]) == ((4, 9), 50, [("loss", 30)])
    assert decode(encode(frame)) == frame
    assert len(skipped) == 1, "the first that says nothing is named"


def test_steps_without_a_number_give_points_of_their_time_once_a_second(spool: Spool) -> None:
    source = ReportedMetrics(spool)

    def timed(*lines: dict[str, float]) -> list[tuple[str, int, float]]:
        with spool.metrics.open("a") as report:
            report.writelines(json.dumps(line) + "\n" for line in lines)
        return [(name, step, pytest.approx(value)) for name, step, _, value in drain(source)]

    name = "seconds_per_step"
    quick = [{"step": 10 + n, "time": 1_000 + n / 10} for n in range(25)]
    assert timed(*quick) == [(name, 20, 0.1), (name, 30, 0.1)]
    assert timed({"step": 34, "time": 1_003.0}) == [(name, 34, 0.25)], "over frames"
    assert timed({"step": 34, "time": 1_009}, {"step": 36}) == [], "no step was made, no time was said"
    assert timed({"step": 2, "time": 1_010}, {"step": 4, "time": 1_014}) == [(name, 38, 2)], (
        "a counter was set back: the next distance after the point before"
    )
    assert timed({"step": 5, "time": 9}, {"step": 6, "time": 12}) == [(name, 40, 3)], "a clock was set back"
    assert timed({"step": 7, "time": 14, "loss": 1}, {"step": 8, "time": 16}) == [
        ("loss", 7, 1),
        (name, 42, 2),
    ]
    own = {"step": 9, "time": 18, name: 5}
    assert timed(own, {"step": 10, "time": 30}) == [(name, 43, 5)], "the program's own are left alone"


def test_a_frame_that_is_read_again_has_the_same_times(spool: Spool) -> None:
    spool.metrics.write_text("".join(f'{{"step": {n}, "time": {100 + n}}}\n' for n in range(1, 5)))
    source = ReportedMetrics(spool)
    first = source.read()
    assert first is not None
    assert first == source.read()
    source.confirm(first)
    source.rewind(first.next)
    with spool.metrics.open("a") as report:
        report.write('{"step": 5, "time": 105}\n')
    assert drain(source) == [("seconds_per_step", 5, 105_000, 1.0)]
    source.rewind(0)
    assert [step for _, step, _, _ in drain(source)] == [2, 3, 4, 5], "nothing is timed from what comes later"


def lines(*rows: dict[str, Any]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


TWELVE = [
    {"step": step, "time": 1_000 + 10 * epoch + step, "loss": 12.0 - epoch}
    for epoch in range(12)
    for step in range(5)
]
"""Five steps that begin again with each of twelve epochs."""
Note = Callable[[str, str], None]


def reported(spool: Spool, notes: list[tuple[str, str]] | None = None, **more: Any) -> ReportedMetrics:
    found = [] if notes is None else notes
    return ReportedMetrics(spool, on_note=lambda code, message: found.append((code, message)), **more)


def event_files(spool: Spool, notes: list[tuple[str, str]] | None = None, **more: Any) -> TensorBoard:
    found = [] if notes is None else notes
    note: Note = lambda code, message: found.append((code, message))  # noqa: E731
    return TensorBoard(spool, [spool.root.parent / "tb"], note, scan_every_s=0.0, **more)


def write_events(spool: Spool, rows: list[dict[str, Any]], name: str = "events.out.tfevents.1.host") -> None:
    folder = spool.root.parent / "tb"
    folder.mkdir(exist_ok=True)
    with (folder / name).open("ab") as out:
        for row in rows:
            out.write(record(event(row["step"], simple("loss", row["loss"]))))


def test_steps_that_are_reported_from_the_beginning_again_draw_every_point_in_order(spool: Spool) -> None:
    spool.metrics.write_text(lines(*TWELVE))
    notes: list[tuple[str, str]] = []

    frames = list(iter_frames(reported(spool, notes)))

    points = [point for frame in frames for point in frame.points]
    assert places(points) == list(range(60))
    assert [value for _, _, _, value in points][-1] == 1.0
    assert [(frame.in_order, frame.steps, frame.fell_ms) for frame in frames] == [
        (["loss"], (0, 4), 1_110_000)
    ]
    assert [code for code, _ in notes] == ["step_fell_back"]
    assert "of loss in metrics.jsonl fell back from 4 to 0" in notes[0][1]


def test_event_files_whose_steps_begin_again_draw_every_point_in_order(spool: Spool) -> None:
    """In one file, and in a new one as each call of Keras' fit writes it."""
    write_events(spool, TWELVE[:30])
    write_events(spool, TWELVE[30:], "events.out.tfevents.2.host")
    notes: list[tuple[str, str]] = []

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
                out.write(record(event(step, simple("loss", 1.0 + rank), at=1_000.0 + step + rank / 10)))
    notes: list[tuple[str, str]] = []
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
    notes: list[tuple[str, str]] = []
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


def test_the_last_step_is_the_highest_since_steps_fell_back(spool: Spool) -> None:
    rows = [
        {"step": 3000, "loss": 1},
        {"step": 10, "loss": 1, "time": 5},
        {"step": 20, "loss": 1},
        {"step": 15, "val": 1},
    ]
    spool.metrics.write_text(lines(*rows))
    (frame,) = iter_frames(reported(spool))
    assert (frame.steps, frame.fell_ms) == ((10, 20), 5_000)
    with spool.metrics.open("a") as more:
        more.write(lines({"step": 7}, {"step": 3, "time": 9}))
    after = reported(spool)
    after.rewind(frame.next)
    (frame,) = iter_frames(after)
    assert (frame.steps, frame.fell_ms) == ((3, 3), 9_000), "steps without a number, too"


def test_reports_of_a_later_attempt_go_on_after_those_in_order(spool: Spool) -> None:
    spool.metrics.write_text(lines(*({"step": n, "loss": n, "acc": n} for n in (501, 502))))
    write_events(spool, [{"step": n, "loss": n} for n in (501, 502)])
    (frame,) = iter_frames(reported(spool, ends={"loss": 60}))
    assert places(frame.points) == [561, 562]
    assert places(frame.points, "acc") == [501, 502]
    assert (frame.in_order, frame.steps, frame.fell_ms) == (["loss"], (501, 502), None)
    assert places(drain(event_files(spool, ends={"loss": 60}))) == [561, 562]


def test_totals_travel_with_their_batch(spool: Spool) -> None:
    spool.metrics.write_text('{"step": 1, "total": 50, "loss": 1}\n{"step": 2, "loss": 1}\n')

    frame = ReportedMetrics(spool).read()

    assert frame is not None
    assert frame.total == 50


# --- rules


def log(spool: Spool, text: bytes) -> None:
    writer = LogWriter(spool)
    for at in range(0, len(text), 37):  # lines are cut anywhere
        writer.write(text[at : at + 37], 1_700_000_000_000)
    writer.close()


def test_rules_find_steps_and_values_in_lines_however_they_were_cut(spool: Spool) -> None:
    log(spool, b"".join(b"noise\nstep=%d loss=%.3f lr=1e-4\n" % (n, n / 8) for n in range(100)))
    source = LogRules(spool, [r"step=(?P<step>\d+) loss=(?P<loss>\S+) lr=(?P<lr>\S+)"])

    points = drain(source)

    assert [(step, value) for name, step, _, value in points if name == "loss"] == [
        (n, n / 8) for n in range(100)
    ]
    assert {value for name, _, _, value in points if name == "lr"} == {1e-4}
    assert points[0][2] == 1_700_000_000_000


def test_without_a_step_matching_lines_are_counted(spool: Spool) -> None:
    log(spool, b"loss 3\nother\nloss 2\nloss nan\nloss high\nloss 1%\n")

    points = drain(LogRules(spool, [r"loss (?P<loss>\S+)"]))

    assert [(step, str(value)) for _, step, _, value in points] == [
        (1, "3.0"),
        (2, "2.0"),
        (3, "nan"),
        (5, "1.0"),
    ]


def test_a_rule_without_step_belongs_to_the_last_step_seen(spool: Spool) -> None:
    log(spool, b"Epoch 7\nval 0.5\nEpoch 8\nval 0.25\n")

    points = drain(LogRules(spool, [r"Epoch (?P<step>\d+)", r"val (?P<val>\S+)"]))

    assert [(step, value) for _, step, _, value in points] == [(7, 0.5), (8, 0.25)]


def test_a_time_in_a_line_says_when_it_was_and_is_no_metric(spool: Spool) -> None:
    log(
        spool,
        b"t=1700000100.5 loss=1\nt=2023-11-14T22:15:00Z loss=2\nt=noon loss=3\nt=1700000100500 loss=4\n",
    )

    points = drain(LogRules(spool, [r"t=(?P<time>\S+) loss=(?P<loss>\S+)"]))

    printed = 1_700_000_000_000
    assert [(name, value, at_ms - printed) for name, _, at_ms, value in points] == [
        ("loss", 1.0, 100_500),
        ("loss", 2.0, 100_000),
        ("loss", 3.0, 0),
        ("loss", 4.0, 0),
    ]


def test_a_step_that_is_no_whole_number_or_too_large_gives_nothing(spool: Spool) -> None:
    steps = (b"1", b"99999999999999999999", b"9" * 4_000, b"1.5", b"-3", b"two", "²".encode(), b"2")
    log(spool, b"".join(b"%s|loss=1\n" % step for step in steps))

    points = drain(LogRules(spool, [r"^(?P<step>\S+)\|loss=(?P<loss>\S+)"]))

    assert [step for _, step, _, _ in points] == [1, 2]


def test_rules_read_colored_lines_as_people_see_them(spool: Spool) -> None:
    log(spool, b"\x1b[31mstep=11\x1b[0m acc=\x1b[1;38:5:9m0.5\x1b[0m\n\x1b[Kstep=\x1b[32m12\x1b[m acc=0.75\n")

    points = drain(LogRules(spool, [r"^step=(?P<step>\d+) acc=(?P<acc>\S+)$"]))

    assert [(step, value) for _, step, _, value in points] == [(11, 0.5), (12, 0.75)]


def test_a_progress_bar_counts_with_its_last_drawing(spool: Spool) -> None:
    log(spool, b"step=1 loss=9\rstep=1 loss=5\r\nstep=2 loss=4\n")

    points = drain(LogRules(spool, [r"step=(?P<step>\d+) loss=(?P<loss>\S+)"]))

    assert [(step, value) for _, step, _, value in points] == [(1, 5.0), (2, 4.0)]


def test_rules_go_on_where_they_were_confirmed_after_a_restart(spool: Spool) -> None:
    log(spool, b"loss 1\nloss 2\nlo")
    first = LogRules(spool, [r"loss (?P<loss>\S+)"])
    assert len(drain(first)) == 2
    writer = LogWriter(spool)
    writer.size = 16
    writer.write(b"ss 3\n", 1)

    again = LogRules(spool, [r"loss (?P<loss>\S+)"])

    assert [(step, value) for _, step, _, value in drain(again)] == [(3, 3.0)]


LOSS = r"step=(?P<step>\d+) loss=(?P<loss>\S+)"
Notes = list[tuple[str, str]]


def rules(spool: Spool, *patterns: str, notes: Notes | None = None, **more: Any) -> LogRules:
    def note(code: str, message: str) -> None:
        if notes is not None:
            notes.append((code, message))

    return LogRules(spool, patterns or [LOSS], on_note=note, **more)


def epochs(count: int, steps: int) -> bytes:
    lines = [(e, n) for e in range(count) for n in range(1, steps + 1)]
    return b"".join(b"step=%d loss=%d\n" % (n, 100 * e + n) for e, n in lines)


def places(points: list[Point], name: str = "loss") -> list[int]:
    return [step for found, step, _, _ in points if found == name]


def test_a_step_that_begins_again_with_every_epoch_draws_every_point_in_order(spool: Spool) -> None:
    log(spool, epochs(3, 20))
    notes: Notes = []
    source = rules(spool, notes=notes)

    frames = list(iter_frames(source))

    points = [point for frame in frames for point in frame.points]
    assert places(points) == list(range(1, 61))
    assert [value for _, _, _, value in points][-1] == 220
    assert any("loss" in frame.in_order for frame in frames)
    assert [code for code, _ in notes] == ["step_fell_back"]
    assert "fell back from 20 to 1" in notes[0][1]


def test_a_step_that_only_counts_up_stays_the_programs_step(spool: Spool) -> None:
    log(spool, b"".join(b"step=%d loss=1\n" % n for n in (0, 100, 900, 938)))
    frames = list(iter_frames(rules(spool)))
    assert places([point for frame in frames for point in frame.points]) == [0, 100, 900, 938]
    assert not any(frame.in_order for frame in frames)


@pytest.mark.parametrize(
    ("pattern", "line"),
    [
        (r"(?P<step>\d+)/\d+ - .*loss: (?P<loss>\S+)", "938/938 - 2s - 2ms/step - loss: 0.{loss}"),
        (
            r"Epoch: \d+ \[(?P<step>\d+)/.*Loss: (?P<loss>\S+)",
            "Train Epoch: 1 [0/60000 (0%)]\tLoss: 0.{loss}",
        ),
    ],
)
@pytest.mark.parametrize("cut", [0, 2])
def test_a_step_that_is_printed_once_in_each_epoch_gives_a_point_of_each(
    spool: Spool, pattern: str, line: str, cut: int
) -> None:
    """As Keras' verbose=2 and MNIST of PyTorch's examples with one line an epoch."""
    written = [f"Epoch {loss}/9\n{line.format(loss=loss)}\n".encode() for loss in (9, 8, 8, 7, 6)]
    notes: Notes = []
    log(spool, b"".join(written[:cut]))
    frames = list(iter_frames(rules(spool, pattern, notes=notes)))
    writer = LogWriter(spool)
    writer.size = sum(map(len, written[:cut]))
    writer.write(b"".join(written[cut:]), 1)
    frames += iter_frames(rules(spool, pattern, notes=notes))

    points = [point for frame in frames for point in frame.points]
    assert [value for _, _, _, value in points] == [0.9, 0.8, 0.7, 0.6], (
        "the same value again may be the same line"
    )
    assert len(set(places(points))) == 4
    assert [(code, "again, with another value" in said) for code, said in notes] == [("step_fell_back", True)]
    assert any(frame.in_order for frame in frames)


def test_two_rules_that_read_one_line_do_not_make_two_epochs_of_it(spool: Spool) -> None:
    log(spool, b"".join(b"step=%d loss=1 (test loss=2)\n" % n for n in (1, 2)))
    frames = list(iter_frames(rules(spool, LOSS, r"step=(?P<step>\d+) .*test loss=(?P<loss>\d)")))
    assert places([point for frame in frames for point in frame.points]) == [1, 2]
    assert not any(frame.in_order for frame in frames)


def test_an_epochs_distance_between_lines_is_kept_in_the_next(spool: Spool) -> None:
    log(spool, b"".join(b"step=%d loss=%d\n" % (n, n) for n in (0, 100, 200, 0, 100, 200)))
    assert places(drain(rules(spool))) == [0, 100, 200, 300, 400, 500]


def test_a_rule_with_an_axis_of_its_own_keeps_its_steps(spool: Spool) -> None:
    log(spool, b"".join(epochs(1, 4) + b"epoch %d acc=0.%d\n" % (e, e) for e in (1, 2, 3)))
    frames = list(iter_frames(rules(spool, LOSS, r"epoch (?P<step>\d+) acc=(?P<acc>\S+)")))
    points = [point for frame in frames for point in frame.points]
    assert places(points, "acc") == [1, 2, 3]
    assert places(points) == list(range(1, 13))
    assert {name for frame in frames for name in frame.in_order} == {"loss"}


def test_a_rule_without_step_follows_one_whose_step_begins_again(spool: Spool) -> None:
    log(spool, b"".join(epochs(1, 4) + b"val 0.%d\n" % e for e in (1, 2, 3)))
    points = drain(rules(spool, LOSS, r"val (?P<val>\S+)"))
    assert places(points, "val") == [4, 8, 12]


@pytest.mark.parametrize("cut", [1, 19, 20, 21, 45])
def test_a_restarted_shipper_goes_on_where_it_was_on_an_axis_that_fell_back(spool: Spool, cut: int) -> None:
    lines = epochs(3, 20).splitlines(keepends=True)
    log(spool, b"".join(lines[:cut]))
    first = drain(rules(spool))
    writer = LogWriter(spool)
    writer.size = sum(map(len, lines[:cut]))
    writer.write(b"".join(lines[cut:]), 1)
    assert places(first + drain(rules(spool))) == list(range(1, 61))


def test_a_later_attempt_goes_on_after_the_points_of_the_one_before(spool: Spool) -> None:
    log(spool, epochs(2, 5))
    frames = list(iter_frames(rules(spool, ends={"loss": 60})))
    assert places([point for frame in frames for point in frame.points]) == list(range(61, 71))
    assert all(frame.in_order == ["loss"] for frame in frames if frame.points)


def test_a_later_attempt_counts_lines_on(spool: Spool) -> None:
    log(spool, b"loss 3\nloss 2\n")
    assert places(drain(rules(spool, r"loss (?P<loss>\S+)", ends={"loss": 8}))) == [9, 10]


def test_points_that_are_not_stored_are_counted_with_the_reason(spool: Spool) -> None:
    notes: Notes = []
    log(
        spool,
        b"step=1 loss=1\nval=1\n"
        + b"val=2\n" * 12
        + b"val=1\nstep=1 loss=1\nstep=2 loss=n/a\nstep=x loss=1\n",
    )
    source = rules(spool, r"step=(?P<step>\S+) loss=(?P<loss>\S+)", r"val=(?P<val>\d)", notes=notes)
    source.end()
    found = drain(source)
    assert (places(found), places(found, "val")) == ([1], [1])
    assert set(notes) == {
        ("points_not_stored", NOT_STORED["no_number"].format(n="1 point was")),
        ("points_not_stored", NOT_STORED["no_step"].format(n="1 point was")),
        ("points_not_stored", NOT_STORED["same_step"].format(n="12 points were")),
    }
    assert len(notes) == 3


def bar(spool: Spool, drawings: Iterable[tuple[int, bytes]]) -> None:
    """Drawings of a progress bar, each with the milliseconds at which it was printed."""
    writer = LogWriter(spool)
    for at_ms, text in drawings:
        writer.write(b"\r" + text, 1_700_000_000_000 + at_ms)
    writer.close()


def tqdm(n: int, of: int) -> bytes:
    return b"%3d%%|\xe2\x96\x88  | %d/%d [00:01<00:02, 9.0it/s, loss=%d]" % (100 * n // of, n, of, n)


TQDM = r"\| (?P<step>\d+)/\d+ \[.*loss=(?P<loss>\d+)"


def test_a_bar_of_15_steps_gives_its_15_points(spool: Spool) -> None:
    bar(spool, ((60 * n, tqdm(n, 15)) for n in range(1, 16)))
    source = rules(spool, TQDM)
    early = places(drain(source))
    assert early == list(range(1, 14)), "what is drawn may change until the next step is"
    source.end()
    assert early + places(drain(source)) == list(range(1, 16))


def test_a_bar_that_draws_a_step_again_with_other_values_gives_one_point_of_it(spool: Spool) -> None:
    """Also where other output came between, so that the drawing before counts already."""
    writer = LogWriter(spool)
    for loss in (9, 8, 7):
        drawn = tqdm(5, 15).replace(b"loss=5", b"loss=%d" % loss)
        writer.write(b"\r" + drawn + b"\r" + drawn.replace(b"loss=", b"loss=1") + b"\na warning\n", 1)
        writer.write(b"\r" + drawn + b"\rval 1\n", 1)
    writer.write(b"\r" + tqdm(6, 15) + b"\n", 1)
    writer.close()
    notes: Notes = []
    frames = list(iter_frames(rules(spool, TQDM, notes=notes)))
    assert places([point for frame in frames for point in frame.points]) == [5, 6]
    assert not any(frame.in_order for frame in frames)


def test_a_bar_shows_its_current_value_while_it_is_one_endless_line(spool: Spool) -> None:
    bar(spool, ((1_000 * n, tqdm(n, 9_000)) for n in range(1, 1_001)))
    source = rules(spool, TQDM)
    points = drain(source)
    assert places(points) == list(range(1, 999))
    assert points[-1][2] == 1_700_000_000_000 + 998_000


def test_a_bar_drawn_all_the_time_is_read_twice_a_second(spool: Spool) -> None:
    notes: Notes = []
    bar(spool, ((10 * n, tqdm(n, 9_000)) for n in range(1, 9_001)))  # 90 s
    source = rules(spool, TQDM, notes=notes)
    source.end()
    points = drain(source)
    assert 180 <= len(points) <= 2 * 90 + DRAWINGS + 2
    assert places(points)[-1] == 9_000, "the last drawing is always read"
    assert [code for code, _ in notes][-1] == "points_not_stored"
    assert "Of a progress bar, " in notes[-1][1]


def test_a_bar_that_no_rule_reads_is_not_reported(spool: Spool) -> None:
    notes: Notes = []
    bar(spool, ((n, b"Downloading %d%%" % n) for n in range(1_000)))
    source = rules(spool, TQDM, notes=notes)
    source.end()
    assert (drain(source), notes) == ([], [])


@pytest.mark.parametrize("ends", [b"\n", b"\r\n", b"\r\r\n"])
def test_lines_of_any_system_are_lines(spool: Spool, ends: bytes) -> None:
    log(spool, b"".join(b"step=%d loss=1%s" % (n, ends) for n in range(1, 9)))
    assert places(drain(rules(spool))) == list(range(1, 9))


def test_the_last_line_counts_without_its_newline(spool: Spool) -> None:
    log(spool, b"step=1 loss=1\nstep=2 loss=1")
    source = rules(spool)
    assert places(drain(source)) == [1]
    source.end()
    assert places(drain(source)) == [2]
    assert places(drain(rules(spool))) == [], "not again after a restart"


@pytest.mark.parametrize(
    "damage", [b"[]", b"{", b'{"off": -1}', b'{"axes": 3}', b'{"axes": [{"place": "x"}]}', b'{"tail": "zz"}']
)
def test_a_damaged_state_begins_again(spool: Spool, damage: bytes) -> None:
    log(spool, b"step=1 loss=1\n")
    (spool.root / "shipper").mkdir(exist_ok=True)
    (spool.root / "shipper" / "rules.json").write_bytes(damage)
    assert places(drain(rules(spool))) == [1]


@pytest.mark.parametrize(
    ("slow", "line"),
    [
        (r"x(?P<a>\d+)\d+\d+\d+\d+y", b"x" + b"1" * 4000),
        (r"x(?P<a>a*)a*a*a*a*b", b"x" + b"a" * 4000),
        (r"(?P<a>\d+)\w+\w+\w+y", b"1" * 4000),
        (f"(?P<a>a){'(?:a1|a1)' * 30}y", b"a" + b"a1" * 2000),
        (r"(?P<a>(?:a?a?a?)*)y", b"a" * 4000),
        (r"(?P<a>(?:(?:(?:){200}){200}){200})y", b"a" * 4000),
        (r"x(?P<a>\d+)[^,]+[^,]+[^,]+y", b"x" + b"1" * 4000),
    ],
)
def test_a_rule_too_slow_on_a_line_is_switched_off_and_reported_once(
    spool: Spool, slow: str, line: bytes
) -> None:
    """Each would take from seconds to years."""
    log(spool, b"loss 1\n" + (line + b"\nloss 2\n") * 3)
    reported: list[str] = []
    rules = LogRules(spool, [slow, r"loss (?P<loss>\S+)"], reported.append)

    began = time.process_time()
    points = drain(rules)

    assert [value for _, _, _, value in points] == [1.0, 2.0, 2.0, 2.0]
    assert reported == [slow]
    assert time.process_time() - began < 2


def test_lines_that_are_many_do_not_switch_a_rule_off(spool: Spool) -> None:
    log(spool, b"loss 1\n" * 20_000)
    reported: list[str] = []

    assert len(drain(LogRules(spool, [r"loss (?P<loss>\S+)"], reported.append))) == 20_000
    assert reported == []


# --- TensorBoard


def varint(value: int) -> bytes:
    out = b""
    while True:
        value, low = value >> 7, value & 127
        out += bytes([low | (128 if value else 0)])
        if not value:
            return out


def field(number: int, content: bytes | int) -> bytes:
    if isinstance(content, int):
        return varint(number << 3) + varint(content)
    return varint(number << 3 | 2) + varint(len(content)) + content


def simple(tag: str, value: float) -> bytes:
    return field(5, field(1, field(1, tag.encode()) + varint(2 << 3 | 5) + struct.pack("<f", value)))


def tensor(tag: str, kind: int, content: bytes, number: int = 4) -> bytes:
    return field(5, field(1, field(1, tag.encode()) + field(8, field(1, kind) + field(number, content))))


def event(step: int, summary: bytes, at: float = 1_700_000_000.25) -> bytes:
    return varint(1 << 3 | 1) + struct.pack("<d", at) + field(2, step) + summary


def record(content: bytes) -> bytes:
    return struct.pack("<Q", len(content)) + b"sum1" + content + b"sum2"


def test_both_ways_of_writing_a_scalar_are_read() -> None:
    assert scalars(event(3, simple("loss", 0.5))) == [Scalar("loss", 3, 1_700_000_000.25, 0.5)]
    assert scalars(event(4, tensor("acc", 1, struct.pack("<f", 0.25)))) == [
        Scalar("acc", 4, 1_700_000_000.25, 0.25)
    ]
    assert scalars(event(4, tensor("n", 9, varint(77), number=10))) == [
        Scalar("n", 4, 1_700_000_000.25, 77.0)
    ]
    assert scalars(event(4, tensor("hist", 1, struct.pack("<ff", 1, 2)))) == []
    assert scalars(event(4, tensor("text", 7, b"words", number=8))) == []


@given(st.binary(max_size=300))
def test_garbled_events_give_nothing_and_raise_nothing(content: bytes) -> None:
    assert isinstance(scalars(content), list)
    try:
        assert isinstance(list(records(content)), list)
    except NotAnEventFile:
        pass


def test_event_files_are_followed_while_they_grow_with_their_run_as_prefix(
    spool: Spool, tmp_path: Path
) -> None:
    (tmp_path / "tb" / "train").mkdir(parents=True)
    path = tmp_path / "tb" / "train" / "events.out.tfevents.1.host"
    whole = record(event(0, b"")) + record(event(1, simple("loss", 0.5)))
    torn = record(event(2, simple("loss", math.inf)))
    path.write_bytes(whole + torn[:20])
    source = TensorBoard(spool, [tmp_path / "tb", tmp_path / "absent"], scan_every_s=0.0)

    assert drain(source) == [("train/loss", 1, 1_700_000_000_250, 0.5)]
    with path.open("ab") as more:
        more.write(torn[20:])
    assert drain(source) == [("train/loss", 2, 1_700_000_000_250, math.inf)]

    again = TensorBoard(spool, [tmp_path / "tb"], scan_every_s=0.0)
    assert drain(again) == []


def test_pictures_among_the_scalars_are_stepped_over(spool: Spool, tmp_path: Path) -> None:
    path = tmp_path / "tb" / "events.out.tfevents.1"
    path.parent.mkdir()
    path.write_bytes(record(b"\x00" * 3_000_000) + record(event(5, simple("loss", 1.0))))

    assert [point[1] for point in drain(TensorBoard(spool, [path.parent], scan_every_s=0.0))] == [5]


def test_a_file_that_only_looks_like_one_is_left_alone(spool: Spool, tmp_path: Path) -> None:
    (tmp_path / "tb").mkdir()
    (tmp_path / "tb" / "notes-on-tfevents.txt").write_text("just a text about tfevents\n" * 10)

    assert drain(TensorBoard(spool, [tmp_path / "tb"], scan_every_s=0.0)) == []


def test_hundreds_of_event_files_are_not_read_again_after_a_restart(spool: Spool, tmp_path: Path) -> None:
    roots = [tmp_path / "tb"]
    for number in range(500):
        run = roots[0] / f"a-run-with-a-name-of-some-length-{number:04}"
        run.mkdir(parents=True)
        (run / "events.out.tfevents.1700000000.learner-0").write_bytes(record(event(1, simple("loss", 1.0))))
    assert len(drain(TensorBoard(spool, roots, scan_every_s=0.0))) == 500

    assert drain(TensorBoard(spool, roots, scan_every_s=0.0)) == []


def test_what_was_written_since_the_last_look_is_read_at_the_end(spool: Spool, tmp_path: Path) -> None:
    path = tmp_path / "events.out.tfevents.1"
    path.write_bytes(record(event(1, simple("loss", 1.0))))
    source = TensorBoard(spool, [tmp_path])
    assert [point[1] for point in drain(source)] == [1]
    with path.open("ab") as file:
        file.write(record(event(2, simple("loss", 2.0))))
    assert drain(source) == [], "it looks every two seconds"
    source.end()
    assert [point[1] for point in drain(source)] == [2]


def test_none_means_nothing_left_also_in_a_file_that_was_read_before(spool: Spool, tmp_path: Path) -> None:
    first, second = (tmp_path / f"events.out.tfevents.{n}" for n in (1, 2))
    for path in (first, second):
        path.write_bytes(record(event(1, simple("loss", 1.0))))
    source = TensorBoard(spool, [tmp_path], scan_every_s=0.0)
    for _ in range(2):
        frame = source.read()
        assert frame is not None
        source.confirm(frame)
    with first.open("ab") as file:
        file.write(record(event(7, simple("loss", 2.0))))
    assert [point[1] for point in drain(source)] == [7]


def test_a_full_disk_costs_a_source_no_point(
    spool: Spool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "events.out.tfevents.1").write_bytes(record(event(1, simple("loss", 1.0))))
    log(spool, b"step=4 loss=2\n")

    def full(*_args: object, **_fields: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(spool, "write", full)
    rules = LogRules(spool, [r"step=(?P<step>\d+) loss=(?P<loss>\S+)"])

    assert [point[1] for point in drain(rules)] == [4]
    assert [point[1] for point in drain(TensorBoard(spool, [tmp_path], scan_every_s=0.0))] == [1]
