"""Which relative paths are safe to create below a folder: shared by specs, uploaded archives and the new-job page.

The rules are data: the page carries them (`page_rules`) and applies them to a chosen folder before it sends anything.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from functools import cache
from typing import Any, NamedTuple

MAX_PATH_CHARS = 240
MAX_NAME_BYTES = 255
MAX_PATH_DEPTH = 32
_INVISIBLE = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Categories of Unicode, with what is not assigned: it may be anything later."""
_LIKE_A_SLASH = "⁄∕⧸"


class PathRule(NamedTuple):
    """A path in which the pattern is found has the fault.

    pattern: read alike by Python and by JavaScript with its flag ``u``. in_bytes: it is searched for in the path's
    UTF-8, each byte as the character of its number.
    """

    pattern: str
    fault: str
    in_bytes: bool = False


@cache
def path_rules() -> tuple[PathRule, ...]:
    """All rules; the first that applies names the fault. Each also applies to what continues a path that it refuses."""
    return (
        PathRule(r"^(?![\s\S])", "is empty"),
        PathRule(r"\x00", "contains a NUL character"),
        PathRule(rf"[\s\S]{{{MAX_PATH_CHARS + 1}}}", f"is longer than {MAX_PATH_CHARS} characters"),
        PathRule(f"[{_invisible()}]", "contains a control or invisible character"),
        PathRule(r"\\", "contains a backslash; separate folders with /"),
        PathRule("^(?:[/~]|.:)", "is absolute; write it relative to the folder"),
        PathRule(rf"(?:/[^/]*){{{MAX_PATH_DEPTH}}}", f"is nested deeper than {MAX_PATH_DEPTH} folders"),
        PathRule(r"(?:^|/)\.\.(?:/|$)", "leaves its folder with .."),
        PathRule(r"(?:^|/)\.?(?:/|$)", "has an empty or . part; write it in its shortest form"),
        PathRule(r"(?:^|/)\s|[\s.](?:/|$)", "has a part that ends with a dot or begins or ends with a space"),
        PathRule(
            rf"[^/]{{{MAX_NAME_BYTES + 1}}}", f"has a part longer than {MAX_NAME_BYTES} bytes", in_bytes=True
        ),
    )


def path_fault(path: str) -> str | None:
    """Say why a relative path may not be used, or None when it may.

    Safe means: it stays below its folder on every file system, and reads as what it is.
    """
    in_bytes = path.encode("utf-8", "surrogatepass").decode("latin-1")
    for pattern, rule in _compiled():
        if pattern.search(in_bytes if rule.in_bytes else path):
            return rule.fault
    return None


def folded(path: str) -> str:
    """Return the form in which two paths that some file system takes for one are equal."""
    return unicodedata.normalize("NFC", path).casefold()


@cache
def page_rules() -> dict[str, Any]:
    """The rules as JSON. folds: where `str.casefold` differs from lower case, which is all that JavaScript has."""
    every = map(chr, range(0x20000))  # above are no letters that have a case
    folds = {one: one.casefold() for one in every if one.casefold() != one.lower()}
    return {"rules": [list(rule) for rule in path_rules()], "folds": folds}


@cache
def _compiled() -> tuple[tuple[re.Pattern[str], PathRule], ...]:
    return tuple((re.compile(rule.pattern), rule) for rule in path_rules())


def _invisible() -> str:
    """Ranges of a character class, not \\p{…}: which characters are assigned depends on the version of Unicode."""
    every = map(chr, range(sys.maxunicode + 1))
    marks = "".join("x" if unicodedata.category(one) in _INVISIBLE else "." for one in every)
    runs = (run.span() for run in re.finditer("x+", marks))
    return "".join(f"{chr(first)}-{chr(end - 1)}" for first, end in runs) + _LIKE_A_SLASH
