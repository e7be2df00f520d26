"""fifo and fifo_backfill on any snapshot; whole workloads are in test_simulation."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_scheduler.checks import NOT_QUEUED, Scope
from gpu_scheduler.cycle import plan
from gpu_scheduler.model import Snapshot, WaitReason
from gpu_scheduler.policies.fifo import Fifo, FifoBackfill
from tests.gpu_scheduler.worlds import NOON, gang, nodes, overcommitted, running, snapshot, worlds

EVERYDAY = settings(max_examples=100, deadline=None)


@EVERYDAY
@given(worlds(), st.sampled_from([Fifo(), FifoBackfill()]))
def test_every_job_starts_or_waits_with_a_reason_and_no_node_is_overcommitted(
    made: Snapshot, policy: Fifo
) -> None:
    world = replace(made, policy=policy, policy_state={})
    decided = plan(world)
    answered = [start.job for start in decided.starts] + [wait.job for wait in decided.waits]
    assert sorted(answered) == sorted(job.job for job in world.waiting)
    assert not overcommitted(world, decided)
    assert decided.policy_state == {}


@EVERYDAY
@given(worlds())
def test_strict_fifo_starts_no_job_behind_one_that_waits_for_nodes_of_its_type(made: Snapshot) -> None:
    """Except behind one that the nodes which are up could not hold: it would block its type until they are back."""
    world = replace(made, policy=Fifo(), policy_state={})
    if not all(node.ready for node in world.nodes):
        return
    decided = plan(world)
    rank = {job.job: (-job.priority, job.queued_at, job.job) for job in world.waiting}
    blocked = {}
    for wait in decided.waits:
        if wait.code not in NOT_QUEUED and wait.numbers["scope"] == Scope.CLUSTER:
            slot_type = wait.numbers["slot_type"]
            blocked[slot_type] = min(rank[wait.job], blocked.get(slot_type, rank[wait.job]))
    typed = {job.job: job.slot_type for job in world.waiting}
    for start in decided.starts:
        if typed[start.job] is not None and start.placement.slot_type in blocked:
            assert rank[start.job] < blocked[start.placement.slot_type]


def test_the_job_that_waits_keeps_its_own_reason_and_the_others_wait_their_turn() -> None:
    first, second = gang("j1", 1, 8), gang("j2", 1, 2)
    world = snapshot(nodes(a1=8), [first, second], [running("r1", "a1", slots=4)], policy=Fifo())
    waits = {wait.job: wait for wait in plan(world).waits}
    assert waits["j1"].code is WaitReason.INSUFFICIENT_CAPACITY
    assert waits["j2"].code is WaitReason.FAIR_SHARE
    assert (waits["j2"].numbers["holder"], waits["j2"].numbers["reserved"]) == ("j1", 4)
    assert [wait.numbers["position"] for wait in waits.values()] == [1, 2]


def test_a_job_that_no_node_can_hold_blocks_none() -> None:
    world = snapshot(nodes(a1=8), [gang("j1", 1, 9), gang("j2", 2, 8), gang("j3")], policy=Fifo())
    assert [start.job for start in plan(world).starts] == ["j3"]


def test_types_do_not_block_each_other() -> None:
    waiting = [gang("j1", 1, 8), gang("j2", 1, 8, slot_type="h200")]
    world = snapshot(nodes(a1=8, h1=8), waiting, [running("r1", "a1")], policy=Fifo())
    assert [start.job for start in plan(world).starts] == ["j2"]


def test_a_limit_reaches_to_the_end_of_the_reservation() -> None:
    """The one that runs ends within 100 s, so the first job starts then; what ends by then can use the rest."""
    busy = [running("r1", "a1", slots=6, ends_by=NOON.replace(minute=1, second=40))]
    short, long = gang("j2", 1, 2, runs_at_most_s=100.0), gang("j3", 1, 2, runs_at_most_s=101.0)
    for job, starts in ((short, ["j2"]), (long, [])):
        world = snapshot(nodes(a1=8), [gang("j1", 1, 8), job], busy, policy=FifoBackfill())
        assert [start.job for start in plan(world).starts] == starts
