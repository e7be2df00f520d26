"""A learner's slots, CPUs and memory are placed together; the reason says which of them is short."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

from gpu_scheduler import world
from gpu_scheduler.checks import Remedy, check_of
from gpu_scheduler.cycle import plan
from gpu_scheduler.forecast import Basis, RunTime, forecast
from gpu_scheduler.model import Explanation, Node, Plan, Resources, Snapshot, WaitReason
from tests.gpu_scheduler.worlds import NOON, gang, running, snapshot

GIB = 1024


def node(name: str, gpus: int = 8, *, cpus: float | None = 32, gib: int | None = 64, **more: Any) -> Node:
    """A node with GPUs of type a100."""
    made = Node.with_slots(name, "a100", gpus, cpus=cpus, memory_mib=None if gib is None else gib * GIB)
    return replace(made, **more)


def only_wait(seen: Snapshot) -> Explanation:
    made = plan(seen)
    assert not made.starts
    (wait,) = made.waits
    return wait


def placed(made: Plan) -> dict[str, tuple[str, ...]]:
    return {start.job: start.placement.nodes for start in made.starts}


def test_a_job_of_two_learners_with_64_cpus_each_never_starts_on_nodes_of_two_cores() -> None:
    wait = only_wait(snapshot([node("a", cpus=2), node("b", cpus=2)], [gang("j1", 2, 1, cpus=64)]))
    assert wait.code is WaitReason.NODE_TOO_SMALL
    assert wait.message == (
        "No node is large enough: a learner needs 64 CPUs beside its 1 a100 GPU on one node, the most that a learner"
        " can have is 2 CPUs. Request at most that per learner."
    )
    assert wait.numbers | {"resource": "cpus", "need": 64, "have": 2} == wait.numbers
    assert "position" not in wait.numbers


def test_learners_that_would_fit_one_by_one_but_never_together_do_not_wait_in_the_queue() -> None:
    wait = only_wait(snapshot([node("a"), node("b")], [gang("j1", 3, 1, memory_mib=40 * GIB)]))
    assert wait.code is WaitReason.NODE_TOO_SMALL
    assert wait.message.startswith(
        "The cluster is too small: only 2 of 3 learners, each with 40 GiB of memory beside"
    )


def test_a_learner_waits_for_cpus_where_gpus_are_free_and_reads_how_many_are_missing() -> None:
    busy = running("r", "a", slots=1, cpus=30)
    wait = only_wait(snapshot([node("a")], [gang("j1", 1, 4, cpus=8)], [busy]))
    assert wait.code is WaitReason.NODE_CPUS
    assert wait.message == (
        "Waiting for CPUs on nodes with free a100 GPUs: a learner needs 8 CPUs beside its 4 a100 GPUs; at most 2 CPUs"
        " are free on one node."
    )
    assert (wait.numbers["need"], wait.numbers["have"], wait.numbers["free"]) == (8, 2, 7)
    (failed,) = [check for check in wait.checks() if check["ok"] is False]
    assert (failed["check"], failed["limit"], failed["asked"]) == ("node_cpus", 2, 8)


def test_a_learner_waits_for_memory_where_gpus_and_cpus_are_free() -> None:
    busy = running("r", "a", slots=1, memory_mib=60 * GIB)
    wait = only_wait(snapshot([node("a")], [gang("j1", 1, 4, cpus=8, memory_mib=16 * GIB)], [busy]))
    assert wait.code is WaitReason.NODE_MEMORY
    assert "needs 16 GiB of memory beside its 4 a100 GPUs; at most 4 GiB of memory is free" in wait.message


def test_slots_of_type_cpu_are_cpus_and_their_memory_counts() -> None:
    machine = Node.with_slots("c1", "cpu", 8, memory_mib=16 * GIB)
    busy = running("r", "c1", slots=2, memory_mib=12 * GIB, slot_type="cpu")
    wait = only_wait(snapshot([machine], [gang("j1", 1, 2, memory_mib=8 * GIB, slot_type="cpu")], [busy]))
    assert wait.code is WaitReason.NODE_MEMORY
    assert wait.message.startswith(
        "Waiting for memory on nodes with free CPUs: a learner needs 8 GiB of memory"
    )


def test_a_gang_is_laid_onto_the_node_that_has_all_three() -> None:
    nodes = [node("a", gib=8), node("b", cpus=2), node("c")]
    made = plan(snapshot(nodes, [gang("j1", 2, 2, cpus=4, memory_mib=16 * GIB)]))
    assert placed(made) == {"j1": ("c", "c")}


def test_starts_of_one_plan_share_a_nodes_cpus() -> None:
    made = plan(snapshot([node("a")], [gang(f"j{n}", 1, 1, cpus=15) for n in range(3)]))
    assert sorted(placed(made)) == ["j0", "j1"]
    assert made.waits[0].code is WaitReason.NODE_CPUS


def test_what_is_not_known_of_a_node_limits_nothing_and_is_not_listed_as_passed() -> None:
    plain = Node.with_slots("a", "a100", 8)
    waiting = [gang("j1", 1, 1, cpus=500, memory_mib=10**7), gang("j2", 1, 8)]
    made = plan(snapshot([plain], waiting))
    assert placed(made) == {"j1": ("a",)}
    assert {check["check"] for check in made.waits[0].checks()}.isdisjoint(
        {"node_size", "node_cpus", "node_memory"}
    )


def test_what_programs_of_others_hold_is_not_given_away_and_is_said() -> None:
    shared = node("a", used_by_others=Resources(0, 0.5, 2 * GIB))
    wait = only_wait(snapshot([shared], [gang("j1", 1, 1, cpus=32)]))
    assert wait.code is WaitReason.NODE_CPUS
    assert (
        "at most 31.5 CPUs are free on one node. Programs outside Luthier hold too much of it" in wait.message
    )
    check = check_of(wait.code)
    assert check is not None
    assert check.remedy_for(wait.numbers) is Remedy.ASK
    assert placed(plan(snapshot([shared], [gang("j1", 1, 1, cpus=31.5)]))) == {"j1": ("a",)}


def test_each_learner_takes_what_its_node_adds_to_its_request() -> None:
    machine = node("a", gib=8, per_learner=Resources(memory_mib=256))
    made = plan(snapshot([machine], [gang(f"j{n}", 1, 1, memory_mib=4 * GIB) for n in range(2)]))
    assert len(made.starts) == 1
    assert made.waits[0].numbers["have"] == 4 * GIB - 2 * 256
    fits = gang("j3", 1, 1, memory_mib=8 * GIB - 256)
    assert placed(plan(snapshot([machine], [fits]))) == {"j3": ("a",)}
    never = only_wait(snapshot([machine], [gang("j4", 1, 1, memory_mib=8 * GIB)]))
    assert (never.code, never.numbers["have"]) == (WaitReason.NODE_TOO_SMALL, 8 * GIB - 256)


def test_a_full_node_takes_none_until_a_learner_leaves_and_the_forecast_knows() -> None:
    """It runs as many pods as its kubelet allows, though six of its GPUs are free."""
    busy = [running(f"r{n}", "a", slots=1) for n in range(2)]
    seen = snapshot([node("a", full=True), node("b", full=True)], [gang("j1", 1, 1)], busy)
    assert only_wait(seen).numbers["free"] == 0
    times = {"r0": RunTime((600.0,), Basis.HISTORY), "j1": RunTime((600.0,), Basis.HISTORY)}
    assert forecast(seen, times)["j1"].p50 == NOON + timedelta(seconds=600)
    later = world.apply(seen, None, ["r0"])
    assert [each.full for each in later.nodes] == [False, True]
    assert placed(plan(later)) == {"j1": ("a",)}


def test_memory_is_reserved_for_a_queue_head_like_slots() -> None:
    """Otherwise small jobs take what ends on its node, again and again."""
    busy = [running(f"r{n}", "a", slots=1, memory_mib=20 * GIB) for n in range(3)]
    head = gang("big", 1, 1, memory_mib=60 * GIB, tenant="green")
    small = gang("s1", 1, 1, memory_mib=2 * GIB)
    seen = snapshot([node("a")], [head, small], busy, policy_state={"big": NOON - timedelta(hours=1)})
    waits = {wait.job: wait.code for wait in plan(seen).waits}
    assert waits == {"big": WaitReason.NODE_MEMORY, "s1": WaitReason.FAIR_SHARE}


def test_the_next_snapshot_and_the_forecast_count_memory_too() -> None:
    seen = snapshot(
        [node("a")], [gang("j1", 1, 1, memory_mib=40 * GIB), gang("j2", 1, 1, memory_mib=40 * GIB)]
    )
    after = world.apply(seen, plan(seen))
    assert only_wait(after).code is WaitReason.NODE_MEMORY
    found = forecast(seen, {"j1": RunTime((600.0,), Basis.HISTORY)})
    assert found["j2"].p50 == NOON + timedelta(seconds=600)


def avoided(made: Node, *, minutes: int = 10) -> Node:
    return replace(made, avoid_until=NOON + timedelta(minutes=minutes))


def test_a_node_that_failed_a_gang_is_used_only_if_the_gang_fits_on_no_others() -> None:
    nodes = [avoided(node("a")), node("b", gpus=4)]
    assert placed(plan(snapshot(nodes, [gang("j1", 2, 2)]))) == {"j1": ("b", "b")}
    assert placed(plan(snapshot(nodes, [gang("j1", 1, 8)]))) == {"j1": ("a",)}
    assert placed(plan(snapshot(nodes, [gang("j1", 3, 4)]))) == {"j1": ("a", "a", "b")}


def test_a_node_is_avoided_no_longer_than_stated() -> None:
    nodes = [avoided(node("a"), minutes=0), node("b")]
    assert placed(plan(snapshot(nodes, [gang("j1")]))) == {"j1": ("a",)}


def test_slots_of_an_avoided_node_count_as_free() -> None:
    wait = only_wait(snapshot([avoided(node("a", gpus=4))], [gang("j1", 1, 4)], [running("r", "a")]))
    assert (wait.code, wait.numbers["free"], wait.numbers["nodes_down"]) == (
        WaitReason.INSUFFICIENT_CAPACITY,
        3,
        0,
    )
