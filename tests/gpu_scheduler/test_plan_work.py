"""How much a plan counts: what stays within bounds for thousands of jobs, in calls and not in seconds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_scheduler import clearing, rooms
from gpu_scheduler.checks.nodes import Capacity
from gpu_scheduler.checks.user import UserRoom
from gpu_scheduler.cycle import plan
from gpu_scheduler.domains import Domains, Fitting
from gpu_scheduler.draft import Draft
from gpu_scheduler.model import UNCOUNTED, Level, Priority, Room, WaitReason
from gpu_scheduler.policies import room
from gpu_scheduler.rooms import Rooms
from tests.gpu_scheduler.worlds import gang, nodes, running, snapshot

NODES = 60


class Calls:
    """A function that counts how often it is called."""

    def __init__(self, function: Callable[..., object]) -> None:
        self._function, self.count = function, 0

    def __call__(self, *args: object) -> object:
        self.count += 1
        return self._function(*args)


def test_a_stop_for_one_job_has_only_the_nodes_counted_again_that_it_touches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = [f"a{i}" for i in range(NODES)]
    victims = [running(f"r{name}", name, slots=4) for name in names]
    victims = [replace(run, gang=replace(run.gang, priority=Priority.LOW)) for run in victims]
    urgent = [gang(f"j{i:02}", 1, 4, tenant="green", priority=Priority.URGENT) for i in range(NODES)]
    before = snapshot(nodes(**dict.fromkeys(names, 4)), urgent, victims, limits={"green": 4 * NODES})
    counted = Calls(rooms.learners_in)
    monkeypatch.setattr(room, "learners_in", counted)
    assert len(plan(before).stops) == NODES
    assert counted.count < 6 * NODES, "not every node for each of the jobs"


def test_the_rooms_of_nodes_that_all_differ_are_sorted_once_for_a_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = {f"a{i:02}": i + 1 for i in range(NODES)}
    waiting = [gang(f"j{i:02}", 1, 1) for i in range(NODES)]
    before = snapshot(nodes(**names), waiting, limits={"red": 10_000})
    counted = Calls(rooms.learners_in)
    monkeypatch.setattr(rooms, "learners_in", counted)
    assert len(plan(before).starts) == NODES
    assert counted.count < NODES * NODES / 2, "not every distinct node for each start"


def test_what_users_wait_for_alike_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = [gang(f"j{i}", 1, 4, user=f"u{i}") for i in range(8)]
    before = snapshot(nodes(a1=4), waiting, [running("r1", "a1", slots=4)])
    before = replace(before, quotas=tuple(replace(quota, user_limit=8) for quota in before.quotas))
    said = Calls(Capacity.sentence)
    monkeypatch.setattr(Capacity, "sentence", lambda check, finding: said(check, finding))
    waits = plan(before).waits
    assert len(waits) == 8
    assert {wait.message for wait in waits} == {
        "Waiting for capacity: 0 of 4 a100 GPUs free, this job needs 4."
    }
    assert said.count == 1
    meters = [check["used"] for wait in waits for check in wait.checks() if check["check"] == "user_quota"]
    assert meters == [0] * 8, "but each list is the user's own"


def test_what_does_not_depend_on_the_user_is_tested_once_for_jobs_that_are_alike(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waiting = [gang(f"j{i}", 1, 4, user=f"u{i}") for i in range(8)]
    before = snapshot(nodes(a1=4), waiting, [running("r1", "a1", slots=4, user="u3")])
    before = replace(before, quotas=tuple(replace(quota, user_limit=7) for quota in before.quotas))
    tested = {check: Calls(check.test) for check in (Capacity, UserRoom)}
    for check, calls in tested.items():
        monkeypatch.setattr(check, "test", lambda *args, calls=calls: calls(*args))
    waits = {wait.job: wait.code for wait in plan(before).waits}
    assert waits.pop("j3") is WaitReason.USER_GPUS, "its own check comes first"
    assert set(waits.values()) == {WaitReason.INSUFFICIENT_CAPACITY}
    assert [calls.count for calls in tested.values()] == [1, 8]


def test_starts_that_make_way_are_compared_by_kind_and_not_in_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {f"a{i:02}": 4 for i in range(NODES)}
    half = [
        replace(run, gang=replace(run.gang, opportunistic=True))
        for run in (running(f"r{name}", name, slots=2) for name in list(names)[: NODES // 2])
    ]
    waiting = [gang(f"j{i:02}", 1, 4) for i in range(NODES)]
    before = snapshot(nodes(**names), waiting, half, limits={"red": 10_000})
    counted = Calls(clearing.Clearing._kind)
    monkeypatch.setattr(clearing.Clearing, "_kind", lambda *args: counted(*args))
    made = plan(before)
    assert (len(made.starts), len(made.stops)) == (NODES // 2, NODES // 2)
    assert counted.count == NODES


def test_a_gang_that_fills_a_rack_changes_the_count_of_a_size_once_and_of_those_not_asked_for_never(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    at = {f"a{number}": ("b1", "r1", f"a{number}") for number in range(8)}
    racks, offer = Domains(Level.RACK, at), Rooms(dict.fromkeys(at, (8, UNCOUNTED, UNCOUNTED)))
    assert [offer.by_domain((slots, 0, 0), racks).most for slots in (1, 2)] == [64, 32]
    counted = Calls(Fitting._lower)
    monkeypatch.setattr(Fitting, "_lower", lambda *args: counted(*args))
    for name in at:
        offer.lower(name, (3, UNCOUNTED, UNCOUNTED))
    assert offer.by_domain((1, 0, 0), racks).most == 24
    assert counted.count == 1
    assert offer.by_domain((2, 0, 0), racks).most == 8


@given(
    st.lists(st.integers(0, 6), min_size=1, max_size=6),
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 6), st.integers(1, 3), st.sampled_from(Level))),
)
def test_what_fits_is_counted_as_if_for_the_first_time_whenever_it_is_asked(
    sizes: list[int], steps: list[tuple[int, int, int, Level]]
) -> None:
    at = {f"a{number}": ("b", f"r{number % 2}", f"a{number}") for number in range(len(sizes))}
    levels = {level: Domains(level, at) for level in Level}
    offer = Rooms({f"a{number}": (slots, UNCOUNTED, UNCOUNTED) for number, slots in enumerate(sizes)})
    for node, to, slots, level in steps:
        if (name := f"a{node}") in offer.of and to < offer.of[name][0]:
            offer.lower(name, (to, UNCOUNTED, UNCOUNTED))
        need, again = (slots, 0, 0), Rooms(offer.of)
        assert offer.capacity(need) == again.capacity(need)
        known, fresh = (each.by_domain(need, levels[level]) for each in (offer, again))
        assert (known.most, known.widest) == (fresh.most, fresh.widest)
        for least in (1, 2, 5):
            (fewest, tied), (same, others) = known.tightest(least), fresh.tightest(least)
            assert (fewest, sorted(tied)) == (same, sorted(others))


def test_starts_are_counted_once_while_nothing_is_reserved() -> None:
    draft = Draft(snapshot(nodes(a1=4, a2=4), [gang("j1"), gang("j2", 1, 4)]))
    pool = draft.pools["a100"]
    assert pool.unreserved is pool.free
    draft.start(gang("j1"), "a100")
    assert (pool.free.total, pool.unreserved.total) == (7, 7)
    assert (pool.numbers()["free"], pool.numbers()["reserved"]) == (7, 0)
    draft.reserve_nodes(gang("j2", 1, 4), "a100", {"a2": 1})
    assert (pool.free.total, pool.unreserved.total) == (7, 3)
    assert (pool.numbers()["free"], pool.numbers()["reserved"]) == (7, 4), "kept no longer than it is true"


def test_a_start_that_waits_for_an_opportunistic_run_looks_at_no_node_without_free_slots(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks = [0]

    class Free(clearing.Free):
        def __getitem__(self, name: str) -> Room:
            looks[0] += 1
            return super().__getitem__(name)

    names = [f"a{i}" for i in range(NODES)]
    idle = [running(f"r{name}", name) for name in names]
    idle = [replace(run, gang=replace(run.gang, opportunistic=True)) for run in idle]
    waiting = [gang(f"j{i:02}") for i in range(NODES)]
    before = snapshot(nodes(**dict.fromkeys(names, 1)), waiting, idle, limits={"red": 10_000})
    monkeypatch.setattr(clearing, "Free", Free)
    assert len(plan(before).stops) == NODES
    assert looks[0] < 30 * NODES, "not every node for each start"


@given(st.dictionaries(st.sampled_from("abc"), st.integers(-2, 2)), st.integers(-2, 2))
def test_the_open_nodes_are_those_with_free_slots(slots: dict[str, int], then: int) -> None:
    free = clearing.Free({name: (count, 0, 0) for name, count in slots.items()})
    assert free.open == {name for name, count in slots.items() if count > 0}
    free["a"] = then, 0, 0
    assert free.open == {name for name, room in free.items() if room[0] > 0}
