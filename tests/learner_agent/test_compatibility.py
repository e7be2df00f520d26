"""What runs in a user's image keeps to the standard library and to Python 3.8."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

ROOM = Path(__file__).resolve().parents[2] / "learner_agent"
CARRIED = [
    "__init__",
    "__main__",
    "launcher",
    "halting",
    "processes",
    "training",
    "spool",
    "untrusted_files",
    "log_segments",
    "settings",
]

# Names that came after Python 3.8, with the version: (attribute or function, since).
NEWER = {
    "removeprefix": "3.9", "removesuffix": "3.9", "pairwise": "3.10", "file_digest": "3.11", "to_thread": "3.9",
    "is_relative_to": "3.9", "readlink": "3.9", "hardlink_to": "3.10", "TaskGroup": "3.11", "bit_count": "3.10",
    "StrEnum": "3.11", "randbytes": "3.9", "cache": "3.9", "waitstatus_to_exitcode": "3.9", "UTC": "3.11",
    "TypeAlias": "3.10", "ParamSpec": "3.10", "Self": "3.11", "pidfd_open": "3.9", "batched": "3.12",
}  # fmt: skip
KEYWORDS = {
    "slots": "3.10",
    "kw_only": "3.10",
    "strict": "3.10",
    "missing_ok": "3.8",
    "usedforsecurity": "3.9",
}
BUILTIN_GENERICS = {"list", "dict", "tuple", "set", "frozenset", "type"}


@pytest.mark.parametrize("name", CARRIED)
def test_the_syntax_is_that_of_python_3_8(name: str) -> None:
    source = (ROOM / f"{name}.py").read_text()
    ast.parse(source, feature_version=(3, 8))
    assert "from __future__ import annotations" in source or ":" not in "".join(
        line for line in source.splitlines() if line.startswith("def ")
    )


@pytest.mark.parametrize("name", CARRIED)
def test_nothing_newer_than_python_3_8_is_called(name: str) -> None:
    tree = ast.parse((ROOM / f"{name}.py").read_text())
    found = []
    for node in ast.walk(strip_annotations(tree)):
        if isinstance(node, ast.Attribute) and node.attr in NEWER:
            found.append(f"{node.lineno}: {node.attr} is of Python {NEWER[node.attr]}")
        elif isinstance(node, ast.Call):
            found += [
                f"{node.lineno}: {keyword.arg}= is of Python {KEYWORDS[keyword.arg]}"
                for keyword in node.keywords
                if keyword.arg in KEYWORDS and KEYWORDS[keyword.arg] != "3.8"
            ]
        elif (
            isinstance(node, ast.Subscript)
            and isinstance(node.value, ast.Name)
            and node.value.id in BUILTIN_GENERICS
        ):
            found.append(f"{node.lineno}: {node.value.id}[…] at run time is of Python 3.9")
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr) and is_type(node.right):
            found.append(f"{node.lineno}: X | Y between types is of Python 3.10")
    assert found == []


def is_type(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def strip_annotations(tree: ast.Module) -> ast.Module:
    """Annotations are text that is never evaluated (from __future__ import annotations)."""
    for node in ast.walk(tree):
        if isinstance(node, ast.AnnAssign):
            node.annotation = ast.Constant(None)
        elif isinstance(node, ast.arg):
            node.annotation = None
        elif isinstance(node, ast.FunctionDef):
            node.returns = None
    return tree


@pytest.mark.parametrize("name", CARRIED)
def test_only_the_standard_library_and_this_room_are_imported(name: str) -> None:
    tree = ast.parse((ROOM / f"{name}.py").read_text())
    roots = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            roots |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            roots.add((node.module or "").split(".")[0])
    assert roots - set(sys.stdlib_module_names) <= {"learner_agent"}
