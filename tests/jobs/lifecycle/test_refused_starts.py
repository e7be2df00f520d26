"""A start that a plan decided on and that is not admitted: the job waits on as if there had been no such plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from gpu_scheduler.model import Start
from gpu_scheduler.policies.fair_share import FairShare
from jobs.lifecycle import cycle, plan_effects
from jobs.states import Phase, State
from tenants.models import Quota
from tests import factories
from tests.jobs.lifecycle.test_quota import big_cluster as big_cluster
from tests.jobs.lifecycle.world import World, state


@pytest.mark.django_db
def test_a_queue_head_whose_start_is_refused_keeps_what_was_kept_for_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another transaction has its row when its turn comes: a job that comes next does not take its slots."""
    bob = factories.member(factories.tenant(quotas={"cpu": 8}), "bob")
    other = bob.memberships.get().tenant
    Quota.objects.filter(tenant=world.tenant).update(limit=8)
    world.submit(slots=1)
    filler = factories.job(owner=bob, of=other, slots=4)
    world.settle()
    world.report(filler, phase=Phase.PROCESSING)
    big = world.submit(learners=2, slots=3)
    world.settle()
    world.elapse(FairShare().starvation_timeout_s + 1)
    world.settle()
    assert (state(big), state(filler)) == (State.QUEUED, State.PROCESSING)
    write, refused = cycle._write_starts, list[str]()

    def write_starts(starts: Sequence[Start], *rest: Any) -> None:
        if not refused and big.pk in {start.job for start in starts}:
            refused.append(big.pk)
            raise plan_effects.JobLocked
        write(starts, *rest)

    monkeypatch.setattr(cycle, "_write_starts", write_starts)
    world.exit(filler)
    world.done(filler)
    while not refused:
        world.settle()
    newcomer = factories.job(owner=bob, of=other, slots=2)
    world.elapse(2)
    world.settle()
    assert (state(big), state(newcomer)) == (State.DEPLOYING, State.QUEUED)
