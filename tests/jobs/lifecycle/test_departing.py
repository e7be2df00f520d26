"""An elastic job leaves a cordoned node and keeps training: rows, cycle, orders, events and the cluster."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from gpu_scheduler.model import Node, Resize
from gpu_scheduler.policies.fair_share import ELASTIC, FairShare
from jobs.lifecycle.plan_effects import write_orders
from jobs.models import Attempt, DecidedPlan, Job, JobEvent, SchedulerState
from jobs.selectors.snapshot import snapshot
from jobs.states import EventCode, Phase, State
from tests.jobs.lifecycle.test_elastic import elastic, start_on
from tests.jobs.lifecycle.world import World, job_of, one_pass, state

pytestmark = pytest.mark.django_db


def training(world: World, fewest: int, most: int, *nodes: str) -> Job:
    job = elastic(world, fewest, most)
    known = {ELASTIC: job.queued_at.isoformat()}  # the plan that starts an elastic job keeps this
    SchedulerState.objects.create(policy=FairShare.name, state=known)
    start_on(job, *nodes)
    world.settle()
    world.report(job, phase=Phase.PROCESSING)
    world.settle()
    assert state(job) == State.PROCESSING
    world.elapse(60)
    return job


def cordon(world: World, name: str) -> None:
    node = next(node for node in world.cluster.nodes() if node.name == name)
    world.cluster.set_node(replace(node, cordoned=True))
    one_pass()
    world.settle()


def held(job: Job) -> Counter[str]:
    return Counter(Attempt.objects.get(job=job, held=True).nodes)


def halted(world: World, job: Job) -> None:
    world.exit(job, halted=True)
    world.done(job)
    world.settle()


def last(job: Job, to: State) -> Any:
    return JobEvent.objects.filter(job=job, to_state=to).latest("n")


def test_it_shrinks_to_the_learners_on_its_other_node_and_says_why(world: World) -> None:
    job = training(world, 1, 8, *["node-a"] * 4, *["node-b"] * 4)
    cordon(world, "node-b")
    assert state(job) == State.STOPPING
    stopping = last(job, State.STOPPING)
    assert "Rescaling from 8 to 4 learners off node node-b, which takes no more learners." in stopping.words
    assert stopping.numbers["leaves"] == ["node-b"]
    stored = DecidedPlan.objects.latest("pk").decided["resizes"]
    assert stored == [[job.pk, 4, None, job_of(job).intent_gen, ["node-b"]]]
    waits = world.submit(learners=4)
    halted(world, job)
    assert held(job) == {"node-a": 4}, "what waits did not take its place"
    assert state(waits) == State.QUEUED
    queued = last(job, State.QUEUED)
    assert queued.words.startswith("Rescaled from 8 to 4 learners off node node-b")
    assert set(queued.numbers["plan"]) == {"snapshot", "program"}
    assert job_of(job).restarts_used == 0


def test_it_moves_with_all_its_learners_where_they_find_a_place(world: World) -> None:
    world.cluster.set_node(Node.with_slots("node-c", "cpu", 4))
    job = training(world, 2, 4, *["node-a"] * 2, *["node-b"] * 2)
    cordon(world, "node-b")
    assert "Rescaling with the same 4 learners off node node-b" in last(job, State.STOPPING).words
    halted(world, job)
    assert (held(job).total(), "node-b" in held(job)) == (4, False)
    world.report(job, phase=Phase.PROCESSING)
    world.settle()
    assert state(job) == State.PROCESSING, "once"


def test_an_order_is_read_back_whole_also_of_a_plan_that_was_not_written_down(world: World) -> None:
    job = training(world, 1, 8, *["node-a"] * 4, *["node-b"] * 4)
    generation = job_of(job).intent_gen
    ordered = Resize(job.pk, 8, generation, leaves=("node-b",))
    write_orders([ordered])
    (run,) = snapshot(nodes=[], now=job.queued_at).running
    assert run.order == ordered
    world.settle()
    stopping = last(job, State.STOPPING)
    assert "Rescaling with the same 8 learners off node node-b" in stopping.words
    assert (stopping.numbers["leaves"], "plan" in stopping.numbers) == (["node-b"], False)


def test_it_is_left_alone_where_its_fewest_find_no_place(world: World) -> None:
    job = training(world, 5, 8, *["node-a"] * 4, *["node-b"] * 4)
    cordon(world, "node-b")
    assert state(job) == State.PROCESSING
    assert not JobEvent.objects.filter(job=job, to_state=State.STOPPING).exists()
    assert EventCode.PLACED in JobEvent.objects.filter(job=job).values_list("code", flat=True)
