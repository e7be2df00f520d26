"""Whole lives of jobs as steps: what happens to a job, each followed by a look of some worker.

Together they pass every failpoint. Each step may be run again after a worker was killed in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from gpu_scheduler.clusters.base import ClusterBusy, LaunchRefused
from gpu_scheduler.model import Resize, Stop
from jobs.lifecycle import plan_effects
from jobs.lifecycle.reconcile import PERSISTENT_AFTER
from jobs.models import Job
from jobs.states import Intent, Phase, State
from tenants.models import Quota
from tests.jobs.lifecycle.world import World, job_of, state

Look = Callable[[], object]


def end(world: World, look: Look, job: Job, *, code: int = 0) -> None:
    """Its programs end, and its results are stored."""
    world.exit(job, code)
    look()
    world.done(job)
    look()


def request_and_wait(world: World, look: Look, job: Job, intent: Intent) -> None:
    """No learner reacts to the request until the grace period of ten seconds is over."""
    world.request(job, intent)
    look()
    world.elapse(11)
    look()


def halted_resumed_failed_restarted_completed(world: World, look: Look) -> Iterator[Job]:
    job = world.submit(learners=2, max_restarts=1, grace_s=10)
    yield job
    look()
    world.report(job, phase=Phase.DOWNLOADING)
    look()
    world.report(job, phase=Phase.PROCESSING)
    look()
    assert state(job) == State.PROCESSING
    world.request(job, Intent.HALT)
    look()
    world.save(job, 10)
    world.exit(job, halted=True)
    world.done(job)
    look()
    assert state(job) == State.HALTED
    world.request(job, Intent.RUN)
    look()
    look()
    world.report(job, phase=Phase.PROCESSING)
    look()
    world.exit(job, 1, rank=0)
    look()
    world.elapse(12)
    look()
    world.report(job, phase=Phase.PROCESSING)
    look()
    end(world, look, job)
    assert state(job) == State.COMPLETED


def preempted_and_rescaled_by_order(world: World, look: Look) -> Iterator[Job]:
    job = world.running(grace_s=10)
    yield job
    for order in (Stop(job.pk, "preempted", None, 1), Resize(job.pk, 2, 1)):
        plan_effects.write_orders([order])
        look()
        assert state(job) == State.STOPPING
        world.save(job, 10)
        world.exit(job, halted=True)
        world.done(job)
        look()
        look()
        world.report(job, phase=Phase.PROCESSING)
        look()
    assert job_of(job).learners == 2
    end(world, look, job)
    assert state(job) == State.COMPLETED


def canceled_while_waiting(world: World, look: Look) -> Iterator[Job]:
    job = world.submit()
    yield job
    world.request(job, Intent.CANCEL)
    look()
    assert state(job) == State.CANCELED


def halted_while_waiting_then_canceled(world: World, look: Look) -> Iterator[Job]:
    job = world.submit()
    yield job
    world.request(job, Intent.HALT)
    look()
    assert state(job) == State.HALTED
    world.request(job, Intent.CANCEL)
    look()
    assert state(job) == State.CANCELED


def canceled_while_deploying(world: World, look: Look) -> Iterator[Job]:
    job = world.submit(grace_s=10)
    yield job
    look()
    request_and_wait(world, look, job, Intent.CANCEL)
    assert state(job) == State.CANCELED


def halted_while_downloading(world: World, look: Look) -> Iterator[Job]:
    job = world.submit(grace_s=10)
    yield job
    look()
    world.report(job, phase=Phase.DOWNLOADING)
    look()
    request_and_wait(world, look, job, Intent.HALT)
    assert state(job) == State.HALTED


def finished_while_halting(world: World, look: Look) -> Iterator[Job]:
    job = world.running()
    yield job
    world.request(job, Intent.HALT)
    look()
    end(world, look, job)
    assert state(job) == State.COMPLETED


def canceled_while_storing(world: World, look: Look) -> Iterator[Job]:
    job = world.running(grace_s=10)
    yield job
    world.exit(job, 0)
    look()
    assert state(job) == State.STORING
    world.request(job, Intent.CANCEL)
    look()
    world.done(job)
    look()
    assert state(job) == State.CANCELED


def lost_its_results(world: World, look: Look) -> Iterator[Job]:
    job = world.running()
    yield job
    world.exit(job, 0)
    look()
    world.cluster.exit(f"job-{job.pk}-1", 0, 0)
    world.elapse(3)
    look()
    assert state(job) == State.FAILED


def failed_without_budget(world: World, look: Look) -> Iterator[Job]:
    job = world.running(grace_s=10)
    yield job
    end(world, look, job, code=1)
    assert state(job) == State.FAILED


def kept_waiting_by_the_cluster(world: World, look: Look) -> Iterator[Job]:
    job = world.submit(grace_s=10)
    yield job
    world.cluster.fail_next("launch", ClusterBusy("scripted"), times=2)
    look()
    world.elapse(3)
    look()
    world.elapse(3)
    look()
    world.report(job, phase=Phase.PROCESSING)
    look()
    end(world, look, job)
    assert state(job) == State.COMPLETED


def failing_then_canceled(world: World, look: Look) -> Iterator[Job]:
    job = world.submit(spec={"invalid": True})
    yield job
    for _ in range(PERSISTENT_AFTER + 1):  # one more for the one that was killed
        look()
        world.elapse(70)
    assert job.events.filter(reason="reconcile_failing").count() == 1
    world.request(job, Intent.CANCEL)
    look()
    assert state(job) == State.CANCELED


def waiting_while_its_packages_are_chosen(world: World, look: Look) -> Iterator[Job]:
    Quota.objects.update(limit=0)
    job = world.submit(packages={"requirements": ["upper"]})
    yield job
    world.cluster.answers = [None, ("upper==1.5",)]
    look()
    world.elapse(3)
    look()
    assert job_of(job).packages["lock"] == ["upper==1.5"]
    assert job.events.filter(reason="packages_chosen").count() == 1
    world.request(job, Intent.CANCEL)
    look()
    assert state(job) == State.CANCELED


def failed_for_its_packages(world: World, look: Look) -> Iterator[Job]:
    Quota.objects.update(limit=0)
    job = world.submit(packages={"requirements": ["uper"]})
    yield job
    world.cluster.answers = [
        LaunchRefused("The job's packages cannot be installed. Because uper was not found.")
    ]
    look()
    assert state(job) == State.FAILED


LIVES = (
    halted_resumed_failed_restarted_completed,
    preempted_and_rescaled_by_order,
    canceled_while_waiting,
    halted_while_waiting_then_canceled,
    canceled_while_deploying,
    halted_while_downloading,
    finished_while_halting,
    canceled_while_storing,
    lost_its_results,
    failed_without_budget,
    kept_waiting_by_the_cluster,
    failing_then_canceled,
    waiting_while_its_packages_are_chosen,
    failed_for_its_packages,
)
