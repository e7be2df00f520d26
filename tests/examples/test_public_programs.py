"""The comparison of public programs with what they print finds a lost, a changed and a moved point."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest

from bench import public_programs
from bench.public_programs import Outcome, Points, Program
from jobs.spec.parsing import parse

PROGRAMS = public_programs.programs()


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda one: one.name)
def test_what_a_program_needs_is_a_valid_spec(program: Program) -> None:
    spec: dict[str, Any] = {
        "apiVersion": "luthier/v1",
        "name": program.name,
        "code": {"upload": "3f9k2m7qx4ta"},
    }
    assert parse({**spec, "resources": public_programs.RESOURCES, **program.spec}).command


def test_the_data_is_never_below_tmp_which_programs_need_for_themselves(tmp_path: Path) -> None:
    """A learner has a /tmp of its own unless something that it reaches is there: JAX's examples write to it."""
    assert public_programs.data_folder(public_programs.SCRATCH)
    with pytest.raises(argparse.ArgumentTypeError, match="is below /tmp"):
        public_programs.data_folder("/tmp/data")
    (tmp_path / "link").symlink_to("/tmp")
    with pytest.raises(argparse.ArgumentTypeError, match="is below /tmp"):
        public_programs.data_folder(str(tmp_path / "link" / "data"))


def test_there_are_ten_programs_of_five_projects() -> None:
    assert len({one.name for one in PROGRAMS}) >= 10
    assert {one.checkout.partition("/")[0] for one in PROGRAMS} >= {
        "karpathy", "pytorch", "keras-team", "jax-ml", "Lightning-AI",
    }  # fmt: skip


def test_of_a_repeated_step_the_newest_attempts_point_counts_and_the_older_one_is_superseded() -> None:
    attempts = [[(0, 9.0), (1, 8.0), (2, 7.0)], [(1, 8.5), (2, 7.5), (3, 6.5)]]
    newest, superseded = [(0, 9.0), (1, 8.5), (2, 7.5), (3, 6.5)], [(1, 8.0), (2, 7.0)]
    assert public_programs.at_steps(attempts) == newest + superseded


@pytest.mark.parametrize(
    ("points", "is_whole"),
    [
        ([(1, 5.0), (2, 4.0), (3, 6.0), (4, 3.0)], True),
        ([(1, 5.0), (2, 4.0), (3, 3.0), (4, 6.0)], False),
        ([(1, 5.0), (2, 4.0), (3, 6.0)], False),
        ([(1, 5.0), (2, 4.0), (3, 6.0), (4, 3.1)], False),
    ],
    ids=["whole", "in another order", "one lost", "one changed"],
)
def test_points_without_steps_are_those_of_all_attempts_and_the_newest_come_last(
    points: Points, is_whole: bool
) -> None:
    attempts: list[Points] = [[(None, 5.0), (None, 4.0)], [(None, 6.0), (None, 3.0)]]
    expected, shown = public_programs.in_order(attempts, points, [])
    assert (expected == shown) == is_whole


def test_a_bar_may_show_less_than_was_drawn_and_nothing_else() -> None:
    drawn: list[Points] = [[(1, 5.0), (2, 4.0), (3, 3.0)]]
    expected, shown = public_programs.of_bars(drawn, [(1, 5.0), (3, 3.0)])
    assert expected == shown
    expected, shown = public_programs.of_bars(drawn, [(1, 5.0), (3, 2.9)])
    assert len(expected) < len(shown)


def test_points_that_are_no_numbers_are_compared_as_what_they_are() -> None:
    assert public_programs.is_same(float("nan"), "NaN")
    assert public_programs.is_same(float("-inf"), "-Infinity")
    assert not public_programs.is_same(float("inf"), "-Infinity")


def test_what_was_seen_of_a_program_replaces_its_row_alone() -> None:
    page = public_programs.PAGE.read_text()
    again = Outcome(PROGRAMS[1], "COMPLETED", 14, 15, "Halted.", 3, ["a.pt"])
    shown = public_programs.with_rows(page, [again])
    was, now = page.splitlines(), shown.splitlines()
    [changed] = [n for n, (before, after) in enumerate(zip(was, now, strict=True)) if before != after]
    assert was[changed].startswith(f"| {PROGRAMS[1].name} (")
    assert now[changed] == public_programs.row(again)
    assert public_programs.with_rows(page, []) == page
    rows = [line.split(" ")[1] for line in was if line.startswith("| ") and " (" in line]
    assert [name for name in rows if name in {one.name for one in PROGRAMS}] == [one.name for one in PROGRAMS]
