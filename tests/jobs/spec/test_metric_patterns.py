"""Patterns that read metrics: useful ones pass, those that could stop a log do not."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from jobs.spec.regexes import MATCHED_CHARS, pattern_fault

GOOD = [
    r"step=(?P<step>\d+) loss=(?P<loss>\S+)",
    r"Epoch (?P<step>\d+)/\d+.*loss: (?P<loss>[\d.e+-]+).*acc: (?P<acc>[\d.]+)",
    r"(?i)loss\s*[:=]\s*(?P<loss>-?\d+(?:\.\d+)?)",
    r"^\[(?P<time>[^\]]+)\] loss (?P<loss>[0-9.]{1,20})",
    r"(?:train|valid) loss (?P<loss>\S+)",
    r"loss[=: ]+(?P<loss>[-+\d.eE]+)",
    r"step (?P<step>\d+).*loss (?P<loss>\S+)",
    r"(?P<step>\d+)/\d+ \[.*loss=(?P<loss>[\d.]+)",
    r"\b(?P<step>\d+).*loss (?P<loss>\S+)",
    r"(?P<step>\d+)\s+(?P<loss>\d+\.\d+)\s+(?P<acc>\d+\.\d+)",
    r"loss\s*=\s*(?P<loss>[-+]?\d*\.?\d+(?:[eE][-+]?\d+)?)",
    r"Epoch:? *\[?(?P<step>\d+)\]?.*?loss[ :=]+(?P<loss>[\d.]+)",
    r"\b(?P<step>\d+)(?:/\d+)? loss (?P<loss>\S+)",
    r"^(?P<step>\d+),(?P<loss>[^,]+),(?P<acc>[^,]+)$",
    r"(?: a=(?P<a>\d+))?(?: b=(?P<b>\d+))?(?: c=(?P<c>\d+))? d=(?P<d>\d+)",
]
SLOW = [
    r"x(?P<a>\d+)\d+\d+y",
    r"x(?P<a>\d+)\d+\d+\d+\d+y",
    r"x(?P<a>[0-9]+)[0-9]+[0-9]+[0-9]+y",
    r"x(?P<a>a*)a*a*a*a*b",
    r"x(?P<a>1{0,200})1{0,200}1{0,200}1{0,200}1{0,200}y",
    r"(?P<a>x)1{0,200}1{0,200}1{0,200}1{0,200}y",
    r"(?P<a>1{1,100})1{1,100}1{1,100}y",
    f"x(?P<a>1?){'1?' * 34}{'1' * 35}y",
    r"(?P<a>\d+)\w+y",
    r"(?P<step>\d+).*loss (?P<loss>\S+)",
    r"x(?P<a>(?:\d+){3})y",
    r"x(?P<a>\w+)(?:1|11)?(?:1|11)?(?:1|11)?(?:1|11)?y",
    f"(?P<a>a){'(?:a1|a1)' * 30}y",
    r"(?P<a>\w+)(?:ab){0,200}(?:=|:)y",
    r"(?P<a>(?:a?a?a?)*)y",
    r"(?P<a>(?:(?:(?:){200}){200}){200})",
    r"x(?P<a>\d+)[^,]+[^,]+y",
]
"""Each takes seconds to years on one of the lines below."""
BAD = {
    r"(?P<a>(x+)+)y": "regex_unsafe",
    r"(?P<a>(?:x*)*)y": "regex_unsafe",
    r"(?P<a>(?:x|x)*)y": "regex_unsafe",
    r"(?P<a>(?:x{1,9}){1,9})y": "regex_unsafe",
    r"(?P<a>x{1,5000})": "regex_unsafe",
    r"(?P<a>.*).*.*x": "regex_unsafe",
    r".*(?P<a>x)": "regex_unsafe",
    r"(?P<a>x)(?P=a)": "regex_unsafe",
    r"(?P<a>x)(?<=y)": "regex_unsafe",
    r"(?P<a>x)(?!y)": "regex_unsafe",
    "".join(f"(?P<g{n}>x+)," for n in range(13)): "regex_unsafe",
    "".join(f"(?P<g{n}>x)" for n in range(21)): "regex_too_many",
    r"loss=(\S+)": "regex_no_metric",
    r"step=(?P<step>\d+)": "regex_no_metric",
    r"(?P<a>x": "regex_syntax",
    r"(?P<1>x)": "regex_syntax",
    r"(?P<a>[)": "regex_syntax",
    r"(?P<a>x{5,2})": "regex_syntax",
}
CPU_S = 2.0  # several times what the slowest allowed pattern needs; slow ones need minutes
PIECES = [
    r"\d+", r"\d*", r"[0-9]+", "1?", "1{0,9}", "1{0,200}", r"\w+", r"\S+", "[^,]+", "a*", "a+?", "(?:ab)*",
    "(?:ab){0,9}", "(?:a|ab)", "(?:1|11)?", "(?:a1|a1)", "x", ",", " ", "a", "1", "loss=", "(?:=|:)", r"\s*", r"\b",
    "^", "$", r"\d{3}", "1{20}", "[1a]{20}", "-?", r"(?:\.\d+)?", r"(?:\d+ )?", r"(?:\d,){2}", "[a-z ]+", r"\D*", "y",
]  # fmt: skip
EVIL = ["x" * 5000, "loss=" * 1000, "1" * 5000, "loss 1." * 800, " " * 5000, "Epoch 1/1" * 600, "[" * 5000]


@pytest.mark.parametrize("pattern", GOOD)
def test_useful_pattern_is_taken_and_cannot_stop_a_log(pattern: str) -> None:
    assert pattern_fault(pattern) is None
    for line in EVIL:
        began = time.process_time()
        re.search(pattern, line[:MATCHED_CHARS])
        assert time.process_time() - began < CPU_S


@pytest.mark.parametrize("pattern", BAD)
def test_bad_pattern_is_refused_by_its_code(pattern: str) -> None:
    fault = pattern_fault(pattern)
    assert fault is not None
    assert fault[0] == BAD[pattern]


@pytest.mark.parametrize("pattern", SLOW)
def test_pattern_whose_parts_take_the_same_characters_is_refused(pattern: str) -> None:
    fault = pattern_fault(pattern)
    assert fault is not None
    assert fault[0] == "regex_unsafe"


def test_refusal_names_the_parts_and_the_way_out() -> None:
    fault = pattern_fault(r"x(?P<a>\d+)\d+\d+y")
    assert fault is not None
    assert fault[1] == (
        r"can take very long on one line, because \d+ can take the same characters as \d+ before it: "
        "join them, or put fixed text between them that they cannot match"
    )
    start = pattern_fault(r"(?P<a>[a-z.]+)[.]*[a-z.]*y")
    assert start is not None
    assert "can begin at every character" in start[1]


@given(
    st.lists(st.sampled_from(PIECES), min_size=1, max_size=6),
    st.sampled_from(["", "x", "loss=", "1,"]),
    st.sampled_from(["1", "a", "ab", "1,", "a1", "1 ", "1=", "loss=1 "]),
    st.integers(0, 4),
    st.sampled_from(["1", "ab", " ", "x1", ",", "!"]),
)
@example(["x", r"\d+", r"\d+", r"\d+", "y"], "x", "1", 4, "1")
def test_pattern_that_is_taken_is_quick_on_hostile_lines(
    pieces: list[str], begin: str, unit: str, quarters: int, filler: str
) -> None:
    pattern = f"(?P<m>{pieces[0]}){''.join(pieces[1:])}"
    if pattern_fault(pattern) is not None:
        return
    line = (begin + (unit * MATCHED_CHARS)[: quarters * 1000] + filler * MATCHED_CHARS)[:MATCHED_CHARS]
    began = time.process_time()
    re.search(pattern, line)
    assert time.process_time() - began < CPU_S
