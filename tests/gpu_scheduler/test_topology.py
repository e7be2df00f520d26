"""Gangs that must, or should, be in one node, rack or block: where they start, why they wait, what is stopped."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import timedelta
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_scheduler import domains, world
from gpu_scheduler.cycle import plan
from gpu_scheduler.forecast import RunTime, forecast, suggest
from gpu_scheduler.model import (
    Domain,
    Explanation,
    Gang,
    Level,
    Node,
    PlacementStrategy,
    Plan,
    Resources,
    Snapshot,
    Topology,
    WaitReason,
    domain_at,
)
from gpu_scheduler.placement import Pool
from gpu_scheduler.policies.fair_share import FairShare
from tests.gpu_scheduler.worlds import NOON, gang, next_snapshot, nodes, running, snapshot

RACK, BLOCK, NODE = (Topology(level, required=True) for level in (Level.RACK, Level.BLOCK, Level.NODE))
PREFER_RACK = Topology(Level.RACK, required=False)


def racks(**slots: int) -> tuple[Node, ...]:
    """racks(a1x=8, a1y=8, a2x=8): names begin with type and rack; racks 1 and 2 are block b1, 3 and 4 block b2."""
    return tuple(
        replace(node, rack=f"r{node.name[1]}", block="b1" if node.name[1] in "12" else "b2")
        for node in nodes(**slots)
    )


FOUR = racks(a1x=8, a1y=8, a2x=8, a2y=8, a3x=8, a3y=8)


def close(job: str, learners: int, slots: int, topology: Topology | None = RACK, **changes: Any) -> Gang:
    return gang(job, learners, slots, topology=topology, **changes)


def placed(made: Plan, job: str) -> tuple[str, ...]:
    return next(start.placement.nodes for start in made.starts if start.job == job)


def why(made: Plan, job: str) -> Explanation:
    return next(wait for wait in made.waits if wait.job == job)


def test_a_required_rack_is_waited_for_although_the_cluster_has_room() -> None:
    busy = [running(f"r{number}", name, slots=4) for number, name in enumerate(("a1x", "a2x", "a3x"))]
    wait = why(plan(snapshot(FOUR, [close("j1", 2, 8)], busy)), "j1")
    assert wait.code is WaitReason.TOPOLOGY_FRAGMENTED
    assert wait.message == (
        "Waiting for 2 learners with 8 a100 GPUs each in one rack: 1 fits into rack r3 of block b2, the one with the"
        " most room, where 12 a100 GPUs are free."
    )
    expected = {
        "level": "rack",
        "need": 2,
        "have": 1,
        "domain": "rack r3 of block b2",
        "domain_free": 12,
        "position": 1,
    }
    assert expected.items() <= wait.numbers.items()
    [row] = [each for each in wait.checks() if each["check"] == "topology"]
    assert (row["ok"], row["limit"], row["asked"]) == (False, 1, 2)


def test_without_a_topology_nothing_is_said_of_it_and_any_nodes_do() -> None:
    busy = [running(f"r{number}", name, slots=4) for number, name in enumerate(("a1x", "a2x", "a3x"))]
    made = plan(snapshot(FOUR, [close("j1", 2, 8, None), gang("j2", 9, 8)], busy))
    assert set(placed(made, "j1")) == {"a1y", "a2y"}
    assert not {"topology", "topology_size"} & {each["check"] for each in why(made, "j2").checks()}


@pytest.mark.parametrize(
    ("topology", "learners", "on", "said"),
    [
        (NODE, 2, FOUR, "No node is large enough: 2 learners"),
        (NODE, 2, FOUR, "Request fewer learners, require a rack or a block, or prefer the node"),
        (NODE, 3, FOUR, "Request fewer learners, require a block, or prefer the node"),  # no rack holds three
        (
            RACK,
            3,
            FOUR,
            "the largest holds 2 even if nothing else runs. Request fewer learners, require a block, or",
        ),
        (
            BLOCK,
            5,
            FOUR,
            "the largest holds 4 even if nothing else runs. Request fewer learners, or prefer the block",
        ),
        (RACK, 2, nodes(a1=8, a2=8), "Request fewer learners, or prefer the rack"),
        (
            RACK,
            2,
            nodes(a1=8, a2=8),
            "No rack is large enough (no node with a100 GPUs reports its rack): 2 learners",
        ),
    ],
)
def test_what_no_domain_could_ever_hold_is_said_with_the_remedy(
    topology: Topology, learners: int, on: tuple[Node, ...], said: str
) -> None:
    wait = why(plan(snapshot(on, [close("j1", learners, 8, topology)])), "j1")
    assert wait.code is WaitReason.TOPOLOGY_TOO_SMALL
    assert said in wait.message
    assert "position" not in wait.numbers


def test_a_node_whose_rack_is_not_known_is_said_to_be_alone() -> None:
    on = (*racks(a1x=8, a1y=8, a1z=8), *nodes(a9=16))
    wait = why(plan(snapshot(on, [close("j1", 3, 8)], [running("r1", "a1x", "a1y", slots=4)])), "j1")
    assert "2 fit into node a9 (its rack is not known), the one with the most room" in wait.message


def test_racks_of_one_name_in_two_blocks_are_two_racks() -> None:
    on = (replace(FOUR[0], rack="r1", block="b1"), replace(FOUR[1], rack="r1", block="b2"))
    assert why(plan(snapshot(on, [close("j1", 2, 8)])), "j1").code is WaitReason.TOPOLOGY_TOO_SMALL


def test_the_fullest_rack_that_holds_it_is_taken_and_its_block_that_is_fullest() -> None:
    """So whole racks, and whole blocks, stay free for gangs that need them."""
    small = close("j1", 2, 4, RACK, strategy=PlacementStrategy.SPREAD)
    made = plan(snapshot(FOUR, [small], [running("r1", "a1x", "a1y", slots=4)]))
    assert set(placed(made, "j1")) == {"a1x", "a1y"}
    whole = close("j2", 2, 8, RACK)
    assert set(placed(plan(snapshot(FOUR, [whole])), "j2")) == {"a3x", "a3y"}, (
        "b1 has two racks to keep together"
    )


def test_a_preference_falls_back_to_the_next_larger_domain_and_then_to_any() -> None:
    def where(*busy: str) -> set[str]:
        held = [running(f"r{name}", name, slots=8) for name in busy]
        asked = close("j1", 2, 8, PREFER_RACK, strategy=PlacementStrategy.SPREAD)
        return set(placed(plan(snapshot(FOUR, [asked], held)), "j1"))

    assert where() == {"a3x", "a3y"}
    assert where("a3x", "a1x") == {"a2x", "a2y"}
    assert where("a3x", "a1x", "a2x") == {"a1y", "a2y"}, "one block"
    assert where("a3x", "a1x", "a2x", "a2y") == {"a1y", "a3y"}, "anywhere"


def test_avoided_nodes_are_left_out_where_another_rack_holds_the_gang() -> None:
    on = tuple(
        replace(node, avoid_until=NOON.replace(hour=13)) if node.name == "a3x" else node for node in FOUR
    )
    assert set(placed(plan(snapshot(on, [close("j1", 2, 8)])), "j1")) == {"a1x", "a1y"}
    alone = tuple(node for node in on if node.name.startswith("a3"))
    assert set(placed(plan(snapshot(alone, [close("j1", 2, 8)])), "j1")) == {"a3x", "a3y"}


def test_a_reservation_is_for_one_rack_the_one_that_lacks_the_least() -> None:
    """Small jobs keep coming; the rack whose runs hold the least is kept until the gang can start in it."""
    busy = [
        *(running(f"r{name}", name, slots=8) for name in ("a1x", "a1y", "a2x", "a3x")),
        running("ra2y", "a2y", slots=1),
    ]
    head = {"j1": NOON.replace(hour=11)}
    small = [gang(f"j{number}", 1, 7, queued_at=NOON) for number in (2, 3)]
    seen = snapshot(FOUR, [close("j1", 2, 8), *small], busy, policy=FairShare(), policy_state=head)
    made = plan(seen)
    assert [start.placement.nodes for start in made.starts] == [("a2y",)], "a3x and a3y lack the least"
    kept = why(made, "j3")
    assert kept.code is WaitReason.FAIR_SHARE
    after = world.apply(seen, made, ended=["ra3x"])
    assert set(placed(plan(after), "j1")) == {"a3x", "a3y"}


def test_a_gang_does_not_start_across_racks_where_another_reserved_a_part_of_each() -> None:
    """Enough is free in each rack, and enough is unreserved, but not in one rack."""
    on = racks(a1x=16, a1y=8, a2x=16, a2y=8)
    busy = [running("r1", "a1x", slots=8), running("r2", "a2x", slots=8)]
    head = {"j1": NOON.replace(hour=11)}
    waiting = [gang("j1", 2, 16), close("j2", 2, 8)]
    made = plan(snapshot(on, waiting, busy, policy=FairShare(), policy_state=head))
    assert (made.starts, why(made, "j2").code) == ((), WaitReason.FAIR_SHARE)


def test_what_an_urgent_gang_stops_is_all_in_the_rack_where_it_then_starts() -> None:
    """The two cheapest runs are in different racks; stopping one in each would free no rack."""
    dearest_first = ("a3x", "a3y", "a2y", "a1y", "a2x", "a1x")
    busy = []
    for hour, name in enumerate(dearest_first, start=2):
        run = running(f"r{name}", name, slots=8, tenant="green")
        busy.append(replace(run, started_at=NOON.replace(hour=hour), gang=replace(run.gang, priority=0)))
    urgent = close("j1", 2, 8, RACK, priority=3)
    seen = snapshot(FOUR, [urgent], busy)
    made = plan(seen)
    assert sorted(stop.job for stop in made.stops) == ["ra1x", "ra1y"]
    assert why(made, "j1").numbers["stopping_for_it"] == 2
    after = world.apply(seen, made, ended=[stop.job for stop in made.stops])
    assert set(placed(plan(after), "j1")) == {"a1x", "a1y"}


def mixed(**ends: int) -> tuple[Snapshot, dict[str, RunTime]]:
    """Each of these nodes is full for so many seconds."""
    busy = [running(f"r{name}", name, slots=8) for name in ends]
    return (
        snapshot(FOUR, [close("j1", 2, 8)], busy),
        {f"r{name}": RunTime((float(seconds),)) for name, seconds in ends.items()},
    )


def test_the_forecast_waits_for_one_rack_and_a_looser_topology_starts_now() -> None:
    seen, runs = mixed(a1x=300, a2x=900, a3x=600)
    [own] = seen.waiting
    assert forecast(seen, runs)["j1"].p50 == NOON.replace(minute=5)
    variants = {
        "block": replace(own, job="block", topology=BLOCK),
        "preferred": replace(own, job="preferred", topology=PREFER_RACK),
        "same": replace(own, job="same"),
    }
    found = suggest(seen, runs, "j1", variants)
    assert {name: start.p50 for name, start in found.items()} == {"block": NOON, "preferred": NOON}


@pytest.mark.parametrize("topology", [NODE, RACK, BLOCK, PREFER_RACK])
def test_the_domains_of_nodes_are_found_once_a_plan_however_many_gangs_start(
    topology: Topology, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: Counter[Level] = Counter()

    def counted(level: Level, inner: Domain) -> Domain:
        found[level] += 1
        return domain_at(level, inner)

    monkeypatch.setattr(domains, "domain_at", counted)
    on = [
        replace(node, rack=f"r{number // 8}", block=f"b{number // 64}")
        for number, node in enumerate(nodes(**{f"a{number:04}": 8 for number in range(1000)}))
    ]
    waiting = [close(f"j{number}", 1, 8, topology) for number in range(500)]
    made = plan(snapshot(on, waiting, limits={"red": 4000}))
    assert len(made.starts) == 500
    assert found.total() <= 3 * len(Level) * len(on)


def test_what_a_topology_costs_counts_as_work_of_a_forecast() -> None:
    """Each run of a node ends alone: the work decides how many of the ends are seen."""
    on = racks(**{f"a{rack}{number:02}": 8 for rack in "1234" for number in range(25)})
    busy = [running(f"r{number}", node.name, slots=8) for number, node in enumerate(on)]
    runs = {run.job: RunTime((60.0 * number,)) for number, run in enumerate(busy, start=1)}

    def seen(topology: Topology | None) -> int:
        waiting = [close(f"j{number}", 1, 8, topology) for number in range(100)]
        ends = forecast(snapshot(on, waiting, busy, limits={"red": 4000}), runs, work=20_000)
        return sum(end.p50 is not None for end in ends.values())

    assert 0 < seen(RACK) < seen(None) < 100


@pytest.mark.parametrize("topology", [RACK, None])
def test_a_reservation_is_not_for_nodes_that_programs_of_others_hold(topology: Topology | None) -> None:
    """They lack the least, but may lack it for ever."""
    on = tuple(
        replace(node, used_by_others=Resources(1)) if node.name == "a1x" else node
        for node in racks(a1x=8, a1y=8, a3x=8, a3y=8)
    )
    busy = [running(f"r{name}", name, slots=8) for name in ("a3x", "a3y")]
    head = {"j1": NOON.replace(hour=11)}
    waiting = [close("j1", 2, 8, topology), gang("j2", 1, 7, queued_at=NOON)]
    made = plan(snapshot(on, waiting, busy, policy=FairShare(), policy_state=head))
    free = {"a1x", "a1y"} if topology is RACK else {"a1x"}
    assert set(placed(made, "j2")) <= free, "what lacks the least without them is reserved"
    alone = snapshot(on[:2], waiting, policy=FairShare(), policy_state=head)
    assert plan(alone).starts == (), "nowhere else: these are"


def test_of_equal_racks_the_one_that_is_certainly_free_first_is_reserved() -> None:
    """So that a start that was promised stays true when another rack comes to lack as little."""
    on = racks(a1x=8, a1y=8, a2x=8, a2y=8, a3x=8, a3y=8)

    def reserved(**minutes: int | None) -> set[str]:
        busy = [
            running(f"r{name}", name, slots=8, ends_by=None if at is None else NOON.replace(minute=at))
            for name, at in minutes.items()
        ]
        pool = Pool("a100", on, busy, NOON)
        assert pool.reserve_for(close("j1", 2, 8))
        return {name for name in pool.free.of if pool.free.of[name] != pool.unreserved.of[name]}

    assert reserved(a1x=None, a2x=20, a3x=10) == {"a3y"}
    assert reserved(a1x=None, a2x=10, a3x=20) == {"a2y"}
    assert reserved(a1x=None, a2x=None, a3x=None) == {"a1y"}


def test_a_reservation_stays_where_its_end_is_certain_although_a_short_job_runs_there_meanwhile() -> None:
    """That job ends in time. Moved to a rack that lacks less, of which it is not known when it is free, the reservation
    would leave the first one to newcomers."""
    on = racks(a1x=8, a1y=8, a1z=8, a2x=8, a2y=8, a2z=8)
    busy = [
        running("known", "a1x", slots=8, ends_by=NOON.replace(minute=40)),
        running("unknown", "a2x", slots=8),
        running("large", "a2y", slots=6),
        running("small", "a2z", slots=1),
    ]
    short = gang("short", 1, 8, queued_at=NOON, runs_at_most_s=1800.0)
    head = {"j1": NOON.replace(hour=11)}
    first = snapshot(on, [close("j1", 3, 8), short], busy, policy=FairShare(), policy_state=head)
    made = plan(first)
    assert placed(made, "short") == ("a1y",)
    second = next_snapshot(first, made, after_s=1200)
    second = replace(second, waiting=(*second.waiting, gang("endless", 1, 8, queued_at=second.now)))
    made = plan(second)
    assert made.starts == (), "what is free of the first rack is still kept"
    third = next_snapshot(second, made, after_s=1200, ended=["short", "known"])
    assert set(placed(plan(third), "j1")) == {"a1x", "a1y", "a1z"}


@st.composite
def gangs_in_racks(draw: st.DrawFn) -> Snapshot:
    """Racks that are partly in use, and gangs that require, prefer or do not care for one, some alike."""
    machines = racks(**{name: draw(st.sampled_from([4, 8])) for name in ("a1x", "a1y", "a2x", "a2y", "a3x")})
    free = {node.name: node.slots for node in machines}
    busy = []
    for number in range(draw(st.integers(0, 6))):
        name, slots = draw(st.sampled_from(sorted(free))), draw(st.integers(1, 4))
        if slots <= free[name]:
            free[name] -= slots
            busy.append(
                replace(
                    running(f"r{number}", name, slots=slots, tenant=draw(st.sampled_from(["red", "green"]))),
                    ends_by=draw(st.sampled_from([None, NOON + timedelta(hours=1)])),
                )
            )
    waiting = [
        close(
            f"j{number}",
            draw(st.integers(1, 4)),
            draw(st.sampled_from([1, 2, 4, 8])),
            draw(st.sampled_from([RACK, RACK, NODE, BLOCK, PREFER_RACK, None])),
            tenant=draw(st.sampled_from(["red", "green"])),
            priority=draw(st.integers(0, 3)),
            strategy=draw(st.sampled_from(PlacementStrategy)),
            queued_at=NOON - timedelta(hours=1),
        )
        for number in range(draw(st.integers(1, 6)))
    ]
    waited = {each.job: NOON - timedelta(hours=1) for each in waiting[: draw(st.integers(0, 2))]}
    return replace(snapshot(machines, waiting, busy), policy_state=waited)


@settings(max_examples=100, deadline=None)
@given(gangs_in_racks(), st.randoms(use_true_random=False))
def test_in_whatever_order_nodes_runs_and_gangs_are_listed_the_plan_is_the_same(
    made: Snapshot, dice: Random
) -> None:
    """All of them were queued at one time, so only names are left to say which comes first."""

    def shuffled(items: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(dice.sample(items, len(items)))

    decided = plan(made)
    other = plan(
        replace(
            made,
            nodes=shuffled(made.nodes),
            running=shuffled(made.running),
            waiting=shuffled(made.waiting),
            quotas=shuffled(made.quotas),
        )
    )
    assert other.starts == decided.starts
    assert (set(other.stops), set(other.resizes)) == (set(decided.stops), set(decided.resizes))
    assert other.reserved == decided.reserved
    assert {each.job: each.code for each in other.waits} == {each.job: each.code for each in decided.waits}
