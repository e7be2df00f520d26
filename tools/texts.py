"""Print every text that a person reads in the portal, its API and its agent, so that they can be read as one list.

    python tools/texts.py [PATH ...]      FILE:LINE: TEXT, with {…} for what is filled in

Templates are split into texts, attributes that are read aloud or shown, and strings handed to template tags. Of Python
and TypeScript all string literals count that look like language: two words, or one capitalized word. Whatever its form,
a string counts where only texts are written: a check's label, a field's help, a page's message, a log line, anything in
texts.ts. So do the docstrings that people read: of service errors, which are their messages, and of REST operations,
which describe them. What it cannot know is whether a string is ever shown, so the list has a few that are not, and
misses single lower-case words elsewhere. SQL, patterns and other docstrings are left out. The texts of docs/ are files
to read by themselves.
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
    "luthier_client",
    "manage.py",
    "examples/data",
)
SKIPPED = re.compile(r"/migrations/|portal/settings/")
READ = {"title", "aria-label", "aria-roledescription", "placeholder", "alt", "content", "label"}
TAG = re.compile(r"\{#.*?#\}|\{%.*?%\}|\{\{.*?\}\}", re.DOTALL)
QUOTED = re.compile(r'"([^"]*)"')
SCRIPT = re.compile(r'"((?:[^"\\\n]|\\.)*)"|\'((?:[^\'\\\n]|\\.)*)\'|`')
SCRIPT_COMMENT = re.compile(r"^\s*(//|/?\*|import\b|export .* from\b)")
NOT_LANGUAGE = re.compile(
    r"^[\s.#\[<>(]|^(SELECT|INSERT|UPDATE|DELETE|WITH|CREATE|DROP|ALTER|LOCK|SET|AND|OR|FROM|WHERE|ORDER)\b"
    r"|[\[\]]=|^\w+(-\w+)+$|^[A-Z][A-Z0-9_]+$|\b(px|rem|nowrap)\b|^--|^/|^\^|^[\w.]+\.[\w.]+$"
    r"|^[a-z][\w-]*( [a-z][\w-]*)?$"
)
NON_TEXT_CALLS = {"compile", "execute", "raw", "getLogger", "RunSQL"}
LOGGERS = {"logger", "messages"}
"""Objects whose methods are called with texts: a log's phrases, a page's messages."""
TEXT_NAMES = {
    "claim", "description", "done", "help", "help_text", "label", "message", "redacted", "remedy", "summary", "text",
    "title", "verbose_name", "verbose_name_plural", "words",
}  # fmt: skip
"""Attributes, arguments and variables that hold texts, whatever their form."""
ERROR_BASE = "ServiceError"
"""Its subclasses' docstrings are their messages."""
DESCRIBED = "operation"
"""The decorator of functions whose docstrings the page of the REST API shows."""


def main() -> int:
    for path, line, text in texts(files(sys.argv[1:] or SOURCES)):
        print(f"{path}:{line}: {text}")
    return 0


def texts(paths: list[Path]) -> Iterator[tuple[str, int, str]]:
    """File, line and text, with single spaces, of all that is read in these files."""
    errors = service_errors()
    for path in paths:
        source = path.read_text()
        if path.suffix == ".html":
            found = iter(of_template(source))
        elif path.suffix == ".ts":
            found = of_script(source, catalog=path.name == "texts.ts")
        else:
            found = of_python(source, errors)
        for line, text in found:
            yield str(path.relative_to(ROOT)), line, " ".join(text.split())


def service_errors() -> frozenset[str]:
    """Names of the classes under ServiceError, in all packages."""
    bases: dict[str, set[str]] = {}
    for path in files(SOURCES):
        if path.suffix == ".py":
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ClassDef):
                    bases.setdefault(node.name, set()).update(_name(base) for base in node.bases)
    found = {ERROR_BASE}
    while more := {name for name, above in bases.items() if above & found} - found:
        found |= more
    return frozenset(found)


def _name(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


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


def of_python(source: str, errors: frozenset[str] = frozenset()) -> Iterator[tuple[int, str]]:
    """Texts of one module: see above. errors: the classes whose docstrings are messages."""
    tree = ast.parse(source)
    skipped = {id(part) for node in ast.walk(tree) for part in (ast.walk(node) if _is_no_text(node) else ())}
    certain = {
        id(part) for node in ast.walk(tree) for text in _certain_texts(node) for part in _parts_shown(text)
    }
    for node in ast.walk(tree):
        if (isinstance(node, ast.ClassDef) and node.name in errors) or _is_described(node):
            assert isinstance(node, ast.ClassDef | ast.FunctionDef)
            yield node.lineno, ast.get_docstring(node) or ""
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
        if is_language(text) or (id(node) in certain and _has_letters(text)):
            yield node.lineno, text


def _certain_texts(node: ast.AST) -> list[ast.expr]:
    """Expressions whose place says that they are texts."""
    if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return [node.value] if any(_name(target) in TEXT_NAMES for target in targets) else []
    if not isinstance(node, ast.Call):
        return []
    found = [each.value for each in node.keywords if each.arg in TEXT_NAMES]
    if isinstance(node.func, ast.Attribute) and _name(node.func.value) in LOGGERS:
        found += node.args
    return found


def _parts_shown(text: ast.expr) -> Iterator[ast.AST]:
    """The strings that an expression can become: itself, either side of a choice, what is put together."""
    if isinstance(text, ast.IfExp):
        yield from _parts_shown(text.body)
        yield from _parts_shown(text.orelse)
    elif isinstance(text, ast.BinOp):
        yield from _parts_shown(text.left)
        yield from _parts_shown(text.right)
    else:
        yield text


def _is_described(node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef) and any(
        _name(each.func if isinstance(each, ast.Call) else each) == DESCRIBED for each in node.decorator_list
    )


def _is_no_text(node: ast.AST) -> bool:
    """Docstrings and other bare strings, annotations, and arguments of calls that write no text for people."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return True
    if isinstance(node, ast.Call):
        return _name(node.func) in NON_TEXT_CALLS
    return isinstance(node, ast.Assert)


def of_script(source: str, *, catalog: bool = False) -> Iterator[tuple[int, str]]:
    """String literals of TypeScript that look like language; all in the catalog of texts."""
    for number, line in enumerate(source.splitlines(), start=1):
        if SCRIPT_COMMENT.match(line):
            continue
        for text in _strings(line.split(" // ")[0]):
            if is_language(text) or (catalog and _has_letters(text.replace("{…}", ""))):
                yield number, text


def _strings(line: str) -> list[str]:
    """The string literals of a line, those within ${…} of others after them."""
    found, at = [], 0
    while match := SCRIPT.search(line, at):
        found.append(match[1] or match[2] or "")
        at = match.end()
        if match.group() == "`":
            text, inner, at = _template(line, at)
            found += [text, *inner]
    return [text for text in found if text]


def _template(line: str, at: int) -> tuple[str, list[str], int]:
    """A template literal from behind its first quote: its text, the strings in its ${…}, and where it ends."""
    text, inner = "", []
    while at < len(line) and line[at] != "`":
        if line.startswith("${", at):
            end = _closed(line, at + 2)
            inner += _strings(line[at + 2 : end])
            text += "{…}"
            at = end + 1
        else:
            text += line[at]
            at += 1
    return text, inner, at + 1


def _closed(line: str, at: int) -> int:
    """Where the brace that is open before `at` closes."""
    depth = 1
    while at < len(line):
        if line[at] == "`":
            at = _template(line, at + 1)[2]
            continue
        depth += {"{": 1, "}": -1}.get(line[at], 0)
        if not depth:
            return at
        at += 1
    return at


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
