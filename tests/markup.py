"""The markup of a page without the whitespace that only lays out its template, for tests that quote it."""

from __future__ import annotations

import re
from typing import Any

LAYOUT = (
    (r">\s*\n\s*<", "><"),
    (r"(<[a-z][^<>]*>)\s*\n\s*", r"\1"),
    (r"\s*\n\s*<", "<"),
    (r"\s+", " "),
)


def markup(answer: Any) -> str:
    """A response's HTML, or such text: no line break beside a tag, one space for any other whitespace."""
    text: str = answer if isinstance(answer, str) else answer.content.decode()
    for pattern, replacement in LAYOUT:
        text = re.sub(pattern, replacement, text)
    return text
