"""What a reader must know when scheduling passes do not complete: what the page shows is then of an earlier time."""

from __future__ import annotations

from jobs import humanize
from jobs.selectors import installation

NOTHING_STARTS = "Nothing starts now."


def outdated(consequence: str = NOTHING_STARTS, *, of_cluster: bool = False) -> str:
    """When the cluster, or else the queue, was last looked at, and what follows; "" while passes complete.

    of_cluster: only where it is the cluster that does not respond. Why is for operators.
    """
    last = installation.last_pass()
    if not (last.problem or last.is_overdue) or (of_cluster and not last.missed_cluster):
        return ""
    age = "" if last.age_s is None else humanize.duration(round(last.age_s))
    if last.missed_cluster:
        known = f"The cluster was last seen {age} ago." if age else "The cluster was never seen."
    elif last.problem:
        known = f"The last scheduling pass failed. None has completed {f'for {age}' if age else 'yet'}."
    else:
        known = f"No scheduling pass has completed for {age}."
    return f"{known} {consequence}"
