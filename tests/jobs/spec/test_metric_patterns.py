"""Patterns that read metrics: useful ones pass, those that take forever by their form do not."""

from __future__ import annotations

import json
import re

import pytest

from jobs.spec import SpecError, parse, rules
from jobs.spec.definition import MAX_METRIC_RULES
from jobs.spec.regexes import pattern_fault

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
    "(?i)[\u4e00-\u9fff]+[\u3040-\u30ff]* (?P<loss>[^a-z]+) [\U00020000-\U0002ffff]?",
    r"(?: a=(?P<a>\d+))?(?: b=(?P<b>\d+))?(?: c=(?P<c>\d+))? d=(?P<d>\d+)",
]
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
    "(?i)(?P<a>x)" + "".join(f"[\x01-{chr(0xFF00 + n)}]" for n in range(90)): "regex_unsafe",
    "(?P<a>x)(?i:[\x01-\uff00][\x01-\uff01])": "regex_unsafe",
    "(?P<a>[" + "".join(f"\x01-{chr(0xFF00 + n)}" for n in range(100)) + "])": "regex_unsafe",
    r"loss=(\S+)": "regex_no_metric",
    r"step=(?P<step>\d+)": "regex_no_metric",
    r"(?P<a>x": "regex_syntax",
    r"(?P<1>x)": "regex_syntax",
    r"(?P<a>[)": "regex_syntax",
    r"(?P<a>x{5,2})": "regex_syntax",
}


@pytest.mark.parametrize("pattern", GOOD)
def test_useful_pattern_is_taken(pattern: str) -> None:
    assert pattern_fault(pattern) is None


@pytest.mark.parametrize("pattern", BAD)
def test_bad_pattern_is_refused_by_its_code(pattern: str) -> None:
    fault = pattern_fault(pattern)
    assert fault is not None
    assert fault[0] == BAD[pattern]


def test_what_is_refused_by_its_form_is_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """A large class without case takes 4 ms; 90 of them in each of many rules held a web process for minutes."""
    compiled: list[str] = []
    monkeypatch.setattr(re, "compile", compiled.append)
    for pattern in (one for one, code in BAD.items() if code == "regex_unsafe"):
        pattern_fault(pattern)
    assert compiled == []
    pattern_fault(GOOD[0])
    assert compiled == [GOOD[0]]


def test_no_more_rules_are_looked_at_than_a_spec_may_have(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[str] = []
    monkeypatch.setattr(rules, "pattern_fault", looked.append)
    many = [{"pattern": f"x{n}=(?P<x>\\d+)"} for n in range(1000)]
    spec = {"apiVersion": "luthier/v1", "name": "x", "image": "x", "command": "true", "metrics": many}
    with pytest.raises(SpecError, match="has 1000 entries"):
        parse(json.dumps(spec))
    assert len(looked) == MAX_METRIC_RULES
