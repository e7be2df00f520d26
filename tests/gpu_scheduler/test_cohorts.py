"""Tenants of a cohort borrow what others lend, and lenders get it back."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_scheduler import world
from gpu_scheduler.cycle import plan
from gpu_scheduler.ledger import Ledger, Loan, loans
from gpu_scheduler.model import (
    Node,
    Priority,
    QuotaUse,
    Running,
    Snapshot,
    Stop,
    TenantState,
    WaitReason,
)
from gpu_scheduler.policies.fair_share import FairShare
from gpu_scheduler.policies.preemption import borrowed
from gpu_scheduler.policies.reclaim import MOVES_AFTER_S
from tests.gpu_scheduler.worlds import (
    NOON,
    TENANTS,
    TYPES,
    fitting,
    free_after,
    gang,
    is_allowed,
    nodes,
    overcommitted,
    running,
    snapshot,
    usage_after,
    worlds,
)

EVERYDAY = settings(max_examples=150, deadline=None)
LEASE_S = FairShare().lease_s


def shared(limits: dict[str, int], used: dict[str, int] | None = None, **terms: Any) -> tuple[QuotaUse, ...]:
    """Quotas of a100 in one cohort; terms by tenant: {"red": {"borrowing_limit": 2}}."""
    return tuple(
        QuotaUse(tenant, "a100", limit, (used or {}).get(tenant, 0), "lab", **terms.get(tenant, {}))
        for tenant, limit in limits.items()
    )


def starts_of(made: Snapshot) -> list[str]:
    return [start.job for start in plan(made).starts]


def wait_of(made: Snapshot, job: str) -> tuple[str, str, dict[str, Any]]:
    wait = next(wait for wait in plan(made).waits if wait.job == job)
    return wait.code.value, wait.message, dict(wait.numbers)


def test_a_tenant_without_a_cohort_has_its_quota_alone() -> None:
    quotas = (QuotaUse("red", "a100", 4, 0, borrowing_limit=9), QuotaUse("green", "a100", 4, 0))
    made = snapshot(nodes(a1=8), [gang("j1", slots=4), gang("j2", slots=4)], quotas=quotas)
    assert starts_of(made) == ["j1"]
    assert wait_of(made, "j2")[0] == WaitReason.QUOTA_GPUS


def test_a_tenant_borrows_what_the_others_lend_and_do_not_use() -> None:
    waiting = [gang(f"j{n}", slots=2) for n in range(1, 6)]
    made = snapshot(nodes(a1=8), waiting, quotas=shared({"red": 4, "green": 4}))
    assert starts_of(made) == ["j1", "j2", "j3", "j4"]


@pytest.mark.parametrize(
    ("terms", "starts"),
    [
        ({"red": {"borrowing_limit": 2}}, 3),
        ({"red": {"borrowing_limit": 0}}, 2),
        ({"green": {"lending_limit": 2}}, 3),
        ({"green": {"lending_limit": 0}}, 2),
        ({"red": {"borrowing_limit": 1}, "green": {"lending_limit": 3}}, 2),
    ],
)
def test_both_limits_hold(terms: dict[str, dict[str, int]], starts: int) -> None:
    waiting = [gang(f"j{n}", slots=2) for n in range(1, 6)]
    made = snapshot(nodes(a1=8), waiting, quotas=shared({"red": 4, "green": 4}, **terms))
    assert len(starts_of(made)) == starts


def test_a_job_larger_than_what_its_tenant_can_ever_have_says_so() -> None:
    quotas = shared({"red": 4, "green": 4}, green={"lending_limit": 2})
    code, message, numbers = wait_of(snapshot(nodes(a1=8), [gang("j1", slots=8)], quotas=quotas), "j1")
    assert code == WaitReason.EXCEEDS_MAX_QUOTA
    assert "this job needs 8 a100 GPUs, the quota is 4, and it can borrow at most 2." in message
    assert numbers["most"] == 6


def test_guarantees_come_before_borrowing_whatever_the_class() -> None:
    """red's urgent job would borrow, green's low one would not."""
    waiting = [
        gang("j1", slots=4, priority=Priority.URGENT),
        gang("j2", slots=4, priority=Priority.URGENT),
        gang("j3", slots=4, tenant="green", priority=Priority.LOW),
    ]
    made = snapshot(nodes(a1=8), waiting, quotas=shared({"red": 4, "green": 4}))
    assert starts_of(made) == ["j1", "j3"]


@pytest.mark.parametrize(("weight", "given"), [(1, {"red": 2, "green": 2}), (3, {"red": 3, "green": 1})])
def test_what_is_lent_goes_to_the_lowest_weighted_share_first(weight: int, given: dict[str, int]) -> None:
    waiting = [
        gang(f"j{n}{place}", tenant=tenant)
        for n in range(9)
        for place, tenant in enumerate(("green", "red"), start=1)
    ]
    quotas = shared({"red": 0, "green": 0, "blue": 4}, red={"weight": weight})
    made = snapshot(nodes(a1=8), waiting, quotas=quotas)
    tenants = {each.job: each.tenant for each in waiting}
    assert Counter(tenants[job] for job in starts_of(made)) == given


def test_a_job_that_could_borrow_later_says_what_its_cohort_has_left() -> None:
    busy = [running("r1", "a1", slots=3, tenant="green")]
    quotas = shared({"red": 4, "green": 4}, {"green": 3})
    made = snapshot(nodes(a1=8), [gang("j1", slots=6)], busy, quotas=quotas)
    code, message, numbers = wait_of(made, "j1")
    assert code == WaitReason.COHORT_GPUS
    assert message == (
        "Waiting to borrow: the tenant uses 0 of its 4 a100 GPUs, and cohort lab has 5 left to use now,"
        " this job needs 6."
    )
    assert (numbers["cohort"], numbers["cohort_room"], numbers["asked"]) == ("lab", 5, 6)


def lent_out(**changes: Any) -> Snapshot:
    """red has borrowed green's four slots; green's job waits for them."""
    busy = [
        running("r1", "a1", slots=4),
        replace(running("r2", "a2", slots=4, **changes), started_at=NOON - timedelta(minutes=9)),
    ]
    quotas = shared({"red": 4, "green": 4}, {"red": 8})
    return snapshot(nodes(a1=4, a2=4), [gang("j1", slots=4, tenant="green")], busy, quotas=quotas)


def test_a_lenders_job_takes_back_what_was_borrowed() -> None:
    before = lent_out()
    first = plan(before)
    assert first.stops == (Stop("r2", "reclaimed", "j1"),)
    assert first.waits[0].message == (
        "Waiting for devices that the tenant lends: it uses 0 of its 4 a100 GPUs and this job needs 4, but other"
        " tenants of cohort lab have borrowed so many that 0 are left. It gets them back."
        " A running job on borrowed devices is being stopped for it."
    )
    after = world.apply(world.apply(before, first), ended=["r2"])
    assert starts_of(after) == ["j1"]
    settled = world.apply(after, plan(after))
    assert (plan(settled).starts, plan(settled).stops) == ((), ())
    assert wait_of(settled, "r2")[0] == WaitReason.COHORT_GPUS


def test_the_least_lost_work_goes_first_of_those_on_borrowed_slots() -> None:
    """r1 is what red's own quota covers, however little it would lose."""
    ages = {"r1": 60, "r2": 20, "r3": 10}
    saved = {"r1": NOON, "r2": NOON - timedelta(minutes=1), "r3": NOON - timedelta(minutes=5)}
    busy = [
        replace(
            running(job, f"a{job[1]}", slots=4),
            started_at=NOON - timedelta(minutes=age),
            last_checkpoint_at=saved[job],
        )
        for job, age in ages.items()
    ]
    quotas = shared({"red": 4, "green": 8}, {"red": 12})
    made = snapshot(nodes(a1=4, a2=4, a3=4), [gang("j1", slots=4, tenant="green")], busy, quotas=quotas)
    assert [stop.job for stop in plan(made).stops] == ["r2"]


def test_a_run_within_its_lease_is_not_reclaimed_and_the_next_plan_comes_when_that_ends() -> None:
    before = lent_out()
    runs = tuple(replace(run, started_at=NOON - timedelta(seconds=5)) for run in before.running)
    young = replace(before, running=runs)
    assert plan(young).stops == ()
    assert young.policy.next_event_at(young) == NOON + timedelta(seconds=LEASE_S - 5)


def test_what_a_lenders_job_waits_for_is_not_borrowed() -> None:
    """One slot of green's is free, and three are lent; its job needs all four. blue asks for one."""
    busy = [running("r1", "a1", slots=4), replace(running("r2", "a2", slots=3), started_at=NOON)]
    quotas = shared({"red": 4, "green": 4, "blue": 0}, {"red": 7})
    waiting = [gang("j1", slots=4, tenant="green"), gang("j2", tenant="blue")]
    made = snapshot(nodes(a1=4, a2=4, a3=4), waiting, busy, quotas=quotas)
    assert starts_of(made) == []
    code, message, _ = wait_of(made, "j2")
    assert code == WaitReason.COHORT_GPUS
    assert "are kept for waiting jobs of tenants that lend them" in message


def test_an_urgent_job_that_would_borrow_stops_no_other_tenants_job() -> None:
    busy = [
        replace(each, gang=replace(each.gang, priority=Priority.LOW))
        for each in (running("r1", "a1", slots=4), running("r2", "a2", slots=4, tenant="green"))
    ]
    quotas = shared({"red": 4, "green": 4}, {"red": 4, "green": 4})
    waiting = [gang("j1", slots=4, priority=Priority.URGENT)]
    made = snapshot(nodes(a1=4, a2=4), waiting, busy, quotas=quotas)
    assert [stop.job for stop in plan(made).stops] == ["r1"], "of its own tenant"
    own = replace(busy[0], gang=replace(busy[0].gang, priority=Priority.URGENT))
    assert plan(replace(made, running=(own, busy[1]))).stops == ()


def test_who_lends_to_whom() -> None:
    quotas = shared(
        {"red": 4, "green": 8, "blue": 4, "gray": 2}, {"red": 9, "green": 3, "blue": 1, "gray": 3}
    )
    assert loans(quotas) == [Loan("green", "gray", "lab", "a100", 1), Loan("green", "red", "lab", "a100", 4),
                             Loan("blue", "red", "lab", "a100", 1)]  # fmt: skip
    assert loans(tuple(replace(quota, cohort="") for quota in quotas)) == []


@st.composite
def sharing_worlds(draw: st.DrawFn) -> Snapshot:
    """Small clusters whose tenants are in cohorts, or in none, with everything else that can go together."""
    made = draw(worlds())
    cohort = {tenant: draw(st.sampled_from(["", "lab", "lab", "lab", "den"])) for tenant in TENANTS}
    bound = st.none() | st.integers(0, 6)
    quotas = tuple(
        replace(
            quota,
            cohort=cohort[quota.tenant],
            borrowing_limit=draw(bound),
            lending_limit=draw(bound),
            weight=draw(st.integers(1, 4)),
        )
        for quota in made.quotas
    )
    ranks = st.sampled_from([0, 0, 1, 3])
    runs = tuple(replace(run, gang=replace(run.gang, priority=draw(ranks))) for run in made.running)
    return replace(made, quotas=quotas, running=runs, policy_state={})


def shared_in_use(made: Snapshot, used: Counter[tuple[str, str]]) -> dict[tuple[str, str], int]:
    """By cohort and type, what is in use of what its tenants lend; less what they lend: above 0 is too much."""
    found: Counter[tuple[str, str]] = Counter()
    for quota in made.quotas:
        if quota.cohort:
            kept = quota.limit - quota.lends
            over = max(0, used[quota.tenant, quota.slot_type] - kept)
            found[quota.cohort, quota.slot_type] += over - quota.lends
    return found


@EVERYDAY
@given(sharing_worlds())
def test_no_start_breaks_a_limit_a_cohort_or_a_node(made: Snapshot) -> None:
    """Use is at most limit + borrowing limit, and a cohort never uses more than the sum of its limits."""
    decided = plan(made)
    assert not overcommitted(made, decided)
    used, _ = usage_after(made, decided)
    before = shared_in_use(made, usage_after(made, replace(decided, starts=()))[0])
    gangs = {each.job: each for each in made.waiting}
    quotas = {(quota.tenant, quota.slot_type): quota for quota in made.quotas}
    for start in decided.starts:
        quota = quotas[gangs[start.job].tenant, start.placement.slot_type]
        most = (
            quota.limit
            if not quota.cohort
            else quota.limit + (10**9 if quota.borrowing_limit is None else quota.borrowing_limit)
        )
        assert used[quota.tenant, quota.slot_type] <= most
    for key, over in shared_in_use(made, used).items():
        assert over <= max(0, before[key])


@EVERYDAY
@given(sharing_worlds(), st.randoms(use_true_random=False))
def test_the_same_snapshot_gives_the_same_plan(made: Snapshot, chance: random.Random) -> None:
    def shuffled(items: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(chance.sample(items, len(items)))

    again = replace(
        made,
        nodes=shuffled(made.nodes),
        waiting=shuffled(made.waiting),
        running=shuffled(made.running),
        quotas=shuffled(made.quotas),
    )
    assert plan(made) == plan(again)


@EVERYDAY
@given(sharing_worlds())
def test_each_waiting_job_is_explained_and_the_cohorts_reason_is_true(made: Snapshot) -> None:
    decided = plan(made)
    answered = [start.job for start in decided.starts] + [wait.job for wait in decided.waits]
    assert sorted(answered) == sorted(each.job for each in made.waiting)
    used, _ = usage_after(made, decided)
    quotas = {(quota.tenant, quota.slot_type): quota for quota in made.quotas}
    for wait in decided.waits:
        if wait.code is not WaitReason.COHORT_GPUS:
            continue
        numbers = wait.numbers
        each = next(each for each in made.waiting if each.job == wait.job)
        quota = quotas[each.tenant, numbers["slot_type"]]
        left = -shared_in_use(made, used)[quota.cohort, quota.slot_type]
        own = max(0, quota.limit - quota.lends - used[quota.tenant, quota.slot_type])
        borrows = used[quota.tenant, quota.slot_type] + each.asked > quota.limit
        assert (
            numbers["cohort_room"] == max(0, own + left - (numbers["claimed"] if borrows else 0)) < each.asked
        )


@EVERYDAY
@given(sharing_worlds())
def test_work_is_conserved(made: Snapshot) -> None:
    """A job that fits and may borrow waits only for one that its own tenant's limit covers, or for a reservation."""
    decided = plan(made)
    free, (used, live) = free_after(made, decided), usage_after(made, decided)
    gangs = {each.job: each for each in made.waiting}
    states = {state.tenant: state for state in made.tenants}
    ledger = Ledger(
        [replace(quota, used=used[quota.tenant, quota.slot_type]) for quota in made.quotas], made.tenants
    )
    waits = [gangs[wait.job] for wait in decided.waits]
    someone_owns = any(
        ledger.account(each.tenant, slot_type).cohort is not None
        and not ledger.account(each.tenant, slot_type).borrows(each.asked)
        for each in waits
        for slot_type in TYPES
    )
    stops_for_it = {stop.for_job for stop in decided.stops}
    for each in waits:
        state = states[each.tenant]
        if each.slot_type not in TYPES or state.suspended or stops_for_it:
            continue
        if state.jobs_limit is not None and live[each.tenant] >= state.jobs_limit:
            continue
        if not is_allowed(each, made, decided, each.slot_type):
            continue
        account = ledger.account(each.tenant, each.slot_type)
        if fitting(each, free, made, each.slot_type) >= each.learners.min and each.asked <= account.room(
            each.asked
        ):
            assert account.borrows(each.asked)
            assert someone_owns


def keeps_its_limit(made: Snapshot, gone: list[Running]) -> bool:
    """Whether the tenant of these runs, of one type, holds its limit without them."""
    key = (gone[0].tenant, gone[0].slot_type) if gone else ("", "")
    limit = next((q.limit for q in made.quotas if (q.tenant, q.slot_type) == key), 0)
    stays = [
        run
        for run in made.running
        if (run.tenant, run.slot_type) == key
        and run not in gone
        and not (run.stopping or isinstance(run.order, Stop))
    ]
    return sum(run.slots * len(run.nodes) for run in stays) >= limit


@EVERYDAY
@given(sharing_worlds())
def test_only_borrowed_slots_are_taken_back_and_who_they_are_for_then_starts(made: Snapshot) -> None:
    decided = plan(made)
    gangs, runs = ({each.job: each for each in part} for part in (made.waiting, made.running))
    quotas = {(quota.tenant, quota.slot_type): quota for quota in made.quotas}
    on_borrowed = borrowed(made)
    for tenant, slot_type in {(runs[stop.job].tenant, runs[stop.job].slot_type) for stop in decided.stops}:
        gone = [
            runs[stop.job]
            for stop in decided.stops
            if stop.reason == "reclaimed"
            and (runs[stop.job].tenant, runs[stop.job].slot_type) == (tenant, slot_type)
        ]
        assert keeps_its_limit(made, gone) or all(run.job in on_borrowed for run in gone)
    for stop in decided.stops:
        run, winner = runs[stop.job], gangs[stop.for_job or ""]
        assert made.now - run.started_at >= timedelta(seconds=LEASE_S)
        quota = quotas[winner.tenant, run.slot_type]
        owns = not quota.cohort or quota.used + winner.asked <= quota.limit
        if stop.reason == "reclaimed":
            assert owns
            assert run.job in on_borrowed or run.priority < Priority.URGENT
            assert quotas[run.tenant, run.slot_type].cohort == quota.cohort != ""
        elif stop.reason == "moved":
            assert owns
            assert run.priority <= winner.priority
            assert quotas[run.tenant, run.slot_type].cohort == quota.cohort != ""
        else:
            assert winner.priority == Priority.URGENT > run.priority
            assert owns or run.tenant == winner.tenant
    after = world.apply(
        replace(world.apply(made, decided), now=NOON + timedelta(seconds=5)),
        ended=[stop.job for stop in decided.stops],
    )
    assert {stop.for_job for stop in decided.stops} <= set(starts_of(after))


@st.composite
def worlds_of_small_runs(draw: st.DrawFn) -> Snapshot:
    """Runs of one slot on every node, most of them of red, which borrows; the oldest, which its limit covers, lie on
    every node, too. So do blue's, all covered. green asks for whole nodes that its limit covers."""
    machines, chance = draw(st.integers(2, 5)), draw(st.randoms(use_true_random=False))
    asks = draw(st.integers(1, machines - 1))
    of_blue = draw(st.integers(0, 4 * (machines - asks)))
    of_red = 4 * machines - of_blue - draw(st.integers(0, 3))
    places = [f"a{n}" for n in range(machines) for _ in range(4)]
    chance.shuffle(places)
    runs = [
        replace(
            running(f"r{n}", name, tenant="blue" if n < of_blue else "red"),
            started_at=NOON - timedelta(minutes=chance.randint(1, 90)),
        )
        for n, name in zip(range(of_blue + of_red), places, strict=False)
    ]
    limits = {"red": 4 * (machines - asks) - of_blue, "green": 4 * asks, "blue": of_blue}
    waiting = [
        gang(f"j{n}", slots=4, tenant="green", priority=draw(st.sampled_from([1, 2]))) for n in range(asks)
    ]
    quotas = shared(limits, {"red": of_red, "blue": of_blue})
    return snapshot(nodes(**dict.fromkeys(sorted(set(places)), 4)), waiting, runs, quotas=quotas)


@EVERYDAY
@given(sharing_worlds() | worlds_of_small_runs())
def test_stops_come_to_an_end(made: Snapshot) -> None:
    """Nothing ends by itself and nothing new comes, so who has what must settle: no job is stopped for one that then
    is stopped for it."""
    stops: Counter[str] = Counter()
    for _ in range(40):
        decided = plan(made, explained=False)
        leaving = [stop.job for stop in decided.stops]
        stops.update(leaving)
        made = replace(world.apply(made, decided), now=made.now + timedelta(seconds=LEASE_S))
        made = world.apply(made, ended=leaving)
        if not (decided.starts or decided.stops):
            break
    else:
        raise AssertionError(f"still stopping: {stops}")
    assert max(stops.values(), default=0) <= 3, stops


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 4),
    st.lists(st.integers(1, 4), min_size=1, max_size=4),
    st.sampled_from(Priority),
    st.randoms(use_true_random=False),
)
def test_a_lender_gets_its_guarantee_back_within_leases_and_saves(
    most: int, sizes: list[int], rank: Priority, chance: random.Random
) -> None:
    """green and blue borrow what red lends, with jobs that never end; then red submits what its limit covers.

    One lease and one save are enough, but for where its jobs take each other's nodes: then one more stop each.
    """
    flood = [
        gang(f"f{n}", slots=chance.randint(1, most), tenant=chance.choice(["green", "blue"]), priority=rank)
        for n in range(40)
    ]
    quotas = shared({"red": 16, "green": 4, "blue": 4})
    made = snapshot(nodes(a1=8, a2=8, a3=8), flood, quotas=quotas)
    made = world.apply(made, plan(made))
    asks = {f"j{n}": gang(f"j{n}", slots=size, priority=Priority.LOW) for n, size in enumerate(sizes)}
    made = replace(made, waiting=(*made.waiting, *asks.values()))
    for _ in range(1 + len(asks)):
        made = replace(made, now=made.now + timedelta(seconds=LEASE_S))
        decided = plan(made)
        made = world.apply(world.apply(made, decided), ended=[stop.job for stop in decided.stops])
        assert not any(stop.job in asks for stop in decided.stops)
    assert {run.job for run in made.running} >= asks.keys()


@EVERYDAY
@given(worlds_of_small_runs())
def test_a_lender_gets_whole_nodes_back_although_covered_runs_lie_on_all_of_them(made: Snapshot) -> None:
    """All that its limit covers runs within two plans for each of its gangs; no tenant is below its limit then."""
    asks = {each.job for each in made.waiting}
    of_blue = {run.job for run in made.running if run.tenant == "blue"}
    stops: Counter[str] = Counter()
    for _ in range(2 * len(asks) + 1):
        decided = plan(made)
        leaving = [stop.job for stop in decided.stops]
        assert not asks & set(leaving)
        stops.update(leaving)
        made = replace(world.apply(made, decided), now=made.now + timedelta(seconds=LEASE_S))
        made = world.apply(made, ended=leaving)
    assert {run.job for run in made.running} >= asks | of_blue
    assert all(quota.used == quota.limit for quota in made.quotas)
    assert max(stops.values()) <= len(asks)
    assert (plan(made).starts, plan(made).stops) == ((), ())


def small_runs(**tenants: str) -> tuple[Running, ...]:
    """Runs of one slot, by node a word whose letters say whose each is, the oldest first: r red, b blue, g green."""
    names = {"r": "red", "b": "blue", "g": "green"}
    return tuple(
        replace(
            running(f"{letter}{place}{node[1]}", node, tenant=names[letter]),
            started_at=NOON - timedelta(hours=9) + timedelta(minutes=place),
        )
        for node, word in tenants.items()
        for place, letter in enumerate(word)
    )


def test_which_runs_of_a_borrower_leave_is_a_matter_of_nodes() -> None:
    """red borrows 4, and its newest run is on a1, a2 and a3 alike: a node is cleared, and red keeps its limit."""
    quotas = shared({"red": 8, "green": 4}, {"red": 12})
    runs = small_runs(a1="rrrr", a2="rrrr", a3="rrrr")
    made = snapshot(nodes(a1=4, a2=4, a3=4), [gang("j1", slots=4, tenant="green")], runs, quotas=quotas)
    decided = plan(made)
    homes = {run.job: run.nodes[0] for run in runs}
    assert len({homes[stop.job] for stop in decided.stops}) == 1
    assert [stop.reason for stop in decided.stops] == ["reclaimed"] * 4
    assert "4 running jobs on borrowed devices are being stopped for it." in decided.waits[0].message


def test_a_covered_run_moves_where_it_can_start_again_elsewhere() -> None:
    """red borrows 2. Wherever green's job goes, a run is in the way that a limit covers: blue's moves to a2."""
    quotas = shared({"red": 1, "green": 4, "blue": 3}, {"red": 3, "blue": 3})
    runs = small_runs(a1="rrb", a2="rbb")
    made = snapshot(nodes(a1=4, a2=4), [gang("j1", slots=4, tenant="green")], runs, quotas=quotas)
    decided = plan(made)
    assert sorted((stop.job, stop.reason) for stop in decided.stops) == [
        ("b21", "moved"), ("r01", "reclaimed"), ("r11", "reclaimed"),
    ]  # fmt: skip
    assert (
        "3 running jobs on borrowed devices or that can start again elsewhere are being stopped for it."
        in decided.waits[0].message
    )
    after = world.apply(world.apply(made, decided), ended=[stop.job for stop in decided.stops])
    assert {"j1", "b21"} <= set(starts_of(after))


@pytest.mark.parametrize("rank", [Priority.HIGH, Priority.URGENT])
def test_a_run_of_a_higher_class_moves_for_none(rank: Priority) -> None:
    quotas = shared({"red": 1, "green": 4, "blue": 3}, {"red": 3, "blue": 3})
    runs = [
        replace(run, gang=replace(run.gang, priority=rank)) if run.tenant == "blue" else run
        for run in small_runs(a1="rrb", a2="rbb")
    ]
    made = snapshot(nodes(a1=4, a2=4), [gang("j1", slots=4, tenant="green")], runs, quotas=quotas)
    assert plan(made).stops == ()


def test_the_place_that_a_run_moves_to_is_kept_while_it_saves() -> None:
    """blue's run moves to the one free slot of a2; a tenant outside of the cohort does not get that meanwhile."""
    quotas = shared({"red": 1, "green": 4, "blue": 3}, {"red": 3, "blue": 3})
    runs = small_runs(a1="rrb", a2="rbb")
    waiting = [gang("j1", slots=4, tenant="green")]
    made = snapshot(nodes(a1=4, a2=4), waiting, runs, quotas=(*quotas, QuotaUse("gray", "a100", 1, 0)))
    saving = world.apply(made, plan(made))
    tempted = replace(saving, waiting=(*saving.waiting, gang("j2", tenant="gray")))
    assert starts_of(tempted) == []
    assert wait_of(tempted, "j2")[0] == WaitReason.FAIR_SHARE


def in_the_way(**changes: Any) -> Snapshot:
    """red borrows 2 of green's. Wherever green's job goes, a run of blue's is in the way; one can move to a2."""
    quotas = shared({"red": 1, "green": 4, "blue": 3}, {"red": 3, "blue": 3})
    runs = small_runs(a1="rrb", a2="rbb")
    made = snapshot(nodes(a1=4, a2=4), [gang("j1", slots=4, tenant="green")], runs, quotas=quotas)
    return replace(made, **changes)


def test_jobs_that_cannot_be_helped_take_nothing_from_the_others() -> None:
    """For eight tenants' jobs, which come first, nodes are cleared in vain: two whole ones never are."""
    made = in_the_way()
    tenants = [f"t{n}" for n in range(9)]
    hopeless = [gang(f"h{each}", 2, 4, tenant=each, priority=Priority.HIGH) for each in tenants]
    more = in_the_way(
        waiting=(*hopeless, *made.waiting), quotas=(*made.quotas, *shared(dict.fromkeys(tenants, 8)))
    )
    assert {stop.for_job for stop in plan(more).stops} == {"j1"}
    assert set(plan(more).stops) == set(plan(made).stops)


def test_what_helps_no_job_of_a_low_class_is_tried_for_one_of_a_higher_class() -> None:
    """green's older job has aged and comes first, but no run moves for it: all are of a higher class than it."""
    low = gang("j0", slots=4, tenant="green", priority=Priority.LOW, queued_at=NOON - timedelta(hours=20))
    made = in_the_way()
    assert plan(replace(made, waiting=(low,))).stops == ()
    both = replace(
        made,
        waiting=(low, replace(made.waiting[0], priority=Priority.NORMAL)),
        policy_state={"j0": NOON - timedelta(hours=20)},
    )
    assert {(stop.for_job, stop.reason) for stop in plan(both).stops} == {
        ("j1", "moved"),
        ("j1", "reclaimed"),
    }


@pytest.mark.parametrize("effort", [0, 2])
def test_a_plan_tries_only_so_much(effort: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert plan(in_the_way()).stops
    monkeypatch.setattr("gpu_scheduler.policies.preemption.MOST_EFFORT", effort)
    assert plan(in_the_way()).stops == ()


@pytest.mark.parametrize(
    ("of_tenant", "of_quota"),
    [
        ({"suspended": True}, {}),
        ({"max_time_s": 60}, {}),
        ({"jobs_limit": 2, "jobs_used": 3}, {}),
        ({"user_jobs_limit": 2}, {}),
        ({}, {"gang_limit": 0}),
        ({}, {"user_limit": 2}),
    ],
)
def test_a_run_that_could_not_start_again_moves_for_none(
    of_tenant: dict[str, Any], of_quota: dict[str, Any]
) -> None:
    """It continues only as long as it runs: its tenant was suspended, or a limit lowered."""
    made = in_the_way()
    assert "moved" in {stop.reason for stop in plan(made).stops}
    quotas = tuple(replace(quota, **of_quota) if quota.tenant == "blue" else quota for quota in made.quotas)
    states = (TenantState("blue", **of_tenant),)
    assert plan(replace(made, quotas=quotas, tenants=states)).stops == ()


def test_a_covered_run_that_moves_does_not_come_back_as_a_borrower() -> None:
    """red's older run moves from a1 to a3. Its newer one would then count as covered, and the older one borrow: so that
    leaves for good, although the place that it has is no use."""
    runs = [
        running("r1", "a1", slots=3),
        replace(running("r2", "a2"), started_at=NOON - timedelta(minutes=30)),
        running("b1", "a2", slots=3, tenant="blue", priority=Priority.URGENT),
        running("b2", "a3", tenant="blue", priority=Priority.URGENT),
    ]
    quotas = shared({"red": 3, "blue": 4, "green": 4, "gray": 1}, {"red": 4, "blue": 4})
    waiting = [gang("j1", slots=4, tenant="green")]
    made = snapshot(nodes(a1=4, a2=4, a3=4), waiting, runs, quotas=quotas)
    decided = plan(made)
    assert sorted((stop.job, stop.reason) for stop in decided.stops) == [("r1", "moved"), ("r2", "reclaimed")]
    after = world.apply(world.apply(made, decided), ended=["r1", "r2"])
    settled = world.apply(after, plan(after))
    assert {run.job for run in settled.running} >= {"j1", "r1"}
    assert "r1" not in borrowed(settled)


def test_a_covered_run_is_not_moved_before_it_got_on_and_a_plan_comes_when_it_may_be() -> None:
    made = in_the_way()
    young = tuple(
        replace(run, started_at=NOON - timedelta(seconds=MOVES_AFTER_S - 1)) if run.tenant == "blue" else run
        for run in made.running
    )
    made = replace(made, running=young)
    assert plan(made).stops == ()
    assert made.policy.next_event_at(made) == NOON + timedelta(seconds=1)
    later = replace(made, now=NOON + timedelta(seconds=1))
    assert "moved" in {stop.reason for stop in plan(later).stops}


def test_a_node_is_cleared_whose_cpus_are_taken() -> None:
    """Seven slots of each node or more are free, but runs that limits cover have the CPUs."""
    machines = [Node.with_slots(name, "a100", 9, cpus=8) for name in ("a1", "a2")]
    runs = [
        running("r1", "a1", slots=1, cpus=3),
        replace(running("r2", "a1", slots=1, cpus=1), started_at=NOON - timedelta(minutes=30)),
        running("b1", "a2", slots=1, cpus=4, tenant="blue"),
    ]
    quotas = shared({"red": 1, "blue": 1, "green": 14}, {"red": 2, "blue": 1})
    waiting = [gang("j1", slots=4, cpus=8, tenant="green")]
    decided = plan(snapshot(machines, waiting, runs, quotas=quotas))
    assert sorted(stop.job for stop in decided.stops) == ["b1"]
