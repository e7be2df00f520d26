"""Which elastic gangs are resized, and with how many learners they start, under fair_share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings

from gpu_scheduler.cycle import plan
from gpu_scheduler.forecast import forecast
from gpu_scheduler.ledger import Ledger
from gpu_scheduler.model import (
    Gang,
    Level,
    Priority,
    Profile,
    QuotaUse,
    Resize,
    Running,
    Snapshot,
    StepTimes,
    Stop,
    TenantState,
    Topology,
)
from gpu_scheduler.policies.fair_share import ELASTIC, FairShare
from gpu_scheduler.policies.fifo import Fifo
from gpu_scheduler.policies.per_pool import PerPool
from tests.gpu_scheduler.elastic_runs import FLAT, PERFECT, elastic, elastic_worlds, resizes, run
from tests.gpu_scheduler.worlds import NOON, gang, nodes, overcommitted, running, snapshot


def test_a_run_grows_into_what_is_free_and_is_left_alone_where_that_helps_nothing() -> None:
    assert resizes(plan(snapshot(nodes(a1=8), [], [run("r1", "a1")]))) == {"r1": 8}
    assert resizes(plan(snapshot(nodes(a1=8), [], [run("r1", "a1", profile=FLAT)]))) == {}
    assert resizes(plan(snapshot(nodes(a1=8), [], [run("r1", "a1", most=3)]))) == {"r1": 3}
    assert resizes(plan(snapshot(nodes(a1=8), [], [run("r1", "a1", profile=Profile())]))) == {}, (
        "never measured"
    )
    failed = replace(PERFECT, most=5)
    assert resizes(plan(snapshot(nodes(a1=8), [], [run("r1", "a1", profile=failed)]))) == {"r1": 5}
    tried = replace(PERFECT, largest=1)
    assert resizes(plan(snapshot(nodes(a1=8), [], [run("r1", "a1", profile=tried)]))) == {"r1": 2}


def test_what_is_free_goes_where_it_helps_most() -> None:
    made = snapshot(nodes(a1=6), [], [run("r1", "a1"), run("r2", "a1", profile=FLAT)])
    assert resizes(plan(made)) == {"r1": 4}, "sizes that pack well first"
    left = snapshot(nodes(a1=6), [], [run("r1", *["a1"] * 4), run("r2", "a1", profile=FLAT)])
    assert resizes(plan(left)) == {"r1": 5}
    both = snapshot(nodes(a1=8), [], [run("r1", "a1"), run("r2", "a1")])
    assert resizes(plan(both)) == {"r1": 4, "r2": 4}


def test_a_run_shrinks_first_and_what_it_gives_up_is_given_once_it_is_free() -> None:
    full = snapshot(nodes(a1=8), [], [run("r1", *["a1"] * 7), run("r2", "a1")])
    assert resizes(plan(full)) == {"r1": 4}, "r2 grows when r1 has left"


def test_runs_shrink_at_once_for_what_waits_for_nodes_and_no_more_than_it_needs() -> None:
    held = [run("r1", *["a1"] * 6), run("r2", "a1", "a1")]
    made = plan(snapshot(nodes(a1=8), [gang("j1", 1, 2)], held))
    assert resizes(made) == {"r1": 4}
    assert made.stops == ()
    whole = plan(snapshot(nodes(a1=8), [gang("j1", 6)], held))
    assert resizes(whole) == {"r1": 1, "r2": 1}
    equal = [run("r1", *["a1"] * 4), run("r2", *["a1"] * 4)]
    assert resizes(plan(snapshot(nodes(a1=8), [gang("j1", 7)], equal))) == {}, "it would not fit either way"


def test_what_leaves_already_is_not_asked_for_twice() -> None:
    going = replace(run("r1", *["a1"] * 4), order=Resize("r1", 1))
    made = snapshot(nodes(a1=8), [gang("j1", 3)], [going, run("r2", *["a1"] * 4)])
    assert resizes(plan(made)) == {}
    stopped = replace(run("r1", *["a1"] * 4), order=Stop("r1", "preempted"))
    assert resizes(plan(replace(made, running=(stopped, made.running[1])))) == {}
    assert resizes(plan(replace(made, waiting=(gang("j1", 4),)))) == {"r2": 3}


def test_nothing_shrinks_for_what_its_own_limits_hold_back() -> None:
    held = [run("r1", *["a1"] * 8, tenant="green")]
    blocked = snapshot(nodes(a1=8), [gang("j1", 2)], held, limits={"red": 1})
    assert resizes(plan(blocked)) == {}


def test_runs_shrink_for_what_waits_for_slots_of_their_own_tenant_or_user() -> None:
    held = [run("r1", *["a1"] * 4, user="u"), run("r2", *["a2"] * 4, tenant="green")]
    made = snapshot(nodes(a1=8, a2=8), [gang("j1", 2, user="u"), gang("j2", 5, user="u")], held)
    full = (QuotaUse("red", "a100", 4, 4), QuotaUse("green", "a100", 4, 4))
    assert resizes(plan(replace(made, quotas=full))) == {"r1": 2}, "no size of it lets j2 start"
    wide = (QuotaUse("red", "a100", 16, 4, user_limit=4), QuotaUse("green", "a100", 4, 4))
    assert resizes(plan(replace(made, quotas=wide))) == {"r1": 2}
    others = tuple(replace(each, user="v") for each in made.waiting)
    assert resizes(plan(replace(made, quotas=wide, waiting=others[1:]))) == {}, "it counts against v"
    going = replace(held[0], order=Resize("r1", 2))
    assert resizes(plan(replace(made, quotas=full, running=(going, held[1])))) == {}


def test_a_run_whose_type_has_no_nodes_left_is_left_alone() -> None:
    made = snapshot(nodes(h1=8), [gang("j1", slot_type="h200")], [run("r1", "a1")])
    decided = plan(made)
    assert ([start.job for start in decided.starts], resizes(decided)) == (["j1"], {})
    forecast(made, {})


def test_a_run_that_could_not_start_again_is_not_resized() -> None:
    made = snapshot(nodes(a1=8), [], [run("r1", "a1", "a1")])
    assert resizes(plan(made)) == {"r1": 8}
    states = (
        TenantState("red", suspended=True),
        TenantState("red", jobs_limit=0, jobs_used=1),
        TenantState("red", max_time_s=60),
    )
    for state in states:
        assert resizes(plan(replace(made, tenants=(state,)))) == {}, state
    assert resizes(plan(replace(made, quotas=(QuotaUse("red", "a100", 1, 2),)))) == {}
    down = tuple(replace(node, ready=False) for node in made.nodes) + nodes(a2=8)
    assert resizes(plan(replace(made, nodes=down))) == {}


def test_a_run_grows_only_where_its_learners_fit_whole() -> None:
    wide = run("r1", "a1", slots=4, most=2)
    assert resizes(plan(snapshot(nodes(a1=6, a2=6), [], [wide, running("r2", "a2", slots=4)]))) == {}
    assert resizes(plan(snapshot(nodes(a1=8, a2=6), [], [wide, running("r2", "a2", slots=4)]))) == {"r1": 2}


def test_what_a_run_is_about_to_take_is_not_given_to_another() -> None:
    growing = replace(run("r2", "a1", "a1"), order=Resize("r2", 6))
    assert resizes(plan(snapshot(nodes(a1=8), [], [growing, run("r3", "a1", "a1")]))) == {}


def test_slots_that_others_wait_for_are_not_grown_into() -> None:
    held = [run("r1", "a1"), running("r2", "a2")]
    made = plan(snapshot(nodes(a1=4, a2=4), [gang("j1", 1, 4)], held))
    assert made.starts == (), "six slots are free, but no four on one node"
    assert resizes(made) == {"r1": 2}, "two of them are not waited for"


@pytest.mark.parametrize(
    ("limit", "size"),
    [({"limit": 3}, 2), ({"gang_limit": 3}, 3), ({"user_limit": 5}, 5)],
    ids=str,
)
def test_no_limit_is_exceeded(limit: dict[str, int], size: int) -> None:
    values: dict[str, Any] = {"limit": 100} | limit
    quotas = (QuotaUse("red", "a100", used=1, **values),)
    made = replace(snapshot(nodes(a1=8), [], [run("r1", "a1", user="u")]), quotas=quotas)
    assert resizes(plan(made)) == {"r1": size}


def test_a_young_run_is_left_alone_unless_others_wait() -> None:
    young = replace(run("r1", "a1", "a1"), started_at=NOON - timedelta(seconds=59))
    assert resizes(plan(snapshot(nodes(a1=8), [], [young]))) == {}
    due = FairShare().next_event_at(snapshot(nodes(a1=8), [], [young]))
    assert due == NOON + timedelta(seconds=60), "all at once, at full minutes"
    assert resizes(plan(snapshot(nodes(a1=2), [gang("j1")], [young]))) == {"r1": 1}
    newest = replace(young, started_at=NOON - timedelta(seconds=19))
    assert resizes(plan(snapshot(nodes(a1=2), [gang("j1")], [newest]))) == {}, "its lease"


def test_a_change_must_gain_more_than_it_costs() -> None:
    little = Profile(step_times=StepTimes(1.0, 0.05), largest=64)  # 2 learners: 2.4 % faster
    assert resizes(plan(snapshot(nodes(a1=2), [], [run("r1", "a1", profile=little)]))) == {}
    cheap = replace(run("r1", "a1", profile=little), checkpoint_cost_s=1.0, restart_cost_s=1.0)
    assert resizes(plan(snapshot(nodes(a1=2), [], [cheap]))) == {"r1": 2}


def test_a_change_that_may_lose_more_than_ten_minutes_of_work_is_not_made() -> None:
    careless = replace(run("r1", *["a1"] * 4), saves_when_asked=False)
    wanted = snapshot(nodes(a1=8), [gang("j1", 1, 5)], [careless])
    for free in (replace(wanted, waiting=()), wanted):
        assert resizes(plan(free)) == {}, "an hour of work"
        recent = replace(careless, last_checkpoint_at=NOON - timedelta(seconds=60))
        assert resizes(plan(replace(free, running=(recent,)))) != {}
    young = replace(
        careless, started_at=NOON - timedelta(seconds=90), last_checkpoint_at=NOON - timedelta(days=1)
    )
    assert resizes(plan(replace(wanted, running=(young,)))) == {"r1": 3}, "it began from that checkpoint"


def test_who_is_stopped_halted_or_resized_already_is_not_resized() -> None:
    for busy in (
        replace(run("r1", "a1"), stopping=True),
        replace(run("r1", "a1"), requeues=False),
        replace(run("r1", "a1"), order=Resize("r1", 4)),
        replace(run("r1", "a1"), order=Stop("r1", "preempted")),
    ):
        assert resizes(plan(snapshot(nodes(a1=8), [], [busy]))) == {}


def test_a_plan_is_made_without_a_queue_while_an_elastic_gang_runs() -> None:
    policy = FairShare()
    started = plan(snapshot(nodes(a1=8), [elastic("j1")]))
    assert policy.plans_without_queue(started.policy_state)
    assert policy.load(policy.dump(started.policy_state)) == started.policy_state
    assert policy.window(started.policy_state).first == frozenset(), "the mark is no job"
    assert plan(snapshot(nodes(a1=8), [gang("j1")])).policy_state == {}
    assert ELASTIC in plan(snapshot(nodes(a1=8), [], [run("r1", "a1")])).policy_state


def test_behind_several_policies_each_one_resizes_its_own_gangs() -> None:
    """And gives sizes to them: fifo resizes none."""
    on = nodes(a1=8, h1=8)
    busy = [run("r1", "a1"), run("r2", "h1", slot_type="h200")]
    waiting = [elastic("j1", slot_type="h200")]
    sized = PerPool(FairShare(), {"h200": FairShare()})
    assert resizes(plan(snapshot(on, [], busy, policy=sized))) == {"r1": 8, "r2": 8}
    assert len(plan(snapshot(on, waiting, policy=sized)).starts[0].placement.nodes) == 8
    mixed = PerPool(FairShare(), {"h200": Fifo()})
    assert resizes(plan(snapshot(on, [], busy, policy=mixed))) == {"r1": 8}
    assert len(plan(snapshot(on, waiting, policy=mixed)).starts[0].placement.nodes) == 1


def test_a_job_whose_program_was_measured_before_starts_with_its_part() -> None:
    def sizes(on: dict[str, int], waiting: Iterable[Gang], busy: Iterable[Running] = ()) -> dict[str, int]:
        made = plan(snapshot(nodes(**on), waiting, busy))
        return {start.job: len(start.placement.nodes) for start in made.starts}

    assert sizes({"a1": 8}, [elastic("j1")]) == {"j1": 8}
    assert sizes({"a1": 8}, [elastic("j1"), elastic("j2")]) == {"j1": 4, "j2": 4}
    assert sizes({"a1": 8}, [elastic("j1"), gang("j2", 5)]) == {"j1": 2, "j2": 5}, "others' fewest come first"
    assert sizes({"a1": 8}, [elastic("j1", Profile())]) == {"j1": 1}, "never measured"
    assert sizes({"a1": 8}, [elastic("j1", FLAT)]) == {"j1": 1}
    assert sizes({"a1": 9}, [elastic("j1")], [run("r1", *["a1"] * 7)]) == {"j1": 2}, "as many of its 4 as fit"
    early = gang("j0", 4, queued_at=NOON - timedelta(hours=2))
    assert sizes({"a1": 8}, [early, elastic("j1")]) == {"j0": 4, "j1": 4}, (
        "what started is not waited for twice"
    )
    high = elastic("j2", priority=Priority.HIGH)
    assert sizes({"a1": 6}, [elastic("j1"), high]) == {"j1": 2, "j2": 4}


@settings(max_examples=300, deadline=None)
@given(elastic_worlds())
def test_whatever_runs_and_waits(made: Snapshot) -> None:
    """Sizes stay in their ranges, growth has its slots and its quota, and nothing is ordered twice."""
    decided = plan(made)
    assert decided == plan(made)
    assert not overcommitted(made, decided)
    runs = {each.job: each for each in made.running}
    used: Counter[str] = Counter()
    for each in made.running:
        used[each.tenant] += each.slots * len(each.nodes)
    gangs = {each.job: each for each in made.waiting}
    for start in decided.starts:
        used[gangs[start.job].tenant] += gangs[start.job].slots * len(start.placement.nodes)
    free = sum(node.slots for node in made.nodes) - sum(used.values())
    ordered = [each.job for each in (*decided.stops, *decided.resizes)]
    assert len(ordered) == len(set(ordered))
    accounts = Ledger(made.quotas)
    for each in decided.resizes:
        run_ = runs[each.job]
        more = (each.learners - len(run_.nodes)) * run_.slots
        assert more
        assert run_.order is None
        assert run_.gang.learners.min <= each.learners <= run_.gang.learners.max
        if more > 0:
            free -= more
            used[run_.tenant] += more
            assert used[run_.tenant] <= accounts.account(run_.tenant, "a100").most
    assert free >= 0


def grown(made: Snapshot) -> dict[str, int]:
    """By job, how many learners more it gets."""
    held = {each.job: len(each.nodes) for each in made.running}
    return {job: size - held[job] for job, size in resizes(plan(made)).items()}


def test_all_that_grow_in_one_plan_share_what_a_cohort_a_user_or_a_quota_has_left() -> None:
    two = [run("r1", "a1", user="u"), run("r2", "a1", user="u")]
    of_user = (QuotaUse("red", "a100", 100, 2, user_limit=4),)
    assert sum(grown(replace(snapshot(nodes(a1=8), [], two), quotas=of_user)).values()) == 2

    lenders = [run("r1", "a1"), run("r2", "a1", tenant="green")]
    cohort = (
        QuotaUse("red", "a100", 1, 1, "lab"),
        QuotaUse("green", "a100", 1, 1, "lab"),
        QuotaUse("blue", "a100", 3, 0, "lab"),
    )
    lent = replace(snapshot(nodes(a1=16), [], lenders), quotas=cohort)
    assert sum(grown(lent).values()) == 3
    own = (cohort[0], replace(cohort[1], limit=3), replace(cohort[2], limit=1))
    assert sum(grown(replace(lent, quotas=own)).values()) == 3


def test_what_is_reserved_of_a_quota_is_not_grown_into() -> None:
    """A job that waited too long for two of its tenant's slots."""
    made = snapshot(nodes(a1=8, a2=1), [gang("j1", 1, 8)], [run("r1", "a1"), running("f1", "a2")])
    since = {"j1": NOON - timedelta(hours=1)}
    quotas = (QuotaUse("red", "a100", 12, 2),)
    assert grown(replace(made, quotas=quotas, policy_state=since)) == {}
    assert grown(replace(made, quotas=quotas, waiting=())) == {"r1": 7}


def test_runs_of_one_tenant_share_what_it_weighs() -> None:
    many = [run(f"r{n}", "a1", most=32) for n in range(3)]
    made = snapshot(nodes(a1=16), [], [*many, run("g1", "a1", tenant="green", most=32)])
    sizes = {job: more + 1 for job, more in grown(made).items()}
    assert sizes["g1"] == 8
    assert sum(sizes.get(f"r{n}", 1) for n in range(3)) <= 8


def test_only_so_many_runs_are_divided_at_once() -> None:
    many = [run(f"r{n:02}", "a1") for n in range(20)]
    assert len(resizes(plan(snapshot(nodes(a1=160), [], many)))) == 8
    busy = [replace(each, order=Resize(each.job, 2)) for each in many[:5]]
    assert len(resizes(plan(snapshot(nodes(a1=160), [], [*busy, *many[5:]])))) == 3


def test_a_run_that_requires_a_rack_grows_in_a_rack_alone() -> None:
    placed = [replace(node, rack=node.name) for node in nodes(a1=4, a2=6)]
    required = run("r1", "a1")
    required = replace(required, gang=replace(required.gang, topology=Topology(Level.RACK, required=True)))
    assert grown(snapshot(placed, [], [required])) == {"r1": 5}, "in the larger rack, where all fit"
    beside = [required, *(running(f"f{n}", "a2") for n in range(4))]
    assert grown(snapshot(placed, [], beside)) == {"r1": 3}


def test_what_waits_for_its_own_limits_takes_nothing_from_a_job_that_starts() -> None:
    def size(*waiting: Gang, **changes: Any) -> int:
        made = replace(snapshot(nodes(a1=8), [elastic("j1"), *waiting]), **changes)
        return next(len(start.placement.nodes) for start in plan(made).starts if start.job == "j1")

    other = gang("j2", 4, tenant="green")
    assert size(other) == 4
    suspended = (TenantState("green", suspended=True),)
    assert size(other, tenants=suspended) == 8
    quotas = (QuotaUse("red", "a100", 8, 0), QuotaUse("green", "a100", 2, 0))
    assert size(other, quotas=quotas) == 8
    assert size(gang("j2", 16, tenant="green")) == 8, "it would not fit on what is free"
    own = (QuotaUse("red", "a100", 8, 0, user_limit=3),)
    assert size(quotas=own) == 3
