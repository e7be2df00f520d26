"""Whether the store responds and has room, as the workers find it again and again.

The answer is in a row, so that every process says the same and no request waits for the store to learn it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from jobs.blobs.errors import StoreUnavailable
from jobs.blobs.reading import check
from jobs.disk import DISK_FULL
from jobs.models import PeriodicTask

TASK = "blobs"
"""Name of the periodic task."""
EVERY_S = 15.0
OVERDUE_S = 90.0
"""A worker checks the store every EVERY_S, after other tasks. What an older check found is not known any more."""
SLOW_S = 2.0
"""A check that takes longer is a warning."""


@dataclass(frozen=True, slots=True)
class StoreHealth:
    """problem: what is wrong, a clause without a period; empty if nothing is, or if no worker has checked yet. away:
    nothing can be stored; otherwise the store is only slow. full: it responds, and its disk has no room; then it is
    away, too. since: when that began. back_at: when an outage ended last.
    checked_at: None if no worker has checked yet."""

    problem: str = ""
    away: bool = False
    full: bool = False
    since: datetime | None = None
    back_at: datetime | None = None
    checked_at: datetime | None = None

    @property
    def sentence(self) -> str:
        """What people read of it; empty without a problem."""
        if not self.problem or self.since is None:
            return ""
        kind = "has been full" if self.full else "has not responded" if self.away else "is slow"
        return f"The store of files {kind} since {self.since.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC: {self.problem}."


def examine(before: dict[str, Any], now: datetime) -> dict[str, Any]:
    """Check the store, and continue the task's last result."""
    problem, away, full = _problem()
    was_away = bool(before.get("away"))
    same_kind = (was_away, bool(before.get("full"))) == (away, full)
    goes_on = bool(problem and before.get("problem") and same_kind)
    since = before.get("since") if goes_on else now.isoformat()
    return {
        "problem": problem,
        "away": away,
        "full": full,
        "since": since if problem else None,
        "back_at": now.isoformat() if was_away and not away else before.get("back_at"),
    }


def _problem() -> tuple[str, bool, bool]:
    """What is wrong, whether the store is away, and whether that is for want of room."""
    began = time.monotonic()
    try:
        check()
    except (StoreUnavailable, OSError) as error:
        full = isinstance(error, OSError) and error.errno in DISK_FULL
        text = str(error.strerror if isinstance(error, OSError) and full else error).strip()
        return (text.splitlines() or [type(error).__name__])[0].rstrip("."), True, full
    took_s = time.monotonic() - began
    return (f"a request took {took_s:.1f} s" if took_s > SLOW_S else ""), False, False


def health() -> StoreHealth:
    """What the last check found."""
    row = PeriodicTask.objects.filter(name=TASK).values_list("result", "done_at").first()
    if row is None or row[1] is None:
        return StoreHealth()
    found, checked_at = row
    return StoreHealth(
        found["problem"],
        found["away"],
        found.get("full", False),
        _time(found["since"]),
        _time(found["back_at"]),
        checked_at,
    )


def _time(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None
