"""Points of metrics.jsonl, which a program may write in any way."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from learner_agent.shipper.metrics.reported import ReportedMetrics
from learner_agent.spool import Spool
from learner_agent.wire import decode, encode
from learner_agent.wire_fields import MAX_POINTS
from tests.learner_agent.metrics.sources import (
    EPOCH_S,
    drain,
    iter_frames,
    lines,
    reported,
)


@pytest.mark.parametrize(
    ("written", "at_ms"),
    [
        (1_700_000_000.5, 1_700_000_000_500),
        (253_402_300_798, 253_402_300_798_000),
        (1_700_000_000_500, 0),  # milliseconds: the year 55,000, which Python does not read
        (0, 0),
        (0.031, 0),  # of one step
        (86_400.0, 0),  # since the program began
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
    quick = [{"step": 10 + n, "time": EPOCH_S + 1_000 + n / 10} for n in range(25)]
    assert timed(*quick) == [(name, 20, 0.1), (name, 30, 0.1)]
    assert timed({"step": 34, "time": EPOCH_S + 1_003.0}) == [(name, 34, 0.25)], "over frames"
    assert timed({"step": 34, "time": EPOCH_S + 1_009}, {"step": 36}) == [], (
        "no step was made, no time was said"
    )
    assert timed({"step": 2, "time": EPOCH_S + 1_010}, {"step": 4, "time": EPOCH_S + 1_014}) == [
        (name, 38, 2)
    ], "a counter was set back: the next distance after the point before"
    assert timed({"step": 5, "time": EPOCH_S + 9}, {"step": 6, "time": EPOCH_S + 12}) == [(name, 40, 3)], (
        "a clock was set back"
    )
    assert timed({"step": 7, "time": EPOCH_S + 14, "loss": 1}, {"step": 8, "time": EPOCH_S + 16}) == [
        ("loss", 7, 1),
        (name, 42, 2),
    ]
    own = {"step": 9, "time": EPOCH_S + 18, name: 5}
    assert timed(own, {"step": 10, "time": EPOCH_S + 30}) == [(name, 43, 5)], (
        "the program's own are left alone"
    )


def test_a_frame_that_is_read_again_has_the_same_times(spool: Spool) -> None:
    spool.metrics.write_text("".join(f'{{"step": {n}, "time": {EPOCH_S + n}}}\n' for n in range(1, 5)))
    source = ReportedMetrics(spool)
    first = source.read()
    assert first is not None
    assert first == source.read()
    source.confirm(first)
    source.rewind(first.next)
    with spool.metrics.open("a") as report:
        report.write(lines({"step": 5, "time": EPOCH_S + 5}))
    assert drain(source) == [("seconds_per_step", 5, (EPOCH_S + 5) * 1000, 1.0)]
    source.rewind(0)
    assert [step for _, step, _, _ in drain(source)] == [2, 3, 4, 5], "nothing is timed from what comes later"


def test_the_last_step_is_the_highest_since_steps_fell_back(spool: Spool) -> None:
    rows = [
        {"step": 3000, "loss": 1},
        {"step": 10, "loss": 1, "time": EPOCH_S + 5},
        {"step": 20, "loss": 1},
        {"step": 15, "val": 1},
    ]
    spool.metrics.write_text(lines(*rows))
    (frame,) = iter_frames(reported(spool))
    assert (frame.steps, frame.fell_ms) == ((10, 20), (EPOCH_S + 5) * 1000)
    with spool.metrics.open("a") as more:
        more.write(lines({"step": 7}, {"step": 3, "time": EPOCH_S + 9}))
    after = reported(spool)
    after.rewind(frame.next)
    (frame,) = iter_frames(after)
    assert (frame.steps, frame.fell_ms) == ((3, 3), (EPOCH_S + 9) * 1000), "steps without a number, too"


def test_totals_travel_with_their_batch(spool: Spool) -> None:
    spool.metrics.write_text('{"step": 1, "total": 50, "loss": 1}\n{"step": 2, "loss": 1}\n')

    frame = ReportedMetrics(spool).read()

    assert frame is not None
    assert frame.total == 50
