"""Workers, passes and rivals all at once: each job for which there is room is launched, whatever came in between."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import connection, transaction
from django.db.models import Sum

from gpu_scheduler.clusters.base import ClusterBusy, gang_name
from gpu_scheduler.clusters.memory import MemoryCluster
from gpu_scheduler.model import Node
from jobs import clusters
from jobs.lifecycle import leases, reconcile
from jobs.lifecycle.ticker import Ticker
from jobs.models import Attempt, Job
from jobs.states import State
from tenants.models import Quota, Tenant
from tests import factories
from tests.jobs.lifecycle.test_ticker import wait_for

WORKERS, SUBMITTERS, EACH = 3, 4, 10
DEAD = "999999"
"""A worker that is not registered: what it took is free at once."""


@contextmanager
def meanwhile(*works: Callable[[], None]) -> Iterator[None]:
    """These again and again, each in a thread and with a connection of its own. Raises what one of them raised."""
    over, failures = threading.Event(), list[Exception]()

    def run(work: Callable[[], None]) -> None:
        try:
            while not over.wait(0.005):
                work()
        except Exception as failure:
            failures.append(failure)
        finally:
            connection.close()

    threads = [threading.Thread(target=run, args=[work]) for work in works]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert failures == []


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.timeout(180)
@pytest.mark.django_db(transaction=True)
def test_each_job_is_launched_among_rivals_and_failures(
    monkeypatch: pytest.MonkeyPatch, settings: Any, seed: int
) -> None:
    """Hints come from nowhere. Rows are locked by others, leases taken by workers that died, calls to the cluster fail
    before and after they had their effect, and workers stop and begin."""
    dice = random.Random(seed)
    settings.LUTHIER_LEASE_S = 5.0
    monkeypatch.setattr(reconcile, "BUSY_S", 0.1)
    cluster = MemoryCluster([Node.with_slots(f"node-{number}", "cpu", 4) for number in range(50)])
    tenants = [factories.tenant() for _ in range(2)]
    Quota.objects.filter(gpu_type="cpu").update(limit=200)

    def fails_at_times(moment: str, verb: str, gang: str) -> None:
        if verb == "launch" and dice.random() < 0.2:
            raise ClusterBusy(f"busy {moment} {gang}")

    cluster.hook = fails_at_times
    clusters.use(cluster)
    workers = [Ticker(f"worker-{number}", tick_s=0.05) for number in range(WORKERS)]

    def some_job() -> str | None:
        left = Job.objects.exclude(attempts__launched_at__isnull=False).values_list("pk", flat=True)
        return dice.choice(left) if left else None

    def lock() -> None:
        with transaction.atomic():
            list(Job.objects.select_for_update().filter(pk=some_job()))
            threading.Event().wait(dice.uniform(0, 0.03))

    def die_with_a_lease() -> None:
        if (job := some_job()) is not None:
            leases.claim(job, DEAD)

    def submit(tenant: Tenant) -> None:
        for _ in range(EACH):
            factories.job(of=tenant, learners=dice.randint(1, 4))
        connection.close()

    def launched() -> int:
        return Attempt.objects.filter(launched_at__isnull=False).count()

    try:
        for worker in workers:
            worker.start()
        with meanwhile(lock, die_with_a_lease), ThreadPoolExecutor(SUBMITTERS) as threads:
            list(threads.map(submit, tenants * (SUBMITTERS // len(tenants))))
            workers.pop(0).stop()
            workers.append(Ticker("late", tick_s=0.05))
            workers[-1].start()
            wait_for(lambda: launched() >= SUBMITTERS * EACH / 2)
        wait_for(lambda: launched() == SUBMITTERS * EACH)
    finally:
        for worker in workers:
            worker.stop()
        clusters.use(None)
    jobs = list(Job.objects.all())
    assert {(job.state, job.attempt) for job in jobs} == {(State.DEPLOYING, 1)}
    shown = cluster.observe([gang_name(job.pk, 1) for job in jobs]).gangs
    assert sorted(len(gang.learners) for gang in shown.values()) == sorted(job.learners for job in jobs)
    used = Quota.objects.filter(gpu_type="cpu").aggregate(used=Sum("used"))["used"]
    assert used == sum(job.learners for job in jobs)
