"""Running jobs are stopped for an urgent one: which, how many, and that it then starts."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_scheduler import world
from gpu_scheduler.cycle import plan
from gpu_scheduler.model import Gang, Plan, Priority, QuotaUse, Running, Snapshot, Stop, WaitReason
from gpu_scheduler.policies.fair_share import FairShare
from gpu_scheduler.policies.preemption import Preemption
from gpu_scheduler.policies.room import RoomMade
from gpu_scheduler.rooms import learners_in
from tests.gpu_scheduler.worlds import NOON, gang, nodes, running, snapshot, worlds

EVERYDAY = settings(max_examples=150, deadline=None)


def run(job: str, *on: str, slots: int = 4, rank: int = Priority.LOW, **changes: object) -> Running:
    """Running for an hour."""
    made = running(job, *on, slots=slots, **changes)
    return replace(made, gang=replace(made.gang, priority=rank))


def urgent(job: str = "j1", learners: int = 1, slots: int = 4, **changes: object) -> Gang:
    return gang(job, learners, slots, priority=Priority.URGENT, **{"tenant": "green", **changes})


def stopped(decided: Plan) -> list[str]:
    return [stop.job for stop in decided.stops]


def left(before: Snapshot, decided: Plan, jobs: Iterable[str], after_s: float = 5) -> Snapshot:
    """The next snapshot, once these have released their slots."""
    after = replace(world.apply(before, decided), now=before.now + timedelta(seconds=after_s))
    return world.apply(after, ended=list(jobs))


def test_an_urgent_job_starts_as_soon_as_its_victim_has_left_and_the_victim_waits_in_its_old_place() -> None:
    before = snapshot(nodes(a1=4), [urgent()], [run("r1", "a1", generation=7)])
    first = plan(before)
    assert first.stops == (Stop("r1", "preempted", "j1", 7),)
    assert first.waits[0].numbers["stopping_for_it"] == 1
    assert first.waits[0].message == (
        "Waiting for capacity: 0 of 4 a100 GPUs free, this job needs 4."
        " A running job of lower priority is being stopped for it."
    )
    meanwhile = world.apply(before, first)
    again = plan(meanwhile)
    assert (again.stops, again.starts) == ((), ()), "one order is enough"
    assert again.waits[0].numbers["stopping_for_it"] == 1
    after = left(before, first, ["r1"])
    assert [start.job for start in plan(after).starts] == ["j1"]
    assert {gang.job: gang.queued_at for gang in after.waiting}["r1"] == before.running[0].gang.queued_at


@pytest.mark.parametrize(
    ("changes", "because"),
    [
        ({"rank": Priority.URGENT}, "of the same class"),
        ({"started_at": NOON - timedelta(seconds=5)}, "within its lease"),
        ({"stopping": True}, "on its way out"),
        ({"requeues": False}, "being halted by its owner"),
        ({"order": Stop("r1", "preempted", "other")}, "stopped for another job"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_some_runs_are_not_stopped(changes: dict[str, object], because: str) -> None:
    victim = run("r1", "a1", rank=int(changes.pop("rank", Priority.LOW)))  # type: ignore[call-overload]
    assert plan(snapshot(nodes(a1=4), [urgent()], [replace(victim, **changes)])).stops == (), because


@pytest.mark.parametrize("rank", [Priority.LOW, Priority.NORMAL, Priority.HIGH])
def test_only_an_urgent_job_stops_others_not_one_that_rose_by_aging(rank: Priority) -> None:
    waiting = replace(urgent(), priority=rank)
    since = {"j1": NOON - timedelta(days=1)}
    victim = run("r1", "a1", rank=Priority.LOW)
    assert plan(snapshot(nodes(a1=4), [waiting], [victim], policy_state=since)).stops == ()


def test_the_lowest_class_goes_first_then_the_least_lost_work() -> None:
    saved = NOON - timedelta(seconds=10)
    runs = [
        run("r1", "a1", rank=Priority.NORMAL, last_checkpoint_at=NOON),
        run("r2", "a2"),
        run("r3", "a3", last_checkpoint_at=saved),
        run("r4", "a4", last_checkpoint_at=saved, restart_cost_s=300.0),
    ]
    assert stopped(plan(snapshot(nodes(a1=4, a2=4, a3=4, a4=4), [urgent()], runs))) == ["r3"]


def test_a_checkpoint_of_an_earlier_attempt_does_not_count_as_lost_work() -> None:
    """r1 restored at its start, an hour ago, what it had saved two hours ago; r2 has run for two hours."""
    hours = [NOON - timedelta(hours=count) for count in range(3)]
    runs = [run("r1", "a1", last_checkpoint_at=hours[2]), replace(run("r2", "a2"), started_at=hours[2])]
    assert stopped(plan(snapshot(nodes(a1=4, a2=4), [urgent()], runs))) == ["r1"]


def test_what_need_not_leave_stays() -> None:
    """In the order of lost work r1 comes first, but only r2 and r3 make room for four slots on one node."""
    ago = [NOON - timedelta(seconds=count) for count in range(4)]
    runs = [
        run("r1", "a1", slots=2, last_checkpoint_at=ago[1]),
        run("r2", "a2", slots=2, last_checkpoint_at=ago[2]),
        run("r3", "a2", slots=2, last_checkpoint_at=ago[3]),
    ]
    stays = run("r9", "a1", slots=2, rank=Priority.URGENT)
    assert stopped(plan(snapshot(nodes(a1=4, a2=4), [urgent()], [*runs, stays]))) == ["r2", "r3"]


def test_nothing_is_stopped_in_vain() -> None:
    """The gang needs both nodes, and one of them is held by an urgent job."""
    runs = [run("r1", "a1"), run("r2", "a2", rank=Priority.URGENT)]
    assert plan(snapshot(nodes(a1=4, a2=4), [urgent(learners=2)], runs)).stops == ()


def test_slots_that_it_gets_are_kept_from_later_jobs_while_its_victims_save() -> None:
    later = gang("j2", 1, 4, tenant="red")
    before = snapshot(nodes(a1=4, a2=4), [urgent(learners=2), later], [run("r1", "a1")])
    first = plan(before)
    assert (stopped(first), first.starts) == (["r1"], ())
    assert next(wait.code for wait in first.waits if wait.job == "j2") is WaitReason.FAIR_SHARE
    assert [start.job for start in plan(left(before, first, ["r1"])).starts] == ["j1"]


def test_two_urgent_jobs_do_not_count_on_the_same_slots() -> None:
    waiting = [urgent("j1"), urgent("j2"), urgent("j3")]
    runs = [run("r1", "a1"), run("r2", "a2")]
    first = plan(snapshot(nodes(a1=4, a2=4), waiting, runs))
    assert sorted((stop.job, stop.for_job) for stop in first.stops) == [("r1", "j1"), ("r2", "j2")]


def test_where_its_tenants_quota_is_used_up_only_a_job_of_that_tenant_helps() -> None:
    quotas = (QuotaUse("green", "a100", 4, 4), QuotaUse("red", "a100", 8, 4))
    runs = [
        run("r1", "a1", tenant="red", last_checkpoint_at=NOON),
        run("r2", "a2", tenant="green"),
    ]
    before = replace(snapshot(nodes(a1=4, a2=4, a3=4), [urgent()], runs), quotas=quotas)
    assert stopped(plan(before)) == ["r2"]
    only_red = replace(before, running=(runs[0],))
    assert plan(only_red).stops == ()


def test_the_end_of_a_lease_is_an_event() -> None:
    young = replace(run("r1", "a1"), started_at=NOON - timedelta(seconds=5))
    before = snapshot(nodes(a1=4), [urgent()], [young])
    assert FairShare().next_event_at(before) == NOON + timedelta(seconds=15)
    assert stopped(plan(replace(before, now=NOON + timedelta(seconds=15)))) == ["r1"]


@st.composite
def busy_worlds(draw: st.DrawFn) -> Snapshot:
    """Worlds whose runs have classes, ages and saves; many urgent jobs wait, and few for their quota."""
    made = draw(worlds())
    runs = []
    for each in made.running:
        saved = draw(st.none() | st.integers(0, 4000))
        runs.append(
            replace(
                each,
                gang=replace(each.gang, priority=draw(st.sampled_from([0, 0, 1, 2, 3]))),
                started_at=NOON - timedelta(seconds=draw(st.sampled_from([10, 20, 3600, 3600]))),
                last_checkpoint_at=None if saved is None else NOON - timedelta(seconds=saved),
                generation=1,
            )
        )
    types = sorted({node.slot_type for node in made.nodes}) or ["a100"]
    waiting = []
    for job in made.waiting:
        slot_type = draw(st.sampled_from([*types, job.slot_type]))
        learners, slots = draw(st.integers(1, 3)), draw(st.integers(1, 4))
        rank = draw(st.sampled_from([3, 3, job.priority]))
        like = gang(job.job, learners, slots, slot_type=slot_type, tenant=job.tenant, priority=rank)
        waiting.append(replace(like, strategy=job.strategy, queued_at=job.queued_at))
    more = draw(st.sampled_from([0, 5, 50, 50, 50]))
    quotas = tuple(replace(quota, limit=quota.limit + more) for quota in made.quotas)
    return replace(made, running=tuple(runs), waiting=tuple(waiting), quotas=quotas, policy_state={})


@EVERYDAY
@given(busy_worlds())
def test_who_others_are_stopped_for_starts_when_they_have_left(made: Snapshot) -> None:
    decided = plan(made)
    gangs, runs = ({each.job: each for each in part} for part in (made.waiting, made.running))
    for stop in decided.stops:
        assert gangs[stop.for_job or ""].priority == Priority.URGENT > runs[stop.job].priority
        assert made.now - runs[stop.job].started_at >= timedelta(seconds=20)
    after = left(made, decided, stopped(decided))
    starts = {start.job for start in plan(after).starts}
    assert {stop.for_job for stop in decided.stops} <= starts


@EVERYDAY
@given(busy_worlds())
def test_each_stop_is_needed(made: Snapshot) -> None:
    """Without any one of them, the job that they are for does not start."""
    one_urgent = [each for each in made.waiting if each.priority == Priority.URGENT][:1]
    made = replace(made, waiting=tuple(one_urgent))
    decided = plan(made)
    for spared in stopped(decided):
        others = [job for job in stopped(decided) if job != spared]
        quiet = replace(made, policy=FairShare(lease_s=9e9))
        starts = {start.job for start in plan(left(quiet, decided, others)).starts}
        assert not starts & {each.job for each in one_urgent}


def test_what_started_in_between_is_not_counted_as_room_for_the_next() -> None:
    saved = replace(run("r1", "a1"), last_checkpoint_at=NOON)
    held = [saved, run("r2", "a2", slots=3)]
    waiting = [urgent("j1", 1, 4), urgent("j2", 1, 1), urgent("j3", 1, 4)]
    decided = plan(snapshot(nodes(a1=4, a2=4), waiting, held))
    assert [start.job for start in decided.starts] == ["j2"], "on the one slot that is free"
    assert stopped(decided) == ["r1"], "without r2, a2 has three slots, and j3 needs four"


@pytest.mark.parametrize("lends", [True, False])
@pytest.mark.parametrize("seed", range(8))
def test_what_is_sorted_and_counted_once_decides_as_if_that_were_done_for_each_job(
    seed: int, lends: bool
) -> None:
    """A plan sorts the runs by cost once, and counts what fits on nodes in one go; the slow ways are written here."""
    chance = random.Random(seed)
    held = [
        replace(
            run(f"r{n}", f"a{n % 9}", slots=chance.choice([1, 2, 4]), rank=chance.randint(0, 2),
                tenant=chance.choice(["red", "green"])),
            started_at=NOON - timedelta(seconds=chance.randint(5, 500)),
        )
        for n in range(18)
    ]  # fmt: skip
    waiting = [
        urgent(
            f"j{n}", chance.randint(1, 3), chance.choice([1, 2, 4]), tenant=chance.choice(["red", "green"])
        )
        for n in range(12)
    ]
    made = snapshot(nodes(**{f"a{n}": 8 for n in range(9)}), waiting, held, limits={"red": 30, "green": 40})
    if lends:
        made = replace(made, quotas=tuple(replace(quota, cohort="lab") for quota in made.quotas))

    def sorted_for_each(self: Preemption, slot_type: str) -> list[Running]:
        runs = self._orders.free_to_go[slot_type].values()
        return sorted((each for each in runs if each.started_at <= self._leased_until), key=self._cost)

    def node_by_node(self: RoomMade) -> None:
        self._fitting.clear()
        for name, room in self._before.items():
            self._set_fitting(name, learners_in(room, self._need))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Preemption, "_by_cost", sorted_for_each)
        patch.setattr(RoomMade, "_fit_all", node_by_node)
        slowly = plan(made)
    assert plan(made) == slowly
    assert slowly.stops
