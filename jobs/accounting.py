"""How much of an attempt counts: as running time (`time_limit`, `running_s`) and as use (`slot_seconds`, usage).

An attempt counts from its placement, its running time from the program's start, until it is closed. Time without
contact does not count: the platform was off, or the node did not answer, and afterwards the programs had ended or were
lost. Then it counts until `Attempt.known_at`, the last heartbeat: the cluster showed a program that may run, or the
agent was in contact, or the exit that the agent reports, by its own clock. A program that is found running after a
silence has run all the time, and all of it counts.
"""

from __future__ import annotations

from datetime import datetime, timedelta

PAUSE_S = 30.0
"""Seconds without a heartbeat before time stops counting."""
NOTED_EVERY_S = 10.0
"""How old the stored heartbeat may get; the observations themselves are more frequent."""


def counts_until(known_at: datetime | None, closed_at: datetime | None, now: datetime) -> datetime:
    """Until when an attempt counts, by its row. A closed one's known_at was set when it was closed."""
    if closed_at is not None:
        return known_at or closed_at
    return now if known_at is None or is_recent(known_at, now) else known_at


COUNTS_UNTIL = f"""CASE WHEN attempt.closed_at IS NOT NULL THEN coalesce(attempt.known_at, attempt.closed_at)
  WHEN attempt.known_at < now() - interval '{PAUSE_S} s' THEN attempt.known_at ELSE now() END"""
"""The same in SQL, of a row of jobs_attempt named attempt."""


def is_recent(known_at: datetime, now: datetime) -> bool:
    """True if a heartbeat at that time still counts as contact."""
    return now - known_at <= timedelta(seconds=PAUSE_S)


def ran_s(processing_at: datetime | None, until: datetime) -> float:
    """Seconds that count of an attempt's program."""
    return max(0.0, (until - processing_at).total_seconds()) if processing_at else 0.0


def time_left_s(
    limit_s: int | None, ran_before_s: float, processing_at: datetime | None, until: datetime
) -> float | None:
    """Seconds left of a time limit after the running time of closed attempts and of the live one until `until`.

    Negative once exceeded, None without a limit.
    """
    return None if limit_s is None else limit_s - ran_before_s - ran_s(processing_at, until)
