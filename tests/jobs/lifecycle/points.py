"""Every failpoint of the sources, found by reading them: the names that are passed to fp().

POINTS are the lifecycle's, which the lives in lives.py pass. OPERATION_POINTS are those of people's, learners' and
periodic tasks' operations, which tests/jobs/operations.py runs.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

from jobs.states import TRANSITIONS

ROOM = Path(__file__).parents[3] / "jobs"
SOURCES = sorted(ROOM.rglob("*.py"))
LIFECYCLE = [path for path in SOURCES if path.parent.name == "lifecycle" and path.name != "periodic.py"]
INSIDE = ("admit.before_move", "admit.after_move", "admit.after_slots_taken", "admit.after_quota")
INSIDE += ("admit.after_attempt", "admit.after_rows", "admit.before_commit", "back_off.after_release")
INSIDE += ("move.after_swap", "move.after_attempt_started", "move.after_attempt_closed")
INSIDE += (
    "move.after_quota_returned",
    "move.after_slots_returned",
    "move.before_commit",
    "launch.before_commit",
)
"""Points within a transaction: a worker that freezes there holds locks, so no other can take over."""


def _calls(tree: ast.AST) -> Iterator[ast.expr]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "fp":
            yield node.args[0]


def _names(argument: ast.expr) -> Iterator[str]:
    """A literal is itself; the two f-strings stand for one point per move and per act."""
    if isinstance(argument, ast.Constant):
        yield str(argument.value)
    elif isinstance(argument, ast.JoinedStr) and ast.unparse(argument) == "f'move.before_{name}'":
        for source, targets in TRANSITIONS.items():
            if source != "QUEUED":
                yield from (f"move.before_{source}_to_{target}".lower() for target in targets)
        yield from (f"move.before_queued_to_{target}" for target in ("halted", "canceled", "failed"))
    elif isinstance(argument, ast.JoinedStr) and ast.unparse(argument) == "f'{decision.act}.before_cluster'":
        yield from (f"{act}.before_cluster" for act in ("choose", "launch", "stop", "remove"))
    else:
        raise AssertionError(f"a failpoint whose name cannot be read: {ast.unparse(argument)}")


def _of(paths: Iterable[Path]) -> list[str]:
    return sorted(
        {name for path in paths for call in _calls(ast.parse(path.read_text())) for name in _names(call)}
    )


POINTS = _of(LIFECYCLE)
OPERATION_POINTS = _of(path for path in SOURCES if path not in LIFECYCLE)
OUTSIDE = [name for name in POINTS if name not in INSIDE]
