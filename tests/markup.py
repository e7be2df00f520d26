"""The markup of a page as tests quote it: without whitespace that only lays out its template, and without form tokens.

A token is random: sooner or later it holds any short text that a test says is not on the page.
"""

from __future__ import annotations

import re
from typing import Any

LEFT_OUT = (
    (r'(name="(?:csrfmiddlewaretoken|form_key)" value=")[^"]*', r"\1"),
    (r">\s*\n\s*<", "><"),
    (r"(<[a-z][^<>]*>)\s*\n\s*", r"\1"),
    (r"\s*\n\s*<", "<"),
    (r"\s+", " "),
)


def markup(answer: Any) -> str:
    """A response's HTML, or such text: no form token, no line break beside a tag, one space for other whitespace."""
    text: str = answer if isinstance(answer, str) else answer.content.decode()
    for pattern, replacement in LEFT_OUT:
        text = re.sub(pattern, replacement, text)
    return text
