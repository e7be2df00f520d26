"""Celery tasks, the only callers of the lifecycle. Every message is a hint: it may be lost, duplicated or delayed.

The ticker does the same without any message, so these tasks only make it prompt.
"""

from __future__ import annotations

from typing import Any

from celery import bootsteps, current_app, shared_task

from jobs.lifecycle import ticker
from jobs.lifecycle.leases import owner
from jobs.lifecycle.together import reconcile_due


@shared_task(name="jobs.tasks.reconcile_job")
def reconcile_job(job_id: str) -> None:
    """Reconcile one job now, and others that are due."""
    if reconcile_due(job_id, owner=owner()):
        ticker.request_cycle()


@shared_task(name="jobs.tasks.run_cycle")
def run_cycle() -> None:
    """Have the scheduling cycle run now, and the jobs that it starts brought as far as they can go."""
    ticker.request_cycle()


class TickerStep(bootsteps.StartStopStep):
    """The ticker lives as long as its worker, and starts before the broker is looked for."""

    requires = ("celery.worker.components:Pool",)

    def __init__(self, parent: Any, **_: Any) -> None:
        app = parent.app
        taken = set(app.amqp.queues.consume_from)
        jobs, passes = app.conf.task_default_queue, app.conf.task_routes[run_cycle.name]["queue"]
        if not taken & {jobs, passes}:
            raise SystemExit(f"--queues: names neither {jobs} nor {passes}, so this worker would do nothing.")
        self.ticker = ticker.Ticker(str(parent.hostname), brings_on=jobs in taken, plans=passes in taken)

    def start(self, parent: Any) -> None:
        self.ticker.start()

    def stop(self, parent: Any) -> None:
        self.ticker.stop()

    terminate = stop


current_app.steps["worker"].add(TickerStep)
