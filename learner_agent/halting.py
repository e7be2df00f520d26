"""When a program that must stop gets SIGTERM, and when SIGKILL: deadlines only, no signals and no files.

A program that imported ``learner_agent.training`` (aware) sees the request itself, gets SIGTERM after the grace period
and SIGKILL after as much again. Any other gets SIGTERM at once and SIGKILL after the grace period; one that has just
started is given IMPORT_S to import it. A cancel never waits. Standard library only, Python 3.8 or newer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Mapping, Optional

from learner_agent.untrusted_files import number_or

IMPORT_S = 2.0
"""A program of this age that has not imported ``training`` is one that does not use it."""
MAX_GRACE_S = 24 * 3600


@dataclass
class Halting:
    """A request that is being carried out. Times are of the monotonic clock; intent is HALT or CANCEL."""

    gen: int
    intent: str
    is_aware: bool
    term_at: float
    kill_at: float
    has_termed: bool = False
    has_killed: bool = False


def updated(
    halting: Optional[Halting],
    request: Mapping[str, Any],
    *,
    has_imported: bool,
    started_at: float,
    now: float,
    default_grace_s: float,
) -> Optional[Halting]:
    """Apply the content of ``halt`` ({"intent", "gen", "grace_s"}); return what is to be reported as seen, else None.

    A cancel replaces a halt but never postpones its SIGKILL. A repeated or milder request changes no deadline, except
    that the program may have imported the module since.
    """
    gen, intent = int(number_or(request.get("gen"), 0)), str(request.get("intent", "HALT"))
    grace_s = number_or(request.get("grace_s"), default_grace_s, most=MAX_GRACE_S)
    is_aware = intent != "CANCEL" and has_imported
    if halting is not None and (intent == halting.intent or intent != "CANCEL"):
        if (
            is_aware and not halting.is_aware and not halting.has_termed
        ):  # it had just started, and imports it now
            halting.is_aware, halting.term_at, halting.kill_at = True, now + grace_s, now + 2 * grace_s
        if gen <= halting.gen:
            return None
        halting.gen = gen
        return halting
    if is_aware:
        term_at = now + grace_s
    elif intent == "CANCEL":
        term_at = now
    else:
        term_at = max(now, started_at + IMPORT_S)
    fresh = Halting(gen, intent, is_aware, term_at, term_at + grace_s)
    if halting is not None:
        fresh.has_termed = halting.has_termed
        fresh.kill_at = min(fresh.kill_at, halting.kill_at)
    return fresh
