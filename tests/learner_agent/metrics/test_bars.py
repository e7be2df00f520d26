"""Points that rules find in progress bars."""

from __future__ import annotations

from collections.abc import Iterable

from learner_agent.log_segments import LogWriter
from learner_agent.shipper.metrics.log_rules import DRAWINGS
from learner_agent.spool import Spool
from tests.learner_agent.metrics.sources import (
    Notes,
    drain,
    iter_frames,
    places,
    rules,
)


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
