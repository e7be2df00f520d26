"""The guides of docs/ as pages: what a person with only a browser needs to write a program and its job spec."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

from django.conf import settings
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils.html import escape
from django.utils.safestring import SafeString, mark_safe
from django.views.decorators.http import require_GET
from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token

from portal.pages import state_diagram
from portal.pages.guard import signed_in
from portal.pages.shell import frame, last_tenant

GUIDES = {
    "your-first-program": "Your first program",
    "programs": "Programs",
    "job-spec": "Job spec",
    "secrets": "Secrets",
    "examples": "Examples",
    "scheduling": "Scheduling",
    "job_states": "Job states",
    "api": "REST by example",
    "glossary": "Glossary",
}
"""File of docs/ and its tab, in the order in which a newcomer needs them."""
FIRST = next(iter(GUIDES))


@dataclass(frozen=True, slots=True)
class Guide:
    title: str
    body: SafeString
    sections: tuple[tuple[str, str], ...]
    """Id and heading of each."""


@require_GET
@signed_in
def page(request: HttpRequest, name: str = FIRST) -> HttpResponse:
    if name not in GUIDES:
        raise Http404
    context = frame(request, last_tenant(request), "help")
    return render(request, "help.html", context | {"name": name, "guide": guide(name), "guides": GUIDES})


@cache
def guide(name: str) -> Guide:
    """The file as a page: its first heading is the page's, and its links lead to the other guides."""
    parser = MarkdownIt("commonmark", renderer_cls=_Page).enable("table")
    tokens = parser.parse((settings.BASE_DIR / "docs" / f"{name}.md").read_text(encoding="utf-8"))
    opening, heading, closing, *rest = tokens
    assert (opening.tag, closing.tag) == ("h1", "h1")
    sections = tuple(_number_headings(rest))
    _lead_links(rest)
    _label_cells(rest)
    # The renderer escapes all text and leaves out whatever HTML a file holds.
    body = mark_safe(parser.renderer.render(rest, parser.options, {}))  # noqa: S308
    return Guide(_text(heading), body, sections)


class _Page(RendererHTML):
    """Tables and programs can be scrolled by keyboard; HTML in the text is left out."""

    def html_block(self, tokens: Sequence[Token], idx: int, options: Any, env: Any) -> str:
        return ""

    html_inline = html_block

    def fence(self, tokens: Sequence[Token], idx: int, options: Any, env: Any) -> str:
        text = tokens[idx].content
        drawn = state_diagram.drawing(text) if tokens[idx].info.strip() == "mermaid" else None
        return drawn or f'<pre tabindex="0">{escape(text)}</pre>\n'

    code_block = fence

    def table_open(self, tokens: Sequence[Token], idx: int, options: Any, env: Any) -> str:
        env["tables"] = env.get("tables", 0) + 1
        return (
            f'<div class="table-wrap" tabindex="0" role="region" aria-label="Table {env["tables"]}">'
            '<table class="phone-rows">\n'
        )

    def table_close(self, tokens: Sequence[Token], idx: int, options: Any, env: Any) -> str:
        return "</table></div>\n"

    def th_open(self, tokens: Sequence[Token], idx: int, options: Any, env: Any) -> str:
        return '<th scope="col">'

    def td_open(self, tokens: Sequence[Token], idx: int, options: Any, env: Any) -> str:
        label = tokens[idx].meta.get("label")  # without the style attribute of an aligned column
        return f'<td data-label="{escape(label)}">' if label else "<td>"


def _number_headings(tokens: Sequence[Token]) -> list[tuple[str, str]]:
    """Give each heading the id that its links name; return those of the second level."""
    found = []
    for opening, heading in pairwise(tokens):
        if opening.type == "heading_open":
            text = _text(heading)
            anchor = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
            opening.attrSet("id", anchor)
            if opening.tag == "h2":
                found.append((anchor, text))
    return found


def _label_cells(tokens: Sequence[Token]) -> None:
    """Give each cell but a row's first the title of its column, which a phone shows beside the cell."""
    titles: list[str] = []
    column = 0
    for opening, content in pairwise(tokens):
        if opening.type == "thead_open":
            titles = []
        elif opening.type == "th_open":
            titles.append(_text(content))
        elif opening.type == "tr_open":
            column = 0
        elif opening.type == "td_open":
            opening.meta["label"] = titles[column] if column else ""
            column += 1


def _lead_links(tokens: Sequence[Token]) -> None:
    """job-spec.md#fields leads to that guide's page; what has no page here stays text."""
    for block in tokens:
        gone = False
        for token in block.children or ():
            if token.type == "link_open":
                address = _address(str(token.attrGet("href")))
                gone = address is None
                token.attrSet("href", address or "")
            if token.type in ("link_open", "link_close"):
                token.hidden = gone


def _address(target: str) -> str | None:
    if target.startswith(("#", "https://")):
        return target
    file, _, anchor = target.partition("#")
    name = file.removesuffix(".md")
    if name not in GUIDES:
        return None
    return reverse("help-guide", args=[name]) + (f"#{anchor}" if anchor else "")


def _text(heading: Token) -> str:
    return "".join(child.content for child in heading.children or ())
