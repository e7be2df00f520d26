"""docs/architecture.md says how many of our files an operation runs through, and none runs through more."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.core.cache import cache

from jobs.lifecycle import cycle, together
from jobs.models import ClusterNode, Job, Runtime
from jobs.states import Phase, State
from portal.api.examples import SPEC
from tests.architecture.tracing import more_than_stated, traced
from tests.jobs.lifecycle.world import World, reconcile_due, state, two_nodes
from tests.portal.api.conftest import Api


@pytest.fixture
def world(db: None) -> Iterator[World]:
    cache.clear()
    with two_nodes() as made:
        ClusterNode.objects.create(name="node-a", cluster="memory", slot_type="cpu", slots=4)
        Runtime.objects.create(slug="sklearn", title="scikit-learn")
        yield made


def test_no_operation_passes_more_files_than_the_page_says(world: World) -> None:
    api = Api(world.alice)
    first = submit(world, api)  # everything is imported and every cache is filled
    place_and_run(world, first)
    halt(api, first)
    halt_on_workers(world, first)

    job: list[Job] = []
    passed = {
        "submission by REST, with its response": files_of(lambda: job.append(submit(world, api))),
        "place, deploy and run, on the workers": files_of(lambda: place_and_run(world, job[0])),
        "halt by REST, with its response": files_of(lambda: halt(api, job[0])),
        "halt, on the workers": files_of(lambda: halt_on_workers(world, job[0])),
    }
    by_rest, placed, halted, on_workers = passed.values()
    passed |= {"a submission in all, until it runs": by_rest | placed, "a halt in all": halted | on_workers}
    assert state(job[0]) == State.HALTED

    assert not more_than_stated(passed)


def submit(world: World, api: Api) -> Job:
    answer = api.post(f"/tenants/{world.tenant.slug}/jobs", SPEC)
    assert answer.status_code == 201, answer.content
    return Job.objects.get(pk=answer.json()["id"])


def place_and_run(world: World, job: Job) -> None:
    reconcile_due()
    for started in cycle.run():
        together.reconcile_due(started, owner="w1")
    world.report(job, phase=Phase.PROCESSING)
    reconcile_due()
    assert state(job) == State.PROCESSING


def halt(api: Api, job: Job) -> None:
    answer = api.post(f"/jobs/{job.pk}/halt", {})
    assert answer.status_code == 202, answer.content


def halt_on_workers(world: World, job: Job) -> None:
    reconcile_due()
    world.save(job, step=3)
    world.exit(job, halted=True)
    world.done(job)
    while reconcile_due()[0]:
        pass
    assert state(job) == State.HALTED


def files_of(work: Callable[[], Any]) -> set[str]:
    """The files of ours in which a function runs meanwhile, in any thread that starts meanwhile."""
    with traced() as trace, trace.record() as files:
        work()
    return files
