"""Named places between two effects, where a test may kill, raise or wait. Nothing happens there otherwise.

``fp("launch.after_cluster_launch")`` costs one comparison. tests/jobs/lifecycle/test_failpoints.py finds every name by
reading the sources and fails if one is not exercised.
"""

from __future__ import annotations

from collections.abc import Callable

_hook: Callable[[str], None] | None = None


def fp(name: str) -> None:
    """A point between two effects, at which tests stop or kill the process."""
    if _hook is not None:
        _hook(name)


def arm(hook: Callable[[str], None] | None) -> None:
    """Call hook with every name that is passed; None disarms. For tests only."""
    global _hook
    _hook = hook
