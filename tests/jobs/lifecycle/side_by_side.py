"""Several jobs that are due at once, and what is asked of them as a worker does that was notified of one."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from django.test.utils import CaptureQueriesContext

from jobs.lifecycle import leases, together
from jobs.models import Job
from jobs.states import Phase, State
from tests import factories
from tests.jobs.lifecycle.world import World, state

COUNT = 4
VOLATILE = {"seconds", "counted_seconds", "plan", "nodes"}
"""What the events of two jobs with the same life may have different numbers of."""


def hold_as_notified(found: Sequence[leases.Lease]) -> bool:
    """As a worker that was notified of the first of these jobs does."""
    began = time.monotonic()
    wants_cycle, left = together.bring_on(found)
    return together.hold_left(left, began, shared=len(found) > 1) or wants_cycle


def deployed(world: World, count: int) -> list[Job]:
    jobs = [world.submit() for _ in range(count)]
    world.settle()
    assert {state(job) for job in jobs} == {State.DEPLOYING}
    return jobs


def history(job: Job) -> list[tuple[Any, ...]]:
    return [
        (
            *(one.n, one.code, one.from_state, one.to_state, one.attempt, one.reason, one.source),
            sorted((key, value) for key, value in one.numbers.items() if key not in VOLATILE),
        )
        for one in job.events.order_by("n")
    ]


def claimed(jobs: Sequence[Job]) -> list[leases.Lease]:
    """The leases of all of them, in their order."""
    found = {lease.job_id: lease for lease in leases.claim_all([job.pk for job in jobs], "w1")}
    return [found[job.pk] for job in jobs]


def ended_unseen(world: World, count: int) -> list[Job]:
    """So many jobs whose programs ended before anyone looked."""
    jobs = deployed(world, count)
    for job in jobs:
        world.exit(job)
    return jobs


def delivered(world: World, count: int) -> list[Job]:
    """So many jobs that have delivered everything and whose gangs are still there."""
    jobs = ended_unseen(world, count)
    world.settle()
    for job in jobs:
        world.done(job)
    return jobs


def taken_over(job: Job) -> None:
    Job.objects.filter(pk=job.pk).update(lease_token="00000000-0000-4000-8000-000000000000")


def commits(seen: CaptureQueriesContext) -> int:
    """How many transactions there were: each is a savepoint of the test's own."""
    return sum(query["sql"].startswith("SAVEPOINT") for query in seen.captured_queries)


def of_tenants(world: World, count: int) -> list[Job]:
    """A job of each of so many tenants, about to complete."""
    jobs = [world.submit()]
    for number in range(count - 1):
        other = factories.tenant(f"other-{number}-{Job.objects.count()}", quotas={"cpu": 8})
        jobs.append(factories.job(of=other))
    world.settle()
    for step in (lambda job: world.report(job, phase=Phase.PROCESSING), world.exit):
        for job in jobs:
            step(job)
        world.settle()
    assert {state(job) for job in jobs} == {State.STORING}
    for job in jobs:
        world.done(job)
    return jobs
