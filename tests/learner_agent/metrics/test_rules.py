"""Points that rules find in lines of the log."""

from __future__ import annotations

import time

import pytest

from learner_agent.log_segments import LogWriter
from learner_agent.shipper.metrics import log_rules
from learner_agent.shipper.metrics.log_rules import NOT_STORED, LogRules
from learner_agent.spool import Spool
from learner_agent.wire import Metric
from tests.learner_agent.metrics.sources import (
    LOSS,
    Notes,
    drain,
    epochs,
    iter_frames,
    log,
    places,
    rules,
)


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

    points = drain(rules(spool))

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
@pytest.mark.parametrize("epoch_ms", [0, 1, 2_500])
def test_a_step_that_is_printed_once_in_each_epoch_gives_a_point_of_each(
    spool: Spool, pattern: str, line: str, cut: int, epoch_ms: int
) -> None:
    """As Keras' verbose=2 and MNIST of PyTorch's examples with one line an epoch. Of short epochs it is known at the
    end only that no process printed the step of another."""
    written = [f"Epoch {loss}/9\n{line.format(loss=loss)}\n".encode() for loss in (9, 8, 8, 7, 6)]
    notes: Notes = []
    writer = LogWriter(spool)
    for number, text in enumerate(written[:cut]):
        writer.write(text, 1_700_000_000_000 + number * epoch_ms)
    frames = list(iter_frames(rules(spool, pattern, notes=notes)))
    for number, text in enumerate(written[cut:], cut):
        writer.write(text, 1_700_000_000_000 + number * epoch_ms)
    writer.close()
    source = rules(spool, pattern, notes=notes)
    frames += iter_frames(source)
    seen = [point for frame in frames for point in frame.points]
    assert len(seen) == (4 if epoch_ms >= 1_000 else 1), "long ones are drawn as they end"
    source.end()
    frames += iter_frames(source)

    points = [point for frame in frames for point in frame.points]
    assert [value for _, _, _, value in points] == [0.9, 0.8, 0.7, 0.6], (
        "the same value again may be the same line"
    )
    assert len(set(places(points))) == 4
    assert [(code, "again, with another value" in said) for code, said in notes] == [("step_fell_back", True)]
    assert any(frame.in_order for frame in frames)


@pytest.mark.parametrize("cut", [1, 2, 3, 7])
@pytest.mark.parametrize("step_ms", [0, 600_000])
@pytest.mark.parametrize(
    "patterns", [(LOSS,), (LOSS, r"acc=(?P<acc>\S+)"), (LOSS, r"step=(?P<step>\d+) .*acc=(?P<acc>\S+)")]
)
def test_processes_of_a_learner_that_print_the_same_steps_keep_them(
    spool: Spool, cut: int, step_ms: int, patterns: tuple[str, ...]
) -> None:
    """As those of torchrun do: the first value of a step counts."""
    notes: Notes = []
    writer = LogWriter(spool)
    frames: list[Metric] = []
    printed = [(step, rank) for step in range(1, 6) for rank in range(3)]
    for number, (step, rank) in enumerate(printed):
        line = b"step=%d loss=%d.%d acc=0.%d%d\n" % (step, step, rank, step, rank)
        writer.write(line, 1_700_000_000_000 + step * step_ms + rank)
        if number == cut:  # and the shipper starts again
            frames += iter_frames(rules(spool, *patterns, notes=notes))
    writer.close()
    source = rules(spool, *patterns, notes=notes)
    frames += iter_frames(source)
    source.end()
    frames += iter_frames(source)

    points = [point for frame in frames for point in frame.points]
    assert [(step, value) for name, step, _, value in points if name == "loss"] == [
        (step, float(step)) for step in range(1, 6)
    ]
    assert not any(frame.in_order for frame in frames)
    assert {code for code, _ in notes} == {"points_not_stored"}


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


BEGAN_MS = 1_700_000_000_000
RANKS = b"".join(b"epoch 1 acc=0.%d\n" % rank for rank in (5, 6))
"""What two processes of a learner print at once."""
TWO_AXES = (
    r"epoch (?P<step>\d+) acc=(?P<acc>\S+)",
    r"iter (?P<step>\d+) loss=(?P<loss>\S+)",
    r"lr=(?P<lr>\S+)",
)


@pytest.mark.parametrize("line", [b"iter %d loss=1\n", b"lr=1e-%d\n", b"iter %d loss=1\r"])
def test_other_metrics_do_not_wait_until_it_is_known_whose_a_step_is(spool: Spool, line: bytes) -> None:
    """Of several processes that print the step of an epoch, one prints more. An epoch may take hours."""
    notes: Notes = []
    writer = LogWriter(spool)
    writer.write(RANKS, BEGAN_MS)
    for number in range(1, 10):
        writer.write(line % number, BEGAN_MS + 1_000 * number)
    found = drain(rules(spool, *TWO_AXES, notes=notes))
    shown = [value for name, _, _, value in found if name != "acc"]
    assert len(shown) == {b"i": 9, b"l": 1}[line[:1]] - 2 * line.endswith(b"\r"), "of a bar the last two wait"

    for epoch in (2, 3):
        writer.write(RANKS.replace(b"epoch 1", b"epoch %d" % epoch), BEGAN_MS + epoch * 3_600_000)
    writer.close()
    frames = list(iter_frames(rules(spool, *TWO_AXES, notes=notes)))
    found += [point for frame in frames for point in frame.points]
    assert places(found, "acc") == [1, 2, 3]
    assert not any("acc" in frame.in_order for frame in frames)


@pytest.mark.parametrize("restart", [False, True])
def test_other_metrics_do_not_wait_in_a_program_that_prints_no_more(
    spool: Spool, monkeypatch: pytest.MonkeyPatch, *, restart: bool
) -> None:
    writer = LogWriter(spool)
    writer.write(RANKS + b"lr=1e-1\n", BEGAN_MS)
    source = rules(spool, *TWO_AXES)
    monkeypatch.setattr(log_rules, "now_ms", lambda: BEGAN_MS + 500)
    assert places(drain(source), "lr") == []
    if restart:
        source = rules(spool, *TWO_AXES)
    monkeypatch.setattr(log_rules, "now_ms", lambda: BEGAN_MS + 5_000)
    assert places(drain(source), "lr") == [1]
    assert source.read() is None


def test_what_waits_at_the_end_is_of_epochs_however_late_that_is_read(spool: Spool) -> None:
    """A program of a second, on a busy machine."""
    log(spool, RANKS + b"lr=1e-1\n")
    source = rules(spool, *TWO_AXES)
    source.end()
    assert [value for name, _, _, value in drain(source) if name == "acc"] == [0.5, 0.6]


def test_short_epochs_that_were_taken_for_processes_are_epochs_once_they_are_longer(spool: Spool) -> None:
    writer = LogWriter(spool)
    writer.write(RANKS + b"lr=1e-1\n", BEGAN_MS)
    for number in (1, 2, 3):
        writer.write(b"lr=1e-%d\nepoch 1 acc=0.%d\n" % (number, number), BEGAN_MS + 60_000 * number)
    writer.close()
    found = drain(rules(spool, *TWO_AXES))
    assert [value for name, _, _, value in found if name == "acc"] == [0.5, 0.1, 0.2, 0.3]


@pytest.mark.parametrize("back_ms", [5, 3_600_000])
def test_epochs_are_epochs_after_the_clock_was_set_back(
    spool: Spool, monkeypatch: pytest.MonkeyPatch, back_ms: int
) -> None:
    """Each prints the same step a minute later; the log is read as it is written."""
    writer, source, found = LogWriter(spool), rules(spool, *TWO_AXES), []
    for number in range(1, 6):
        at_ms = BEGAN_MS + 60_000 * number - back_ms * (number > 1)
        writer.write(b"lr=1e-%d\nepoch 1 acc=0.%d\n" % (number, number), at_ms)
        monkeypatch.setattr(log_rules, "now_ms", lambda at_ms=at_ms: at_ms)
        found += drain(source)
    writer.close()
    found += drain(source)
    assert [value for name, _, _, value in found if name == "acc"] == [0.1, 0.2, 0.3, 0.4, 0.5]
