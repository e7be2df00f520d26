"""The scheduler's orders for running jobs: stop, or run in another size. Written here, carried out by reconciliation.

The cycle holds no lease, so it never moves a running job. It writes an order to the job's row, and ``decide`` turns
that into STOPPING. docs/job_states.md says who wins when an order meets a request of the owner or the program's end.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.db import connection

from gpu_scheduler.model import Resize, Stop
from jobs import wake
from jobs.states import BY_ORDER, State, StopReason

NONE: dict[str, Any] = {"order_reason": "", "order_for_job": "", "order_learners": None}
"""The row of a job without an order. order_gen stays: the newest generation ever ordered for."""

RUNS = ", ".join(f"'{state}'" for state in (State.DEPLOYING, State.DOWNLOADING, State.PROCESSING))
WRITE = """
UPDATE jobs_job SET order_reason = %(reason)s, order_for_job = %(for_job)s, order_learners = %(learners)s,
  order_gen = %(generation)s, next_reconcile_at = clock_timestamp()
WHERE id = %(job)s AND intent = 'RUN' AND intent_gen = %(generation)s AND order_gen <= %(generation)s
  AND (order_reason, order_for_job, order_learners, order_gen)
    IS DISTINCT FROM (%(reason)s, %(for_job)s, %(learners)s::int, %(generation)s)
"""
STOP = f"{WRITE} AND (state IN ({RUNS}) OR (state = 'STOPPING' AND stop_reason = '{StopReason.RESCALED}'))"
RESIZE = f"""{WRITE} AND state IN ({RUNS}) AND learners <> %(learners)s
  AND order_reason IN ('', '{StopReason.RESCALED}')"""


def write(orders: Iterable[Stop | Resize]) -> list[str]:
    """Write these orders and notify the jobs' reconciliation; returns the jobs whose order is new.

    An order is refused where the job no longer runs, or its intent is newer than the one for which the order was
    decided. A stop order replaces a resize order, a newer order of the same kind replaces the older one.
    """
    return [order.job for order in orders if _write(order)]


def _write(order: Stop | Resize) -> bool:
    values: dict[str, Any] = {"job": order.job, "generation": order.generation}
    if isinstance(order, Stop):
        reason = StopReason(order.reason)
        if reason not in BY_ORDER - {StopReason.RESCALED}:
            raise ValueError(f"not a reason to order a stop: {reason}")
        values |= {"reason": reason.value, "for_job": order.for_job or "", "learners": None}
    else:
        values |= {"reason": StopReason.RESCALED.value, "for_job": "", "learners": order.learners}
    with connection.cursor() as cursor:
        cursor.execute(STOP if isinstance(order, Stop) else RESIZE, values)
        accepted = cursor.rowcount == 1
    if accepted:
        wake.hint("jobs.tasks.reconcile_job", order.job)
    return accepted
