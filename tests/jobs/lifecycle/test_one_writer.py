"""Job.state has one writer: no other module of the server updates it, by the ORM or in SQL."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
WRITER = ROOT / "jobs" / "lifecycle" / "transitions.py"
OTHER_STATES = re.compile(r"(Checkpoint|Tenant)\.State\b|\bstate\b")
"""The states of checkpoints and tenants; a tenant's new one comes as a variable."""
UPDATE_SQL = re.compile(r"UPDATE\s+jobs_job\b(?:(?!\bWHERE\b).)*[\s,]state\s*=", re.S)


def writes(path: Path) -> list[int]:
    """Lines that may write a job's state."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr in {"update", "update_or_create", "bulk_update"}:
                found += [
                    node.lineno
                    for keyword in node.keywords
                    if keyword.arg == "state" and not OTHER_STATES.search(ast.unparse(keyword.value))
                ]
        elif isinstance(node, ast.Assign):
            found += [
                node.lineno
                for target in node.targets
                if isinstance(target, ast.Attribute)
                and target.attr == "state"
                and ast.unparse(target.value) == "job"
            ]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and UPDATE_SQL.search(node.value):
            found.append(node.lineno)
    return found


def test_only_transitions_writes_the_state_of_a_job() -> None:
    sources = [path for room in ("jobs", "tenants", "portal") for path in (ROOT / room).rglob("*.py")]
    others = {str(path.relative_to(ROOT)): writes(path) for path in sources if "migrations" not in path.parts}
    assert {name: lines for name, lines in others.items() if lines} == {
        str(WRITER.relative_to(ROOT)): writes(WRITER)
    }
    assert writes(WRITER)
