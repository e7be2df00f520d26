"""Elastic jobs in the lifecycle: started with the learners that fit, measured, launched with their batch."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.db import transaction

from gpu_scheduler.clusters.base import GangSpec
from gpu_scheduler.elastic.performance import Sample, choose_batch
from gpu_scheduler.model import GradientNoise, Placement, Profile, Range, Resize, Start, StepTimes
from jobs.lifecycle import measuring
from jobs.lifecycle.plan_effects import NotAdmitted, admit_all, write_orders
from jobs.models import Attempt, Job, MetricPoint, Progress
from jobs.selectors import requests
from jobs.selectors.snapshot import database_now, gang_of_job, snapshot
from jobs.states import Intent, Phase, State
from tests import factories
from tests.jobs.lifecycle.world import World, gang, job_of, last_move, one_pass, state, used

pytestmark = pytest.mark.django_db


def elastic(world: World, fewest: int = 1, most: int = 4, **more: Any) -> Job:
    """A waiting job that asks for CPUs, with a range of learners."""
    resources = {"learners": {"min": fewest, "max": most}, "gpus": 0, "cpus": 1, "memory": "64Mi", **more}
    return world.submit(
        learners=fewest,
        resources=json.dumps(resources),
        spec=factories.spec(name="train", resources=resources),
    )


def start_on(job: Job, *nodes: str) -> None:
    with transaction.atomic():
        admit_all([Start(job.pk, Placement("cpu", nodes))], "memory")


def reported(
    job: Job, seconds: float, *, steps: int = 5, axis: str = "step", metrics: dict[str, Any] | None = None
) -> None:
    """Its running attempt's learners report steps so far apart."""
    attempt = Attempt.objects.get(job=job, held=True)
    assert attempt.processing_at is not None
    MetricPoint.objects.bulk_create(
        MetricPoint(
            job=job, tenant_id=job.tenant_id, attempt=attempt.n, rank=rank, name="loss", step=step, value=1.0,
            at=attempt.processing_at + timedelta(seconds=seconds * step), seq=step,
        )
        for rank in range(attempt.learners)
        for step in range(steps)
    )  # fmt: skip
    Progress.objects.filter(job=job).update(metrics={"loss": {"last": 1.0, "axis": axis}} | (metrics or {}))


def measure() -> int:
    """Run the task until each attempt had its turn; returns how many profiles changed."""
    changed, before = 0, dict[str, Any]()
    for _ in range(measuring.TURNS):
        before = measuring.measure(before)
        changed += before["changed"]
    return changed


def known(job: Job) -> Profile:
    row = job_of(job)
    return requests.profile(row.resources, row.measured)


def test_it_starts_with_its_fewest_learners_and_its_gang_has_its_range(world: World) -> None:
    job = elastic(world, 2, 4)
    assert (gang_of_job(job.pk).learners, gang_of_job(job.pk).target) == (Range(2, 4), None)
    one_pass()
    attempt = Attempt.objects.get(job=job)
    assert (attempt.learners, len(attempt.nodes), attempt.batch, used(job.tenant)) == (2, 2, None, 2)


def test_it_is_admitted_with_every_size_of_its_range_and_no_other(world: World) -> None:
    job = elastic(world, 1, 3)
    for nodes in ((), ("node-a",) * 4):
        with pytest.raises(NotAdmitted, match="size"):
            start_on(job, *nodes)
    assert (state(job), used(job.tenant), job_of(job).learners) == (State.QUEUED, 0, 1)
    start_on(job, "node-a", "node-a", "node-b")
    assert (job_of(job).learners, used(job.tenant)) == (3, 3)
    assert Attempt.objects.get(job=job).learners == 3


def test_a_resize_is_an_event_with_its_reason_and_leads_to_that_size(world: World) -> None:
    job = elastic(world)
    one_pass()
    world.settle()
    world.report(job, phase=Phase.PROCESSING)
    world.settle()
    assert state(job) == State.PROCESSING
    assert write_orders([Resize(job.pk, 3, job_of(job).intent_gen)]) == [job.pk]
    world.settle()
    assert "from 1 to 3 learners into free devices" in last_move(job).message
    world.exit(job, 0, halted=True)
    world.done(job)
    world.settle()
    assert gang_of_job(job.pk).target == 3
    one_pass()
    assert Attempt.objects.filter(job=job).order_by("n").values_list("learners", flat=True).last() == 3
    assert job_of(job).restarts_used == 0


def processing(world: World, nodes: int = 1, **more: Any) -> Job:
    job = elastic(world, **more)
    start_on(job, *["node-a"] * nodes)
    world.settle()
    world.report(job, phase=Phase.PROCESSING)
    world.settle()
    assert state(job) == State.PROCESSING
    return job


def test_its_steps_are_measured_once_and_again_when_they_change(world: World) -> None:
    job = processing(world, 2)
    assert measure() == 0
    reported(job, 0.5)
    assert measure() == 1
    times = known(job).step_times
    assert times is not None
    assert Attempt.objects.get(job=job).step_s == pytest.approx(0.5)
    assert (known(job).largest, known(job).batch) == (2, None)
    assert measure() == 0
    run = next(run for run in snapshot(nodes=(), now=database_now()).running if run.job == job.pk)
    assert run.gang.elastic == known(job)
    MetricPoint.objects.all().delete()
    reported(job, 0.9)
    assert measure() == 1


def test_printed_lines_without_steps_are_not_measured(world: World) -> None:
    job = processing(world)
    reported(job, 0.5, axis="order")
    assert measure() == 0
    assert Attempt.objects.get(job=job).step_s is None


def test_the_plan_knows_whether_a_program_checks_for_a_halt(world: World) -> None:
    def knows() -> bool:
        [run] = snapshot(nodes=(), now=database_now()).running
        return run.saves_when_asked

    job = processing(world, 2)
    assert not knows()
    world.report(job, 1, checks_halt=True)
    assert knows()


def test_a_size_with_which_it_fails_at_once_is_left_and_not_tried_again(world: World) -> None:
    job = processing(world)
    world.report(job, last_step=4)
    reported(job, 0.5)
    measure()
    assert write_orders([Resize(job.pk, 3, job_of(job).intent_gen)]) == [job.pk]
    world.settle()
    world.exit(job, 0, halted=True)
    world.done(job)
    world.settle()
    assert (state(job), job_of(job).learners) == (State.DEPLOYING, 3)
    world.report(job, phase=Phase.PROCESSING)
    world.settle()
    world.exit(job, 1, rank=2)
    for rank in range(3):
        world.exit(job, 1, rank=rank)
        world.done(job, rank)
    world.settle()
    again = job_of(job)
    assert (again.attempt, again.learners, again.restarts_used) == (3, 1, 0)
    queued = job.events.filter(to_state=State.QUEUED).order_by("-n").values_list("message", flat=True)[0]
    assert "With 3 learners it had made no step. It continues with 1 learner, as before" in queued
    world.report(job, phase=Phase.PROCESSING)
    world.settle()
    reported(job, 0.5)
    measure()
    assert (known(job).most, known(job).largest) == (2, 1)


def test_a_size_with_which_it_has_made_steps_is_charged_for_a_failure(world: World) -> None:
    job = processing(world)
    world.report(job, last_step=4)
    reported(job, 0.5)
    measure()
    world.exit(job, 1)
    world.done(job)
    world.settle()
    assert state(job) == State.FAILED


@pytest.mark.parametrize("text", ["{", "[]", '{"largest": "two"}', '{"step_times": {"compute_s": 1}}'])
def test_what_cannot_be_read_of_a_measurement_is_as_if_nothing_was_known(world: World, text: str) -> None:
    job = elastic(world)
    Job.objects.filter(pk=job.pk).update(measured=text)
    assert gang_of_job(job.pk).elastic == Profile()


def test_jobs_of_one_size_are_not_measured_and_one_bad_row_costs_no_other(world: World) -> None:
    fixed = world.running()
    reported(fixed, 0.5)
    bad, good = processing(world), processing(world)
    for job in (bad, good):
        reported(job, 0.5)
    Job.objects.filter(pk=bad.pk).update(resources="[]")
    assert measure() == 1
    assert (job_of(fixed).measured, job_of(bad).measured) == (None, None)
    assert job_of(good).measured


def test_the_batch_is_chosen_once_for_the_attempt_and_reaches_the_program(world: World) -> None:
    job = processing(world, 2, batch={"min": 10, "max": 640})
    attempt = Attempt.objects.get(job=job)
    assert (attempt.batch, attempt.micro_batch) == (10, 5), "the smallest, as nothing is known"
    assert ", batch 10" in last_placed(job)
    launched: GangSpec = world.cluster.launched(gang(job))
    assert launched.learners[1].env["LUTHIER_BATCH"] == "10"
    assert launched.learners[1].env["LUTHIER_MICRO_BATCH"] == "5"
    assert launched.is_distributed


def test_the_receipt_of_a_halt_names_the_batch_that_was_chosen(world: World) -> None:
    job = processing(world, 2, batch={"min": 10, "max": 640})
    world.request(job, Intent.HALT)
    world.settle()
    world.report(job, gen_seen=2)
    world.exit(job, halted=True)
    world.done(job)
    world.settle()
    halted = job_of(job)
    assert halted.state == State.HALTED
    assert (halted.last_halt["learners"], halted.last_halt["batch"]) == (2, 10)
    assert halted.reason_message.endswith(" It ran with 2 learners, batch 10.")


def last_placed(job: Job) -> str:
    return str(job.events.filter(reason="placed").order_by("-n").values_list("message", flat=True)[0])


def test_a_measured_job_gets_the_batch_that_the_plan_reckoned_with(world: World) -> None:
    job = elastic(world, batch={"min": 8, "max": 512})
    noise = GradientNoise(variance=4.0, squared_norm=0.01, batch=8)
    profile = Profile(step_times=StepTimes(1.0, 0.001), noise=noise, most_per_learner=64, largest=2)
    Job.objects.filter(pk=job.pk).update(measured=requests.measured(profile))
    start_on(job, "node-a", "node-b")
    choice = choose_batch(replace(profile, batch=Range(8, 512)), 2, 2)
    attempt = Attempt.objects.get(job=job)
    assert (attempt.batch, attempt.micro_batch) == (choice.batch, choice.micro_batch)
    assert attempt.batch > 8


def test_the_noise_of_gradients_is_taken_as_the_program_reports_it(world: World) -> None:
    job = processing(world, batch={"min": 8, "max": 64})
    values = {"gradient_variance": {"last": 4.0}, "gradient_squared_norm": {"last": 0.5}}
    reported(job, 0.5, metrics=values)
    measure()
    assert known(job).noise == GradientNoise(4.0, 0.5, 8)
    assert (known(job).most_per_learner, known(job).largest) == (8, 1)
    MetricPoint.objects.all().delete()
    for seconds, wrong in ((0.9, "NaN"), (1.5, -1.0), (2.5, 1e300), (4.5, 10**400)):
        reported(job, seconds, metrics=values | {"gradient_variance": {"last": wrong}})
        assert measure() == 1
        assert known(job).noise is None, wrong
        MetricPoint.objects.all().delete()


def test_a_step_of_several_micro_batches_is_measured_as_such() -> None:
    """As choose_batch splits it: 64 samples of 2 learners that hold 8 at once are 8 each, four times."""
    whole = Attempt(learners=2, nodes=["a", "b"], batch=64, micro_batch=8, step_s=2.0)
    assert measuring._sample(whole) == Sample(2, 2, 8, 3, 2.0)
    own = Attempt(learners=4, nodes=["a", "a", "b", "b"], step_s=0.5)
    assert measuring._sample(own) == Sample(4, 2, 1 / 4, 0, 0.5), "its own batch, divided among them"
