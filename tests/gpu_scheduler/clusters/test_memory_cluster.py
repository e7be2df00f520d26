"""The faults that can be ordered from the memory cluster."""

from __future__ import annotations

import pytest

from gpu_scheduler.clusters.base import ClusterBusy, LearnerPhase
from gpu_scheduler.clusters.memory import MemoryCluster
from gpu_scheduler.model import Node
from tests.gpu_scheduler.clusters.harness import launch


@pytest.fixture
def cluster() -> MemoryCluster:
    return MemoryCluster(
        [Node.with_slots("node-a", "cpu", 4), Node.with_slots("node-b", "cpu", 4)], clock=lambda: 0.0
    )


def test_a_failing_call_does_nothing(cluster: MemoryCluster) -> None:
    cluster.fail_next("launch", ClusterBusy("not now"), times=2)
    for _ in range(2):
        with pytest.raises(ClusterBusy, match="not now"):
            cluster.launch(launch("job-x-1", "runs"))
    assert cluster.listing() == {}
    cluster.launch(launch("job-x-1", "runs"))
    assert cluster.created["job-x-1", 0] == 1


def test_a_lost_answer_leaves_the_work_done(cluster: MemoryCluster) -> None:
    cluster.fail_after("launch", ClusterBusy("the answer got lost"))
    with pytest.raises(ClusterBusy):
        cluster.launch(launch("job-x-1", "runs"))
    assert list(cluster.listing()) == ["job-x-1"]


def test_a_lost_call_answers_success_and_does_nothing(cluster: MemoryCluster) -> None:
    cluster.launch(launch("job-x-1", "runs"))
    cluster.lose_next("remove")
    cluster.remove("job-x-1")
    assert list(cluster.listing()) == ["job-x-1"]
    cluster.remove("job-x-1")
    assert cluster.listing() == {}


def test_learners_of_a_lost_node_are_unknown_until_it_answers(cluster: MemoryCluster) -> None:
    cluster.launch(launch("job-x-1", "runs", "runs", nodes=("node-a", "node-b")))
    cluster.node_down("node-a")
    assert [node.ready for node in cluster.nodes()] == [False, True]
    phases = [learner.phase for learner in cluster.observe().gangs["job-x-1"].learners]
    assert phases == [LearnerPhase.UNKNOWN, LearnerPhase.RUNNING]
    cluster.node_up("node-a", learners_survived=False)
    lost = cluster.observe().gangs["job-x-1"].learners[0]
    assert (lost.phase, lost.reason, lost.exit_code) == (LearnerPhase.FAILED, "node_lost", None)


def test_an_ended_learner_stays_as_it_ended(cluster: MemoryCluster) -> None:
    cluster.launch(launch("job-x-1", "runs"))
    cluster.out_of_memory("job-x-1", 0, peak_mib=700)
    cluster.exit("job-x-1", 0, 0)
    cluster.die("job-x-1", 0)
    (learner,) = cluster.observe().gangs["job-x-1"].learners
    assert (learner.exit_code, learner.reason) == (137, "out_of_memory")
    assert learner.numbers["peak_memory_mib"] == 700


def test_the_hook_sees_every_effect_and_may_stop_the_caller_before_or_after(cluster: MemoryCluster) -> None:
    seen = []

    class Killed(BaseException):
        pass

    def hook(moment: str, verb: str, gang: str) -> None:
        seen.append((moment, verb, gang))
        if moment == "after":
            raise Killed

    cluster.hook = hook
    with pytest.raises(Killed):
        cluster.launch(launch("job-x-1", "runs"))
    assert seen == [("before", "launch", "job-x-1"), ("after", "launch", "job-x-1")]
    assert list(cluster.listing()) == ["job-x-1"]


def test_slots_are_held_until_the_gang_is_removed(cluster: MemoryCluster) -> None:
    cluster.launch(launch("job-x-1", "runs", "runs", slots=2))
    assert cluster.slots_used() == {"node-a": 4, "node-b": 0}
    cluster.exit("job-x-1", 0, 0)
    assert cluster.slots_used() == {"node-a": 4, "node-b": 0}
    cluster.remove("job-x-1")
    assert cluster.slots_used() == {"node-a": 0, "node-b": 0}


@pytest.mark.parametrize(
    ("text", "nodes"),
    [
        ("auto", {"node-a": 8, "node-b": 8}),
        ("n1:cpu:3, n2:h100:2:rack=r1", {"n1": 3, "n2": 2}),
    ],
)
def test_its_nodes_are_those_of_the_settings(text: str, nodes: dict[str, int]) -> None:
    found = MemoryCluster.connect({"LOCAL_NODES": text}).nodes()
    assert {node.name: node.slots for node in found} == nodes
    assert MemoryCluster.connect({"LOCAL_NODES": text}).nodes() == found


@pytest.mark.parametrize("text", ["n1", "n1:cpu:many", "n1:cpu:2,,n2:cpu:2"])
def test_nodes_that_cannot_be_read_are_refused_with_the_remedy(text: str) -> None:
    with pytest.raises(ValueError, match=r"LOCAL_NODES: .* is not name:type:slots; write node-a:cpu:8"):
        MemoryCluster.connect({"LOCAL_NODES": text})
