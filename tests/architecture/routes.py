"""Every route of the portal, found by walking the URL map, so that none can be forgotten."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from django.urls import URLPattern, URLResolver, get_resolver

VARIABLE = re.compile(r"\(\?P<(\w+)>[^)]*\)|<(?:\w+:)?(\w+)>")


@dataclass(frozen=True)
class Route:
    """One URL pattern: its text from the root on, and its view."""

    text: str
    view: Any

    @property
    def variables(self) -> list[str]:
        return [first or second for first, second in VARIABLE.findall(self.text)]

    def path(self, values: Mapping[str, Any]) -> str:
        """The address with these values for its variables."""
        filled = VARIABLE.sub(lambda found: str(values[found[1] or found[2]]), self.text)
        return "/" + filled.replace("^", "").replace("$", "").replace("\\Z", "").replace("\\.", ".")


def every_route() -> Iterator[Route]:
    yield from _walk(get_resolver().url_patterns, "")


def api_routes() -> list[Route]:
    return [route for route in every_route() if route.text.startswith("api/v1/")]


def page_routes() -> list[Route]:
    return [route for route in every_route() if not route.text.startswith("api/v1/")]


def _walk(patterns: list[Any], before: str) -> Iterator[Route]:
    for pattern in patterns:
        text = before + str(pattern.pattern)
        if isinstance(pattern, URLResolver):
            yield from _walk(pattern.url_patterns, text)
        elif isinstance(pattern, URLPattern):
            yield Route(text, pattern.callback)
