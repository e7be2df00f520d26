"""A plan searches for what to stop only so long; what it did not get to comes first in the next one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta

import pytest

from gpu_scheduler.cycle import plan
from gpu_scheduler.model import Gang, Plan, Priority, QuotaUse, Running, Snapshot
from gpu_scheduler.policies import preemption
from gpu_scheduler.policies.fair_share import LEFT_OUT, NEXT_IN_VAIN, NEXT_SEARCH, OTHERS, FairShare
from gpu_scheduler.policies.reclaim import Effort
from gpu_scheduler.policies.room import RoomMade
from tests.gpu_scheduler.test_plan_work import Calls
from tests.gpu_scheduler.worlds import NOON, gang, next_snapshot, nodes, running, snapshot

NODES, EACH = 12, 8
LENDERS = [f"lender-{number}" for number in range(6)]
YOUNG = timedelta(seconds=1)
"""Since when a run holds its slots that may not be stopped yet."""


def flooded(waiting: Iterable[Gang], *, young: bool = False) -> Snapshot:
    """Runs of one GPU on every slot, half of them borrowed from the lenders. young: the first of each node is still
    safe from being stopped."""
    names = [f"a{number:02}" for number in range(NODES)]
    runs = [
        running(f"r{place}-{name}", name, tenant="flood", priority=0)
        for name in names
        for place in range(EACH)
    ]
    runs = [_young(run) if young and run.job.startswith("r0-") else run for run in runs]
    made = snapshot(nodes(**dict.fromkeys(names, EACH)), waiting, runs)
    half = NODES * EACH // 2
    limits = {"flood": half} | dict.fromkeys(LENDERS, half // len(LENDERS))
    used = {"flood": NODES * EACH}
    quotas = tuple(
        QuotaUse(tenant, "a100", limit, used.get(tenant, 0), cohort="lab") for tenant, limit in limits.items()
    )
    return replace(made, quotas=quotas)


def _young(run: Running) -> Running:
    return replace(run, started_at=NOON - YOUNG)


def _hopeless() -> Snapshot:
    """An urgent job for a whole node, each of which has a young run, and no cohort."""
    urgent = gang("j1", 1, EACH, tenant=LENDERS[0], priority=Priority.URGENT)
    made = flooded([urgent], young=True)
    return replace(made, quotas=tuple(replace(quota, cohort="") for quota in made.quotas))


def of_each_lender(slots: int = EACH, lenders: Iterable[str] = LENDERS) -> list[Gang]:
    return [gang(f"j{number}", 1, slots, tenant=tenant) for number, tenant in enumerate(lenders)]


def helped(made: Plan) -> set[str | None]:
    return {stop.for_job for stop in made.stops}


def test_all_jobs_have_their_turn_within_a_few_plans_of_little_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preemption, "WORK", 100)
    world, found = flooded(of_each_lender()), set[str | None]()
    made = plan(world)
    assert 0 < len(helped(made)) < len(LENDERS)
    assert any(key.startswith(LEFT_OUT) for key in made.policy_state)
    assert len(made.waits) == len(LENDERS), "each job's wait is explained all the same"
    for _ in LENDERS:
        found |= helped(made)
        world = next_snapshot(world, made, after_s=1)
        made = plan(world)
    assert found == {each.job for each in of_each_lender()}
    assert not any(key.startswith(LEFT_OUT) for key in made.policy_state)


def test_with_enough_work_all_are_helped_at_once() -> None:
    made = plan(flooded(of_each_lender()))
    assert helped(made) == {each.job for each in of_each_lender()}
    assert not any(key.startswith(LEFT_OUT) for key in made.policy_state)


def test_those_for_whom_nothing_can_be_found_do_not_keep_others_from_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(preemption, "WORK", 100)
    last = gang("j9", 1, 2, tenant=LENDERS[-1])
    world = flooded([*of_each_lender(lenders=LENDERS[:-1]), last], young=True)
    found = []
    for _ in LENDERS:
        made = plan(world)
        found.append(helped(made))
        world = replace(world, policy_state=made.policy_state)
    assert found[0] == set()
    assert {"j9"} in found


def test_an_urgent_job_does_not_wait_for_the_turns_of_others() -> None:
    urgent = gang("j9", 1, 1, tenant=LENDERS[-1], priority=Priority.URGENT)
    normal = of_each_lender(lenders=LENDERS[:2])
    state = {f"{LEFT_OUT}a100/{LENDERS[0]}": NOON}
    made = plan(replace(flooded([*normal, urgent]), policy_state=state))
    assert helped(made) == {"j9", "j0"}, "and the other one was looked at by the last plan"


def test_the_next_plan_comes_soon_after_one_that_left_some_out() -> None:
    state = {f"{LEFT_OUT}a100/{LENDERS[0]}": NOON + NEXT_SEARCH}
    left = replace(flooded(of_each_lender()), policy_state=state)
    assert FairShare().next_event_at(left) == NOON + NEXT_SEARCH
    assert FairShare().load(FairShare().dump(state)) == state
    assert FairShare().window(state).first == frozenset()


def test_a_plan_in_vain_is_followed_later_than_one_that_found_something(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(preemption, "WORK", 100)
    for young, soon in ((False, NEXT_SEARCH), (True, NEXT_IN_VAIN)):
        state = plan(flooded(of_each_lender(), young=young)).policy_state
        assert {due for key, due in state.items() if key.startswith(LEFT_OUT)} == {NOON + soon}


def test_those_that_had_no_turn_for_the_sake_of_others_are_not_forgotten() -> None:
    world = replace(
        flooded(of_each_lender()), policy_state={f"{LEFT_OUT}a100/{LENDERS[0]}": NOON, "j0": NOON}
    )
    made = plan(world)
    assert helped(made) == {"j0"}
    assert made.policy_state[OTHERS] == NOON + NEXT_SEARCH
    assert helped(plan(replace(world, policy_state=made.policy_state))) == {
        each.job for each in of_each_lender()
    }


def test_an_urgent_job_does_not_wait_for_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preemption, "WORK", 0)
    urgent = gang("j9", 1, 1, tenant=LENDERS[-1], priority=Priority.URGENT)
    assert helped(plan(flooded([*of_each_lender(lenders=LENDERS[:2]), urgent]))) == {"j9"}


def test_what_is_tried_for_one_tenant_is_charged_to_the_whole_and_not_ended_by_it() -> None:
    whole = Effort(10)
    first, second = Effort(8, whole), Effort(8, whole)
    first.spend(8)
    assert (first.is_over, whole.is_over) == (True, False)
    second.spend(4)
    assert (second.is_over, whole.is_over) == (False, True)


def test_each_run_that_is_tried_is_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preemption, "FEW", 10**6)
    tried, spent = Calls(RoomMade.without), list[int]()
    monkeypatch.setattr(RoomMade, "without", lambda *args: tried(*args))
    monkeypatch.setattr(Effort, "spend", lambda _, learners: spent.append(learners))
    assert plan(_hopeless()).stops == ()
    assert sum(spent) >= tried.count > EACH * NODES / 2


def test_what_all_runs_together_could_not_help_is_not_tried_run_by_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried = Calls(RoomMade.without)
    monkeypatch.setattr(preemption, "FEW", 4)
    monkeypatch.setattr(RoomMade, "without", lambda *args: tried(*args))
    assert plan(_hopeless()).stops == ()
    assert tried.count == 4
