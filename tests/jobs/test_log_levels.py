"""What a line of output is, and that quick looks at many lines find the same as a look at each."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from jobs.log_levels import After, Kind, classify, marks

CASES = json.loads((Path(__file__).parents[1] / "log_levels.json").read_text())
"""Read by tests/scripts/log/lines.test.ts, too."""


def one_by_one(lines: list[str], after: After = After.NOTHING) -> list[Kind]:
    kinds = []
    for line in lines:
        kind, after = classify(line, after)
        kinds.append(kind)
    return kinds


@pytest.mark.parametrize(("name", "lines"), CASES, ids=[case[0] for case in CASES])
def test_what_a_line_is(name: str, lines: list[tuple[str, str]]) -> None:
    assert [kind.name.lower() for kind in one_by_one([text for text, _ in lines])] == [
        kind for _, kind in lines
    ]


def test_many_lines_at_once_are_what_each_of_them_is() -> None:
    """However the lines are mixed, colored, rewritten and cut into parts."""
    random.seed(11)
    known = (
        [text for _, lines in CASES for text, _ in lines]
        + ["step 1 loss 0.5"] * 40
        + ["", "  indented", "E x"]
    )
    for _ in range(60):
        lines = random.choices(known, k=80)
        printed = [
            random.choice(
                [line, f"\x1b[31m{line}\x1b[0m", f"{line}\r", f"Error, 10 %\r{line}" if line else ""]
            )
            for line in lines
        ]
        expected = [(n, kind) for n, kind in enumerate(one_by_one(lines)) if kind]
        found, after, at = [], After.NOTHING, 0
        while at < len(printed):
            part = printed[at : at + random.randint(1, 30)]
            body = "\n".join(part) + "\n"
            some, after = marks(body.encode(), after)
            found += [(at + n, kind) for n, kind in some]
            at += len(part)
        assert found == expected


def test_a_last_line_without_its_end_counts_and_broken_text_is_read_as_far_as_it_goes() -> None:
    assert marks(b"ok\n\xff\xfe ERROR: broken", After.NOTHING)[0] == [(1, Kind.ERROR)]
    assert marks(b"", After.NOTHING) == ([], After.NOTHING)
    assert marks(b"\n\n", After.INSIDE)[0] == [(0, Kind.BODY), (1, Kind.BODY)]
