"""Which regular expressions may read metrics from a log and steps from file names: named groups, and no catastrophic
backtracking by form.

A metric rule runs on every printed line, and its time depends on the line as well: the shipper ends a search that
takes too long, disables the rule and reports it. A rule that would take forever on nearly any line is rejected here,
where its author can still fix it.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from re import _constants as op  # type: ignore[attr-defined]  # not in the stubs
from re import _parser as parser  # type: ignore[attr-defined]  # not in the stubs
from typing import Any

MAX_OPEN_REPEATS = 12
MAX_WILD_REPEATS = 2
MAX_COUNT = 200
MAX_METRICS = 20
MAX_COVERED = 70_000
"""Characters that the ranges of an expression cover: to compile one of all of them takes milliseconds."""
REPEATS = frozenset({op.MAX_REPEAT, op.MIN_REPEAT, op.POSSESSIVE_REPEAT})
STEP_GROUPS = frozenset({"step", "time"})
_REFUSED = {
    op.GROUPREF: "a reference to an earlier group",
    op.GROUPREF_EXISTS: "a condition on an earlier group",
    op.ASSERT: "a look-around",
    op.ASSERT_NOT: "a look-around",
}


def pattern_fault(pattern: str) -> tuple[str, str] | None:
    """Return (code, message) for a metric rule that may not be used, None for a good one."""
    names, fault = _checked(pattern)
    if names is None:
        return fault
    metrics = names - STEP_GROUPS
    if not metrics:
        return "regex_no_metric", "names no metric: put one in a group, such as loss=(?P<loss>\\S+)"
    if len(metrics) > MAX_METRICS:
        return "regex_too_many", f"names {len(metrics)} groups; at most {MAX_METRICS}"
    return fault


def step_pattern_fault(pattern: str) -> tuple[str, str] | None:
    """Return (code, message) for a rule that cannot read the step of a checkpoint, None for a good one."""
    names, fault = _checked(pattern)
    if names is not None and "step" not in names:
        return "regex_no_step", "names no step: put it in a group, such as ckpt-(?P<step>\\d+)"
    return fault


def _checked(pattern: str) -> tuple[frozenset[str] | None, tuple[str, str] | None]:
    """The names of its groups, None if it is no expression; and why it may not be used, None if it may.

    One that is refused by its form is not compiled, which may take long as well."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            tree = parser.parse(pattern)
            message = _catastrophe(tree)
            if message is None:
                re.compile(pattern)
    except (re.error, Warning) as error:
        return None, ("regex_syntax", f"is not a regular expression: {error}")
    except (RecursionError, OverflowError):
        return None, ("regex_syntax", "is nested too deeply")
    return frozenset(tree.state.groupdict), ("regex_unsafe", message) if message else None


def _catastrophe(tree: Any) -> str | None:
    nodes = list(_nodes(tree, inside_repeat=False))
    for code, argument, inside_repeat in nodes:
        if code in _REFUSED:
            return f"uses {_REFUSED[code]}, which is not allowed here"
        if code in REPEATS:
            least, most, _ = argument
            if inside_repeat and most != least:
                return "repeats a part that itself repeats, which can take forever: (a+)+"
            if most != op.MAXREPEAT and most > MAX_COUNT:
                return f"repeats more than {MAX_COUNT} times"
        if code is op.BRANCH and inside_repeat:
            return "repeats an alternative, which can take forever: (a|b)+; write [ab]+"
    if sum(_covered(argument) for code, argument, _ in nodes if code is op.IN) > MAX_COVERED:
        return f"has ranges of more than {MAX_COVERED:,} characters in all, such as [\\u0000-\\uffff] twice"
    open_repeats = [argument for code, argument, _ in nodes if _is_open(code, argument)]
    if len(open_repeats) > MAX_OPEN_REPEATS:
        return f"has more than {MAX_OPEN_REPEATS} repeats without upper bound"
    if sum(_is_wild(argument) for argument in open_repeats) > MAX_WILD_REPEATS:
        return f"has more than {MAX_WILD_REPEATS} of .* and .+; name the text between them instead"
    first = next((node for node in nodes if node[0] is not op.SUBPATTERN), None)
    if first and _is_open(first[0], first[1]) and _is_wild(first[1]):
        return "begins with .*, which is not needed: a pattern may match anywhere in a line"
    return None


def _nodes(tree: Any, *, inside_repeat: bool) -> Iterator[tuple[Any, Any, bool]]:
    """Yield (operation, argument, whether inside a variable repeat), outer before inner."""
    for code, argument in tree:
        yield code, argument, inside_repeat
        if code in REPEATS:
            least, most, body = argument
            yield from _nodes(body, inside_repeat=inside_repeat or (most > 1 and most != least))
        elif code is op.SUBPATTERN:
            yield from _nodes(argument[3], inside_repeat=inside_repeat)
        elif code is op.ATOMIC_GROUP:
            yield from _nodes(argument, inside_repeat=inside_repeat)
        elif code is op.BRANCH:
            for choice in argument[1]:
                yield from _nodes(choice, inside_repeat=inside_repeat)


def _covered(parts: Any) -> int:
    """Characters of a set's ranges; those above U+FFFF cost nothing."""
    ranges = (argument for code, argument in parts if code is op.RANGE)
    return sum(max(0, min(last, 0xFFFF) - first + 1) for first, last in ranges)


def _is_open(code: Any, argument: Any) -> bool:
    return code in REPEATS and argument[1] == op.MAXREPEAT


def _is_wild(argument: Any) -> bool:
    body = list(argument[2])
    return len(body) == 1 and body[0][0] in (op.ANY, op.NOT_LITERAL)
