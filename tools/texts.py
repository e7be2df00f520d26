"""Print every text that a person reads in the portal, its API and its agent, so that they can be read as one list.

    python tools/texts.py [PATH ...]      FILE:LINE: TEXT, with {…} for what is filled in

Templates are split into texts, attributes that are read aloud or shown, and strings handed to template tags. Of Python
and TypeScript all string literals count that look like language: two words, or one capitalized word. What it cannot
know is whether such a string is ever shown, so the list has a few that are not (SQL is left out, as are log messages,
docstrings and patterns), and misses single lower-case words and texts that are composed of such words. The texts of
docs/ are files to read by themselves.
"""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCES = (
    "templates",
    "static/src/ts",
    "static/src/entries",
    "portal",
    "jobs",
    "tenants",
    "gpu_scheduler",
    "learner_agent",
)
SKIPPED = re.compile(r"/migrations/|portal/settings/")
READ = {"title", "aria-label", "aria-roledescription", "placeholder", "alt", "content", "label"}
TAG = re.compile(r"\{#.*?#\}|\{%.*?%\}|\{\{.*?\}\}", re.DOTALL)
QUOTED = re.compile(r'"([^"]*)"')
SCRIPT = re.compile(r'"((?:[^"\\\n]|\\.)*)"|\'((?:[^\'\\\n]|\\.)*)\'|`((?:[^`\\]|\\.)*)`')
SCRIPT_COMMENT = re.compile(r"^\s*(//|/?\*|import\b|export .* from\b)")
NOT_LANGUAGE = re.compile(
    r"^[\s.#\[<>(]|^(SELECT|INSERT|UPDATE|DELETE|WITH|CREATE|DROP|ALTER|LOCK|SET|AND|OR|FROM|WHERE|ORDER)\b"
    r"|[\[\]]=|^\w+(-\w+)+$|^[A-Z][A-Z0-9_]+$|\b(px|rem|nowrap)\b|^--|^/|^\^|^[\w.]+\.[\w.]+$"
    r"|^[a-z][\w-]*( [a-z][\w-]*)?$"
)
QUIET_CALLS = {
    "debug",
    "info",
    "warning",
    "error",
    "exception",
    "log",
    "compile",
    "execute",
    "raw",
    "getLogger",
    "RunSQL",
}


def main() -> int:
    for path in files(sys.argv[1:] or SOURCES):
        find = {".html": of_template, ".py": of_python, ".ts": of_script}[path.suffix]
        for line, text in find(path.read_text()):
            print(f"{path.relative_to(ROOT)}:{line}: {' '.join(text.split())}")
    return 0


def files(paths: list[str] | tuple[str, ...]) -> list[Path]:
    """Tracked files that may hold texts."""
    listed = subprocess.run(
        ["git", "ls-files", "--", *paths], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    return [
        ROOT / name for name in listed if name.endswith((".html", ".py", ".ts")) and not SKIPPED.search(name)
    ]


def of_template(source: str) -> list[tuple[int, str]]:
    """Texts and shown attributes of one template, then what its tags are given."""
    reader = _Reader()
    reader.feed(TAG.sub(_shape, source))
    reader.close()
    for found in TAG.finditer(source):
        line = source.count("\n", 0, found.start()) + 1
        reader.texts += [(line, text) for text in QUOTED.findall(found.group()) if is_language(text)]
    return sorted(reader.texts)


def _shape(tag: re.Match[str]) -> str:
    """Variables leave {…}; control tags leave the space that they take, and their line breaks."""
    return "{…}" if tag.group().startswith("{{") else "\n" * tag.group().count("\n") + " "


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.texts: list[tuple[int, str]] = []
        self.silent = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("script", "style"):
            self.silent = tag
        line = self.getpos()[0]
        self.texts += [
            (line, f"[{name}] {text}") for name, text in attrs if name in READ and _has_letters(text)
        ]

    def handle_endtag(self, tag: str) -> None:
        self.silent = "" if tag == self.silent else self.silent

    def handle_data(self, data: str) -> None:
        if _has_letters(data) and not self.silent:
            first = len(data) - len(data.lstrip())
            self.texts.append((self.getpos()[0] + data.count("\n", 0, first), data))


def _has_letters(text: str | None) -> bool:
    return bool(text and re.search(r"[A-Za-z]{2}", text))


def of_python(source: str) -> Iterator[tuple[int, str]]:
    """String literals that look like language, but docstrings, log messages, patterns and queries."""
    tree = ast.parse(source)
    skipped = {id(part) for node in ast.walk(tree) for part in (ast.walk(node) if _is_quiet(node) else ())}
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.JoinedStr):
            text = "".join(
                str(part.value) if isinstance(part, ast.Constant) else "{…}" for part in node.values
            )
            skipped |= {id(part) for part in ast.walk(node)}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value
        else:
            continue
        if is_language(text):
            yield node.lineno, text


def _is_quiet(node: ast.AST) -> bool:
    """Docstrings and other bare strings, annotations, and arguments of calls that write no text for people."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return True
    if isinstance(node, ast.Call):
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        return name in QUIET_CALLS
    return isinstance(node, ast.Assert)


def of_script(source: str) -> Iterator[tuple[int, str]]:
    """String literals of TypeScript that look like language."""
    for number, line in enumerate(source.splitlines(), start=1):
        if SCRIPT_COMMENT.match(line):
            continue
        for parts in SCRIPT.findall(line.split(" // ")[0]):
            text = re.sub(r"\$\{[^}]*\}", "{…}", "".join(parts))
            if is_language(text):
                yield number, text


def is_language(text: str) -> bool:
    """Two words, or a capitalized one; not a selector, a constant, a path or a query."""
    bare = text.strip().replace("{…}", "x")
    if NOT_LANGUAGE.search(bare):
        return False
    return bool(
        re.search(r"[A-Za-z]{2,}[,.:;]? +[A-Za-z(“\d]", bare) or re.fullmatch(r"[A-Z][a-z]{2,}[.:]?", bare)
    )


if __name__ == "__main__":
    sys.exit(main())
