"""CPUs and memory of nodes through the whole line: the cluster's report, rows, the plan, and the reason on the job."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_scheduler.model import NOTHING, Node, Resources
from jobs.lifecycle import cycle
from jobs.models import ClusterNode, Job, NodeChange
from jobs.selectors.nodes import NODE_COLUMNS, node_of_row, node_row, scheduler_nodes
from jobs.selectors.what_if import preview_resume
from jobs.states import Intent, State
from tests import factories
from tests.jobs.lifecycle.world import World, job_of, state

GIB = 1024
GPUS = replace(
    Node.with_slots("gpu-a", "a100", 8, cpus=2, memory_mib=64 * GIB),
    used_by_others=Resources(0, 0.25, GIB),
    per_learner=Resources(memory_mib=256),
)


@pytest.fixture
def gpus(world: World) -> World:
    world.cluster.set_node(GPUS)
    world.tenant.quotas.create(gpu_type="a100", limit=8)
    return world


def submit(world: World, *, cpus: float, memory: str, gpus: int = 1, learners: int = 1) -> Job:
    resources = {"learners": learners, "gpus": gpus, "gpu_type": "a100", "cpus": cpus, "memory": memory}
    spec = factories.spec(resources=resources)
    return world.submit(gpus=gpus, slots=gpus, learners=learners, gpu_type="a100", spec=spec)


_amounts = st.builds(
    Resources, gpus=st.just(0), cpus=st.sampled_from([0, 0.5, 2]), memory_mib=st.sampled_from([0, 300])
)


@given(
    st.sampled_from(["cpu", "a100"]),
    st.none() | st.sampled_from([2, 7.5]),
    st.none() | st.sampled_from([512, 4096]),
    _amounts,
    st.booleans(),
    st.booleans(),
)
def test_a_node_read_back_from_its_row_offers_the_same(
    slot_type: str, cpus: float | None, memory: int | None, more: Resources, ready: bool, cordoned: bool
) -> None:
    node = replace(
        Node.with_slots("n", slot_type, 4, ready, cpus=cpus, memory_mib=memory),
        per_learner=more,
        cordoned=cordoned,
        rack="r1",
        block="b1",
        used_by_others=NOTHING if slot_type == "cpu" else more,
    )
    back = node_of_row(*(node_row(node)[name] for name in NODE_COLUMNS))
    assert back.room == node.room
    assert back.most_memory_mib == node.most_memory_mib
    assert back.per_learner.needed(slot_type) == node.per_learner.needed(slot_type)
    assert back.used_by_others.needed(slot_type) == node.used_by_others.needed(slot_type)
    assert (back.ready, back.cordoned, back.rack, back.block) == (ready, cordoned, "r1", "b1")


def test_a_gpu_job_with_more_cpus_than_a_node_has_never_starts_and_says_why(gpus: World) -> None:
    job = submit(gpus, gpus=2, learners=2, cpus=64, memory="4Gi")
    gpus.settle()
    row = job_of(job)
    assert (row.state, row.reason_code) == (State.QUEUED, "NODE_TOO_SMALL")
    assert "needs 64 CPUs beside its 2 a100 GPUs" in row.reason_message


def test_a_gang_waits_for_one_rack_as_its_spec_says_and_starts_there(world: World) -> None:
    for name, rack in (("gpu-a", "r2"), ("gpu-b", "r1"), ("gpu-c", "r2")):
        world.cluster.set_node(replace(Node.with_slots(name, "a100", 8), rack=rack, block="b1"))
    world.tenant.quotas.create(gpu_type="a100", limit=24)
    small = submit(world, gpus=4, cpus=1, memory="1Gi")
    world.settle()
    resources = {"learners": 2, "gpus": 8, "gpu_type": "a100"}
    fields = {"learners": 2, "gpus": 8, "slots": 8, "gpu_type": "a100"}
    job = world.submit(spec=factories.spec(resources=resources), topology="required rack", **fields)
    world.settle()
    assert (state(small), state(job)) == (State.DEPLOYING, State.QUEUED)
    assert job_of(job).reason_code == "TOPOLOGY_FRAGMENTED"
    assert preview_resume(job_of(job)).code == "TOPOLOGY_FRAGMENTED", "previews read the stored nodes"
    world.request(small, Intent.CANCEL)
    world.settle()
    world.elapse(60)
    world.settle()
    assert job_of(job).attempts.get().nodes == ["gpu-a", "gpu-c"]


def test_jobs_share_a_nodes_memory_and_the_next_one_starts_when_it_is_free(gpus: World) -> None:
    first = submit(gpus, cpus=1, memory="40Gi")
    gpus.settle()
    second = submit(gpus, cpus=0.5, memory="40Gi")
    gpus.settle()
    assert state(first) == State.DEPLOYING
    assert job_of(second).reason_code == "NODE_MEMORY"
    assert job_of(second).reason_numbers["need"] == 40 * GIB
    assert preview_resume(job_of(second)).code == "NODE_MEMORY", "previews read the stored nodes"
    gpus.request(first, Intent.CANCEL)
    gpus.settle()
    gpus.elapse(60)
    gpus.settle()
    assert state(second) == State.DEPLOYING


def test_the_stored_nodes_are_those_that_the_cluster_reports(gpus: World) -> None:
    cycle.run()
    assert [node for node in scheduler_nodes() if node.name == "gpu-a"] == [GPUS]
    assert ClusterNode.objects.get(name="gpu-a").memory_mib == 64 * GIB - 256


def test_a_node_leaves_a_line_of_history_when_it_changes_and_only_then(
    gpus: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for node in (GPUS, GPUS, replace(GPUS, why="Said by the cluster."), replace(GPUS, cordoned=True)):
        gpus.cluster.set_node(node)
        cycle.run()
    gpus.cluster.node_down("gpu-a")
    cycle.run()
    others = [node for node in gpus.cluster.nodes() if node.name != "gpu-a"]
    monkeypatch.setattr(gpus.cluster, "nodes", lambda: others)
    cycle.run()
    rows = NodeChange.objects.filter(name="gpu-a").order_by("at", "pk")
    assert [row.state for row in rows] == ["ready", "cordoned", "down", "gone"]
    assert {(row.slot_type, row.slots) for row in rows} == {(GPUS.slot_type, GPUS.slots)}


def test_what_a_worker_of_an_older_version_changed_is_in_the_history_after_the_first_pass(
    gpus: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It keeps nodes without writing history: one was cordoned, one is gone, one is new."""
    gpus.cluster.set_node(replace(GPUS, cordoned=True))
    cycle.run()
    NodeChange.objects.all().delete()
    for name in ("gpu-a", "gpu-gone"):
        NodeChange.objects.create(name=name, slot_type=GPUS.slot_type, slots=GPUS.slots, state="ready")
    monkeypatch.setattr(cycle, "_history_compared", False)
    for _ in range(2):
        cycle.run()
    rows = list(NodeChange.objects.order_by("at", "pk").values_list("name", "state"))
    assert rows[:2] == [("gpu-a", "ready"), ("gpu-gone", "ready")]
    others = {(node.name, "ready") for node in gpus.cluster.nodes() if node.name != "gpu-a"}
    assert set(rows[2:]) == {("gpu-a", "cordoned"), ("gpu-gone", "gone")} | others
    assert len(rows) == 4 + len(others)
